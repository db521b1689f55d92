//! A wait that is polled wherever its caller is, though timers belong to a runtime.
//!
//! Invariant: it outlives the runtime that keeps the time: tokio panics where a timer of a runtime
//! that has ended is polled, so such a timer is made anew in the next runtime of the channel.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::runtime::{Handle, Id};
use tokio::task::JoinHandle;
use tokio::time::Sleep;

use super::home::Home;

/// Timers that are made at most in one poll: in the runtime that has kept the time so far, in the
/// channel's, in the caller's, and on our own thread.
const TRIES: u32 = 4;

/// Waits until a time. Costs a task where the caller is not in the runtime of the channel.
#[derive(Debug)]
pub(crate) struct Timer {
    at: Instant,
    kept: Kept,
}

/// Who keeps the time.
#[derive(Debug)]
enum Kept {
    NotYet,
    /// A timer of the runtime that polls it.
    Here(Id, Pin<Box<Sleep>>),
    /// A task in another runtime: if that ends, the task does, and says so.
    There(Id, JoinHandle<()>),
}

impl Timer {
    pub(crate) fn at(at: Instant) -> Self {
        Self { at, kept: Kept::NotYet }
    }

    /// Ready when the time has come. Also if no runtime is left that could say so: nobody is to
    /// wait without an end for what has one.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, home: &Home) -> Poll<()> {
        for _ in 0..TRIES {
            match self.poll_kept(cx) {
                Some(Poll::Ready(Err(ended))) => home.on_ended(ended),
                Some(polled) => return polled.map(|_| ()),
                None => {}
            }
            self.kept = match home.is_here() {
                Some(here) => Kept::Here(here, Box::pin(tokio::time::sleep_until(self.at.into()))),
                None => {
                    let (runtime, at) = (home.runtime(), self.at);
                    let wait = async move { tokio::time::sleep_until(at.into()).await };
                    Kept::There(runtime.id(), runtime.spawn(wait))
                }
            };
        }
        match self.poll_kept(cx) {
            Some(Poll::Pending) => Poll::Pending,
            _ => Poll::Ready(()),
        }
    }

    /// `None`: there is no timer that can be polled here. An error: its runtime has ended.
    fn poll_kept(&mut self, cx: &mut Context<'_>) -> Option<Poll<Result<(), Id>>> {
        match &mut self.kept {
            Kept::NotYet => None,
            Kept::Here(runtime, sleep) => {
                Handle::try_current().is_ok_and(|here| here.id() == *runtime).then_some(())?;
                // A caller can be in a runtime that has ended: by `Handle::block_on`.
                let polled = catch_unwind(AssertUnwindSafe(|| sleep.as_mut().poll(cx)));
                Some(polled.map_or(Poll::Ready(Err(*runtime)), |polled| polled.map(Ok)))
            }
            Kept::There(runtime, task) => {
                Some(Pin::new(task).poll(cx).map(|ended| ended.map_err(|_| *runtime)))
            }
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let Kept::There(_, task) = &self.kept {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn a_timer_outlives_the_runtime_of_its_channel() {
        for waits_inside in [false, true] {
            let first = Builder::new_current_thread().enable_all().build().unwrap();
            let second = Builder::new_current_thread().build().unwrap();
            let home = {
                let _here = first.enter();
                Home::here()
            };
            let mut timer = Timer::at(Instant::now() + Duration::from_millis(20));
            let mut cx = Context::from_waker(std::task::Waker::noop());
            {
                let _inside = waits_inside.then(|| first.enter());
                assert!(timer.poll(&mut cx, &home).is_pending());
            }
            drop(first);
            // A runtime that keeps no time.
            second.block_on(poll_fn(|cx| timer.poll(cx, &home)));
            assert!(timer.at <= Instant::now());
        }
    }

    #[test]
    fn a_timer_made_in_an_ended_runtime_fires() {
        let first = Builder::new_current_thread().enable_all().build().unwrap();
        let handle = first.handle().clone();
        let home = {
            let _here = first.enter();
            Home::here()
        };
        drop(first);
        let mut timer = Timer::at(Instant::now() + Duration::from_millis(20));
        handle.block_on(poll_fn(|cx| timer.poll(cx, &home)));
        assert!(timer.at <= Instant::now());
    }
}
