//! How whoever polls waits: spin, yield the core, park.
//!
//! Owns the adaptive wait policy. Pure: it is told what happened and how long it took, and answers
//! what to do next. It adapts because each fixed policy loses by orders of magnitude somewhere: a
//! wake-up across cores costs tens of microseconds on a virtual machine; spinning with
//! `sched_yield` costs other threads nothing; and a core that other threads want should not be spun
//! on.
//!
//! Invariants:
//! 1. An idle endpoint parks: it never spins for longer than `SPIN_BUDGET` without an arrival.
//! 2. A core that other threads want is not yielded again and again: each slow yield is followed by
//!    `PARKS_AFTER_SLOW_YIELD` waits that park after a short spin, whatever arrives meanwhile.
//! 3. The budget drops to zero after `FAILURES_UNTIL_PARK` fruitless spins, and comes back after a
//!    park that was shorter than the budget would have been.

use std::time::Duration;

/// How a driver waits for the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum PollMode {
    /// Spins for about as long as a wake-up takes, yielding the core, then parks. An idle endpoint
    /// uses no CPU.
    #[default]
    Adaptive,
    /// Never parks: the lowest latency, one core per shard at 100 %.
    Busy,
    /// Parks at once: for tests, and for machines whose cores are needed by other work.
    Event,
}

/// Longest spin: about one wake-up across cores. Spinning longer gains nothing over parking.
const SPIN_BUDGET: Duration = Duration::from_micros(50);
/// Time of spinning before the core is yielded.
const QUIET_SPIN: Duration = Duration::from_micros(1);
/// A yield that took longer than this means that another thread wants the core.
const SLOW_YIELD: Duration = Duration::from_micros(20);
/// Waits that park at once after a slow yield: a parked thread is woken before those that only
/// yield.
const PARKS_AFTER_SLOW_YIELD: u8 = 8;
/// Fruitless spins in a row after which the budget is dropped.
const FAILURES_UNTIL_PARK: u8 = 3;
/// After a park shorter than this, spinning would have been better.
const SHORT_PARK: Duration = Duration::from_micros(120);

/// What to do while nothing arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Poll again at once.
    Spin,
    /// Call `sched_yield`, report how long it took, poll again.
    Yield,
    /// Arm and sleep.
    Park,
}

/// State of the wait policy of one shard.
#[derive(Debug)]
pub(crate) struct SpinPolicy {
    mode: PollMode,
    failures: u8,
    /// Waits left that park because another thread wants the core.
    parks: u8,
}

impl SpinPolicy {
    pub(crate) fn new(mode: PollMode) -> Self {
        Self { mode, failures: 0, parks: 0 }
    }

    /// Nothing has arrived for `idle_for`.
    pub(crate) fn on_idle(&mut self, idle_for: Duration) -> Wait {
        match self.mode {
            PollMode::Busy => Wait::Spin,
            PollMode::Event => Wait::Park,
            PollMode::Adaptive => self.adaptive(idle_for),
        }
    }

    fn adaptive(&mut self, idle_for: Duration) -> Wait {
        if self.failures >= FAILURES_UNTIL_PARK {
            return Wait::Park;
        }
        if idle_for < QUIET_SPIN {
            Wait::Spin
        } else if self.parks > 0 {
            Wait::Park
        } else if idle_for < SPIN_BUDGET {
            Wait::Yield
        } else {
            self.failures += 1;
            Wait::Park
        }
    }

    /// A `sched_yield` took this long.
    pub(crate) fn on_yielded(&mut self, took: Duration) {
        if took > SLOW_YIELD {
            self.parks = PARKS_AFTER_SLOW_YIELD;
        }
    }

    /// Something arrived while spinning.
    pub(crate) fn on_progress(&mut self) {
        self.failures = 0;
    }

    /// Something arrived `parked_for` after parking.
    pub(crate) fn on_woken(&mut self, parked_for: Duration) {
        self.parks = self.parks.saturating_sub(1);
        if parked_for < SHORT_PARK {
            self.failures = self.failures.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: fn(u64) -> Duration = Duration::from_micros;

    #[test]
    fn an_idle_adaptive_driver_spins_yields_and_parks() {
        let mut policy = SpinPolicy::new(PollMode::Adaptive);
        assert_eq!(policy.on_idle(US(0)), Wait::Spin);
        assert_eq!(policy.on_idle(US(10)), Wait::Yield);
        assert_eq!(policy.on_idle(US(60)), Wait::Park);
    }

    #[test]
    fn fruitless_spins_end_spinning_and_short_parks_bring_it_back() {
        let mut policy = SpinPolicy::new(PollMode::Adaptive);
        for _ in 0..FAILURES_UNTIL_PARK {
            assert_eq!(policy.on_idle(US(60)), Wait::Park);
        }
        assert_eq!(policy.on_idle(US(0)), Wait::Park);
        policy.on_woken(Duration::from_millis(10));
        assert_eq!(policy.on_idle(US(0)), Wait::Park);
        policy.on_woken(US(30));
        assert_eq!(policy.on_idle(US(0)), Wait::Spin);
    }

    #[test]
    fn a_slow_yield_is_followed_by_parks_whatever_arrives() {
        let mut policy = SpinPolicy::new(PollMode::Adaptive);
        policy.on_yielded(US(500));
        for _ in 0..PARKS_AFTER_SLOW_YIELD {
            policy.on_progress();
            assert_eq!(policy.on_idle(US(0)), Wait::Spin);
            assert_eq!(policy.on_idle(US(2)), Wait::Park);
            policy.on_woken(US(500));
        }
        assert_eq!(policy.on_idle(US(2)), Wait::Yield);
    }

    #[test]
    fn busy_never_parks_and_event_never_spins() {
        assert_eq!(SpinPolicy::new(PollMode::Busy).on_idle(Duration::from_secs(9)), Wait::Spin);
        assert_eq!(SpinPolicy::new(PollMode::Event).on_idle(US(0)), Wait::Park);
    }
}
