//! Rings: packets through memory that two queue pairs share.
//!
//! Owns the layout of a segment and the two ends of a ring. A segment is written by one side and
//! read by the other: one page of control words, then the slots of the ring that its owner sends
//! on. Never knows queue pairs, and never waits.
//!
//! ```text
//! segment: | control page: accepted u64, nak u32, closed u32 .. armed u32 | slot 0 | slot 1 | ..
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
//! 4. Every word of the peer's segment is read once and checked before use; payload is copied out
//!    before it is looked at. Both are atomic accesses, so there is no data race with a peer that
//!    writes meanwhile. Whatever the peer writes, no access leaves the segment.
#![allow(unsafe_code, reason = "memory that another process may write")]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::device::Traffic;
use crate::device::soft::doorbell::{Ringer, Sleeper};
use crate::memory::copy;

use super::mapping::{Mapping, PAGE_BYTES};
use super::packet::{Extension, Flags, Head, Nak, Op};
use super::prefetch;

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
const CONTROL_BYTES: usize = PAGE_BYTES;
const ACCEPTED: usize = 0;
const NAK: usize = 8;
const CLOSED: usize = 12;
/// Offset of the armed word. On a cache line apart from the words above, which change with every
/// message: the peer reads this one only once per batch.
const ARMED: usize = 128;
/// Bit set in every sequence number, so that zeroed memory never holds a valid one.
const VALID: u32 = 1 << 31;

/// Size of a segment with `slots` slots, bytes.
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

/// What the peer's control page says about the packets sent here.
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

/// The peer's control page contradicts itself, or what was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BadFeedback;

/// One side's view of both rings.
#[derive(Debug)]
pub(super) struct Ring {
    own: Arc<Mapping>,
    peer: Arc<Mapping>,
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
    /// Something was sent or accepted that the peer may be waiting for.
    bell_due: bool,
    ringer: Ringer,
    /// Position of the next packet to receive, in slots.
    head: u64,
    /// The value of `head` that the peer has been told.
    published: u64,
    sleeper: Sleeper,
}

impl Ring {
    /// Joins two segments of `slots` slots each. `own` is written by this side, `peer` by the
    /// other.
    ///
    /// # Panics
    /// When `slots` is not a power of two between [`MIN_SLOTS`] and [`MAX_SLOTS`], or a mapping is
    /// too small: callers check what comes from a peer.
    pub(super) fn new(own: Arc<Mapping>, peer: Arc<Mapping>, slots: usize) -> Self {
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

    fn control(mapping: &Mapping, offset: usize) -> &AtomicU32 {
        // SAFETY: `offset` is one of the constants above, inside the control page.
        let word = unsafe { mapping.base().add(offset) }.cast::<AtomicU32>();
        // SAFETY: aligned (the mapping to a page, `offset` to 4), valid while `mapping` is, and
        // only accessed atomically by both sides.
        unsafe { word.as_ref() }
    }

    fn long(mapping: &Mapping, offset: usize) -> &AtomicU64 {
        // SAFETY: callers pass `ACCEPTED` or a slot's start, inside the mapping (asserted in `new`).
        let word = unsafe { mapping.base().add(offset) }.cast::<AtomicU64>();
        // SAFETY: aligned to 8, valid while `mapping` is. The word is accessed atomically, or, as
        // payload of a packet that is not published, by this side's copies alone.
        unsafe { word.as_ref() }
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
    #[inline(always)]
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
            self.mark_overwritten(position);
        }
        let word = u64::from(sequence(self.tail)) | u64::from(head) << 32;
        let at = CONTROL_BYTES + self.slot_offset(self.tail);
        Self::long(&self.own, at).store(word, Ordering::Release);
        self.tail += slots;
        self.bell_due = true;
        if flags.contains(Flags::ACK) {
            self.awaited = self.tail;
        }
        Ok(self.tail)
    }

    /// Fast path for by far the most common packet: publishes a SEND that fits in one slot. Returns
    /// `None` when it does not fit, or the ring is full.
    #[inline(always)]
    pub(super) fn push_send(&mut self, bytes: &[u8], ack: bool) -> Option<u64> {
        let body_bytes = bytes.len();
        if body_bytes > SLOT_BYTES - WORD_BYTES || !self.has_room(2) {
            return None;
        }
        self.invalidate(self.tail + 1);
        let offset = self.slot_offset(self.tail);
        // SAFETY: the slot's body lies inside the mapping.
        let body = unsafe { self.own.base().add(CONTROL_BYTES + offset + WORD_BYTES) };
        // SAFETY: the bytes fit into the slot (checked); they are borrowed, so a plain copy will do;
        // the peer reads the slot only after the release store below.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), body.as_ptr(), body_bytes) };
        #[allow(clippy::cast_possible_truncation, reason = "less than a slot")]
        let head = Head::whole_send(body_bytes as u16, ack);
        let word = u64::from(sequence(self.tail)) | u64::from(head) << 32;
        Self::long(&self.own, CONTROL_BYTES + offset).store(word, Ordering::Release);
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

    #[inline(always)]
    fn has_room(&mut self, slots: u64) -> bool {
        if self.slots() - (self.tail - self.accepted) >= slots {
            return true;
        }
        // A contradiction is reported by the next `feedback`; here it only means no room.
        self.feedback().is_ok() && self.slots() - (self.tail - self.accepted) >= slots
    }

    /// Keeps invariant 2 for the slot that will be the tail.
    #[inline(always)]
    fn invalidate(&mut self, position: u64) {
        let slot = self.slot_offset(position) / SLOT_BYTES;
        let bit = 1 << (slot % 64);
        if self.overwritten[slot / 64] & bit != 0 {
            self.overwritten[slot / 64] &= !bit;
            let at = CONTROL_BYTES + slot * SLOT_BYTES;
            // The release store that publishes the packet in front orders this store before it.
            Self::long(&self.own, at).store(0, Ordering::Relaxed);
        }
    }

    fn mark_overwritten(&mut self, position: u64) {
        let slot = self.slot_offset(position) / SLOT_BYTES;
        self.overwritten[slot / 64] |= 1 << (slot % 64);
    }

    /// Copies a piece to byte `at` of the slots, wrapping around. Returns where it ends.
    #[inline]
    fn write(&self, at: usize, piece: Piece) -> usize {
        let at = at & (self.bytes - 1);
        let first = piece.len.min(self.bytes - at);
        // SAFETY: `at < bytes`, and the slots follow the control page inside the mapping.
        let slots = unsafe { self.own.base().add(CONTROL_BYTES) }.as_ptr();
        // SAFETY: as above.
        let to = unsafe { slots.add(at) };
        // SAFETY: `at + first <= bytes`; the source is valid for `len` by the caller's ownership
        // of the WR, and a region's may be written by peers meanwhile; the peer reads these slots
        // only after the release store that follows.
        unsafe { copy::from_shared(piece.base.as_ptr(), to, first) };
        if first < piece.len {
            // SAFETY: `first < len`.
            let rest = unsafe { piece.base.add(first) };
            // SAFETY: a packet is at most a quarter of the ring, so the rest ends before `at`.
            unsafe { copy::from_shared(rest.as_ptr(), slots, piece.len - first) };
        }
        at + piece.len
    }

    /// Reads what the peer says about the packets sent.
    #[inline]
    pub(super) fn feedback(&mut self) -> Result<Feedback, BadFeedback> {
        // The peer stores a refusal after the position that it refers to, so it is read first.
        let nak = Self::control(&self.peer, NAK).load(Ordering::Acquire);
        let accepted = Self::long(&self.peer, ACCEPTED).load(Ordering::Acquire);
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

    /// Whether the peer has said anything new about the packets sent.
    pub(super) fn has_news(&self) -> bool {
        Self::control(&self.peer, NAK).load(Ordering::Acquire) != 0
            || Self::long(&self.peer, ACCEPTED).load(Ordering::Acquire) != self.accepted
    }

    /// Whether the peer has armed since the last doorbell. Call it after a sequentially consistent
    /// fence that follows the stores that the peer must see.
    pub(super) fn needs_notify(&mut self) -> bool {
        if !std::mem::take(&mut self.bell_due) {
            return false;
        }
        self.ringer.needs_notify(Self::control(&self.peer, ARMED))
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
            let second = CONTROL_BYTES + self.slot_offset(self.head) + LINE_BYTES;
            prefetch::line(self.peer.base().as_ptr().wrapping_add(second));
        }
        found
    }

    /// The encoded head of the next packet, if it has been published.
    #[inline]
    pub(super) fn peek(&self) -> Option<u32> {
        let at = CONTROL_BYTES + self.slot_offset(self.head);
        let word = Self::long(&self.peer, at).load(Ordering::Acquire);
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
    /// access it at the same time, as [`copy`] says.
    #[inline]
    pub(super) unsafe fn copy_body(&self, offset: usize, to: NonNull<u8>, len: usize) {
        debug_assert!(offset + len <= usize::from(u16::MAX));
        let at = (self.slot_offset(self.head) + WORD_BYTES + offset) & (self.bytes - 1);
        let first = len.min(self.bytes - at);
        // SAFETY: the slots follow the control page inside the mapping.
        let slots = unsafe { self.peer.base().add(CONTROL_BYTES) }.as_ptr();
        // SAFETY: `at < bytes`.
        let from = unsafe { slots.add(at) };
        // SAFETY: `at + first <= bytes`; `to` by the caller. The peer may write the one and this
        // process read the other meanwhile (invariant 4).
        unsafe { copy::between_shared(from, to.as_ptr(), first) };
        if first < len {
            let rest = (len - first).min(self.bytes);
            // SAFETY: `first < len`.
            let to = unsafe { to.as_ptr().add(first) };
            // SAFETY: `rest <= bytes`, at most what is left of `to`.
            unsafe { copy::between_shared(slots, to, rest) };
        }
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

    /// Tells the peer that everything consumed is accepted.
    #[inline]
    pub(super) fn publish(&mut self) {
        self.published = self.head;
        self.bell_due = true;
        Self::long(&self.own, ACCEPTED).store(self.head, Ordering::Release);
    }

    /// Tells the peer that the next packet is refused.
    pub(super) fn refuse(&mut self, nak: Nak) {
        self.publish();
        Self::control(&self.own, NAK).store(nak as u32, Ordering::Release);
    }

    /// Asks the peer for a doorbell. Must be followed by a sequentially consistent fence and
    /// another look at the ring.
    pub(super) fn arm(&mut self) {
        self.sleeper.arm(Self::control(&self.own, ARMED));
    }

    /// Withdraws the request for a doorbell.
    pub(super) fn disarm(&self) {
        self.sleeper.disarm(Self::control(&self.own, ARMED));
    }

    // ---- closing ----

    /// Tells the peer that nothing more will be sent.
    pub(super) fn close(&self) {
        Self::control(&self.own, CLOSED).store(1, Ordering::Release);
    }

    /// Whether the peer has closed.
    pub(super) fn peer_closed(&self) -> bool {
        Self::control(&self.peer, CLOSED).load(Ordering::Acquire) != 0
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
mod operations;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::region::Access;

    fn pair(slots: usize) -> (Ring, Ring) {
        let segment = || Arc::new(Mapping::anonymous(segment_bytes(slots)).unwrap());
        let (a, b) = (segment(), segment());
        (Ring::new(a.clone(), b.clone(), slots), Ring::new(b, a, slots))
    }

    fn take(ring: &mut Ring) -> Option<Vec<u8>> {
        let head = Head::decode(ring.peek()?).unwrap();
        let mut bytes = vec![0; head.payload_bytes()];
        let to = NonNull::from(&mut bytes[..]).cast();
        // SAFETY: `to` has room for the payload.
        unsafe { ring.copy_body(head.extension_bytes(), to, head.payload_bytes()) };
        ring.consume(usize::from(head.body_bytes));
        Some(bytes)
    }

    /// Payload that looks like sequence numbers must never be taken for packets.
    #[test]
    fn payload_never_passes_for_a_packet() {
        let seed = 0x5eed_u64;
        let mut random = seed;
        let mut next = move |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        let (mut a, mut b) = pair(16);
        let mut sent = std::collections::VecDeque::new();
        let (mut pushed, mut taken) = (0_u64, 0_u64);
        let steps = if cfg!(miri) { 40 } else { 200_000_u64 };
        for step in 0..steps {
            if next(2) == 0 {
                let len = usize::try_from(next(a.max_body_bytes() as u64 + 1)).unwrap();
                // The first word expected at one of the next 64 positions, repeated.
                let fake = sequence(a.tail() + next(64));
                let word = u64::from(fake) | u64::from(Op::Send as u32 | 2 << 8) << 32;
                let bytes: Vec<u8> = word.to_le_bytes().into_iter().cycle().take(len).collect();
                let pieces = [Piece::from(&bytes[..len / 3]), Piece::from(&bytes[len / 3..])];
                if a.push(Op::Send, Flags::LAST, Extension::None, pieces).is_ok() {
                    sent.push_back(bytes);
                    pushed += 1;
                }
            } else {
                assert_eq!(take(&mut b), sent.pop_front(), "seed {seed:#x}, step {step}");
                taken += 1;
                if b.owes_much() {
                    b.publish();
                }
            }
        }
        assert!(pushed > steps / 20 && taken > steps / 20);
    }

    #[test]
    fn a_full_ring_takes_nothing_until_the_peer_publishes() {
        let (mut a, mut b) = pair(8);
        let byte = [Piece::from(&b"x"[..]), Piece::EMPTY];
        let push = |a: &mut Ring| a.push(Op::Send, Flags::LAST, Extension::None, byte);
        for _ in 0..7 {
            assert!(push(&mut a).is_ok());
        }
        assert_eq!(push(&mut a), Err(Unsent::Full));
        assert_eq!(take(&mut b).unwrap(), b"x");
        assert_eq!(push(&mut a), Err(Unsent::Full));
        b.publish();
        assert!(push(&mut a).is_ok());
        assert_eq!(a.feedback(), Ok(Feedback { accepted: 1, nak: None }));
        b.refuse(Nak::NotReady);
        assert_eq!(a.feedback(), Ok(Feedback { accepted: 1, nak: Some(Nak::NotReady) }));
    }

    /// A packet that is too long must not wait forever for room, nor touch what was published.
    #[test]
    fn a_packet_longer_than_any_is_an_error_and_writes_nothing() {
        for slots in [MIN_SLOTS, DEFAULT_SLOTS, MAX_SLOTS] {
            let (mut a, mut b) = pair(slots);
            let bytes = vec![7; a.max_body_bytes() + (1 << 17)];
            let push = |a: &mut Ring, extension, len: usize| {
                let pieces = [Piece::from(&bytes[..len / 2]), Piece::from(&bytes[len / 2..len])];
                a.push(Op::Send, Flags::LAST.with(Flags::IMM), extension, pieces)
            };
            let most = a.max_body_bytes() - 4;
            push(&mut a, Extension::Word(1), most).unwrap();
            for len in [most + 1, most + 4, 1 << 16, (1 << 16) + most, bytes.len()] {
                assert_eq!(push(&mut a, Extension::Word(1), len), Err(Unsent::TooLong), "{len}");
            }
            assert_eq!(take(&mut b).unwrap(), bytes[..most]);
            assert_eq!(take(&mut b), None);
        }
    }

    /// What miri is for: with plain copies, a peer that writes what it wrote before makes the engine
    /// race with whoever reads its last message.
    #[test]
    fn a_peer_that_writes_what_is_being_read_races_on_nothing() {
        let pd = crate::device::soft::domain::SoftDomain::allocate();
        let region = pd.allocate(64, Access::REMOTE_WRITE).unwrap();
        let rounds = if cfg!(miri) { 8 } else { 10_000 };
        let (mut a, mut b) = pair(8);
        let reader = region.clone();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let (mut bytes, mut more) = ([0; 64], Vec::new());
                for _ in 0..rounds {
                    reader.copy_out(0, &mut bytes);
                    reader.append_to(0, 64, &mut more);
                    assert!(bytes.iter().chain(&more).all(|byte| *byte < 2), "{bytes:?}");
                    more.clear();
                }
            });
            for round in 0..rounds {
                let bytes = [u8::try_from(round % 2).unwrap(); 64];
                let pieces = [Piece::from(&bytes[..]), Piece::EMPTY];
                a.push(Op::Write, Flags::LAST, Extension::None, pieces).unwrap();
                let head = Head::decode(b.peek().unwrap()).unwrap();
                // SAFETY: the region has 64 bytes, and lies in no segment.
                unsafe { b.copy_body(0, region.base(), 64) };
                b.consume(usize::from(head.body_bytes));
                b.publish();
                // What the peer writes may be on its way out, too.
                let piece = Piece { base: region.base(), len: 64 };
                b.push(Op::Send, Flags::LAST, Extension::None, [piece, Piece::EMPTY]).unwrap();
                take(&mut a).unwrap();
                a.publish();
            }
        });
    }

    #[test]
    fn a_doorbell_answers_each_arming_once() {
        let (mut a, mut b) = pair(16);
        let sent = |a: &mut Ring| {
            a.push(Op::Send, Flags::LAST, Extension::None, [Piece::EMPTY; 2]).unwrap();
            a.needs_notify()
        };
        assert!(!sent(&mut a));
        b.arm();
        assert!(!a.needs_notify(), "nothing was sent since");
        assert!(sent(&mut a));
        assert!(!sent(&mut a));
        b.disarm();
        b.arm();
        assert!(sent(&mut a));
        b.disarm();
        assert!(!sent(&mut a));
    }

    #[test]
    fn positions_that_the_peer_makes_up_are_refused() {
        let (mut a, b) = pair(8);
        for made_up in [1, 8, u64::MAX] {
            Ring::long(&b.own, ACCEPTED).store(made_up, Ordering::Release);
            assert_eq!(a.feedback(), Err(BadFeedback));
        }
        Ring::long(&b.own, ACCEPTED).store(0, Ordering::Release);
        Ring::control(&b.own, NAK).store(99, Ordering::Release);
        assert_eq!(a.feedback(), Err(BadFeedback));
    }
}
