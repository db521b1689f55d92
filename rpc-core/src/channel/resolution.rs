//! When to resolve a name into end points.
//!
//! Owns the timing of the look-ups and the count of the answers. Looks nothing up itself: one task
//! at a time, the *asker*, calls [`Resolution::step`] for what to do, does it, and reports the
//! answer.
//!
//! Invariants:
//! 1. At most one asker runs, so at most one look-up is in progress.
//! 2. No look-up starts before the time set by the previous answer.
//! 3. While a call waits for end points and there are none, an asker runs or must be started:
//!    [`Resolution::start`] says so to every such call.

use std::time::{Duration, Instant};

use rpc_transport::wait::after;

/// The asker's next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// Look the name up, and report the answer.
    Ask,
    /// Wait until then, then call [`Resolution::step`] again.
    Sleep(Instant),
    /// End, and notify the waiters.
    Stop,
}

/// The look-ups of one name.
#[derive(Debug, Default)]
pub struct Resolution {
    /// Whether an asker runs.
    runs: bool,
    /// Whether the asker must look up once more, even without waiters.
    owes_question: bool,
    /// The earliest time of the next look-up.
    next_at: Option<Instant>,
    /// Consecutive failed look-ups.
    failures: u32,
    failed: u64,
    answers: u64,
}

impl Resolution {
    /// Whether an asker runs.
    #[must_use]
    pub fn runs(&self) -> bool {
        self.runs
    }

    /// Number of answers so far, including failures.
    #[must_use]
    pub fn answers(&self) -> u64 {
        self.answers
    }

    /// Number of failures so far.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failed
    }

    /// Connections are missing. True: the caller must start an asker. `waits`: a call waits for end
    /// points without limit, so an asker is useful even before the next look-up is due.
    #[must_use]
    pub fn start(&mut self, now: Instant, waits: bool) -> bool {
        let is_due = self.next_at.is_none_or(|at| at <= now);
        let starts = !self.runs && (is_due || waits);
        if starts {
            (self.runs, self.owes_question) = (true, true);
        }
        starts
    }

    /// The asker's next step. `waits`: a call waits for end points, and there are none.
    pub fn step(&mut self, now: Instant, waits: bool) -> Question {
        if !waits && !self.owes_question {
            self.runs = false;
            return Question::Stop;
        }
        if let Some(at) = self.next_at.filter(|at| *at > now) {
            return Question::Sleep(at);
        }
        self.owes_question = false;
        Question::Ask
    }

    /// Records an answer with end points. The next look-up is due after a while.
    pub fn on_resolved(&mut self, next_at: Instant) {
        self.answers += 1;
        self.failures = 0;
        self.next_at = Some(next_at);
    }

    /// Records a failed look-up. The next one is due after `delay(failures in a row)`.
    pub fn on_failed(&mut self, now: Instant, delay: impl FnOnce(u32) -> Duration) {
        self.answers += 1;
        self.failed += 1;
        self.failures = self.failures.saturating_add(1);
        self.next_at = Some(after(now, delay(self.failures)));
    }

    /// Records that the asker's task was dropped.
    pub fn on_asker_gone(&mut self) {
        (self.runs, self.owes_question) = (false, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn one_look_up_at_a_time_not_early() {
        let (mut resolution, now) = (Resolution::default(), Instant::now());
        assert!(resolution.start(now, false) && !resolution.start(now, true));
        assert_eq!(resolution.step(now, false), Question::Ask, "it owes one");
        resolution.on_resolved(now + SECOND);
        assert_eq!(resolution.step(now, false), Question::Stop);
        assert!(!resolution.start(now, false) && resolution.start(now + SECOND, false));
        assert_eq!(resolution.step(now + SECOND, false), Question::Ask);
    }

    #[test]
    fn who_waits_after_a_failure_has_an_asker() {
        let (mut resolution, now) = (Resolution::default(), Instant::now());
        assert!(resolution.start(now, false));
        assert_eq!(resolution.step(now, false), Question::Ask);
        resolution.on_failed(now, |failures| failures * SECOND);
        assert_eq!(resolution.step(now, false), Question::Stop);
        assert!(!resolution.start(now, false), "it would wait in vain");
        assert!(resolution.start(now, true));
        assert_eq!(resolution.step(now, true), Question::Sleep(now + SECOND));
        assert_eq!(resolution.step(now + SECOND, true), Question::Ask);
        resolution.on_failed(now + SECOND, |failures| failures * SECOND);
        assert_eq!(resolution.step(now + SECOND, true), Question::Sleep(now + 3 * SECOND));
        assert_eq!((resolution.answers(), resolution.failed()), (2, 2));
    }

    #[test]
    fn an_asker_that_vanishes_is_replaced() {
        let (mut resolution, now) = (Resolution::default(), Instant::now());
        assert!(resolution.start(now, false));
        resolution.on_asker_gone();
        assert!(!resolution.runs() && resolution.start(now, false));
    }

    #[test]
    fn a_wait_beyond_the_clock_is_long() {
        let (mut resolution, now) = (Resolution::default(), Instant::now());
        assert!(resolution.start(now, false));
        resolution.on_failed(now, |_| Duration::MAX);
        resolution.on_asker_gone();
        assert!(!resolution.start(now + 1000 * SECOND, false));
    }
}
