//! The session: calls over messages, for one end of a connection. Both ends may call.
//!
//! Owns which call waits for what: slots and their quarantine, deadlines, cancellation, orderly
//! shutdown. Never does anything itself: no clock, no I/O, no thread, no async; time is an
//! argument, peer input is [`Session::on_message`], what is to be done comes out of
//! [`Session::poll_transmit`] and [`Session::poll_event`], which are to be drained after every
//! other call. Knows methods only as numbers and bodies only as bytes.
//!
//! The contract with the callee's dispatch: every [`Event::Request`] is answered by exactly one
//! [`Session::reply`] or [`Session::handler_ended`], also after [`Event::CancelHandler`] and after
//! a refused [`Session::attach_handler`]; only then does the call's slot go home.
//!
//! Invariants:
//! 1. A started call has exactly one outcome, whatever races: its reply, or one failure.
//! 2. A slot is reused only after its proof, so no old answer reaches a new call (`slots`).
//! 3. A call of the peer is answered exactly once, after its handler has ended (`incoming`).
//! 4. A cancel never overtakes its request: it is sent only once the link says that the request
//!    cannot be taken back.
//! 5. A drained answer is sent only when no call of this end is in flight, so a go-away needs no
//!    order between frames.
//! 6. A handle or waiter is never dropped in here while it is its owner's only one: waiters are
//!    handed back, handlers' handles come out as events.

mod call;
mod deadlines;
mod error;
mod incoming;
mod outgoing;
mod signatures;
mod slots;
mod transmit;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rpc_transport::error::CloseCause;
use rpc_transport::message::Message;
use rpc_transport::outbound::OutBuf;

pub use self::call::{
    Answer, CallId, Deadline, Event, Failure, Gone, Incoming, IncomingId, NotStarted, Outcome,
    Reply, Revoked, Role, SessionLimits, StartCall, StartError, Transmit,
};
pub use self::error::SessionError;
pub use self::slots::INITIAL_CALLS;
pub use crate::wire::ReplyKind;

use self::deadlines::Deadlines;
use self::incoming::{Ended, IncomingCalls, Stopped};
use self::outgoing::{CallHead, Calls, Stage, Timed};
use self::signatures::{AcceptedByPeer, AcceptedHere};
use self::slots::{Proof, Slots};
use self::transmit::{Control, FrameQueue, Side, tag};
use crate::wire::{self, Frame, Hello, RequestHead, ResponseHead, WireId, code};

/// Most slots that any end uses or announces.
const MAX_CALLS: u32 = 1 << 24;
/// Longest remaining time that is believed.
const MAX_REMAINING: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Takes a message back from the link, by its tag.
pub type Revoke<'a> = &'a mut dyn FnMut(u64) -> Revoked;

#[derive(Debug, Clone, Copy)]
enum Timer {
    Outgoing(u32),
    Incoming(u32),
}

/// How far an orderly shutdown has come.
#[derive(Debug, Default)]
struct Shutdown {
    /// This end starts no calls any more.
    stopped: bool,
    /// This end has said go-away.
    sent: bool,
    /// The peer has none of its calls left.
    peer_drained: bool,
    /// `Event::Drained` is out.
    reported: bool,
    /// The peer has said go-away.
    peer_sent: bool,
    /// This end has answered it.
    answered: bool,
}

/// One end of a session. `W`: who waits for a call; `H`: handle of a running handler.
#[derive(Debug)]
pub struct Session<W, H> {
    role: Role,
    limits: SessionLimits,
    peer: Option<Hello>,
    calls: Calls<W>,
    slots: Slots,
    incoming: IncomingCalls<H>,
    deadlines: Deadlines<Timer>,
    frames: FrameQueue,
    events: VecDeque<Event<W, H>>,
    accepted_by_peer: AcceptedByPeer,
    accepted_here: AcceptedHere,
    shutdown: Shutdown,
    stale_cancels: u64,
    closed: Option<CloseCause>,
}

impl<W, H> Session<W, H> {
    /// A session on a fresh connection. Limits above 2^24 count as that.
    #[must_use]
    pub fn new(role: Role, limits: SessionLimits) -> Self {
        let limits = SessionLimits {
            max_outgoing_calls: limits.max_outgoing_calls.min(MAX_CALLS),
            max_incoming_calls: limits.max_incoming_calls.min(MAX_CALLS),
        };
        let mut session = Self {
            role,
            limits,
            peer: None,
            calls: Calls::new(),
            slots: Slots::new(),
            incoming: IncomingCalls::new(limits.max_incoming_calls),
            deadlines: Deadlines::new(),
            frames: FrameQueue::default(),
            events: VecDeque::new(),
            accepted_by_peer: AcceptedByPeer::default(),
            accepted_here: AcceptedHere::default(),
            shutdown: Shutdown::default(),
            stale_cancels: 0,
            closed: None,
        };
        if role == Role::Client {
            session.say_hello();
        }
        session
    }

    fn say_hello(&mut self) {
        self.frames.push_control(Control::Hello(Hello {
            min_version: wire::VERSION,
            max_version: wire::VERSION,
            max_calls: self.limits.max_incoming_calls,
            features: 0,
        }));
    }
}

/// Calls of this end.
impl<W, H> Session<W, H> {
    /// Starts a call. It goes out by `poll_transmit`, at once or when the peer takes one more:
    /// until its hello has arrived it is believed to take [`INITIAL_CALLS`].
    ///
    /// # Errors
    /// Why nothing was started, with the body.
    pub fn start(
        &mut self,
        call: StartCall<'_>,
        mut body: OutBuf,
        waiter: Option<W>,
    ) -> Result<CallId, NotStarted> {
        if let Err(error) = self.may_start(&call) {
            return Err(NotStarted { error, body });
        }
        if !call.metadata.is_empty() {
            wire::prepend_metadata(&mut body, call.metadata);
        }
        let head = CallHead {
            method: call.method,
            method_index: call.method_index,
            signature: call.signature,
            codec: call.codec,
            no_cancel: call.no_cancel,
            has_metadata: !call.metadata.is_empty(),
        };
        let id = self.calls.insert(head, body, waiter);
        if let Some(Deadline { at, now }) = call.deadline {
            let key = self.deadlines.insert(at, now, Timer::Outgoing(id.index));
            self.calls.set_deadline(id, Timed { at, key });
        }
        Ok(id)
    }

    #[inline]
    fn may_start(&self, call: &StartCall<'_>) -> Result<(), StartError> {
        if self.closed.is_some() {
            return Err(StartError::Closed);
        }
        if self.shutdown.stopped {
            return Err(StartError::Stopped);
        }
        if self.shutdown.peer_sent {
            return Err(StartError::PeerGoingAway);
        }
        if self.slots.limit() == 0 {
            return Err(StartError::PeerTakesNoCalls);
        }
        if self.calls.len() >= self.limits.max_outgoing_calls as usize {
            return Err(StartError::TooManyCalls);
        }
        if call.metadata.len() > wire::MAX_METADATA_BYTES {
            return Err(StartError::MetadataTooLong(call.metadata.len()));
        }
        if call.deadline.is_some_and(|deadline| deadline.at <= deadline.now) {
            return Err(StartError::DeadlineExceeded);
        }
        Ok(())
    }

    /// Takes a call's outcome, if it is there; the id then names nothing.
    #[inline]
    pub fn take_outcome(&mut self, id: CallId) -> Option<Outcome> {
        let outcome = self.calls.take_outcome(id);
        if outcome.is_none() && !self.calls.contains(id) {
            return Some(Outcome::Failed { reason: Failure::NoSuchCall, never_sent: false });
        }
        outcome
    }

    /// Takes a call's outcome, or registers who waits for it, in place of who did before.
    pub fn poll_call(&mut self, id: CallId, waiter: impl FnOnce() -> W) -> Option<Outcome> {
        let outcome = self.take_outcome(id);
        if outcome.is_none() {
            self.set_waiter(id, waiter());
        }
        outcome
    }

    /// Registers who waits for a call. Gives back who did before, or `waiter` itself when the id
    /// names no call, to be dropped outside the lock.
    pub fn set_waiter(&mut self, id: CallId, waiter: W) -> Option<W> {
        self.calls.set_waiter(id, waiter)
    }

    /// Who waits for a call now.
    #[must_use]
    pub fn waiter(&self, id: CallId) -> Option<&W> {
        self.calls.waiter(id)
    }

    /// Gives a call up. What never reached the wire is taken back and its slot is free at once;
    /// else the peer is told, and the slot stays in quarantine until its proof arrives. A call
    /// that must not be cancelled goes on, and its answer is dropped. Gives back who waited.
    pub fn cancel(&mut self, id: CallId, revoke: Revoke<'_>) -> Option<W> {
        if !self.calls.contains(id) {
            return None;
        }
        let no_cancel = self.calls.head(id.index).no_cancel;
        if no_cancel && matches!(self.calls.stage(id.index), Stage::Unsent(_)) {
            return self.calls.detach(id);
        }
        let taken = self.calls.remove(id)?;
        self.remove_deadline(taken.deadline);
        match taken.stage {
            Stage::Sent(slot) if no_cancel => self.slots.abandon(slot, false),
            Stage::Sent(slot) => {
                self.give_up_slot(slot, true, revoke);
            }
            Stage::Unsent(_) | Stage::Done(_) | Stage::Free => {}
        }
        self.check_drained();
        taken.waiter
    }

    /// Nobody waits for the slot's call any more. Returns whether the peer never saw it.
    fn give_up_slot(&mut self, slot: u32, send_cancel: bool, revoke: Revoke<'_>) -> bool {
        let id = self.slots.id(slot);
        if revoke(tag(Side::Request, id)).is_unsent() {
            self.slots.release_unsent(slot);
            return true;
        }
        self.slots.abandon(slot, send_cancel);
        if send_cancel {
            self.frames.push_control(Control::Cancel(id));
        }
        false
    }

    fn finish(&mut self, index: u32, outcome: Outcome) {
        let (deadline, waiter) = self.calls.finish(index, outcome);
        self.remove_deadline(deadline);
        if let Some(waiter) = waiter {
            self.events.push_back(Event::Wake(waiter));
        }
    }

    fn fail(&mut self, index: u32, reason: Failure, never_sent: bool) {
        self.finish(index, Outcome::Failed { reason, never_sent });
    }

    fn fail_unsent(&mut self, reason: Failure) {
        for index in self.calls.pending() {
            if matches!(self.calls.stage(index), Stage::Unsent(_)) {
                self.fail(index, reason, true);
            }
        }
    }

    fn remove_deadline(&mut self, deadline: Option<Timed>) {
        if let Some(timed) = deadline {
            self.deadlines.remove(timed.key);
        }
    }
}

/// Towards the peer.
impl<W, H> Session<W, H> {
    /// The next frame for the link. `now` is asked only for a call with a deadline.
    pub fn poll_transmit(&mut self, now: impl FnOnce() -> Instant) -> Option<Transmit> {
        if let Some(transmit) = self.frames.pop() {
            return Some(transmit);
        }
        let may_speak = self.role == Role::Client || self.peer.is_some();
        if self.calls.unsent_len() == 0 || !may_speak {
            return None;
        }
        self.next_request(now)
    }

    #[inline]
    fn next_request(&mut self, now: impl FnOnce() -> Instant) -> Option<Transmit> {
        let mut clock = Some(now);
        let mut now = None;
        while self.slots.has_room() {
            let ready = self.calls.next_unsent()?;
            let mut remaining_micros = None;
            if let Some(timed) = ready.deadline {
                now = now.or_else(|| clock.take().map(|clock| clock()));
                match remaining(timed.at, now) {
                    0 => {
                        self.fail(ready.id.index, Failure::DeadlineExceeded, true);
                        self.check_drained();
                        continue;
                    }
                    micros => remaining_micros = Some(micros),
                }
            }
            return self.send_request(ready.id, ready.deadline, remaining_micros);
        }
        None
    }

    #[inline]
    fn send_request(
        &mut self,
        call: CallId,
        deadline: Option<Timed>,
        remaining_micros: Option<u64>,
    ) -> Option<Transmit> {
        let id = self.slots.take(call.index)?;
        let (head, mut frame, detached) = self.calls.send(call, id.slot)?;
        if detached {
            self.slots.abandon(id.slot, false);
            self.remove_deadline(deadline);
        }
        let accepted = self.accepted_by_peer.contains(head.method_index);
        let request = RequestHead {
            id,
            method: head.method,
            codec: head.codec,
            no_cancel: head.no_cancel,
            remaining_micros,
            signature: if accepted { None } else { Some(head.signature) },
        };
        wire::prepend_request(&mut frame, &request, head.has_metadata);
        Some(Transmit { urgent: false, tag: tag(Side::Request, id), frame })
    }

    /// The most session frames that a correct peer can make wait in this end's link at once. More
    /// means that the peer answers or asks faster than it reads.
    #[must_use]
    pub fn most_queued_frames(&self) -> usize {
        // A request and a cancel per slot of ours, an answer per slot of the peer's; hello,
        // go-away and its answer.
        2 * self.slots.busy() as usize + self.incoming.limit() as usize + 3
    }
}

/// From the peer.
impl<W, H> Session<W, H> {
    /// Takes a message of the peer. `now` is asked only when a deadline starts to run.
    ///
    /// # Errors
    /// The rule that the peer broke: close the connection. After `on_closed` messages are dropped.
    pub fn on_message(
        &mut self,
        message: Message,
        now: impl FnOnce() -> Instant,
        revoke: Revoke<'_>,
    ) -> Result<(), SessionError> {
        if self.closed.is_some() {
            return Ok(());
        }
        let (frame, head_bytes) = wire::parse(&message)?;
        if self.peer.is_none() && !matches!(frame, Frame::Hello(_)) {
            return Err(SessionError::HelloMissing);
        }
        match frame {
            Frame::Response(head) => self.on_response(head, head_bytes, message),
            Frame::Request { head, metadata_bytes } => {
                let body = RequestBody { head_bytes, metadata_bytes, message };
                self.on_request(head, body, now)
            }
            Frame::Cancel(id) => self.on_cancel(id, revoke),
            Frame::Cancelled(id) => {
                self.slots.settle(id, Proof::Cancelled)?;
                self.check_drained();
                Ok(())
            }
            Frame::GoAway { drained: false } => self.on_go_away(),
            Frame::GoAway { drained: true } => self.on_drained(),
            Frame::Hello(hello) => self.on_hello(hello),
            Frame::Stream(kind) => Err(SessionError::StreamsUnimplemented(kind)),
        }
    }

    fn on_hello(&mut self, hello: Hello) -> Result<(), SessionError> {
        if self.peer.is_some() {
            return Err(SessionError::HelloTwice);
        }
        let Hello { min_version: min, max_version: max, .. } = hello;
        if !(min..=max).contains(&wire::VERSION) {
            return Err(SessionError::NoCommonVersion { min, max, ours: wire::VERSION });
        }
        self.peer = Some(hello);
        self.slots.set_limit(hello.max_calls.min(MAX_CALLS));
        if hello.max_calls == 0 {
            self.fail_unsent(Failure::PeerTakesNoCalls);
        }
        if self.role == Role::Server {
            self.say_hello();
        }
        Ok(())
    }

    #[inline]
    fn on_response(
        &mut self,
        head: ResponseHead,
        head_bytes: usize,
        mut message: Message,
    ) -> Result<(), SessionError> {
        if let Some(call) = self.slots.settle(head.id, Proof::Response)? {
            if head.signature_accepted {
                self.accepted_by_peer.insert(self.calls.head(call).method_index);
            }
            message.advance(head_bytes);
            self.finish(call, Outcome::Reply(Reply { kind: head.kind, message }));
        }
        self.check_drained();
        Ok(())
    }

    #[inline]
    fn on_request(
        &mut self,
        head: RequestHead,
        body: RequestBody,
        now: impl FnOnce() -> Instant,
    ) -> Result<(), SessionError> {
        if self.shutdown.peer_drained {
            return Err(SessionError::CallAfterDrained);
        }
        self.incoming.admit(&head)?;
        if let Some(refusal) = self.refusal(&head) {
            self.refuse(head.id, &refusal);
            return Ok(());
        }
        let mut deadline = None;
        if let Some(micros) = head.remaining_micros {
            let now = now();
            deadline = now.checked_add(Duration::from_micros(micros).min(MAX_REMAINING));
            // A handler that must not be cancelled only gets to know its deadline.
            if let Some(at) = deadline.filter(|_| !head.no_cancel) {
                let timer = self.deadlines.insert(at, now, Timer::Incoming(head.id.slot));
                self.incoming.set_timer(head.id, timer);
            }
        }
        let RequestBody { head_bytes, metadata_bytes, mut message } = body;
        message.advance(head_bytes);
        self.events.push_back(Event::Request(Incoming {
            id: IncomingId(head.id),
            method: head.method,
            codec: head.codec,
            signature: head.signature,
            deadline,
            metadata_bytes,
            message,
        }));
        Ok(())
    }

    /// Why a request is answered without running.
    #[inline]
    fn refusal(&mut self, head: &RequestHead) -> Option<Answer<'static>> {
        let (code, retryable, text) = if self.incoming.in_flight() > self.limits.max_incoming_calls
        {
            (code::RESOURCE_EXHAUSTED, true, "more calls in flight than this end announced")
        } else if head.remaining_micros == Some(0) {
            (code::DEADLINE_EXCEEDED, false, "the deadline had passed before the call arrived")
        } else if head.signature.is_none() && !self.accepted_here.contains(head.method) {
            (code::FAILED_PRECONDITION, false, "the method's signature was never checked")
        } else {
            return None;
        };
        Some(Answer::Status { code, retryable, text, details: &[] })
    }

    #[cold]
    fn refuse(&mut self, id: WireId, answer: &Answer<'_>) {
        if let Ended::Reply { signature_accepted } = self.incoming.end(id)
            && let Answer::Status { code, retryable, text, details } = *answer
        {
            self.send_answer(
                id,
                signature_accepted,
                Answer::Status { code, retryable, text, details },
            );
        }
    }

    fn on_cancel(&mut self, id: WireId, revoke: Revoke<'_>) -> Result<(), SessionError> {
        let limit = self.incoming.limit();
        if id.slot >= limit {
            return Err(SessionError::SlotOutOfRange { slot: id.slot, limit });
        }
        if self.incoming.is_no_cancel(id) {
            return Err(SessionError::CancelForbidden(id));
        }
        match self.incoming.stop(id, true) {
            Stopped::NeverRan => {
                self.remove_incoming_timer(id.slot);
                self.confirm_cancel(id);
            }
            Stopped::Handler(handler) => {
                self.remove_incoming_timer(id.slot);
                self.events.extend(handler.map(Event::CancelHandler));
            }
            Stopped::Answered => {
                let here = self.frames.revoke_response(id).is_unsent();
                if here || revoke(tag(Side::Response, id)).is_unsent() {
                    self.confirm_cancel(id);
                }
            }
            Stopped::Already => {}
            Stopped::Nothing => self.stale_cancels += 1,
        }
        self.check_drained();
        Ok(())
    }

    fn confirm_cancel(&mut self, id: WireId) {
        self.frames.push_control(Control::Cancelled(id));
    }

    fn remove_incoming_timer(&mut self, slot: u32) {
        if let Some(timer) = self.incoming.take_timer(slot) {
            self.deadlines.remove(timer);
        }
    }
}

/// A request's bytes on their way to its handler.
struct RequestBody {
    head_bytes: usize,
    metadata_bytes: usize,
    message: Message,
}

/// Towards the handlers.
impl<W, H> Session<W, H> {
    /// The next thing to do, outside the lock.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event<W, H>> {
        loop {
            match self.events.pop_front()? {
                // Cancelled or expired while it waited in here: answered already.
                Event::Request(incoming) if !self.incoming.take_arrived(incoming.id.0) => {}
                event => return Some(event),
            }
        }
    }

    /// The call's signature is the method's: calls of that method need not carry it any more on
    /// this connection. To be called before the call is answered.
    pub fn accept_signature(&mut self, id: IncomingId) {
        if let Some(method) = self.incoming.accept_signature(id.0) {
            self.accepted_here.insert(method);
        }
    }

    /// Names the handler of a call, so that a cancel or deadline can stop it.
    ///
    /// # Errors
    /// The handle, when the caller is gone: stop the handler, then report `handler_ended`.
    pub fn attach_handler(&mut self, id: IncomingId, handler: H) -> Result<(), H> {
        self.incoming.attach(id.0, handler)
    }

    /// Answers a call; its handler has ended.
    ///
    /// # Errors
    /// The caller is gone, or the call was answered before: the answer is dropped.
    pub fn reply(&mut self, id: IncomingId, answer: Answer<'_>) -> Result<(), Gone> {
        let ended = self.end_handler(id.0);
        self.check_drained();
        match ended.filter(|_| self.closed.is_none()) {
            Some(signature_accepted) => {
                self.send_answer(id.0, signature_accepted, answer);
                Ok(())
            }
            None => Err(Gone),
        }
    }

    /// A handler has ended without a reply: stopped, panicked or dropped. A caller that still
    /// waits gets Internal; a call that was answered before is left alone.
    pub fn handler_ended(&mut self, id: IncomingId) {
        let ended = self.end_handler(id.0).filter(|_| self.closed.is_none());
        if let Some(signature_accepted) = ended {
            let text = "the handler ended without a reply";
            let (code, retryable, details) = (code::INTERNAL, false, &[][..]);
            let answer = Answer::Status { code, retryable, text, details };
            self.send_answer(id.0, signature_accepted, answer);
        }
        self.check_drained();
    }

    /// Returns whether the signature was accepted with the call, if the caller still waits; else
    /// gives the proof that it waits for.
    #[inline]
    fn end_handler(&mut self, id: WireId) -> Option<bool> {
        match self.incoming.end(id) {
            Ended::Reply { signature_accepted } => {
                self.remove_incoming_timer(id.slot);
                Some(signature_accepted)
            }
            Ended::Cancelled => {
                self.confirm_cancel(id);
                None
            }
            Ended::DeadlineExceeded => {
                self.answer_expired(id);
                None
            }
            Ended::Nothing => None,
        }
    }

    fn answer_expired(&mut self, id: WireId) {
        let text = "the deadline passed before the handler replied";
        let (code, retryable, details) = (code::DEADLINE_EXCEEDED, false, &[][..]);
        self.send_answer(id, false, Answer::Status { code, retryable, text, details });
    }

    #[inline]
    fn send_answer(&mut self, id: WireId, signature_accepted: bool, answer: Answer<'_>) {
        let (kind, mut frame) = match answer {
            Answer::Ok(body) => (ReplyKind::Ok, body),
            Answer::UserError(body) => (ReplyKind::UserError, body),
            Answer::Status { code, retryable, text, details } => {
                status_body(code, retryable, text, details)
            }
        };
        wire::prepend_response(&mut frame, &ResponseHead { id, kind, signature_accepted });
        self.frames.push_response(id, frame);
    }
}

/// Time.
impl<W, H> Session<W, H> {
    /// When to call `on_timeout` next: not before anything is due by more than a tick's rounding,
    /// possibly earlier.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.next()
    }

    /// Time has come to `now`: calls of this end whose deadline has passed fail, handlers of the
    /// peer's are stopped. At most 256 µs late.
    pub fn on_timeout(&mut self, now: Instant, revoke: Revoke<'_>) {
        while let Some(timer) = self.deadlines.poll_expired(now) {
            match timer {
                Timer::Outgoing(index) => self.expire_outgoing(index, revoke),
                Timer::Incoming(slot) => self.expire_incoming(slot),
            }
        }
        self.check_drained();
    }

    fn expire_outgoing(&mut self, index: u32, revoke: Revoke<'_>) {
        let never_sent = match *self.calls.stage(index) {
            Stage::Sent(slot) => {
                let send_cancel = !self.calls.head(index).no_cancel;
                self.give_up_slot(slot, send_cancel, revoke)
            }
            _ => true,
        };
        let outcome = Outcome::Failed { reason: Failure::DeadlineExceeded, never_sent };
        // The timer has fired: nothing to remove.
        let (_, waiter) = self.calls.finish(index, outcome);
        self.events.extend(waiter.map(Event::Wake));
    }

    fn expire_incoming(&mut self, slot: u32) {
        // The timer has fired: nothing to remove.
        self.incoming.take_timer(slot);
        let id = self.incoming.id(slot);
        match self.incoming.stop(id, false) {
            Stopped::NeverRan => self.answer_expired(id),
            Stopped::Handler(handler) => self.events.extend(handler.map(Event::CancelHandler)),
            Stopped::Already | Stopped::Answered | Stopped::Nothing => {}
        }
    }
}

/// The end.
impl<W, H> Session<W, H> {
    /// Tells the peer to start no calls. Those in flight end as always, and [`Event::Drained`]
    /// comes when none is left in either direction. This end may still call, for the handlers
    /// that are finishing: see [`stop_calls`](Self::stop_calls).
    pub fn go_away(&mut self) {
        if self.closed.is_none() && !self.shutdown.sent {
            self.shutdown.sent = true;
            self.frames.push_control(Control::GoAway { drained: false });
        }
    }

    /// Refuses calls of this end from now on.
    pub fn stop_calls(&mut self) {
        self.shutdown.stopped = true;
    }

    /// Whether a go-away of this end has run its course: nothing is in flight in either direction,
    /// the peer starts nothing, and no frame waits here.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.shutdown.reported && self.frames.is_empty()
    }

    fn on_go_away(&mut self) -> Result<(), SessionError> {
        if self.shutdown.peer_sent {
            return Err(SessionError::GoAwayTwice);
        }
        self.shutdown.peer_sent = true;
        self.events.push_back(Event::PeerGoingAway);
        self.fail_unsent(Failure::PeerGoingAway);
        self.check_drained();
        Ok(())
    }

    fn on_drained(&mut self) -> Result<(), SessionError> {
        if !self.shutdown.sent {
            return Err(SessionError::DrainedUnasked);
        }
        if self.shutdown.peer_drained {
            return Err(SessionError::GoAwayTwice);
        }
        if self.incoming.in_flight() != 0 {
            return Err(SessionError::CallAfterDrained);
        }
        self.shutdown.peer_drained = true;
        self.check_drained();
        Ok(())
    }

    /// To be called after whatever ends a call.
    #[inline]
    fn check_drained(&mut self) {
        if self.shutdown.peer_sent || self.shutdown.sent {
            self.advance_shutdown();
        }
    }

    #[cold]
    fn advance_shutdown(&mut self) {
        if self.closed.is_some() || self.slots.busy() != 0 || self.calls.unsent_len() != 0 {
            return;
        }
        let Shutdown { peer_sent, answered, peer_drained, reported, .. } = self.shutdown;
        if peer_sent && !answered {
            self.shutdown.answered = true;
            self.frames.push_control(Control::GoAway { drained: true });
        }
        if peer_drained && !reported && self.incoming.in_flight() == 0 {
            self.shutdown.reported = true;
            self.events.push_back(Event::Drained);
        }
    }

    /// The connection is gone: every pending call ends once, every handler is told to stop, and
    /// nothing is sent any more. `revoke` tells which requests the peer never saw.
    pub fn on_closed(&mut self, cause: CloseCause, revoke: Revoke<'_>) {
        if self.closed.is_some() {
            return;
        }
        self.closed = Some(cause);
        for index in self.calls.pending() {
            let never_sent = match *self.calls.stage(index) {
                Stage::Sent(slot) => revoke(tag(Side::Request, self.slots.id(slot))).is_unsent(),
                _ => true,
            };
            self.fail(index, Failure::Closed, never_sent);
        }
        self.events.extend(self.incoming.clear().map(Event::CancelHandler));
        self.slots.clear();
        self.frames.clear();
        self.deadlines.clear();
    }

    /// Why the connection closed, once it has.
    #[must_use]
    pub fn close_cause(&self) -> Option<&CloseCause> {
        self.closed.as_ref()
    }
}

/// What there is, for gauges and tests.
impl<W, H> Session<W, H> {
    /// Calls of this end: waiting, in flight, or finished and not taken yet.
    #[must_use]
    pub fn outgoing_calls(&self) -> usize {
        self.calls.len()
    }

    /// Slots of this end in use, those in quarantine included.
    #[must_use]
    pub fn busy_slots(&self) -> u32 {
        self.slots.busy()
    }

    /// Slots of this end whose caller has gone and whose proof is missing.
    #[must_use]
    pub fn quarantined_slots(&self) -> u32 {
        self.slots.zombies()
    }

    /// Calls of the peer that were not answered yet.
    #[must_use]
    pub fn incoming_calls(&self) -> u32 {
        self.incoming.in_flight()
    }

    /// Deadlines that run.
    #[must_use]
    pub fn running_deadlines(&self) -> usize {
        self.deadlines.len()
    }

    /// Frames other than requests that wait for `poll_transmit`.
    #[must_use]
    pub fn waiting_frames(&self) -> usize {
        self.frames.len()
    }

    /// Cancels that named no call; harmless.
    #[must_use]
    pub fn stale_cancels(&self) -> u64 {
        self.stale_cancels
    }

    /// The peer's hello, once it has arrived.
    #[must_use]
    pub fn peer_hello(&self) -> Option<&Hello> {
        self.peer.as_ref()
    }
}

/// Time left for the wire, µs: 0 when the deadline has passed.
fn remaining(at: Instant, now: Option<Instant>) -> u64 {
    let left = now.map_or(Duration::ZERO, |now| at.saturating_duration_since(now));
    u64::try_from(left.as_micros()).unwrap_or(u64::MAX)
}

#[cold]
fn status_body(code: u8, retryable: bool, text: &str, details: &[u8]) -> (ReplyKind, OutBuf) {
    const UNKNOWN: u8 = 2;
    let code = if (1..=code::MAX).contains(&code) { code } else { UNKNOWN };
    let details_bytes = u32::try_from(details.len()).unwrap_or(0);
    let mut body = OutBuf::new();
    if details_bytes != 0 {
        body.extend_from_slice(details);
    }
    body.extend_from_slice(text.as_bytes());
    (ReplyKind::Status { code, retryable, details_bytes }, body)
}
