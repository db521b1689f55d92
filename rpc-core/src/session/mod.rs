//! The session: calls over messages, for one end of a connection. Both ends may call.
//!
//! Owns the state of every call: slots and their quarantine, deadlines, cancellation, orderly
//! shutdown. Pure (sans-I/O): no clock, no I/O, no thread, no async. Time is an argument, input of
//! the peer goes to [`Session::on_message`], and work to be done comes out of
//! [`Session::poll_transmit`] and [`Session::poll_event`]; drain both after every other call. Knows
//! methods only as numbers and bodies only as bytes.
//!
//! The contract with the callee's dispatch: every [`Event::Request`] is answered by exactly one
//! [`Session::reply`] or [`Session::handler_ended`], also after [`Event::CancelHandler`] and after
//! a refused [`Session::attach_handler`]; only then is the call's slot free for the caller again.
//!
//! The *proof* of a call is what shows that the peer sends nothing more for it: its response, its
//! cancelled frame, or that the request was never sent. A slot whose caller has gone is in
//! *quarantine* until its proof arrives.
//!
//! Invariants:
//! 1. A started call has exactly one outcome in every race: its reply, or one failure.
//! 2. A slot is reused only after its proof, so no old answer reaches a new call (`slots`).
//! 3. A call of the peer is answered exactly once, after its handler has ended (`incoming`).
//! 4. Waiters are never dropped here: they are returned or come out as events. This holds also for
//!    the handles of handlers that are to be stopped. The handle of a handler that has replied is
//!    no longer needed and is dropped by `reply`.
//! 5. Bodies with a tail, whose memory may be the user's, are never dropped here either: they are
//!    returned or come out as events.

mod age;
mod answer;
mod call;
mod callee;
mod caller;
#[cfg(test)]
mod copied_tails_tests;
mod deadlines;
mod error;
mod idle;
mod incoming;
mod limits;
mod nested;
mod outgoing;
mod resolution;
mod shutdown;
mod signatures;
mod slots;
mod streams;
mod transmit;

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use rpc_transport::device::connection_error::CloseCause;
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::received::{Message, Refusal};

pub use self::call::{
    Answer, CallId, Deadline, Event, Failure, Gone, Incoming, IncomingId, NotStarted, Outcome,
    Reply, Revoked, Role, StartCall, StartError, Transmit,
};
pub(crate) use self::call::{CallHead, CallOptions, CopiedTails, NoResult, PlanId, ReadBy, Reads};
pub use self::error::SessionError;
use self::limits::MAX_CALLS;
pub use self::limits::SessionLimits;
pub(crate) use self::limits::{check_least, check_most};
pub use self::slots::INITIAL_CALLS;
#[cfg(any(test, feature = "model"))]
pub use self::streams::{Broken, Rules as StreamRules};
pub use self::streams::{NotSent, ReadItem, SendError, StreamEnd, StreamId, StreamLimits};
pub use crate::wire::{CallStreams, ReplyKind};

pub(crate) use self::answer::status_body;
pub(crate) use self::callee::RAISE;
use self::callee::RequestBytes;
use self::deadlines::Deadlines;
use self::idle::Idle;
use self::incoming::IncomingCalls;
use self::nested::NestedInLine;
use self::outgoing::Calls;
use self::shutdown::Shutdown;
use self::signatures::{AcceptedByPeer, AcceptedHere};
use self::slots::{Proof, Slots};
use self::streams::Streams;
use self::transmit::{Control, FrameQueue};
use crate::wire::{self, Beginning, Frame, Hello};

/// Takes a message back from the link, by its tag.
pub type Revoke<'a> = &'a mut dyn FnMut(u64) -> Revoked;

/// What a deadline belongs to.
#[derive(Debug, Clone, Copy)]
enum Timer {
    /// A call of this end, by its index.
    Outgoing(u32),
    /// A call of the peer, by its slot.
    Incoming(u32),
    /// Of no call: whether there was any.
    Idle,
    /// Of no call: that it has lasted long enough.
    Age,
}

/// An event other than a request.
#[derive(Debug)]
pub(crate) enum SessionEvent<W, H> {
    /// [`Event::Wake`].
    Wake(W),
    /// [`Event::CancelHandler`].
    CancelHandler(H),
    /// [`Event::Discard`].
    Discard(Box<OutBuf>),
    /// [`Event::PeerGoingAway`].
    PeerGoingAway,
    /// [`Event::Drained`].
    Drained,
    /// [`Event::Hello`].
    Hello(Option<Box<[u8]>>),
}

impl<W, H> From<SessionEvent<W, H>> for Event<W, H> {
    #[inline]
    fn from(notice: SessionEvent<W, H>) -> Self {
        match notice {
            SessionEvent::Wake(waiter) => Self::Wake(waiter),
            SessionEvent::CancelHandler(handle) => Self::CancelHandler(handle),
            SessionEvent::Discard(body) => Self::Discard(body),
            SessionEvent::PeerGoingAway => Self::PeerGoingAway,
            SessionEvent::Drained => Self::Drained,
            SessionEvent::Hello(credentials) => Self::Hello(credentials),
        }
    }
}

/// What is done with the peer's hello.
#[derive(Debug)]
enum Gate {
    /// It is taken.
    Open,
    /// It is taken, and comes out as an event.
    Told,
    /// It is held back until somebody has looked at its credentials.
    Closed,
    /// It is held back.
    Held(Hello),
}

/// One end of a session. `W`: a call's waiter (such as a waker); `H`: handle of a running handler.
#[derive(Debug)]
pub struct Session<W, H> {
    role: Role,
    limits: SessionLimits,
    /// Calls of this end that may exist at once, waiting ones included.
    most_calls: usize,
    /// The hello is queued or sent: other frames may follow.
    may_speak: bool,
    /// `None` while it is held back, too.
    peer: Option<Hello>,
    gate: Gate,
    calls: Calls<W>,
    nested: NestedInLine,
    slots: Slots,
    incoming: IncomingCalls<H>,
    deadlines: Deadlines<Timer>,
    idle: Option<Idle>,
    /// The timer of its age is in the wheel.
    ages: bool,
    frames: FrameQueue,
    /// Events other than requests, which are kept apart because they are much larger.
    notices: VecDeque<SessionEvent<W, H>>,
    /// Calls of the peer whose handlers are to be run.
    requests: VecDeque<Incoming>,
    accepted_by_peer: AcceptedByPeer,
    accepted_here: AcceptedHere,
    /// Streams of calls that have any.
    streams: Streams<W>,
    shutdown: Shutdown,
    stale_cancels: u64,
    refused_calls: u64,
    closed: Option<CloseCause>,
    /// Calls that ended with the connection and had been handed to the link, by their tags.
    given_back: HashMap<u64, u32>,
}

impl<W, H> Session<W, H> {
    /// A session on a new connection. Limits above 2^24 are reduced to it.
    #[must_use]
    pub fn new(role: Role, limits: SessionLimits) -> Self {
        let limits = SessionLimits {
            max_outgoing_calls: limits.max_outgoing_calls.min(MAX_CALLS),
            max_waiting_calls: limits.max_waiting_calls.min(MAX_CALLS),
            max_incoming_calls: limits.max_incoming_calls.min(MAX_CALLS),
            streams: limits.streams,
        };
        let most_calls = match limits.max_outgoing_calls {
            0 => 0,
            count => count as usize + limits.max_waiting_calls as usize,
        };
        let mut session = Self {
            role,
            limits,
            most_calls,
            may_speak: false,
            peer: None,
            gate: Gate::Open,
            calls: Calls::new(),
            nested: NestedInLine::default(),
            slots: Slots::new(),
            incoming: IncomingCalls::new(limits.max_incoming_calls),
            deadlines: Deadlines::new(),
            idle: None,
            ages: false,
            frames: FrameQueue::default(),
            notices: VecDeque::new(),
            requests: VecDeque::new(),
            accepted_by_peer: AcceptedByPeer::default(),
            accepted_here: AcceptedHere::default(),
            streams: Streams::new(limits.streams),
            shutdown: Shutdown::default(),
            stale_cancels: 0,
            refused_calls: 0,
            closed: None,
            given_back: HashMap::new(),
        };
        if role == Role::Client {
            session.say_hello();
        }
        session
    }

    /// Says who this end is, in its hello. To be called at once; no call is to be started before
    /// the peer's hello, which comes out as [`Event::Hello`]: the peer has let this end in.
    pub fn present(&mut self, credentials: &[u8]) {
        self.frames.present(credentials);
        self.gate = Gate::Told;
    }

    /// Holds the peer's hello back: it comes out as [`Event::Hello`], and the peer gets no answer
    /// and may say nothing until [`admit`](Self::admit). To be called at once.
    pub fn hold_hello(&mut self) {
        self.gate = Gate::Closed;
    }

    /// Lets the peer in, whose hello was held back.
    pub fn admit(&mut self) {
        if self.closed.is_some() {
            return;
        }
        if let Gate::Held(hello) = std::mem::replace(&mut self.gate, Gate::Open) {
            self.take_hello(hello);
        }
    }

    /// Why a frame cannot be taken before the hello.
    #[cold]
    fn before_hello(&self) -> SessionError {
        match self.gate {
            Gate::Held(_) => SessionError::NotAdmitted,
            _ => SessionError::HelloMissing,
        }
    }

    /// Discards a body that is not sent (invariant 5).
    #[cold]
    fn discard(&mut self, body: OutBuf) {
        if !body.tail().is_empty() {
            self.notices.push_back(SessionEvent::Discard(Box::new(body)));
        }
    }

    fn say_hello(&mut self) {
        self.may_speak = true;
        self.frames.push_first(Control::Hello(Hello {
            min_version: wire::VERSION,
            max_version: wire::VERSION,
            max_calls: self.limits.max_incoming_calls,
            features: wire::FEATURE_REPLY_METADATA
                | wire::FEATURE_INITIAL_METADATA
                | wire::FEATURE_RESOLUTION,
            stream_window: self.streams.window(),
        }));
    }
}
/// Input from the peer.
impl<W, H> Session<W, H> {
    /// Takes a message of the peer. `now` is asked only when a deadline starts to run.
    ///
    /// # Errors
    /// The rule that the peer broke: close the connection. After `on_closed`, messages are dropped.
    #[inline]
    pub fn on_message(
        &mut self,
        message: Message,
        now: impl FnOnce() -> Instant,
        revoke: Revoke<'_>,
    ) -> Result<(), SessionError> {
        if self.closed.is_some() {
            return Ok(());
        }
        // Fast path: nearly every message is a plain request or a plain response.
        if self.peer.is_some()
            && message.is_plain()
            && let Some(words) = wire::Words::of(&message)
        {
            if let Some(head) = words.response() {
                return self.on_response(head, wire::HEADER_BYTES, message);
            }
            if let Some(head) = words.request() {
                let head_bytes = wire::HEADER_BYTES;
                let bytes = RequestBytes { head_bytes, metadata_bytes: 0, message };
                return self.on_request(head, bytes, now);
            }
        }
        self.on_parsed(message, now, revoke)
    }

    /// Whether the reader of the large message that begins with `head` will copy its tail out.
    #[must_use]
    pub fn copies_tail(&self, head: &[u8]) -> bool {
        match wire::parse_beginning(head) {
            Ok(Beginning::Request(head)) => self.accepted_here.copied_tails(head.method).arguments,
            Ok(Beginning::Response(id)) => self.copied_tails_of_call(id).results,
            Ok(Beginning::Item(head)) if head.results => self.copied_tails_of_call(head.id).items,
            Ok(Beginning::Item(head)) => {
                let method = self.incoming.method(head.id);
                method.is_some_and(|method| self.accepted_here.copied_tails(method).sent_items)
            }
            Err(_) => false,
        }
    }

    fn copied_tails_of_call(&self, id: wire::WireId) -> CopiedTails {
        let call = self.slots.call_of(id);
        call.map_or(CopiedTails::NONE, |call| self.calls.head(call).copied_tails)
    }

    /// There was no memory for the message: its call ends, the connection goes on.
    #[cold]
    fn on_refused(
        &mut self,
        beginning: &[u8],
        refusal: Refusal,
        revoke: Revoke<'_>,
    ) -> Result<(), SessionError> {
        if self.peer.is_none() {
            return Err(self.before_hello());
        }
        match wire::parse_beginning(beginning)? {
            Beginning::Request(head) => self.refuse_unread(&head, refusal),
            Beginning::Item(head) => self.on_refused_item(head, refusal.reason, revoke),
            Beginning::Response(id) => {
                if self.streams.live_calls != 0 {
                    self.stream_answer_lost(id);
                }
                if let Some(call) = self.slots.on_proof(id, Proof::Response)? {
                    self.fail(call, Failure::NoMemory(refusal.reason), false);
                }
                self.check_drained();
                Ok(())
            }
        }
    }

    #[cold]
    fn on_parsed(
        &mut self,
        message: Message,
        now: impl FnOnce() -> Instant,
        revoke: Revoke<'_>,
    ) -> Result<(), SessionError> {
        if let Some(refusal) = message.refusal() {
            return self.on_refused(&message, *refusal, revoke);
        }
        let (frame, head_bytes) = wire::parse_with_tail(&message, message.tail_bytes())?;
        if self.peer.is_none() && !matches!(frame, Frame::Hello(_)) {
            return Err(self.before_hello());
        }
        match frame {
            Frame::Response(head) => self.on_long_response(head, head_bytes, message),
            Frame::Request { head, metadata_bytes } => {
                let bytes = RequestBytes { head_bytes, metadata_bytes, message };
                self.on_request(head, bytes, now)
            }
            Frame::Cancel(id) => self.on_cancel(id, revoke),
            Frame::Cancelled(id) => self.on_cancelled(id),
            Frame::GoAway { drained: false } => self.on_go_away(),
            Frame::GoAway { drained: true } => self.on_drained(),
            Frame::Hello(hello) => self.on_hello(hello, &message),
            Frame::Item(head) => self.on_item(head, message, head_bytes, now, revoke),
            Frame::HalfClose { .. }
            | Frame::Reset { .. }
            | Frame::Credit { .. }
            | Frame::Opened { .. }
            | Frame::Stop { .. } => self.on_stream_control(frame, revoke),
        }
    }

    fn on_hello(&mut self, hello: Hello, frame: &[u8]) -> Result<(), SessionError> {
        if self.peer.is_some() || matches!(self.gate, Gate::Held(_)) {
            return Err(SessionError::HelloTwice);
        }
        let Hello { min_version: min, max_version: max, .. } = hello;
        if !(min..=max).contains(&wire::VERSION) {
            return Err(SessionError::NoCommonVersion { min, max, ours: wire::VERSION });
        }
        let credentials = wire::credentials(&hello, frame)?;
        if !matches!(self.gate, Gate::Open) {
            self.notices.push_back(SessionEvent::Hello(credentials.map(Box::from)));
        }
        if let Gate::Closed = self.gate {
            self.gate = Gate::Held(hello);
        } else {
            self.gate = Gate::Open;
            self.take_hello(hello);
        }
        Ok(())
    }

    fn take_hello(&mut self, hello: Hello) {
        self.peer = Some(hello);
        self.accepted_by_peer.set_resolves(self.peer_resolves());
        self.streams.on_hello(&hello);
        if !self.accepted_by_peer.resolves() {
            self.release_arguments();
        }
        // A limit of 0 is the peer's word alone: this end's own is looked at before.
        self.slots.set_limit(hello.max_calls.min(self.limits.max_outgoing_calls.max(1)));
        if hello.max_calls == 0 {
            self.fail_unsent(Failure::PeerTakesNoCalls);
        }
        if !self.streams.are_agreed() && self.streams.live_calls != 0 {
            self.fail_unsent_streams();
        }
        if self.role == Role::Server {
            self.say_hello();
        }
    }
}

/// Timers.
impl<W, H> Session<W, H> {
    /// When to call `on_timeout` next: at most one tick after the earliest deadline, possibly
    /// before it.
    #[inline]
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.next()
    }

    /// Advances the time to `now`: calls of this end whose deadline has passed fail, and handlers
    /// of such calls of the peer are stopped. At most 256 µs late.
    pub fn on_timeout(&mut self, now: Instant, revoke: Revoke<'_>) {
        while let Some(timer) = self.deadlines.poll_expired(now) {
            match timer {
                Timer::Outgoing(index) => self.expire_outgoing(index, now, revoke),
                Timer::Incoming(slot) => self.expire_incoming(slot, now),
                Timer::Idle => self.check_idle(now),
                Timer::Age => self.check_age(now),
            }
        }
        self.check_drained();
    }
}

/// Counts, for gauges and tests.
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

    /// Slots of this end in quarantine: the caller has gone, the proof has not arrived.
    #[must_use]
    pub fn quarantined_slots(&self) -> u32 {
        self.slots.zombies()
    }

    /// Calls of the peer that were not answered yet.
    #[must_use]
    pub fn incoming_calls(&self) -> u32 {
        self.incoming.in_flight()
    }

    /// Deadlines of calls.
    #[must_use]
    pub fn running_deadlines(&self) -> usize {
        self.deadlines.len() - usize::from(self.idle.is_some()) - usize::from(self.ages)
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

    /// Calls of the peer that were answered without being given out as requests.
    #[must_use]
    pub fn refused_calls(&self) -> u64 {
        self.refused_calls
    }

    /// Panics if the connection is up, no call is there, and something is still counted for one.
    #[cfg(debug_assertions)]
    pub fn assert_nothing_is_left(&self) {
        let calls = self.outgoing_calls() + (self.incoming_calls() + self.busy_slots()) as usize;
        if calls == 0 && self.closed.is_none() {
            assert_eq!(self.running_deadlines(), 0, "deadlines of calls that have ended");
            assert!(self.streams.are_none_left(), "streams of calls that have ended");
        }
    }
}
