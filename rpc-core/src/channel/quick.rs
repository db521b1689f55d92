//! What a call costs at an end point, for looks that take no lock and read no clock.
//!
//! Owns a copy of what the last full look, or the last call there, has found. The calls in flight
//! are always those of now; the latency is looked up anew after [`LOOKS`] looks.
//!
//! Invariant: two threads may take the same look, or bring back the copy of before: it is used for
//! at most [`LOOKS`] looks more.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use super::standing::{LOOKS, Need, Standing};

/// The copy.
#[derive(Debug, Default)]
pub struct Quick {
    /// The latency as an `f32`, and the looks that are left.
    latency: AtomicU64,
    in_flight: AtomicU32,
}

impl Quick {
    /// The cost of one more call, seconds, where it is to have `weight` times the calls of others;
    /// `None`: a full look is needed.
    #[inline]
    #[must_use]
    pub fn look(&self, weight: f64) -> Option<f64> {
        let latency = self.latency.load(Ordering::Relaxed);
        if latency & 0xffff_ffff == 0 {
            return None;
        }
        self.latency.store(latency - 1, Ordering::Relaxed);
        let bits = u32::try_from(latency >> 32).unwrap_or(0);
        let in_flight = f64::from(self.in_flight.load(Ordering::Relaxed));
        Some(f64::from(f32::from_bits(bits)) * (in_flight / weight + 1.0))
    }

    /// A full look: [`Standing::look`].
    pub fn look_fully(
        &self,
        standing: &mut Standing,
        need: Need,
        now: Instant,
        random: u64,
        weight: f64,
    ) -> Option<f64> {
        let cost = standing.look(need, now, random, weight)?;
        let in_flight = standing.load().0;
        let latency = cost / (f64::from(in_flight) / weight + 1.0);
        self.set(standing.is_plain().then_some(latency), in_flight);
        Some(cost)
    }

    /// Something has changed.
    #[inline]
    pub fn copy(&self, standing: &Standing) {
        self.set(standing.plain_latency(), standing.load().0);
    }

    /// Sets the latency, seconds; `None`: each look must be a full one.
    #[inline]
    fn set(&self, latency: Option<f64>, in_flight: u32) {
        #[expect(clippy::cast_possible_truncation, reason = "a rough value is good enough")]
        let latency = latency
            .map_or(0, |latency| u64::from((latency as f32).to_bits()) << 32 | u64::from(LOOKS));
        self.latency.store(latency, Ordering::Relaxed);
        self.in_flight.store(in_flight, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use test_kit::Rng;

    use super::super::outliers::OutlierLimits;
    use super::super::picker::{CallEnd, pick};
    use super::super::plan::Plan;
    use super::*;

    /// A regression: the copy of a call that took no time was cheaper than any full look, so that
    /// one end point got all calls.
    #[test]
    fn calls_that_take_no_time_are_shared() {
        let limits = OutlierLimits { in_a_row: 0, time_out: Duration::ZERO };
        let (now, plan) = (Instant::now(), Plan::of_equals(2));
        let mut rng = Rng::new(4);
        let all: [(Quick, std::cell::Cell<Standing>); 2] = Default::default();
        let look = |at: usize, random| {
            let (quick, standing) = &all[at];
            quick.look(1.0).or_else(|| {
                let mut known = standing.get();
                let cost = quick.look_fully(&mut known, Need::Well, now, random, 1.0);
                standing.set(known);
                cost
            })
        };
        let mut calls = [0_u32; 2];
        for turn in 0..10_000 {
            if turn == 100 {
                // As of one that was not drawn for a while: its next look is a full one.
                (0..LOOKS).for_each(|_| {
                    let _used = all[1].0.look(1.0);
                });
            }
            let random = rng.next();
            let drawn = plan.draw_two(&(0..2), random).unwrap();
            let at = pick(drawn, &(0..2), |at| look(at, random)).unwrap();
            let (quick, standing) = &all[at];
            let mut known = standing.get();
            known.on_begin(now);
            known.on_end(CallEnd::Answered, Duration::ZERO, &limits, now);
            quick.copy(&known);
            standing.set(known);
            calls[at] += 1;
        }
        assert!(calls.iter().all(|calls| *calls > 3000), "{calls:?}");
    }

    #[test]
    fn a_copy_is_good_for_some_looks() {
        let quick = Quick::default();
        assert_eq!(quick.look(1.0), None);
        quick.set(Some(0.5), 3);
        for _ in 0..LOOKS {
            assert_eq!(quick.look(1.0), Some(2.0));
        }
        assert_eq!(quick.look(1.0), None);
        quick.set(Some(0.5), 3);
        assert_eq!(quick.look(3.0), Some(1.0));
        quick.set(None, 3);
        assert_eq!(quick.look(1.0), None);
    }
}
