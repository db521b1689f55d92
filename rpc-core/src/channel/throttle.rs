//! A budget of tokens that keeps retries from adding to an overload: gRPC A6's retry throttle.
//!
//! Each failure takes a token, each success returns a fraction of one. Calls are retried only while
//! more than half of the tokens are left. Owns only the count.

/// Thousandths of a token.
const MILLI: u32 = 1000;

/// The tokens of a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Throttle {
    /// In thousandths.
    tokens: u32,
    max: u32,
    ratio: u32,
    /// The epoch of the last connection whose loss took a token.
    lost_epoch: Option<(usize, u64)>,
}

impl Throttle {
    /// Starts full. `ratio`: the part of a token that a success returns, to three decimals.
    #[must_use]
    pub fn new(max_tokens: u16, ratio: f64) -> Self {
        let max = u32::from(max_tokens) * MILLI;
        // The cast saturates; `NaN` becomes 0.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is clamped"
        )]
        let ratio = (ratio * f64::from(MILLI)).clamp(0.0, f64::from(u32::MAX)) as u32;
        Self { tokens: max, max, ratio, lost_epoch: None }
    }

    /// Whether a success would change nothing.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.tokens == self.max
    }

    /// Records a successful call.
    pub fn on_success(&mut self) {
        self.tokens = self.tokens.saturating_add(self.ratio).min(self.max);
    }

    /// Records a retryable failure.
    pub fn on_failure(&mut self) {
        self.tokens = self.tokens.saturating_sub(MILLI);
    }

    /// Records a call that was lost with its connection: the one of that epoch at that end point.
    /// All calls of a connection fail at once and for the same reason, so they take one token
    /// together.
    pub fn on_lost(&mut self, end_point: usize, epoch: u64) {
        if self.lost_epoch != Some((end_point, epoch)) {
            self.lost_epoch = Some((end_point, epoch));
            self.on_failure();
        }
    }

    /// Whether a call may be retried. Without tokens at all there is no throttle.
    #[must_use]
    pub fn allows(&self) -> bool {
        self.max == 0 || self.tokens > self.max / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_stop_at_half_and_resume_after_successes() {
        let mut throttle = Throttle::new(10, 0.1);
        assert!(throttle.is_full() && throttle.allows());
        for _ in 0..4 {
            throttle.on_failure();
            assert!(throttle.allows());
        }
        throttle.on_failure();
        assert!(!throttle.allows(), "half is not more than half");
        throttle.on_success();
        assert!(throttle.allows());
        for _ in 0..100 {
            throttle.on_failure();
        }
        let successes = (1..).find(|_| {
            throttle.on_success();
            throttle.allows()
        });
        assert_eq!(successes, Some(51));
        (0..49).for_each(|_| throttle.on_success());
        assert!(throttle.is_full());
    }

    #[test]
    fn a_lost_connection_takes_one_token() {
        let mut throttle = Throttle::new(10, 0.1);
        for epoch in 1..=4 {
            (0..1000).for_each(|_| throttle.on_lost(0, epoch));
            assert!(throttle.allows(), "{epoch}");
        }
        throttle.on_lost(1, 4);
        assert!(!throttle.allows());
    }

    #[test]
    fn odd_parameters_do_no_harm() {
        for ratio in [f64::NAN, -1.0, 0.0, 1e300, f64::INFINITY] {
            let mut throttle = Throttle::new(1, ratio);
            throttle.on_failure();
            throttle.on_success();
            assert!(throttle.tokens <= throttle.max);
        }
        let mut none = Throttle::new(0, 0.1);
        none.on_failure();
        assert!(none.allows());
    }
}
