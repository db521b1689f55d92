//! What a simulator of whole systems changes in its process, which has one thread.

use std::sync::OnceLock;

/// How often code gives way where others wait for what it holds. Only a simulator sets it.
pub static GIVES_WAY: OnceLock<fn() -> u32> = OnceLock::new();

/// Lets other tasks run, as another thread would.
pub(crate) async fn give_way() {
    for _ in 0..GIVES_WAY.get().map_or(0, |count| count()) {
        tokio::task::yield_now().await;
    }
}
