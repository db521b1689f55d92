//! The rule by which a server's limit of calls in flight follows its capacity: pure, without a
//! clock.
//!
//! The rule compares the mean time of the calls of a window with the least mean of the last
//! seconds, the *floor*. From both it reckons how many of the calls in flight only waited. Few: the
//! limit grows. Many: it shrinks. So it needs no number from the user, and settles a little above
//! the number of calls that the server can work on at once.
//!
//! Invariants:
//! 1. The limit stays between `least` and `most`.
//! 2. It grows only if the calls of a window reached it: a limit that nobody reaches says nothing.
//! 3. A floor is used for [`FLOOR_LIFE`]. Under load it is then measured anew, with half of the
//!    calls that seem to be worked on, for two windows: the first empties the queue, the second
//!    measures. A limit that is at its least cannot fall for that: the mean of the window is the
//!    best floor that can be had.

use std::time::Duration;

/// Shortest window.
pub(super) const WINDOW: Duration = Duration::from_millis(100);
/// Calls that a window needs, so that its mean says something.
pub(super) const WINDOW_CALLS: u32 = 50;
/// A window of this age ends with fewer calls.
pub(super) const OLD_WINDOW: Duration = Duration::from_secs(2);
/// How long a floor is believed.
const FLOOR_LIFE: Duration = Duration::from_secs(15);
/// Means up to this multiple of the floor show no queue: calls differ, and so do their times.
const TOLERANCE: f64 = 1.5;
/// Limit at the start.
const FIRST: u32 = 32;

/// What the calls of one window showed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    /// Mean time from the arrival of a call to its end.
    pub(super) mean: Duration,
    /// Most calls that were in flight.
    pub(super) peak: u32,
    /// Time since the last window.
    pub(super) length: Duration,
}

/// The least mean of the last seconds.
#[derive(Debug, Clone, Copy)]
struct Floor {
    mean: f64,
    age: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Probe {
    No,
    /// The queue empties; then the limit is to be this again.
    Emptying(f64),
    Measuring(f64),
}

/// The limit, and what it follows.
#[derive(Debug)]
pub(super) struct Limiter {
    limit: f64,
    least: f64,
    most: f64,
    floor: Option<Floor>,
    probe: Probe,
}

impl Limiter {
    pub(super) fn new(least: u32, most: u32) -> Self {
        let (least, most) = (f64::from(least.max(1)), f64::from(most.max(least).max(1)));
        let limit = f64::from(FIRST).clamp(least, most);
        Self { limit, least, most, floor: None, probe: Probe::No }
    }

    /// The limit now.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to u32::MAX")]
    pub(super) fn limit(&self) -> u32 {
        self.limit as u32
    }

    /// A window has ended.
    pub(super) fn on_window(&mut self, window: Window) {
        let mean = window.mean.as_secs_f64().max(1e-9);
        let peak = f64::from(window.peak);
        let is_reached = peak >= self.limit().into();
        match self.probe {
            Probe::Emptying(before) => {
                self.probe = Probe::Measuring(before);
                return;
            }
            Probe::Measuring(before) => {
                self.floor = Some(Floor { mean, age: Duration::ZERO });
                (self.probe, self.limit) = (Probe::No, before);
                return;
            }
            Probe::No => {}
        }
        let floor = self.floor.get_or_insert(Floor { mean, age: Duration::ZERO });
        floor.age += window.length;
        if mean <= floor.mean {
            *floor = Floor { mean, age: Duration::ZERO };
        } else if floor.age >= FLOOR_LIFE {
            if !is_reached || self.limit <= self.least {
                *floor = Floor { mean, age: Duration::ZERO };
            } else {
                self.probe = Probe::Emptying(self.limit);
                let working = self.limit * (floor.mean / mean);
                self.set(working / 2.0);
                return;
            }
        }
        let floor = floor.mean;
        let waiting = peak * (1.0 - floor * TOLERANCE / mean);
        let few = self.limit.sqrt() / 2.0;
        if waiting > 4.0 * few {
            // Far too many: at once to those that would not have waited.
            self.set((peak * floor * TOLERANCE / mean + few).max(self.limit / 2.0));
        } else if waiting > 2.0 * few {
            self.set(self.limit - 1.0);
        } else if waiting < few && is_reached {
            let step = if waiting < few / 2.0 { (self.limit / 8.0).max(1.0) } else { 1.0 };
            self.set(self.limit + step);
        }
    }

    fn set(&mut self, limit: f64) {
        self.limit = limit.clamp(self.least, self.most);
    }
}

#[cfg(test)]
mod tests;
