//! Rings: packets through memory that two queue pairs share.
//!
//! Owns the layout of a segment and the two ends of a ring. A segment is written by one side and
//! read by the other: control words, then the slots of the ring that its owner sends on. Never
//! knows queue pairs, and never waits.
//!
//! ```text
//! segment: | accepted u64, nak u32, closed u32 .. armed u32 .. | slot 0 | slot 1 | ..
//! slot:    | sequence u32, head u32 | body ...                     | 128 bytes
//! packet:  | sequence, head | body of the first slot | body goes on through whole slots | ..
//! ```
//!
//! Invariants:
//! 1. A slot's first word carries the sequence number of the packet that starts there; it is stored
//!    last (release) and read first (acquire). There is no separate tail index.
//! 2. The slot at the sender's tail never carries the sequence number that the receiver expects
//!    there: it holds zero, or the word of an earlier lap. A slot whose first word was overwritten
//!    by payload is zeroed before the packet in front of it is published.
//! 3. A packet is published only when its slots and one more are free, so that invariant 2 can be
//!    kept.
//! 4. Every word in the peer's segment is read once and checked before use; payload is copied out
//!    before it is looked at. Both are atomic accesses, so there is no data race with a peer that
//!    writes meanwhile. Whatever the peer writes, no access leaves the segment.
#![allow(unsafe_code, reason = "memory that another process may write")]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::device::Traffic;
use crate::device::soft::doorbell::{Ringer, Sleeper, Word};

use super::mapping::Mapping;
use super::packet::{Extension, Flags, Head, Nak, Op};

mod segment;

use self::segment::{LongWord, Segment};

/// Size of a slot, bytes: two cache lines, which hardware fetches as a pair.
pub(super) const SLOT_BYTES: usize = 128;
/// Size of a cache line, bytes.
const LINE_BYTES: usize = 64;
/// Default number of slots: 64 KiB.
pub(super) const DEFAULT_SLOTS: usize = 512;
/// Fewest slots: a packet takes at most a quarter of the ring and must hold an extension and some
/// payload.
pub(super) const MIN_SLOTS: usize = 8;
/// Most slots: a packet's body must fit into 16 bits.
pub(super) const MAX_SLOTS: usize = 1024;

/// Bytes of the sequence number and head in front of a packet's body.
const WORD_BYTES: usize = 8;
/// Longest body of a packet of one slot, bytes.
pub(super) const SLOT_BODY_BYTES: usize = SLOT_BYTES - WORD_BYTES;
/// Bytes in front of the slots: they and the first slots are one page of an idle connection.
const CONTROL_BYTES: usize = 2 * SLOT_BYTES;
const ACCEPTED: usize = 0;
const NAK: usize = 8;
const CLOSED: usize = 12;
/// Offset of the armed word. On a cache line apart from the words above, which change with every
/// message: the peer reads this one only once per batch.
const ARMED: usize = 128;
/// Bit set in every sequence number, so that zeroed memory never holds a valid one.
const VALID: u32 = 1 << 31;

/// Size of a segment with `slots` slots, bytes, before it is rounded to whole pages.
pub(super) const fn segment_bytes(slots: usize) -> usize {
    CONTROL_BYTES + slots * SLOT_BYTES
}

/// Bytes to send, in any memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub(super) base: NonNull<u8>,
    pub(super) len: usize,
}

impl Piece {
    pub(super) const EMPTY: Self = Self { base: NonNull::dangling(), len: 0 };
}

impl From<&[u8]> for Piece {
    fn from(bytes: &[u8]) -> Self {
        Self { base: NonNull::from(bytes).cast(), len: bytes.len() }
    }
}

/// The peer's report, in its control words, about the packets sent here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Feedback {
    /// Position up to which the peer has accepted them.
    pub(super) accepted: u64,
    /// Why it refused the next packet, if it did.
    pub(super) nak: Option<Nak>,
}

/// Why a packet was not sent; nothing of it is on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unsent {
    /// The wire is full: try again later.
    Full,
    /// The packet is longer than this wire allows: it can never be sent.
    TooLong,
}

/// The peer's control words contradict each other, or what was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BadFeedback;

/// One side's view of both rings.
#[derive(Debug)]
pub(super) struct Ring<S = Mapping> {
    own: Arc<S>,
    peer: Arc<S>,
    /// Size of all slots, bytes; a power of two.
    bytes: usize,
    /// Position of the next packet to send, in slots.
    tail: u64,
    /// The peer's accepted position, as last read.
    accepted: u64,
    /// Position after the last packet that asked for an acknowledgement.
    awaited: u64,
    /// One bit per slot: its first word was overwritten by payload (invariant 2).
    overwritten: Box<[u64]>,
    /// Number of bits set there: 0 as long as every packet fits in one slot.
    overwritten_count: usize,
    /// Something was sent or accepted that the peer may be waiting for.
    bell_due: bool,
    ringer: Ringer,
    /// Position of the next packet to receive, in slots.
    head: u64,
    /// The value of `head` that was last published to the peer.
    published: u64,
    sleeper: Sleeper,
}

impl<S: Segment> Ring<S> {
    /// Joins two segments of `slots` slots each. `own` is written by this side, `peer` by the
    /// other.
    ///
    /// # Panics
    /// When `slots` is not a power of two between [`MIN_SLOTS`] and [`MAX_SLOTS`], or a mapping is
    /// too small: callers check values from a peer.
    pub(super) fn new(own: Arc<S>, peer: Arc<S>, slots: usize) -> Self {
        assert!(slots.is_power_of_two() && (MIN_SLOTS..=MAX_SLOTS).contains(&slots));
        assert!(own.len() >= segment_bytes(slots) && peer.len() >= segment_bytes(slots));
        Self {
            own,
            peer,
            bytes: slots * SLOT_BYTES,
            tail: 0,
            accepted: 0,
            awaited: 0,
            overwritten: vec![0; slots.div_ceil(64)].into_boxed_slice(),
            overwritten_count: 0,
            bell_due: false,
            ringer: Ringer::default(),
            head: 0,
            published: 0,
            sleeper: Sleeper::default(),
        }
    }

    /// Longest body of one packet, bytes: a quarter of the ring.
    pub(super) fn max_body_bytes(&self) -> usize {
        self.bytes / 4 - WORD_BYTES
    }

    fn slots(&self) -> u64 {
        (self.bytes / SLOT_BYTES) as u64
    }

    /// Byte offset of the slot of a position.
    fn slot_offset(&self, position: u64) -> usize {
        // Only the low bits count, so the cast may drop the high ones.
        #[allow(clippy::cast_possible_truncation)]
        let position = position as usize;
        position.wrapping_mul(SLOT_BYTES) & (self.bytes - 1)
    }

    // ---- sending ----

    /// Position after the last packet sent.
    pub(super) fn tail(&self) -> u64 {
        self.tail
    }

    /// Publishes a packet. Returns the position after it.
    ///
    /// # Errors
    /// When the ring is full, or the packet is longer than [`Ring::max_body_bytes`].
    #[inline]
    pub(super) fn push(
        &mut self,
        op: Op,
        flags: Flags,
        extension: Extension,
        pieces: [Piece; 2],
    ) -> Result<u64, Unsent> {
        let (extension, extension_bytes) = extension.encode();
        let body_bytes = extension_bytes + pieces[0].len + pieces[1].len;
        let encoded =
            u16::try_from(body_bytes).ok().filter(|_| body_bytes <= self.max_body_bytes());
        let head = Head { op, flags, body_bytes: encoded.ok_or(Unsent::TooLong)? }.encode();
        let slots = (WORD_BYTES + body_bytes).div_ceil(SLOT_BYTES) as u64;
        if !self.has_room(slots + 1) {
            return Err(Unsent::Full);
        }
        self.invalidate(self.tail + slots);
        let mut at = self.slot_offset(self.tail) + WORD_BYTES;
        if extension_bytes > 0 {
            at = self.write(at, Piece::from(&extension[..extension_bytes]));
        }
        for piece in pieces {
            if piece.len > 0 {
                at = self.write(at, piece);
            }
        }
        for position in self.tail + 1..self.tail + slots {
            let slot = self.slot_offset(position) / SLOT_BYTES;
            let bit = 1 << (slot % 64);
            self.overwritten_count += usize::from(self.overwritten[slot / 64] & bit == 0);
            self.overwritten[slot / 64] |= bit;
        }
        let word = u64::from(sequence(self.tail)) | u64::from(head) << 32;
        let at = CONTROL_BYTES + self.slot_offset(self.tail);
        self.own.long(at).store(word, Ordering::Release);
        self.tail += slots;
        self.bell_due = true;
        if flags.contains(Flags::ACK) {
            self.awaited = self.tail;
        }
        Ok(self.tail)
    }

    /// Fast path for by far the most common packet: publishes a SEND that fits in one slot. Returns
    /// `None` when it does not fit, or the ring is full.
    #[inline]
    pub(super) fn push_send(&mut self, bytes: &[u8], ack: bool) -> Option<u64> {
        let body_bytes = bytes.len();
        if body_bytes > SLOT_BODY_BYTES || !self.has_room(2) {
            return None;
        }
        self.invalidate(self.tail + 1);
        let offset = self.slot_offset(self.tail);
        // SAFETY: one slot at the tail, which is inside the segment; the bytes fit its body, as
        // checked above.
        unsafe { self.own.put_private(offset + WORD_BYTES, bytes) };
        #[allow(clippy::cast_possible_truncation, reason = "less than a slot")]
        let head = Head::whole_send(body_bytes as u16, ack);
        let word = u64::from(sequence(self.tail)) | u64::from(head) << 32;
        self.own.long(CONTROL_BYTES + offset).store(word, Ordering::Release);
        self.tail += 1;
        self.bell_due = true;
        if ack {
            self.awaited = self.tail;
        }
        Some(self.tail)
    }

    /// Makes sure that the peer will report acceptance of everything sent so far, asking if no
    /// packet has asked yet. Returns the position to wait for, or `None` when the ring is full.
    pub(super) fn await_all(&mut self) -> Option<u64> {
        if self.awaited == self.tail || self.accepted == self.tail {
            return Some(self.tail);
        }
        let flags = Flags::FIRST.with(Flags::LAST).with(Flags::ACK);
        self.push(Op::Probe, flags, Extension::None, [Piece::EMPTY; 2]).ok()
    }

    #[inline]
    fn has_room(&mut self, slots: u64) -> bool {
        if self.slots() - (self.tail - self.accepted) >= slots {
            return true;
        }
        // A contradiction is reported by the next `feedback`; here it only means no room.
        self.feedback().is_ok() && self.slots() - (self.tail - self.accepted) >= slots
    }

    /// Keeps invariant 2 for the slot that will be the tail.
    #[inline]
    fn invalidate(&mut self, position: u64) {
        if self.overwritten_count == 0 {
            return;
        }
        let slot = self.slot_offset(position) / SLOT_BYTES;
        let bit = 1 << (slot % 64);
        if self.overwritten[slot / 64] & bit != 0 {
            self.overwritten[slot / 64] &= !bit;
            self.overwritten_count -= 1;
            let at = CONTROL_BYTES + slot * SLOT_BYTES;
            // The release store that publishes the packet in front orders this store before it.
            self.own.long(at).store(0, Ordering::Relaxed);
        }
    }

    /// Copies a piece to byte `at` of the slots, wrapping around. Returns where it ends.
    #[inline]
    fn write(&self, at: usize, piece: Piece) -> usize {
        let at = at & (self.bytes - 1);
        let first = piece.len.min(self.bytes - at);
        // SAFETY: `at + first <= bytes`; the source is valid for `len` by the caller's ownership
        // of the WR; the peer reads these slots only after the release store that follows.
        unsafe { self.own.put(at, piece.base, first) };
        if first < piece.len {
            // SAFETY: `first < len`.
            let rest = unsafe { piece.base.add(first) };
            // SAFETY: a packet is at most a quarter of the ring, so the rest ends before `at`.
            unsafe { self.own.put(0, rest, piece.len - first) };
        }
        at + piece.len
    }

    /// Reads the peer's report about the packets sent.
    #[inline]
    pub(super) fn feedback(&mut self) -> Result<Feedback, BadFeedback> {
        // The peer stores a refusal after the position that it refers to, so it is read first.
        let nak = self.peer.control(NAK).load(Ordering::Acquire);
        let accepted = self.peer.long(ACCEPTED).load(Ordering::Acquire);
        if accepted < self.accepted || accepted > self.tail {
            return Err(BadFeedback);
        }
        self.accepted = accepted;
        let nak = match nak {
            0 => None,
            code => Some(Nak::decode(code).ok_or(BadFeedback)?),
        };
        Ok(Feedback { accepted, nak })
    }

    /// Whether the peer has reported anything new about the packets sent.
    pub(super) fn has_news(&self) -> bool {
        self.peer.control(NAK).load(Ordering::Acquire) != 0
            || self.peer.long(ACCEPTED).load(Ordering::Acquire) != self.accepted
    }

    /// Whether the peer has armed since the last doorbell. Call it after a sequentially consistent
    /// fence that follows the stores that the peer must see.
    pub(super) fn needs_notify(&mut self) -> bool {
        if !std::mem::take(&mut self.bell_due) {
            return false;
        }
        self.ringer.needs_notify(self.peer.control(ARMED))
    }

    /// Slots received; slots sent that the peer has accepted; slots sent that it has not.
    pub(super) fn traffic(&mut self) -> Traffic {
        // A contradiction is reported by the next visit.
        let _ = self.feedback();
        let pending = self.tail - self.accepted;
        Traffic { received: self.head, accepted: self.accepted, pending }
    }

    // ---- receiving ----

    /// Whether a packet is waiting.
    #[inline]
    pub(super) fn has_packet(&self) -> bool {
        let found = self.peek().is_some();
        if found {
            // Prefetch the slot's second line: it too is in the peer's cache, and takes as long to
            // arrive.
            self.peer.prefetch(self.slot_offset(self.head) + LINE_BYTES);
        }
        found
    }

    /// The encoded head of the next packet, if it has been published.
    #[inline]
    pub(super) fn peek(&self) -> Option<u32> {
        let at = CONTROL_BYTES + self.slot_offset(self.head);
        let word = self.peer.long(at).load(Ordering::Acquire);
        #[allow(clippy::cast_possible_truncation, reason = "the low half is the sequence")]
        let found = word as u32;
        #[allow(clippy::cast_possible_truncation, reason = "the high half is the head")]
        let head = (word >> 32) as u32;
        (found == sequence(self.head)).then_some(head)
    }

    /// Copies `len` bytes of the next packet's body, starting at `offset`, to `to`.
    ///
    /// # Safety
    /// `to` is valid for writes of `len` bytes and lies outside the peer's segment. Others may
    /// access it at the same time, under the rules of [`copy`].
    #[inline]
    pub(super) unsafe fn copy_body(&self, offset: usize, to: NonNull<u8>, len: usize) {
        debug_assert!(offset + len <= usize::from(u16::MAX));
        let at = (self.slot_offset(self.head) + WORD_BYTES + offset) & (self.bytes - 1);
        let first = len.min(self.bytes - at);
        // SAFETY: `at + first <= bytes`; `to` by the caller.
        unsafe { self.peer.get(at, to, first) };
        if first < len {
            let rest = (len - first).min(self.bytes);
            // SAFETY: `first < len`.
            let to = unsafe { to.add(first) };
            // SAFETY: `rest <= bytes`, which is at most the remaining room of `to`.
            unsafe { self.peer.get(0, to, rest) };
        }
    }

    /// Copies the body of the next packet, `len` bytes, to `to`, and removes the packet from the
    /// ring.
    ///
    /// # Safety
    /// As for [`Ring::copy_body`].
    #[inline]
    pub(super) unsafe fn take_body(&mut self, to: NonNull<u8>, len: usize) {
        if len > SLOT_BODY_BYTES {
            // SAFETY: by the caller.
            unsafe { self.copy_body(0, to, len) };
            return self.consume(len);
        }
        let at = self.slot_offset(self.head) + WORD_BYTES;
        // SAFETY: it ends within its slot; `to` by the caller.
        unsafe { self.peer.get(at, to, len) };
        self.head += 1;
    }

    /// Copies out the extension of the next packet.
    pub(super) fn extension(&self, head: Head) -> Extension {
        let len = head.extension_bytes();
        if len == 0 {
            return Extension::None;
        }
        let mut bytes = [0_u8; super::packet::MAX_EXTENSION_BYTES];
        // SAFETY: an extension is at most MAX_EXTENSION_BYTES long; `bytes` is local.
        unsafe { self.copy_body(0, NonNull::from(&mut bytes).cast(), len) };
        Extension::decode(&bytes[..len])
    }

    /// Removes the next packet, with a body of `body_bytes`, from the ring.
    #[inline]
    pub(super) fn consume(&mut self, body_bytes: usize) {
        self.head += (WORD_BYTES + body_bytes).div_ceil(SLOT_BYTES) as u64;
    }

    /// Whether at least a quarter of the ring was consumed but not yet published. Publishing at
    /// this point always leaves the peer room for the largest packet.
    #[inline]
    pub(super) fn owes_much(&self) -> bool {
        self.head - self.published >= self.slots() / 4
    }

    /// Whether anything was consumed but not yet published.
    pub(super) fn owes(&self) -> bool {
        self.head != self.published
    }

    /// Publishes that everything consumed is accepted.
    #[inline]
    pub(super) fn publish(&mut self) {
        self.published = self.head;
        self.bell_due = true;
        self.own.long(ACCEPTED).store(self.head, Ordering::Release);
    }

    /// Reports to the peer that the next packet is refused.
    pub(super) fn refuse(&mut self, nak: Nak) {
        self.publish();
        self.own.control(NAK).store(nak as u32, Ordering::Release);
    }

    /// Asks the peer for a doorbell. Must be followed by a sequentially consistent fence and
    /// another look at the ring.
    pub(super) fn arm(&mut self) {
        self.sleeper.arm(self.own.control(ARMED));
    }

    /// Withdraws the request for a doorbell.
    pub(super) fn disarm(&self) {
        self.sleeper.disarm(self.own.control(ARMED));
    }

    // ---- closing ----

    /// Reports to the peer that nothing more will be sent.
    pub(super) fn close(&self) {
        self.own.control(CLOSED).store(1, Ordering::Release);
    }

    /// Whether the peer has closed.
    pub(super) fn peer_closed(&self) -> bool {
        self.peer.control(CLOSED).load(Ordering::Acquire) != 0
    }
}

/// Sequence number of a packet that starts at a position.
#[inline]
fn sequence(position: u64) -> u32 {
    #[allow(clippy::cast_possible_truncation, reason = "31 bits tell the laps apart")]
    let low = position as u32;
    low | VALID
}

#[cfg(test)]
#[cfg(not(rpc_loom))]
mod operations;

#[cfg(test)]
#[cfg(rpc_loom)]
mod loom_tests;

#[cfg(test)]
#[cfg(not(rpc_loom))]
mod tests;
