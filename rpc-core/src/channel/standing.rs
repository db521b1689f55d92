//! What a channel knows of its connection to one of several end points: how fast it answers, how
//! often it fails, whether it is out, and what its health says. Gives the cost of one more call.
//!
//! Invariants:
//! 1. A failure makes a call dearer, however fast it comes: the latency of [`Latency`] does not
//!    fall with it, and the cost grows with the share of the calls of late that failed.
//! 2. An end point that refuses for lack of resources is dearer, but not taken out for that: it
//!    serves what it can.
//! 3. Failures that come with the end of a connection count once, as that end: they take nobody
//!    out.
//! 4. An end point that comes to others, or comes back, gets its share little by little.

use std::time::{Duration, Instant};

use super::backoff::unit;
use super::outliers::{OutlierLimits, Suspicion, Tally};
use super::picker::{CallEnd, LEAST_COST, Latency};

/// The weight of the last outcome in the share of failures.
const OF_LAST: f64 = 1.0 / 16.0;
/// The time in which the share of failures decays to a third.
const MEMORY: Duration = Duration::from_secs(1);
/// Minimum number of times that an end point is considered while that share decays to a third.
const MEMORY_IN_LOOKS: f64 = 2.0;
/// Looks for which a copy of the latency of an end point without faults is good.
pub const LOOKS: u32 = 16;
/// The least share of successes that is assumed, and the least failures that count.
const LEAST: f64 = 0.03;
/// The first share of a call's turns that an end point gets that comes to others.
const FIRST_SHARE: f64 = 0.1;
/// How many times dearer it is where it is not its turn.
const NOT_ITS_TURN: f64 = 1e6;

/// What the health of an end point says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Health {
    /// Calls are served, as far as is known.
    #[default]
    Serving,
    /// It was asked, and has not answered.
    Unknown,
    /// Calls are served for a while.
    Draining,
    /// Calls would fail.
    NotServing,
}

impl Health {
    /// Its name in statistics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::Unknown => "unknown",
            Self::Draining => "draining",
            Self::NotServing => "not serving",
        }
    }
}

/// How much is asked of an end point that is to get a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// It is neither out nor ill.
    Well,
    /// There is no other: it answers calls, well or not.
    Any,
}

/// What is known of one connection.
#[derive(Debug, Clone, Copy, Default)]
pub struct Standing {
    latency: Latency,
    tally: Tally,
    health: Health,
    /// The share of failures, as of `failed_at`.
    failing: f64,
    failed_at: Option<Instant>,
    /// How often it was considered since then.
    looks: u32,
    /// Until when it gets no calls.
    out_until: Option<Instant>,
    /// Since when it gets its share little by little, and how long that takes.
    warms: Option<(Instant, Duration)>,
    /// The connection has ended.
    is_lost: bool,
}

impl Standing {
    /// The cost of one more call now; `None`: it gets none. `random`: a uniformly distributed
    /// number. `weight`: how many times the calls of others it is to have.
    #[must_use]
    pub fn look(&mut self, need: Need, now: Instant, random: u64, weight: f64) -> Option<f64> {
        let is_refused = match self.health {
            Health::Serving => false,
            Health::Draining => need == Need::Well,
            Health::Unknown | Health::NotServing => true,
        };
        self.out_until = self.out_until.filter(|until| *until > now);
        if is_refused || need == Need::Well && self.out_until.is_some() {
            return None;
        }
        // Of an end point without faults there are looks without this.
        let looks = if self.is_plain() { LOOKS } else { 1 };
        let mut cost = self.latency.look(now, weight, looks);
        if self.failing > 0.0 {
            self.looks = self.looks.saturating_add(1);
            cost *= self.penalty(now);
        }
        if let Some((since, takes)) = self.warms {
            let age = now.saturating_duration_since(since);
            if age >= takes {
                self.warms = None;
            } else if unit(random) > (age.div_duration_f64(takes)).max(FIRST_SHARE) {
                cost *= NOT_ITS_TURN;
            }
        }
        Some(cost)
    }

    /// How slow calls are served, with no regard to how many are in flight; 0 if that is not known
    /// yet, `None` if there are to be none.
    #[must_use]
    pub fn slowness(&self, now: Instant) -> Option<f64> {
        let latency = self.latency.load().1.unwrap_or(0.0);
        self.is_well(now).then(|| latency * self.penalty(now))
    }

    /// The latency after a call has begun or ended; `None`: it says too little of the cost.
    #[must_use]
    pub fn plain_latency(&self) -> Option<f64> {
        let latency = self.latency.load().1.filter(|_| self.is_plain())?;
        Some(latency.max(LEAST_COST))
    }

    /// Whether latency and calls in flight are all that counts.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.failing == 0.0
            && self.health == Health::Serving
            && self.out_until.is_none()
            && self.warms.is_none()
            && self.latency.load().1.is_some()
    }

    /// How many times dearer a call is for the failures of late.
    fn penalty(&self, now: Instant) -> f64 {
        let good = (1.0 - self.failing_now(now)).max(LEAST);
        // By measurement, this gives an end point the share of calls that it does not fail.
        (good * good.sqrt()).recip()
    }

    fn failing_now(&self, now: Instant) -> f64 {
        let age = self.failed_at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        let most = f64::from(self.looks) / MEMORY_IN_LOOKS;
        self.failing * (-age.div_duration_f64(MEMORY).min(most)).exp()
    }

    /// Records the start of a call.
    pub fn on_begin(&mut self, now: Instant) {
        self.latency.on_begin(now);
    }

    /// Records the end of a call after `took`. Says whether the end point may have to be taken out.
    pub fn on_end(
        &mut self,
        end: CallEnd,
        took: Duration,
        limits: &OutlierLimits,
        now: Instant,
    ) -> Option<Suspicion> {
        self.latency.on_end(end, took, now);
        let failed = match end {
            CallEnd::Answered => false,
            CallEnd::Failed | CallEnd::TimedOut | CallEnd::Refused | CallEnd::Shed => true,
            CallEnd::GivenUp | CallEnd::Unsent => return None,
        };
        if failed || self.failing > 0.0 {
            let before = self.failing_now(now);
            let failing = before + (f64::from(u8::from(failed)) - before) * OF_LAST;
            self.failing = if failing < LEAST * OF_LAST { 0.0 } else { failing };
            (self.failed_at, self.looks) = (Some(now), 0);
        }
        match end {
            CallEnd::Answered => self.tally.on_success(now),
            CallEnd::Shed => {}
            _ if self.is_lost => {}
            _ => return self.tally.on_failure(limits, now),
        }
        None
    }

    /// The connection has ended: what fails now fails with it.
    pub fn on_lost(&mut self) {
        self.is_lost = true;
    }

    /// The end point gets no calls until then, and then its share within `warms`.
    pub fn take_out(&mut self, until: Instant, warms: Duration) {
        self.tally = Tally::default();
        self.out_until = Some(until);
        self.warms = Some((until, warms));
    }

    /// The end point gets its share little by little, from now on.
    pub fn warm_up(&mut self, now: Instant, takes: Duration) {
        self.warms = Some((now, takes));
    }

    /// The share of the calls of late that succeeded; `None`: there were too few.
    #[must_use]
    pub fn success_rate(&mut self, now: Instant) -> Option<f64> {
        self.tally.rate(now)
    }

    /// What its health says.
    pub fn set_health(&mut self, health: Health) {
        self.health = health;
    }

    /// What its health says.
    #[must_use]
    pub fn health(&self) -> Health {
        self.health
    }

    /// Whether it is neither out nor ill.
    #[must_use]
    pub fn is_well(&self, now: Instant) -> bool {
        self.health == Health::Serving && !self.is_out(now)
    }

    /// Whether it is out.
    #[must_use]
    pub fn is_out(&self, now: Instant) -> bool {
        self.out_until.is_some_and(|until| until > now)
    }

    /// Its calls in flight, and their latency of late in seconds, if there was any.
    #[must_use]
    pub fn load(&self) -> (u32, Option<f64>) {
        self.latency.load()
    }
}

#[cfg(test)]
mod tests {
    use test_kit::Rng;

    use super::super::picker::pick;
    use super::super::plan::Plan;
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const LIMITS: OutlierLimits = OutlierLimits { in_a_row: 0, time_out: Duration::from_secs(10) };

    /// A closed loop of eight callers at four end points that take 5 ms; the last one ends a share
    /// of its calls at once. Gives the calls that each got.
    fn calls(percent: u64, end: CallEnd) -> [u32; 4] {
        let (mut rng, mut now) = (Rng::new(7), Instant::now());
        let mut standings = [Standing::default(); 4];
        let mut ends: Vec<(Instant, usize, Instant, CallEnd)> = Vec::new();
        let mut calls = [0_u32; 4];
        for _ in 0..8000 {
            if ends.len() == 8 {
                let next = (0..8).min_by_key(|at| ends[*at].0).unwrap();
                let (over, at, began, end) = ends.swap_remove(next);
                now = now.max(over);
                let suspicion = standings[at].on_end(end, over - began, &LIMITS, now);
                assert!(end == CallEnd::Failed || suspicion.is_none());
            }
            let random = rng.next();
            let cost = |at: usize| standings[at].look(Need::Well, now, 0, 1.0);
            let drawn = Plan::of_equals(4).draw_two(&(0..4), random).unwrap();
            let at = pick(drawn, &(0..4), cost).unwrap();
            calls[at] += 1;
            standings[at].on_begin(now);
            let fails = at == 3 && rng.chance(percent);
            let (takes, end) = if fails { (MS / 20, end) } else { (5 * MS, CallEnd::Answered) };
            ends.push((now + takes, at, now, end));
        }
        calls
    }

    #[test]
    fn failing_fast_attracts_nobody() {
        for end in [CallEnd::Failed, CallEnd::Shed] {
            let all_well = calls(0, end);
            assert!(all_well.iter().all(|calls| (1800..2200).contains(calls)), "{all_well:?}");
            for percent in [10_u32, 20, 50, 80] {
                let (got, share) = (calls(percent.into(), end)[3], 20 * (100 - percent));
                assert!(
                    (share * 2 / 3..share * 4 / 3).contains(&got),
                    "{percent} %: {got}, {share}"
                );
            }
            let all_bad = calls(100, end)[3];
            assert!((2..100).contains(&all_bad), "{all_bad}");
        }
    }

    #[test]
    fn who_is_out_or_ill_gets_no_calls() {
        let (mut standing, now) = (Standing::default(), Instant::now());
        let looks = |standing: &mut Standing, need, at| standing.look(need, at, 0, 1.0).is_some();
        standing.take_out(now + 10 * MS, Duration::ZERO);
        assert!(!looks(&mut standing, Need::Well, now) && looks(&mut standing, Need::Any, now));
        assert!(looks(&mut standing, Need::Well, now + 10 * MS), "it is back");
        let later = now + 10 * MS;
        for (health, well, any) in [
            (Health::Serving, true, true),
            (Health::Draining, false, true),
            (Health::Unknown, false, false),
            (Health::NotServing, false, false),
        ] {
            standing.set_health(health);
            assert_eq!(looks(&mut standing, Need::Well, later), well, "{health:?}");
            assert_eq!(looks(&mut standing, Need::Any, later), any, "{health:?}");
        }
    }

    #[test]
    fn who_comes_back_gets_its_share_slowly() {
        let (mut rng, now) = (Rng::new(9), Instant::now());
        let mut standing = Standing::default();
        standing.on_begin(now);
        standing.on_end(CallEnd::Answered, MS, &LIMITS, now);
        standing.warm_up(now, 1000 * MS);
        for (millis, share) in [(0, 10), (300, 30), (700, 70), (1000, 100)] {
            let turns = (0..10_000).filter(|_| {
                let cost = standing.look(Need::Well, now + millis * MS, rng.next(), 1.0);
                cost.is_some_and(|cost| cost < 1.0)
            });
            let turns = turns.count() / 100;
            assert!((share - 3..=share + 3).contains(&turns), "{millis} ms: {turns} %");
        }
    }

    #[test]
    fn a_lost_connection_takes_nobody_out() {
        let (mut standing, now) = (Standing::default(), Instant::now());
        let limits = OutlierLimits { in_a_row: 2, ..LIMITS };
        standing.on_lost();
        for _ in 0..100 {
            standing.on_begin(now);
            assert_eq!(standing.on_end(CallEnd::Refused, MS, &limits, now), None);
        }
    }
}
