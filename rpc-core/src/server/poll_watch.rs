//! Finds handlers whose first poll computes or blocks for long, which delays others; the
//! interceptors that run with it included.
//!
//! Owns the one warning per method. Never changes how a handler is run: the user decides that, with
//! `#[rpc(spawn)]`.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// An inline poll that takes longer is worth a warning.
const LONG_POLL: Duration = Duration::from_millis(1);
/// Of this many polls, the first is timed.
const TIMED_POLLS: u32 = 64;

/// The watch over a method's inline polls.
#[derive(Debug, Default)]
pub(crate) struct PollWatch {
    polls: AtomicU32,
    has_warned: AtomicBool,
}

impl PollWatch {
    /// Runs the first (inline) poll of a handler of `method`, during which the driver stands still.
    #[inline]
    pub(crate) fn poll<R>(&self, method: &str, poll: impl FnOnce() -> R) -> R {
        let started = self.start();
        let polled = poll();
        self.end(method, started);
        polled
    }

    /// A poll begins. Gives when, if it is one that is timed.
    #[inline]
    pub(crate) fn start(&self) -> Option<Instant> {
        self.is_timed().then(Instant::now)
    }

    /// It has ended.
    #[inline]
    pub(crate) fn end(&self, method: &str, started: Option<Instant>) {
        if let Some(started) = started {
            self.on_poll(method, started.elapsed());
        }
    }

    /// Counts a poll. Concurrent counts of several threads may be lost: an atomic read-modify-write
    /// for each call would cost more than the count is worth.
    #[inline]
    fn is_timed(&self) -> bool {
        let polls = self.polls.load(Ordering::Relaxed);
        self.polls.store(polls.wrapping_add(1), Ordering::Relaxed);
        polls.is_multiple_of(TIMED_POLLS)
    }

    fn on_poll(&self, method: &str, took: Duration) {
        if took > LONG_POLL && !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                method,
                ?took,
                "a handler or its interceptor runs too long between two awaits and blocks all \
                 connections of its driver: mark the method #[rpc(spawn)], spawn it with \
                 `ServerBuilder::spawn_calls_to`, or move the work to tokio::task::spawn_blocking; \
                 move the work of an interceptor to a layer"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_poll_and_some_later_are_timed() {
        let watch = PollWatch::default();
        let timed: Vec<bool> = (0..130).map(|_| watch.is_timed()).collect();
        let at: Vec<usize> = (0..130).filter(|at| timed[*at]).collect();
        assert_eq!(at, [0, 64, 128]);
    }

    #[test]
    fn a_method_is_warned_of_once() {
        let watch = PollWatch::default();
        watch.on_poll("T.f", LONG_POLL);
        assert!(!watch.has_warned.load(Ordering::Relaxed));
        watch.on_poll("T.f", LONG_POLL * 2);
        assert!(watch.has_warned.load(Ordering::Relaxed));
    }
}
