//! Pages that go back to the operating system while their memory stays mapped.
//!
//! Owns the advice to the kernel. Never knows what the bytes are for.
#![allow(unsafe_code, reason = "what the pages hold is lost")]

use std::ptr::NonNull;

use rustix::mm::Advice;

/// Gives the whole pages in `base..base+len` back to the operating system. Of private memory they read
/// as zeroes from then on, until they are written.
///
/// # Safety
/// The bytes are mapped, nobody else accesses them meanwhile, and what they hold is of no use.
pub(crate) unsafe fn discard(base: NonNull<u8>, len: usize) {
    // The system's: with less, the kernel would round up, beyond the range.
    let page = rustix::param::page_size();
    let before = base.as_ptr().align_offset(page);
    let whole = len.saturating_sub(before) / page * page;
    // Miri knows no advice.
    if whole == 0 || cfg!(miri) {
        return;
    }
    let first = base.as_ptr().wrapping_add(before);
    // SAFETY: the pages lie within the range that the caller vouches for. An error, as for locked
    // memory, leaves them as they are.
    let _ = unsafe { rustix::mm::madvise(first.cast(), whole, Advice::LinuxDontNeed) };
}
