//! Whether a call that has failed is tried again, and when: gRPC A6.
//!
//! Owns the policy and the decision. Is only asked about calls whose handler may have begun, and of
//! these only about idempotent ones: a call that never left goes again in any case, uncounted.

use std::time::{Duration, Instant};

use super::backoff::Backoff;
use super::throttle::Throttle;

/// How failed calls of methods marked `#[rpc(idempotent)]` are tried again. Others never are, once
/// their handler may have begun.
///
/// What is tried again: a call whose connection was lost before its answer came, and one that the
/// server has ended with a [retryable](crate::Status::is_retryable) status. A method's own error is
/// an answer like any other. All attempts are within the call's deadline.
///
/// Of an attempt the arguments are kept until its answer is there. Byte strings beside the body are
/// shared for that; a body above 64 KiB is not kept, and so not tried again.
///
/// ```
/// use rpc_core::{Backoff, Channel, RetryPolicy};
/// use std::time::Duration;
///
/// let backoff = Backoff::new().initial(Duration::from_millis(5)).max(Duration::from_millis(200));
/// let builder = Channel::builder().retry(RetryPolicy::new().max_attempts(3).backoff(backoff));
/// let never = Channel::builder().retry(None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetryPolicy {
    max_attempts: u32,
    backoff: Backoff,
    max_tokens: u16,
    token_ratio: f64,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self::new()
    }
}

impl RetryPolicy {
    /// Five attempts, 10 ms to 1 s apart; a throttle of 10 tokens and a ratio of 0.1.
    #[must_use]
    pub const fn new() -> Self {
        let backoff = Backoff::new()
            .initial(Duration::from_millis(10))
            .multiplier(2.0)
            .max(Duration::from_secs(1));
        Self { max_attempts: 5, backoff, max_tokens: 10, token_ratio: 0.1 }
    }

    /// Attempts of one call at most, the first one included. Default 5. Attempts of which nothing
    /// was sent do not count.
    #[must_use]
    pub const fn max_attempts(mut self, count: u32) -> Self {
        self.max_attempts = count;
        self
    }

    /// How long to wait before each further attempt, unless the server says:
    /// [`Status::with_retry_after`](crate::Status::with_retry_after). Default: 10 ms, twice as long
    /// each time, at most 1 s.
    #[must_use]
    pub const fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// The throttle of the channel: a failure takes one of `max_tokens`, a success gives `ratio` of
    /// one back, and while no more than half are left nothing is tried again. Default 10 and 0.1;
    /// no tokens: no throttle. The calls that end with one connection count as one failure.
    #[must_use]
    pub const fn throttle(mut self, max_tokens: u16, ratio: f64) -> Self {
        (self.max_tokens, self.token_ratio) = (max_tokens, ratio);
        self
    }

    /// A throttle with its parameters.
    #[must_use]
    pub fn new_throttle(&self) -> Throttle {
        Throttle::new(self.max_tokens, self.token_ratio)
    }

    /// Attempts of one call at most.
    #[must_use]
    pub(crate) fn attempts(&self) -> u32 {
        self.max_attempts
    }

    /// Whether there may be a second attempt at all.
    #[must_use]
    pub fn may_retry(&self) -> bool {
        self.max_attempts > 1
    }
}

/// How an attempt has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failed {
    /// With its connection: the end point and the epoch.
    Lost(usize, u64),
    /// By the server's word, which may say when to come back.
    Refused(Option<Duration>),
}

/// The attempts of one call.
#[derive(Debug, Clone, Copy, Default)]
pub struct Attempts {
    /// Those that have failed.
    failed: u32,
    /// Those since the server named a time.
    since_told: u32,
}

impl Attempts {
    /// Attempts that have failed so far.
    #[must_use]
    pub fn failed(&self) -> u32 {
        self.failed
    }

    /// An attempt has failed. The time until the next one; `None`: that was the last.
    pub fn after(
        &mut self,
        failed: Failed,
        policy: &RetryPolicy,
        throttle: &mut Throttle,
        now: Instant,
        deadline: Option<Instant>,
        random: u64,
    ) -> Option<Duration> {
        self.failed = self.failed.saturating_add(1);
        let told = match failed {
            Failed::Lost(end_point, epoch) => {
                throttle.on_lost(end_point, epoch);
                None
            }
            Failed::Refused(told) => {
                throttle.on_failure();
                told
            }
        };
        if self.failed >= policy.max_attempts || !throttle.allows() {
            return None;
        }
        let delay = match told {
            Some(delay) => {
                self.since_told = 0;
                delay
            }
            None => {
                self.since_told += 1;
                policy.backoff.delay(self.since_told, random)
            }
        };
        let at = now.checked_add(delay)?;
        deadline.is_none_or(|deadline| at < deadline).then_some(delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn policy() -> RetryPolicy {
        let backoff = Backoff::new().initial(10 * MS).multiplier(2.0).max(50 * MS).jitter(0.0);
        RetryPolicy::new().backoff(backoff)
    }

    #[test]
    fn attempts_are_counted_and_waits_grow() {
        let (policy, now) = (policy(), Instant::now());
        let mut throttle = policy.new_throttle();
        let mut attempts = Attempts::default();
        let mut after = |failed| attempts.after(failed, &policy, &mut throttle, now, None, 0);
        assert_eq!(after(Failed::Lost(0, 1)), Some(10 * MS));
        assert_eq!(after(Failed::Lost(0, 2)), Some(20 * MS));
        assert_eq!(after(Failed::Refused(None)), Some(40 * MS));
        assert_eq!(after(Failed::Refused(None)), Some(50 * MS));
        assert_eq!(after(Failed::Lost(0, 3)), None, "the fifth was the last");
    }

    #[test]
    fn the_servers_word_on_the_wait_counts_and_starts_the_backoff_anew() {
        let (policy, now) = (policy(), Instant::now());
        let mut throttle = policy.new_throttle();
        let mut attempts = Attempts::default();
        let mut after = |failed| attempts.after(failed, &policy, &mut throttle, now, None, 0);
        assert_eq!(after(Failed::Refused(None)), Some(10 * MS));
        assert_eq!(after(Failed::Refused(Some(700 * MS))), Some(700 * MS));
        assert_eq!(after(Failed::Refused(None)), Some(10 * MS));
    }

    #[test]
    fn what_would_be_after_the_deadline_is_not_tried() {
        let (policy, now) = (policy(), Instant::now());
        let mut throttle = policy.new_throttle();
        let mut after = |deadline| {
            let failed = Failed::Lost(0, 1);
            let mut attempts = Attempts::default();
            attempts.after(failed, &policy, &mut throttle, now, Some(now + deadline), 0)
        };
        assert_eq!(after(10 * MS), None);
        assert_eq!(after(11 * MS), Some(10 * MS));
    }

    #[test]
    fn an_empty_throttle_ends_retries_of_all_calls() {
        let (policy, now) = (policy(), Instant::now());
        let mut throttle = policy.new_throttle();
        let tried = (0..100).filter(|_| {
            let failed = Failed::Refused(None);
            Attempts::default().after(failed, &policy, &mut throttle, now, None, 0).is_some()
        });
        assert_eq!(tried.count(), 4);
    }
}
