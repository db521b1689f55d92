//! A channel's decisions: an end point that is connected and lost at random, a resolver that may
//! have to name it first, calls that wait for it, and second attempts.
//!
//! The world uses them as `rpc-core/src/client` does, over a server that may execute a call before
//! it answers or dies. Waiting calls look only when there is news, so a call that nobody would wake
//! is stuck.

use std::time::{Duration, Instant};

use rpc_core::channel::backoff::Backoff;
use rpc_core::channel::connectivity::{Connectivity, ConnectivityState, Loss, Step};
use rpc_core::channel::resolution::{Question, Resolution};
use rpc_core::channel::retry::{Attempts, Failed, RetryPolicy};
use rpc_core::channel::throttle::Throttle;
use test_kit::{Clock, Rng};

use crate::Steps;

const MS: Duration = Duration::from_millis(1);
/// The shortest backoff.
const INITIAL: Duration = Duration::from_millis(50);
/// Time between two queries to the resolver, once it has named somebody.
const AT_LEAST: Duration = Duration::from_secs(1);
/// Tasks of a waiting call that may be dropped before it is given up.
const MOST_MOVES: u64 = 3;

/// Events of a run, so that a test can check that all of them occurred.
#[derive(Debug, Default)]
pub struct Tally {
    pub answered: u64,
    pub failed_unsent: u64,
    pub failed_sent: u64,
    pub expired: u64,
    pub sent_again: u64,
    pub tried_again: u64,
    pub connected: u64,
    pub refused: u64,
    pub resolved: u64,
    pub unresolved: u64,
    pub own_ends: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        self.answered += other.answered;
        self.failed_unsent += other.failed_unsent;
        self.failed_sent += other.failed_sent;
        self.expired += other.expired;
        self.sent_again += other.sent_again;
        self.tried_again += other.tried_again;
        self.connected += other.connected;
        self.refused += other.refused;
        self.resolved += other.resolved;
        self.unresolved += other.unresolved;
        self.own_ends += other.own_ends;
    }

    pub fn check(&self) {
        let all = [
            self.answered,
            self.failed_unsent,
            self.failed_sent,
            self.expired,
            self.sent_again,
            self.tried_again,
            self.connected,
            self.refused,
            self.resolved,
            self.unresolved,
            self.own_ends,
        ];
        assert!(all.iter().all(|count| *count > 0), "something never happens: {self:?}");
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Stage {
    /// For a connection; its knowledge when it began to wait.
    Waits(Since),
    /// Until its next attempt.
    BacksOff(Instant),
    /// In the session of that connection: nothing of it has left.
    Queued,
    /// With the server.
    Sent,
    Over,
}

#[derive(Debug)]
struct Call {
    stage: Stage,
    idempotent: bool,
    waits_for_ready: bool,
    deadline: Option<Instant>,
    attempts: Attempts,
    /// The news that it has looked at.
    seen: Option<u64>,
    /// The handler of this attempt has run.
    ran: bool,
    executed: u32,
    outcomes: u32,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Connector {
    Steps,
    Sleeps(Instant),
    Connects(u64),
}

/// A call's knowledge when it began to wait.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Since {
    failures: u64,
    vanished: u64,
    unresolved: u64,
    vanished_askers: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Asker {
    Steps,
    Sleeps(Instant),
    Asks,
}

struct World {
    clock: Clock,
    /// Counts the news that wakes waiting calls.
    news: u64,
    resolution: Resolution,
    asker: Option<Asker>,
    vanished_askers: u64,
    /// The resolver has named the end point, or the channel has its address.
    is_known: bool,
    /// The time of the last answer, and the pause before the next query.
    answered: Option<(Instant, Duration)>,
    machine: Connectivity,
    policy: RetryPolicy,
    throttle: Throttle,
    connector: Option<Connector>,
    calls: Vec<Call>,
    failures: u64,
    vanished: u64,
    /// When the last attempt failed, unless one has succeeded since.
    failed_at: Option<Instant>,
    tally: Tally,
}

/// Runs a world to its end.
pub fn run(rng: &mut Rng) -> Tally {
    let policy = RetryPolicy::new().backoff(Backoff::new().initial(10 * MS).max(100 * MS));
    let backoff = Backoff::new().initial(INITIAL).max(20 * INITIAL).jitter(0.0);
    let mut world = World {
        clock: Clock::new(),
        news: 0,
        resolution: Resolution::default(),
        asker: None,
        vanished_askers: 0,
        is_known: rng.chance(50),
        answered: None,
        machine: Connectivity::new(Some(backoff)),
        throttle: policy.new_throttle(),
        policy,
        connector: None,
        calls: Vec::new(),
        failures: 0,
        vanished: 0,
        failed_at: None,
        tally: Tally::default(),
    };
    let mut steps = Steps::new(rng, 400);
    while steps.next(rng) {
        world.step(rng);
        world.settle();
    }
    world.end(rng);
    world.tally
}

impl World {
    fn step(&mut self, rng: &mut Rng) {
        match rng.below(20) {
            0..4 => self.start(rng),
            4..6 => self.connects(true, rng),
            6 => self.connects(false, rng),
            7..9 => self.for_one(Stage::Queued, rng, |call, _| call.send()),
            9 => self.for_one(Stage::Sent, rng, |call, _| call.execute()),
            10 => self.for_one(Stage::Sent, rng, |call, tally| {
                call.execute();
                call.end();
                tally.answered += 1;
            }),
            11 => self.loses(rng),
            12 => self.connector_vanishes(rng),
            13 => {
                // The caller gives up.
                let at = rng.index(self.calls.len().max(1));
                if let Some(call) = self.calls.get_mut(at).filter(|call| call.stage != Stage::Over)
                {
                    call.end();
                }
            }
            14 => self.answers(true, rng),
            15 => self.answers(false, rng),
            16 => self.asker_vanishes(rng),
            _ => self.clock.advance(Duration::from_millis(rng.below(400))),
        }
    }

    fn since(&self) -> Since {
        Since {
            failures: self.failures,
            vanished: self.vanished,
            unresolved: self.resolution.failed(),
            vanished_askers: self.vanished_askers,
        }
    }

    fn answers(&mut self, succeeds: bool, rng: &mut Rng) {
        if self.asker != Some(Asker::Asks) {
            return;
        }
        let now = self.clock.now();
        if succeeds {
            self.resolution.on_resolved(now + AT_LEAST);
            self.answered = Some((now, AT_LEAST));
            self.is_known = true;
            self.tally.resolved += 1;
            if self.machine.start(now, false) {
                self.connector = Some(Connector::Steps);
            }
        } else {
            let backoff = Backoff::new().initial(INITIAL).max(20 * INITIAL).jitter(0.0);
            let random = rng.next();
            self.resolution.on_failed(now, |failures| backoff.delay(failures, random));
            self.answered = Some((now, INITIAL));
            self.tally.unresolved += 1;
        }
        self.asker = Some(Asker::Steps);
        self.news += 1;
    }

    /// The runtime takes the asker's task down.
    fn asker_vanishes(&mut self, rng: &mut Rng) {
        if self.asker.is_some() && rng.chance(20) {
            self.asker = None;
            self.resolution.on_asker_gone();
            self.vanished_askers += 1;
            self.news += 1;
        }
    }

    fn start(&mut self, rng: &mut Rng) {
        let now = self.clock.now();
        let deadline = rng.chance(30).then(|| now + Duration::from_millis(rng.below(2000)));
        self.calls.push(Call {
            stage: Stage::Waits(self.since()),
            idempotent: rng.chance(50),
            waits_for_ready: rng.chance(50),
            deadline,
            attempts: Attempts::default(),
            seen: None,
            ran: false,
            executed: 0,
            outcomes: 0,
        });
    }

    fn waits(&self) -> bool {
        self.calls.iter().any(|call| matches!(call.stage, Stage::Waits(_)))
    }

    fn connects(&mut self, succeeds: bool, rng: &mut Rng) {
        let Some(Connector::Connects(epoch)) = self.connector else { return };
        let now = self.clock.now();
        if succeeds {
            assert!(self.machine.on_connected(epoch, now), "it is the only attempt");
            self.tally.connected += 1;
            self.failed_at = None;
        } else {
            self.machine.on_failed(epoch, now, rng.next());
            self.failures += 1;
            self.failed_at = Some(now);
            self.tally.refused += 1;
        }
        self.connector = Some(Connector::Steps);
        self.news += 1;
    }

    /// The runtime takes the connector's task down.
    fn connector_vanishes(&mut self, rng: &mut Rng) {
        if self.connector.is_some() && rng.chance(20) {
            self.connector = None;
            self.machine.on_connector_gone(self.clock.now());
            self.vanished += 1;
            self.news += 1;
        }
    }

    fn loses(&mut self, rng: &mut Rng) {
        let (now, epoch) = (self.clock.now(), self.machine.epoch());
        let loss = if rng.chance(20) { Loss::InOrder } else { Loss::Other };
        assert!(!self.machine.on_lost(epoch.wrapping_sub(1), now, rng.next(), loss), "long gone");
        let is_own_end = rng.chance(20);
        let is_lost = match is_own_end {
            true => self.machine.on_driver_gone(epoch),
            false => self.machine.on_lost(epoch, now, rng.next(), loss),
        };
        if !is_lost {
            return;
        }
        if is_own_end {
            assert_eq!(self.machine.state(), ConnectivityState::Idle, "connects at once");
            self.tally.own_ends += 1;
        }
        self.news += 1;
        let since = self.since();
        for call in &mut self.calls {
            match call.stage {
                Stage::Queued => {
                    self.tally.sent_again += 1;
                    (call.stage, call.seen) = (Stage::Waits(since), None);
                }
                Stage::Sent => {
                    if rng.chance(50) {
                        call.execute();
                    }
                    let delay = call.idempotent.then(|| {
                        let lost = Failed::Lost(0, epoch);
                        let (policy, throttle) = (&self.policy, &mut self.throttle);
                        call.attempts.after(lost, policy, throttle, now, call.deadline, rng.next())
                    });
                    match delay.flatten() {
                        Some(delay) => {
                            self.tally.tried_again += 1;
                            call.stage = Stage::BacksOff(now + delay);
                        }
                        None => {
                            self.tally.failed_sent += 1;
                            call.end();
                        }
                    }
                }
                _ => {}
            }
        }
    }

    fn for_one(&mut self, stage: Stage, rng: &mut Rng, act: impl FnOnce(&mut Call, &mut Tally)) {
        let fit: Vec<_> =
            (0..self.calls.len()).filter(|at| self.calls[*at].stage == stage).collect();
        if fit.is_empty() {
            return;
        }
        let at = fit[rng.index(fit.len())];
        act(&mut self.calls[at], &mut self.tally);
    }

    /// Everybody does what is due now.
    fn settle(&mut self) {
        let now = self.clock.now();
        let since = self.since();
        for call in &mut self.calls {
            if let Stage::BacksOff(until) = call.stage
                && until <= now
            {
                (call.stage, call.seen) = (Stage::Waits(since), None);
            }
        }
        for at in 0..self.calls.len() {
            let call = &self.calls[at];
            if call.seen != Some(self.news) || call.deadline.is_some_and(|at| at <= now) {
                self.look(at, now);
            }
        }
        self.drive(now);
        self.drive_asker(now);
        self.throttle.on_success();
        for call in &self.calls {
            assert!(call.outcomes <= 1, "{call:?}");
            assert!(call.idempotent || call.executed <= 1, "at most once: {call:?}");
            assert_eq!(call.outcomes == 1, call.stage == Stage::Over, "{call:?}");
        }
    }

    /// A waiting call looks for a connection.
    fn look(&mut self, at: usize, now: Instant) {
        let call = &mut self.calls[at];
        let Stage::Waits(known) = call.stage else { return };
        call.seen = Some(self.news);
        let waits_for_ready = call.waits_for_ready;
        let is_new = call.attempts.failed() == 0;
        if self.machine.state() == ConnectivityState::Ready {
            call.stage = Stage::Queued;
        } else if call.deadline.is_some_and(|deadline| deadline <= now) {
            self.tally.expired += 1;
            assert!(!is_new || call.executed == 0, "it never left: {call:?}");
            call.end();
        } else if !self.is_known {
            self.look_for_name(at, now);
        } else if self.vanished > known.vanished + MOST_MOVES
            || !waits_for_ready && (self.failures > known.failures || self.machine.is_failing(now))
        {
            self.tally.failed_unsent += 1;
            assert!(!is_new || call.executed == 0, "it never left: {call:?}");
            call.end();
        } else {
            if self.machine.start(now, waits_for_ready) {
                assert_eq!(self.connector, None, "one at a time");
                self.connector = Some(Connector::Steps);
            }
            assert!(self.machine.runs(), "nobody would wake it: {:?}", self.machine);
        }
    }

    /// A waiting call without a known end point has the resolver queried.
    fn look_for_name(&mut self, at: usize, now: Instant) {
        let call = &mut self.calls[at];
        let Stage::Waits(known) = call.stage else { return };
        let was_running = self.resolution.runs();
        let _ = self.resolution.start(now, false);
        let is_asked = self.resolution.runs() || self.vanished_askers > known.vanished_askers;
        let waits = self.vanished_askers <= known.vanished_askers + MOST_MOVES
            && (call.waits_for_ready || is_asked && self.resolution.failed() == known.unresolved);
        if waits {
            let _ = self.resolution.start(now, true);
            assert!(self.resolution.runs(), "nobody would wake it: {:?}", self.resolution);
        } else {
            self.tally.failed_unsent += 1;
            call.end();
        }
        if self.resolution.runs() && !was_running {
            assert_eq!(self.asker, None, "one at a time");
            self.asker = Some(Asker::Steps);
        }
    }

    fn drive_asker(&mut self, now: Instant) {
        match self.asker {
            Some(Asker::Sleeps(until)) if until <= now => {}
            Some(Asker::Steps) => {}
            _ => return,
        }
        let waits = !self.is_known && self.waits();
        self.asker = match self.resolution.step(now, waits) {
            Question::Stop => {
                self.news += 1;
                None
            }
            Question::Sleep(until) => {
                assert!(until > now && until <= now + 20 * INITIAL, "the longest wait");
                Some(Asker::Sleeps(until))
            }
            Question::Ask => {
                let is_early = |(at, least): (Instant, Duration)| now - at < least;
                assert!(!self.answered.is_some_and(is_early), "too soon: {:?}", self.answered);
                Some(Asker::Asks)
            }
        };
    }

    fn drive(&mut self, now: Instant) {
        match self.connector {
            Some(Connector::Sleeps(until)) if until <= now => {}
            Some(Connector::Steps) => {}
            _ => return,
        }
        self.connector = match self.machine.step(now, self.waits()) {
            Step::Stop => None,
            Step::Sleep(until) => {
                assert!(until > now && until <= now + 20 * INITIAL, "the longest backoff");
                Some(Connector::Sleeps(until))
            }
            Step::Connect(epoch) => {
                self.news += 1;
                let since = self.failed_at.map(|failed| now - failed);
                assert!(since.is_none_or(|since| since >= INITIAL), "a storm: {since:?}");
                Some(Connector::Connects(epoch))
            }
        };
    }

    /// The server is well from now on: every waiting call gets its answer.
    fn end(&mut self, rng: &mut Rng) {
        for _ in 0..2000 {
            if self.calls.iter().all(|call| call.stage == Stage::Over) {
                break;
            }
            self.answers(true, rng);
            self.connects(true, rng);
            self.for_one(Stage::Queued, rng, |call, _| call.send());
            self.for_one(Stage::Sent, rng, |call, tally| {
                call.execute();
                call.end();
                tally.answered += 1;
            });
            self.clock.advance(50 * MS);
            self.settle();
        }
        for call in &self.calls {
            assert_eq!(call.outcomes, 1, "stuck: {call:?} with {:?}", self.machine);
        }
    }
}

impl Call {
    fn send(&mut self) {
        (self.stage, self.ran) = (Stage::Sent, false);
    }

    /// The server runs the handler of this attempt, if it has not yet.
    fn execute(&mut self) {
        self.executed += u32::from(!self.ran);
        self.ran = true;
    }

    fn end(&mut self) {
        self.stage = Stage::Over;
        self.outcomes += 1;
    }
}
