//! Which end points are taken out because they fail more than the others, and for how long.
//!
//! Owns the outcomes of the calls of a connection ([`Tally`]), and the end points that are out
//! ([`Ejections`]): gRPC A50, decided at each failure instead of at intervals.
//!
//! Invariants:
//! 1. At most a third of the end points is out when one is taken out. So of two none ever is.
//! 2. An end point is out for 10 s first, and for twice as long each further time, with a jitter.
//!    It starts over once it has been back for as long as it was out.
//! 3. What is kept grows with the end points only.

use std::time::{Duration, Instant};

use rpc_transport::wait::after;

use super::backoff::Backoff;

/// The longest time out, jitter included.
const LONGEST: Duration = Duration::from_secs(300);
/// A success rate is that of the last one to two of these.
const WINDOW: Duration = Duration::from_secs(10);
/// Fewest calls in that time that make a rate.
const RATED_CALLS: u32 = 50;
/// Shortest time between two comparisons on behalf of one connection.
const COMPARED_EVERY: Duration = Duration::from_secs(1);
/// How far a success rate must be below the mean of the others: this, and so many deviations.
const LEAST_DISTANCE: f64 = 0.1;
const DEVIATIONS: f64 = 1.9;

/// When an end point is taken out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OutlierLimits {
    /// Failures in a row; 0: never for that.
    pub in_a_row: u32,
    /// The first time out.
    pub time_out: Duration,
}

/// Why an end point may have to be taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suspicion {
    /// It failed several times in a row.
    InARow,
    /// It fails often: its rate must be compared with those of the others.
    Rate,
}

/// Calls that ended since some time.
#[derive(Debug, Clone, Copy, Default)]
struct Window {
    since: Option<Instant>,
    good: u32,
    bad: u32,
}

/// The outcomes of the calls of one connection.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    in_a_row: u32,
    current: Window,
    before: Window,
    compared_at: Option<Instant>,
}

impl Tally {
    /// Records a success.
    pub fn on_success(&mut self, now: Instant) {
        self.in_a_row = 0;
        self.turn(now);
        self.current.good = self.current.good.saturating_add(1);
    }

    /// Records a failure. Says whether it is one too many.
    pub fn on_failure(&mut self, limits: &OutlierLimits, now: Instant) -> Option<Suspicion> {
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.turn(now);
        self.current.bad = self.current.bad.saturating_add(1);
        if limits.in_a_row > 0 && self.in_a_row >= limits.in_a_row {
            return Some(Suspicion::InARow);
        }
        let is_due = self.compared_at.is_none_or(|at| after(at, COMPARED_EVERY) <= now);
        let is_bad = is_due && self.rate(now).is_some_and(|rate| rate < 1.0 - LEAST_DISTANCE);
        is_bad.then(|| {
            self.compared_at = Some(now);
            Suspicion::Rate
        })
    }

    /// The share of the calls of late that succeeded; `None`: there were too few.
    #[must_use]
    pub fn rate(&mut self, now: Instant) -> Option<f64> {
        self.turn(now);
        let good = self.current.good.saturating_add(self.before.good);
        let all = good.saturating_add(self.current.bad).saturating_add(self.before.bad);
        (all >= RATED_CALLS).then(|| f64::from(good) / f64::from(all))
    }

    fn turn(&mut self, now: Instant) {
        let since = *self.current.since.get_or_insert(now);
        let age = now.saturating_duration_since(since);
        if age >= WINDOW {
            let is_recent = age < WINDOW * 2;
            self.before = if is_recent { self.current } else { Window::default() };
            self.current = Window { since: Some(now), good: 0, bad: 0 };
        }
    }
}

/// Whether a success rate is far below those of at least two others.
#[must_use]
pub fn is_outlier(own: f64, others: &[f64]) -> bool {
    if others.len() < 2 {
        return false;
    }
    let count = others.len() as f64;
    let mean = others.iter().sum::<f64>() / count;
    let variance = others.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / count;
    own < mean - LEAST_DISTANCE - DEVIATIONS * variance.sqrt()
}

/// An end point that was taken out at least once.
#[derive(Debug, Clone, Copy)]
struct Ejection {
    end_point: usize,
    until: Instant,
    lasted: Duration,
    /// How often in a row, with too little time between.
    times: u32,
}

/// The end points of a channel that are, or were, taken out.
#[derive(Debug, Default)]
pub struct Ejections(Vec<Ejection>);

impl Ejections {
    /// Takes an end point out, one of `count`. Gives until when; `None`: enough are out.
    pub fn eject(
        &mut self,
        end_point: usize,
        count: usize,
        limits: &OutlierLimits,
        now: Instant,
        random: u64,
    ) -> Option<Instant> {
        let known = self.0.iter().position(|it| it.end_point == end_point);
        if known.is_some_and(|at| self.0[at].until > now) || self.count(now) >= count / 3 {
            return None;
        }
        let before = known.map_or(0, |at| {
            let Ejection { until, lasted, times, .. } = self.0[at];
            if now.saturating_duration_since(until) > lasted { 0 } else { times }
        });
        let times = before.saturating_add(1);
        let length = Backoff::new().initial(limits.time_out).multiplier(2.0).jitter(0.1);
        let lasted = length.max(LONGEST.max(limits.time_out)).delay(times, random);
        let until = after(now, lasted);
        let ejection = Ejection { end_point, until, lasted, times };
        match known {
            Some(at) => self.0[at] = ejection,
            None => self.0.push(ejection),
        }
        Some(until)
    }

    /// Until when an end point is out; `None`: it is not.
    #[must_use]
    pub fn until(&self, end_point: usize, now: Instant) -> Option<Instant> {
        let found = self.0.iter().find(|it| it.end_point == end_point)?;
        (found.until > now).then_some(found.until)
    }

    /// How many are out.
    #[must_use]
    pub fn count(&self, now: Instant) -> usize {
        self.0.iter().filter(|it| it.until > now).count()
    }

    /// Forgets the end points that the channel no longer has.
    pub fn retain(&mut self, has: impl Fn(usize) -> bool) {
        self.0.retain(|it| has(it.end_point));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use test_kit::Rng;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const LIMITS: OutlierLimits = OutlierLimits { in_a_row: 5, time_out: Duration::from_secs(10) };

    #[test]
    fn five_failures_in_a_row_are_suspicious() {
        let (mut tally, now) = (Tally::default(), Instant::now());
        for _ in 0..10 {
            (0..4).for_each(|_| assert_eq!(tally.on_failure(&LIMITS, now), None));
            tally.on_success(now);
        }
        let mut tally = Tally::default();
        (0..4).for_each(|_| assert_eq!(tally.on_failure(&LIMITS, now), None));
        assert_eq!(tally.on_failure(&LIMITS, now), Some(Suspicion::InARow));
        let never = OutlierLimits { in_a_row: 0, ..LIMITS };
        let mut tally = Tally::default();
        assert!((0..40).all(|_| tally.on_failure(&never, now).is_none()));
    }

    #[test]
    fn a_bad_rate_is_compared_once_a_second() {
        let (mut tally, now) = (Tally::default(), Instant::now());
        let mut compared = 0;
        for call in 0..1000_u32 {
            let now = now + call * SECOND / 100;
            match call % 3 {
                0 => compared += u32::from(tally.on_failure(&LIMITS, now).is_some()),
                _ => tally.on_success(now),
            }
        }
        assert!((9..=10).contains(&compared), "{compared} in ten seconds");
        let later = now + 60 * SECOND;
        assert_eq!(tally.rate(later), None, "old calls do not count");
    }

    #[test]
    fn outliers_are_below_all_others() {
        assert!(is_outlier(0.5, &[1.0, 0.99, 0.98]));
        assert!(!is_outlier(0.9, &[1.0, 0.95]), "close enough");
        assert!(!is_outlier(0.5, &[0.4, 0.6, 0.5]), "all are bad");
        assert!(!is_outlier(0.0, &[1.0]), "one other proves nothing");
    }

    #[test]
    fn each_time_out_is_twice_as_long() {
        let (mut ejections, mut now) = (Ejections::default(), Instant::now());
        for expected in [10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0] {
            let until = ejections.eject(7, 3, &LIMITS, now, u64::MAX / 2).expect("one of three");
            let lasts = (until - now).as_secs_f64();
            assert!((lasts - expected).abs() < 0.01, "{lasts} {expected}");
            assert_eq!(ejections.eject(8, 3, &LIMITS, now, 0), None, "a third is out");
            now = until + SECOND;
        }
        now += 301 * SECOND;
        let until = ejections.eject(7, 3, &LIMITS, now, u64::MAX / 2).unwrap();
        assert!((until - now).as_secs_f64() < 10.01, "it was well for long enough");
    }

    /// Random ends of calls at members that come and go.
    #[test]
    fn random_failures_eject_a_third_at_most() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let (mut now, mut ejections) = (Instant::now(), Ejections::default());
            let mut tallies: BTreeMap<usize, (Tally, u32)> = BTreeMap::new();
            let mut next = 0;
            for _ in 0..2000 {
                now += Duration::from_millis(rng.below(500));
                match rng.below(40) {
                    0 => {
                        tallies.insert(next, Default::default());
                        next += 1;
                    }
                    1 => {
                        let gone = tallies.keys().min().copied();
                        gone.map(|gone| tallies.remove(&gone));
                        ejections.retain(|end_point| tallies.contains_key(&end_point));
                    }
                    _ => {}
                }
                let count = tallies.len();
                let Some(at) = tallies.keys().copied().nth(rng.index(count.max(1))) else {
                    continue;
                };
                let Some((tally, failed)) = tallies.get_mut(&at) else { continue };
                if rng.chance(50) {
                    tally.on_success(now);
                    *failed = 0;
                    continue;
                }
                *failed += 1;
                let suspicion = tally.on_failure(&LIMITS, now);
                assert_eq!(suspicion == Some(Suspicion::InARow), *failed >= 5, "seed {seed}");
                let was_out = ejections.until(at, now).is_some();
                let before = ejections.count(now);
                if suspicion.is_some()
                    && let Some(until) = ejections.eject(at, count, &LIMITS, now, rng.next())
                {
                    assert!(!was_out && ejections.count(now) <= count / 3, "seed {seed}");
                    let lasts = until - now;
                    assert!(lasts >= 9 * SECOND && lasts <= LONGEST, "seed {seed}: {lasts:?}");
                    assert_eq!(
                        (ejections.count(now), ejections.until(at, now)),
                        (before + 1, Some(until))
                    );
                }
                assert!(ejections.0.len() <= tallies.len(), "seed {seed}");
            }
        }
    }
}
