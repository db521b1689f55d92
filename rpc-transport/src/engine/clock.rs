//! The clock of everything above the devices: tokio's.
//!
//! Owns nothing. Deadlines, keep-alive and draining use it, so a test that pauses the clock
//! (`#[tokio::test(start_paused = true)]`) controls them too. Spin times and handler times are
//! measured by the machine's clock instead: they are about CPU time.

use std::time::Instant;

/// Now, by the clock of the runtime that this thread is in. Outside of a runtime, and while its
/// clock is not paused, this is [`Instant::now`] at the same cost.
#[inline]
#[must_use]
pub fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
