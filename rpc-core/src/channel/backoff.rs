//! How long to wait before the next attempt: exponential, capped, with jitter.
//!
//! The names are those of gRPC's connection backoff. Owns no state but its parameters.

use std::time::Duration;

/// Waits between failing attempts: the first lasts `initial`, each further one `multiplier` times
/// as long as the previous one, up to `max`. Each is then lengthened or shortened at random by up
/// to `jitter` of itself, so that the clients of a lost server do not all return at once.
///
/// ```
/// use rpc_core::client::Backoff;
/// use std::time::Duration;
///
/// let backoff = Backoff::new().initial(Duration::from_millis(10)).max(Duration::from_secs(1));
/// // Without jitter: 10 ms, 20 ms, 40 ms, .. 1 s.
/// let backoff = backoff.multiplier(2.0).jitter(0.0);
/// assert_eq!(backoff.delay(3, 0), Duration::from_millis(40));
/// assert_eq!(backoff.delay(100, 0), Duration::from_secs(1));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    initial: Duration,
    max: Duration,
    multiplier: f64,
    jitter: f64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::new()
    }
}

impl Backoff {
    /// 50 ms, multiplied by 1.6 each time, at most 5 s, jitter 0.2.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            initial: Duration::from_millis(50),
            max: Duration::from_secs(5),
            multiplier: 1.6,
            jitter: 0.2,
        }
    }

    /// The first wait. Default 50 ms; the actual wait is at least 1 ms.
    #[must_use]
    pub const fn initial(mut self, initial: Duration) -> Self {
        self.initial = initial;
        self
    }

    /// The longest wait, jitter included. Default 5 s.
    #[must_use]
    pub const fn max(mut self, max: Duration) -> Self {
        self.max = max;
        self
    }

    /// The factor from one wait to the next. Default 1.6; less than 1 counts as 1.
    #[must_use]
    pub const fn multiplier(mut self, multiplier: f64) -> Self {
        self.multiplier = multiplier;
        self
    }

    /// The share of a wait, from 0 to 1, that is random. Default 0.2.
    #[must_use]
    pub const fn jitter(mut self, jitter: f64) -> Self {
        self.jitter = jitter;
        self
    }

    /// The wait after `failures` failures in a row, from 1. `random`: a uniformly distributed
    /// number.
    #[must_use]
    pub fn delay(&self, failures: u32, random: u64) -> Duration {
        /// The minimum wait: multiples of zero would stay zero.
        const LEAST: f64 = 0.001;
        let longest = self.max.as_secs_f64().max(LEAST);
        // `max` first: `NaN` counts as the other operand.
        let multiplier = self.multiplier.max(1.0);
        let exponent = i32::try_from(failures.saturating_sub(1)).unwrap_or(i32::MAX);
        let base = (self.initial.as_secs_f64().max(LEAST) * multiplier.powi(exponent)).min(longest);
        let jitter = if self.jitter.is_nan() { 0.0 } else { self.jitter.clamp(0.0, 1.0) };
        let seconds = base * (1.0 + jitter * (2.0 * unit(random) - 1.0));
        let delay = Duration::try_from_secs_f64(seconds.clamp(LEAST, longest));
        delay.unwrap_or(Duration::MAX)
    }
}

/// A random number as a fraction, from 0 to just below 1.
pub(crate) fn unit(random: u64) -> f64 {
    // The 53 bits that a mantissa holds.
    (random >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_cap_within_the_jitter() {
        let backoff = Backoff::new();
        for random in [0, 1, u64::MAX / 3, u64::MAX / 2, u64::MAX] {
            let mut expected = 0.05_f64;
            for failures in 1..200 {
                let delay = backoff.delay(failures, random).as_secs_f64();
                assert!(delay >= expected * 0.799_999, "{failures} {random}: {delay}");
                assert!(delay <= (expected * 1.200_001).min(5.0), "{failures} {random}: {delay}");
                expected = (expected * 1.6).min(5.0);
            }
        }
        assert!(backoff.delay(1, 0) < backoff.delay(1, u64::MAX), "chance has a say");
    }

    #[test]
    fn no_parameters_make_it_panic_or_never_wait() {
        let odd = [Duration::ZERO, Duration::from_nanos(1), Duration::from_secs(1), Duration::MAX];
        let rates = [f64::NAN, f64::NEG_INFINITY, -1.0, 0.0, 1.0, 1e300, f64::INFINITY];
        for (initial, max) in
            odd.iter().flat_map(|initial| odd.iter().map(move |max| (initial, max)))
        {
            for (rate, jitter) in rates.iter().flat_map(|a| rates.iter().map(move |b| (a, b))) {
                let backoff =
                    Backoff::new().initial(*initial).max(*max).multiplier(*rate).jitter(*jitter);
                for failures in [0, 1, 2, 1000, u32::MAX] {
                    assert!(backoff.delay(failures, u64::MAX) >= Duration::from_micros(999));
                }
            }
        }
    }
}
