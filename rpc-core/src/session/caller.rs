//! This end as a caller: start, wait, cancel; requests out, responses in.
//!
//! Owns the coordination of calls, slots and deadlines on the calling side. Does not decide whether
//! a call may start: that is up to `shutdown` and the limits.
//!
//! Invariants:
//! 1. A sent call that leaves the table of calls before its proof has arrived leaves its slot in
//!    quarantine.
//! 2. A cancel never overtakes its request: it is sent only once the link says that the request
//!    cannot be taken back.

use std::time::Instant;

use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::received::Message;
use rpc_transport::protocol::config::WhenFull;

use super::deadlines::micros;
use super::outgoing::{Failed, Stage, Timed};
use super::slots::Proof;
use super::streams::{Idle, Key, Response};
use super::transmit::{Control, Side, tag};
use super::{
    CallHead, CallId, CallOptions, Deadline, Failure, NoResult, NotStarted, Outcome, ReadBy, Reads,
    Revoke, Session, SessionError, SessionEvent, StartCall, StartError, Timer, Transmit,
};
use crate::wire::{self, CallStreams, HowRead, ResponseHead, WireId};

/// Calls of this end.
impl<W, H> Session<W, H> {
    /// Starts a call. `poll_transmit` sends it, at once or when the peer's limit allows one more.
    /// Until the peer's hello has arrived the limit is [`INITIAL_CALLS`](super::INITIAL_CALLS).
    ///
    /// # Errors
    /// Why nothing was started, with the body.
    pub fn start(
        &mut self,
        call: StartCall<'_>,
        body: OutBuf,
        waiter: Option<W>,
    ) -> Result<CallId, NotStarted> {
        let mut body = Some(body);
        let (head, options) = call.apart();
        let started = self.start_from(&head, &options, &mut body, waiter);
        started.map_err(|error| NotStarted { error, body: body.unwrap_or_default() })
    }

    /// Starts a call, and takes the body out of `body` only if it is started.
    #[inline]
    pub(crate) fn start_from(
        &mut self,
        head: &CallHead,
        options: &CallOptions,
        body: &mut Option<OutBuf>,
        waiter: Option<W>,
    ) -> Result<CallId, StartError> {
        self.may_start(head, options)?;
        let waits_nested = options.is_nested && self.must_wait_nested()?;
        if let (Some(metadata), Some(body)) = (&options.metadata, &mut *body) {
            wire::prepend_metadata(body, metadata);
        }
        let id = self.calls.insert(head, options, body.take(), waiter);
        if waits_nested {
            self.nested.push(id);
        }
        if head.streams.any() {
            self.open_outgoing(id, head.streams, options);
        }
        if let Some(Deadline { at, now }) = options.deadline {
            let key = self.deadlines.insert(at, now, Timer::Outgoing(id.index));
            self.calls.set_deadline(id, Timed { at, key });
        }
        Ok(id)
    }

    #[inline]
    fn may_start(&self, head: &CallHead, options: &CallOptions) -> Result<(), StartError> {
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
        if self.calls.len() >= self.most_calls {
            return Err(StartError::TooManyCalls);
        }
        if options.when_full == WhenFull::Refuse {
            self.leaves_at_once()?;
        }
        if options.metadata_bytes() > wire::MAX_METADATA_BYTES {
            return Err(StartError::MetadataTooLong(options.metadata_bytes()));
        }
        if options.deadline.is_some_and(|deadline| deadline.at <= deadline.now) {
            return Err(StartError::DeadlineExceeded);
        }
        if head.streams == CallStreams::NONE {
            return Ok(());
        }
        self.may_start_streams(head, options.deadline.is_some())
    }

    /// Whether one more call need not wait until another has ended.
    pub(super) fn leaves_at_once(&self) -> Result<(), StartError> {
        // Before the peer's hello a call waits for the limit in it, and not for another call.
        let limit = match self.peer {
            Some(_) => self.slots.limit(),
            None => self.limits.max_outgoing_calls,
        };
        if self.slots.busy() as usize + self.calls.unsent_len() < limit as usize {
            return Ok(());
        }
        Err(StartError::Full(limit))
    }

    #[cold]
    fn may_start_streams(&self, head: &CallHead, has_deadline: bool) -> Result<(), StartError> {
        if head.no_cancel {
            return Err(StartError::NoCancelWithStreams);
        }
        if head.streams.idle_deadline && (!has_deadline || !head.streams.any()) {
            return Err(StartError::IdleWithoutDeadline);
        }
        if !self.streams.are_offered() {
            return Err(StartError::NoStreams);
        }
        if self.peer.is_some() && !self.streams.are_agreed() {
            return Err(StartError::PeerHasNoStreams);
        }
        Ok(())
    }

    #[cold]
    fn open_outgoing(&mut self, id: CallId, streams: CallStreams, options: &CallOptions) {
        let deadline = options.deadline.filter(|_| streams.idle_deadline);
        let idle = deadline.map(|deadline| Idle {
            period: deadline.at.saturating_duration_since(deadline.now),
            since: deadline.now,
        });
        let key = Key::Call(id.index);
        self.streams.insert(key, id.generation, None, streams, idle);
        if options.until_taken {
            self.streams.limit_to_opening(key, streams);
        }
    }

    /// Takes a call's outcome, if it has one; the id then names nothing. A request that was never
    /// sent, and that [`take_request`](Self::take_request) has not taken, comes out as
    /// [`Event::Discard`](super::Event::Discard).
    pub fn take_outcome(&mut self, id: CallId) -> Option<Outcome> {
        if let Some(request) = self.take_request(id) {
            self.discard(request);
        }
        let mut outcome = self.calls.take_outcome(id)?;
        if self.streams.live_calls != 0 {
            // The call's streams go with its outcome.
            if let Outcome::Reply(reply) = &mut outcome {
                reply.is_reset = self.streams.was_reset(id);
            }
            self.remove_stream_call(id);
        }
        Some(outcome)
    }

    /// Takes the outcome of a call if it is a result, without streams, as nearly all are. The id
    /// then names nothing. Gives the method's dense index, too.
    #[inline]
    pub(crate) fn take_result(&mut self, id: CallId) -> Result<(Message, u32), NoResult> {
        if self.streams.live_calls != 0 {
            return Err(if self.has_outcome(id) { NoResult::Other } else { NoResult::Pending });
        }
        self.calls.take_result(id)
    }

    /// Takes the request of a call that failed because the connection closed or the peer said
    /// go-away, if the peer never saw it: for another connection. It has what was put in front of
    /// the body; its last bytes, as many as the body had, are the body.
    pub fn take_request(&mut self, id: CallId) -> Option<OutBuf> {
        self.calls.take_request(id)
    }

    /// After `on_closed`: a message that the link gave back whole. Returns it if it is no request
    /// that somebody waits for, to be dropped outside the lock.
    pub fn give_back(&mut self, tag: u64, message: OutBuf) -> Option<OutBuf> {
        match self.given_back.remove(&tag) {
            Some(index) => self.calls.put_request(index, message),
            None => Some(message),
        }
    }

    /// Whether the call exists: it is under way, or its outcome was not taken.
    pub(crate) fn knows(&self, id: CallId) -> bool {
        self.calls.contains(id)
    }

    /// Whether `take_outcome` would return an outcome.
    #[inline]
    #[must_use]
    pub fn has_outcome(&self, id: CallId) -> bool {
        !self.calls.is_pending(id)
    }

    /// Whether a call waits until it may be sent: for a free slot, above all.
    #[must_use]
    pub(crate) fn is_in_line(&self, id: CallId) -> bool {
        self.calls.is_unsent(id)
    }

    /// Registers a waiter for a call that has no outcome yet. Returns the previous one, or `waiter`
    /// itself when there is nothing to wait for, to be dropped outside the lock.
    pub fn set_waiter(&mut self, id: CallId, waiter: W) -> Option<W> {
        self.calls.set_waiter(id, waiter)
    }

    /// The registered waiter of a call.
    #[must_use]
    #[inline]
    pub fn waiter(&self, id: CallId) -> Option<&W> {
        self.calls.waiter(id)
    }

    /// Whether nothing is awaited from the peer but outcomes of calls.
    #[inline]
    #[must_use]
    pub fn is_for_callers_alone(&self) -> bool {
        self.limits.max_incoming_calls == 0 && self.streams.live_calls == 0
    }

    /// The waiter of a call that has no outcome yet, and that call, if one is easily found.
    pub fn take_waiter(&mut self) -> Option<(CallId, W)> {
        self.calls.take_waiter()
    }

    /// Whether no call has a waiter that [`take_waiter`](Self::take_waiter) does not find. If not,
    /// it is not known.
    #[must_use]
    pub fn finds_all_waiters(&self) -> bool {
        self.calls.looks_at_all()
    }

    /// Cancels a call. If the request never reached the wire it is taken back, and its slot is free
    /// at once. Otherwise a cancel is sent, and the slot stays in quarantine until its proof
    /// arrives. A `no_cancel` call goes on, and its answer is dropped. Returns the waiter; a body
    /// that was not sent comes out as [`Event::Discard`](super::Event::Discard).
    pub fn cancel(&mut self, id: CallId, revoke: Revoke<'_>) -> Option<W> {
        if !self.calls.contains(id) {
            return None;
        }
        let no_cancel = self.calls.head(id.index).no_cancel;
        if no_cancel && matches!(self.calls.stage(id.index), Stage::Unsent) {
            return self.calls.detach(id);
        }
        let taken = self.calls.remove(id)?;
        self.discard_kept(id.index);
        self.remove_deadline(taken.deadline);
        if let Some(request) = taken.request {
            self.discard(request);
        }
        match taken.stage {
            Stage::Sent(slot) if no_cancel => self.slots.abandon(slot, false),
            Stage::Sent(slot) => {
                self.give_up_slot(slot, true, revoke);
            }
            Stage::Free
            | Stage::Unsent
            | Stage::Replied(_)
            | Stage::RepliedBy(..)
            | Stage::Failed { .. } => {}
        }
        if self.streams.live_calls != 0 {
            self.remove_stream_call(id);
        }
        self.check_drained();
        taken.waiter
    }

    /// Gives up the slot of a call that nobody waits for. Returns whether the peer never saw the
    /// call.
    pub(super) fn give_up_slot(
        &mut self,
        slot: u32,
        send_cancel: bool,
        revoke: Revoke<'_>,
    ) -> bool {
        let id = self.slots.id(slot);
        if self.streams.live_calls != 0 {
            return self.give_up_stream_slot(slot, send_cancel, revoke);
        }
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

    /// [`give_up_slot`](Self::give_up_slot) while calls with streams exist.
    #[cold]
    fn give_up_stream_slot(&mut self, slot: u32, send_cancel: bool, revoke: Revoke<'_>) -> bool {
        let id = self.slots.id(slot);
        let streams = self.give_up_streams(id, revoke);
        if streams.is_proven {
            self.slots.release_proven(slot);
        } else if revoke(tag(Side::Request, id)).is_unsent() {
            self.slots.release_unsent(slot);
            return true;
        } else {
            self.slots.abandon(slot, send_cancel);
            if send_cancel {
                self.frames.push_control(Control::Cancel(id));
            }
        }
        self.expect_late(streams.late);
        false
    }

    pub(super) fn fail(&mut self, index: u32, reason: Failure, never_sent: bool) {
        self.discard_kept(index);
        let Failed { deadline, waiter, request } = self.calls.fail(index, reason, never_sent);
        self.remove_deadline(deadline);
        self.tell_failed(waiter, request);
        if self.streams.live_calls != 0 {
            self.stream_call_ended(index);
        }
    }

    fn tell_failed(&mut self, waiter: Option<W>, request: Option<OutBuf>) {
        self.notices.extend(waiter.map(SessionEvent::Wake));
        if let Some(request) = request {
            self.discard(request);
        }
    }

    pub(super) fn fail_unsent(&mut self, reason: Failure) {
        for index in self.calls.pending() {
            if matches!(self.calls.stage(index), Stage::Unsent) {
                self.fail(index, reason, true);
            }
        }
    }

    /// The peer's hello says that it speaks no streams.
    #[cold]
    pub(super) fn fail_unsent_streams(&mut self) {
        for index in self.calls.pending() {
            let is_unsent = matches!(self.calls.stage(index), Stage::Unsent);
            if is_unsent && self.calls.head(index).streams.any() {
                self.fail(index, Failure::PeerHasNoStreams, true);
            }
        }
    }

    #[inline]
    fn remove_deadline(&mut self, deadline: Option<Timed>) {
        if let Some(timed) = deadline {
            self.deadlines.remove(timed.key);
        }
    }
}

/// Output to the peer.
impl<W, H> Session<W, H> {
    /// Cheap check, to avoid most calls of `poll_transmit`: whether it may return a frame.
    #[inline]
    #[must_use]
    pub fn may_transmit(&self) -> bool {
        !self.frames.is_empty() || self.calls.unsent_len() != 0 || self.streams.has_work()
    }

    /// The next frame for the link. `now` is called only for a request with a deadline.
    #[inline]
    pub fn poll_transmit(&mut self, now: impl FnOnce() -> Instant) -> Option<Transmit> {
        if !self.may_speak {
            return None;
        }
        if let Some(transmit) = self.frames.pop() {
            return Some(transmit);
        }
        if self.calls.unsent_len() != 0
            && let Some(request) = self.next_request(now)
        {
            return Some(request);
        }
        if self.streams.has_work() { self.next_stream_frame() } else { None }
    }

    #[inline]
    fn next_request(&mut self, now: impl FnOnce() -> Instant) -> Option<Transmit> {
        let mut clock = Clock::Unread(now);
        while self.slots.has_room() {
            let ready = self.calls.next_unsent()?;
            let mut remaining_micros = None;
            if !ready.is_plain {
                match self.check_unsent(ready.id, &mut clock) {
                    UnsentCheck::Send(remaining) => remaining_micros = remaining,
                    UnsentCheck::Failed => continue,
                    UnsentCheck::Wait => return None,
                }
            }
            let (call, id) = (ready.id, self.slots.take(ready.id.index)?);
            let (frame, detached) =
                self.calls.send(call, id, remaining_micros, &self.accepted_by_peer, |stale| {
                    // Invariant 5 of the session.
                    self.notices.push_back(SessionEvent::Discard(Box::new(stale)));
                })?;
            if self.streams.live_calls != 0 {
                self.stream_request_left(call.index, id, &frame);
            }
            if detached {
                self.slots.abandon(id.slot, false);
                let deadline = self.calls.free_detached(call.index);
                self.remove_deadline(deadline);
            }
            return Some(Transmit { urgent: false, tag: tag(Side::Request, id), frame });
        }
        None
    }

    /// Decides about a request that has a deadline or streams.
    #[cold]
    fn check_unsent<F: FnOnce() -> Instant>(
        &mut self,
        id: CallId,
        clock: &mut Clock<F>,
    ) -> UnsentCheck {
        if self.calls.head(id.index).streams.any() && self.peer.is_none() {
            // It is not known yet whether the peer speaks streams.
            return UnsentCheck::Wait;
        }
        let Some(timed) = self.calls.deadline(id.index) else { return UnsentCheck::Send(None) };
        let travels = !self.streams.is_limited_to_opening(Key::Call(id.index));
        match micros(timed.at.saturating_duration_since(clock.read())) {
            0 => {
                self.fail(id.index, Failure::DeadlineExceeded, true);
                self.check_drained();
                UnsentCheck::Failed
            }
            micros => UnsentCheck::Send(travels.then_some(micros)),
        }
    }

    /// The most session frames that a correct peer can cause to wait in this end's link at once.
    /// More means that the peer sends calls or answers faster than it reads.
    #[must_use]
    pub fn most_queued_frames(&self) -> usize {
        // A request and a cancel for each of our slots, an answer for each slot of the peer;
        // hello, go-away and its answer.
        let calls = 2 * self.slots.made() + self.incoming.limit() as usize + 3;
        calls + self.streams.most_queued_frames()
    }
}

/// Responses, and deadlines that passed without one.
impl<W, H> Session<W, H> {
    #[inline(always)]
    pub(super) fn on_response(
        &mut self,
        head: ResponseHead,
        head_bytes: usize,
        mut message: Message,
    ) -> Result<(), SessionError> {
        message.advance(head_bytes);
        if self.streams.live_calls != 0 || head.items != 0 || head.is_reset {
            match self.on_stream_response(head, message)? {
                Response::Take(taken) => message = taken,
                Response::Held => return Ok(()),
            }
        }
        self.complete_response(head, message)
    }

    /// [`on_response`](Self::on_response) for a response that may have metadata.
    #[cold]
    pub(super) fn on_long_response(
        &mut self,
        head: ResponseHead,
        head_bytes: usize,
        mut message: Message,
    ) -> Result<(), SessionError> {
        if head.metadata_bytes == 0 {
            return self.on_response(head, head_bytes, message);
        }
        message.advance(head_bytes);
        message.mark(head.metadata_bytes);
        self.on_response(head, 0, message)
    }

    /// A response whose items are all here.
    #[inline(always)]
    pub(super) fn complete_response(
        &mut self,
        head: ResponseHead,
        message: Message,
    ) -> Result<(), SessionError> {
        if let Some(call) = self.slots.on_proof(head.id, Proof::Response)? {
            // Nearly all requests do not ask.
            let is_plain = self.calls.reads(call) == Reads::Same && head.read == HowRead::Unsaid;
            let read_by =
                if is_plain { Some(ReadBy::OwnTypes) } else { self.response_read_by(call, &head) };
            let Some(read_by) = read_by else {
                self.fail(call, Failure::TypesDisagree, false);
                self.check_drained();
                return Ok(());
            };
            let (deadline, waiter) = self.calls.reply(call, head.kind, message);
            if read_by != ReadBy::OwnTypes {
                self.calls.set_read_by(call, read_by);
            }
            self.remove_deadline(deadline);
            if let Some(waiter) = waiter {
                self.notices.push_back(SessionEvent::Wake(waiter));
            }
            if self.streams.live_calls != 0 {
                self.stream_call_answered(call, head.is_reset);
            }
        }
        self.check_drained();
        Ok(())
    }

    pub(super) fn on_cancelled(&mut self, id: WireId) -> Result<(), SessionError> {
        self.slots.on_proof(id, Proof::Cancelled)?;
        self.check_drained();
        Ok(())
    }

    pub(super) fn expire_outgoing(&mut self, index: u32, now: Instant, revoke: Revoke<'_>) {
        if self.streams.live_calls != 0 && self.restart_outgoing(index, now) {
            return;
        }
        let never_sent = match self.calls.stage(index) {
            Stage::Sent(slot) => {
                let send_cancel = !self.calls.head(index).no_cancel;
                self.give_up_slot(slot, send_cancel, revoke)
            }
            _ => true,
        };
        self.discard_kept(index);
        // The timer has fired, so it need not be removed.
        let failed = self.calls.fail(index, Failure::DeadlineExceeded, never_sent);
        self.tell_failed(failed.waiter, failed.request);
        if self.streams.live_calls != 0 {
            self.stream_call_ended(index);
        }
    }
}

/// The decision about a request that waits to be sent.
enum UnsentCheck {
    /// It leaves, with this time left for it, µs, if it has a deadline that travels.
    Send(Option<u64>),
    /// Its deadline has passed.
    Failed,
    /// It waits, and all requests behind it do.
    Wait,
}

/// A clock that is read once at most.
enum Clock<F> {
    Unread(F),
    Read(Instant),
    Reading,
}

impl<F: FnOnce() -> Instant> Clock<F> {
    fn read(&mut self) -> Instant {
        let now = match std::mem::replace(self, Self::Reading) {
            Self::Unread(clock) => clock(),
            Self::Read(now) => now,
            Self::Reading => unreachable!("a clock does not read itself"),
        };
        *self = Self::Read(now);
        now
    }
}
