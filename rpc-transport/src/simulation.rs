//! What a simulator of whole systems changes in this process. Nobody else switches it on.
//!
//! A simulation runs on one thread, so that its seed repeats it. Two things need more than one:
//! work that blocks, which then runs as a task of the runtime, and a task that meets another one in
//! the middle of a critical section, for which code gives way there.

use std::sync::OnceLock;

/// How often code gives way at a place.
static GIVES_WAY: OnceLock<fn() -> u32> = OnceLock::new();

/// From now on this process simulates. `gives_way` is asked at each place where the code may give
/// way, and returns how often it does.
pub fn begin(gives_way: fn() -> u32) {
    let _ = GIVES_WAY.set(gives_way);
}

/// Whether this process simulates.
#[must_use]
pub fn is_on() -> bool {
    GIVES_WAY.get().is_some()
}

/// Lets other tasks run, as another thread would.
pub async fn give_way() {
    let count = GIVES_WAY.get().map_or(0, |gives_way| gives_way());
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}
