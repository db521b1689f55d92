//! Decides whether and when a call gets a second attempt while the first one runs: the hedging of
//! gRPC A6.
//!
//! Owns the policy, the state of a channel ([`Hedging`]: the latencies of methods, and the budget),
//! and the race of a call's two attempts ([`Race`]). Only used for idempotent methods.
//!
//! Invariants:
//! 1. Second attempts never exceed the budget's share of all calls: the budget starts empty. An
//!    attempt that never left this end costs nothing.
//! 2. A call has at most one second attempt, and none during a server's pushback or while the
//!    throttle of the retries is closed.
//! 3. The first answer ends the call. A failure ends it only if no other attempt runs.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rpc_transport::wait::after;

use super::retry::Failed;
use super::throttle::Throttle;

/// The cost of one second attempt, in thousandths.
const MILLI: u32 = 1000;
/// Maximum budget, in thousandths: the savings of a quiet hour are not spent in one burst.
const MOST_SAVED: u32 = 10 * MILLI;
/// Minimum time between two checks of a first attempt that is still queued.
const SHORTEST_LOOK: Duration = Duration::from_millis(1);
/// Answers of a method needed for an estimate of its latency.
const ENOUGH_ANSWERS: u32 = 50;
/// Number of answers after which the weight of the earlier ones is halved.
const MEMORY: u32 = 1024;

/// When a call of a method marked `#[rpc(idempotent)]` gets a second attempt while its first one
/// runs: for calls whose latency is worth doing a few percent of the work twice.
///
/// The second attempt goes to another server, if the channel has several; the first answer counts,
/// and the other attempt is cancelled. A call is hedged, once, if it has no answer after the
/// method's 95th percentile on that channel, and at most one of ten calls is. No call is hedged
/// during a server's pushback ([`Status::with_retry_after`](crate::Status::with_retry_after)), or
/// while the throttle of the [`RetryPolicy`](crate::client::RetryPolicy) is closed.
///
/// Methods that are not idempotent, calls with streams, calls whose reply goes into a
/// [`ReplySlot`](crate::bulk::ReplySlot) and bodies above 64 KiB (without the byte strings beside
/// them) are never hedged, nor is a call that is not polled.
///
/// ```
/// use rpc_core::Channel;
/// use rpc_core::client::HedgingPolicy;
/// use std::time::Duration;
///
/// let builder = Channel::builder().hedging(HedgingPolicy::new());
/// let impatient = HedgingPolicy::new().delay(Duration::from_millis(5)).budget(0.02);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HedgingPolicy {
    delay: Option<Duration>,
    budget: f64,
}

impl Default for HedgingPolicy {
    fn default() -> Self {
        Self::new()
    }
}

impl HedgingPolicy {
    /// After the method's own 95th percentile; at most one of ten calls.
    #[must_use]
    pub const fn new() -> Self {
        Self { delay: None, budget: 0.1 }
    }

    /// Delay before the second attempt. Default: the method's 95th percentile; until 50 calls have
    /// been answered there are no second attempts.
    #[must_use]
    pub const fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// The share of calls, from 0 to 1, that may have a second attempt. Default 0.1. Each call adds
    /// its share to the budget of the channel, which starts empty and never exceeds ten attempts.
    #[must_use]
    pub const fn budget(mut self, share: f64) -> Self {
        self.budget = share;
        self
    }

    /// The amount that one call adds to the budget, thousandths.
    fn share(&self) -> u32 {
        // `NaN` counts as 0.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is clamped"
        )]
        let share = (self.budget.clamp(0.0, 1.0) * f64::from(MILLI)) as u32;
        share
    }
}

/// The state of a channel that decides about second attempts.
#[derive(Debug, Default)]
pub struct Hedging {
    /// The budget, thousandths.
    saved: u32,
    /// End of a server's pushback: no second attempts before it.
    quiet_until: Option<Instant>,
    methods: HashMap<u32, Latencies>,
}

impl Hedging {
    /// Records the start of a call. Returns the delay before its second attempt; `None`: there is
    /// none.
    pub fn begin(&mut self, method: u32, policy: &HedgingPolicy) -> Option<Duration> {
        self.saved = self.saved.saturating_add(policy.share()).min(MOST_SAVED);
        policy.delay.or_else(|| self.methods.get(&method)?.percentile_95())
    }

    /// Records that a call was answered after `took`, or had no answer until then.
    pub fn on_answer(&mut self, method: u32, took: Duration) {
        self.methods.entry(method).or_default().observe(took);
    }

    /// Records that a second attempt was not sent after all: it costs nothing.
    pub fn on_unsent(&mut self) {
        self.saved = self.saved.saturating_add(MILLI).min(MOST_SAVED);
    }

    /// Records a server's pushback: no further attempts before `until`.
    pub fn on_pushback(&mut self, until: Instant) {
        self.quiet_until = self.quiet_until.max(Some(until));
    }

    /// Takes the cost of a second attempt from the budget; false if there must be none.
    fn spend(&mut self, now: Instant) -> bool {
        let is_quiet = self.quiet_until.is_some_and(|until| until > now);
        if is_quiet || self.saved < MILLI {
            return false;
        }
        self.saved -= MILLI;
        true
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The server answered the call, with success or failure.
    Answered,
    /// It failed in a way that another attempt may not.
    Failed,
}

/// How the second attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecondEnded {
    /// Its outcome is final for the call.
    Answered,
    /// It failed in a way that another attempt may not.
    Failed(Failed),
    /// This end refused it or had no connection for it: no server has seen it.
    NeverSent,
}

/// The effect of an attempt's end on its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The other attempt decides.
    GoesOn,
    /// The call ends as the first attempt did.
    First,
    /// The call ends as the second attempt did.
    Second,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Second {
    /// To be sent at this time, if the first still runs.
    At(Instant),
    /// Waits until the first is sent again.
    Waits,
    Runs,
    /// It has ended, or will not be sent.
    Over,
}

/// A call and its two attempts.
#[derive(Debug, Clone, Copy)]
pub struct Race {
    since: Instant,
    delay: Option<Duration>,
    second: Second,
    first_failed: bool,
}

impl Race {
    /// Starts when the first attempt is sent; `delay` comes from [`Hedging::begin`].
    #[must_use]
    pub fn new(now: Instant, delay: Option<Duration>) -> Self {
        let mut race = Self { since: now, delay, second: Second::Waits, first_failed: false };
        race.on_sent(now);
        race
    }

    /// Records that the first attempt is sent, or sent again: the delay starts anew.
    pub fn on_sent(&mut self, now: Instant) {
        if matches!(self.second, Second::At(_) | Second::Waits) {
            self.since = now;
            let at = self.delay.map(|delay| after(now, delay));
            self.second = at.map_or(Second::Over, Second::At);
        }
    }

    /// Records that the delay is over while the first attempt is still queued at this end: no
    /// server has it, so the delay starts anew.
    pub fn on_in_line(&mut self, now: Instant) {
        if let Second::At(_) = self.second {
            self.since = now;
            // Without a minimum this would spin.
            let delay = self.delay.unwrap_or_default().max(SHORTEST_LOOK);
            self.second = Second::At(after(now, delay));
        }
    }

    /// When to call [`Race::on_time`].
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        match self.second {
            Second::At(at) => Some(at),
            _ => None,
        }
    }

    /// Whether to send a second attempt now. `first_runs`: the first has been sent, and is not
    /// queued at this end. `throttle`: that of the retries.
    pub fn on_time(
        &mut self,
        now: Instant,
        first_runs: bool,
        hedging: &mut Hedging,
        throttle: Option<&Throttle>,
    ) -> bool {
        if self.next().is_none_or(|at| at > now) {
            return false;
        }
        if !first_runs {
            self.second = Second::Waits;
            return false;
        }
        let sends = throttle.is_none_or(Throttle::allows) && hedging.spend(now);
        self.second = if sends { Second::Runs } else { Second::Over };
        sends
    }

    /// Records the end of the first attempt.
    pub fn on_first(&mut self, ended: Ended) -> Verdict {
        if ended == Ended::Failed && self.second == Second::Runs {
            self.first_failed = true;
            return Verdict::GoesOn;
        }
        Verdict::First
    }

    /// Records the end of the second attempt. Its failure counts in the throttle like that of a
    /// first one: calls lost with the same connection count once.
    pub fn on_second(&mut self, ended: SecondEnded, throttle: Option<&mut Throttle>) -> Verdict {
        self.second = Second::Over;
        match (ended, throttle) {
            (SecondEnded::Answered, _) => return Verdict::Second,
            (SecondEnded::Failed(Failed::Lost(end_point, epoch)), Some(throttle)) => {
                throttle.on_lost(end_point, epoch);
            }
            (SecondEnded::Failed(Failed::Refused(_)), Some(throttle)) => throttle.on_failure(),
            (SecondEnded::Failed(_), None) | (SecondEnded::NeverSent, _) => {}
        }
        if self.first_failed { Verdict::First } else { Verdict::GoesOn }
    }

    /// How long the first attempt has run.
    #[must_use]
    pub fn took(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }
}

/// Four buckets for each power of two of microseconds.
const BUCKETS: usize = 164;

/// A histogram of a method's latencies, with a resolution of a quarter of a power of two.
#[derive(Debug)]
struct Latencies {
    counts: [u16; BUCKETS],
    total: u32,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], total: 0 }
    }
}

impl Latencies {
    fn observe(&mut self, took: Duration) {
        if self.total >= MEMORY {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.total = self.counts.iter().map(|count| u32::from(*count)).sum();
        }
        self.counts[bucket(took)] += 1;
        self.total += 1;
    }

    fn percentile_95(&self) -> Option<Duration> {
        if self.total < ENOUGH_ANSWERS {
            return None;
        }
        let mut left = (self.total * 95).div_ceil(100);
        let at = self.counts.iter().position(|count| {
            left = left.saturating_sub(u32::from(*count));
            left == 0
        })?;
        Some(upper_edge(at))
    }
}

fn bucket(took: Duration) -> usize {
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).clamp(1, 1 << 40);
    let power = micros.ilog2();
    let quarter = ((micros << 2) >> power) & 3;
    (power as usize * 4 + usize::try_from(quarter).unwrap_or(0)).min(BUCKETS - 1)
}

/// The upper bound of a bucket.
fn upper_edge(bucket: usize) -> Duration {
    let (power, quarter) = (bucket / 4, bucket as u64 % 4);
    Duration::from_micros(((5 + quarter) << power).div_ceil(4))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_percentile_follows_its_method() {
        let (mut hedging, policy) = (Hedging::default(), HedgingPolicy::new());
        for _ in 0..3 {
            for millis in 1..=100 {
                hedging.on_answer(1, millis * MS);
            }
        }
        hedging.on_answer(2, MS);
        let after = hedging.begin(1, &policy).unwrap();
        assert!(after >= 95 * MS && after <= 119 * MS, "{after:?}");
        assert_eq!(hedging.begin(2, &policy), None, "too few to know");
        assert_eq!(hedging.begin(2, &policy.delay(MS)), Some(MS));
        for _ in 0..20_000 {
            hedging.on_answer(1, MS);
        }
        assert!(hedging.begin(1, &policy).unwrap() < 2 * MS);
        for micros in (0..60).map(|power| 1 << power) {
            let took = Duration::from_micros(micros);
            assert!(upper_edge(bucket(took)) > took || micros >= 1 << 40, "{micros}");
            assert!(upper_edge(bucket(took)) <= took * 5 / 4 + Duration::from_micros(1));
        }
    }

    #[test]
    fn the_budget_begins_with_nothing_and_saves_little() {
        let (mut hedging, policy) = (Hedging::default(), HedgingPolicy::new());
        let now = Instant::now();
        let calls = |hedging: &mut Hedging, count| {
            (0..count).for_each(|_| _ = hedging.begin(1, &policy));
        };
        calls(&mut hedging, 9);
        assert!(!hedging.spend(now));
        calls(&mut hedging, 1);
        assert!(hedging.spend(now) && !hedging.spend(now));
        calls(&mut hedging, 100_000);
        assert_eq!((0..100).filter(|_| hedging.spend(now)).count(), 10);
        for share in [f64::NAN, -1.0, 0.0] {
            (0..1000).for_each(|_| _ = hedging.begin(1, &policy.budget(share)));
            assert!(!hedging.spend(now), "{share}");
        }
    }

    #[test]
    fn pushback_and_throttle_prevent_hedging() {
        let (mut hedging, policy, now) = (Hedging::default(), HedgingPolicy::new(), Instant::now());
        (0..100).for_each(|_| _ = hedging.begin(1, &policy));
        let mut throttle = Throttle::new(4, 0.1);
        let hedges = |hedging: &mut Hedging, throttle: &Throttle, at| {
            Race::new(now, Some(MS)).on_time(at, true, hedging, Some(throttle))
        };
        assert!(!hedges(&mut hedging, &throttle, now), "it is not time yet");
        assert!(hedges(&mut hedging, &throttle, now + MS));
        hedging.on_pushback(now + 10 * MS);
        hedging.on_pushback(now + 5 * MS);
        assert!(!hedges(&mut hedging, &throttle, now + 9 * MS));
        assert!(hedges(&mut hedging, &throttle, now + 10 * MS));
        let mut race = Race::new(now, Some(MS));
        assert!(race.on_time(now + 10 * MS, true, &mut hedging, Some(&throttle)));
        let lost = SecondEnded::Failed(Failed::Lost(0, 1));
        let never_sent = SecondEnded::NeverSent;
        for ended in [never_sent, lost, lost, lost] {
            assert_eq!(race.on_second(ended, Some(&mut throttle)), Verdict::GoesOn);
        }
        assert!(hedges(&mut hedging, &throttle, now + 10 * MS), "one connection counts once");
        let refused = SecondEnded::Failed(Failed::Refused(None));
        assert_eq!(race.on_second(refused, Some(&mut throttle)), Verdict::GoesOn);
        assert!(!hedges(&mut hedging, &throttle, now + 10 * MS), "half of four tokens is left");
    }

    #[test]
    fn unsent_attempts_are_not_hedged_and_cost_nothing() {
        let (mut hedging, now) = (Hedging::default(), Instant::now());
        let policy = HedgingPolicy::new().budget(1.0);
        for delay in [Duration::ZERO, 5 * MS] {
            let mut race = Race::new(now, hedging.begin(1, &policy.delay(delay)));
            race.on_in_line(now + 5 * MS);
            let next = now + 5 * MS + delay.max(MS);
            assert_eq!(race.next(), Some(next));
            assert!(!race.on_time(next - MS / 2, true, &mut hedging, None));
            assert!(race.on_time(next, true, &mut hedging, None));
            assert_eq!(race.took(next), next - (now + 5 * MS));
            race.on_in_line(next);
            assert_eq!(race.next(), None, "it has its second attempt");
        }
        assert!(!hedging.spend(now));
        hedging.on_unsent();
        assert!(hedging.spend(now) && !hedging.spend(now));
        (0..100).for_each(|_| hedging.on_unsent());
        assert_eq!((0..100).filter(|_| hedging.spend(now)).count(), 10);
    }

    #[test]
    fn first_answer_or_last_failure_ends_the_call() {
        use Ended::{Answered, Failed};
        let refused = SecondEnded::Failed(super::Failed::Refused(None));
        let (mut hedging, now) = (Hedging::default(), Instant::now());
        let policy = HedgingPolicy::new().budget(1.0);
        let mut hedged = || {
            let mut race = Race::new(now, hedging.begin(1, &policy.delay(MS)));
            assert_eq!(race.next(), Some(now + MS));
            assert!(race.on_time(now + MS, true, &mut hedging, None));
            assert_eq!(race.next(), None, "one second attempt");
            race
        };
        assert_eq!(hedged().on_first(Answered), Verdict::First);
        assert_eq!(hedged().on_second(SecondEnded::Answered, None), Verdict::Second);
        let mut race = hedged();
        assert_eq!(race.on_first(Failed), Verdict::GoesOn);
        assert_eq!(race.on_second(SecondEnded::Answered, None), Verdict::Second);
        let mut race = hedged();
        assert_eq!(race.on_first(Failed), Verdict::GoesOn);
        assert_eq!(race.on_second(refused, None), Verdict::First);
        let mut race = hedged();
        assert_eq!(race.on_second(refused, None), Verdict::GoesOn);
        assert_eq!(race.on_first(Failed), Verdict::First);
        // While the first is queued to be sent again, there is nothing to hedge.
        let mut race = Race::new(now, Some(MS));
        assert!(!race.on_time(now + MS, false, &mut hedging, None));
        assert_eq!(race.next(), None);
        race.on_sent(now + 10 * MS);
        assert_eq!(race.next(), Some(now + 11 * MS));
    }
}
