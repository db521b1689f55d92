//! The bulk lane of a link, and both directions of its arenas.
//!
//! Owns the choice how a segment is sent ([`SegmentPath`]: in its frame, into the peer's arena, or
//! into a reply slot of the peer), and the handling of received blocks. The invariants are those of
//! [`link`](super).

use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

pub(in crate::protocol::link) mod assembly;
pub(in crate::protocol::link) mod bulk_window;
mod early_copies;
pub(in crate::protocol::link) mod landing;
pub(in crate::protocol::link) mod return_queue;
pub(in crate::protocol::link) mod segmenter;
pub(in crate::protocol::link) mod slices;
pub(in crate::protocol::link) mod slots;
pub(in crate::protocol::link) mod staged;
#[cfg(test)]
mod tests;

use self::assembly::{Leave, Outcome};
use self::landing::{Arrival, Landing};
use self::return_queue::{OnReturn, ReturnQueue};
use self::segmenter::{Cut, GivenUp, Segmenter, WrittenSegment};
use self::slices::{Begun, SliceBytes};
use self::slots::Slots;
use self::staged::Staged;
use super::transmit::{FrameBytes, RemoteWrite, Transmit};
use super::{Freed, Inbound, Lane, Link, Revoked, Source};
use crate::device::RemoteSlice;
use crate::memory::region::MemoryRegion;
use crate::message::outgoing::OutBuf;
use crate::message::part::OutPart;
use crate::message::reply_slot::PeerSlot;
use crate::protocol::arena::{
    Allocation, ArenaBlock, ArenaError, ArenaOwner, ArenaWrite, ArenaWriter,
};
use crate::protocol::config::LinkConfig;
use crate::protocol::credit::{SendQueueBudget, Stamp};
use crate::protocol::error::ProtocolError;
use crate::protocol::frame::{
    self, Blocks, Kind, Placed, SEGMENT_PREFIX_MAX_BYTES, SLOT_BLOCK_BYTES, Written,
};
use crate::protocol::handshake::Features;

/// Both directions of the arenas of a connection.
#[derive(Debug)]
pub(super) struct Arenas {
    landing: Landing,
    slots: Slots,
    /// A slot that arrived with a whole message, until that message is handed out.
    pub(super) arrived: Option<PeerSlot>,
    writer: ArenaWriter,
    /// The current message waits for chunks, for its reader, or for room to stage it.
    blocked: bool,
    staged: Staged,
    /// Messages of this size and more are sent by WRITE, bytes.
    threshold_bytes: u64,
    /// Most bytes of one segment, unless it is long.
    segment_bytes: u64,
    /// Most WRITEs of one segment; 0 if the SQ is too short for a WRITE and its SEND.
    max_writes: usize,
}

/// How the next segment is sent.
pub(super) enum SegmentPath {
    /// All bytes in the frame.
    Inline,
    /// Written into these chunks of the peer's arena.
    Written(Allocation),
    /// This many bytes written into a reply slot of the peer.
    Placed(u64),
}

impl Arenas {
    pub(super) fn new(
        config: &LinkConfig,
        budget: SendQueueBudget,
        features: Features,
        now: Instant,
    ) -> Self {
        Self {
            landing: Landing::new(config.arena.clone(), now),
            slots: Slots::new(features.contains(Features::REPLY_SLOTS), config.reply_slot_bytes),
            arrived: None,
            writer: ArenaWriter::new(),
            blocked: false,
            staged: Staged::default(),
            threshold_bytes: config.arena_threshold_bytes.into(),
            segment_bytes: config.arena_segment_bytes.into(),
            max_writes: usize::from(budget.message_slots) - 1,
        }
    }

    /// For metrics.
    pub(super) fn ends(&self) -> (&ArenaOwner, &ArenaWriter) {
        (self.landing.owner(), &self.writer)
    }

    /// Where readers of streams report how far they have read.
    pub(super) fn home(&self) -> Arc<ReturnQueue> {
        self.landing.home()
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// What the current message waited for may be there.
    fn go_on(&mut self) {
        self.blocked = false;
    }

    /// Whether the application has given back something since [`Arenas::is_due`] was last asked.
    #[inline]
    pub(super) fn has_returns(&self) -> bool {
        self.landing.has_returns()
    }

    #[inline]
    pub(super) fn is_due(&mut self) -> bool {
        self.landing.collect();
        self.is_due_so_far()
    }

    /// The same without a look at what the application has returned since.
    #[inline]
    pub(super) fn is_due_so_far(&self) -> bool {
        self.landing.is_due() || self.writer.has_news()
    }

    pub(super) fn on_timeout(&mut self, now: Instant) {
        self.landing.on_timeout(now);
    }

    fn on_arena(&mut self, block: ArenaBlock) -> Result<(), ArenaError> {
        self.blocked = false;
        match block {
            ArenaBlock::Advertise(arena) => self.writer.on_advertise(arena),
            ArenaBlock::AskBack(arena) => self.writer.on_ask_back(arena),
            ArenaBlock::GivenUp(arena) => self.landing.on_given_up(arena),
        }
    }

    /// Bytes that the next segment writes into the slot of its message, if the message has one.
    fn placeable(&self, segmenter: &Segmenter, room: usize) -> Option<u64> {
        segmenter.message().filter(|_| self.max_writes > 0)?.place()?;
        // A head that does not fit a frame is sent first, as without a slot.
        segmenter.tail_offset(room)?;
        let bytes = segmenter.writable(room, self.segment_bytes, self.max_writes);
        (bytes > 0).then_some(bytes)
    }

    /// How many of the next `bytes` bytes to write may be a segment; `None` if it waits until they
    /// can be staged.
    fn fit(&mut self, segmenter: &Segmenter, frame_room: usize, bytes: u64) -> Option<u64> {
        let fit = self.staged.fit(segmenter, frame_room, bytes);
        self.blocked |= fit.is_none();
        fit
    }

    /// The peer will not write these slots again.
    fn on_done(&mut self, done: &[u32], freed: &mut Vec<Freed>) -> Result<(), ProtocolError> {
        for slot in done {
            freed.push(Freed::Slot(self.slots.close(*slot)?));
        }
        Ok(())
    }

    /// Prepends the header to a whole message, with its slot, and with releases if there is room.
    #[cold]
    fn prepend_blocks(&mut self, message: &mut OutBuf, stamp: &Stamp, frame_bytes: usize) {
        let slot = message.offer().and_then(|offer| self.slots.open(offer));
        let mut blocks = Blocks { slot, ..Blocks::default() };
        if message.len() + SEGMENT_PREFIX_MAX_BYTES <= frame_bytes {
            blocks.releases = self.landing.take_releases();
        }
        message.prepend(&blocks.to_prefix(Kind::Data, stamp.grant));
    }

    /// The blocks of a Release frame: everything the peer must be told and no message carries.
    fn release_blocks(&mut self) -> Blocks {
        let given_up = self.writer.poll_given_up().map(ArenaBlock::GivenUp);
        Blocks {
            arena: given_up.or_else(|| self.landing.next_news()),
            starved: self.writer.take_starved(),
            done: self.landing.take_done(),
            releases: self.landing.take_releases(),
            max_stream_data: self.landing.take_max_stream_data(),
            ..Blocks::default()
        }
    }
}

impl Link {
    /// Size of the arena that this end should allocate now for remote WRITEs, bytes. Answer with
    /// [`Link::add_arena`] or [`Link::decline_arena`].
    #[inline]
    #[must_use]
    pub fn wanted_arena(&self) -> Option<u64> {
        self.arenas.as_ref().and_then(|arenas| arenas.landing.wanted_bytes())
    }

    /// Adds an arena of the size that was wanted. Then transmit: it has to be advertised.
    ///
    /// # Errors
    /// [`ArenaError`] if none was wanted, or its address is out of range.
    pub fn add_arena(&mut self, region: MemoryRegion) -> Result<(), ArenaError> {
        let arenas = self.arenas.as_mut().ok_or(ArenaError::TooManyArenas)?;
        arenas.landing.add(region)
    }

    /// Reports that there is no memory for the arena that was wanted.
    pub fn decline_arena(&mut self) {
        if let Some(arenas) = &mut self.arenas {
            arenas.landing.decline();
        }
    }

    /// Whether a large message is being sent, or waits to be.
    #[inline]
    #[must_use]
    pub fn has_large(&self) -> bool {
        self.slices.has_begun()
            || self.segmenter.has_work()
            || !self.lanes.is_empty_lane(Lane::Bulk)
    }

    /// Sets how much of a large message is posted at once; this matters for a device that copies
    /// while it posts. Default [`SliceBytes::WHOLE`].
    pub fn set_slices(&mut self, bytes: SliceBytes) {
        self.slices.set_bytes(bytes);
    }

    /// Whether slices of large messages may be polled from now on although small messages are being
    /// sent. After polling without a turn, poll again with one if [`Link::awaits_turn`].
    pub fn set_turn(&mut self, turn: bool) {
        self.slices.set_turn(turn);
    }

    /// Whether large messages wait only for their turn, as far as this end knows.
    #[must_use]
    pub fn awaits_turn(&self) -> bool {
        self.has_large() && !self.slices.allow()
    }

    /// Sets the function that is called when enough payloads were dropped to call
    /// [`Link::poll_transmit`].
    pub fn set_on_return(&mut self, on_return: OnReturn) {
        if let Some(arenas) = &self.arenas {
            arenas.landing.set_on_return(on_return);
        }
    }

    /// What the bulk lane sends next; `None` if it waits for chunks, for the peer's reader, or for
    /// room to stage it.
    #[inline(never)]
    pub(super) fn next_bulk(&mut self) -> Option<Source> {
        if self.slices.has_begun() {
            return Some(Source::Slice);
        }
        if !self.segmenter.has_work() {
            match self.lanes.pop(Lane::Bulk) {
                None => return Some(Source::Nothing),
                Some(queued) if self.is_eager(&queued.message) => {
                    return Some(Source::Whole(queued.message, Lane::Bulk));
                }
                Some(queued) => self.segmenter.start(queued),
            }
        }
        let Some(arenas) = &mut self.arenas else {
            return Some(Source::Segment(SegmentPath::Inline));
        };
        if let Some(bytes) = arenas.placeable(&self.segmenter, self.room) {
            let bytes = arenas.fit(&self.segmenter, self.room, bytes)?;
            return Some(Source::Segment(SegmentPath::Placed(bytes)));
        }
        let total = self.segmenter.total();
        let is_small = total < arenas.threshold_bytes || arenas.max_writes == 0;
        if self.segmenter.is_abort_due() || is_small {
            return self.in_frame();
        }
        let max_parts = arenas.max_writes.div_ceil(2);
        let others_wait = !self.lanes.is_empty_lane(Lane::Bulk);
        let most = self.slices.segment_bytes(arenas.segment_bytes, others_wait);
        let bytes = self.segmenter.writable(self.room, most, max_parts);
        // Without an arena, each message asks for one once and is sent without waiting for it.
        let is_hopeless = arenas.writer.usable_count() == 0;
        if bytes == 0 || (is_hopeless && !self.segmenter.is_fresh()) {
            return self.in_frame();
        }
        let bytes =
            if is_hopeless { bytes } else { arenas.fit(&self.segmenter, self.room, bytes)? };
        match arenas.writer.allocate_within(bytes, arenas.max_writes + 1 - max_parts) {
            Some(allocation) => Some(Source::Segment(SegmentPath::Written(allocation))),
            None if is_hopeless => Some(Source::Segment(SegmentPath::Inline)),
            None => {
                arenas.blocked = true;
                None
            }
        }
    }

    /// Sends the next segment in a frame, or waits until the peer's reader accepts more.
    fn in_frame(&mut self) -> Option<Source> {
        let may_frame = self.segmenter.may_frame();
        if let (false, Some(arenas)) = (may_frame, &mut self.arenas) {
            arenas.blocked = true;
        }
        may_frame.then_some(Source::Segment(SegmentPath::Inline))
    }

    #[inline(never)]
    pub(super) fn send_segment(&mut self, way: SegmentPath) -> Option<Transmit<'_>> {
        let arenas = match way {
            SegmentPath::Inline => return self.send_inline_segment(),
            SegmentPath::Written(_) | SegmentPath::Placed(_) => self.arenas.as_mut()?,
        };
        let offer = self.segmenter.is_fresh().then(|| self.segmenter.message()?.offer()).flatten();
        let slot = offer.and_then(|offer| arenas.slots.open(offer));
        let mut blocks = Blocks { slot, ..Blocks::default() };
        let (bytes, runs) = match way {
            SegmentPath::Written(allocation) => {
                let to = |write: ArenaWrite| {
                    (RemoteSlice { address: write.address, rkey: write.rkey }, write.bytes)
                };
                let runs: Vec<_> = arenas.writer.writes(&allocation).map(to).collect();
                let bytes = allocation.bytes();
                let extents = arenas.writer.announce(allocation);
                blocks.written = Some(Written { bytes, extents });
                (bytes, runs)
            }
            SegmentPath::Placed(bytes) => {
                let place = self.segmenter.message()?.place()?;
                let at = self.segmenter.tail_offset(self.room)?;
                let address = place.address.wrapping_add(at);
                blocks.placed = Some(Placed { slot: place.slot, bytes });
                (bytes, vec![(RemoteSlice { address, rkey: place.rkey }, 0..bytes)])
            }
            SegmentPath::Inline => return None,
        };
        let WrittenSegment { tag, segment, payload, parts, message } =
            self.segmenter.next_written(self.room, bytes, blocks.placed.is_some())?;
        arenas.staged.on_sent(&parts);
        let (payload, puts) = (payload.to_vec(), puts(runs.into_iter(), parts).into());
        self.slices.begin(Begun { tag, segment, blocks, payload, puts, message });
        self.send_slice()
    }

    /// The next WRITEs of the segment that has begun; with the last of them its frame.
    #[inline(never)]
    pub(super) fn send_slice(&mut self) -> Option<Transmit<'_>> {
        let arenas = self.arenas.as_mut()?;
        let (writes, ended) = self.slices.next(arenas.max_writes)?;
        let slots = u16::try_from(writes.len()).unwrap_or(u16::MAX);
        let written = writes.iter().map(|put| put.part.len()).sum();
        // `next_source` has checked that the largest message fits.
        let Some(Begun { segment, mut blocks, payload, message, .. }) = ended else {
            let mut stamp = self.credits.write(slots)?;
            stamp.signaled |= self.bulk_window.on_written(stamp.mark, slots, written);
            return Some(Transmit { writes, ..Transmit::data(FrameBytes::Later, stamp) });
        };
        self.freed.push(Freed::Message(message));
        let number = self.sent;
        let mut stamp = self.credits.send(slots + 1)?;
        self.sent = number.wrapping_add(1);
        blocks.segment = Some(segment);
        blocks.releases = arenas.landing.take_releases();
        let mut frame = blocks.to_prefix(Kind::Data, stamp.grant);
        frame.extend_from_slice(&payload);
        self.bulk_window.on_sent(number, stamp.mark, slots + 1, written);
        // The memory of the parts is held until the completion.
        stamp.signaled = true;
        Some(Transmit { writes, ..Transmit::data(FrameBytes::Message(frame), stamp) })
    }

    fn send_inline_segment(&mut self) -> Option<Transmit<'_>> {
        let number = self.sent;
        let mut stamp = self.spend()?;
        let offer = self.segmenter.is_fresh().then(|| self.segmenter.message()?.offer()).flatten();
        let slot =
            self.arenas.as_mut().zip(offer).and_then(|(arenas, offer)| arenas.slots.open(offer));
        let less = if slot.is_some() { SLOT_BLOCK_BYTES } else { 0 };
        let (segment, cut) = self.segmenter.next(less)?;
        let header = frame::segment_header(stamp.grant, segment);
        let frame = match cut {
            Cut::Head(payload) if slot.is_some() => {
                let blocks = Blocks { segment: Some(segment), slot, ..Blocks::default() };
                let mut frame = blocks.to_prefix(Kind::Data, stamp.grant);
                frame.extend_from_slice(payload);
                FrameBytes::Message(frame)
            }
            Cut::Head(payload) => FrameBytes::Segment { header, payload },
            Cut::Tail(message, range) => FrameBytes::Message(gathered(&header, message, range)),
        };
        stamp.signaled |= self.bulk_window.on_sent(number, stamp.mark, 1, frame.len() as u64);
        Some(Transmit::data(frame, stamp))
    }

    /// A Release frame.
    pub(super) fn send_release(&mut self) -> Option<Transmit<'_>> {
        let stamp = self.spend()?;
        let blocks = self.arenas.as_mut()?.release_blocks();
        let frame = blocks.to_prefix(Kind::Release, stamp.grant);
        Some(Transmit::data(FrameBytes::Message(frame), stamp))
    }

    /// Prepends the header to a whole message, with releases if any wait and there is room.
    #[inline]
    pub(super) fn prepend_header(&mut self, message: &mut OutBuf, stamp: &Stamp) {
        match &mut self.arenas {
            Some(arenas) if arenas.landing.has_releases() || message.offer().is_some() => {
                arenas.prepend_blocks(message, stamp, self.frame_bytes as usize);
            }
            _ => message.prepend(&frame::header(Kind::Data, stamp.grant)),
        }
    }

    /// Handles a received Data or Release frame with blocks; its grant is already counted.
    pub(super) fn on_blocks(
        &mut self,
        now: Instant,
        blocks: &Blocks,
        payload: &[u8],
    ) -> Result<Inbound, ProtocolError> {
        let Some(arenas) = &mut self.arenas else {
            return Err(ProtocolError::NotAgreed("arena"));
        };
        if !blocks.releases.is_empty() {
            arenas.writer.on_release(&blocks.releases)?;
            arenas.blocked = false;
        }
        if let Some(arena) = blocks.arena {
            arenas.on_arena(arena)?;
        }
        if blocks.starved {
            arenas.landing.on_starved();
        }
        if let Some(max) = blocks.max_stream_data {
            self.segmenter.on_max_stream_data(max)?;
            arenas.blocked = false;
        }
        let slot = blocks.slot.map(|slot| arenas.landing.peer_slot(slot)).transpose()?;
        let Some(segment) = blocks.segment else {
            arenas.arrived = slot;
            return arenas.on_done(&blocks.done, &mut self.freed).map(|()| Inbound::None);
        };
        let written = blocks.written.as_ref();
        let placed = blocks.placed.map_or(0, |placed| placed.bytes);
        let bytes = written.map_or(placed, |written| written.bytes);
        self.assembly.check(segment, payload, bytes)?;
        if let Some(slot) = slot {
            self.assembly.on_slot(segment, slot)?;
        }
        let arrival = match (written, blocks.placed) {
            (None, None) => Arrival::Left(Vec::new()),
            (None, Some(placed)) => {
                let at = self.assembly.tail_offset(segment, payload)?;
                Arrival::Left(vec![arenas.slots.piece(placed, at)?])
            }
            (Some(written), _) => {
                let is_expected = segment.head_end && arenas.landing.expects_copy();
                let lendable = arenas.landing.lendable_bytes();
                let leave = self.assembly.leave(segment, lendable, is_expected);
                if segment.head_end && leave == Leave::No {
                    arenas.landing.on_unlendable(segment.total - segment.offset);
                }
                arenas.landing.on_written(now, written, leave)?
            }
        };
        let outcome = match arrival {
            Arrival::Left(pieces) => {
                let placed = blocks.placed.is_some();
                let how = if placed { assembly::Written::Placed } else { assembly::Written::Left };
                self.assembly.on_checked(segment, payload, pieces, how)
            }
            Arrival::ToCopy(pieces, landed) => {
                let outcome =
                    self.assembly.on_checked(segment, payload, pieces, assembly::Written::No);
                arenas.landing.release(landed);
                outcome
            }
        };
        // First: a reader that was taken out of its stream is woken, whatever is wrong with the slots.
        let inbound = outcome.map(|outcome| self.on_outcome(outcome));
        if let Some(arenas) = &mut self.arenas {
            arenas.on_done(&blocks.done, &mut self.freed)?;
        }
        inbound
    }

    /// Takes something the link no longer needs; drop it outside of any lock.
    #[inline]
    pub fn take_freed(&mut self) -> Option<Freed> {
        self.freed.pop()
    }

    /// Gives up every message that waits to be sent; those with a tail become [`Freed`].
    pub fn abandon_messages(&mut self) {
        let (begun, current) = (self.slices.take(), self.segmenter.take());
        self.freed.extend(begun.into_iter().chain(current).map(Freed::Message));
        for message in self.lanes.take_all() {
            self.throw_away(message);
        }
    }

    /// Drops a message that is not sent; one with a tail becomes [`Freed`].
    #[cold]
    pub(super) fn throw_away(&mut self, message: OutBuf) {
        if !message.tail().is_empty() {
            self.freed.push(Freed::Message(Arc::new(message)));
        }
    }

    /// The message that was arriving when the connection ended. Drop it outside of any lock: if it
    /// is read as a stream, the drop tells the reader.
    pub fn take_unfinished(&mut self) -> Option<Box<dyn Send>> {
        self.assembly.take_unfinished().map(|unfinished| Box::new(unfinished) as _)
    }

    /// Slots of this end that the peer may still write.
    #[must_use]
    pub fn open_slot_count(&self) -> usize {
        self.arenas.as_ref().map_or(0, |arenas| arenas.slots.open_count())
    }

    /// Keeps the reader to be woken, returns the message to be delivered.
    pub(super) fn on_outcome(&mut self, outcome: Outcome) -> Inbound {
        self.readers.extend(outcome.reader);
        outcome.message.map_or(Inbound::None, Inbound::Assembled)
    }

    /// Takes the waker of a stream's reader; wake it outside of any lock.
    #[inline]
    pub fn take_reader(&mut self) -> Option<Waker> {
        self.readers.pop()
    }

    pub(super) fn revoke_current(&mut self) -> Revoked {
        if let Some(arenas) = &mut self.arenas {
            arenas.blocked = false;
        }
        match self.segmenter.give_up() {
            GivenUp::Whole(message) => Revoked::Whole(message),
            GivenUp::Aborted(message) => {
                self.freed.extend(message.map(Freed::Message));
                Revoked::Aborted
            }
            GivenUp::Begun(message) => {
                self.freed.push(Freed::Message(message));
                Revoked::Begun
            }
        }
    }

    /// Bytes of the head that fit a frame beside the blocks of a written segment.
    pub(super) fn written_room(frame_bytes: u32) -> usize {
        (frame_bytes as usize).saturating_sub(SEGMENT_PREFIX_MAX_BYTES)
    }
}

/// Matches runs of the peer's memory with the parts that are written there.
fn puts(
    runs: impl Iterator<Item = (RemoteSlice, Range<u64>)>,
    parts: Vec<OutPart>,
) -> Vec<RemoteWrite> {
    let mut puts = Vec::with_capacity(parts.len());
    let mut parts = parts.into_iter();
    let mut left: Option<OutPart> = None;
    for (mut to, bytes) in runs {
        let mut room = bytes.end - bytes.start;
        while room > 0 {
            let Some(part) = left.take().or_else(|| parts.next()) else { return puts };
            let len = part.len().min(room);
            left = (len < part.len()).then(|| part.slice(len..part.len()));
            puts.push(RemoteWrite { part: part.slice(0..len), to });
            to.address = to.address.wrapping_add(len);
            room -= len;
        }
    }
    puts
}

/// A frame with a segment of the tail, copied: for a peer without an arena.
fn gathered(header: &[u8], message: &OutBuf, range: Range<u64>) -> OutBuf {
    let mut frame = OutBuf::new();
    frame.extend_from_slice(header);
    let mut at = 0;
    for part in message.tail() {
        let (start, end) = (range.start.max(at), range.end.min(at + part.len()));
        if start < end {
            part.append_to(start - at..end - at, frame.as_vec_mut());
        }
        at += part.len();
    }
    frame
}
