//! Decides what a type that is traced is shown next, and remembers what it has done.
//!
//! A type is deserialized again and again, each time from other values that are made up, until it
//! has shown all that it has. An enum shows one variant at a time; a value that is refused is tried
//! again as another one, and what is refused in all forms is left out or comes last, so that it
//! hides nothing.
//!
//! Invariants:
//! 1. It ends, whatever the type: a type inside itself is only named, and places, runs, steps and
//!    depth are bounded. Where a bound is met both ends stop at the same place.
//! 2. What is found does not depend on anything but the type.

use std::collections::HashMap;
use std::fmt;

use super::tree::{Id, QUIET, Stranger, Tree, What};

/// Most runs: variants of the type with most of them, one inside the other.
const MAX_RUNS: usize = 1024;
/// Most parts that all runs together look at.
const MAX_STEPS: usize = 1 << 18;
/// Most parts that the second round has looked at when a type is still given a name that it does
/// not know. If the type refuses it, the run ends there.
const MAX_STRANGER_STEPS: usize = 1 << 12;
/// Most parts that the second round looks at: it finds out what is left out when it is written.
const MAX_ZERO_STEPS: usize = MAX_STRANGER_STEPS + (1 << 14);
/// Deepest type. A type that has no end of its own stops here.
const MAX_DEPTH: usize = 64;
/// How many values are tried for one part.
const CANDIDATES: usize = TEXTS.len();

/// Texts to try. Ones come first, as many types refuse a zero.
pub(super) const TEXTS: [&str; 20] = [
    "1",
    "1970-01-01T00:00:00Z",
    "1970-01-01",
    "1970-01-01T00:00:00",
    "00:00:01",
    "http://a/",
    "a@b.cd",
    "2",
    "0",
    "a",
    "A",
    "en",
    "127.0.0.1",
    "127.0.0.1:1",
    "00000000-0000-4000-8000-000000000001",
    "aaaaaaaa",
    "1.0.0",
    "Mon",
    "January",
    "UTC",
];

/// Numbers to try.
pub(super) const NUMBERS: [i8; CANDIDATES] =
    [1, 0, 2, 3, 4, 5, 7, 8, 10, 12, 16, 24, 32, 60, 64, 100, 6, 9, 20, 127];

/// Lengths to try: of byte strings.
pub(super) const BYTES: [usize; CANDIDATES] =
    [16, 32, 0, 1, 2, 3, 4, 6, 8, 12, 20, 24, 28, 48, 64, 33, 5, 7, 10, 40];

/// Lengths to try: of sequences.
pub(super) const LENGTHS: [usize; CANDIDATES] =
    [1, 2, 3, 0, 4, 5, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1];

/// Why a trace stopped: the tracer's own reason, or the type's.
#[derive(Debug)]
pub(super) enum Stopped {
    /// A part of it was refused.
    Inside,
    /// A field is missing; its main name.
    Missing(&'static str),
    /// A field came twice; its main name.
    Twice(&'static str),
    /// Something else.
    Other,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the type is only looked at")
    }
}

impl std::error::Error for Stopped {}

impl serde::de::Error for Stopped {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self::Other
    }

    fn missing_field(field: &'static str) -> Self {
        Self::Missing(field)
    }

    fn duplicate_field(field: &'static str) -> Self {
        Self::Twice(field)
    }
}

impl serde::ser::Error for Stopped {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self::Other
    }
}

pub(super) type Traced<T> = Result<T, Stopped>;

/// The values that are made up in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Round {
    /// All parts are there, and most of them are ones.
    Ones = 1,
    /// All variants again, with zeros, and without what may be absent.
    Zeros = 2,
}

/// What is wrong at a place.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) at: Id,
    pub(super) text: String,
}

/// A name that no field or variant has.
pub(super) const STRANGER: &str = "\u{0}";

/// A variant as it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WrittenVariant {
    /// The place of its enum.
    pub(super) id: Id,
    pub(super) index: usize,
    pub(super) variant: &'static str,
    pub(super) type_name: &'static str,
}

/// The trace of one type.
#[derive(Debug)]
pub(super) struct Trace {
    pub(super) tree: Tree,
    pub(super) round: Round,
    pub(super) run: usize,
    /// Leaves are zeros.
    pub(super) is_zero: bool,
    /// Which of the values leaves have.
    pub(super) candidate: usize,
    /// How many places of this run have more to show.
    left: usize,
    /// How many places of this run refuse whatever they are given.
    dead: usize,
    /// The types that are being traced, outermost first, with their places.
    inside: Vec<(&'static str, Id)>,
    /// What derived code does with a name that it does not know, by its type.
    pub(super) strangers: HashMap<&'static str, Stranger>,
    /// The variant that was taken for an unknown one.
    pub(super) other: Option<usize>,
    /// A variant that ends, for each enum.
    pub(super) ends: HashMap<&'static str, usize>,
    depth: usize,
    pub(super) steps: usize,
    pub(super) problems: Vec<Problem>,
    /// Each once.
    pub(super) variants: Vec<WrittenVariant>,
    /// A `Bulk` or a `BulkReader` was asked for.
    pub(super) has_bulk: bool,
}

impl Trace {
    pub(super) fn new(root: String) -> Self {
        Self {
            tree: Tree::new(root),
            round: Round::Ones,
            run: 0,
            is_zero: false,
            candidate: 0,
            left: 0,
            dead: 0,
            inside: Vec::new(),
            strangers: HashMap::new(),
            other: None,
            ends: HashMap::new(),
            depth: 0,
            steps: 0,
            problems: Vec::new(),
            variants: Vec::new(),
            has_bulk: false,
        }
    }

    /// Begins another run, if one is needed.
    pub(super) fn next_run(&mut self) -> bool {
        let is_done = self.run > 0 && self.left == 0;
        if self.run == MAX_RUNS || self.steps > MAX_STEPS {
            self.tree.is_cut |= self.round == Round::Ones;
            return false;
        }
        match self.round {
            Round::Ones if is_done && self.tree.is_dead(Some(Tree::ROOT)) => return false,
            Round::Ones if is_done => {
                self.round = Round::Zeros;
                self.steps = 0;
            }
            Round::Zeros if is_done || self.steps > MAX_ZERO_STEPS => return false,
            _ => {}
        }
        self.run += 1;
        self.is_zero = self.round == Round::Zeros;
        (self.left, self.dead, self.depth, self.candidate) = (0, 0, 0, 0);
        self.inside.clear();
        true
    }

    /// Another run is needed.
    pub(super) fn has_more(&mut self) {
        self.left += 1;
    }

    /// What is made up lacks something that is needed.
    pub(super) fn lacks(&mut self) {
        self.dead += 1;
    }

    /// Whether the type of that name is to be given a name that it does not know.
    pub(super) fn asks_stranger(&self, type_name: &'static str) -> bool {
        self.round == Round::Zeros
            && self.steps < MAX_STRANGER_STEPS
            && !self.strangers.contains_key(type_name)
    }

    pub(super) fn is_settled(&self, id: Option<Id>) -> bool {
        self.tree.is_settled(id, self.round as u8)
    }

    /// Notes that a place was shown, as a value of one zero byte or as another.
    pub(super) fn show(&mut self, id: Id, is_zero: bool) {
        let run = self.run;
        if let Some(node) = self.tree.get_mut(id) {
            node.shown = (run, is_zero);
        }
    }

    pub(super) fn problem(&mut self, at: Id, text: String) {
        if self.problems.iter().all(|other| other.at != at) {
            self.problems.push(Problem { at, text });
        }
    }

    pub(super) fn on_variant(
        &mut self,
        id: Id,
        index: usize,
        variant: &'static str,
        type_name: &'static str,
    ) {
        let written = WrittenVariant { id, index, variant, type_name };
        if !self.variants.contains(&written) {
            self.variants.push(written);
        }
    }

    /// Notes that there is nothing to see in a place: it takes nothing, or asks for nothing.
    pub(super) fn close(&mut self, id: Id, refuses: bool) {
        if let Some(node) = self.tree.get_mut(id) {
            (node.settled, node.refuses, node.is_dead) = (u8::MAX, refuses, refuses);
        }
    }

    /// Traces one part. One that refuses what it is given is given something else in the next run,
    /// until nothing is left to try.
    pub(super) fn part<T>(
        &mut self,
        id: Id,
        type_name: &'static str,
        trace: impl FnOnce(&mut Self) -> Traced<T>,
    ) -> Traced<T> {
        let (left, dead) = (self.left, self.dead);
        let (candidate, is_zero) = (self.candidate, self.is_zero);
        if let Some(node) = self.tree.get_mut(id) {
            node.type_name = type_name;
            if node.candidate != 0 {
                self.candidate = node.candidate;
            }
            self.is_zero &= !node.refuses_zero;
        }
        let traced = trace(self);
        (self.candidate, self.is_zero) = (candidate, is_zero);
        let (is_settled, is_dead) = (self.left == left, self.dead > dead);
        let round = self.round;
        let Some(node) = self.tree.get_mut(id) else {
            return traced.map_err(|_| Stopped::Inside);
        };
        node.refuses = traced.is_err();
        if is_settled {
            match &traced {
                Ok(_) => node.settled = round as u8,
                Err(_) if round == Round::Zeros && !node.refuses_zero => {
                    node.refuses_zero = true;
                    self.left += 1;
                }
                Err(_) => {
                    let is_over = node.candidate + 1 == CANDIDATES
                        || matches!(node.what, What::Unseen | What::Anything(_));
                    if round == Round::Zeros {
                        node.settled = round as u8;
                        self.dead += 1;
                    } else if is_dead || is_over {
                        node.is_dead = true;
                        self.dead += 1;
                    } else {
                        node.candidate += 1;
                        self.left += 1;
                    }
                }
            }
        }
        traced.map_err(|_| Stopped::Inside)
    }

    /// How many named types further out the type of that name is being traced, and where, if it
    /// is.
    pub(super) fn levels_up(&self, name: &'static str) -> Option<(usize, Id)> {
        let mut outer = self.inside.iter().rev().enumerate();
        let (levels, (_, id)) = outer.find(|(_, (other, _))| *other == name)?;
        Some((levels + 1, *id))
    }

    /// How many levels of the type of that name are being traced where nothing is written down.
    pub(super) fn levels_of(&self, name: &'static str) -> usize {
        self.inside.iter().filter(|(other, id)| *other == name && *id == QUIET).count()
    }

    /// Traces what is inside the type of that name.
    pub(super) fn within<T>(
        &mut self,
        name: &'static str,
        id: Id,
        trace: impl FnOnce(&mut Self) -> T,
    ) -> T {
        self.inside.push((name, id));
        let traced = trace(self);
        self.inside.pop();
        traced
    }

    /// Traces what is inside a place.
    pub(super) fn deeper<T>(
        &mut self,
        id: Id,
        trace: impl FnOnce(&mut Self) -> Traced<T>,
    ) -> Traced<T> {
        self.steps += 1;
        if self.depth == MAX_DEPTH || self.steps > MAX_STEPS {
            self.tree.is_cut = true;
            self.tree.note(id, What::More);
            return Err(Stopped::Other);
        }
        self.depth += 1;
        let traced = trace(self);
        self.depth -= 1;
        traced
    }
}
