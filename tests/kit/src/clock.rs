//! Virtual time, for code that takes the time as an argument.

use std::time::{Duration, Instant};

/// A clock that stands still until a test advances it. It never goes back.
#[derive(Debug, Clone, Copy)]
pub struct Clock(Instant);

impl Clock {
    /// A clock at some time.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "two clocks are not equal")]
    pub fn new() -> Self {
        Self(Instant::now())
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.0
    }

    /// Lets time pass.
    pub fn advance(&mut self, by: Duration) {
        self.0 += by;
    }

    /// Lets time pass until `then`, unless that has passed already.
    pub fn advance_to(&mut self, then: Instant) {
        self.0 = self.0.max(then);
    }
}
