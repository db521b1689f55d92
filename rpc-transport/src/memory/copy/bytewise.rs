//! Copies by relaxed atomic accesses of single bytes: the meaning of every copy of shared memory,
//! in a form that miri can check, and for targets without an assembly version.
#![allow(unsafe_code, reason = "memory that others use at the same time")]

use std::sync::atomic::{AtomicU8, Ordering};

/// See [`super::from_shared`].
///
/// # Safety
/// As for [`super::from_shared`].
pub(super) unsafe fn from(source: *const u8, target: *mut u8, len: usize) {
    for at in 0..len {
        // SAFETY: inside `source`.
        let byte = unsafe { load(source.wrapping_add(at)) };
        // SAFETY: inside `target`, which is the caller's own.
        unsafe { target.wrapping_add(at).write(byte) };
    }
}

/// See [`super::to_shared`].
///
/// # Safety
/// As for [`super::to_shared`].
pub(super) unsafe fn to(source: *const u8, target: *mut u8, len: usize) {
    for at in 0..len {
        // SAFETY: inside `source`, which nobody writes.
        let byte = unsafe { source.wrapping_add(at).read() };
        // SAFETY: inside `target`.
        unsafe { store(target.wrapping_add(at), byte) };
    }
}

/// See [`super::between_shared`].
///
/// # Safety
/// As for [`super::between_shared`].
pub(super) unsafe fn between(source: *const u8, target: *mut u8, len: usize) {
    for at in 0..len {
        // SAFETY: inside `source`.
        let byte = unsafe { load(source.wrapping_add(at)) };
        // SAFETY: inside `target`.
        unsafe { store(target.wrapping_add(at), byte) };
    }
}

/// # Safety
/// `at` is valid for reads, and others write it only atomically in the meantime.
unsafe fn load(at: *const u8) -> u8 {
    // `AtomicU8::from_ptr` requires a pointer for writing, but this one may point to read-only
    // memory. SAFETY: an atomic byte is laid out as a byte; the rest is the caller's promise.
    unsafe { &*at.cast::<AtomicU8>() }.load(Ordering::Relaxed)
}

/// # Safety
/// `at` is valid for reads and writes, and others access it only atomically in the meantime.
unsafe fn store(at: *mut u8, byte: u8) {
    // SAFETY: the caller's promise.
    unsafe { AtomicU8::from_ptr(at) }.store(byte, Ordering::Relaxed);
}
