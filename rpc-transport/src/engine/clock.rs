//! The clock of everything above the devices: tokio's.
//!
//! Owns nothing. Deadlines, keep-alive and draining go by it, so a test that pauses the clock
//! (`#[tokio::test(start_paused = true)]`) moves them too. How long to spin, and how long a handler
//! took, is measured by the machine's own: they are about CPU time.

use std::time::Instant;

/// Now, by the clock of the runtime that this thread is in. Outside of one, and in one whose clock
/// was not paused, that is [`Instant::now`] and costs what it costs.
#[inline]
#[must_use]
pub fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
