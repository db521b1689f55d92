//! The time of a world.
//!
//! Owns the clock of the thread that runs a world. Time passes in two ways only: a look at the
//! clock costs some of it, and waiting for events turns into it. A paused clock would not do: while
//! code runs, no time would pass, so that turns and quotas that end by time would never end.
//!
//! Invariants:
//! 1. Nothing here reads the machine's clock.
//! 2. The number and the times of all looks and waits are part of [`beat`], which is equal for two
//!    runs of one seed.

use std::cell::Cell;

use crate::chance::next_of;

/// What a look at the clock costs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// The mean, in nanoseconds.
    pub(crate) look_ns: u64,
    /// One look of this many takes [`STALL_NS`]: another process has the core.
    pub(crate) stall_every: u64,
}

/// How long a thread without its core waits.
const STALL_NS: u64 = 2_000_000;

/// When a world begins: not zero, as programs subtract from the time.
const BEGIN_NS: u64 = 1_000_000_000_000;

/// The calendar's time at the beginning, in seconds.
const EPOCH: u64 = 1_790_000_000;

thread_local! {
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
    static NOW: Cell<u64> = const { Cell::new(BEGIN_NS) };
    static PACE: Cell<Pace> = const { Cell::new(Pace { look_ns: 100, stall_every: 0 }) };
    static DRAWS: Cell<u64> = const { Cell::new(0) };
    static LOOKS: Cell<u64> = const { Cell::new(0) };
    static BEAT: Cell<u64> = const { Cell::new(0) };
}

/// From now on this thread has time of its own.
pub(crate) fn begin(pace: Pace, seed: u64) {
    PACE.set(pace);
    DRAWS.set(seed);
    IS_OWN.set(true);
}

/// Whether this thread has time of its own.
pub(crate) fn is_own() -> bool {
    // Also asked while thread-local state is destroyed.
    IS_OWN.try_with(Cell::get).unwrap_or(false)
}

/// A look at the clock: nanoseconds, after what the look itself took.
pub(crate) fn look() -> u64 {
    let draw = DRAWS.with(next_of);
    let pace = PACE.get();
    let is_stall = pace.stall_every > 0 && draw.is_multiple_of(pace.stall_every);
    let cost = if is_stall { STALL_NS } else { 1 + (draw >> 8) % (2 * pace.look_ns) };
    pass(cost);
    LOOKS.set(LOOKS.get() + 1);
    NOW.get()
}

/// Time passes.
pub(crate) fn pass(ns: u64) {
    NOW.set(NOW.get() + ns);
    mark(NOW.get());
}

/// Adds to the beat what else happened in an order that should repeat.
pub(crate) fn mark(what: u64) {
    BEAT.set((BEAT.get() ^ what).wrapping_mul(0x100_0000_01b3).rotate_left(17));
}

/// Microseconds since the world began, without a look.
pub(crate) fn elapsed_us() -> u64 {
    (NOW.get() - BEGIN_NS) / 1000
}

/// A hash of all looks and waits so far, and how many looks there were.
pub(crate) fn beat() -> (u64, u64) {
    (BEAT.get(), LOOKS.get())
}

/// The calendar's time, in seconds, at a number of nanoseconds.
pub(crate) fn calendar_s(ns: u64) -> u64 {
    EPOCH + ns / 1_000_000_000
}
