//! Assembly: segments put together to the message they are parts of.
//!
//! Owns the one message that is arriving in segments. Never looks at its bytes.
//!
//! Invariants:
//! 1. A total above the limit is refused before anything is allocated. What is longer than
//!    `assembly_bytes` is not put together: its tail becomes a stream, unless it is written into a
//!    slot of this end's own, all of it.
//! 2. Memory reserved is at most twice what has arrived: what a peer announces and never sends
//!    costs nothing.
//! 3. What is reserved is taken from the budget. A message that there is no room for is dropped
//!    while it arrives, but for [`BEGINNING_BYTES`] of its head, by which the layer above can
//!    refuse it.
//! 4. Segments are contiguous and in order; messages are numbered one by one.

use std::mem;

use std::sync::Arc;
use std::task::Waker;

use crate::memory::budget::{BudgetExhausted, MemoryBudget, Reservation};
use crate::message::payload::{Payload, Piece};
use crate::message::payload_stream::{StreamFeed, StreamHome};
use crate::message::received::{Message, Refusal};
use crate::message::reply_slot::PeerSlot;
use crate::protocol::error::ProtocolError;
use crate::protocol::frame::Segment;
use crate::protocol::link::bulk::return_queue::ReturnQueue;

pub(in crate::protocol::link) struct Assembly {
    max_message_bytes: u64,
    /// Messages up to this length are put together.
    assembly_bytes: u64,
    /// Where readers of streams tell how far they are, if the peer can be told.
    home: Option<Arc<ReturnQueue>>,
    /// The number that the next first segment must have.
    due: u32,
    partial: Option<Partial>,
    budget: MemoryBudget,
}

/// What is kept of the head of a message that is refused: any fixed header, bytes.
const BEGINNING_BYTES: usize = 256;

struct Partial {
    total: u64,
    received: u64,
    /// Length of the head, once it has ended.
    head_end: Option<u64>,
    /// The head once it has ended, and then `bytes` are the tail's.
    head: Option<Vec<u8>>,
    /// Private bytes that are not in `pieces` yet.
    bytes: Vec<u8>,
    /// What the tail has before `bytes`.
    pieces: Vec<Piece>,
    /// What lies in the arena may stay there.
    lend: bool,
    /// The message has been delivered, and this is where its tail goes.
    feed: Option<StreamFeed>,
    /// For the answer.
    slot: Option<PeerSlot>,
    budget: MemoryBudget,
    /// What it takes of the budget.
    charge: Option<Reservation>,
    /// There is no room for it.
    refused: Option<BudgetExhausted>,
    /// Longer than what is put together, and all of its tail is written into the receiver's own
    /// slot.
    is_placed: bool,
    /// It was delivered as refused, and the rest of it is dropped.
    is_delivered: bool,
}

/// Where the bytes are that a segment brings beside its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::protocol::link) enum Written {
    /// In memory that is wanted back: they are copied. Or there are none.
    No,
    /// In an arena, where they stay.
    Left,
    /// In a slot that the receiver has offered, where they stay.
    Placed,
}

/// How written bytes are to be left to the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::protocol::link) enum Leave {
    /// Not at all: they are copied.
    No,
    /// Where they lie, within the application's share.
    Lent,
    /// Where they lie until they are read: the sender waits for it.
    Streamed,
}

/// What a segment led to.
#[derive(Debug, Default)]
pub(in crate::protocol::link) struct Outcome {
    /// A message to deliver.
    pub(in crate::protocol::link) message: Option<Message>,
    /// Who reads a stream, to be woken outside of any lock.
    pub(in crate::protocol::link) reader: Option<Waker>,
}

impl Assembly {
    pub(in crate::protocol::link) fn new(
        max_message_bytes: u64,
        assembly_bytes: u64,
        home: Option<Arc<ReturnQueue>>,
    ) -> Self {
        let budget = MemoryBudget::unlimited();
        Self { max_message_bytes, assembly_bytes, home, due: 0, partial: None, budget }
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

    /// Takes a segment whose bytes are all in its frame; gives the message that it completes.
    pub(in crate::protocol::link) fn on_segment(
        &mut self,
        segment: Segment,
        payload: &[u8],
    ) -> Result<Outcome, ProtocolError> {
        self.check(segment, payload, 0)?;
        self.on_checked(segment, payload, Vec::new(), Written::No)
    }

    /// Takes a segment that [`Assembly::check`] has passed. `pieces` are the written bytes.
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
            // What lies in the receiver's own slot needs no other memory.
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
                partial => outcome.message = partial.map(Partial::into_message),
            }
        }
        Ok(outcome)
    }

    /// A slot is advertised with a segment, which has passed [`Assembly::check`].
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

    /// Where in the tail the written bytes of a segment, which has passed [`Assembly::check`],
    /// start.
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
    /// may hold. A longer one is put together in one piece. Decided once a message.
    pub(in crate::protocol::link) fn leave(
        &mut self,
        segment: Segment,
        lendable_bytes: u64,
    ) -> Leave {
        let max = self.assembly_bytes;
        let partial = self.partial.get_or_insert_with(|| Partial::new(segment.total, &self.budget));
        if segment.head_end {
            partial.lend = segment.total - segment.offset <= lendable_bytes;
        }
        match segment.head_end || partial.head_end.is_some() {
            false => Leave::No,
            true if segment.total > max => Leave::Streamed,
            true if partial.lend => Leave::Lent,
            true => Leave::No,
        }
    }

    /// Checks a segment against those before it; `written` counts its bytes in the arena.
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
        // No overflow: `offset` is what has arrived.
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

    /// The payload comes first and what was written behind it: only where the head ends can a
    /// segment have both.
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

    /// What was arriving.
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
            feed: None,
            slot: None,
            budget: budget.clone(),
            charge: None,
            refused: None,
            is_placed: false,
            is_delivered: false,
        }
    }

    /// Takes bytes of a frame.
    fn append(&mut self, payload: &[u8]) -> Result<(), ProtocolError> {
        self.reserve(payload.len())?;
        self.received += payload.len() as u64;
        let kept = if self.refused.is_none() {
            payload.len()
        } else {
            // Of the tail nothing is kept.
            let room = if self.head_end.is_some() { 0 } else { BEGINNING_BYTES };
            payload.len().min(room.saturating_sub(self.bytes.len()))
        };
        self.bytes.extend_from_slice(&payload[..kept]);
        Ok(())
    }

    /// There is no room for it: gives up what has arrived, but for the beginning of the head.
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

    /// Takes so much more of the budget; what there is no room for is refused.
    fn take(&mut self, bytes: u64) {
        let taken = match &mut self.charge {
            Some(charge) => charge.grow(bytes),
            none => self.budget.reserve(bytes).map(|charge| *none = Some(charge)),
        };
        if let Err(reason) = taken {
            self.refuse(reason);
        }
    }

    /// The message, which is longer than what is put together, where its head has ended: its sender
    /// takes it for delivered then.
    fn deliver_early(
        &mut self,
        max_private_bytes: u64,
        home: Option<(u32, Arc<ReturnQueue>)>,
    ) -> Message {
        let Some(reason) = self.refused else { return self.start_stream(max_private_bytes, home) };
        self.is_delivered = true;
        if let Some((number, home)) = home {
            // Nobody reads it, so nobody would let the sender go on.
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

    /// The message, to be delivered now; its tail follows.
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

    /// Hands what has arrived to who reads the stream, if it is one.
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
        self.received += len as u64;
        if self.refused.is_some() {
            return Ok(());
        }
        if left && !pieces.is_empty() {
            self.close_run();
            self.pieces.extend(pieces);
            return Ok(());
        }
        self.reserve(len)?;
        if self.refused.is_none() {
            for piece in pieces {
                piece.append_to(&mut self.bytes);
            }
        }
        Ok(())
    }

    /// Makes a piece of the private bytes that have arrived.
    fn close_run(&mut self) {
        if !self.bytes.is_empty() {
            self.pieces.push(Piece::Private(Arc::new(mem::take(&mut self.bytes))));
        }
    }

    /// Room for `more` private bytes: at most twice what has arrived (invariant 2).
    fn reserve(&mut self, more: usize) -> Result<(), ProtocolError> {
        let needed = self.bytes.len() + more;
        if needed > self.bytes.capacity() && self.refused.is_none() {
            let left = usize::try_from(self.total - self.received).unwrap_or(usize::MAX);
            let whole = if self.feed.is_some() {
                needed
            } else {
                self.bytes.len().saturating_add(left.max(more))
            };
            let wanted = needed.saturating_mul(2).min(whole);
            self.take((wanted - self.bytes.capacity()) as u64);
            if self.refused.is_some() {
                return Ok(());
            }
            self.bytes.try_reserve_exact(wanted - self.bytes.len()).map_err(|_| {
                ProtocolError::OutOfMemory { received: self.received + more as u64 }
            })?;
        }
        Ok(())
    }

    fn into_message(mut self) -> Message {
        // What lies in the arenas is the message's too: its reader makes something of it.
        let charged = self.charge.as_ref().map_or(0, Reservation::bytes);
        if self.refused.is_none() {
            self.take(self.total.saturating_sub(charged));
        }
        if let Some(reason) = self.refused {
            return self.take_refused(reason);
        }
        let charge = self.charge.take();
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
