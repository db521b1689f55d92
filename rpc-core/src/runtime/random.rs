//! Random numbers that need not be secret: jitter, and choices among equals.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};

thread_local! {
    static STATE: Cell<u64> = Cell::new(RandomState::new().hash_one(std::process::id()));
}

/// A number, each as likely as the others (SplitMix64).
pub(crate) fn random() -> u64 {
    let state = STATE.try_with(|state| {
        let next = state.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        state.set(next);
        next
    });
    let mut z = state.unwrap_or(0);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
