//! Work that may block, away from the threads that drive tasks.

use tokio::task::JoinHandle;

/// Runs the work on a thread that may block.
pub(crate) fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    // A simulation has one thread.
    #[cfg(feature = "model")]
    if rpc_transport::simulation::is_on() {
        return tokio::spawn(async move { work() });
    }
    tokio::task::spawn_blocking(work)
}
