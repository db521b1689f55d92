//! Slices: the WRITEs of one segment, handed out in limited batches.
//!
//! Owns the segment whose WRITEs have begun, how many bytes of it are posted at once, and how long the next one
//! may be. Some devices copy the bytes while posting, and nothing else can be sent meanwhile; small messages are
//! therefore sent between two slices. Never spends a credit.
//!
//! Invariants:
//! 1. The frame of a segment is sent with its last slice, and no other segment starts before that.
//! 2. While small messages are being sent, bulk is sent only when it is given a turn; otherwise it
//!    needs none.
//! 3. Once the message of the segment has been revoked, no other frame is sent before the segment's
//!    frame: a frame of the session about that message must not arrive before it.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::message::outgoing::OutBuf;
use crate::protocol::frame::{Blocks, Segment};
use crate::protocol::link::transmit::RemoteWrite;

/// Most bytes of a large message that are posted at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SliceBytes {
    /// While small messages are being sent too.
    pub beside_small: u64,
    /// While none are.
    pub alone: u64,
}

impl SliceBytes {
    /// For devices that post without copying: a whole segment.
    pub const WHOLE: Self = Self { beside_small: u64::MAX, alone: u64::MAX };
    /// For devices that copy while they post. Beside small messages, copying a slice takes about as
    /// long as one round trip of a small message.
    pub const COPIED: Self = Self { beside_small: 16 << 10, alone: 256 << 10 };
}

/// A long segment has so many times the usual bytes.
const LONG_SEGMENT: u64 = 4;

/// For how many slices after a small message was sent `beside_small` applies.
const SMALL_COUNTS: u8 = 64;

/// A segment whose WRITEs have not all been handed out.
#[derive(Debug)]
pub(in crate::protocol::link) struct Begun {
    /// The tag that the message was submitted with.
    pub(in crate::protocol::link) tag: u64,
    pub(in crate::protocol::link) segment: Segment,
    pub(in crate::protocol::link) blocks: Blocks,
    /// The end of the head, which is sent in the frame.
    pub(in crate::protocol::link) payload: Vec<u8>,
    /// What is still to be written.
    pub(in crate::protocol::link) puts: VecDeque<RemoteWrite>,
    /// The message, kept until the last WRITE: a slot that it is written to is done only after
    /// that.
    pub(in crate::protocol::link) message: Arc<OutBuf>,
}

#[derive(Debug)]
pub(in crate::protocol::link) struct Slices {
    begun: Option<Begun>,
    bytes: SliceBytes,
    /// Slices left for which `beside_small` applies.
    small: u8,
    /// Bulk may be sent although small messages are being sent.
    turn: bool,
    /// The segment that has begun is sent before anything else.
    first: bool,
}

impl Slices {
    pub(in crate::protocol::link) fn new() -> Self {
        Self { begun: None, bytes: SliceBytes::WHOLE, small: 0, turn: true, first: false }
    }

    pub(in crate::protocol::link) fn set_bytes(&mut self, bytes: SliceBytes) {
        self.bytes = bytes;
    }

    /// A small message is sent.
    #[inline]
    pub(in crate::protocol::link) fn on_small(&mut self) {
        self.small = SMALL_COUNTS;
    }

    pub(in crate::protocol::link) fn set_turn(&mut self, turn: bool) {
        self.turn = turn;
    }

    /// Whether bulk may be sent now (invariant 2).
    #[inline]
    pub(in crate::protocol::link) fn allow(&self) -> bool {
        self.first || self.turn || self.small == 0 || self.bytes == SliceBytes::WHOLE
    }

    /// The message is revoked: its segment that has begun is sent first (invariant 3).
    pub(in crate::protocol::link) fn on_revoked(&mut self, tag: u64) {
        self.first |= self.begun.as_ref().is_some_and(|begun| begun.tag == tag);
    }

    /// Most bytes of the next segment. It is long where its copies overlap with those of other messages anyway, and
    /// where no small messages are being sent, whose receiver is busy longer with it.
    pub(in crate::protocol::link) fn segment_bytes(&self, usual: u64, others_wait: bool) -> u64 {
        let is_long = others_wait && self.small == 0 && self.bytes != SliceBytes::WHOLE;
        if is_long { LONG_SEGMENT * usual } else { usual }
    }

    /// Whether the segment that has begun is sent before anything else.
    #[inline]
    pub(in crate::protocol::link) fn is_first(&self) -> bool {
        self.first
    }

    /// Whether a segment has begun and not ended.
    #[inline]
    pub(in crate::protocol::link) fn has_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// Bytes of that segment for which no WRITE was handed out.
    pub(in crate::protocol::link) fn unsent_bytes(&self) -> u64 {
        let puts = self.begun.iter().flat_map(|begun| &begun.puts);
        puts.map(|put| put.part.len()).sum()
    }

    pub(in crate::protocol::link) fn begin(&mut self, begun: Begun) {
        debug_assert!(self.begun.is_none(), "invariant 1");
        self.begun = Some(begun);
    }

    /// Abandons the segment that has begun and returns its message; nothing more is written.
    pub(in crate::protocol::link) fn take(&mut self) -> Option<Arc<OutBuf>> {
        self.begun.take().map(|begun| begun.message)
    }

    /// The next WRITEs, at most `max_writes`, and the segment if these are its last ones.
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
