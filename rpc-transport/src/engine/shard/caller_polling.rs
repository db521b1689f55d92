//! How long the caller of a single outstanding call polls the CQ before it leaves that to the
//! driver.
//!
//! Owns an estimate of how many polls an answer takes, learnt from earlier calls. Counts polls
//! rather than time, so it needs no clock and adapts to the cost of a poll on this device.
//!
//! Invariants:
//! 1. A caller polls [`MOST_POLLS`] times at most.
//! 2. Where answers take longer than that, few callers poll: after [`PATIENCE`] calls without
//!    success, the next [`PAUSE_CALLS`] do not poll at all.

/// Polls that the first call makes: more than a round trip takes over shared memory.
const FIRST_POLLS: u32 = 64;
/// Most polls of one call: some ten microseconds. An answer that takes longer is not worth polling
/// for.
const MOST_POLLS: u32 = 512;
/// Calls in a row that polled in vain before polling pauses.
const PATIENCE: u32 = 6;
/// Calls that do not poll during such a pause.
const PAUSE_CALLS: u32 = 64;

/// The estimate.
#[derive(Debug)]
pub(super) struct CallerPolling {
    polls: u32,
    failures: u32,
    /// Calls left that do not poll.
    pause: u32,
}

impl Default for CallerPolling {
    fn default() -> Self {
        Self { polls: FIRST_POLLS, failures: 0, pause: 0 }
    }
}

impl CallerPolling {
    /// How often the next call may poll.
    #[inline]
    pub(super) fn budget(&mut self) -> u32 {
        if self.pause == 0 {
            return self.polls;
        }
        self.pause -= 1;
        0
    }

    /// The answer came within the budget.
    #[inline]
    pub(super) fn on_answered(&mut self) {
        self.failures = 0;
    }

    /// The budget was used up without the answer.
    #[cold]
    pub(super) fn on_given_up(&mut self) {
        self.failures += 1;
        self.polls = (2 * self.polls).min(MOST_POLLS);
        if self.failures >= PATIENCE {
            *self = Self { pause: PAUSE_CALLS, ..Self::default() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls that `calls` calls make in all, when each answer takes `needed`.
    fn spent(lone: &mut CallerPolling, calls: u32, needed: u32) -> u32 {
        (0..calls)
            .map(|_| match lone.budget() {
                0 => 0,
                budget if needed <= budget => {
                    lone.on_answered();
                    needed
                }
                budget => {
                    lone.on_given_up();
                    budget
                }
            })
            .sum()
    }

    #[test]
    fn it_learns_how_long_an_answer_takes() {
        let mut lone = CallerPolling::default();
        spent(&mut lone, 4, 300);
        assert_eq!(spent(&mut lone, 100, 300), 100 * 300);
    }

    #[test]
    fn slow_answers_are_left_to_the_driver() {
        let mut lone = CallerPolling::default();
        let calls = 70_000;
        assert!(spent(&mut lone, calls, 1_000_000) < calls * 40);
    }

    #[test]
    fn it_finds_out_when_answers_are_fast_again() {
        let mut lone = CallerPolling::default();
        spent(&mut lone, 1000, 1_000_000);
        spent(&mut lone, PATIENCE + PAUSE_CALLS, 10);
        assert_eq!(spent(&mut lone, 100, 10), 100 * 10);
    }
}
