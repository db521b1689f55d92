//! Assembly: puts the received segments of a message together.
//!
//! Owns the one message that is arriving in segments. Never interprets its bytes.
//!
//! Invariants:
//! 1. A total above the limit is refused before anything is allocated. A message longer than
//!    `assembly_bytes` is not put together: its tail becomes a stream, unless all of the tail is
//!    written into a reply slot of this end.
//! 2. Memory reserved is at most twice what has arrived, or as much as the longest tail that has
//!    arrived whole, where the tail is copied early: bytes that a peer announces and never sends
//!    cost nothing that it has not sent before.
//! 3. Reserved memory is taken from the budget. If the budget has no room for a message, its bytes
//!    are dropped as they arrive. Only the beginning of its head is kept, which the layer above
//!    needs to refuse it.
//! 4. Segments are contiguous and in order; messages are numbered consecutively.
//! 5. A tail whose reader would copy it is copied while it arrives, so that the two copies overlap
//!    and its chunks are free sooner. An encrypted one is opened while it arrives, by who is woken
//!    for that, and its chunks stay. But only if its message is the only large one of all
//!    connections that share a budget. Several such tails at once would have their memory in
//!    addition to that of others that are decoded. Allocators give what is free after such a peak
//!    back to the system, and each page of the next tails would be a fault.

use std::task::Waker;
use std::time::Instant;

use crate::memory::budget::MemoryBudget;
use crate::message::payload_stream::StreamFeed;
use crate::message::received::Message;
use crate::message::reply_slot::PeerSlot;
use crate::protocol::error::ProtocolError;
use crate::protocol::frame::{Blocks, Placed, Segment, Tags, Written};
use crate::protocol::link::bulk::landing_zone::{Arrival, LandingZone, Leave};
use crate::protocol::link::bulk::partial::Partial;
use crate::protocol::link::results::CopiesTail;

pub(in crate::protocol::link) struct Assembly {
    max_message_bytes: u64,
    /// Messages up to this length are put together.
    assembly_bytes: u64,
    /// The memory of this end that the peer writes into, if the handshake agreed on it.
    landing: Option<Box<LandingZone>>,
    /// The number of the message that is arriving, or of the next one.
    due: u32,
    partial: Option<Partial>,
    budget: MemoryBudget,
    /// The longest tail that has arrived whole, bytes.
    longest_tail: u64,
}

/// What a frame carries of a message.
#[derive(Debug)]
pub(in crate::protocol::link) struct Arrived<'a> {
    pub(in crate::protocol::link) segment: Segment,
    /// The bytes in the frame.
    pub(in crate::protocol::link) payload: &'a [u8],
    /// Where the bytes behind these lie.
    pub(in crate::protocol::link) written: WrittenTo<'a>,
    /// The peer's slot for the reply, if the frame advertises one.
    pub(in crate::protocol::link) slot: Option<PeerSlot>,
}

/// Where the peer wrote the bytes of a segment that are not in its frame.
#[derive(Debug, Clone, Copy)]
pub(in crate::protocol::link) enum WrittenTo<'a> {
    /// All bytes are in the frame.
    Nowhere,
    /// Into arenas.
    Arena(&'a Written, Option<&'a Tags>),
    /// Into a reply slot of this end.
    Slot(Placed),
}

impl<'a> WrittenTo<'a> {
    /// What the blocks of a frame say.
    pub(in crate::protocol::link) fn of(blocks: &'a Blocks) -> Self {
        match (&blocks.written, blocks.placed) {
            (Some(written), _) => Self::Arena(written, blocks.tags.as_deref()),
            (None, Some(placed)) => Self::Slot(placed),
            (None, None) => Self::Nowhere,
        }
    }

    fn bytes(self) -> u64 {
        match self {
            Self::Nowhere => 0,
            Self::Arena(written, _) => written.bytes,
            Self::Slot(placed) => placed.bytes,
        }
    }
}

/// What a segment led to.
#[derive(Debug, Default)]
pub(in crate::protocol::link) struct Outcome {
    /// A message to deliver.
    pub(in crate::protocol::link) message: Option<Message>,
    /// Waker of a stream's reader, or one that opens a tail; wake it outside of any lock.
    pub(in crate::protocol::link) reader: Option<Waker>,
}

impl Assembly {
    /// `landing`: the memory of this end that the peer writes into, if the handshake agreed on it.
    pub(in crate::protocol::link) fn new(
        max_message_bytes: u64,
        assembly_bytes: u64,
        landing: Option<LandingZone>,
    ) -> Self {
        let budget = MemoryBudget::unlimited();
        let landing = landing.map(Box::new);
        let (due, partial, longest_tail) = (0, None, 0);
        Self { max_message_bytes, assembly_bytes, landing, due, partial, budget, longest_tail }
    }

    #[inline]
    pub(in crate::protocol::link) fn landing(&self) -> Option<&LandingZone> {
        self.landing.as_deref()
    }

    #[inline]
    pub(in crate::protocol::link) fn landing_mut(&mut self) -> Option<&mut LandingZone> {
        self.landing.as_deref_mut()
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
        let head = |partial: &Partial| partial.head.as_ref().map_or(0, Vec::capacity);
        self.partial.as_ref().map_or(0, |partial| head(partial) + partial.bytes.capacity())
    }

    /// Adds a segment. Returns the message that it completes, or that becomes a stream with it.
    /// `copies_tail` is asked when a head has ended.
    ///
    /// # Errors
    /// The rule that the peer broke.
    pub(in crate::protocol::link) fn on_segment(
        &mut self,
        now: Instant,
        arrived: Arrived<'_>,
        copies_tail: CopiesTail<'_>,
    ) -> Result<Outcome, ProtocolError> {
        let Arrived { segment, payload, written, slot } = arrived;
        self.check(segment, payload, written.bytes())?;
        if let Some(slot) = slot {
            self.take_slot(segment, slot)?;
        }
        if segment.abort {
            let partial = self.finish();
            let reader = partial.and_then(|partial| partial.feed).and_then(StreamFeed::abort);
            return Ok(Outcome { message: None, reader });
        }
        let (max, number, longest_tail) = (self.assembly_bytes, self.due, self.longest_tail);
        let Self { landing, partial, budget, .. } = self;
        let mut landing = landing.as_deref_mut();
        let partial = partial.get_or_insert_with(|| Partial::new(segment.total, budget));
        let in_slot = matches!(written, WrittenTo::Slot(_));
        partial.take_framed(payload, in_slot)?;
        if segment.head_end {
            partial.end_head(max, in_slot);
        }
        let arrival = match (written, &mut landing) {
            (WrittenTo::Nowhere, _) => Arrival::Left(Vec::new()),
            (_, None) => return Err(ProtocolError::NotAgreed("arena")),
            (WrittenTo::Slot(placed), Some(landing)) => {
                let at = partial.tail_received().ok_or(ProtocolError::PlacedHead)?;
                Arrival::Left(vec![landing.slots.piece(placed, at)?])
            }
            (WrittenTo::Arena(written, tags), Some(landing)) => {
                if tags.is_some() && partial.head_end.is_none() {
                    return Err(ProtocolError::HeadInRecords);
                }
                if segment.head_end && partial.decide(segment, max, landing, copies_tail) {
                    match tags {
                        None => partial.leave = Leave::Early(longest_tail),
                        // Nothing is opened in here.
                        Some(_) => partial.open_early(longest_tail),
                    }
                }
                landing.on_written(now, written, tags, partial.leave)?
            }
        };
        let mut outcome = Outcome::default();
        if segment.head_end && partial.is_stream(max) {
            let queue = landing.as_ref().map(|landing| (number, landing.return_queue()));
            outcome.message = Some(partial.deliver_early(max, queue));
        }
        match (arrival, landing) {
            (Arrival::ToCopy(pieces, landed), Some(landing)) => {
                let copied = partial.copy(&pieces);
                landing.release(landed);
                copied?;
            }
            (Arrival::ToCopy(..), None) => {}
            (Arrival::Left(pieces), _) => {
                outcome.reader = partial.open(&pieces);
                partial.keep(pieces);
            }
        }
        if partial.head_end.is_none() && partial.received > max {
            return Err(ProtocolError::HeadTooLarge { received: partial.received, max });
        }
        outcome.reader = partial.feed_stream().or(outcome.reader);
        if segment.last {
            match self.finish() {
                Some(Partial { feed: Some(feed), .. }) => {
                    outcome.reader = feed.finish().or(outcome.reader.take());
                }
                Some(Partial { is_delivered: true, .. }) => {}
                partial => {
                    let tail = partial.as_ref().and_then(Partial::tail_bytes);
                    self.longest_tail = self.longest_tail.max(tail.unwrap_or_default());
                    outcome.message = partial.map(Partial::into_message);
                }
            }
        }
        Ok(outcome)
    }

    /// A slot is advertised with a segment that passed [`Assembly::check`].
    fn take_slot(&mut self, segment: Segment, slot: PeerSlot) -> Result<(), ProtocolError> {
        if segment.offset != 0 || segment.abort || self.partial.is_some() {
            return Err(ProtocolError::SlotMisplaced);
        }
        self.partial.get_or_insert_with(|| Partial::new(segment.total, &self.budget)).slot =
            Some(slot);
        Ok(())
    }

    /// Checks a segment against those before it; `written`: bytes that were written for it.
    fn check(&self, segment: Segment, payload: &[u8], written: u64) -> Result<(), ProtocolError> {
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
        // The payload comes before the written bytes. Only a segment in which the head ends can
        // have both.
        if written > 0 && !payload.is_empty() && !head_end {
            return Err(ProtocolError::PayloadBesideWritten);
        }
        if head_end {
            if let Some(at) = self.partial.as_ref().and_then(|partial| partial.head_end) {
                return Err(ProtocolError::HeadEndedTwice(at));
            }
            if head == total {
                return Err(ProtocolError::HeadEndsAtTotal(total));
            }
        }
        if last != (end == total) {
            return Err(ProtocolError::WrongLast { last, end, total });
        }
        Ok(())
    }

    /// Takes the message that was arriving.
    pub(in crate::protocol::link) fn take_unfinished(&mut self) -> Option<impl Send + use<>> {
        self.partial.take()
    }

    fn finish(&mut self) -> Option<Partial> {
        self.due = self.due.wrapping_add(1);
        self.partial.take()
    }
}

impl std::fmt::Debug for Assembly {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Assembly({} bytes of message {})", self.held_bytes(), self.due)
    }
}
