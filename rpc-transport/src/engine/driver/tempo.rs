//! The tempo of a driver: when it reads the clock, when it has rarely polled sources polled, and
//! when it yields to other tasks.
//!
//! Owns the count of work done since the clock was read. Pure: time is an argument.
//!
//! Invariants:
//! 1. The clock is read once for `WORK_PER_READING` units of work, not for each message.
//! 2. Timers are late by no more than that much work takes: 0.8 ms, where handlers that run inline
//!    take 50 us each. Sources that are not polled in every round (quiet connections, and events
//!    that end connections) are late by no more than `LOOK_EVERY` and the same.
//! 3. A turn takes no longer than `TURN` plus twice that much work.

use std::time::{Duration, Instant};

/// Units of work, rounds and actions, for each reading of the clock.
const WORK_PER_READING: u32 = 16;
/// Completions that count as one unit: handling one takes a tenth of a microsecond.
const COMPLETIONS_PER_WORK: usize = 16;
/// Time between two polls of the rarely polled sources.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Time after which a busy driver yields to other tasks of the worker.
const TURN: Duration = Duration::from_micros(500);

/// The tempo of one driver.
#[derive(Debug, Default)]
pub(super) struct Tempo {
    work: u32,
    looked_at: Option<Instant>,
    /// When the clock was first read in this turn.
    turn_began: Option<Instant>,
    is_turn_over: bool,
}

impl Tempo {
    /// A round found `found` completions.
    #[inline]
    pub(super) fn on_round(&mut self, found: usize) {
        let completions = u32::try_from(found / COMPLETIONS_PER_WORK).unwrap_or(WORK_PER_READING);
        self.work = self.work.saturating_add(1 + completions);
    }

    /// An action was run.
    #[inline]
    pub(super) fn on_effect(&mut self) {
        self.work += 1;
    }

    /// Whether it is time to read the clock.
    #[inline]
    pub(super) fn wants_clock(&self) -> bool {
        self.work >= WORK_PER_READING
    }

    /// The clock was read. Returns whether it is time to poll the rarely polled sources.
    pub(super) fn on_clock(&mut self, now: Instant) -> bool {
        self.work = 0;
        let began = *self.turn_began.get_or_insert(now);
        self.is_turn_over = now.saturating_duration_since(began) >= TURN;
        let looked_at = *self.looked_at.get_or_insert(now);
        let is_due = now.saturating_duration_since(looked_at) >= LOOK_EVERY;
        if is_due {
            self.looked_at = Some(now);
        }
        is_due
    }

    /// The runtime gives the driver a turn.
    #[inline]
    pub(super) fn begin_turn(&mut self) {
        (self.turn_began, self.is_turn_over) = (None, false);
    }

    /// Whether the driver should yield to other tasks.
    #[inline]
    pub(super) fn is_turn_over(&self) -> bool {
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
        let mut tempo = Tempo::default();
        let start = Instant::now();
        let (mut now, mut read_at, mut looked_at) = (start, start, start);
        let mut longest = [Duration::ZERO; 3];
        while now < start + Duration::from_secs(1) {
            let turn_began = now;
            tempo.begin_turn();
            while !tempo.is_turn_over() {
                tempo.on_effect();
                now += handler;
                if tempo.wants_clock() {
                    longest[0] = longest[0].max(now - read_at);
                    read_at = now;
                    if tempo.on_clock(now) {
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
    fn what_waits_is_late_by_a_bounded_time_whatever_handlers_take() {
        for handler in [1, 10, 50].map(US) {
            let work = WORK_PER_READING * handler;
            let [reading, look, turn] = longest(handler);
            assert!(reading <= work, "timers: {reading:?}");
            assert!(look <= LOOK_EVERY + 2 * work, "cold connections: {look:?}");
            assert!(turn <= TURN + 2 * work, "other tasks: {turn:?}");
        }
    }

    #[test]
    fn one_clock_serves_many_messages() {
        let mut tempo = Tempo::default();
        let start = Instant::now();
        let readings = (0..1600).filter(|_| {
            tempo.on_effect();
            let reads = tempo.wants_clock();
            if reads {
                tempo.on_clock(start);
            }
            reads
        });
        assert_eq!(readings.count(), 100);
    }
}
