//! The choice between end points, with a clock: servers that become slow, refuse, hang and come
//! back, and callers that call in turn or many at once, seldom or without a pause.
//!
//! The world keeps its own record of which servers are well since when, and checks the share of
//! each end point.

use std::time::{Duration, Instant};

use rpc_core::channel::endpoint::Endpoint;
use rpc_core::channel::outliers::OutlierLimits;
use rpc_core::channel::picker::{CallEnd, pick};
use rpc_core::channel::plan::Plan;
use rpc_core::channel::quick::Quick;
use rpc_core::channel::standing::{Need, Standing};
use test_kit::{Clock, Rng};

use crate::Steps;

const MS: Duration = Duration::from_millis(1);
/// An end point that answers well gets a call within this time.
const PATIENCE: Duration = Duration::from_secs(20);
/// Or at most this many calls later, if chance does not draw it at once.
const CHANCES: u32 = 250;

/// Events of a run, so that a test can check that all of them occurred.
#[derive(Debug, Default)]
pub struct Tally {
    pub answered: u64,
    pub refused: u64,
    pub given_up: u64,
    pub hung: u64,
    pub came_back: u64,
    pub joined: u64,
    pub waited_for_news: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        self.answered += other.answered;
        self.refused += other.refused;
        self.given_up += other.given_up;
        self.hung += other.hung;
        self.came_back += other.came_back;
        self.joined += other.joined;
        self.waited_for_news += other.waited_for_news;
    }

    pub fn check(&self) {
        let all = [
            self.answered,
            self.refused,
            self.given_up,
            self.hung,
            self.came_back,
            self.joined,
            self.waited_for_news,
        ];
        assert!(all.iter().all(|count| *count > 0), "something never happens: {self:?}");
    }
}

/// How a server treats its calls.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mood {
    Well,
    Slow,
    Refuses,
    Hangs,
}

/// What a channel knows of an end point, as it looks at it.
#[derive(Debug, Default)]
struct Known {
    standing: Standing,
    quick: Quick,
}

impl Known {
    fn look(&mut self, now: Instant) -> Option<f64> {
        let Self { standing, quick } = self;
        quick.look(1.0).or_else(|| quick.look_fully(standing, Need::Well, now, 0, 1.0))
    }

    fn on_begin(&mut self, now: Instant) {
        self.standing.on_begin(now);
        self.quick.copy(&self.standing);
    }

    fn on_end(&mut self, end: CallEnd, took: Duration, now: Instant) {
        let limits = OutlierLimits { in_a_row: 0, time_out: 10_000 * MS };
        // That it fails more often than the others takes nobody out here.
        let _ = self.standing.on_end(end, took, &limits, now);
        self.quick.copy(&self.standing);
    }
}

/// Takes one of the first `count`, all of which are connected.
fn pick_any(count: usize, random: u64, cost: impl FnMut(usize) -> Option<f64>) -> usize {
    let all = (0..count).map(|at| format!("mem://{at}").parse::<Endpoint>().expect("an address"));
    let plan = Plan::new(&mut all.collect::<Vec<_>>(), None);
    let drawn = plan.draw_two(&(0..count), random).expect("there are some");
    pick(drawn, &(0..count), cost).expect("all are connected")
}

#[derive(Debug)]
struct EndPoint {
    known: Known,
    mood: Mood,
    /// Since when it is well without a call, and the calls that others got when its time was over.
    waits: Option<(Instant, u32)>,
}

#[derive(Debug)]
struct Call {
    at: usize,
    began: Instant,
    /// `None`: when its server answers again.
    ends: Option<Instant>,
    gives_up: Instant,
}

struct World {
    clock: Clock,
    end_points: Vec<EndPoint>,
    calls: Vec<Call>,
    most_calls: usize,
    /// From the end of a call to the next one.
    pause: Duration,
    /// Duration of a call at a server that is well.
    takes: Duration,
    /// After this time a caller gives up.
    patience: Duration,
    tally: Tally,
}

/// Runs a world to its end.
pub fn run(rng: &mut Rng) -> Tally {
    let clock = Clock::new();
    let now = clock.now();
    let takes = rng.pick(&[MS / 10, MS, 5 * MS]);
    let mut world = World {
        clock,
        end_points: (0..rng.pick(&[2, 2, 3, 5])).map(|_| EndPoint::new(now)).collect(),
        calls: Vec::new(),
        most_calls: rng.pick(&[1, 1, 8]),
        pause: rng.pick(&[Duration::ZERO, 10 * MS, 100 * MS]),
        takes,
        patience: rng.pick(&[200 * MS, 2000 * MS, 60_000 * MS]),
        tally: Tally::default(),
    };
    let mut steps = Steps::new(rng, 60);
    while steps.next(rng) {
        world.mood_of_one(rng);
        for _ in 0..rng.below(300) {
            world.call(rng);
        }
    }
    world.end(rng);
    world.tally
}

impl EndPoint {
    fn new(now: Instant) -> Self {
        let known = Known::default();
        Self { known, mood: Mood::Well, waits: Some((now, 0)) }
    }
}

impl World {
    fn mood_of_one(&mut self, rng: &mut Rng) {
        let now = self.clock.now();
        let at = rng.index(self.end_points.len());
        let was = self.end_points[at].mood;
        let mood = rng.pick(&[Mood::Well, Mood::Well, Mood::Slow, Mood::Refuses, Mood::Hangs]);
        if rng.chance(10) {
            // It reconnects, and its calls are lost.
            self.calls.retain(|call| call.at != at);
            self.end_points[at] = EndPoint::new(now);
            self.end_points[at].mood = mood;
            self.tally.joined += 1;
        }
        self.set_mood(at, mood);
        self.tally.came_back += u64::from(was != Mood::Well && mood == Mood::Well);
    }

    fn set_mood(&mut self, at: usize, mood: Mood) {
        let now = self.clock.now();
        let end_point = &mut self.end_points[at];
        end_point.mood = mood;
        end_point.waits = (mood == Mood::Well).then_some(end_point.waits.unwrap_or((now, 0)));
        if mood != Mood::Hangs {
            let (of_it, takes) = (self.calls.iter_mut().filter(|call| call.at == at), self.takes);
            of_it.for_each(|call| _ = call.ends.get_or_insert(now + takes));
        }
    }

    fn call(&mut self, rng: &mut Rng) {
        while self.calls.len() >= self.most_calls {
            self.next_ends();
        }
        self.clock.advance(self.pause * u32::from(rng.chance(50)));
        self.end_due();
        let now = self.clock.now();
        let count = self.end_points.len();
        let end_points = &mut self.end_points;
        let at = pick_any(count, rng.next(), |at| end_points[at].known.look(now));
        let takes = self.takes.mul_f64(0.5 + rng.below(1000) as f64 / 1000.0);
        let end_point = &mut self.end_points[at];
        let ends = match end_point.mood {
            Mood::Well => Some(now + takes),
            Mood::Slow => Some(now + 300 * MS),
            Mood::Refuses => Some(now + takes / 2),
            Mood::Hangs => None,
        };
        self.tally.hung += u64::from(ends.is_none());
        let gives_up = now + self.patience;
        self.calls.push(Call { at, began: now, ends, gives_up });
        end_point.known.on_begin(now);
        self.check(at);
    }

    fn check(&mut self, chosen: usize) {
        let now = self.clock.now();
        for (at, end_point) in self.end_points.iter_mut().enumerate() {
            let Some((since, others)) = &mut end_point.waits else { continue };
            let waited = now - *since;
            if at == chosen {
                self.tally.waited_for_news += u64::from(waited > Duration::from_secs(1));
                (*since, *others) = (now, 0);
            } else if waited > PATIENCE {
                *others += 1;
                assert!(*others < CHANCES, "{at} is left alone: {end_point:?}");
            }
        }
    }

    /// Time goes on until a call ends.
    fn next_ends(&mut self) {
        let over = |call: &Call| call.ends.map_or(call.gives_up, |at| at.min(call.gives_up));
        let Some(next) = self.calls.iter().map(over).min() else { return };
        let now = self.clock.now();
        self.clock.advance(next.saturating_duration_since(now));
        self.end_due();
    }

    fn end_due(&mut self) {
        let now = self.clock.now();
        let mut at = 0;
        while let Some(call) = self.calls.get(at) {
            let is_answered = call.ends.is_some_and(|ends| ends <= now);
            if !is_answered && call.gives_up > now {
                at += 1;
                continue;
            }
            let call = self.calls.swap_remove(at);
            let end_point = &mut self.end_points[call.at];
            let end = match end_point.mood {
                _ if !is_answered => CallEnd::GivenUp,
                Mood::Refuses => CallEnd::Refused,
                _ => CallEnd::Answered,
            };
            let counter = match end {
                CallEnd::GivenUp => &mut self.tally.given_up,
                CallEnd::Refused => &mut self.tally.refused,
                _ => &mut self.tally.answered,
            };
            *counter += 1;
            end_point.known.on_end(end, now - call.began, now);
        }
    }

    /// All servers are well: each one gets its share.
    fn end(&mut self, rng: &mut Rng) {
        (0..self.end_points.len()).for_each(|at| self.set_mood(at, Mood::Well));
        let begin = self.clock.now();
        while self.clock.now() - begin < 2 * PATIENCE {
            // Few enough calls for a short run.
            self.clock.advance(rng.pick(&[Duration::ZERO, 20 * MS, 50 * MS]));
            self.call(rng);
        }
    }
}

/// One of several hangs, as a new or a known one, while calls continue. It gets few of them.
pub fn run_hanging(rng: &mut Rng) {
    const SECONDS: u64 = 30;
    let mut clock = Clock::new();
    let takes = rng.pick(&[MS / 10, MS, 20 * MS]);
    let count = rng.pick(&[2, 3, 5]);
    let at_once = rng.pick(&[1, 8, 100]);
    let is_new = rng.chance(50);
    let mut all: Vec<Known> = (0..count).map(|_| Known::default()).collect();
    let mut under_way: Vec<(usize, Instant)> = Vec::new();
    let (mut hangs, mut in_vain) = (false, 0);
    for round in 0..10 * (SECONDS + 10) {
        let now = clock.now();
        // In this order a new server joins known ones.
        hangs |= round == 100;
        let known = if is_new && !hangs { count - 1 } else { count };
        for _ in 0..at_once {
            let at = pick_any(known, rng.next(), |at| all[at].look(now));
            all[at].on_begin(now);
            if hangs && at == count - 1 {
                in_vain += 1;
            } else {
                under_way.push((at, now));
            }
        }
        clock.advance(takes);
        for (at, began) in under_way.drain(..) {
            all[at].on_end(CallEnd::Answered, clock.now() - began, clock.now());
        }
        clock.advance((100 * MS).saturating_sub(takes));
    }
    let most = if is_new { 1 } else { at_once } + u32::try_from(SECONDS / 5).expect("few");
    assert!(in_vain <= most, "{in_vain} calls to it of {at_once} at once, new: {is_new}");
}
