//! Decides whether and when a failed call is retried: gRPC A6.
//!
//! Owns the policy and the decision. Only used for idempotent calls whose handler may have begun: a
//! call that was never sent is sent again in any case, uncounted.

use std::time::{Duration, Instant};

use rpc_transport::wait::after;

use super::backoff::Backoff;
use super::throttle::Throttle;

/// The longest wait before another attempt that a server can ask for: one server among many cannot
/// disable retries and second attempts permanently.
pub const LONGEST_PUSHBACK: Duration = Duration::from_secs(60);

/// How failed calls of methods marked `#[rpc(idempotent)]` are retried. Calls of other methods are
/// never retried once their handler may have begun.
///
/// A call is retried if its connection was lost before the answer, or if the server ended it with a
/// [retryable](crate::Status::is_retryable) status. A method's own error is an answer like any
/// other. All attempts are within the call's deadline.
///
/// The arguments of an attempt are kept until its answer arrives. Byte strings beside the body are
/// shared, not copied; a body above 64 KiB is not kept, so such a call is not retried.
///
/// ```
/// use rpc_core::Channel;
/// use rpc_core::client::{Backoff, RetryPolicy};
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

    /// Maximum number of attempts of a call, including the first. Default 5. Attempts that were
    /// never sent do not count.
    #[must_use]
    pub const fn max_attempts(mut self, count: u32) -> Self {
        self.max_attempts = count;
        self
    }

    /// How long to wait before each further attempt, unless the server says so:
    /// [`Status::with_retry_after`](crate::Status::with_retry_after), capped at a minute. Default:
    /// 10 ms, twice as long each time, at most 1 s.
    #[must_use]
    pub const fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// The throttle of the channel, which keeps retries from adding to an overload. A failed call
    /// of an idempotent method takes one of `max_tokens`, whatever the number of its attempts; a
    /// successful one returns `ratio` of a token. While at most half of the tokens are left, no
    /// call is retried: by default after five such failures in a row, until ten times as many calls
    /// have succeeded. Default 10 and 0.1; no tokens: no throttle. Calls that fail with the same
    /// connection count as one failure.
    ///
    /// When the throttle engages, a warning is logged, and
    /// [`ChannelStats::retries_throttled`](crate::stats::ChannelStats::retries_throttled) counts
    /// the calls that were not retried because of it.
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

    /// Maximum number of attempts of a call.
    #[must_use]
    pub(crate) fn attempts(&self) -> u32 {
        self.max_attempts
    }

    /// Whether calls may have more than one attempt.
    #[must_use]
    pub fn may_retry(&self) -> bool {
        self.max_attempts > 1
    }
}

/// How an attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failed {
    /// Its connection was lost: the end point and the epoch.
    Lost(usize, u64),
    /// The server failed it, and may have said when to retry.
    Refused(Option<Duration>),
}

/// The attempts of one call.
#[derive(Debug, Clone, Copy, Default)]
pub struct Attempts {
    /// The failed ones.
    failed: u32,
    /// Those since the last pushback.
    since_told: u32,
}

impl Attempts {
    /// Attempts that have failed so far.
    #[must_use]
    pub fn failed(&self) -> u32 {
        self.failed
    }

    /// Records that an attempt failed. Returns the time until the next one; `None`: that was the
    /// last.
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
        // The attempts of a call take one token together: a single call does not close the
        // throttle.
        match failed {
            _ if self.failed > 1 => {}
            Failed::Lost(end_point, epoch) => throttle.on_lost(end_point, epoch),
            Failed::Refused(_) => throttle.on_failure(),
        }
        let told = match failed {
            Failed::Lost(..) => None,
            Failed::Refused(told) => told,
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
        // Before capping: a call whose deadline passes by then need not wait for its end.
        let at = after(now, delay);
        let is_in_time = deadline.is_none_or(|deadline| at < deadline);
        is_in_time.then_some(if told.is_some() { delay.min(LONGEST_PUSHBACK) } else { delay })
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
    fn pushback_counts_and_restarts_the_backoff() {
        let (policy, now) = (policy(), Instant::now());
        let mut throttle = policy.new_throttle();
        let mut attempts = Attempts::default();
        let mut after = |failed| attempts.after(failed, &policy, &mut throttle, now, None, 0);
        assert_eq!(after(Failed::Refused(None)), Some(10 * MS));
        assert_eq!(after(Failed::Refused(Some(700 * MS))), Some(700 * MS));
        assert_eq!(after(Failed::Refused(None)), Some(10 * MS));
    }

    #[test]
    fn pushback_is_capped_at_a_minute() {
        let (policy, now) = (policy(), Instant::now());
        let hour = 3_600_000 * MS;
        let after = |told, deadline: Option<Duration>| {
            let (mut attempts, mut throttle) = (Attempts::default(), policy.new_throttle());
            let failed = Failed::Refused(Some(told));
            let deadline = deadline.map(|deadline| now + deadline);
            attempts.after(failed, &policy, &mut throttle, now, deadline, 0)
        };
        assert_eq!(after(59_000 * MS, None), Some(59_000 * MS));
        assert_eq!(after(hour, None), Some(LONGEST_PUSHBACK));
        assert_eq!(after(Duration::MAX, None), Some(LONGEST_PUSHBACK));
        assert_eq!(after(hour, Some(hour * 2)), Some(LONGEST_PUSHBACK));
        assert_eq!(after(hour, Some(hour / 2)), None, "the server will not take it in time");
    }

    #[test]
    fn a_backoff_beyond_the_clock_is_waited_out() {
        let backoff = Backoff::new().initial(Duration::MAX).max(Duration::MAX);
        let policy = RetryPolicy::new().backoff(backoff);
        let mut throttle = policy.new_throttle();
        let failed = Failed::Refused(None);
        let delay =
            Attempts::default().after(failed, &policy, &mut throttle, Instant::now(), None, 0);
        assert!(delay.is_some_and(|delay| delay > Duration::from_secs(1 << 40)), "{delay:?}");
    }

    #[test]
    fn no_attempt_after_the_deadline() {
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

    /// Regression: a call that had failed five times left no token for the next one.
    #[test]
    fn one_call_does_not_close_the_throttle() {
        let (policy, now) = (policy(), Instant::now());
        let mut throttle = policy.new_throttle();
        let mut attempts_of = |failed| {
            let mut attempts = Attempts::default();
            while attempts.after(failed, &policy, &mut throttle, now, None, 0).is_some() {}
            attempts.failed()
        };
        let of_calls = (0..6).map(|_| attempts_of(Failed::Refused(None))).collect::<Vec<_>>();
        assert_eq!(of_calls, [5, 5, 5, 5, 1, 1]);
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
