//! This end as a caller: start, wait, give up; requests out, responses in.
//!
//! Owns the meeting of calls, slots and deadlines on the calling side. Never decides who may call:
//! that is `shutdown` and the limits.
//!
//! Invariants:
//! 1. Every call that leaves the table of calls before its proof has come leaves its slot in
//!    quarantine.
//! 2. A cancel never overtakes its request: it is sent only once the link says that the request
//!    cannot be taken back.

use std::time::{Duration, Instant};

use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::received::Message;

use super::deadlines::micros;
use super::outgoing::{CallHead, Failed, Stage, Timed};
use super::slots::Proof;
use super::transmit::{Control, Side, tag};
use super::{
    CallId, Deadline, Failure, NotStarted, Outcome, Revoke, Session, SessionError, SessionEvent,
    StartCall, StartError, Timer, Transmit,
};
use crate::wire::{self, ResponseHead, WireId};

/// Calls of this end.
impl<W, H> Session<W, H> {
    /// Starts a call. It goes out by `poll_transmit`, at once or when the peer takes one more:
    /// until its hello has arrived it is believed to take [`INITIAL_CALLS`](super::INITIAL_CALLS).
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
        let started = self.start_from(&call, &mut body, waiter);
        started.map_err(|error| NotStarted { error, body: body.unwrap_or_default() })
    }

    /// The same with the body where it lies, and where it stays when nothing was started.
    #[inline]
    pub(crate) fn start_from(
        &mut self,
        call: &StartCall<'_>,
        body: &mut Option<OutBuf>,
        waiter: Option<W>,
    ) -> Result<CallId, StartError> {
        self.may_start(call)?;
        let has_metadata = !call.metadata.is_empty();
        if has_metadata && let Some(body) = body {
            wire::prepend_metadata(body, call.metadata);
        }
        let head = CallHead {
            method_index: call.method_index,
            no_cancel: call.no_cancel,
            method: call.method,
            codec: call.codec,
            has_metadata,
            signature: call.signature,
        };
        let id = self.calls.insert(head, body.take(), waiter);
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
    pub fn take_outcome(&mut self, id: CallId) -> Option<Outcome> {
        self.calls.take_outcome(id)
    }

    /// Takes a call's outcome, if it is a result: what most are, for less.
    #[inline(always)]
    pub(crate) fn take_result(&mut self, id: CallId) -> Option<Message> {
        self.calls.take_result(id)
    }

    /// Whether `take_outcome` would give something.
    #[inline]
    #[must_use]
    pub fn has_outcome(&self, id: CallId) -> bool {
        !self.calls.is_pending(id)
    }

    /// Whether the peer has accepted the signature of the method with this dense index: before that
    /// it runs no handler of it.
    #[must_use]
    pub fn has_accepted(&self, method_index: u32) -> bool {
        self.accepted_by_peer.contains(method_index)
    }

    /// Takes a call's outcome, or registers who waits for it. Drops who did before: see
    /// [`set_waiter`](Self::set_waiter) for waiters that must not be dropped under a lock.
    pub fn poll_call(&mut self, id: CallId, waiter: impl FnOnce() -> W) -> Option<Outcome> {
        let outcome = self.take_outcome(id);
        if outcome.is_none() {
            self.set_waiter(id, waiter());
        }
        outcome
    }

    /// Registers who waits for a call that has no outcome yet. Gives back who did before, or
    /// `waiter` itself when there is nothing to wait for, to be dropped outside the lock.
    pub fn set_waiter(&mut self, id: CallId, waiter: W) -> Option<W> {
        self.calls.set_waiter(id, waiter)
    }

    /// Who waits for a call now.
    #[must_use]
    #[inline]
    pub fn waiter(&self, id: CallId) -> Option<&W> {
        self.calls.waiter(id)
    }

    /// Gives a call up. What never reached the wire is taken back and its slot is free at once;
    /// else the peer is told, and the slot stays in quarantine until its proof arrives. A call
    /// that must not be cancelled goes on, and its answer is dropped. Gives back who waited; a body
    /// that never left comes out as an event.
    pub fn cancel(&mut self, id: CallId, revoke: Revoke<'_>) -> Option<W> {
        if !self.calls.contains(id) {
            return None;
        }
        let no_cancel = self.calls.head(id.index).no_cancel;
        if no_cancel && matches!(self.calls.stage(id.index), Stage::Unsent) {
            return self.calls.detach(id);
        }
        let taken = self.calls.remove(id)?;
        self.remove_deadline(taken.deadline);
        if let Some(request) = taken.request {
            self.discard(request);
        }
        match taken.stage {
            Stage::Sent(slot) if no_cancel => self.slots.abandon(slot, false),
            Stage::Sent(slot) => {
                self.give_up_slot(slot, true, revoke);
            }
            Stage::Free | Stage::Unsent | Stage::Replied(_) | Stage::Failed { .. } => {}
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

    pub(super) fn fail(&mut self, index: u32, reason: Failure, never_sent: bool) {
        let Failed { deadline, waiter, request } = self.calls.fail(index, reason, never_sent);
        self.remove_deadline(deadline);
        self.tell_failed(waiter, request);
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

    #[inline]
    fn remove_deadline(&mut self, deadline: Option<Timed>) {
        if let Some(timed) = deadline {
            self.deadlines.remove(timed.key);
        }
    }
}

/// Towards the peer.
impl<W, H> Session<W, H> {
    /// Whether `poll_transmit` may give something: a cheap look that spares most calls of it.
    #[inline]
    #[must_use]
    pub fn may_transmit(&self) -> bool {
        !self.frames.is_empty() || self.calls.unsent_len() != 0
    }

    /// The next frame for the link. `now` is asked only for a call with a deadline.
    #[inline]
    pub fn poll_transmit(&mut self, now: impl FnOnce() -> Instant) -> Option<Transmit> {
        if !self.may_speak {
            return None;
        }
        if let Some(transmit) = self.frames.pop() {
            return Some(transmit);
        }
        if self.calls.unsent_len() == 0 {
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
        let accepted = self.accepted_by_peer.contains(self.calls.head(call.index).method_index);
        let (frame, detached) = self.calls.send(call, id, remaining_micros, accepted)?;
        if detached {
            self.slots.abandon(id.slot, false);
            self.remove_deadline(deadline);
        }
        Some(Transmit { urgent: false, tag: tag(Side::Request, id), frame })
    }

    /// The most session frames that a correct peer can make wait in this end's link at once. More
    /// means that the peer answers or asks faster than it reads.
    #[must_use]
    pub fn most_queued_frames(&self) -> usize {
        // A request and a cancel per slot of ours, an answer per slot of the peer's; hello,
        // go-away and its answer.
        2 * self.slots.made() + self.incoming.limit() as usize + 3
    }
}

/// Answers, and deadlines that passed without one.
impl<W, H> Session<W, H> {
    #[inline(always)]
    pub(super) fn on_response(
        &mut self,
        head: ResponseHead,
        head_bytes: usize,
        mut message: Message,
    ) -> Result<(), SessionError> {
        message.advance(head_bytes);
        if let Some(call) = self.slots.on_proof(head.id, Proof::Response)? {
            let (deadline, waiter) = self.calls.reply(call, head.kind, message);
            if head.signature_accepted {
                self.accepted_by_peer.insert(self.calls.head(call).method_index);
            }
            self.remove_deadline(deadline);
            if let Some(waiter) = waiter {
                self.notices.push_back(SessionEvent::Wake(waiter));
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

    pub(super) fn expire_outgoing(&mut self, index: u32, revoke: Revoke<'_>) {
        let never_sent = match self.calls.stage(index) {
            Stage::Sent(slot) => {
                let send_cancel = !self.calls.head(index).no_cancel;
                self.give_up_slot(slot, send_cancel, revoke)
            }
            _ => true,
        };
        // The timer has fired: nothing to remove.
        let failed = self.calls.fail(index, Failure::DeadlineExceeded, never_sent);
        self.tell_failed(failed.waiter, failed.request);
    }
}

/// Time left for the wire, µs: 0 when the deadline has passed.
fn remaining(at: Instant, now: Option<Instant>) -> u64 {
    let left = now.map_or(Duration::ZERO, |now| at.saturating_duration_since(now));
    micros(left)
}
