//! Frames of streams for the link: grants, items, half-closes.

use super::writer::WriterState;
use super::{Key, Opened, SLOT_OFFER_BYTES};
use crate::session::transmit::{Side, item_tag};
use crate::session::{Reads, Session, SessionEvent, Transmit};
use crate::wire::{self, ItemHead, WireId};

impl<W, H> Session<W, H> {
    /// The next frame of a stream.
    pub(in crate::session) fn next_stream_frame(&mut self) -> Option<Transmit> {
        while let Some(key) = self.streams.grants.pop_front() {
            if let Some(transmit) = self.grant_frame(key) {
                return Some(transmit);
            }
        }
        while self.streams.room > 0 {
            let key = self.streams.ready.pop_front()?;
            if let Some(transmit) = self.item_frame(key) {
                return Some(transmit);
            }
        }
        None
    }

    fn grant_frame(&mut self, key: Key) -> Option<Transmit> {
        let limits = self.streams.limits?;
        let spare = limits.max_stream_bytes.saturating_sub(self.streams.window_bytes);
        let stream = self.streams.get_mut(key)?;
        stream.owes_grant = false;
        let wire = stream.wire?;
        if stream.is_over || stream.reader.has_end() {
            return None;
        }
        let is_empty = stream.reader.is_empty();
        let growth = stream.reader.window.growth(is_empty, spare, &limits);
        let grown = growth.filter(|bytes| self.streams.charge(key, *bytes));
        let stream = self.streams.get_mut(key)?;
        let (items, bytes) = stream.reader.window.take_grant(is_empty, grown.is_some());
        stream.reader.grant(items, bytes);
        self.streams.window_bytes += grown.unwrap_or(0);
        let results = matches!(key, Key::Call(_));
        Some(urgent(wire::credit(wire, results, items, bytes)))
    }

    fn item_frame(&mut self, key: Key) -> Option<Transmit> {
        let (rules, longest_small) = (self.streams.rules, self.streams.longest_small);
        let stream = self.streams.get_mut(key)?;
        stream.is_listed = false;
        if !stream.can_send(rules, longest_small) {
            return None;
        }
        let wire = stream.wire?;
        let results = matches!(key, Key::Incoming(_));
        let Some((number, mut frame)) = stream.writer.pop() else {
            stream.writer.state = WriterState::Finished;
            let frame = wire::half_close(wire, stream.writer.sent());
            let follows_request = stream.opened == Opened::No;
            let tag = if follows_request { tag(wire, results) } else { 0 };
            return Some(Transmit { urgent: !follows_request, tag, frame });
        };
        let (has_parts, metadata_bytes) = frame.marks();
        let is_metadata = metadata_bytes != 0;
        let read = stream.read;
        let head = ItemHead { id: wire, results, number, has_parts, is_metadata, read };
        wire::prepend_item(&mut frame, &head);
        let is_done = stream.writer.is_empty() && stream.held_reply.is_some();
        let wakes = stream.write_waiter.is_some() && stream.writer.check(true).is_ok();
        if wakes {
            let waiter = stream.write_waiter.take();
            self.notices.extend(waiter.map(SessionEvent::Wake));
        }
        self.streams.room = self.streams.room.saturating_sub_unsigned(frame.held_bytes());
        self.streams.list(key);
        if is_done {
            self.release_reply(key);
        }
        Some(Transmit { urgent: false, tag: tag(wire, results), frame })
    }

    /// The request of a call with streams leaves.
    #[cold]
    pub(in crate::session) fn stream_request_left(
        &mut self,
        index: u32,
        id: WireId,
        frame: &rpc_transport::message::outgoing::OutBuf,
    ) {
        let longest_small = self.streams.longest_small;
        if let Some(stream) = self.streams.get_mut(Key::Call(index)) {
            stream.wire = Some(id);
            let is_plain = frame.tail_len() == 0;
            stream.request_is_small = is_plain && frame.len() + SLOT_OFFER_BYTES <= longest_small;
            if self.calls.reads(index) == Reads::Same {
                // The arguments were held while it was not known whether the request would ask.
                let waiter = stream.write_waiter.take();
                self.notices.extend(waiter.map(SessionEvent::Wake));
            }
            self.streams.list(Key::Call(index));
        }
    }
}

fn tag(id: WireId, results: bool) -> u64 {
    item_tag(if results { Side::Response } else { Side::Request }, id)
}

fn urgent(frame: rpc_transport::message::outgoing::OutBuf) -> Transmit {
    Transmit { urgent: true, tag: 0, frame }
}
