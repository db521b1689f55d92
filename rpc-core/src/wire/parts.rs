//! The PARTS block: the places in a body of the bytes that are sent in the message's tail.
//!
//! Byte strings may be taken out of a body and sent beside it, as the message's tail, which is how
//! large payloads are sent (`rpc-transport`). The block has the place of each in the body. With the
//! parts put back, the body is exactly the output of the codec, so a receiver need not know the
//! sender's choice.
//!
//! Invariants:
//! 1. `check` has seen every block that [`Parts::split`] reads: parts are not empty, are in order,
//!    lie within the body, and together are the whole tail.
//! 2. The block costs nothing on messages without a tail.

use rpc_transport::message::outgoing::OutBuf;

use super::{Kind, MAX_PARTS, WireError};

/// Size of one entry, bytes: u32 place, u64 length.
const ENTRY_BYTES: usize = 12;
/// Size of the count in front of the entries, bytes.
const COUNT_BYTES: usize = 2;

/// One byte string in the tail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The place of the bytes in the body as sent.
    pub at: u32,
    /// Length, bytes.
    pub len: u64,
}

/// Puts the PARTS block in front of a body; to be called before
/// [`prepend_metadata`](super::prepend_metadata). More than [`MAX_PARTS`] parts are a bug of the
/// caller.
pub fn prepend_parts(body: &mut OutBuf, parts: impl DoubleEndedIterator<Item = Part>) {
    let mut count: u16 = 0;
    for Part { at, len } in parts.rev() {
        let mut entry = [0; ENTRY_BYTES];
        entry[..4].copy_from_slice(&at.to_le_bytes());
        entry[4..].copy_from_slice(&len.to_le_bytes());
        body.prepend(&entry);
        count = count.saturating_add(1);
    }
    debug_assert!((1..=MAX_PARTS).contains(&count), "{count} parts in one message");
    body.prepend(&count.to_le_bytes());
}

/// Validates the block at the start of `rest`, which is followed by the body.
pub(super) fn check(kind: Kind, rest: &[u8], tail_bytes: u64) -> Result<(), WireError> {
    let (count, entries) = rest.split_first_chunk().ok_or(WireError::PartsTruncated)?;
    let count = u16::from_le_bytes(*count);
    if count == 0 {
        return Err(WireError::EmptyBlock(kind));
    }
    if count > MAX_PARTS {
        return Err(WireError::TooManyParts(count));
    }
    let table_bytes = usize::from(count) * ENTRY_BYTES;
    let (table, body) = entries.split_at_checked(table_bytes).ok_or(WireError::PartsTruncated)?;
    let (mut before, mut total) = (0, 0_u64);
    for Part { at, len } in entries_of(table) {
        if len == 0 {
            return Err(WireError::EmptyPart);
        }
        if at < before {
            return Err(WireError::PartsOutOfOrder);
        }
        if u64::from(at) > body.len() as u64 {
            return Err(WireError::PartBeyondBody { at, body_bytes: body.len() });
        }
        before = at;
        total = total.saturating_add(len);
    }
    if total == tail_bytes { Ok(()) } else { Err(WireError::TailMismatch { total, tail_bytes }) }
}

fn entries_of(table: &[u8]) -> impl DoubleEndedIterator<Item = Part> + '_ {
    table.chunks_exact(ENTRY_BYTES).map(part)
}

fn part(entry: &[u8]) -> Part {
    let (mut at, mut len) = ([0; 4], [0; 8]);
    at.copy_from_slice(&entry[..4]);
    len.copy_from_slice(&entry[4..ENTRY_BYTES]);
    Part { at: u32::from_le_bytes(at), len: u64::from_le_bytes(len) }
}

/// The parts of a message that was [parsed](super::parse_with_tail).
#[derive(Debug, Clone, Copy)]
pub struct Parts<'a> {
    table: &'a [u8],
}

impl<'a> Parts<'a> {
    /// Splits bytes that start with a PARTS block into the block and the body after it. Without a
    /// complete block, all of it is body.
    #[must_use]
    pub fn split(bytes: &'a [u8]) -> (Self, &'a [u8]) {
        let count = bytes.first_chunk().map_or(0, |count| usize::from(u16::from_le_bytes(*count)));
        let entries = bytes.get(COUNT_BYTES..).unwrap_or_default();
        let (table, body) = entries.split_at_checked(count * ENTRY_BYTES).unwrap_or((&[], bytes));
        (Self { table }, body)
    }

    /// The number of parts.
    #[must_use]
    pub fn count(&self) -> usize {
        self.table.len() / ENTRY_BYTES
    }

    /// The part at `index`.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<Part> {
        let start = index.checked_mul(ENTRY_BYTES)?;
        self.table.get(start..start.checked_add(ENTRY_BYTES)?).map(part)
    }

    /// All parts, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Part> + use<'a> {
        self.table.chunks_exact(ENTRY_BYTES).map(part)
    }
}
