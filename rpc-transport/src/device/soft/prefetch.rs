//! Prefetch hints for cache lines.
//!
//! Never reads memory: a hint is harmless at any address.
#![allow(unsafe_code, reason = "the hint takes a pointer")]

/// Starts to fetch the cache line at `at`, without waiting for it.
#[inline]
pub(super) fn line(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch hint has no effect that a program could observe, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
