//! What the users of a stream do: write, read, and end either.

use std::time::Instant;

use rpc_transport::memory::budget::MemoryBudget;
use rpc_transport::message::outgoing::OutBuf;

use super::reader::ReaderState;
use super::types::{NotSent, ReadItem, SendError, StreamEnd, StreamId};
use super::writer::WriterState;
use super::{Key, Opened, StreamCall};
use crate::session::transmit::Control;
use crate::session::{Answer, CallId, Gone, IncomingId, ReadBy, Session, SessionEvent};

impl<W, H> Session<W, H> {
    /// The streams of a call, if it has any and its id is not out of date.
    #[inline]
    fn stream(&self, id: StreamId) -> Option<(Key, &StreamCall<W>)> {
        let (key, generation) = key_of(id);
        let stream = self.streams.get(key).filter(|stream| stream.generation == generation)?;
        Some((key, stream))
    }

    #[inline]
    fn stream_mut(&mut self, id: StreamId) -> Option<(Key, &mut StreamCall<W>)> {
        let (key, generation) = key_of(id);
        let stream = self.streams.get_mut(key).filter(|stream| stream.generation == generation)?;
        Some((key, stream))
    }
}

/// Writing.
impl<W, H> Session<W, H> {
    /// Whether [`send_item`](Self::send_item) would take an item.
    ///
    /// # Errors
    /// Why not.
    #[inline]
    pub fn writable(&self, id: impl Into<StreamId>) -> Result<(), SendError> {
        let Some((_, stream)) = self.stream(id.into()) else { return Err(SendError::Ended) };
        if stream.is_over {
            return Err(SendError::Ended);
        }
        stream.writer.check(self.streams.room > 0)
    }

    /// Sends an item, or has it wait for credit. `now` is asked only if the call's deadline starts
    /// anew with each item.
    ///
    /// # Errors
    /// Why it was not taken, with the item.
    #[inline]
    pub fn send_item(
        &mut self,
        id: impl Into<StreamId>,
        item: OutBuf,
        now: impl FnOnce() -> Instant,
    ) -> Result<(), NotSent> {
        let has_room = self.streams.room > 0;
        let id = id.into();
        let Some((key, stream)) = self.stream_mut(id).filter(|(_, stream)| !stream.is_over) else {
            return Err(NotSent { error: SendError::Ended, item });
        };
        if let Err(error) = stream.writer.check(has_room) {
            return Err(NotSent { error, item });
        }
        stream.touch(now);
        stream.writer.push(item);
        self.streams.list(key);
        Ok(())
    }

    /// Registers the waiter of a writer. Returns the earlier one, or `waiter` itself if there is
    /// nothing to wait for, to be dropped outside the lock.
    pub fn set_writer(&mut self, id: impl Into<StreamId>, waiter: W) -> Option<W> {
        let id = id.into();
        if self.writable(id) != Err(SendError::Full) {
            return Some(waiter);
        }
        self.stream_mut(id)?.1.write_waiter.replace(waiter)
    }

    /// Registers the waiter of a writer that has nothing to write: it is woken when nobody reads
    /// any more. Returns the earlier one, or `waiter` itself if there is nothing to wait for, to be
    /// dropped outside the lock.
    pub fn watch_writer(&mut self, id: impl Into<StreamId>, waiter: W) -> Option<W> {
        let id = id.into();
        if !matches!(self.writable(id), Ok(()) | Err(SendError::Full)) {
            return Some(waiter);
        }
        match self.stream_mut(id) {
            Some((_, stream)) => stream.write_waiter.replace(waiter),
            None => Some(waiter),
        }
    }

    /// The waiter of the writer.
    #[inline]
    #[must_use]
    pub fn writer(&self, id: impl Into<StreamId>) -> Option<&W> {
        self.stream(id.into())?.1.write_waiter.as_ref()
    }

    /// There are no more arguments: the stream ends behind those that wait.
    pub fn finish(&mut self, id: CallId) {
        let Some((key, stream)) = self.stream_mut(id.into()) else { return };
        if stream.writer.state == WriterState::Open {
            stream.writer.state = WriterState::Finishing;
            self.streams.list(key);
        }
    }

    /// The arguments end before their end: those that wait are dropped, and a reset is sent to the
    /// callee, with a status code, 1 to 16. Dropping a sender is one with code 1, cancelled.
    pub fn reset(&mut self, id: CallId, code: u8) {
        let Some((_, stream)) = self.stream_mut(id.into()) else { return };
        if !matches!(stream.writer.state, WriterState::Open | WriterState::Finishing) {
            return;
        }
        stream.writer.state = WriterState::Closed;
        let dropped = stream.writer.take_queue();
        let code = if (1..=crate::wire::code::MAX).contains(&code) { code } else { 2 };
        match stream.wire {
            _ if stream.is_over => {}
            Some(wire) if stream.opened >= Opened::Arrived => {
                self.frames.push_control(Control::Reset { id: wire, code });
            }
            _ => stream.late_reset = Some(code),
        }
        dropped.into_iter().for_each(|item| self.discard(item));
    }

    /// The results end before their end: items that wait are dropped, and the call is answered with
    /// a status.
    ///
    /// # Errors
    /// The caller is gone, or the call was answered before.
    pub fn reset_results(&mut self, id: IncomingId, answer: Answer<'_>) -> Result<(), Gone> {
        if let Some((_, stream)) = self.stream_mut(id.into())
            && stream.held_reply.is_none()
        {
            let dropped = stream.writer.take_queue();
            dropped.into_iter().for_each(|item| self.discard(item));
            return self.reply_reset(id, answer);
        }
        self.reply(id, answer)
    }
}

/// Types that differ.
impl<W, H> Session<W, H> {
    /// Whether a call may still be sent again with its schema: its arguments then wait with their
    /// source. `None`: it has its outcome.
    pub(crate) fn holds_arguments(&self, id: CallId) -> Option<bool> {
        let (_, stream) = self.stream(id.into()).filter(|(_, stream)| !stream.is_over)?;
        // A stop may overtake that the request was taken.
        let is_stopped = stream.writer.was_stopped;
        let asks = self.calls.asks(id.index, &self.accepted_by_peer);
        Some(stream.opened < Opened::Arrived && !is_stopped && asks)
    }

    /// The peer refuses calls for good if their types differ: what is held may leave.
    #[cold]
    pub(in crate::session) fn release_arguments(&mut self) {
        let calls = self.streams.calls.iter_mut().flatten();
        let waiters = calls.filter_map(|stream| stream.write_waiter.take());
        self.notices.extend(waiters.map(SessionEvent::Wake));
    }
}

/// Reading.
impl<W, H> Session<W, H> {
    /// The next item.
    #[inline]
    pub fn take_item(&mut self, id: impl Into<StreamId>) -> ReadItem {
        let id = id.into();
        let rules = self.streams.rules;
        let Some((key, stream)) = self.stream_mut(id) else {
            return ReadItem::End(StreamEnd::NotOpen);
        };
        if stream.reader.state == ReaderState::Open
            && let Some(item) = stream.reader.pop()
        {
            let due = stream.reader.window.consume(super::reader::counted(&item), rules);
            if due && !stream.owes_grant && !stream.is_over && !stream.reader.has_end() {
                stream.owes_grant = true;
                self.streams.grants.push_back(key);
            }
            return ReadItem::Item(item);
        }
        match self.stream_end(id) {
            Some(end) => ReadItem::End(end),
            None => ReadItem::Pending,
        }
    }

    /// Why there is nothing more to read, if that is so.
    fn stream_end(&self, id: StreamId) -> Option<StreamEnd> {
        let Some((_, stream)) = self.stream(id) else { return Some(StreamEnd::NotOpen) };
        let end = stream.reader.at_end();
        match id {
            StreamId::Incoming(_) => end,
            StreamId::Call(_) if end == Some(StreamEnd::NotOpen) => end,
            StreamId::Call(call) => {
                let ended = stream.reader.is_empty() && self.has_outcome(call);
                ended.then_some(StreamEnd::Response)
            }
        }
    }

    /// Whether [`take_item`](Self::take_item) would not be pending.
    #[must_use]
    pub fn has_item(&self, id: impl Into<StreamId>) -> bool {
        let id = id.into();
        self.stream_end(id).is_some()
            || self.stream(id).is_some_and(|(_, stream)| !stream.reader.is_empty())
    }

    /// Registers the waiter of a reader; at a caller it also waits for the call to be accepted or
    /// to end. Returns the earlier one, or `waiter` itself if there is nothing to wait for, to be
    /// dropped outside the lock.
    pub fn set_reader(&mut self, id: impl Into<StreamId>, waiter: W) -> Option<W> {
        let id = id.into();
        let is_ready = match id {
            // It may wait for more than items.
            StreamId::Call(call) => {
                let stream = self.stream(id);
                self.has_outcome(call) || stream.is_some_and(|(_, s)| !s.reader.is_empty())
            }
            StreamId::Incoming(_) => self.has_item(id),
        };
        match self.stream_mut(id) {
            Some((_, stream)) if !is_ready => stream.read_waiter.replace(waiter),
            _ => Some(waiter),
        }
    }

    /// The waiter of the reader.
    #[inline]
    #[must_use]
    pub fn reader(&self, id: impl Into<StreamId>) -> Option<&W> {
        self.stream(id.into())?.1.read_waiter.as_ref()
    }

    /// Gives up reading: items that have arrived are dropped, and the sender gets a status code, 0
    /// to 16. The call goes on.
    pub fn stop(&mut self, id: impl Into<StreamId>, code: u8) {
        let id = id.into();
        let results = matches!(id, StreamId::Call(_));
        let sends_stop = self.streams.rules.sends_stop();
        let Some((_, stream)) = self.stream_mut(id) else { return };
        if stream.reader.state != ReaderState::Open {
            return;
        }
        let had_end = stream.reader.has_end() || stream.is_over;
        let freed = stream.reader.window.bytes();
        stream.reader.stop();
        let code = code.min(crate::wire::code::MAX);
        let waiter = stream.read_waiter.take();
        match stream.wire {
            _ if had_end || !sends_stop => {}
            Some(wire) if stream.opened >= Opened::Arrived => {
                self.frames.push_control(Control::Stop { id: wire, results, code });
            }
            _ => stream.late_stop = Some(code),
        }
        self.streams.window_bytes -= freed;
        self.notices.extend(waiter.map(SessionEvent::Wake));
    }
}

/// Accepting.
impl<W, H> Session<W, H> {
    /// Notifies the caller that its call is accepted. Needed once, and only before the first item
    /// or the response: these imply it.
    ///
    /// # Errors
    /// The caller is gone, or the call has no streams.
    pub fn accept(&mut self, id: IncomingId) -> Result<(), Gone> {
        let Some((_, stream)) = self.stream_mut(id.into()).filter(|(_, stream)| !stream.is_over)
        else {
            return Err(Gone);
        };
        if stream.opened < Opened::Accepted && stream.held_reply.is_none() {
            stream.opened = Opened::Accepted;
            stream.owes_arrival = false;
            let read = stream.read;
            self.frames.push_control(Control::Opened { id: id.0, accepted: true, read });
        }
        Ok(())
    }

    /// Whether the callee has accepted the call: it said so, or an item has arrived.
    #[must_use]
    pub fn is_accepted(&self, id: CallId) -> bool {
        self.stream(id.into())
            .is_some_and(|(_, stream)| stream.opened == Opened::Accepted && stream.types_agree)
    }

    /// How the items of a call that the callee [has accepted](Self::is_accepted) are read.
    pub(crate) fn items_read_by(&self, id: CallId) -> Option<ReadBy> {
        self.is_accepted(id).then(|| self.calls.reads(id.index).agreed())
    }
}

/// Reports of the link, and counts for gauges and tests.
impl<W, H> Session<W, H> {
    /// The longest message that the link sends in its small lane, bytes.
    pub fn set_longest_small(&mut self, bytes: usize) {
        self.streams.longest_small = bytes;
    }

    /// Charges windows that grow to a budget, to that half of it that may be done without.
    pub fn set_stream_memory(&mut self, memory: MemoryBudget) {
        self.streams.memory = Some(memory);
    }

    /// How much memory, in bytes, items may hold that the link takes until it reports again.
    /// Returns whether frames of streams that waited for that may leave now.
    #[inline]
    pub fn set_item_room(&mut self, bytes: u64) -> bool {
        let was_full = self.streams.room <= 0;
        self.streams.room = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.streams.low_room = self.streams.room / 2;
        self.streams.most_room = self.streams.most_room.max(bytes);
        was_full && self.streams.has_work()
    }

    /// Whether the link is to report again. Items take from the room when they leave, also those
    /// that never wait in the link, so only a report gives the room back.
    #[inline]
    #[must_use]
    pub fn is_item_room_low(&self) -> bool {
        self.streams.room <= self.streams.low_room && self.streams.rules.asks_for_room()
    }

    /// Calls with streams, of this end and of the peer.
    #[must_use]
    pub fn stream_calls(&self) -> (u32, u32) {
        (self.streams.live_calls, self.streams.live_incoming)
    }

    /// Windows of all streams that this end receives, together, bytes.
    #[must_use]
    pub fn stream_window_bytes(&self) -> u64 {
        self.streams.window_bytes
    }

    /// Frames of streams that came for calls that had ended; harmless.
    #[must_use]
    pub fn stale_stream_frames(&self) -> u64 {
        self.streams.stale
    }

    /// Breaks a rule.
    #[cfg(any(test, feature = "model"))]
    pub fn break_stream_rule(&mut self, rules: super::Rules) {
        self.streams.rules = rules;
    }
}

fn key_of(id: StreamId) -> (Key, u32) {
    match id {
        StreamId::Call(id) => (Key::Call(id.index), id.generation),
        StreamId::Incoming(id) => (Key::Incoming(id.0.slot), id.0.generation),
    }
}
