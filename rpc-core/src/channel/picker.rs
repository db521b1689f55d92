//! Picks one of several end points for a call: the better of two drawn at random.
//!
//! Two choices spread load nearly as well as full knowledge, and do not send all callers to the end
//! point that looks best at the moment. Owns the load of one connection to an end point
//! ([`Latency`]): its calls in flight and its recent latency. The cost of one more call is their
//! product.
//!
//! The latency estimate is a decaying peak, as in Finagle's peak EWMA:
//! 1. It follows a rise at once and a fall slowly, so a stalling server is avoided after few calls.
//! 2. It decays with the time since a call last began or ended there, so an end point that looks
//!    slow gets one call after a while, whose answer corrects the estimate. Each such call restarts
//!    the decay: an end point that still hangs does not get a second one at once. The decay time is
//!    a multiple of the estimate, about ten seconds at most, so cheap end points are probed sooner.
//!    The decay is also limited by the number of calls since then: where calls are rare, few of
//!    them are probes.
//! 3. While calls are in flight, the estimate is at least the time since the last answer.
//! 4. Before its first answer an end point gets one call: it is the cheapest while it has none in
//!    flight, and the most expensive while it has one.

use std::ops::Range;
use std::time::{Duration, Instant};

/// The time in which an estimate decays to a third, as a multiple of the estimate.
const MEMORY_IN_CALLS: f64 = 8.0;
/// The minimum and the maximum decay time, seconds.
const MEMORY: (f64, f64) = (1e-4, 1.0);
/// Minimum number of times that an end point is considered while its estimate decays to a third.
const MEMORY_IN_LOOKS: f64 = 2.0;
/// Estimate for an end point whose first call has no answer yet, seconds.
const UNANSWERED: f64 = 100.0;
/// Minimum latency assumed for a refused call, seconds.
const REFUSED: f64 = 1.0;
/// Minimum latency assumed while all calls have failed, seconds.
const FAILED: f64 = 0.05;
/// Costs below this count as equal: the choice is random. A number that copies of it, which are
/// `f32`, hold exactly.
pub const LEAST_COST: f64 = 1.000_001e-6_f32 as f64;

/// How a call ended, for the estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallEnd {
    /// The end point answered.
    Answered,
    /// The end point answered that it failed: it must not look fast for that.
    Failed,
    /// As [`CallEnd::Failed`], for lack of resources: it may serve other calls.
    Shed,
    /// The end point accepts no calls: it must look slow, however fast it refuses.
    Refused,
    /// The call's time was over: an answer would have taken at least that long.
    TimedOut,
    /// The caller stopped waiting. As with [`CallEnd::TimedOut`] an answer would have taken longer,
    /// but nothing has failed.
    GivenUp,
    /// The end point did not see the call, or nothing is known.
    Unsent,
}

/// The calls in flight on a connection, and its recent latency.
#[derive(Debug, Clone, Copy, Default)]
pub struct Latency {
    /// In seconds, as of `observed_at`. `None`: nothing was observed yet.
    estimate: Option<f64>,
    /// It comes from failures alone: the first answer replaces it.
    is_guess: bool,
    observed_at: Option<Instant>,
    in_flight: u32,
    /// When a call last began or was observed: the estimate decays from then on.
    touched_at: Option<Instant>,
    /// How often it has been considered since then.
    looks: u32,
    /// The time of the last answer, or the start of the calls in flight if there was none since.
    silent_since: Option<Instant>,
}

impl Latency {
    /// Records the start of a call.
    pub fn on_begin(&mut self, now: Instant) {
        if self.in_flight == 0 {
            self.silent_since = Some(now);
        }
        self.in_flight = self.in_flight.saturating_add(1);
        self.touch(now);
    }

    /// Records the end of a call after `took`.
    pub fn on_end(&mut self, end: CallEnd, took: Duration, now: Instant) {
        self.in_flight = self.in_flight.saturating_sub(1);
        let took = took.as_secs_f64();
        match end {
            CallEnd::Answered => {
                self.silent_since = Some(now);
                self.observe(took, now);
            }
            CallEnd::Refused => self.observe(took.max(REFUSED), now),
            CallEnd::Failed | CallEnd::Shed => {
                self.silent_since = Some(now);
                match self.estimate {
                    None => {
                        self.observe(took.max(FAILED), now);
                        self.is_guess = true;
                    }
                    Some(_) if took >= self.decayed(now) => self.observe(took, now),
                    Some(_) => self.touch(now),
                }
            }
            CallEnd::TimedOut | CallEnd::GivenUp if took >= self.decayed(now) => {
                self.observe(took, now);
            }
            CallEnd::TimedOut | CallEnd::GivenUp | CallEnd::Unsent => {}
        }
    }

    fn observe(&mut self, took: f64, now: Instant) {
        // Unlike `decayed`, this ignores calls that began since then: they do not keep the old
        // estimate alive.
        let estimate = match self.estimate {
            Some(before) if took < before && !self.is_guess => {
                let weight = (-age(before, since(self.observed_at, now))).exp();
                before * weight + took * (1.0 - weight)
            }
            _ => took,
        };
        (self.estimate, self.observed_at, self.is_guess) = (Some(estimate), Some(now), false);
        self.touch(now);
    }

    fn touch(&mut self, now: Instant) {
        (self.touched_at, self.looks) = (Some(now), 0);
    }

    /// The cost of one more call now, seconds, where it is to have `weight` times the calls of
    /// others. Counts as so many looks.
    #[must_use]
    pub fn look(&mut self, now: Instant, weight: f64, looks: u32) -> f64 {
        self.looks = self.looks.saturating_add(looks);
        self.cost(now, weight)
    }

    /// The calls in flight, and the last estimate in seconds, if there is one.
    #[must_use]
    pub fn load(&self) -> (u32, Option<f64>) {
        (self.in_flight, self.estimate)
    }

    fn cost(&self, now: Instant, weight: f64) -> f64 {
        if self.estimate.is_none() && self.in_flight == 0 {
            return 0.0;
        }
        (self.decayed(now) * (f64::from(self.in_flight) / weight + 1.0)).max(LEAST_COST)
    }

    /// The estimated latency of a call, seconds.
    fn decayed(&self, now: Instant) -> f64 {
        let silence = if self.in_flight > 0 { since(self.silent_since, now) } else { 0.0 };
        let unanswered = if self.in_flight > 0 { UNANSWERED } else { 0.0 };
        let seconds = self.estimate.unwrap_or(unanswered).max(silence);
        let most = f64::from(self.looks) / MEMORY_IN_LOOKS;
        seconds * (-age(seconds, since(self.touched_at, now)).min(most)).exp()
    }
}

/// The age of an estimate after some seconds, as a multiple of the time in which it decays to a
/// third.
fn age(estimate: f64, seconds: f64) -> f64 {
    let (shortest, longest) = MEMORY;
    seconds / (estimate * MEMORY_IN_CALLS).clamp(shortest, longest)
}

fn since(then: Option<Instant>, now: Instant) -> f64 {
    then.map_or(0.0, |then| now.saturating_duration_since(then).as_secs_f64())
}

/// The cheaper of two end points that were drawn, by position; if a drawn one is not ready, the
/// next ready one of the range takes its place. `cost` returns `None` for an end point that is not
/// ready.
pub fn pick(
    drawn: [usize; 2],
    range: &Range<usize>,
    mut cost: impl FnMut(usize) -> Option<f64>,
) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    for first in drawn {
        // An end point that is not ready is replaced by the next one.
        let mut at = first;
        let found = loop {
            if let Some(cost) = cost(at) {
                break (at, cost);
            }
            at = if at + 1 < range.end { at + 1 } else { range.start };
            if at == first {
                return None;
            }
        };
        if best.is_none_or(|(_, lowest)| found.1 < lowest) {
            best = Some(found);
        }
        if drawn[0] == drawn[1] {
            break;
        }
    }
    best.map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use test_kit::Rng;

    use super::super::plan::Plan;
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Of all, each with the same chance.
    fn pick_any(
        count: usize,
        random: u64,
        cost: impl FnMut(usize) -> Option<f64>,
    ) -> Option<usize> {
        let plan = Plan::of_equals(count);
        let drawn = plan.draw_two(&(0..count), random)?;
        pick(drawn, &(0..count), cost)
    }

    #[test]
    fn dead_end_points_get_nothing_others_their_share() {
        let mut rng = Rng::new(1);
        let mut hits = [0_u32; 5];
        for _ in 0..10_000 {
            let at = pick_any(5, rng.next(), |at| (at != 2).then_some(1.0));
            hits[at.unwrap()] += 1;
        }
        assert_eq!(hits[2], 0);
        assert!(hits.iter().enumerate().all(|(at, hits)| at == 2 || *hits > 1000), "{hits:?}");
        assert_eq!(pick_any(3, 7, |_| None), None);
        assert_eq!(pick_any(0, 7, |_| Some(1.0)), None);
        assert_eq!(pick_any(1, 7, |_| Some(1.0)), Some(0));
    }

    #[test]
    fn of_two_the_cheaper_one_is_taken_always() {
        let mut rng = Rng::new(2);
        for _ in 0..1000 {
            let costs = [2.0, 1.0];
            assert_eq!(pick_any(2, rng.next(), |at| Some(costs[at])), Some(1));
        }
    }

    /// Open loop: a call that begins when it is due and is answered at once.
    fn answer(latency: &mut Latency, took: Duration, now: Instant) {
        latency.on_begin(now);
        latency.on_end(CallEnd::Answered, took, now);
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
                latency[at].on_end(CallEnd::Answered, end - began, now);
                served[at] += 1;
            }
            let at = pick_any(3, rng.next(), |at| Some(latency[at].look(now, 1.0, 1)));
            let at = at.unwrap();
            latency[at].on_begin(now);
            ends.push((now + takes[at] * MS, at, now));
        }
        assert!(served[2] < 20_000 / 10, "{served:?}");
        assert!(served[2] > 0 && served[0] > 5000 && served[1] > 5000, "{served:?}");
    }

    #[test]
    fn a_rise_counts_at_once_a_fall_slowly() {
        let (mut latency, now) = (Latency::default(), Instant::now());
        answer(&mut latency, MS, now);
        answer(&mut latency, 100 * MS, now);
        assert!((latency.cost(now, 1.0) - 0.1).abs() < 1e-9);
        answer(&mut latency, MS, now + MS);
        assert!(latency.cost(now + MS, 1.0) > 0.09);
        let later = now + Duration::from_secs(600);
        answer(&mut latency, MS, later);
        let alone = latency.cost(later, 1.0);
        assert!(alone < 0.0011);
        (0..9).for_each(|_| latency.on_begin(later));
        assert!(latency.cost(later, 1.0) > alone * 9.9);
    }

    #[test]
    fn an_estimate_decays_until_the_next_call() {
        let (mut slow, mut fast, now) = (Latency::default(), Latency::default(), Instant::now());
        answer(&mut slow, 300 * MS, now);
        let mut tried = None;
        for millis in 0..20_000 {
            let now = now + millis * MS;
            if slow.look(now, 1.0, 1) < fast.look(now, 1.0, 1) && tried.is_none() {
                slow.on_begin(now);
                tried = Some(now);
                assert!(slow.cost(now, 1.0) > 0.5, "one call, and no second before its answer");
            } else {
                answer(&mut fast, MS, now);
            }
        }
        let tried = tried.expect("within 20 s");
        assert!(tried > now + Duration::from_secs(2) && tried < now + Duration::from_secs(10));
        slow.on_end(CallEnd::Answered, MS, tried + MS);
        assert!(slow.cost(tried + MS, 1.0) < 0.003, "{}", slow.cost(tried + MS, 1.0));
    }

    /// Callers in turn, with healthy servers that are sometimes slow for a moment.
    #[test]
    fn callers_in_turn_leave_none_of_three_alone() {
        let (mut rng, mut now) = (Rng::new(5), Instant::now());
        let mut latency = [Latency::default(); 3];
        let (mut calls, mut last, mut longest) = ([0_u32; 3], [now; 3], Duration::ZERO);
        for _ in 0..50_000 {
            let at = pick_any(3, rng.next(), |at| Some(latency[at].look(now, 1.0, 1))).unwrap();
            let takes = if rng.chance(1) { 5000 } else { 50 + rng.below(100) };
            let (began, takes) = (now, Duration::from_micros(takes));
            longest = longest.max(now - last[at]);
            latency[at].on_begin(now);
            now += takes;
            latency[at].on_end(CallEnd::Answered, now - began, now);
            (calls[at], last[at]) = (calls[at] + 1, now);
        }
        assert!(calls.iter().all(|calls| *calls > 10_000), "{calls:?}");
        assert!(longest < Duration::from_secs(1), "{longest:?}");
    }

    /// One call per minute: an end point that always refuses gets few of them.
    #[test]
    fn where_calls_are_seldom_few_find_out() {
        let (mut rng, mut now) = (Rng::new(6), Instant::now());
        let (mut latency, mut refused) = ([Latency::default(); 2], 0);
        for _ in 0..1000 {
            now += 60_000 * MS;
            let at = pick_any(2, rng.next(), |at| Some(latency[at].look(now, 1.0, 1))).unwrap();
            latency[at].on_begin(now);
            refused += u32::from(at == 0);
            let end = if at == 0 { CallEnd::Refused } else { CallEnd::Answered };
            latency[at].on_end(end, MS, now + MS);
        }
        assert!((10..100).contains(&refused), "{refused}");
    }

    #[test]
    fn before_the_first_answer_there_is_one_call() {
        let (mut new, mut known, now) = (Latency::default(), Latency::default(), Instant::now());
        answer(&mut known, 60_000 * MS, now);
        assert!(new.cost(now, 1.0) < known.cost(now, 1.0));
        new.on_begin(now);
        assert!(new.cost(now, 1.0) > known.cost(now, 1.0));
        let waits = now + 1000 * MS;
        assert!(new.cost(waits, 1.0) > 10.0);
        // An answer that the caller did not wait for does not count.
        new.on_end(CallEnd::GivenUp, 1000 * MS, waits);
        assert!((new.cost(waits, 1.0) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn silence_is_expensive_unsent_calls_are_ignored() {
        let (mut latency, now) = (Latency::default(), Instant::now());
        answer(&mut latency, MS, now);
        let before = latency.cost(now, 1.0);
        latency.on_begin(now);
        latency.on_end(CallEnd::Unsent, 1000 * MS, now);
        assert_eq!(latency.cost(now, 1.0), before);
        latency.on_begin(now);
        latency.on_end(CallEnd::GivenUp, Duration::ZERO, now);
        assert_eq!(latency.cost(now, 1.0), before);
        latency.on_begin(now);
        latency.on_begin(now + 2000 * MS);
        assert!(latency.cost(now + 2000 * MS, 1.0) > 5.9, "two that wait for 2 s, and one more");
        latency.on_end(CallEnd::Refused, MS, now + 2000 * MS);
        latency.on_end(CallEnd::Refused, MS, now + 2000 * MS);
        assert!(latency.cost(now + 2000 * MS, 1.0) > 0.99);
    }
}
