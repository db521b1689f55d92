//! A message that is arriving in segments: its bytes so far, and the memory that they take.
//!
//! Owns the bytes, and what they reserve of the budget. Never checks the order of segments. The
//! invariants are those of `assembly`.

use std::mem;
use std::sync::Arc;
use std::task::Waker;

use crate::memory::budget::{BudgetExhausted, HeldLarge, MemoryBudget, Reservation};
use crate::memory::pages;
use crate::message::early::EarlyTail;
use crate::message::payload::{Payload, Piece};
use crate::message::payload_stream::StreamFeed;
use crate::message::payload_stream::StreamProgress;
use crate::message::received::{Message, Refusal};
use crate::message::reply_slot::PeerSlot;
use crate::message::sealed::SealedPiece;
use crate::protocol::error::ProtocolError;
use crate::protocol::frame::Segment;
use crate::protocol::link::bulk::landing_zone::{LandingZone, Leave};
use crate::protocol::link::bulk::return_queue::ReturnQueue;
use crate::protocol::link::results::CopiesTail;

/// Bytes kept of the head of a refused message: enough for the fixed header of the layer above.
const BEGINNING_BYTES: usize = 256;

/// The message that is arriving.
pub(super) struct Partial {
    pub(super) total: u64,
    pub(super) received: u64,
    /// Length of the head, once it has ended.
    pub(super) head_end: Option<u64>,
    /// The head once it has ended; from then on `bytes` are of the tail.
    pub(super) head: Option<Vec<u8>>,
    /// Bytes in private memory that are not in `pieces` yet.
    pub(super) bytes: Vec<u8>,
    /// The tail before `bytes`.
    pieces: Vec<Piece>,
    /// What becomes of the bytes of its tail that lie in arenas.
    pub(super) leave: Leave,
    /// Opens its tail while it arrives.
    early: Option<Early>,
    /// It counts among the large ones of the budget.
    large: Option<HeldLarge>,
    /// Set once the message has been delivered as a stream: takes its tail.
    pub(super) feed: Option<StreamFeed>,
    /// The peer's slot for the reply.
    pub(super) slot: Option<PeerSlot>,
    budget: MemoryBudget,
    /// What this message has reserved of the budget.
    charge: Option<Reservation>,
    /// Set if the budget has no room for it.
    refused: Option<BudgetExhausted>,
    /// Longer than `assembly_bytes`, but not a stream: all of its tail is written into a slot of
    /// this end.
    is_placed: bool,
    /// It was delivered as refused; the rest of it is dropped.
    pub(super) is_delivered: bool,
}

/// The opening of a tail that arrives.
struct Early {
    tail: Arc<EarlyTail>,
    /// Reserved for it, bytes.
    room: u64,
    /// Bytes that are reserved at once.
    most: u64,
}

impl Partial {
    pub(super) fn new(total: u64, budget: &MemoryBudget) -> Self {
        Self {
            total,
            received: 0,
            head_end: None,
            head: None,
            bytes: Vec::new(),
            pieces: Vec::new(),
            leave: Leave::No,
            early: None,
            large: None,
            feed: None,
            slot: None,
            budget: budget.clone(),
            charge: None,
            refused: None,
            is_placed: false,
            is_delivered: false,
        }
    }

    /// Length of the tail, once the head has ended.
    pub(super) fn tail_bytes(&self) -> Option<u64> {
        self.head_end.map(|end| self.total - end)
    }

    /// Bytes of the tail that have arrived, once the head has ended.
    pub(super) fn tail_received(&self) -> Option<u64> {
        self.head_end.map(|end| self.received - end)
    }

    /// Whether its tail is read while it arrives. `max`: the `assembly_bytes`.
    pub(super) fn is_stream(&self, max: u64) -> bool {
        self.total > max && !self.is_placed
    }

    /// The head ends with what has arrived. `max`: the `assembly_bytes`. `in_slot`: the tail is
    /// written into a slot of this end.
    pub(super) fn end_head(&mut self, max: u64, in_slot: bool) {
        self.head_end = Some(self.received);
        self.head = Some(mem::take(&mut self.bytes));
        // A tail in a slot of this end needs no other memory.
        self.is_placed = in_slot && self.total > max;
        self.leave = if self.total > max { Leave::Streamed } else { Leave::No };
    }

    /// Decides what becomes of a tail that begins in an arena: it stays there if it is a stream, or
    /// if the application may hold all of it. `segment` is the one in which the head ends. Returns
    /// whether the tail could stay, but is better copied early (invariant 5).
    pub(super) fn decide(
        &mut self,
        segment: Segment,
        max: u64,
        landing: &mut LandingZone,
        copies_tail: CopiesTail<'_>,
    ) -> bool {
        if segment.total > max {
            return false;
        }
        let (large, is_alone) = self.budget.hold_large();
        self.large = Some(large);
        let bytes = segment.total - segment.offset;
        if bytes > landing.lendable_bytes() {
            landing.on_unlendable(bytes);
            return false;
        }
        self.leave = Leave::Lent;
        is_alone && !segment.last && self.head.as_deref().is_some_and(copies_tail)
    }

    /// Adds the bytes of a frame. `in_slot`: others were written into a slot of this end.
    pub(super) fn take_framed(
        &mut self,
        payload: &[u8],
        in_slot: bool,
    ) -> Result<(), ProtocolError> {
        if self.is_placed && !in_slot {
            return Err(ProtocolError::TailBesideSlot);
        }
        if let Some(feed) = &self.feed {
            let framed = feed.on_framed(payload.len() as u64);
            framed.map_err(|(end, max)| ProtocolError::BeyondMaxStreamData { end, max })?;
        }
        self.reserve(payload.len())?;
        self.received += payload.len() as u64;
        let kept = self.room().min(payload.len());
        self.bytes.extend_from_slice(&payload[..kept]);
        Ok(())
    }

    /// How many more private bytes are kept: of a refused message only the beginning of its head.
    fn room(&self) -> usize {
        match (self.refused, self.head_end) {
            (None, _) => usize::MAX,
            (Some(_), None) => BEGINNING_BYTES.saturating_sub(self.bytes.len()),
            (Some(_), Some(_)) => 0,
        }
    }

    /// The budget has no room: frees what has arrived, except the beginning of the head.
    #[cold]
    fn refuse(&mut self, reason: BudgetExhausted) {
        self.refused = Some(reason);
        self.pieces = Vec::new();
        self.early = None;
        let beginning = self.head.as_mut().unwrap_or(&mut self.bytes);
        beginning.truncate(BEGINNING_BYTES);
        beginning.shrink_to_fit();
        if self.head_end.is_some() {
            self.bytes = Vec::new();
        }
        self.charge = None;
    }

    /// Reserves `bytes` more of the budget; refuses the message if there is no room.
    fn take(&mut self, bytes: u64) {
        let taken = match &mut self.charge {
            Some(charge) => charge.grow(bytes),
            none => self.budget.reserve(bytes).map(|charge| *none = Some(charge)),
        };
        if let Err(reason) = taken {
            self.refuse(reason);
        }
    }

    /// The message to deliver when the head of one longer than `assembly_bytes` has ended. Its
    /// sender treats it as delivered from then on.
    pub(super) fn deliver_early(
        &mut self,
        max_private_bytes: u64,
        return_queue: Option<(u32, Arc<ReturnQueue>)>,
    ) -> Message {
        // It is never put together.
        self.large = None;
        if let Some(reason) = self.refused {
            self.is_delivered = true;
            if let Some((number, queue)) = return_queue {
                // Nobody reads this stream, so let the sender send all of it.
                queue.on_read(number, u64::MAX);
            }
            return self.take_refused(reason);
        }
        let head = self.head.take().unwrap_or_default();
        let len = self.total - head.len() as u64;
        let (feed, stream) = StreamFeed::new(len, max_private_bytes);
        if let Some((number, queue)) = return_queue {
            feed.report_to(number, queue);
        }
        self.feed = Some(feed);
        Message::private(head).with_stream(stream).with_slot(self.slot.take())
    }

    fn take_refused(&mut self, reason: BudgetExhausted) -> Message {
        let tail_bytes = self.head_end.map_or(0, |end| self.total - end);
        let refusal = Refusal { reason, total_bytes: self.total, tail_bytes };
        let beginning = self.head.take().unwrap_or_else(|| mem::take(&mut self.bytes));
        Message::refused(beginning, refusal)
    }

    /// Passes what has arrived to the stream's reader, if the message is a stream.
    pub(super) fn feed_stream(&mut self) -> Option<Waker> {
        self.feed.as_ref()?;
        self.close_run();
        let segment = Payload::from_pieces(mem::take(&mut self.pieces));
        let charge = self.charge.take();
        let feed = self.feed.as_ref()?;
        match self.refused {
            Some(reason) => feed.refuse(reason),
            None if segment.is_empty() => None,
            None => feed.push(segment, charge),
        }
    }

    /// From now on what arrives of the tail is opened, as its reader would copy it. `most`: bytes
    /// that are reserved for the tail at once.
    pub(super) fn open_early(&mut self, most: u64) {
        self.early = Some(Early { tail: Arc::new(EarlyTail::new()), room: 0, most });
    }

    /// Queues the bytes that are kept next, to be opened. Returns the waker that opens them; wake
    /// it outside of any lock.
    pub(super) fn open(&mut self, pieces: &[Piece]) -> Option<Waker> {
        let ([Piece::Sealed(sealed)], Some(early)) = (pieces, &mut self.early) else {
            return None;
        };
        let (at, tail) = (self.received - self.head_end?, self.total - self.head_end?);
        let needed = at + sealed.len() as u64;
        if needed > early.room {
            let more = (2 * needed).max(early.most).min(tail) - early.room;
            early.room += more;
            self.take(more);
        }
        let Early { tail, room, .. } = self.early.as_ref()?;
        let room = usize::try_from(*room).ok()?;
        let is_next = self.refused.is_none() && tail.push(at, sealed, room);
        is_next.then(|| Waker::from(Arc::clone(tail)))
    }

    /// Adds bytes that stay where they are.
    pub(super) fn keep(&mut self, pieces: Vec<Piece>) {
        self.received += total_len(&pieces) as u64;
        if self.refused.is_none() && !pieces.is_empty() {
            self.close_run();
            self.pieces.extend(pieces);
        }
    }

    /// Adds a copy of bytes.
    pub(super) fn copy(&mut self, pieces: &[Piece]) -> Result<(), ProtocolError> {
        if let [Piece::Sealed(sealed)] = pieces {
            return self.copy_sealed(sealed);
        }
        let len = total_len(pieces);
        self.reserve(len)?;
        self.received += len as u64;
        for piece in pieces {
            piece.append_here(self.room(), &mut self.bytes);
        }
        Ok(())
    }

    /// Adds a copy of bytes that their reader opens.
    fn copy_sealed(&mut self, sealed: &SealedPiece) -> Result<(), ProtocolError> {
        let len = sealed.len();
        self.received += len as u64;
        self.take(len as u64);
        if self.refused.is_none() {
            let mut room = Vec::new();
            let reserved = room.try_reserve_exact(len);
            reserved.map_err(|_| ProtocolError::OutOfMemory { received: self.received })?;
            self.close_run();
            self.pieces.push(Piece::Sealed(Arc::new(sealed.moved(room))));
        }
        Ok(())
    }

    /// Turns the private bytes that have arrived into a piece.
    fn close_run(&mut self) {
        if !self.bytes.is_empty() {
            self.pieces.push(Piece::Private(Arc::new(mem::take(&mut self.bytes))));
        }
    }

    /// Reserves room for `more` private bytes (invariant 2).
    fn reserve(&mut self, more: usize) -> Result<(), ProtocolError> {
        let needed = self.bytes.len() + more;
        if needed > self.bytes.capacity() && self.refused.is_none() {
            let left = usize::try_from(self.total - self.received).unwrap_or(usize::MAX);
            let whole = if self.feed.is_some() {
                needed
            } else {
                self.bytes.len().saturating_add(left.max(more))
            };
            let early = match (self.leave, self.tail_bytes()) {
                (Leave::Early(most), Some(tail)) => usize::try_from(most.min(tail)).unwrap_or(0),
                _ => 0,
            };
            let wanted = needed.saturating_mul(2).min(whole).max(early);
            self.take((wanted - self.bytes.capacity()) as u64);
            if self.refused.is_some() {
                return Ok(());
            }
            let before = self.bytes.capacity();
            self.bytes.try_reserve_exact(wanted - self.bytes.len()).map_err(|_| {
                ProtocolError::OutOfMemory { received: self.received + more as u64 }
            })?;
            pages::on_growth(&mut self.bytes, before);
        }
        Ok(())
    }

    pub(super) fn into_message(mut self) -> Message {
        // Bytes in the arenas are charged too: the reader will decode them into memory.
        let charged = self.charge.as_ref().map_or(0, Reservation::bytes);
        if self.refused.is_none() {
            self.take(self.total.saturating_sub(charged));
        }
        if let Some(reason) = self.refused {
            return self.take_refused(reason);
        }
        let large = self.large.take();
        let charge = self.charge.take().map(|charge| charge.holding(large));
        let message = if let Some(head) = self.head.take() {
            self.close_run();
            let early = self.early.map(|early| early.tail);
            let tail = Payload::from_arrived(self.pieces, early);
            Message::private(head).with_tail(Some(tail))
        } else {
            Message::private(self.bytes)
        };
        message.with_slot(self.slot).with_charge(charge)
    }
}

fn total_len(pieces: &[Piece]) -> usize {
    pieces.iter().map(Piece::len).sum()
}
