//! Yielding the core of this thread.

use std::time::{Duration, Instant};

/// Lets other threads have the core. Returns how long they had it.
pub(in crate::engine) fn yield_core() -> Duration {
    let began = Instant::now();
    // Not rustix's, which panics where a sandbox refuses the call.
    std::thread::yield_now();
    #[cfg(test)]
    if let Some(peer) = PEER.take() {
        peer();
        PEER.set(Some(peer));
        return TOOK.get();
    }
    began.elapsed()
}

#[cfg(test)]
thread_local! {
    /// What another thread does whenever this one yields its core, if a test has set it.
    pub(in crate::engine) static PEER: std::cell::Cell<Option<Box<dyn Fn()>>> =
        const { std::cell::Cell::new(None) };
    /// How long such a yield takes.
    pub(in crate::engine) static TOOK: std::cell::Cell<Duration> =
        const { std::cell::Cell::new(Duration::from_nanos(1_200)) };
}
