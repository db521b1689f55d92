//! The random numbers of a world: each from the seed, by SplitMix64.
//!
//! Owns the numbers that the C library gives to the program. A feature of a plan draws from a
//! stream of its own, named by what it draws: without one feature, the others stay as they are.

use std::cell::Cell;

use test_kit::Rng;

thread_local! {
    static SYSTEM: Cell<u64> = const { Cell::new(0) };
}

/// The system's random numbers of this thread follow from the seed.
pub(crate) fn begin(seed: u64) {
    SYSTEM.set(mix(seed ^ 0x5f5_7e11));
}

/// A random byte of the system.
pub(crate) fn system_byte() -> u8 {
    SYSTEM.with(next_of).to_le_bytes()[0]
}

/// The numbers of one feature.
pub(crate) fn stream(seed: u64, name: &str) -> Rng {
    let name = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    Rng::new(mix(seed ^ name))
}

/// The next number of a generator whose state is in `state`.
pub(crate) fn next_of(state: &Cell<u64>) -> u64 {
    state.set(state.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
    mix(state.get())
}

/// A number that looks as if it had nothing to do with this one.
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
