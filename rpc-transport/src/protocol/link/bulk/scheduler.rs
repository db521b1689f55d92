//! The scheduler of the bulk lane: whether a large message may send something now, and how much.
//!
//! Owns all that this depends on but the queues themselves: the [`BulkWindow`], the segment whose
//! WRITEs have begun, and the flags. Never spends a credit, and chooses no memory of the peer.
//!
//! The WRITEs of a segment are handed out in *slices* of limited size. Some devices copy the bytes
//! while posting, and nothing else can be sent meanwhile; small messages are therefore sent between
//! two slices.
//!
//! Invariants:
//! 1. The frame of a segment is sent with its last slice, and no other segment starts before that.
//! 2. While small messages are being sent, bulk is sent only when it is given a turn; otherwise it
//!    needs none.
//! 3. Once the message of the segment has been revoked, no other frame is sent before the segment's
//!    frame: a frame of the session about that message must not arrive before it.
//! 4. A message that waits for the peer or for memory keeps no other lane waiting.

use std::collections::VecDeque;
use std::sync::Arc;

use super::bulk_window::BulkWindow;
use crate::message::outgoing::OutBuf;
use crate::protocol::credit::Window;
use crate::protocol::frame::{Blocks, MAX_RECORDS, RECORD_BYTES, Segment};
use crate::protocol::link::lanes::{Lane, Lanes};
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
    /// For these, if what is written is sealed too: a segment is one slice.
    pub(in crate::protocol::link) const SEALED: Self =
        Self { beside_small: RECORD_BYTES as u64, alone: (MAX_RECORDS * RECORD_BYTES) as u64 };
}

/// A long segment has this many times the usual bytes.
const LONG_SEGMENT: u64 = 4;

/// Slices after a small message for which `beside_small` applies.
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
    pub(in crate::protocol::link) writes: VecDeque<RemoteWrite>,
    /// The message, kept until the last WRITE: a slot that it is written to is done only after
    /// that.
    pub(in crate::protocol::link) message: Arc<OutBuf>,
}

/// What the credits and the send queue allow.
#[derive(Debug, Clone, Copy)]
pub(in crate::protocol::link) struct Allowance {
    /// The SQ has room for the largest message.
    pub(in crate::protocol::link) has_slots: bool,
    /// How many of all data frames sent have had their credit returned, modulo 2^32.
    pub(in crate::protocol::link) returned: u32,
    /// The peer's window.
    pub(in crate::protocol::link) remote: Window,
}

#[derive(Debug)]
pub(in crate::protocol::link) struct BulkScheduler {
    window: BulkWindow,
    begun: Option<Begun>,
    slice_bytes: SliceBytes,
    /// Slices left for which `beside_small` applies.
    small_countdown: u8,
    /// Bulk may be sent although small messages are being sent.
    has_turn: bool,
    /// The segment that has begun is sent before anything else.
    must_finish: bool,
    /// The current message waits for chunks, for its reader, or for room to stage it.
    is_blocked: bool,
}

impl BulkScheduler {
    pub(in crate::protocol::link) fn new(window: BulkWindow) -> Self {
        Self {
            window,
            begun: None,
            slice_bytes: SliceBytes::WHOLE,
            small_countdown: 0,
            has_turn: true,
            must_finish: false,
            is_blocked: false,
        }
    }

    /// The lane to send from next. `has_current`: a message is being sent in segments.
    #[inline]
    pub(in crate::protocol::link) fn choose_lane(
        &mut self,
        lanes: &mut Lanes,
        has_current: bool,
        allowance: Allowance,
    ) -> Option<Lane> {
        let Allowance { has_slots, returned, remote } = allowance;
        self.window.set_remote(remote);
        if self.must_finish {
            return (has_slots && self.window.allows(returned)).then_some(Lane::Bulk);
        }
        lanes.choose(|lanes| {
            let has_next = has_current || !lanes.is_empty_lane(Lane::Bulk);
            let has_bulk = self.begun.is_some() || (has_next && !self.is_blocked);
            has_bulk && has_slots && self.may_send() && self.window.allows(returned)
        })
    }

    /// Its credits and SQ slots.
    pub(in crate::protocol::link) fn window(&self) -> &BulkWindow {
        &self.window
    }

    #[inline]
    pub(in crate::protocol::link) fn window_mut(&mut self) -> &mut BulkWindow {
        &mut self.window
    }

    /// The current message has to wait for chunks, for its reader, or for room to stage it.
    pub(in crate::protocol::link) fn block(&mut self) {
        self.is_blocked = true;
    }

    /// What the current message waits for may be there.
    pub(in crate::protocol::link) fn unblock(&mut self) {
        self.is_blocked = false;
    }

    pub(in crate::protocol::link) fn set_slice_bytes(&mut self, bytes: SliceBytes) {
        self.slice_bytes = bytes;
    }

    /// A small message is sent.
    #[inline]
    pub(in crate::protocol::link) fn on_small(&mut self) {
        self.small_countdown = SMALL_COUNTS;
    }

    pub(in crate::protocol::link) fn set_turn(&mut self, turn: bool) {
        self.has_turn = turn;
    }

    /// Whether bulk may be sent now (invariant 2).
    #[inline]
    pub(in crate::protocol::link) fn may_send(&self) -> bool {
        let is_alone = self.small_countdown == 0 || self.slice_bytes == SliceBytes::WHOLE;
        self.must_finish || self.has_turn || is_alone
    }

    /// The message is revoked: its segment that has begun is sent first (invariant 3).
    pub(in crate::protocol::link) fn on_revoked(&mut self, tag: u64) {
        self.must_finish |= self.begun.as_ref().is_some_and(|begun| begun.tag == tag);
    }

    /// Most bytes of the next segment. It is long if its copies overlap with those of other
    /// messages anyway, and no small messages are being sent: their receiver is busy longer with a
    /// long one.
    pub(in crate::protocol::link) fn segment_bytes(&self, usual: u64, others_wait: bool) -> u64 {
        if self.slice_bytes == SliceBytes::SEALED {
            return usual.min(self.next_slice_bytes());
        }
        let is_alone = self.small_countdown == 0 && self.slice_bytes != SliceBytes::WHOLE;
        if others_wait && is_alone { LONG_SEGMENT * usual } else { usual }
    }

    /// Whether the segment that has begun is sent before anything else.
    #[inline]
    pub(in crate::protocol::link) fn must_finish(&self) -> bool {
        self.must_finish
    }

    /// Whether a segment has begun and not ended.
    #[inline]
    pub(in crate::protocol::link) fn has_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// Bytes of that segment for which no WRITE was handed out.
    pub(in crate::protocol::link) fn unsent_bytes(&self) -> u64 {
        let writes = self.begun.iter().flat_map(|begun| &begun.writes);
        writes.map(|write| write.part.len()).sum()
    }

    pub(in crate::protocol::link) fn begin(&mut self, begun: Begun) {
        debug_assert!(self.begun.is_none(), "invariant 1");
        self.begun = Some(begun);
    }

    /// Abandons the segment that has begun and returns its message; nothing more is written.
    pub(in crate::protocol::link) fn take(&mut self) -> Option<Arc<OutBuf>> {
        self.begun.take().map(|begun| begun.message)
    }

    /// Most bytes of the next slice.
    fn next_slice_bytes(&self) -> u64 {
        let SliceBytes { alone, beside_small } = self.slice_bytes;
        if self.small_countdown == 0 { alone } else { beside_small }
    }

    /// The next WRITEs, at most `max_writes`, and the segment if these are its last ones.
    pub(in crate::protocol::link) fn next_slice(
        &mut self,
        max_writes: usize,
    ) -> Option<(Vec<RemoteWrite>, Option<Begun>)> {
        let mut room = self.next_slice_bytes();
        self.small_countdown = self.small_countdown.saturating_sub(1);
        let begun = self.begun.as_mut()?;
        let mut writes = Vec::with_capacity(begun.writes.len().min(max_writes));
        while room > 0 && writes.len() < max_writes {
            let Some(mut write) = begun.writes.pop_front() else { break };
            if let Some(rest) = write.split_off(room) {
                begun.writes.push_front(rest);
            }
            room -= write.part.len();
            writes.push(write);
        }
        let ended = if begun.writes.is_empty() { self.begun.take() } else { None };
        self.must_finish &= ended.is_none();
        Some((writes, ended))
    }
}
