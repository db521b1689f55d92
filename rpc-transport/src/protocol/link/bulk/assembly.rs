//! Assembly: puts the received segments of a message together.
//!
//! Owns the one message that is arriving in segments. Never interprets its bytes.
//!
//! Invariants:
//! 1. A total above the limit is refused before anything is allocated. A message longer than
//!    `assembly_bytes` is not put together: its tail becomes a stream, unless all of the tail is
//!    written into a reply slot of this end.
//! 2. Memory reserved is at most twice what has arrived, or as much as the longest tail that has arrived whole,
//!    where the tail is [copied early](super::early_copies): bytes that a peer announces and never sends cost nothing that
//!    it has not sent before.
//! 3. Reserved memory is taken from the budget. If the budget has no room for a message, its bytes
//!    are dropped as they arrive. Only the first [`BEGINNING_BYTES`] of its head are kept, which
//!    the layer above needs to refuse it.
//! 4. Segments are contiguous and in order; messages are numbered consecutively.

use std::mem;

use std::sync::Arc;
use std::task::Waker;

use crate::memory::budget::{BudgetExhausted, HeldLarge, MemoryBudget, Reservation};
use crate::memory::pages;
use crate::message::payload::{Payload, Piece};
use crate::message::payload_stream::{StreamFeed, StreamHome};
use crate::message::received::{Message, Refusal};
use crate::message::reply_slot::PeerSlot;
use crate::protocol::error::ProtocolError;
use crate::protocol::frame::Segment;
use crate::protocol::link::bulk::early_copies::EarlyCopies;
use crate::protocol::link::bulk::return_queue::ReturnQueue;

pub(in crate::protocol::link) struct Assembly {
    max_message_bytes: u64,
    /// Messages up to this length are put together.
    assembly_bytes: u64,
    /// Where readers of streams report how far they have read, if the peer can be told.
    home: Option<Arc<ReturnQueue>>,
    /// The number of the message that is arriving, or of the next one.
    due: u32,
    partial: Option<Partial>,
    budget: MemoryBudget,
    early: EarlyCopies,
}

/// Bytes kept of the head of a refused message: enough for the fixed header of the layer above.
const BEGINNING_BYTES: usize = 256;

struct Partial {
    total: u64,
    received: u64,
    /// Length of the head, once it has ended.
    head_end: Option<u64>,
    /// The head once it has ended; from then on `bytes` are of the tail.
    head: Option<Vec<u8>>,
    /// Bytes in private memory that are not in `pieces` yet.
    bytes: Vec<u8>,
    /// The tail before `bytes`.
    pieces: Vec<Piece>,
    /// Bytes in the arena may stay there.
    lend: bool,
    /// They are copied early: so much may be reserved for them at once.
    early: Option<u64>,
    /// It counts among the large ones of the budget.
    large: Option<HeldLarge>,
    /// Set once the message has been delivered as a stream: takes its tail.
    feed: Option<StreamFeed>,
    /// The peer's slot for the reply.
    slot: Option<PeerSlot>,
    budget: MemoryBudget,
    /// What this message has reserved of the budget.
    charge: Option<Reservation>,
    /// Set if the budget has no room for it.
    refused: Option<BudgetExhausted>,
    /// Longer than `assembly_bytes`, but not a stream: all of its tail is written into a slot of
    /// this end.
    is_placed: bool,
    /// It was delivered as refused; the rest of it is dropped.
    is_delivered: bool,
}

/// Where the bytes lie that the peer wrote for a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::protocol::link) enum Written {
    /// There are none, or they are copied because their memory has to be released at once.
    No,
    /// In an arena, and they stay there.
    Left,
    /// In a slot that the receiver has offered, and they stay there.
    Placed,
}

/// Whether written bytes stay in the arena for the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::protocol::link) enum Leave {
    /// They are copied.
    No,
    /// The same, but they might stay: their reader would copy them.
    Early,
    /// They stay, counted against the application's share of the arenas.
    Lent,
    /// They stay until they are read; the sender waits for that.
    Streamed,
}

/// What a segment led to.
#[derive(Debug, Default)]
pub(in crate::protocol::link) struct Outcome {
    /// A message to deliver.
    pub(in crate::protocol::link) message: Option<Message>,
    /// Waker of a stream's reader; wake it outside of any lock.
    pub(in crate::protocol::link) reader: Option<Waker>,
}

impl Assembly {
    pub(in crate::protocol::link) fn new(
        max_message_bytes: u64,
        assembly_bytes: u64,
        home: Option<Arc<ReturnQueue>>,
    ) -> Self {
        let budget = MemoryBudget::unlimited();
        let early = EarlyCopies::default();
        Self { max_message_bytes, assembly_bytes, home, due: 0, partial: None, budget, early }
    }

    pub(in crate::protocol::link) fn set_budget(&mut self, budget: MemoryBudget) {
        self.budget = budget;
    }

    /// Bytes that have arrived of an unfinished message.
    pub(in crate::protocol::link) fn held_bytes(&self) -> u64 {
        self.partial.as_ref().map_or(0, |partial| partial.received)
    }

    #[cfg(test)]
    pub(in crate::protocol::link) fn reserved_bytes(&self) -> usize {
        {
            let head = |partial: &Partial| partial.head.as_ref().map_or(0, Vec::capacity);
            self.partial.as_ref().map_or(0, |partial| head(partial) + partial.bytes.capacity())
        }
    }

    /// Adds a segment whose bytes are all in its frame; returns the message that it completes.
    pub(in crate::protocol::link) fn on_segment(
        &mut self,
        segment: Segment,
        payload: &[u8],
    ) -> Result<Outcome, ProtocolError> {
        self.check(segment, payload, 0)?;
        self.on_checked(segment, payload, Vec::new(), Written::No)
    }

    /// Adds a segment that passed [`Assembly::check`]. `pieces` are the written bytes.
    pub(in crate::protocol::link) fn on_checked(
        &mut self,
        segment: Segment,
        payload: &[u8],
        pieces: Vec<Piece>,
        written: Written,
    ) -> Result<Outcome, ProtocolError> {
        if segment.abort {
            let partial = self.finish();
            let reader = partial.and_then(|partial| partial.feed).and_then(StreamFeed::abort);
            return Ok(Outcome { message: None, reader });
        }
        let (max, number) = (self.assembly_bytes, self.due);
        let partial = self.partial.get_or_insert_with(|| Partial::new(segment.total, &self.budget));
        if partial.is_placed && written != Written::Placed {
            return Err(ProtocolError::TailBesideSlot);
        }
        if let Some(feed) = &partial.feed {
            let framed = feed.on_framed(payload.len() as u64);
            framed.map_err(|(end, max)| ProtocolError::BeyondMaxStreamData { end, max })?;
        }
        partial.append(payload)?;
        let mut outcome = Outcome::default();
        if segment.head_end {
            partial.head_end = Some(partial.received);
            partial.head = Some(mem::take(&mut partial.bytes));
            // A tail in a slot of this end needs no other memory.
            partial.is_placed = written == Written::Placed && segment.total > max;
            if segment.total > max && !partial.is_placed {
                let home = self.home.as_ref().map(|home| (number, Arc::clone(home)));
                outcome.message = Some(partial.deliver_early(max, home));
            }
        }
        partial.consume(pieces, written != Written::No)?;
        if partial.head_end.is_none() && partial.received > max {
            return Err(ProtocolError::HeadTooLarge { received: partial.received, max });
        }
        outcome.reader = partial.feed_stream();
        if segment.last {
            match self.finish() {
                Some(Partial { feed: Some(feed), .. }) => {
                    outcome.reader = feed.finish().or(outcome.reader);
                }
                Some(Partial { is_delivered: true, .. }) => {}
                partial => {
                    self.early.on_whole(partial.as_ref().and_then(Partial::tail_bytes));
                    outcome.message = partial.map(Partial::into_message);
                }
            }
        }
        Ok(outcome)
    }

    /// A slot is advertised with a segment that passed [`Assembly::check`].
    pub(in crate::protocol::link) fn on_slot(
        &mut self,
        segment: Segment,
        slot: PeerSlot,
    ) -> Result<(), ProtocolError> {
        if segment.offset != 0 || segment.abort || self.partial.is_some() {
            return Err(ProtocolError::SlotMisplaced);
        }
        self.partial.get_or_insert_with(|| Partial::new(segment.total, &self.budget)).slot =
            Some(slot);
        Ok(())
    }

    /// Offset in the tail of the written bytes of a segment that passed [`Assembly::check`].
    pub(in crate::protocol::link) fn tail_offset(
        &self,
        segment: Segment,
        payload: &[u8],
    ) -> Result<u64, ProtocolError> {
        if segment.head_end {
            return Ok(0);
        }
        let head_end = self.partial.as_ref().and_then(|partial| partial.head_end);
        let head_end = head_end.ok_or(ProtocolError::PlacedHead)?;
        Ok(segment.offset + payload.len() as u64 - head_end)
    }

    /// Whether the written bytes of a segment, which has passed [`Assembly::check`], are better
    /// left where they are: those of a stream, and those of a tail that fits what the application
    /// may hold, unless they are copied early. A longer one is put together in one piece. Decided once a message.
    pub(in crate::protocol::link) fn leave(
        &mut self,
        segment: Segment,
        lendable_bytes: u64,
        is_copy_expected: bool,
    ) -> Leave {
        let max = self.assembly_bytes;
        let partial = self.partial.get_or_insert_with(|| Partial::new(segment.total, &self.budget));
        if segment.head_end {
            partial.lend = segment.total - segment.offset <= lendable_bytes;
            let (large, is_alone) = self.budget.hold_large();
            partial.large = Some(large);
            let may_stay = partial.lend && segment.total <= max;
            if is_alone && is_copy_expected && may_stay && !segment.last {
                partial.early = self.early.next();
            }
        }
        match segment.head_end || partial.head_end.is_some() {
            false => Leave::No,
            true if segment.total > max => Leave::Streamed,
            true if partial.early.is_some() => Leave::Early,
            true if partial.lend => Leave::Lent,
            true => Leave::No,
        }
    }

    /// Checks a segment against those before it; `written`: bytes that were written for it.
    pub(in crate::protocol::link) fn check(
        &self,
        segment: Segment,
        payload: &[u8],
        written: u64,
    ) -> Result<(), ProtocolError> {
        let Segment { number, last, abort, head_end, offset, total } = segment;
        if number != self.due {
            return Err(ProtocolError::WrongMessageNumber { number, expected: self.due });
        }
        if total > self.max_message_bytes {
            return Err(ProtocolError::MessageTooLarge { total, max: self.max_message_bytes });
        }
        if total == 0 {
            return Err(ProtocolError::EmptySegmentedMessage);
        }
        let received = self.held_bytes();
        if offset != received {
            return Err(ProtocolError::WrongOffset { offset, expected: received });
        }
        if let Some(first) = self.partial.as_ref().map(|partial| partial.total)
            && first != total
        {
            return Err(ProtocolError::TotalChanged { first, now: total });
        }
        match (abort, payload.len(), written) {
            (true, 0, 0) => return Ok(()),
            (true, len, _) => return Err(ProtocolError::AbortWithBytes(len)),
            (false, 0, 0) if !head_end => return Err(ProtocolError::EmptySegment),
            (false, ..) => {}
        }
        // No overflow: `offset` equals the bytes that have arrived.
        let head = offset + payload.len() as u64;
        let end = head.saturating_add(written);
        if end > total {
            return Err(ProtocolError::BeyondTotal { end, total });
        }
        self.check_order(segment, payload, written)?;
        if head_end {
            self.check_head_end(head, total)?;
        }
        if last != (end == total) {
            return Err(ProtocolError::WrongLast { last, end, total });
        }
        Ok(())
    }

    /// The payload comes before the written bytes. Only a segment in which the head ends can have
    /// both.
    fn check_order(
        &self,
        segment: Segment,
        payload: &[u8],
        written: u64,
    ) -> Result<(), ProtocolError> {
        if written > 0 && !payload.is_empty() && !segment.head_end {
            return Err(ProtocolError::PayloadBesideWritten);
        }
        Ok(())
    }

    /// Takes the message that was arriving.
    pub(in crate::protocol::link) fn take_unfinished(&mut self) -> Option<impl Send + use<>> {
        self.partial.take()
    }

    fn check_head_end(&self, end: u64, total: u64) -> Result<(), ProtocolError> {
        if let Some(at) = self.partial.as_ref().and_then(|partial| partial.head_end) {
            return Err(ProtocolError::HeadEndedTwice(at));
        }
        if end == total { Err(ProtocolError::HeadEndsAtTotal(total)) } else { Ok(()) }
    }

    fn finish(&mut self) -> Option<Partial> {
        self.due = self.due.wrapping_add(1);
        self.partial.take()
    }
}

impl Partial {
    fn new(total: u64, budget: &MemoryBudget) -> Self {
        Self {
            total,
            received: 0,
            head_end: None,
            head: None,
            bytes: Vec::new(),
            pieces: Vec::new(),
            lend: false,
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
    fn tail_bytes(&self) -> Option<u64> {
        self.head_end.map(|end| self.total - end)
    }

    /// Adds bytes of a frame.
    fn append(&mut self, payload: &[u8]) -> Result<(), ProtocolError> {
        self.reserve(payload.len())?;
        self.received += payload.len() as u64;
        let kept = if self.refused.is_none() {
            payload.len()
        } else {
            // Nothing of the tail is kept.
            let room = if self.head_end.is_some() { 0 } else { BEGINNING_BYTES };
            payload.len().min(room.saturating_sub(self.bytes.len()))
        };
        self.bytes.extend_from_slice(&payload[..kept]);
        Ok(())
    }

    /// The budget has no room: frees what has arrived, except the beginning of the head.
    #[cold]
    fn refuse(&mut self, reason: BudgetExhausted) {
        self.refused = Some(reason);
        self.pieces = Vec::new();
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
    fn deliver_early(
        &mut self,
        max_private_bytes: u64,
        home: Option<(u32, Arc<ReturnQueue>)>,
    ) -> Message {
        // It is never put together.
        self.large = None;
        let Some(reason) = self.refused else { return self.start_stream(max_private_bytes, home) };
        self.is_delivered = true;
        if let Some((number, home)) = home {
            // Nobody reads this stream, so let the sender send all of it.
            home.on_read(number, u64::MAX);
        }
        self.take_refused(reason)
    }

    fn take_refused(&mut self, reason: BudgetExhausted) -> Message {
        let tail_bytes = self.head_end.map_or(0, |end| self.total - end);
        let refusal = Refusal { reason, total_bytes: self.total, tail_bytes };
        let beginning = self.head.take().unwrap_or_else(|| mem::take(&mut self.bytes));
        Message::refused(beginning, refusal)
    }

    /// The message to deliver now, with its tail as a stream.
    fn start_stream(
        &mut self,
        max_private_bytes: u64,
        home: Option<(u32, Arc<ReturnQueue>)>,
    ) -> Message {
        let head = self.head.take().unwrap_or_default();
        let len = self.total - head.len() as u64;
        let (feed, stream) = StreamFeed::new(len, max_private_bytes);
        if let Some((number, home)) = home {
            feed.tell_sender(number, home);
        }
        self.feed = Some(feed);
        Message::private(head).with_stream(stream).with_slot(self.slot.take())
    }

    /// Passes what has arrived to the stream's reader, if the message is a stream.
    fn feed_stream(&mut self) -> Option<Waker> {
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

    fn consume(&mut self, pieces: Vec<Piece>, left: bool) -> Result<(), ProtocolError> {
        let len: usize = pieces.iter().map(Piece::len).sum();
        let stays = left && !pieces.is_empty();
        if !stays && self.refused.is_none() {
            self.reserve(len)?;
        }
        self.received += len as u64;
        if self.refused.is_some() {
            return Ok(());
        }
        if stays {
            self.close_run();
            self.pieces.extend(pieces);
            return Ok(());
        }
        for piece in pieces {
            piece.append_to(&mut self.bytes);
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
            let early = self.early.zip(self.tail_bytes()).map_or(0, |(most, tail)| most.min(tail));
            let early = usize::try_from(early).unwrap_or_default();
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

    fn into_message(mut self) -> Message {
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
        self.put_together().with_charge(charge)
    }

    fn put_together(mut self) -> Message {
        let slot = self.slot.take();
        let Some(head) = self.head.take() else {
            return Message::private(self.bytes).with_slot(slot);
        };
        self.close_run();
        let tail = Payload::from_pieces(self.pieces);
        Message::private(head).with_tail(Some(tail)).with_slot(slot)
    }
}

impl std::fmt::Debug for Assembly {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Assembly({} bytes of message {})", self.held_bytes(), self.due)
    }
}
