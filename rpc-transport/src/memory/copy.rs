//! Copies of memory that a peer may be writing or reading at the same time.
//!
//! Owns how such bytes are read and written. A peer's engine may be a thread of this process, so a
//! plain copy of bytes that it writes would be a data race: undefined behaviour, whatever the bytes
//! mean. Never lends bytes and never orders anything: a copy that races with a write gets any
//! mixture of old and new bytes.
//!
//! In the memory model each copy is a series of relaxed atomic accesses of single bytes, in no
//! particular order. On x86-64 and aarch64 the C library's `memcpy` performs it, called from an
//! assembly block that is opaque to the compiler: its loads and stores are what relaxed atomics
//! compile to there. So it is as fast as [`std::ptr::copy_nonoverlapping`], which calls the same
//! function. A few bytes are read by such loads without a call (`short`). On other targets, and
//! under miri, which finds races, bytes are copied one at a time. (Not by words: racing atomic
//! accesses must have the same size, and two copies need not agree on where words begin.)
//!
//! Invariants:
//! 1. While anybody may write memory, it is touched only by these functions, by atomics, and by the
//!    kernel or a device.
#![allow(unsafe_code, reason = "memory that others use at the same time")]

#[cfg(any(test, miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod bytewise;
#[cfg(all(not(miri), any(target_arch = "x86_64", target_arch = "aarch64")))]
mod short;

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
use self::bytewise::{between, from, to};
#[cfg(all(not(miri), any(target_arch = "x86_64", target_arch = "aarch64")))]
use self::{opaque as between, opaque as to};

/// Copies from shared memory to the caller's own.
///
/// # Safety
/// `source` is readable and `target` writable for `len` bytes, which do not overlap. Nobody else
/// uses `target`. Others may write `source` in the meantime (invariant 1).
#[inline]
pub unsafe fn from_shared(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { from(source, target, len) };
}

/// Copies from memory that nobody writes to shared memory.
///
/// # Safety
/// `source` is readable and `target` writable for `len` bytes, which do not overlap. Nobody writes
/// `source`. Others may read and write `target` in the meantime (invariant 1).
#[inline]
pub unsafe fn to_shared(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { to(source, target, len) };
}

/// Copies from shared memory to shared memory.
///
/// # Safety
/// `source` is readable and `target` writable for `len` bytes, which do not overlap. Others may use
/// both in the meantime (invariant 1).
#[inline]
pub unsafe fn between_shared(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { between(source, target, len) };
}

/// # Safety
/// As for [`from_shared`].
#[cfg(all(not(miri), any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline]
unsafe fn from(source: *const u8, target: *mut u8, len: usize) {
    if len <= short::MAX_BYTES {
        // SAFETY: the caller's promise; `len` is at most `MAX_BYTES`.
        unsafe { short::from(source, target, len) };
    } else {
        // SAFETY: the caller's promise.
        unsafe { opaque(source, target, len) };
    }
}

/// `memcpy`, hidden from the compiler.
///
/// # Safety
/// `source` is readable and `target` writable for `len` bytes, which do not overlap.
#[cfg(all(not(miri), target_arch = "x86_64"))]
#[inline]
unsafe fn opaque(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: a call by the C calling convention, whose argument and scratch registers are named;
    // the block says nothing of the stack, so it is aligned for a call. `memcpy` touches nothing
    // but the two spans, which are valid (the caller's promise), and does not unwind.
    unsafe {
        std::arch::asm!(
            "call {memcpy}",
            memcpy = in(reg) libc::memcpy as *const (),
            inout("rdi") target => _,
            inout("rsi") source => _,
            inout("rdx") len => _,
            clobber_abi("C"),
        );
    }
}

/// `memcpy`, hidden from the compiler.
///
/// # Safety
/// `source` is readable and `target` writable for `len` bytes, which do not overlap.
#[cfg(all(not(miri), target_arch = "aarch64"))]
#[inline]
unsafe fn opaque(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: as on x86-64.
    unsafe {
        std::arch::asm!(
            "blr {memcpy}",
            memcpy = in(reg) libc::memcpy as *const (),
            inout("x0") target => _,
            inout("x1") source => _,
            inout("x2") len => _,
            clobber_abi("C"),
        );
    }
}

#[cfg(test)]
mod tests;
