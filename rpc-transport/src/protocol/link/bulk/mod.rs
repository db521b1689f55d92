//! The bulk lane of a link.
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
pub(in crate::protocol::link) mod landing_zone;
mod partial;
mod records;
pub(in crate::protocol::link) mod return_queue;
pub(in crate::protocol::link) mod scheduler;
pub(in crate::protocol::link) mod segmenter;
pub(in crate::protocol::link) mod slots;
pub(in crate::protocol::link) mod staged;
#[cfg(test)]
mod tests;

use self::assembly::{Arrived, Outcome, WrittenTo};
use self::landing_zone::LandingZone;
use self::return_queue::OnReturn;
use self::scheduler::{Begun, SliceBytes};
use self::segmenter::{Cut, GivenUp, Segmenter, WrittenSegment};
use self::staged::Staged;
use super::transmit::{FrameBytes, RemoteWrite, Transmit};
use super::{CopiesTail, Freed, Inbound, Lane, Link, Revoked, Source};
use crate::device::RemoteSlice;
use crate::memory::region::{MemoryRegion, MemoryWindow};
use crate::message::outgoing::OutBuf;
use crate::message::part::OutPart;
use crate::message::reply_slot::PeerSlot;
use crate::protocol::arena::{Allocation, ArenaBlock, ArenaError, ArenaWrite, ArenaWriter};
use crate::protocol::config::LinkConfig;
use crate::protocol::credit::SendQueueBudget;
use crate::protocol::error::ProtocolError;
use crate::protocol::frame::{
    self, Blocks, Kind, MAX_RECORDS, Placed, RECORD_BYTES, SEGMENT_PREFIX_MAX_BYTES,
    SLOT_BLOCK_BYTES, SlotBlock, Written,
};

/// How large messages are written into memory of the peer.
#[derive(Debug)]
pub(super) struct WritePath {
    arenas: ArenaWriter,
    staged: Staged,
    /// Messages of this size and more are sent by WRITE, bytes.
    threshold_bytes: u64,
    /// Most bytes of one segment, unless it is long.
    segment_bytes: u64,
    /// Most WRITEs of one segment; 0 if the SQ is too short for a WRITE and its SEND.
    max_writes: usize,
    /// What is written is sealed.
    is_sealed: bool,
}

/// How the next segment is sent.
pub(super) enum SegmentPath {
    /// All bytes in the frame.
    Inline,
    /// Written into these chunks in the peer's arena.
    Written(Allocation),
    /// This many bytes written into a reply slot of the peer.
    Placed(u64),
}

impl WritePath {
    pub(super) fn new(config: &LinkConfig, budget: SendQueueBudget) -> Self {
        Self {
            arenas: ArenaWriter::new(),
            staged: Staged::default(),
            threshold_bytes: config.arena_threshold_bytes.into(),
            segment_bytes: config.arena_segment_bytes.into(),
            max_writes: usize::from(budget.message_slots) - 1,
            is_sealed: false,
        }
    }

    /// What is written is copied and sealed, in as many records as a frame names.
    pub(super) fn seal(&mut self) {
        self.is_sealed = true;
        self.staged.stage_all();
        self.segment_bytes = self.segment_bytes.min((MAX_RECORDS * RECORD_BYTES) as u64);
    }

    /// The peer's arenas.
    pub(super) fn arenas(&self) -> &ArenaWriter {
        &self.arenas
    }

    /// Whether a Release frame has something to say about the peer's arenas.
    #[inline]
    pub(super) fn has_news(&self) -> bool {
        self.arenas.has_news()
    }

    /// Bytes that the next segment writes into the slot of its message, if the message has one.
    fn placeable(&self, segmenter: &Segmenter, room: usize) -> Option<u64> {
        segmenter.message().filter(|_| self.max_writes > 0)?.place()?;
        // A head that does not fit a frame is sent first, as without a slot.
        segmenter.tail_offset(room)?;
        let bytes = segmenter.writable(room, self.segment_bytes, self.max_writes);
        (bytes > 0).then_some(bytes)
    }
}

impl Link {
    /// Size of the arena that this end should allocate now for remote WRITEs, bytes. Answer with
    /// [`Link::add_arena`] or [`Link::decline_arena`].
    #[inline]
    #[must_use]
    pub fn wanted_arena(&self) -> Option<u64> {
        self.assembly.landing().and_then(LandingZone::wanted_bytes)
    }

    /// Adds an arena of the size that was wanted. Then transmit: it has to be advertised.
    ///
    /// # Errors
    /// [`ArenaError`] if none was wanted, or its address is out of range.
    pub fn add_arena(&mut self, region: MemoryRegion) -> Result<(), ArenaError> {
        self.assembly.landing_mut().ok_or(ArenaError::TooManyArenas)?.add(region)
    }

    /// As [`Link::add_arena`], for an arena that the peer writes through a window. Bind that before
    /// anything else is posted.
    ///
    /// # Errors
    /// As [`Link::add_arena`].
    pub fn add_window(&mut self, window: MemoryWindow) -> Result<(), ArenaError> {
        self.assembly.landing_mut().ok_or(ArenaError::TooManyArenas)?.add_window(window)
    }

    /// Reports that there is no memory for the arena that was wanted.
    pub fn decline_arena(&mut self) {
        if let Some(landing) = self.assembly.landing_mut() {
            landing.decline();
        }
    }

    /// Whether a large message is being sent, or waits to be.
    #[inline]
    #[must_use]
    pub fn has_large(&self) -> bool {
        self.bulk.has_begun() || self.segmenter.has_work() || !self.lanes.is_empty_lane(Lane::Bulk)
    }

    /// Sets how much of a large message is posted at once; this matters for a device that copies
    /// while it posts. Default [`SliceBytes::WHOLE`].
    pub fn set_slices(&mut self, bytes: SliceBytes) {
        let is_cut = self.is_sealed() && bytes != SliceBytes::WHOLE;
        self.bulk.set_slice_bytes(if is_cut { SliceBytes::SEALED } else { bytes });
    }

    /// Whether slices of large messages may be polled from now on although small messages are being
    /// sent. After polling without a turn, poll again with one if [`Link::awaits_turn`].
    pub fn set_turn(&mut self, turn: bool) {
        self.bulk.set_turn(turn);
    }

    /// Whether large messages wait only for their turn, as far as this end knows.
    #[must_use]
    pub fn awaits_turn(&self) -> bool {
        self.has_large() && !self.bulk.may_send()
    }

    /// Sets the function that is called when enough payloads were dropped to call
    /// [`Link::poll_transmit`].
    pub fn set_on_return(&mut self, on_return: OnReturn) {
        if let Some(landing) = self.assembly.landing() {
            landing.set_on_return(on_return);
        }
    }

    /// What the bulk lane sends next; `None` if it has to wait for chunks, for the peer's reader,
    /// or for room to stage it.
    #[inline(never)]
    pub(super) fn next_bulk(&mut self) -> Option<Source> {
        if self.bulk.has_begun() {
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
        let path = self.next_path();
        if path.is_none() {
            self.bulk.block();
        }
        path.map(Source::Segment)
    }

    /// How the next segment is sent; `None` if it has to wait.
    fn next_path(&mut self) -> Option<SegmentPath> {
        let (segmenter, room) = (&self.segmenter, self.room);
        let Some(path) = &mut self.write_path else { return Some(SegmentPath::Inline) };
        if let Some(bytes) = path.placeable(segmenter, room) {
            return path.staged.fit(segmenter, room, bytes).map(SegmentPath::Placed);
        }
        // The peer's reader may have to accept more first.
        let in_frame = || segmenter.may_frame().then_some(SegmentPath::Inline);
        let is_small = segmenter.total() < path.threshold_bytes || path.max_writes == 0;
        let is_head = path.is_sealed && segmenter.tail_offset(room).is_none();
        if segmenter.is_abort_due() || is_small || is_head {
            return in_frame();
        }
        let max_parts = path.max_writes.div_ceil(2);
        let others_wait = !self.lanes.is_empty_lane(Lane::Bulk);
        let most = self.bulk.segment_bytes(path.segment_bytes, others_wait);
        let mut bytes = segmenter.writable(room, most, max_parts);
        // Without an arena, each message asks for one once and is sent without waiting for it.
        let is_hopeless = path.arenas.usable_count() == 0;
        if bytes == 0 || (is_hopeless && !segmenter.is_fresh()) {
            return in_frame();
        }
        if !is_hopeless {
            bytes = path.staged.fit(segmenter, room, bytes)?;
        }
        match path.arenas.allocate_within(bytes, path.max_writes + 1 - max_parts) {
            Some(allocation) => Some(SegmentPath::Written(allocation)),
            None if is_hopeless => Some(SegmentPath::Inline),
            None => None,
        }
    }

    #[inline(never)]
    pub(super) fn send_segment(&mut self, path: SegmentPath) -> Option<Transmit<'_>> {
        if let SegmentPath::Inline = path {
            return self.send_inline_segment();
        }
        let mut blocks = Blocks { slot: self.open_slot(), ..Blocks::default() };
        let write_path = self.write_path.as_mut()?;
        let (bytes, runs) = match path {
            SegmentPath::Written(allocation) => {
                let to = |write: ArenaWrite| {
                    (RemoteSlice { address: write.address, rkey: write.rkey }, write.bytes)
                };
                let runs: Vec<_> = write_path.arenas.writes(&allocation).map(to).collect();
                let bytes = allocation.bytes();
                let extents = write_path.arenas.announce(allocation);
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
        write_path.staged.on_sent(&parts);
        let (payload, writes) = (payload.to_vec(), writes(runs, parts).into());
        self.bulk.begin(Begun { tag, segment, blocks, payload, writes, message });
        self.send_slice()
    }

    /// The next WRITEs of the segment that has begun; with the last of them its frame.
    #[inline(never)]
    pub(super) fn send_slice(&mut self) -> Option<Transmit<'_>> {
        let (writes, ended) = self.bulk.next_slice(self.write_path.as_ref()?.max_writes)?;
        let slots = u16::try_from(writes.len()).unwrap_or(u16::MAX);
        let written = writes.iter().map(|write| write.part.len()).sum();
        // `next_source` has checked that the largest message fits.
        let Some(Begun { segment, mut blocks, payload, message, .. }) = ended else {
            let mut stamp = self.credits.write(slots)?;
            stamp.signaled |= self.bulk.window_mut().on_written(stamp.mark, slots, written);
            return Some(Transmit { writes, ..Transmit::data(FrameBytes::Later, stamp) });
        };
        self.freed.push(Freed::Message(message));
        let number = self.sent;
        let mut stamp = self.credits.send(slots + 1)?;
        self.sent = number.wrapping_add(1);
        blocks.segment = Some(segment);
        blocks.releases = self.assembly.landing_mut()?.take_releases();
        let mut frame = blocks.to_prefix(Kind::Data, stamp.grant);
        let frame = if self.write_path.as_ref()?.is_sealed {
            FrameBytes::Written(Box::new((frame, payload)))
        } else {
            frame.extend_from_slice(&payload);
            FrameBytes::Message(frame)
        };
        self.bulk.window_mut().on_sent(number, stamp.mark, slots + 1, written);
        // The memory of the parts is held until the completion.
        stamp.signaled = true;
        Some(Transmit { writes, ..Transmit::data(frame, stamp) })
    }

    fn send_inline_segment(&mut self) -> Option<Transmit<'_>> {
        let number = self.sent;
        let mut stamp = self.spend()?;
        let slot = self.open_slot();
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
        stamp.signaled |= self.bulk.window_mut().on_sent(number, stamp.mark, 1, frame.len() as u64);
        Some(Transmit::data(frame, stamp))
    }

    /// Opens the reply slot of the message that is about to be sent, if it offers one.
    fn open_slot(&mut self) -> Option<SlotBlock> {
        let offer = self.segmenter.message().filter(|_| self.segmenter.is_fresh())?.offer()?;
        self.assembly.landing_mut()?.slots.open(offer)
    }

    /// A Release frame: everything the peer has to know that no message carries.
    pub(super) fn send_release(&mut self) -> Option<Transmit<'_>> {
        let stamp = self.spend()?;
        let (path, landing) = (self.write_path.as_mut()?, self.assembly.landing_mut()?);
        let given_up = path.arenas.poll_given_up().map(ArenaBlock::GivenUp);
        let blocks = Blocks {
            arena: given_up.or_else(|| landing.next_news()),
            starved: path.arenas.take_starved(),
            done: landing.take_done(),
            releases: landing.take_releases(),
            max_stream_data: landing.take_max_stream_data(),
            ..Blocks::default()
        };
        let frame = blocks.to_prefix(Kind::Release, stamp.grant);
        Some(Transmit::data(FrameBytes::Message(frame), stamp))
    }

    /// Handles a received Data or Release frame with blocks; its grant is already counted. The
    /// message of a Data frame without a segment begins at `payload_at` of `bytes`.
    pub(super) fn on_blocks(
        &mut self,
        now: Instant,
        blocks: &Blocks,
        bytes: &[u8],
        payload_at: usize,
        copies_tail: CopiesTail<'_>,
    ) -> Result<Inbound, ProtocolError> {
        let slot = self.on_arena_blocks(blocks)?;
        let inbound = match blocks.segment {
            Some(segment) => {
                let (payload, written) = (&bytes[payload_at..], WrittenTo::of(blocks));
                let arrived = Arrived { segment, payload, written, slot };
                self.on_segment(now, arrived, copies_tail)
            }
            None => Ok(Inbound::Message { payload_at, slot }),
        };
        // A reader that was taken out of its stream is woken, whatever is wrong with the slots.
        if let Some(landing) = self.assembly.landing_mut() {
            for slot in &blocks.done {
                self.freed.push(Freed::Slot(landing.slots.close(*slot)?));
            }
        }
        inbound
    }

    /// Handles the blocks that belong to no segment. Returns the slot that the peer offers.
    fn on_arena_blocks(&mut self, blocks: &Blocks) -> Result<Option<PeerSlot>, ProtocolError> {
        let (Some(path), Some(landing)) = (&mut self.write_path, self.assembly.landing_mut())
        else {
            return Err(ProtocolError::NotAgreed("arena"));
        };
        if !blocks.releases.is_empty() {
            path.arenas.on_release(&blocks.releases)?;
            self.bulk.unblock();
        }
        if let Some(arena) = blocks.arena {
            self.bulk.unblock();
            match arena {
                ArenaBlock::Advertise(arena) => path.arenas.on_advertise(arena)?,
                ArenaBlock::AskBack(arena) => path.arenas.on_ask_back(arena)?,
                ArenaBlock::GivenUp(arena) => landing.on_given_up(arena)?,
            }
        }
        if blocks.starved {
            landing.on_starved();
        }
        if let Some(max) = blocks.max_stream_data {
            self.segmenter.on_max_stream_data(max)?;
            self.bulk.unblock();
        }
        blocks.slot.map(|slot| landing.peer_slot(slot)).transpose()
    }

    /// Adds a segment to the message that is arriving.
    pub(super) fn on_segment(
        &mut self,
        now: Instant,
        arrived: Arrived<'_>,
        copies_tail: CopiesTail<'_>,
    ) -> Result<Inbound, ProtocolError> {
        let Outcome { message, reader } = self.assembly.on_segment(now, arrived, copies_tail)?;
        // The reader is woken outside of any lock.
        self.readers.extend(reader);
        Ok(message.map_or(Inbound::None, Inbound::Assembled))
    }

    /// Takes something the link no longer needs; drop it outside of any lock.
    #[inline]
    pub fn take_freed(&mut self) -> Option<Freed> {
        self.freed.pop()
    }

    /// Gives up every message that waits to be sent; those with a tail become [`Freed`].
    pub fn abandon_messages(&mut self) {
        let (begun, current) = (self.bulk.take(), self.segmenter.take());
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
    /// is read as a stream, the drop wakes the reader.
    pub fn take_unfinished(&mut self) -> Option<Box<dyn Send>> {
        self.assembly.take_unfinished().map(|unfinished| Box::new(unfinished) as _)
    }

    /// Slots of this end that the peer may still write.
    #[must_use]
    pub fn open_slot_count(&self) -> usize {
        self.assembly.landing().map_or(0, |landing| landing.slots.open_count())
    }

    /// Takes the waker of a stream's reader; wake it outside of any lock.
    #[inline]
    pub fn take_reader(&mut self) -> Option<Waker> {
        self.readers.pop()
    }

    pub(super) fn revoke_current(&mut self) -> Revoked {
        self.bulk.unblock();
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

/// Matches runs in the peer's memory with the parts that are written there.
fn writes(runs: Vec<(RemoteSlice, Range<u64>)>, parts: Vec<OutPart>) -> Vec<RemoteWrite> {
    let mut writes = Vec::with_capacity(parts.len());
    let mut parts = parts.into_iter();
    let mut left: Option<OutPart> = None;
    for (mut to, bytes) in runs {
        let mut room = bytes.end - bytes.start;
        while room > 0 {
            let Some(part) = left.take().or_else(|| parts.next()) else { return writes };
            let len = part.len().min(room);
            left = (len < part.len()).then(|| part.slice(len..part.len()));
            writes.push(RemoteWrite { part: part.slice(0..len), to });
            to.address = to.address.wrapping_add(len);
            room -= len;
        }
    }
    writes
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
