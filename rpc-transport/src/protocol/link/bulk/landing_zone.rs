//! The landing zone: the memory of this end that the peer writes into.
//!
//! Owns the regions of the arenas, the reply slots, and the record of what the application holds of
//! the arenas. Never allocates a region: it says when one is wanted.
//!
//! Invariant: a region is dropped only after the peer has given up its arena, or with the link.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::records::NamedRecords;
use super::return_queue::{ArenaLease, Back, OnReturn, ReturnQueue};
use super::slots::{MAX_OPEN, Slots};
use crate::memory::region::{MemoryRegion, MemoryWindow};
use crate::message::outgoing::OutBuf;
use crate::message::payload::Piece;
use crate::message::reply_slot::PeerSlot;
use crate::message::sealed::{Records, SealedPiece, Span};
use crate::protocol::arena::{ArenaBlock, ArenaConfig, ArenaError, ArenaOwner, Extents, Landed};
use crate::protocol::credit::Stamp;
use crate::protocol::error::ProtocolError;
use crate::protocol::frame::{
    Blocks, DONE_SLOTS, Kind, MaxStreamData, SEGMENT_PREFIX_MAX_BYTES, SlotBlock, Tags, Written,
};

#[derive(Debug)]
pub(in crate::protocol::link) struct LandingZone {
    owner: ArenaOwner,
    /// The keys of arenas that have one of their own.
    windows: Vec<(u16, MemoryWindow)>,
    /// Regions with their arena numbers.
    regions: Vec<(u16, MemoryRegion)>,
    /// The reply slots that this end has offered.
    pub(super) slots: Slots,
    /// What the peer has sealed.
    pub(in crate::protocol::link) records: NamedRecords,
    return_queue: Arc<ReturnQueue>,
    news: VecDeque<ArenaBlock>,
    /// Slots of the peer that are done and whose DONE was not sent yet.
    done: VecDeque<u32>,
    /// Number of slots of the peer, each from its advertisement until its DONE is sent.
    taken_slots: usize,
    /// How much the reader of a stream accepts now; `None` once it was sent to the peer.
    max_stream_data: Option<MaxStreamData>,
    /// Send releases even though few wait.
    flush: bool,
}

/// What becomes of bytes in an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::protocol::link) enum Leave {
    /// They are copied, and their chunks are released.
    No,
    /// They are copied although they could stay, as their reader would copy them. At most so many
    /// bytes are reserved for the tail at once.
    Early(u64),
    /// They stay, counted against the application's share of the arenas.
    Lent,
    /// They stay until they are read; the sender waits for that.
    Streamed,
}

/// The bytes that were written into the arenas for a segment.
pub(in crate::protocol::link) enum Arrival {
    /// The application holds them in place.
    Left(Vec<Piece>),
    /// They have to be copied out; then call [`LandingZone::release`].
    ToCopy(Vec<Piece>, Landed),
}

impl LandingZone {
    pub(in crate::protocol::link) fn new(config: ArenaConfig, slots: Slots, now: Instant) -> Self {
        Self {
            owner: ArenaOwner::new(config, now),
            windows: Vec::new(),
            regions: Vec::new(),
            slots,
            records: NamedRecords::default(),
            return_queue: Arc::default(),
            news: VecDeque::new(),
            done: VecDeque::new(),
            taken_slots: 0,
            max_stream_data: None,
            flush: false,
        }
    }

    /// Where readers of streams report how far they have read.
    pub(in crate::protocol::link) fn return_queue(&self) -> Arc<ReturnQueue> {
        Arc::clone(&self.return_queue)
    }

    pub(super) fn set_on_return(&self, on_return: OnReturn) {
        self.return_queue.set_on_return(on_return);
    }

    #[inline]
    pub(in crate::protocol::link) fn wanted_bytes(&self) -> Option<u64> {
        self.owner.wanted_bytes()
    }

    /// Adds an arena; it will be advertised.
    pub(in crate::protocol::link) fn add(
        &mut self,
        region: MemoryRegion,
    ) -> Result<(), ArenaError> {
        let advertisement = self.owner.add(region.remote_address(0), region.rkey())?;
        self.regions.push((advertisement.arena, region));
        self.news.push_back(ArenaBlock::Advertise(advertisement));
        Ok(())
    }

    /// Adds an arena that the peer writes through a window; that will be advertised.
    pub(in crate::protocol::link) fn add_window(
        &mut self,
        window: MemoryWindow,
    ) -> Result<(), ArenaError> {
        let region = window.region();
        let advertisement = self.owner.add(region.remote_address(0), window.rkey())?;
        self.regions.push((advertisement.arena, region.clone()));
        self.windows.push((advertisement.arena, window));
        self.news.push_back(ArenaBlock::Advertise(advertisement));
        Ok(())
    }

    pub(in crate::protocol::link) fn decline(&mut self) {
        self.owner.decline();
    }

    pub(in crate::protocol::link) fn on_starved(&mut self) {
        self.owner.on_starved();
        self.consume();
    }

    pub(in crate::protocol::link) fn on_given_up(&mut self, arena: u16) -> Result<(), ArenaError> {
        // The AskBack was not sent yet. Accepting would let a peer that guesses make arenas come
        // and go, and `news` grow without bound.
        if self.news.contains(&ArenaBlock::AskBack(arena)) {
            return Err(ArenaError::NotAskedBack(arena));
        }
        self.owner.on_given_up(arena)?;
        self.windows.retain(|(number, _)| *number != arena);
        self.regions.retain(|(number, _)| *number != arena);
        Ok(())
    }

    /// Whether a reader has found a record that failed its check.
    pub(in crate::protocol::link) fn has_forged_record(&self) -> bool {
        self.return_queue.has_forged_record()
    }

    /// A frame says that bytes were written, and are sealed if there are `tags`; `leave` says
    /// whether they stay there.
    pub(in crate::protocol::link) fn on_written(
        &mut self,
        now: Instant,
        written: &Written,
        tags: Option<&Tags>,
        leave: Leave,
    ) -> Result<Arrival, ProtocolError> {
        let records = tags.map(|tags| self.records.name(tags)).transpose()?;
        let mut landed = self.owner.on_message(now, written.extents, written.bytes)?;
        let mut pieces = match records {
            Some(records) => vec![self.sealed(&landed, records)],
            None => self.pieces(&landed),
        };
        let is_left = match leave {
            Leave::No | Leave::Early(_) => false,
            Leave::Lent => self.owner.lend(&mut landed),
            Leave::Streamed => true,
        };
        if !is_left {
            return Ok(Arrival::ToCopy(pieces, landed));
        }
        if let Some(last) = pieces.last_mut() {
            last.set_lease(Box::new(ArenaLease::new(landed, &self.return_queue)));
        }
        Ok(Arrival::Left(pieces))
    }

    fn pieces(&self, landed: &Landed) -> Vec<Piece> {
        let piece =
            |Span { region, offset, len }| Piece::Remote { region, offset, len, lease: None };
        self.spans(landed).map(piece).collect()
    }

    fn sealed(&self, landed: &Landed, records: Records) -> Piece {
        let reports = Arc::clone(&self.return_queue);
        let spans = self.spans(landed).collect();
        Piece::Sealed(Arc::new(SealedPiece::new(spans, records, reports)))
    }

    fn spans(&self, landed: &Landed) -> impl Iterator<Item = Span> {
        let span = |piece: crate::protocol::arena::Piece| {
            let (_, region) = self.regions.iter().find(|(number, _)| *number == piece.arena)?;
            let in_region = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
            let (offset, len) =
                (in_region(piece.offset), in_region(piece.bytes.end - piece.bytes.start));
            Some(Span { region: region.clone(), offset, len })
        };
        self.owner.pieces(landed).filter_map(span)
    }

    pub(in crate::protocol::link) fn release(&mut self, landed: Landed) {
        self.owner.release(landed);
    }

    /// A tail of `bytes` bytes is copied because the application holds too much.
    pub(in crate::protocol::link) fn on_unlendable(&mut self, bytes: u64) {
        self.owner.on_unlendable(bytes);
    }

    /// How many more bytes the application may hold.
    pub(in crate::protocol::link) fn lendable_bytes(&self) -> u64 {
        self.owner.lendable_bytes()
    }

    /// Whether the application has returned something that is not consumed.
    #[inline]
    pub(in crate::protocol::link) fn has_returns(&self) -> bool {
        self.return_queue.has_any()
    }

    /// Consumes what the application has returned.
    #[inline]
    pub(in crate::protocol::link) fn collect(&mut self) {
        if self.return_queue.has_any() {
            self.consume();
        }
    }

    fn consume(&mut self) {
        loop {
            let Back { landed, done, max_stream_data } = self.return_queue.take();
            self.done.extend(done);
            if let Some(max) = max_stream_data {
                self.max_stream_data = Some(max.latest(self.max_stream_data));
            }
            for landed in landed {
                self.owner.release(landed);
            }
            if self.return_queue.notify_at(self.owner.release_due_in()) {
                return;
            }
        }
    }

    /// Whether a Release frame should be sent if no message carries the blocks.
    #[inline]
    pub(in crate::protocol::link) fn is_due(&self) -> bool {
        !self.news.is_empty()
            || !self.done.is_empty()
            || self.max_stream_data.is_some()
            || self.owner.is_release_due()
            || self.flush
    }

    /// Slots for a DONE block.
    pub(in crate::protocol::link) fn take_done(&mut self) -> Vec<u32> {
        let count = self.done.len().min(DONE_SLOTS);
        self.taken_slots = self.taken_slots.saturating_sub(count);
        self.done.drain(..count).collect()
    }

    /// For a MAX_STREAM_DATA block.
    pub(super) fn take_max_stream_data(&mut self) -> Option<MaxStreamData> {
        self.max_stream_data.take()
    }

    /// A slot that the peer advertises.
    ///
    /// # Errors
    /// [`ProtocolError::TooManySlots`]: without this limit, the slots whose DONE waits to be sent
    /// would grow without bound.
    pub(in crate::protocol::link) fn peer_slot(
        &mut self,
        block: SlotBlock,
    ) -> Result<PeerSlot, ProtocolError> {
        if self.taken_slots >= MAX_OPEN {
            return Err(ProtocolError::TooManySlots(MAX_OPEN));
        }
        self.taken_slots += 1;
        let SlotBlock { slot, rkey, address, len } = block;
        let return_queue = Arc::clone(&self.return_queue);
        Ok(PeerSlot { slot, rkey, address, len, return_queue: Some(return_queue) })
    }

    /// Prepends the header to a whole message, with its slot, and with releases if there is room.
    #[cold]
    pub(in crate::protocol::link) fn prepend_blocks(
        &mut self,
        message: &mut OutBuf,
        stamp: &Stamp,
        frame_bytes: usize,
    ) {
        let slot = message.offer().and_then(|offer| self.slots.open(offer));
        let mut blocks = Blocks { slot, ..Blocks::default() };
        if message.len() + SEGMENT_PREFIX_MAX_BYTES <= frame_bytes {
            blocks.releases = self.take_releases();
        }
        message.prepend(&blocks.to_prefix(Kind::Data, stamp.grant));
    }

    pub(in crate::protocol::link) fn next_news(&mut self) -> Option<ArenaBlock> {
        self.news.pop_front()
    }

    /// Releases for the frame that is sent now.
    #[inline]
    pub(in crate::protocol::link) fn take_releases(&mut self) -> Extents {
        let releases = self.owner.take_releases();
        self.flush &= self.owner.releasing_count() > 0;
        releases
    }

    #[inline]
    pub(in crate::protocol::link) fn has_releases(&self) -> bool {
        self.owner.releasing_count() > 0
    }

    /// Handles timers: releases idle chunks to the peer, and asks an idle arena back from it.
    pub(in crate::protocol::link) fn on_timeout(&mut self, now: Instant) {
        self.consume();
        self.flush = self.has_releases();
        if let Some(arena) = self.owner.poll_ask_back(now) {
            self.news.push_back(ArenaBlock::AskBack(arena));
        }
    }

    pub(in crate::protocol::link) fn owner(&self) -> &ArenaOwner {
        &self.owner
    }
}
