//! Slices: the WRITEs of one segment, handed out a little at a time.
//!
//! Owns the segment whose WRITEs have begun, and how much of it goes at once. A device that copies
//! what is posted, while it is posted, keeps everybody waiting meanwhile; so small messages leave
//! between two slices. Never spends a credit.
//!
//! Invariants:
//! 1. The frame of a segment leaves with its last slice, and no other segment starts before.
//! 2. While small messages are about, bulk leaves only when it is given a turn; it is not when
//!    they are not.
//! 3. Once the message of the segment has been revoked, nothing leaves before its frame: what the
//!    session says of the message must not arrive before it.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::message::outgoing::OutBuf;
use crate::protocol::frame::{Blocks, Segment};
use crate::protocol::link::transmit::RemoteWrite;

/// Most bytes that are posted of a large message at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SliceBytes {
    /// While small messages leave.
    pub beside_small: u64,
    /// While none do.
    pub alone: u64,
}

impl SliceBytes {
    /// For devices that post without copying: as much as a segment has.
    pub const WHOLE: Self = Self { beside_small: u64::MAX, alone: u64::MAX };
    /// For devices that copy while they post. Beside small messages about as much as takes as long
    /// as one of them there and back.
    pub const COPIED: Self = Self { beside_small: 16 << 10, alone: 256 << 10 };
}

/// Slices for which a small message that has left counts.
const SMALL_COUNTS: u8 = 64;

/// A segment of which not all has been written.
#[derive(Debug)]
pub(in crate::protocol::link) struct Begun {
    /// What the message was submitted as.
    pub(in crate::protocol::link) tag: u64,
    pub(in crate::protocol::link) segment: Segment,
    pub(in crate::protocol::link) blocks: Blocks,
    /// The end of the head, which goes in the frame.
    pub(in crate::protocol::link) payload: Vec<u8>,
    /// What is still to be written.
    pub(in crate::protocol::link) puts: VecDeque<RemoteWrite>,
    /// What the bytes are of: a slot that they go to is done only after their last WRITE.
    pub(in crate::protocol::link) message: Arc<OutBuf>,
}

#[derive(Debug)]
pub(in crate::protocol::link) struct Slices {
    begun: Option<Begun>,
    bytes: SliceBytes,
    /// Slices until small messages are forgotten.
    small: u8,
    /// Bulk may leave though small messages are about.
    turn: bool,
    /// The segment that has begun goes before all else.
    first: bool,
}

impl Slices {
    pub(in crate::protocol::link) fn new() -> Self {
        Self { begun: None, bytes: SliceBytes::WHOLE, small: 0, turn: true, first: false }
    }

    pub(in crate::protocol::link) fn set_bytes(&mut self, bytes: SliceBytes) {
        self.bytes = bytes;
    }

    /// A small message leaves.
    #[inline]
    pub(in crate::protocol::link) fn on_small(&mut self) {
        self.small = SMALL_COUNTS;
    }

    pub(in crate::protocol::link) fn set_turn(&mut self, turn: bool) {
        self.turn = turn;
    }

    /// Whether bulk may leave now (invariant 2).
    #[inline]
    pub(in crate::protocol::link) fn allow(&self) -> bool {
        self.first || self.turn || self.small == 0 || self.bytes == SliceBytes::WHOLE
    }

    /// The message is revoked: what has begun of it goes first (invariant 3).
    pub(in crate::protocol::link) fn on_revoked(&mut self, tag: u64) {
        self.first |= self.begun.as_ref().is_some_and(|begun| begun.tag == tag);
    }

    /// Whether what has begun goes before all else.
    #[inline]
    pub(in crate::protocol::link) fn is_first(&self) -> bool {
        self.first
    }

    /// Whether a segment has begun and not ended.
    #[inline]
    pub(in crate::protocol::link) fn has_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// Bytes of it that are not written.
    pub(in crate::protocol::link) fn unsent_bytes(&self) -> u64 {
        let puts = self.begun.iter().flat_map(|begun| &begun.puts);
        puts.map(|put| put.part.len()).sum()
    }

    pub(in crate::protocol::link) fn begin(&mut self, begun: Begun) {
        debug_assert!(self.begun.is_none(), "invariant 1");
        self.begun = Some(begun);
    }

    /// Gives away what the segment that has begun is of: nothing is written any more.
    pub(in crate::protocol::link) fn take(&mut self) -> Option<Arc<OutBuf>> {
        self.begun.take().map(|begun| begun.message)
    }

    /// The next WRITEs, at most `max_writes`, and the segment if they are its last.
    pub(in crate::protocol::link) fn next(
        &mut self,
        max_writes: usize,
    ) -> Option<(Vec<RemoteWrite>, Option<Begun>)> {
        let mut room = if self.small == 0 { self.bytes.alone } else { self.bytes.beside_small };
        self.small = self.small.saturating_sub(1);
        let begun = self.begun.as_mut()?;
        let mut puts = Vec::with_capacity(begun.puts.len().min(max_writes));
        while room > 0 && puts.len() < max_writes {
            let Some(mut put) = begun.puts.pop_front() else { break };
            if let Some(rest) = put.split_off(room) {
                begun.puts.push_front(rest);
            }
            room -= put.part.len();
            puts.push(put);
        }
        let ended = if begun.puts.is_empty() { self.begun.take() } else { None };
        self.first &= ended.is_none();
        Some((puts, ended))
    }
}
