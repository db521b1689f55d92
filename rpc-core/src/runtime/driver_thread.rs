//! The thread that drives the connection of a blocking client, and who may wait for it. Channels
//! that have lost their runtime live on such a thread, too: see [`home`](super::home).
//!
//! Invariants:
//! 1. The runtime lives on its own thread and ends with the last handle.
//! 2. In a child of `fork(2)`, where the thread is missing, nothing waits for it and nothing ends
//!    it.
//! 3. No call waits on a thread that drives asynchronous tasks: it panics instead, at once.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};

use rpc_transport::memory::process::{FORKED, Process};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::coop;

/// The thread that drives the connection.
pub(crate) struct DriverThread {
    runtime: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    process: Process,
}

impl DriverThread {
    /// Starts the thread, under this name.
    pub(crate) fn start(name: &str) -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            // Ends when the sender is dropped.
            let _ = runtime.block_on(stopped);
        })?;
        let process = Process::current();
        Ok(Self { runtime: handle, stop: Some(stop), thread: Some(thread), process })
    }

    /// The runtime that the thread drives.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Waits on this thread, while the driver's thread serves I/O and timers.
    ///
    /// # Panics
    /// In a child of `fork(2)`, if the future has to wait. Calls do not have to: they fail at
    /// once.
    pub(crate) fn wait<F: Future>(&self, future: F) -> F::Output {
        if !self.process.is_current() {
            return at_once(future);
        }
        self.runtime.block_on(future)
    }
}

impl Drop for DriverThread {
    fn drop(&mut self) {
        if !self.process.is_current() {
            return std::mem::forget((self.stop.take(), self.thread.take()));
        }
        drop(self.stop.take());
        // Inside a runtime (or on the driver itself) the thread ends a little later.
        if Handle::try_current().is_err()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for DriverThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DriverThread")
    }
}

/// The output of a future that does not have to wait.
#[cold]
fn at_once<F: Future>(future: F) -> F::Output {
    let mut cx = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut cx) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the blocking RPC client {FORKED}"),
    }
}

/// Panics where waiting would block a runtime.
///
/// # Panics
/// On a thread that drives asynchronous tasks.
pub(crate) fn refuse_inside_a_runtime() {
    assert!(
        Handle::try_current().is_err() || !is_in_a_task(),
        "a blocking RPC client was used inside an async runtime, which it would block: use the \
         asynchronous client, or move the call to tokio::task::spawn_blocking"
    );
}

/// Most steps that a runtime lets a task do in one poll, and more.
const MAX_BUDGET: usize = 1024;

/// Whether this thread polls a future of a runtime. There is no such question to ask a runtime, and
/// it panics when it is asked to wait where it must not. But what it polls has a budget, and what
/// may block has none.
///
/// A future that has been freed of its budget is not seen: there the runtime's own panic says so.
fn is_in_a_task() -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    (0..MAX_BUDGET).any(|_| match coop::poll_proceed(&mut cx) {
        Poll::Ready(step) => {
            step.made_progress();
            false
        }
        Poll::Pending => true,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_runtime_ends_with_its_driver() {
        let driver = DriverThread::start("driver").unwrap();
        let alive = Arc::new(());
        let held = Arc::clone(&alive);
        driver.wait(async move {
            tokio::spawn(async move {
                let _held = held;
                std::future::pending::<()>().await;
            });
        });
        assert_eq!(Arc::strong_count(&alive), 2);
        drop(driver);
        assert_eq!(Arc::strong_count(&alive), 1, "the thread is gone, and its tasks with it");
    }

    #[test]
    fn a_driver_dropped_inside_a_runtime_blocks_nobody() {
        let driver = DriverThread::start("driver").unwrap();
        let runtime = Builder::new_current_thread().build().unwrap();
        runtime.block_on(async move { drop(driver) });
    }
}
