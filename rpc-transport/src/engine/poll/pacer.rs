//! The pace of a driver: when it reads the clock, when it checks the rarely polled sources, and
//! when it yields to other tasks.
//!
//! Owns the count of work done since the clock was read. Pure: time is an argument.
//!
//! Invariants:
//! 1. The clock is read once for `WORK_PER_READING` units of work, not for each message.
//! 2. Timers are late by no more than that much work takes: 0.8 ms, where handlers that run inline
//!    take 50 us each. Sources that are not polled in every round (quiet connections, and events
//!    that end connections) are late by no more than that and `CHECK_INTERVAL`.
//! 3. A turn takes no longer than `TURN` plus twice that much work.

use std::time::{Duration, Instant};

/// Units of work, rounds and actions, for each reading of the clock.
const WORK_PER_READING: u32 = 16;
/// Completions that count as one unit: handling one takes a tenth of a microsecond.
const COMPLETIONS_PER_WORK: usize = 16;
/// Time between two checks of the rarely polled sources.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// Time after which a busy driver yields to other tasks of the worker.
const TURN: Duration = Duration::from_micros(500);

/// When the rarely polled sources were checked.
#[derive(Debug, Default)]
pub(in crate::engine) struct Checks {
    last: Option<Instant>,
}

impl Checks {
    /// Whether a check is due; it is then taken to happen. The first one is due an interval after
    /// the first question.
    pub(in crate::engine) fn is_due(&mut self, now: Instant) -> bool {
        let last = *self.last.get_or_insert(now);
        let is_due = now.saturating_duration_since(last) >= CHECK_INTERVAL;
        if is_due {
            self.last = Some(now);
        }
        is_due
    }
}

/// The pacer of one driver.
#[derive(Debug, Default)]
pub(in crate::engine) struct Pacer {
    work: u32,
    checks: Checks,
    /// When the clock was first read in this turn.
    turn_began: Option<Instant>,
    is_turn_over: bool,
}

impl Pacer {
    /// A round found `found` completions.
    #[inline]
    pub(in crate::engine) fn on_round(&mut self, found: usize) {
        let completions = u32::try_from(found / COMPLETIONS_PER_WORK).unwrap_or(WORK_PER_READING);
        self.work = self.work.saturating_add(1 + completions);
    }

    /// An action was run.
    #[inline]
    pub(in crate::engine) fn on_effect(&mut self) {
        self.work += 1;
    }

    /// Whether it is time to read the clock.
    #[inline]
    pub(in crate::engine) fn wants_clock(&self) -> bool {
        self.work >= WORK_PER_READING
    }

    /// The clock was read. Returns whether it is time to check the rarely polled sources.
    pub(in crate::engine) fn on_clock(&mut self, now: Instant) -> bool {
        self.work = 0;
        let began = *self.turn_began.get_or_insert(now);
        self.is_turn_over = now.saturating_duration_since(began) >= TURN;
        self.checks.is_due(now)
    }

    /// The runtime gives the driver a turn.
    #[inline]
    pub(in crate::engine) fn begin_turn(&mut self) {
        (self.turn_began, self.is_turn_over) = (None, false);
    }

    /// Whether the driver should yield to other tasks.
    #[inline]
    pub(in crate::engine) fn is_turn_over(&self) -> bool {
        self.is_turn_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: fn(u64) -> Duration = Duration::from_micros;

    /// Simulates a driver for one second, whose handlers take `handler` each and never run out.
    /// Returns the longest time between two readings, between two looks, and of a turn.
    fn longest(handler: Duration) -> [Duration; 3] {
        let mut pacer = Pacer::default();
        let start = Instant::now();
        let (mut now, mut read_at, mut looked_at) = (start, start, start);
        let mut longest = [Duration::ZERO; 3];
        while now < start + Duration::from_secs(1) {
            let turn_began = now;
            pacer.begin_turn();
            while !pacer.is_turn_over() {
                pacer.on_effect();
                now += handler;
                if pacer.wants_clock() {
                    longest[0] = longest[0].max(now - read_at);
                    read_at = now;
                    if pacer.on_clock(now) {
                        longest[1] = longest[1].max(now - looked_at);
                        looked_at = now;
                    }
                }
            }
            longest[2] = longest[2].max(now - turn_began);
        }
        longest
    }

    #[test]
    fn pending_work_is_delayed_by_a_bounded_time() {
        for handler in [1, 10, 50].map(US) {
            let work = WORK_PER_READING * handler;
            let [reading, look, turn] = longest(handler);
            assert!(reading <= work, "timers: {reading:?}");
            assert!(look <= CHECK_INTERVAL + 2 * work, "cold connections: {look:?}");
            assert!(turn <= TURN + 2 * work, "other tasks: {turn:?}");
        }
    }

    #[test]
    fn one_clock_serves_many_messages() {
        let mut pacer = Pacer::default();
        let start = Instant::now();
        let readings = (0..1600).filter(|_| {
            pacer.on_effect();
            let reads = pacer.wants_clock();
            if reads {
                pacer.on_clock(start);
            }
            reads
        });
        assert_eq!(readings.count(), 100);
    }
}
