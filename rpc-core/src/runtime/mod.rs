//! Shared utilities of clients and servers, unknown to the protocol.

pub(crate) mod driver_thread;
pub(crate) mod home;
pub(crate) mod phase;
pub(crate) mod random;
pub(crate) mod timer;
pub(crate) mod watched;

/// Runs what may block on a thread for that; in a simulation, which has one, as a task.
pub(crate) fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    #[cfg(feature = "model")]
    if rpc_transport::simulation::GIVES_WAY.get().is_some() {
        return tokio::spawn(async { work() });
    }
    tokio::task::spawn_blocking(work)
}
