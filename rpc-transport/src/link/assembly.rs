//! Assembly: segments put together to the message they are parts of.
//!
//! Owns the one message that is arriving in segments. Never looks at its bytes.
//!
//! Invariants:
//! 1. A total above the limit is refused before anything is allocated.
//! 2. Memory reserved is at most twice what has arrived: what a peer announces and never sends
//!    costs nothing.
//! 3. Segments are contiguous and in order; messages are numbered one by one.

use std::mem;

use crate::frame::Segment;
use crate::message::Message;
use crate::payload::Payload;
use crate::protocol_error::ProtocolError;

#[derive(Debug)]
pub(super) struct Assembly {
    max_message_bytes: u64,
    /// The number that the next first segment must have.
    due: u32,
    partial: Option<Partial>,
}

#[derive(Debug)]
struct Partial {
    total: u64,
    /// The head once it has ended, and then `bytes` are the tail's.
    head: Option<Vec<u8>>,
    bytes: Vec<u8>,
}

impl Assembly {
    pub(super) fn new(max_message_bytes: u64) -> Self {
        Self { max_message_bytes, due: 0, partial: None }
    }

    /// Bytes that have arrived of an unfinished message.
    pub(super) fn held_bytes(&self) -> usize {
        self.partial.as_ref().map_or(0, Partial::len)
    }

    #[cfg(test)]
    pub(super) fn reserved_bytes(&self) -> usize {
        {
            let head = |partial: &Partial| partial.head.as_ref().map_or(0, Vec::capacity);
            self.partial.as_ref().map_or(0, |partial| head(partial) + partial.bytes.capacity())
        }
    }

    /// Takes a segment; gives the message that it completes.
    pub(super) fn on_segment(
        &mut self,
        segment: Segment,
        payload: &[u8],
    ) -> Result<Option<Message>, ProtocolError> {
        self.check(segment, payload)?;
        if segment.abort {
            self.finish();
            return Ok(None);
        }
        let partial = self.partial.get_or_insert_with(|| Partial::new(segment.total));
        partial.append(payload)?;
        if segment.head_end {
            partial.head = Some(mem::take(&mut partial.bytes));
        }
        if segment.last { Ok(self.finish()) } else { Ok(None) }
    }

    fn check(&self, segment: Segment, payload: &[u8]) -> Result<(), ProtocolError> {
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
        let received = self.held_bytes() as u64;
        if offset != received {
            return Err(ProtocolError::WrongOffset { offset, expected: received });
        }
        if let Some(first) = self.partial.as_ref().map(|partial| partial.total)
            && first != total
        {
            return Err(ProtocolError::TotalChanged { first, now: total });
        }
        match (abort, payload.len()) {
            (true, 0) => return Ok(()),
            (true, len) => return Err(ProtocolError::AbortWithBytes(len)),
            (false, 0) if !head_end => return Err(ProtocolError::EmptySegment),
            (false, _) => {}
        }
        // No overflow: `offset` is the length of a Vec.
        let end = offset + payload.len() as u64;
        if end > total {
            return Err(ProtocolError::BeyondTotal { end, total });
        }
        if head_end {
            self.check_head_end(end, total)?;
        }
        if last != (end == total) {
            return Err(ProtocolError::WrongLast { last, end, total });
        }
        Ok(())
    }

    fn check_head_end(&self, end: u64, total: u64) -> Result<(), ProtocolError> {
        if let Some(head) = self.partial.as_ref().and_then(|partial| partial.head.as_ref()) {
            return Err(ProtocolError::HeadEndedTwice(head.len() as u64));
        }
        if end == total { Err(ProtocolError::HeadEndsAtTotal(total)) } else { Ok(()) }
    }

    fn finish(&mut self) -> Option<Message> {
        self.due = self.due.wrapping_add(1);
        let Partial { head, bytes, .. } = self.partial.take()?;
        Some(match head {
            None => Message::private(bytes),
            Some(head) => Message::private(head).with_tail(Some(Payload::private(bytes))),
        })
    }
}

impl Partial {
    fn new(total: u64) -> Self {
        Self { total, head: None, bytes: Vec::new() }
    }

    /// Bytes that have arrived.
    fn len(&self) -> usize {
        self.head.as_ref().map_or(0, Vec::len) + self.bytes.len()
    }

    fn append(&mut self, payload: &[u8]) -> Result<(), ProtocolError> {
        let needed = self.bytes.len() + payload.len();
        if needed > self.bytes.capacity() {
            let head = self.head.as_ref().map_or(0, Vec::len);
            let total = usize::try_from(self.total).unwrap_or(usize::MAX) - head;
            let wanted = needed.saturating_mul(2).min(total);
            self.bytes
                .try_reserve_exact(wanted - self.bytes.len())
                .map_err(|_| ProtocolError::OutOfMemory { received: needed as u64 })?;
        }
        self.bytes.extend_from_slice(payload);
        Ok(())
    }
}
