//! How streams end with their calls: outcomes, cancels, deadlines, the loss of the connection.

use std::time::Instant;

use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::wait::after;

use super::types::StreamEnd;
use super::writer::WriterState;
use super::{Key, StreamCall, Streams};
use crate::session::answer::{StreamTail, answer_body};
use crate::session::outgoing::{Stage, Timed};
use crate::session::transmit::{Side, item_tag};
use crate::session::{
    Answer, CallId, Failure, Gone, IncomingId, Revoke, Session, SessionEvent, Timer,
};
use crate::wire::{ReplyKind, WireId};

/// Most items that are looked for in the link when a call is given up.
const MAX_REVOKED: u32 = 1 << 16;

/// What has become of the streams of a call that is given up.
pub(in crate::session) struct GivenUp {
    /// Its response was here: the slot is proven.
    pub(in crate::session) is_proven: bool,
    /// Frames of the peer that may still come.
    pub(in crate::session) late: u64,
}

impl<W, H> Session<W, H> {
    /// Drops what a stream holds that nobody will send or read: bodies and waiters leave as events.
    fn drop_contents(&mut self, stream: &mut StreamCall<W>) {
        for item in stream.writer.take_queue() {
            self.discard(item);
        }
        if let Some((_, body)) = stream.held_reply.take() {
            self.discard(body);
        }
        let waiters = [stream.read_waiter.take(), stream.write_waiter.take()];
        self.notices.extend(waiters.into_iter().flatten().map(SessionEvent::Wake));
    }

    /// Nothing can be sent any more, and nothing more arrives; what has arrived can be read.
    fn end_streams(&mut self, key: Key, end: StreamEnd) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        stream.is_over = true;
        stream.reader.end(end);
        let items = stream.writer.take_queue();
        let waiters = [stream.read_waiter.take(), stream.write_waiter.take()];
        items.into_iter().for_each(|item| self.discard(item));
        self.notices.extend(waiters.into_iter().flatten().map(SessionEvent::Wake));
    }
}

/// Calls of this end.
impl<W, H> Session<W, H> {
    /// A call has its outcome.
    #[cold]
    pub(in crate::session) fn stream_call_ended(&mut self, index: u32) {
        self.end_streams(Key::Call(index), StreamEnd::Response);
    }

    /// A call was answered.
    #[cold]
    pub(in crate::session) fn stream_call_answered(&mut self, index: u32, is_reset: bool) {
        if let Some(stream) = self.streams.get_mut(Key::Call(index)) {
            stream.was_reset = is_reset;
            self.stream_call_ended(index);
        }
    }

    /// A call has left the table.
    #[cold]
    pub(in crate::session) fn remove_stream_call(&mut self, id: CallId) {
        let key = Key::Call(id.index);
        if self.streams.get(key).is_some_and(|stream| stream.generation == id.generation)
            && let Some(mut stream) = self.streams.take(key)
        {
            self.drop_contents(&mut stream);
        }
    }

    /// The slot of a call is given up: takes its items back from the link, as far as they are
    /// there.
    #[cold]
    pub(in crate::session) fn give_up_streams(
        &mut self,
        id: WireId,
        revoke: Revoke<'_>,
    ) -> GivenUp {
        let index = self.slots.call_of(id);
        let Some(stream) = index.and_then(|index| self.streams.get_mut(Key::Call(index))) else {
            return GivenUp { is_proven: false, late: 0 };
        };
        revoke_items(id, Side::Request, stream.writer.sent(), revoke);
        let is_proven = stream.held_response.take().is_some();
        GivenUp { is_proven, late: stream.frames_due() }
    }

    /// Adds to the number of frames of ended calls that may still come.
    #[inline]
    pub(in crate::session) fn expect_late(&mut self, frames: u64) {
        self.streams.late = self.streams.late.saturating_add(frames);
    }

    /// The answer to a call with streams was dropped for want of memory.
    #[cold]
    pub(in crate::session) fn stream_answer_lost(&mut self, id: WireId) {
        let stream = self.slots.call_of(id).and_then(|index| self.streams.get(Key::Call(index)));
        let late = stream.map_or(0, StreamCall::frames_due);
        self.expect_late(late);
    }

    /// Ends a call that was sent, and has its handler stopped.
    #[cold]
    pub(super) fn give_up_sent(&mut self, index: u32, reason: Failure, revoke: Revoke<'_>) {
        if let Stage::Sent(slot) = self.calls.stage(index) {
            self.give_up_slot(slot, true, revoke);
        }
        self.fail(index, reason, false);
        self.check_drained();
    }

    /// A call's deadline starts anew if an item has moved. It ends if it counts only until the
    /// callee has taken the call, and it has. Returns whether the call goes on.
    #[cold]
    pub(in crate::session) fn restart_outgoing(&mut self, index: u32, now: Instant) -> bool {
        let stream = self.streams.get(Key::Call(index));
        let is_taken = stream.is_some_and(|stream| {
            let has_taken = |needed| stream.opened >= needed || stream.held_response.is_some();
            stream.opens_by_deadline.is_some_and(has_taken)
        });
        if is_taken {
            self.calls.restart_deadline(index, None);
            return true;
        }
        let Some(at) = self.idle_until(Key::Call(index), now) else { return false };
        let key = self.deadlines.insert(at, now, Timer::Outgoing(index));
        self.calls.restart_deadline(index, Some(Timed { at, key }));
        true
    }

    /// [`restart_outgoing`](Self::restart_outgoing) for a call of the peer.
    #[cold]
    pub(in crate::session) fn restart_incoming(&mut self, slot: u32, now: Instant) -> bool {
        let Some(at) = self.idle_until(Key::Incoming(slot), now) else { return false };
        let key = self.deadlines.insert(at, now, Timer::Incoming(slot));
        let id = self.incoming.id(slot);
        self.incoming.set_timer(id, key);
        true
    }

    /// Until when a call may be idle, if that lies ahead.
    fn idle_until(&self, key: Key, now: Instant) -> Option<Instant> {
        let idle = self.streams.get(key)?.idle?;
        Some(after(idle.since, idle.period)).filter(|at| *at > now)
    }
}

/// Calls of the peer.
impl<W, H> Session<W, H> {
    /// The call is answered, or will never be: takes its streams out. What is still on its way from
    /// the caller will come too late.
    #[cold]
    pub(in crate::session) fn remove_incoming_streams(&mut self, id: WireId) -> StreamTail {
        let key = Key::Incoming(id.slot);
        let is_it = |stream: &StreamCall<W>| stream.generation == id.generation;
        if !self.streams.get(key).is_some_and(is_it) {
            return StreamTail::default();
        }
        let Some(mut stream) = self.streams.take(key) else { return StreamTail::default() };
        self.drop_contents(&mut stream);
        self.expect_late(stream.frames_due());
        StreamTail { items: stream.writer.sent(), has_results: stream.writer.exists }
    }

    /// Answers a call while calls of the peer have streams. An answer stands behind the items that
    /// wait for credit, unless it resets the stream.
    #[cold]
    pub(in crate::session) fn reply_stream(
        &mut self,
        id: IncomingId,
        kind: ReplyKind,
        body: OutBuf,
        is_reset: bool,
    ) -> Result<(), Gone> {
        let key = Key::Incoming(id.0.slot);
        let stream = self.streams.get_mut(key);
        if let Some(stream) = stream.filter(|stream| stream.generation == id.0.generation) {
            if stream.held_reply.is_some() {
                self.discard(body);
                return Err(Gone);
            }
            if !stream.writer.is_empty() && !is_reset && !stream.is_over {
                stream.held_reply = Some((kind, body));
                stream.writer.state = WriterState::Finished;
                let waiters = [stream.read_waiter.take(), stream.write_waiter.take()];
                self.notices.extend(waiters.into_iter().flatten().map(SessionEvent::Wake));
                self.incoming.drop_handler(id.0);
                self.streams.list(key);
                return Ok(());
            }
        }
        self.reply_now(id, kind, body, is_reset)
    }

    /// Whether the call was answered, though its answer waits for items.
    #[cold]
    pub(in crate::session) fn has_held_reply(&self, id: WireId) -> bool {
        let stream = self.streams.get(Key::Incoming(id.slot));
        stream
            .is_some_and(|stream| stream.generation == id.generation && stream.held_reply.is_some())
    }

    /// Answers the call, if its answer waits for nothing any more.
    #[cold]
    pub(super) fn release_reply(&mut self, key: Key) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        if !stream.writer.is_empty() {
            return;
        }
        let (Some((kind, body)), Some(id)) = (stream.held_reply.take(), stream.wire) else {
            return;
        };
        // Only this informs the caller.
        _ = self.reply_now(IncomingId(id), kind, body, false);
    }

    /// Answers with a status instead of the items that wait.
    pub(super) fn reply_reset(&mut self, id: IncomingId, answer: Answer<'_>) -> Result<(), Gone> {
        let (kind, body) = answer_body(answer);
        self.reply_stream(id, kind, body, true)
    }

    /// A handler is stopped: its caller has cancelled, or the deadline has passed.
    #[cold]
    pub(in crate::session) fn stop_streams(&mut self, id: WireId, revoke: Option<Revoke<'_>>) {
        let key = Key::Incoming(id.slot);
        let Some(stream) = self.streams.get_mut(key) else { return };
        if let Some(revoke) = revoke {
            revoke_items(id, Side::Response, stream.writer.sent(), revoke);
        }
        let held = stream.held_reply.take();
        self.end_streams(key, StreamEnd::Gone);
        if let Some((_, body)) = held {
            // Its handler has ended already.
            self.discard(body);
            self.handler_ended(IncomingId(id));
        }
    }

    /// The connection is gone. What arguments have arrived can be read until the handlers end.
    #[cold]
    pub(in crate::session) fn close_incoming_streams(&mut self) {
        let slots = (0u32..).zip(&self.streams.incoming);
        let slots = slots.filter(|(_, stream)| stream.is_some()).map(|(slot, _)| slot);
        for slot in slots.collect::<Vec<_>>() {
            let key = Key::Incoming(slot);
            let Some(stream) = self.streams.get(key) else { continue };
            let Some(id) = stream.wire else { continue };
            let nobody_ends_it = stream.held_reply.is_some() || self.incoming.is_arrived(id);
            self.end_streams(key, StreamEnd::ConnectionLost);
            if nobody_ends_it {
                self.remove_incoming_streams(id);
            }
        }
        // Nothing is sent any more.
        self.streams.ready.clear();
        self.streams.grants.clear();
        let Streams { calls, incoming, .. } = &mut self.streams;
        for stream in calls.iter_mut().chain(incoming).flatten() {
            (stream.is_listed, stream.owes_grant) = (false, false);
        }
    }
}

/// Takes items back from the link: nobody wants them.
fn revoke_items(id: WireId, side: Side, sent: u32, revoke: Revoke<'_>) {
    // One more than sent: the end of the arguments may follow the request in its lane.
    for _ in 0..=sent.min(MAX_REVOKED) {
        if revoke(item_tag(side, id)) == crate::session::Revoked::TooLate {
            return;
        }
    }
}
