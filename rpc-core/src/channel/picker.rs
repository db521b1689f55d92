//! Which of several end points a call goes to: the better of two that chance has drawn.
//!
//! Two choices spread load nearly as well as knowing all, and never send everybody to the one that
//! looks best at the moment. Owns the cost of an end point: calls in flight, times the latency that
//! it had lately. The estimate follows a rise at once and a fall slowly, so a server that begins to
//! stall is left alone before many calls have found out.

use std::time::{Duration, Instant};

/// Time in which an old latency loses most of its weight.
const MEMORY: Duration = Duration::from_secs(10);
/// What an end point is believed to take that has not answered yet: little, so it is tried.
const UNKNOWN: f64 = 1e-6;

/// The latency of an end point, as it was lately.
#[derive(Debug, Clone, Copy, Default)]
pub struct Latency {
    /// Seconds.
    estimate: f64,
    at: Option<Instant>,
}

impl Latency {
    /// A call was answered.
    pub fn observe(&mut self, took: Duration, now: Instant) {
        let (took, since) = (took.as_secs_f64(), self.at.replace(now));
        let Some(since) = since else {
            self.estimate = took;
            return;
        };
        if took >= self.estimate {
            self.estimate = took;
        } else {
            let age = now.saturating_duration_since(since).as_secs_f64();
            let weight = (-age / MEMORY.as_secs_f64()).exp();
            self.estimate = self.estimate * weight + took * (1.0 - weight);
        }
    }

    /// What one more call costs beside `in_flight` others.
    #[must_use]
    pub fn cost(&self, in_flight: u32) -> f64 {
        self.estimate.max(UNKNOWN) * (f64::from(in_flight) + 1.0)
    }
}

/// Draws two of `count` end points that are ready, and gives the position of the cheaper one; any
/// that is ready if chance draws none. `cost` gives `None` for one that is not ready. `drawn_dead`
/// hears of those that were drawn in vain.
pub fn pick(
    count: usize,
    random: u64,
    mut cost: impl FnMut(usize) -> Option<f64>,
    mut drawn_dead: impl FnMut(usize),
) -> Option<usize> {
    if count == 0 {
        return None;
    }
    let below = |bits: u64, bound: usize| usize::try_from(bits % bound as u64).unwrap_or(0);
    let first = below(random >> 32, count);
    // The second is another one, if there is one.
    let second = (first + 1 + below(random & 0xffff_ffff, (count - 1).max(1))) % count;
    let mut best: Option<(usize, f64)> = None;
    for drawn in [first, second] {
        // Whoever stands next takes the turn of one that is not ready.
        let mut steps = 0;
        let ready = std::iter::from_fn(|| {
            (steps < count).then(|| {
                steps += 1;
                (drawn + steps - 1) % count
            })
        })
        .find_map(|at| match cost(at) {
            Some(cost) => Some((at, cost)),
            None => {
                if at == drawn {
                    drawn_dead(at);
                }
                None
            }
        });
        let (at, cost) = ready?;
        if best.is_none_or(|(_, lowest)| cost < lowest) {
            best = Some((at, cost));
        }
    }
    best.map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use test_kit::Rng;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_dead_get_nothing_and_the_others_their_share() {
        let mut rng = Rng::new(1);
        let (mut hits, mut dead) = ([0_u32; 5], 0);
        for _ in 0..10_000 {
            let cost = |at| (at != 2).then_some(1.0);
            let at = pick(5, rng.next(), cost, |at| {
                assert_eq!(at, 2);
                dead += 1;
            });
            hits[at.unwrap()] += 1;
        }
        assert_eq!(hits[2], 0);
        assert!(dead > 1000, "it is tried again, by and by");
        assert!(hits.iter().enumerate().all(|(at, hits)| at == 2 || *hits > 1000), "{hits:?}");
        assert_eq!(pick(3, 7, |_| None, |_| {}), None);
        assert_eq!(pick(0, 7, |_| Some(1.0), |_| {}), None);
        assert_eq!(pick(1, 7, |_| Some(1.0), |_| {}), Some(0));
    }

    #[test]
    fn of_two_the_cheaper_one_is_taken_always() {
        let mut rng = Rng::new(2);
        for _ in 0..1000 {
            let costs = [2.0, 1.0];
            assert_eq!(pick(2, rng.next(), |at| Some(costs[at]), |_| {}), Some(1));
        }
    }

    /// A closed loop of calls: the slow one of three ends up with a small share.
    #[test]
    fn load_goes_where_it_is_served_fast() {
        let (mut rng, mut now) = (Rng::new(3), Instant::now());
        let takes = [1, 1, 20];
        let mut latency = [Latency::default(); 3];
        let mut ends: Vec<(Instant, usize, Instant)> = Vec::new();
        let mut served = [0_u32; 3];
        for _ in 0..20_000 {
            while ends.len() >= 8 {
                let next = (0..ends.len()).min_by_key(|at| ends[*at].0).unwrap();
                let (end, at, began) = ends.swap_remove(next);
                now = now.max(end);
                latency[at].observe(end - began, now);
                served[at] += 1;
            }
            let in_flight =
                |at| u32::try_from(ends.iter().filter(|end| end.1 == at).count()).unwrap();
            let at = pick(3, rng.next(), |at| Some(latency[at].cost(in_flight(at))), |_| {});
            let at = at.unwrap();
            ends.push((now + takes[at] * MS, at, now));
        }
        assert!(served[2] < 20_000 / 10, "{served:?}");
        assert!(served[2] > 0 && served[0] > 5000 && served[1] > 5000, "{served:?}");
    }

    #[test]
    fn a_rise_counts_at_once_and_a_fall_by_and_by() {
        let (mut latency, now) = (Latency::default(), Instant::now());
        latency.observe(MS, now);
        latency.observe(100 * MS, now);
        assert!((latency.cost(0) - 0.1).abs() < 1e-9);
        latency.observe(MS, now + MS);
        assert!(latency.cost(0) > 0.09);
        latency.observe(MS, now + 60 * MEMORY);
        assert!(latency.cost(0) < 0.0011);
        assert!(latency.cost(9) > latency.cost(0) * 9.9);
    }
}
