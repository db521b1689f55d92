//! The memory of a ring, as the ring touches it.
//!
//! Owns the accesses and nothing else, so that one ring runs on shared memory and, in the search of
//! its interleavings, on memory that loom observes.
#![allow(unsafe_code, reason = "memory that another process may write")]

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::CONTROL_BYTES;
use crate::device::soft::doorbell::Word;
use crate::device::soft::mapping::Mapping;
use crate::device::soft::prefetch;
use crate::memory::copy;

/// A shared 64-bit atomic word.
pub(in crate::device::soft) trait LongWord {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
}

impl LongWord for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }
}

/// A segment: control words, addressed by their offset, and slots, addressed by theirs.
pub(in crate::device::soft) trait Segment {
    type Word: Word;
    type Long: LongWord;

    /// Length, bytes.
    fn len(&self) -> usize;

    /// The control word at an offset: one of the ring's constants.
    fn control(&self, offset: usize) -> &Self::Word;

    /// The accepted position, or the first word of a slot, at an offset inside the segment.
    fn long(&self, offset: usize) -> &Self::Long;

    /// Copies bytes that others may be writing into the slots.
    ///
    /// # Safety
    /// `from` is valid for reads of `len` bytes, and `at + len` is inside the slots.
    unsafe fn put(&self, at: usize, from: NonNull<u8>, len: usize);

    /// Copies bytes that nobody else writes into the slots.
    ///
    /// # Safety
    /// `at + bytes.len()` is inside the slots.
    unsafe fn put_private(&self, at: usize, bytes: &[u8]);

    /// Copies out of the slots, which the peer may be writing.
    ///
    /// # Safety
    /// `to` is valid for writes of `len` bytes and outside the segment, and `at + len` is inside
    /// the slots. Others may access `to` at the same time, under the rules of [`copy`].
    unsafe fn get(&self, at: usize, to: NonNull<u8>, len: usize);

    /// Starts to fetch the cache line at an offset of the slots.
    fn prefetch(&self, at: usize);
}

impl Segment for Mapping {
    type Word = AtomicU32;
    type Long = AtomicU64;

    fn len(&self) -> usize {
        self.len()
    }

    #[inline]
    fn control(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: `offset` is one of the ring's constants, in front of the slots.
        let word = unsafe { self.base().add(offset) }.cast::<AtomicU32>();
        // SAFETY: aligned (the mapping to a page, `offset` to 4), valid while the mapping is, and
        // only accessed atomically by both sides.
        unsafe { word.as_ref() }
    }

    #[inline]
    fn long(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the ring passes `ACCEPTED` or a slot's start, inside the mapping (asserted when
        // it was made).
        let word = unsafe { self.base().add(offset) }.cast::<AtomicU64>();
        // SAFETY: aligned to 8, valid while the mapping is. The word is accessed atomically, or, as
        // payload of an unpublished packet, only by this side's copies.
        unsafe { word.as_ref() }
    }

    #[inline]
    unsafe fn put(&self, at: usize, from: NonNull<u8>, len: usize) {
        // SAFETY: the slots follow the control words inside the mapping, and `at` is inside the
        // slots.
        let to = unsafe { self.base().add(CONTROL_BYTES + at) };
        // SAFETY: valid for `len` by the caller; peers may be writing a region's bytes.
        unsafe { copy::from_shared(from.as_ptr(), to.as_ptr(), len) };
    }

    #[inline]
    unsafe fn put_private(&self, at: usize, bytes: &[u8]) {
        debug_assert!(CONTROL_BYTES + at + bytes.len() <= self.len());
        // SAFETY: the slots follow the control words inside the mapping, and `at` is inside the
        // slots.
        let to = unsafe { self.base().add(CONTROL_BYTES + at) };
        // SAFETY: valid for their length by the caller; they are borrowed, so a plain copy is
        // enough. The peer reads the slot only after the release store that publishes it.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
    }

    #[inline]
    unsafe fn get(&self, at: usize, to: NonNull<u8>, len: usize) {
        // SAFETY: the slots follow the control words inside the mapping, and `at` is inside the
        // slots.
        let from = unsafe { self.base().add(CONTROL_BYTES + at) };
        // SAFETY: valid for `len` by the caller. The peer may be writing the source and this
        // process reading the target.
        unsafe { copy::between_shared(from.as_ptr(), to.as_ptr(), len) };
    }

    #[inline]
    fn prefetch(&self, at: usize) {
        prefetch::line(self.base().as_ptr().wrapping_add(CONTROL_BYTES + at));
    }
}
