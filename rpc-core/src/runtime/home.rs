//! The runtime that the tasks of a channel run on, and where they go when it ends.
//!
//! Owns the choice, and the thread that takes channels in whose runtime has ended. Runs nothing
//! itself.
//!
//! Invariants:
//! 1. A runtime that has ended is left, and is not taken again.
//! 2. A channel moves only to a runtime with threads that drive it: the caller's if it has worker
//!    threads, else the one on our own thread. A runtime of one thread runs only inside of
//!    `block_on`, so tasks there may never run again.

use std::io;

use rpc_transport::lock::Mutex;
use tokio::runtime::{Handle, Id, RuntimeFlavor};

use super::driver_thread::DriverThread;

/// The runtime of a channel.
#[derive(Debug)]
pub(crate) struct Home(Mutex<State>);

#[derive(Debug)]
struct State {
    runtime: Handle,
    has_ended: bool,
}

impl Home {
    /// This thread's runtime.
    ///
    /// # Panics
    /// Outside a runtime.
    pub(crate) fn here() -> Self {
        Self(Mutex::new(State { runtime: Handle::current(), has_ended: false }))
    }

    /// The runtime to spawn on: another one if the last is known to have ended.
    pub(crate) fn runtime(&self) -> Handle {
        let ended = {
            let state = self.0.lock();
            if !state.has_ended {
                return state.runtime.clone();
            }
            state.runtime.id()
        };
        let next = elsewhere(ended);
        // What is left of the one that has ended is dropped when the lock has been released.
        let mut _left = None;
        let mut state = self.0.lock();
        if let Some(next) = next
            && state.has_ended
            && state.runtime.id() == ended
        {
            _left = Some(std::mem::replace(&mut state.runtime, next));
            state.has_ended = false;
        }
        state.runtime.clone()
    }

    /// Whether this thread is in the channel's runtime.
    pub(crate) fn is_here(&self) -> Option<Id> {
        let here = Handle::try_current().ok()?.id();
        let state = self.0.lock();
        (state.runtime.id() == here && !state.has_ended).then_some(here)
    }

    /// A runtime has dropped a task that was not done. It may have been left before that.
    pub(crate) fn on_ended(&self, runtime: Id) {
        let mut state = self.0.lock();
        state.has_ended |= state.runtime.id() == runtime;
    }
}

/// Another runtime than the one that has ended. `None`: the system has no thread left for one.
fn elsewhere(ended: Id) -> Option<Handle> {
    if let Ok(here) = Handle::try_current()
        && here.runtime_flavor() == RuntimeFlavor::MultiThread
        && here.id() != ended
    {
        return Some(here);
    }
    match own_thread() {
        Ok(runtime) => Some(runtime),
        Err(error) => {
            tracing::error!(%error, "a channel whose runtime has ended finds no thread to go on");
            None
        }
    }
}

/// The runtime of a thread of this process, which lives as long as the process.
fn own_thread() -> io::Result<Handle> {
    /// With the process that it is of: a child of a fork has no threads of its parent.
    static THREAD: Mutex<Option<(u32, DriverThread)>> = Mutex::new(None);
    let mut thread = THREAD.lock();
    let process = std::process::id();
    if let Some((of, known)) = &*thread
        && *of == process
    {
        return Ok(known.runtime().clone());
    }
    let new = DriverThread::start("rpc-channels")?;
    let runtime = new.runtime().clone();
    // Nobody ends a thread that only the parent has.
    std::mem::forget(thread.replace((process, new)));
    Ok(runtime)
}
