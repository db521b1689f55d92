//! The steps of a plan, and how they hold each other.

use crate::schema::{Id, Int};

/// The index of an [`Op`].
pub(crate) type OpId = usize;

/// How one type is read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Op {
    /// Without the plan: it has the bytes that the reader expects.
    Same,
    /// An integer of another width.
    Int(Int),
    /// A float of the other width; whether the writer's is an `f64`.
    Float(bool),
    Option(OpId),
    /// The writer has no option.
    Some(OpId),
    /// The reader has no option.
    Unwrap(OpId),
    Sequence(OpId),
    Map(OpId, OpId),
    Tuple(Vec<OpId>),
    Struct(Vec<Part>),
    /// By the writer's numbers.
    Enum(Vec<Chosen>),
    /// It is not read.
    Refused(String),
}

/// A field, in the order of the writer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Part {
    /// The reader takes it under this name.
    Take { name: Box<str>, op: OpId },
    /// The reader lacks it.
    Skip(Id),
}

/// A variant of the writer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Chosen {
    /// The reader's variant of that number, and how its content is read.
    Take { to: u32, name: Box<str>, op: OpId },
    /// The reader's variant for unknown ones; what the writer has in its own is skipped.
    Other { to: u32, contents: Id },
    /// The reader lacks it.
    Missing(Box<str>),
}

impl Part {
    pub(super) fn text_bytes(&self) -> usize {
        match self {
            Self::Take { name, .. } => name.len(),
            Self::Skip(_) => 0,
        }
    }
}

impl Chosen {
    pub(super) fn text_bytes(&self) -> usize {
        match self {
            Self::Take { name, .. } | Self::Missing(name) => name.len(),
            Self::Other { .. } => 0,
        }
    }
}

/// The ops inside of an op that must all be read.
pub(super) fn needed(op: &Op) -> Vec<OpId> {
    match op {
        Op::Option(op) | Op::Some(op) | Op::Unwrap(op) | Op::Sequence(op) => vec![*op],
        Op::Map(key, value) => vec![*key, *value],
        Op::Tuple(ops) => ops.clone(),
        Op::Struct(parts) => parts
            .iter()
            .filter_map(|part| match part {
                Part::Take { op, .. } => Some(*op),
                Part::Skip(_) => None,
            })
            .collect(),
        Op::Same | Op::Int(_) | Op::Float(_) | Op::Enum(_) | Op::Refused(_) => Vec::new(),
    }
}

/// All ops inside of an op.
pub(super) fn inside(op: &Op) -> Vec<OpId> {
    let Op::Enum(chosen) = op else { return needed(op) };
    let op = |chosen: &Chosen| match chosen {
        Chosen::Take { op, .. } => Some(*op),
        _ => None,
    };
    chosen.iter().filter_map(op).collect()
}

/// Which ops hold whose op, by the inner ones.
pub(super) fn outer(ops: &[Op], inside: impl Fn(&Op) -> Vec<OpId>) -> Vec<Vec<OpId>> {
    let mut outer = vec![Vec::new(); ops.len()];
    for (at, op) in ops.iter().enumerate() {
        inside(op).into_iter().for_each(|inner| outer[inner].push(at));
    }
    outer
}

/// Marks ops, and all those that hold them.
pub(super) fn spread(mut marked: Vec<bool>, outer: &[Vec<OpId>]) -> Vec<bool> {
    let mut left: Vec<OpId> = (0..marked.len()).filter(|at| marked[*at]).collect();
    while let Some(at) = left.pop() {
        for around in &outer[at] {
            if !std::mem::replace(&mut marked[*around], true) {
                left.push(*around);
            }
        }
    }
    marked
}
