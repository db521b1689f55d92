//! Hints to fetch cache lines.
//!
//! Owns no memory, and reads none: a hint about any address is harmless.
#![allow(unsafe_code, reason = "the hint takes a pointer")]

/// Fetches the cache line at `at`, while something else is done.
#[inline(always)]
pub(super) fn line(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint accesses nothing that the program could see, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
