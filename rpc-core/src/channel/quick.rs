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
    use super::*;

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
