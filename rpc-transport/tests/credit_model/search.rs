//! Breadth-first search over every state that two ends can reach.
//!
//! Owns the set of states seen and the shortest run to a failure. It is exact: states are compared
//! in full, never by their hash alone.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

use rpc_transport::protocol::credit::Counters;

use crate::world::{Config, End, Failure, Small, Step, World};

/// Facts about a search without failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) states: usize,
    pub(crate) quiescent: usize,
    /// The largest data window that an end has seen the other offer.
    pub(crate) largest: u16,
}

/// A failure and the shortest run that leads to it.
pub(crate) struct Counterexample {
    pub(crate) failure: Failure,
    pub(crate) run: Vec<Step>,
    config: Config,
}

impl fmt::Debug for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?} after {} steps of {:?}", self.failure, self.run.len(), self.config)?;
        let mut world: World<Small> = World::new(&self.config);
        for step in &self.run {
            let taken = world.step(&self.config, *step);
            let [a, b] = [0, 1].map(|end: usize| world.ends[end].credits.counters());
            writeln!(f, "  {step:?}: {taken:?}\n    0 {a:?}\n    1 {b:?}")?;
        }
        Ok(())
    }
}

/// Visits every reachable state of `config`.
pub(crate) fn search(config: &Config) -> Result<Report, Box<Counterexample>> {
    let mut search = Search::new(config);
    while let Some((world, index)) = search.frontier.pop_front() {
        search.report.quiescent += usize::from(world.ends.iter().all(End::is_quiet));
        for end in 0..2 {
            let seen = world.ends[end].credits.remote().data;
            search.report.largest = search.report.largest.max(seen);
            search.expand(&world, index, end)?;
        }
    }
    search.report.states = search.seen.len();
    Ok(search.report)
}

struct Search<'a> {
    config: &'a Config,
    symmetric: bool,
    seen: HashSet<Key, BuildHasherDefault<FxHasher>>,
    /// For each state, in the order found: the state before it and the step between.
    log: Vec<(u32, Step)>,
    frontier: VecDeque<(World<Small>, u32)>,
    report: Report,
}

impl<'a> Search<'a> {
    fn new(config: &'a Config) -> Self {
        let world = World::new(config);
        let symmetric = config.is_symmetric();
        Self {
            config,
            symmetric,
            seen: HashSet::from_iter([Key::new(&world, symmetric)]),
            log: vec![(0, Step::IdleAck { end: 0 })],
            frontier: VecDeque::from([(world, 0)]),
            report: Report { states: 0, quiescent: 0, largest: 0 },
        }
    }

    fn expand(
        &mut self,
        from: &World<Small>,
        index: u32,
        end: usize,
    ) -> Result<(), Box<Counterexample>> {
        let largest = self.config.budgets[end].message_slots;
        let sizes = if largest == 1 { &[1][..] } else { &[1, largest] };
        for &slots in sizes {
            self.visit(from, index, Step::Send { end, slots })?;
        }
        self.poll(from, index, sizes, |first| Step::Receive { end, first, grows: false })?;
        self.poll(from, index, sizes, |first| Step::Receive { end, first, grows: true })?;
        self.poll(from, index, sizes, |first| Step::Complete { end, first })?;
        self.poll(from, index, sizes, |first| Step::Grow { end, first })?;
        if self.config.idle_acks {
            self.visit(from, index, Step::IdleAck { end })?;
        }
        if !self.config.repost_first {
            self.visit(from, index, Step::Repost { end })?;
        }
        Ok(())
    }

    /// Whether a message was queued matters only if the pump would otherwise send an Ack; if not,
    /// the message may as well be a step of its own.
    fn poll(
        &mut self,
        from: &World<Small>,
        index: u32,
        sizes: &[u16],
        step: impl Fn(u16) -> Step,
    ) -> Result<(), Box<Counterexample>> {
        if self.visit(from, index, step(0))? {
            for &first in sizes {
                self.visit(from, index, step(first))?;
            }
        }
        Ok(())
    }

    /// Takes the step, checks the resulting state, and returns whether an Ack was sent.
    fn visit(
        &mut self,
        from: &World<Small>,
        index: u32,
        step: Step,
    ) -> Result<bool, Box<Counterexample>> {
        let mut world = from.clone();
        let taken =
            world.step(self.config, step).map_err(|f| self.counterexample(f, index, step))?;
        if !taken {
            return Ok(false);
        }
        for end in &mut world.ends {
            end.credits.rebase_marks();
        }
        let acked = world.acks_sent != from.acks_sent;
        if self.seen.insert(Key::new(&world, self.symmetric)) {
            world.check(self.config).map_err(|f| self.counterexample(f, index, step))?;
            if self.config.drain {
                let drained = world.clone().drain(self.config);
                drained.map_err(|f| self.counterexample(f, index, step))?;
            }
            let found = u32::try_from(self.log.len()).expect("fewer than 2^32 states");
            self.log.push((index, step));
            self.frontier.push_back((world, found));
        }
        Ok(acked)
    }

    #[cold]
    fn counterexample(&self, failure: Failure, index: u32, last: Step) -> Box<Counterexample> {
        let mut run = vec![last];
        let mut at = index;
        while at != 0 {
            let (before, step) = self.log[at as usize];
            run.push(step);
            at = before;
        }
        run.reverse();
        Box::new(Counterexample { failure, run, config: self.config.clone() })
    }
}

/// A state in full: omitted fields (posted RECVs, uncovered slots) follow from these.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key([EndKey; 2]);

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct EndKey {
    counters: Counters,
    inbox: u128,
    completions: u64,
    unreposted: u16,
}

impl Key {
    /// Symmetric ends are ordered: a state and its mirror image are one.
    pub(crate) fn new(world: &World<Small>, symmetric: bool) -> Self {
        let [a, b] = [EndKey::new(&world.ends[0]), EndKey::new(&world.ends[1])];
        Self(if symmetric && b < a { [b, a] } else { [a, b] })
    }
}

impl EndKey {
    fn new(end: &End<Small>) -> Self {
        Self {
            counters: end.credits.counters(),
            inbox: end.inbox.0,
            completions: u64::try_from(end.completions.0).expect("at most 8 signaled WRs"),
            unreposted: end.unreposted,
        }
    }
}

/// The hasher of rustc: one multiplication a word. Good enough for keys that no adversary chooses.
#[derive(Default)]
pub(crate) struct FxHasher(u64);

impl FxHasher {
    fn word(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
}

impl Hasher for FxHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word));
        }
    }

    fn write_u16(&mut self, value: u16) {
        self.word(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.word(value);
    }

    /// The low bits choose the bucket and the high bits the tag, so both have to be mixed.
    fn finish(&self) -> u64 {
        self.0.rotate_left(26)
    }
}
