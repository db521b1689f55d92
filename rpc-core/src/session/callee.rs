//! This end as a callee: requests in, handlers run and stopped, answers out.
//!
//! Owns the peer's calls and their deadlines. Never runs a handler: it hands
//! out events and takes their results.
//!
//! Invariants:
//! 1. A request that is not refused becomes one event, unless its caller is gone before the event
//!    is taken.
//! 2. The proof of a call is sent when its handler has ended, never before (`incoming`).

use std::time::{Duration, Instant};

use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::received::{Message, Refusal};
use rpc_transport::wait::after;

use super::answer::{StreamTail, answer_body};
use super::incoming::{Ended, Stopped};
use super::streams::Idle;
use super::transmit::{Control, Side, tag};
use super::{
    Answer, CopiedTails, Event, Gone, Incoming, IncomingId, Revoke, Session, SessionError,
    SessionEvent, Timer,
};
use crate::wire::{self, HowRead, ReplyKind, RequestHead, ResponseHead, WireId, code};

/// Advice in errors about a memory budget that is used up.
pub(crate) const RAISE: &str = "send less at a time, or raise the server's `memory_budget`";

/// The bytes of a request, for its handler.
pub(super) struct RequestBytes {
    pub(super) head_bytes: usize,
    pub(super) metadata_bytes: usize,
    pub(super) message: Message,
}

/// Requests and cancels.
impl<W, H> Session<W, H> {
    // Inlined, so that for the plain header of most requests the compiler drops the optional
    // blocks.
    #[inline(always)]
    pub(super) fn on_request(
        &mut self,
        head: RequestHead,
        bytes: RequestBytes,
        now: impl FnOnce() -> Instant,
    ) -> Result<(), SessionError> {
        if self.shutdown.peer_drained {
            return Err(SessionError::CallAfterDrained);
        }
        if head.streams.any() && !self.streams.are_agreed() {
            return Err(SessionError::StreamsNotAgreed(wire::Kind::Request));
        }
        self.incoming.admit(&head)?;
        if let Some(refusal) = self.refusal(&head) {
            self.refuse(head.id, &refusal);
            self.refuse_streams(head.streams);
            return Ok(());
        }
        let mut deadline = None;
        let mut idle = None;
        if let Some(micros) = head.remaining_micros {
            let now = now();
            let remaining = Duration::from_micros(micros);
            deadline = Some(after(now, remaining));
            // A `no_cancel` handler only sees its deadline; no timer stops it.
            if let Some(at) = deadline.filter(|_| !head.no_cancel) {
                let timer = self.deadlines.insert(at, now, Timer::Incoming(head.id.slot));
                self.incoming.set_timer(head.id, timer);
            }
            if head.streams.idle_deadline {
                idle = Some(Idle { period: remaining, since: now });
                deadline = None;
            }
        }
        if head.streams.any() {
            self.open_incoming(head.id, head.streams, idle, head.signature.is_some());
        }
        let RequestBytes { head_bytes, metadata_bytes, mut message } = bytes;
        message.advance(head_bytes);
        self.requests.push_back(Incoming {
            id: IncomingId(head.id),
            method: head.method,
            codec: head.codec,
            signature: head.signature,
            deadline,
            streams: head.streams,
            metadata_bytes,
            message,
        });
        Ok(())
    }

    /// Answers a request that there was no memory for: it never runs, so the caller may try again.
    #[cold]
    pub(super) fn refuse_unread(
        &mut self,
        head: &RequestHead,
        refusal: Refusal,
    ) -> Result<(), SessionError> {
        if self.shutdown.peer_drained {
            return Err(SessionError::CallAfterDrained);
        }
        if head.streams.any() && !self.streams.are_agreed() {
            return Err(SessionError::StreamsNotAgreed(wire::Kind::Request));
        }
        self.incoming.admit(head)?;
        self.refuse_streams(head.streams);
        let Refusal { reason, total_bytes, .. } = refusal;
        let text = format!("no memory for a request of {total_bytes} bytes: {reason}; {RAISE}");
        let (code, retryable, details) = (code::RESOURCE_EXHAUSTED, true, &[][..]);
        self.refuse(head.id, &Answer::Status { code, retryable, text: &text, details });
        Ok(())
    }

    /// Why a request is refused without running its handler.
    #[inline]
    fn refusal(&mut self, head: &RequestHead) -> Option<Answer<'static>> {
        let (code, retryable, text) = if self.incoming.in_flight() > self.limits.max_incoming_calls
        {
            (code::RESOURCE_EXHAUSTED, true, "more calls in flight than this end announced")
        } else if head.remaining_micros == Some(0) {
            (code::DEADLINE_EXCEEDED, false, "the deadline passed before the call arrived")
        } else if head.signature.is_none() && !self.accepted_here.contains(head.method) {
            (code::FAILED_PRECONDITION, false, "the method's signature was never checked")
        } else {
            return None;
        };
        Some(Answer::Status { code, retryable, text, details: &[] })
    }

    #[cold]
    fn refuse(&mut self, id: WireId, answer: &Answer<'_>) {
        self.refused_calls += 1;
        if let Ended::Reply { read } = self.incoming.end(id)
            && let Answer::Status { code, retryable, text, details } = *answer
        {
            self.send_answer(
                id,
                read,
                Answer::Status { code, retryable, text, details },
                StreamTail::default(),
            );
        }
    }

    pub(super) fn on_cancel(&mut self, id: WireId, revoke: Revoke<'_>) -> Result<(), SessionError> {
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
                if self.streams.live_incoming != 0 {
                    self.remove_incoming_streams(id);
                }
                self.confirm_cancel(id);
            }
            Stopped::Handler(handler) => {
                self.remove_incoming_timer(id.slot);
                self.notices.extend(handler.map(SessionEvent::CancelHandler));
                if self.streams.live_incoming != 0 {
                    self.stop_streams(id, Some(revoke));
                }
            }
            Stopped::Answered => {
                let here = self.frames.revoke_response(id);
                let is_here = here.is_some();
                if let Some(response) = here {
                    self.discard(response);
                }
                if is_here || revoke(tag(Side::Response, id)).is_unsent() {
                    self.confirm_cancel(id);
                }
            }
            Stopped::Already => {}
            Stopped::Nothing => self.stale_cancels += 1,
        }
        self.check_drained();
        Ok(())
    }

    #[cold]
    fn confirm_cancel(&mut self, id: WireId) {
        self.frames.push_control(Control::Cancelled(id));
    }

    #[inline]
    fn remove_incoming_timer(&mut self, slot: u32) {
        if let Some(timer) = self.incoming.take_timer(slot) {
            self.deadlines.remove(timer);
        }
    }
}

/// Towards the handlers.
impl<W, H> Session<W, H> {
    /// The next event, to be handled outside the lock.
    pub fn poll_event(&mut self) -> Option<Event<W, H>> {
        self.poll_notice().map(Event::from).or_else(|| self.poll_request().map(Event::Request))
    }

    /// Whether there may be an event.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        !self.notices.is_empty() || !self.requests.is_empty()
    }

    /// Whether there is an event that is not a request.
    #[inline]
    pub(crate) fn has_notices(&self) -> bool {
        !self.notices.is_empty()
    }

    /// The next event that is not a request.
    #[inline]
    pub(crate) fn poll_notice(&mut self) -> Option<SessionEvent<W, H>> {
        self.notices.pop_front()
    }

    /// The next request. The other events come first.
    #[inline]
    pub(crate) fn poll_request(&mut self) -> Option<Incoming> {
        while !self.incoming.take_arrived(self.requests.front()?.id.0) {
            self.drop_request();
        }
        self.requests.pop_front()
    }

    /// The next request was cancelled or expired while it waited here, and is answered.
    #[cold]
    fn drop_request(&mut self) {
        self.requests.pop_front();
    }

    /// The types of a call whose request asks are the method's: its answer says so, and later calls
    /// of that method on this connection need not ask. Call this before the handler is made.
    pub fn accept_signature(&mut self, id: IncomingId) {
        self.accept_same(id, CopiedTails::NONE);
    }

    /// [`Session::accept_signature`], with what is known of the method's messages.
    pub(crate) fn accept_same(&mut self, id: IncomingId, copied_tails: CopiedTails) {
        if let Some(method) = self.accept_as(id, HowRead::Same) {
            self.accepted_here.insert(method, copied_tails);
        }
    }

    /// The arguments of a call whose request asks are read by the caller's schema: its answer says
    /// so, and later calls ask again. Call this before the handler is made.
    pub(crate) fn accept_by_schema(&mut self, id: IncomingId) {
        self.accept_as(id, HowRead::BySchema);
    }

    /// Returns the method, if the call is still there.
    fn accept_as(&mut self, id: IncomingId, read: HowRead) -> Option<u32> {
        let method = self.incoming.set_read(id.0, read)?;
        if self.streams.live_incoming != 0 {
            self.tell_arrival(id.0, read);
        }
        Some(method)
    }

    /// Attaches the handle of a call's handler, so that a cancel or deadline can stop it.
    ///
    /// # Errors
    /// The handle, when the caller is gone: stop the handler, then report `handler_ended`.
    pub fn attach_handler(&mut self, id: IncomingId, handler: H) -> Result<(), H> {
        self.incoming.attach(id.0, handler)
    }

    /// Whether a call's handler is being stopped because the deadline has passed, and not by the
    /// caller.
    #[must_use]
    pub(crate) fn is_expired(&self, id: IncomingId) -> bool {
        self.incoming.is_expired(id.0)
    }

    /// Whether a call's handler is being stopped, by the caller or as the deadline has passed.
    #[must_use]
    pub(crate) fn is_stopping(&self, id: IncomingId) -> bool {
        self.incoming.is_stopping(id.0)
    }

    /// Answers a call; its handler has ended.
    ///
    /// # Errors
    /// The caller is gone, or the call was answered before: the answer comes out as
    /// [`Event::Discard`].
    pub fn reply(&mut self, id: IncomingId, answer: Answer<'_>) -> Result<(), Gone> {
        let (kind, body) = answer_body(answer);
        self.reply_with(id, kind, body)
    }

    /// Answers a call with a body of the given kind.
    #[inline]
    pub(crate) fn reply_with(
        &mut self,
        id: IncomingId,
        kind: ReplyKind,
        body: OutBuf,
    ) -> Result<(), Gone> {
        if self.streams.live_incoming != 0 {
            return self.reply_stream(id, kind, body, false);
        }
        // Inlined here, where most of what it asks is known.
        self.reply_inline(id, kind, body, false)
    }

    /// Answers a call whose items, if it has any, have all left.
    #[inline(never)]
    pub(super) fn reply_now(
        &mut self,
        id: IncomingId,
        kind: ReplyKind,
        body: OutBuf,
        is_reset: bool,
    ) -> Result<(), Gone> {
        self.reply_inline(id, kind, body, is_reset)
    }

    #[inline(always)]
    fn reply_inline(
        &mut self,
        id: IncomingId,
        kind: ReplyKind,
        body: OutBuf,
        is_reset: bool,
    ) -> Result<(), Gone> {
        let ended = self.end_handler(id.0);
        self.check_drained();
        match ended {
            Some((read, tail)) if self.closed.is_none() => {
                let is_reset = is_reset && tail.has_results;
                self.send_body(id.0, read, kind, body, tail.items, is_reset);
                Ok(())
            }
            _ => {
                self.discard(body);
                Err(Gone)
            }
        }
    }

    /// A handler has ended without a reply: stopped, panicked or dropped. A caller that still
    /// waits gets Internal; a call that was answered before is left alone.
    #[cold]
    pub fn handler_ended(&mut self, id: IncomingId) {
        if self.streams.live_incoming != 0 && self.has_held_reply(id.0) {
            return;
        }
        let ended = self.end_handler(id.0).filter(|_| self.closed.is_none());
        if let Some((read, tail)) = ended {
            let text = "the handler ended without a reply";
            let (code, retryable, details) = (code::INTERNAL, false, &[][..]);
            let answer = Answer::Status { code, retryable, text, details };
            self.send_answer(id.0, read, answer, tail);
        }
        self.check_drained();
    }

    /// If the caller still waits, returns how the arguments were read, and what the call's response
    /// says of streams. Otherwise queues the proof that the peer waits for.
    #[inline(always)]
    fn end_handler(&mut self, id: WireId) -> Option<(HowRead, StreamTail)> {
        let tail = match self.streams.live_incoming {
            0 => StreamTail::default(),
            _ => self.remove_incoming_streams(id),
        };
        match self.incoming.end(id) {
            Ended::Reply { read } => {
                self.remove_incoming_timer(id.slot);
                Some((read, tail))
            }
            Ended::Cancelled => {
                self.confirm_cancel(id);
                None
            }
            Ended::DeadlineExceeded => {
                self.answer_expired(id, tail);
                None
            }
            Ended::Nothing => None,
        }
    }

    #[cold]
    fn answer_expired(&mut self, id: WireId, tail: StreamTail) {
        let text = "the deadline passed before the handler replied";
        let (code, retryable, details) = (code::DEADLINE_EXCEEDED, false, &[][..]);
        let read = self.incoming.read(id);
        self.send_answer(id, read, Answer::Status { code, retryable, text, details }, tail);
    }

    #[cold]
    fn send_answer(&mut self, id: WireId, read: HowRead, answer: Answer<'_>, tail: StreamTail) {
        let (kind, body) = answer_body(answer);
        self.send_body(id, read, kind, body, tail.items, tail.has_results);
    }

    #[inline(always)]
    fn send_body(
        &mut self,
        id: WireId,
        read: HowRead,
        kind: ReplyKind,
        mut frame: OutBuf,
        items: u32,
        is_reset: bool,
    ) {
        let (has_parts, mut metadata_bytes) = frame.marks();
        let takes = |hello: wire::Hello| hello.features & wire::FEATURE_REPLY_METADATA != 0;
        if metadata_bytes != 0 && !self.peer.is_some_and(takes) {
            frame.drop_marked();
            metadata_bytes = 0;
        }
        wire::prepend_response(
            &mut frame,
            &ResponseHead { id, kind, read, has_parts, items, is_reset, metadata_bytes },
        );
        self.frames.push_response(id, frame);
    }

    /// Whether the peer takes metadata in front of the items of results.
    #[must_use]
    pub fn takes_initial_metadata(&self) -> bool {
        self.peer.is_some_and(|hello| hello.features & wire::FEATURE_INITIAL_METADATA != 0)
    }

    pub(super) fn expire_incoming(&mut self, slot: u32, now: Instant) {
        if self.streams.live_incoming != 0 && self.restart_incoming(slot, now) {
            return;
        }
        // The timer has fired: nothing to remove.
        self.incoming.take_timer(slot);
        let id = self.incoming.id(slot);
        match self.incoming.stop(id, false) {
            Stopped::NeverRan => {
                let tail = self.remove_incoming_streams(id);
                self.answer_expired(id, tail);
            }
            Stopped::Handler(handler) => {
                self.notices.extend(handler.map(SessionEvent::CancelHandler));
                self.stop_streams(id, None);
            }
            Stopped::Already | Stopped::Answered | Stopped::Nothing => {}
        }
    }
}
