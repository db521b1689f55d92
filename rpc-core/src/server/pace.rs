//! Whether a method's handlers run where they stand or as tasks, by how long their polls take.
//!
//! Owns the judgement and its counters, per method. Never runs a handler.
//!
//! Invariants:
//! 1. A method that asks for tasks has them always.
//! 2. No verdict is for ever: a long poll may be the machine's fault (a thread that lost its CPU), so
//!    tasks whose polls turn out to be short lead back, each time after twice as many of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Two timed inline polls in a row that are longer than this lead to tasks.
const LONG_POLL: Duration = Duration::from_micros(50);
/// An inline poll longer than this does so at once.
const BLOCKING_POLL: Duration = Duration::from_millis(5);
/// One in so many polls is timed.
const TIMED_POLLS: u32 = 64;
/// Timed polls of tasks in a row that have to be short, the first time.
const FIRST_PROOF: u32 = 4;
/// The same after many times.
const LONGEST_PROOF: u32 = 1 << 14;

/// How a method's handlers are run.
#[derive(Debug)]
pub(crate) struct Pace {
    wants_tasks: bool,
    as_tasks: AtomicBool,
    polls: AtomicU32,
    /// Timed polls in a row that speak against what is done now.
    streak: AtomicU32,
    /// Short polls that lead back from tasks.
    proof: AtomicU32,
}

impl Pace {
    /// Inline until polls are long; or always as tasks.
    pub(crate) fn new(wants_tasks: bool) -> Arc<Self> {
        Arc::new(Self {
            wants_tasks,
            as_tasks: AtomicBool::new(wants_tasks),
            polls: AtomicU32::new(0),
            streak: AtomicU32::new(0),
            proof: AtomicU32::new(FIRST_PROOF),
        })
    }

    /// Whether the next handler should be a task from the start.
    #[inline]
    pub(crate) fn works_long(&self) -> bool {
        self.as_tasks.load(Ordering::Relaxed)
    }

    /// Runs the first poll of a handler where it stands. True when it was long enough to matter.
    #[inline]
    pub(crate) fn inline<R>(&self, poll: impl FnOnce() -> R) -> (R, bool) {
        if !self.is_timed() {
            return (poll(), false);
        }
        let started = Instant::now();
        let polled = poll();
        (polled, self.on_inline_poll(started.elapsed()))
    }

    /// For a handler that becomes a task from the start: what to time its first poll with, if it is
    /// one of those.
    pub(crate) fn watch(self: &Arc<Self>) -> Option<Arc<Self>> {
        (!self.wants_tasks && self.is_timed()).then(|| Arc::clone(self))
    }

    /// Runs and times the first poll of a watched task.
    pub(crate) fn task<R>(&self, poll: impl FnOnce() -> R) -> R {
        let started = Instant::now();
        let polled = poll();
        self.on_task_poll(started.elapsed());
        polled
    }

    /// Counts a poll. What several threads count at once may be lost: a locked instruction for each
    /// call would cost more than the count is worth.
    #[inline]
    fn is_timed(&self) -> bool {
        let polls = self.polls.load(Ordering::Relaxed);
        self.polls.store(polls.wrapping_add(1), Ordering::Relaxed);
        polls.is_multiple_of(TIMED_POLLS)
    }

    fn on_inline_poll(&self, took: Duration) -> bool {
        if took <= LONG_POLL {
            self.streak.store(0, Ordering::Relaxed);
            return false;
        }
        let again = self.streak.fetch_add(1, Ordering::Relaxed) >= 1;
        let switches = again || took > BLOCKING_POLL;
        if switches {
            self.streak.store(0, Ordering::Relaxed);
            self.as_tasks.store(true, Ordering::Relaxed);
        }
        switches
    }

    fn on_task_poll(&self, took: Duration) {
        if took > LONG_POLL {
            return self.streak.store(0, Ordering::Relaxed);
        }
        let proof = self.proof.load(Ordering::Relaxed);
        if self.streak.fetch_add(1, Ordering::Relaxed) + 1 >= proof {
            self.proof.store((2 * proof).min(LONGEST_PROOF), Ordering::Relaxed);
            self.streak.store(0, Ordering::Relaxed);
            self.as_tasks.store(false, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(2);
    const LONG: Duration = Duration::from_micros(60);
    const BLOCKING: Duration = Duration::from_millis(6);

    #[test]
    fn two_long_polls_in_a_row_or_one_that_blocks_lead_to_tasks() {
        let pace = Pace::new(false);
        for took in [LONG, SHORT, LONG, SHORT] {
            assert!(!pace.on_inline_poll(took));
        }
        assert!(!pace.works_long());
        assert!(!pace.on_inline_poll(LONG) && pace.on_inline_poll(LONG));
        assert!(pace.works_long());
        let pace = Pace::new(false);
        assert!(pace.on_inline_poll(BLOCKING) && pace.works_long());
    }

    #[test]
    fn short_tasks_lead_back_each_time_after_twice_as_many() {
        let pace = Pace::new(false);
        for proof in [4, 8, 16] {
            assert!(pace.on_inline_poll(BLOCKING));
            for _ in 1..proof {
                pace.on_task_poll(SHORT);
                assert!(pace.works_long());
            }
            // Not in a row.
            pace.on_task_poll(LONG);
            for _ in 0..proof {
                assert!(pace.works_long());
                pace.on_task_poll(SHORT);
            }
            assert!(!pace.works_long());
        }
    }

    #[test]
    fn a_method_that_wants_tasks_keeps_them() {
        let pace = Pace::new(true);
        assert!(pace.works_long());
        assert!((0..1000).all(|_| pace.watch().is_none()));
        assert!(pace.works_long());
    }

    #[test]
    fn one_in_so_many_is_timed() {
        let pace = Pace::new(false);
        assert_eq!((0..640).filter(|_| pace.watch().is_some()).count(), 10);
    }
}
