//! Second attempts of calls whose first one runs: a channel's budget, and many races that end in
//! every order.
//!
//! The world keeps its own record of sent and requested attempts, and checks every decision against
//! it.

use std::time::{Duration, Instant};

use rpc_core::channel::hedging::{Ended, Hedging, HedgingPolicy, Race, SecondEnded, Verdict};
use rpc_core::channel::retry::Failed;
use rpc_core::channel::throttle::Throttle;
use test_kit::{Clock, Rng};

use crate::Steps;

const MS: Duration = Duration::from_millis(1);

/// Events of a run, so that a test can check that all of them occurred.
#[derive(Debug, Default)]
pub struct Tally {
    pub won_by_first: u64,
    pub won_by_second: u64,
    pub saved_by_second: u64,
    pub failed_twice: u64,
    pub kept_quiet: u64,
    pub throttled: u64,
    pub over_budget: u64,
    pub not_running: u64,
    pub in_line: u64,
    pub never_sent: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        self.won_by_first += other.won_by_first;
        self.won_by_second += other.won_by_second;
        self.saved_by_second += other.saved_by_second;
        self.failed_twice += other.failed_twice;
        self.kept_quiet += other.kept_quiet;
        self.throttled += other.throttled;
        self.over_budget += other.over_budget;
        self.not_running += other.not_running;
        self.in_line += other.in_line;
        self.never_sent += other.never_sent;
    }

    pub fn check(&self) {
        let all = [
            self.won_by_first,
            self.won_by_second,
            self.saved_by_second,
            self.failed_twice,
            self.kept_quiet,
            self.throttled,
            self.over_budget,
            self.not_running,
            self.in_line,
            self.never_sent,
        ];
        assert!(all.iter().all(|count| *count > 0), "something never happens: {self:?}");
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Leg {
    NotSent,
    /// It waits until it may be sent: only the session sees it leave.
    InLine,
    Runs,
    /// It failed, and is to be sent once more.
    Waits,
    Failed,
}

#[derive(Debug)]
struct Call {
    race: Race,
    delay: Option<Duration>,
    sent_at: Instant,
    first: Leg,
    second: Leg,
    is_over: bool,
}

struct World {
    clock: Clock,
    policy: HedgingPolicy,
    /// Second attempts for each thousand calls.
    share: u64,
    hedging: Hedging,
    throttle: Throttle,
    quiet_until: Option<Instant>,
    calls: Vec<Call>,
    seconds: u64,
    answers: u64,
    tally: Tally,
}

/// Runs a world to its end.
pub fn run(rng: &mut Rng) -> Tally {
    let share = rng.pick(&[0, 50, 100, 500, 1000]);
    let mut policy = HedgingPolicy::new().budget(share as f64 / 1000.0);
    if rng.chance(70) {
        policy = policy.delay(Duration::from_millis(rng.below(20)));
    }
    let mut world = World {
        clock: Clock::new(),
        policy,
        share,
        hedging: Hedging::default(),
        throttle: Throttle::new(6, 0.5),
        quiet_until: None,
        calls: Vec::new(),
        seconds: 0,
        answers: 0,
        tally: Tally::default(),
    };
    let mut steps = Steps::new(rng, 600);
    while steps.next(rng) {
        world.step(rng);
        world.settle();
    }
    for at in 0..world.calls.len() {
        world.finish(at);
    }
    world.tally
}

impl World {
    fn step(&mut self, rng: &mut Rng) {
        let now = self.clock.now();
        let at = rng.index(self.calls.len().max(1));
        let is_live = self.calls.get(at).is_some_and(|call| !call.is_over);
        match rng.below(16) {
            0..5 => self.start(rng),
            14 if is_live && self.calls[at].first == Leg::InLine => {
                self.calls[at].first = Leg::Runs;
            }
            5..7 if is_live => self.first_ends(at, Ended::Answered),
            7 if is_live => self.first_ends(at, Ended::Failed),
            8 if is_live && self.calls[at].first == Leg::Runs => self.calls[at].first = Leg::Waits,
            9 if is_live && self.calls[at].first == Leg::Waits => {
                let call = &mut self.calls[at];
                call.race.on_sent(now);
                (call.first, call.sent_at) = (Leg::Runs, now);
            }
            10 if is_live => self.second_ends(at, SecondEnded::Answered),
            11 if is_live => {
                let how = match rng.below(3) {
                    0 => SecondEnded::NeverSent,
                    1 => SecondEnded::Failed(Failed::Refused(None)),
                    _ => SecondEnded::Failed(Failed::Lost(rng.index(2), rng.below(2))),
                };
                self.second_ends(at, how);
            }
            12 if rng.chance(20) => {
                let until = now + Duration::from_millis(rng.below(30));
                self.hedging.on_pushback(until);
                self.quiet_until = self.quiet_until.max(Some(until));
            }
            13 => self.throttle.on_success(),
            _ => self.clock.advance(Duration::from_millis(rng.below(10))),
        }
    }

    fn start(&mut self, rng: &mut Rng) {
        let now = self.clock.now();
        let delay = self.hedging.begin(1, &self.policy);
        if self.policy == HedgingPolicy::new().budget(self.share as f64 / 1000.0) {
            assert_eq!(delay.is_some(), self.answers >= 50, "known from 50 answers on");
        }
        let race = Race::new(now, delay);
        let first = if rng.chance(20) { Leg::InLine } else { Leg::Runs };
        let second = Leg::NotSent;
        self.calls.push(Call { race, delay, sent_at: now, first, second, is_over: false });
    }

    /// Asks every race that wants to be asked.
    fn settle(&mut self) {
        let now = self.clock.now();
        for at in 0..self.calls.len() {
            let call = &mut self.calls[at];
            let is_due = call.race.next().is_some_and(|next| next <= now);
            if call.is_over || !is_due {
                continue;
            }
            if call.first == Leg::InLine {
                call.race.on_in_line(now);
                call.sent_at = now;
                assert!(call.race.next() > Some(now), "{call:?}");
                self.tally.in_line += 1;
                continue;
            }
            let first_runs = call.first == Leg::Runs;
            let is_quiet = self.quiet_until.is_some_and(|until| until > now);
            let most = self.calls.len() as u64 * self.share / 1000;
            let call = &mut self.calls[at];
            let throttle = Some(&self.throttle);
            if call.race.on_time(now, first_runs, &mut self.hedging, throttle) {
                self.seconds += 1;
                assert!(first_runs && !is_quiet && self.throttle.allows());
                assert!(self.seconds <= most, "{} of {most}", self.seconds);
                assert_eq!(call.second, Leg::NotSent, "one second attempt");
                assert!(call.delay.is_some_and(|delay| now >= call.sent_at + delay));
                call.second = Leg::Runs;
            } else {
                let tally = &mut self.tally;
                let why = [
                    (!first_runs, &mut tally.not_running),
                    (is_quiet, &mut tally.kept_quiet),
                    (!self.throttle.allows(), &mut tally.throttled),
                    (true, &mut tally.over_budget),
                ];
                let reason = why.into_iter().find(|(is_why, _)| *is_why);
                *reason.expect("the last one").1 += 1;
            }
        }
    }

    fn first_ends(&mut self, at: usize, ended: Ended) {
        let call = &mut self.calls[at];
        if !matches!(call.first, Leg::InLine | Leg::Runs | Leg::Waits) {
            return;
        }
        call.first = Leg::Failed;
        let verdict = call.race.on_first(ended);
        if ended == Ended::Failed && call.second == Leg::Runs {
            assert_eq!(verdict, Verdict::GoesOn, "the other may have an answer: {call:?}");
            return;
        }
        assert_eq!(verdict, Verdict::First, "{call:?}");
        self.tally.won_by_first += u64::from(ended == Ended::Answered);
        self.end(at, ended);
    }

    fn second_ends(&mut self, at: usize, how: SecondEnded) {
        let call = &mut self.calls[at];
        if call.second != Leg::Runs {
            return;
        }
        call.second = Leg::Failed;
        if how == SecondEnded::NeverSent {
            self.hedging.on_unsent();
            self.seconds -= 1;
            self.tally.never_sent += 1;
        }
        let before = self.throttle.clone();
        let verdict = call.race.on_second(how, Some(&mut self.throttle));
        if !matches!(how, SecondEnded::Failed(_)) {
            assert_eq!(self.throttle, before, "nobody has failed: {how:?}");
        }
        let answered = how == SecondEnded::Answered;
        let ended = if answered { Ended::Answered } else { Ended::Failed };
        match (ended, call.first) {
            (Ended::Answered, first) => {
                assert_eq!(verdict, Verdict::Second, "{call:?}");
                self.tally.won_by_second += 1;
                self.tally.saved_by_second += u64::from(first == Leg::Failed);
                self.end(at, ended);
            }
            (Ended::Failed, Leg::Failed) => {
                assert_eq!(verdict, Verdict::First, "nobody else runs: {call:?}");
                self.tally.failed_twice += 1;
                self.end(at, ended);
            }
            (Ended::Failed, _) => assert_eq!(verdict, Verdict::GoesOn, "{call:?}"),
        }
    }

    fn end(&mut self, at: usize, ended: Ended) {
        let call = &mut self.calls[at];
        assert!(!std::mem::replace(&mut call.is_over, true), "once");
        if ended == Ended::Answered {
            let took = call.race.took(self.clock.now());
            self.hedging.on_answer(1, took.max(MS));
            self.answers += 1;
        }
    }

    /// Everything that runs ends.
    fn finish(&mut self, at: usize) {
        if !self.calls[at].is_over {
            self.first_ends(at, Ended::Failed);
        }
        if !self.calls[at].is_over {
            self.second_ends(at, SecondEnded::NeverSent);
        }
        assert!(self.calls[at].is_over, "stuck: {:?}", self.calls[at]);
    }
}
