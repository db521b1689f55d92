//! Plans: how a reader of one schema reads what a writer of another one has written.
//!
//! A plan is made of two graphs, without any value, so it finds every place where the two do not
//! fit before a message is read. What only values show fails then: numbers out of range, `None`
//! where there is no option, variants that the reader lacks.
//!
//! Rules, as serde has them for formats with names:
//!
//! - Fields and variants fit by name. The writer's main name goes first, then its aliases; each may
//!   be a name or an alias of the reader. An alias goes before `#[serde(other)]`.
//! - A field that the reader lacks is skipped, or refused if the reader denies unknown ones. A
//!   field that the writer lacks must have a default.
//! - Integers fit integers, floats floats, `T` an `Option<T>`, and the other way round.
//! - In the keys of a map and the items of a set, different values of the writer are different ones
//!   of the reader. Otherwise entries would vanish.
//! - Everything else must be equal.

mod keys;
mod op;

use std::collections::HashMap;
use std::fmt::{self, Write};

use self::keys::lost_entries;
pub(crate) use self::op::{Chosen, Op, OpId, Part};
use self::op::{inside, needed, outer, spread};
use crate::schema::{Absent, Field, Id, Schema, Type, Variant};

/// Maximum number of pairs of types in a plan.
const MAX_PAIRS: usize = 1 << 13;
/// Maximum number of fields, variants and elements in a plan.
const MAX_PARTS: usize = 1 << 15;
/// Maximum number of problems that are listed.
const MAX_PROBLEMS: usize = 16;
/// Length at which the path of a problem is cut, bytes.
const MAX_PATH: usize = 1024;
/// Ends a path that was cut.
const CUT: &str = "..";

/// What is wrong with a variant that the reader lacks. Only its values are not read.
pub(crate) const UNKNOWN_VARIANT: &str = "this variant of the writer is unknown here";

/// What does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where: `.items[].size`, empty for the value itself.
    pub path: String,
    /// What is wrong, and what to do.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            f.write_str(&self.what)
        } else {
            write!(f, "`{}`: {}", self.path.trim_start_matches('.'), self.what)
        }
    }
}

/// How a reader reads the values of a writer whose type differs.
#[derive(Debug)]
pub struct Plan {
    pub(crate) ops: Vec<Op>,
    pub(crate) root: OpId,
    /// The writer's types: what is skipped is read by them.
    pub(crate) writer: Schema,
    /// Types of the writer that take no bytes.
    pub(crate) empty: Vec<bool>,
    partial: Vec<Problem>,
    unsure: Vec<String>,
}

impl Plan {
    /// A plan to read values of `writer`'s type `written` as `reader`'s type `read`.
    ///
    /// # Errors
    /// No value can be read, with all places where they do not fit: at least one.
    ///
    /// # Panics
    /// An id is not of its schema.
    pub fn new(
        writer: &Schema,
        written: Id,
        reader: &Schema,
        read: Id,
    ) -> Result<Self, Vec<Problem>> {
        Self::made(Maker::of(writer, reader), written, read)
    }

    /// [`Plan::new`] for two structs of arguments.
    ///
    /// # Errors
    /// As [`Plan::new`].
    ///
    /// # Panics
    /// An id is not of its schema.
    pub fn of_arguments(
        writer: &Schema,
        written: Id,
        reader: &Schema,
        read: Id,
    ) -> Result<Self, Vec<Problem>> {
        let arguments = Some((written, read));
        Self::made(Maker { arguments, ..Maker::of(writer, reader) }, written, read)
    }

    fn made(mut maker: Maker<'_>, written: Id, read: Id) -> Result<Self, Vec<Problem>> {
        let writer = maker.writer;
        let root = maker.pair(written, read);
        let mut ops = Vec::new();
        let mut kept = Vec::new();
        while let Some((written, read)) = maker.pairs.get(ops.len()).copied() {
            let (op, is_kept) = maker.op(written, read);
            ops.push(op);
            kept.push(is_kept);
        }
        let empty = empty(writer.types());
        for (at, what) in lost_entries(&ops, &maker.pairs, (writer, maker.reader), &empty) {
            (ops[at], kept[at]) = (Op::Refused(what), false);
        }
        let refused = refused(&ops);
        if refused[root] {
            return Err(problems(&ops, root, &refused, true));
        }
        let partial = problems(&ops, root, &refused, false);
        merge_same(&mut ops, kept);
        let unsure = maker.unsure;
        Ok(Self { ops, root, writer: writer.clone(), empty, partial, unsure })
    }

    /// Whether the values can be read without it: the types have the same bytes.
    #[must_use]
    pub fn is_same(&self) -> bool {
        self.ops[self.root] == Op::Same
    }

    /// About how much memory it takes, bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let parts = |op: &Op| match op {
            Op::Tuple(parts) => size_of_val(&**parts),
            Op::Struct(parts) => {
                size_of_val(&**parts) + parts.iter().map(Part::text_bytes).sum::<usize>()
            }
            Op::Enum(all) => {
                size_of_val(&**all) + all.iter().map(Chosen::text_bytes).sum::<usize>()
            }
            Op::Refused(what) => what.len(),
            _ => 0,
        };
        let partial: usize = self.partial.iter().map(|it| it.path.len() + it.what.len()).sum();
        let partial = partial + self.unsure.iter().map(String::len).sum::<usize>();
        size_of_val(&*self.ops)
            + self.ops.iter().map(parts).sum::<usize>()
            + self.empty.len()
            + self.writer.bytes()
            + partial
    }

    /// What is not read while all else is: variants of enums.
    #[must_use]
    pub fn partial(&self) -> &[Problem] {
        &self.partial
    }

    /// Fields that the writer lacks, and of which it is not known whether the reader has a default.
    /// If it has none, it reads no value without them.
    #[must_use]
    pub fn unsure(&self) -> &[String] {
        &self.unsure
    }
}

struct Maker<'a> {
    writer: &'a Schema,
    reader: &'a Schema,
    /// By the numbers of their ops.
    pairs: Vec<(Id, Id)>,
    known: HashMap<(Id, Id), OpId>,
    parts: usize,
    /// The pair that has the arguments of a method.
    arguments: Option<(Id, Id)>,
    unsure: Vec<String>,
}

impl<'a> Maker<'a> {
    fn of(writer: &'a Schema, reader: &'a Schema) -> Self {
        let (pairs, known, unsure) = (Vec::new(), HashMap::new(), Vec::new());
        Self { writer, reader, pairs, known, parts: 0, arguments: None, unsure }
    }

    fn pair(&mut self, written: Id, read: Id) -> OpId {
        let next = self.pairs.len();
        if next == MAX_PAIRS {
            // The last pair is refused: see `op`.
            return next - 1;
        }
        *self.known.entry((written, read)).or_insert_with(|| {
            self.pairs.push((written, read));
            next
        })
    }

    /// How a pair is read, and whether it has the same bytes if all its parts have.
    fn op(&mut self, written: Id, read: Id) -> (Op, bool) {
        let (writer, reader) = (self.writer, self.reader);
        self.parts += writer.get(written).parts().count();
        if self.pairs.len() == MAX_PAIRS || self.parts > MAX_PARTS {
            return (Op::Refused("its types are too large to be compared".to_owned()), false);
        }
        let op = match (writer.get(written), reader.get(read)) {
            (Type::Unknown(why), _) | (_, Type::Unknown(why)) => {
                Op::Refused(format!("its type is unknown: {why}"))
            }
            (Type::Option(from), Type::Option(to)) => {
                return (Op::Option(self.pair(*from, *to)), true);
            }
            // Otherwise there would be no end of it.
            (_, Type::Option(_)) if is_endless(reader, read) => {
                Op::Refused("the writer has no option, and here it contains only itself".to_owned())
            }
            (_, Type::Option(to)) => Op::Some(self.pair(written, *to)),
            (Type::Option(from), _) => Op::Unwrap(self.pair(*from, read)),
            (Type::Sequence(from) | Type::Set(from), Type::Sequence(to) | Type::Set(to)) => {
                return (Op::Sequence(self.pair(*from, *to)), true);
            }
            (Type::Map(key, value), Type::Map(to_key, to_value)) => {
                let key = self.pair(*key, *to_key);
                return (Op::Map(key, self.pair(*value, *to_value)), true);
            }
            (Type::Tuple(from), Type::Tuple(to)) if from.len() == to.len() => {
                let parts = from.iter().zip(to).map(|(from, to)| self.pair(*from, *to));
                return (Op::Tuple(parts.collect()), true);
            }
            (Type::Struct { fields: from, .. }, Type::Struct { fields: to, denies_unknown }) => {
                let is_arguments = self.arguments == Some((written, read));
                return self.fields(from, to, *denies_unknown, is_arguments);
            }
            (Type::Enum { variants: from, .. }, Type::Enum { variants: to, other }) => {
                return self.variants(from, to, *other);
            }
            (Type::Int(from), Type::Int(to)) if from != to => Op::Int(*from),
            (Type::F32, Type::F64) => Op::Float(false),
            (Type::F64, Type::F32) => Op::Float(true),
            // A variant that had nothing, and has fields now.
            (Type::Nothing, Type::Struct { fields, denies_unknown }) => {
                return (self.fields(&[], fields, *denies_unknown, false).0, fields.is_empty());
            }
            (from, to) if from == to => return (Op::Same, true),
            (from, to) => {
                Op::Refused(format!("it is `{}` at the writer and `{}` here", kind(from), kind(to)))
            }
        };
        (op, false)
    }

    fn fields(
        &mut self,
        from: &[Field],
        to: &[Field],
        denies_unknown: bool,
        is_arguments: bool,
    ) -> (Op, bool) {
        let find = finder(to.iter().map(|it| (it.name.as_str(), it.aliases.as_slice())));
        let mut given: Vec<Option<&str>> = vec![None; to.len()];
        let mut parts = Vec::with_capacity(from.len());
        let mut is_kept = from.len() == to.len();
        for (position, field) in from.iter().enumerate() {
            let Some(at) = find(&field.name, &field.aliases) else {
                if denies_unknown {
                    let what = format!(
                        "the writer has a field `{}`, and `deny_unknown_fields` refuses it",
                        field.name
                    );
                    return (Op::Refused(what), false);
                }
                is_kept = false;
                parts.push(Part::Skip(field.id));
                continue;
            };
            if let Some(first) = given[at].replace(&field.name) {
                let what = format!(
                    "the fields `{first}` and `{}` of the writer are both `{}` here",
                    field.name, to[at].name
                );
                return (Op::Refused(what), false);
            }
            is_kept &= at == position;
            let op = self.pair(field.id, to[at].id);
            parts.push(Part::Take { name: to[at].name.as_str().into(), op });
        }
        let missing = || to.iter().zip(&given).filter(|(_, given)| given.is_none());
        for (field, _) in missing().filter(|(field, _)| field.absent == Absent::Unknown) {
            if self.unsure.len() < MAX_PROBLEMS {
                self.unsure.push(field.name.clone());
            }
        }
        if let Some((field, _)) = missing().find(|(field, _)| field.absent == Absent::Refused) {
            let (kind, remedy) = match is_arguments {
                true => ("argument", "#[rpc(default)]"),
                false => ("field", "#[serde(default)]"),
            };
            let what = format!("the writer has no {kind} `{}`: give it `{remedy}`", field.name);
            return (Op::Refused(what), false);
        }
        (Op::Struct(parts), is_kept)
    }

    fn variants(&mut self, from: &[Variant], to: &[Variant], other: Option<usize>) -> (Op, bool) {
        let find = finder(to.iter().map(|it| (it.name.as_str(), it.aliases.as_slice())));
        let number = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        let mut is_kept = true;
        let choose = |(position, variant): (usize, &Variant)| {
            let found = find(&variant.name, &variant.aliases);
            is_kept &= found == Some(position) && Some(position) != other;
            match (found, other) {
                // A variant without content is all that can stand for unknown ones.
                (Some(at), _) if Some(at) == other => {
                    Chosen::Other { to: number(at), contents: variant.id }
                }
                (Some(at), _) => Chosen::Take {
                    to: number(at),
                    name: to[at].name.as_str().into(),
                    op: self.pair(variant.id, to[at].id),
                },
                (None, Some(at)) => Chosen::Other { to: number(at), contents: variant.id },
                (None, None) => Chosen::Missing(variant.name.as_str().into()),
            }
        };
        let chosen = from.iter().enumerate().map(choose).collect();
        (Op::Enum(chosen), is_kept)
    }
}

/// Finds what has one of the names.
fn finder<'a>(
    all: impl Iterator<Item = (&'a str, &'a [String])> + Clone,
) -> impl Fn(&str, &[String]) -> Option<usize> {
    let mut by_name: HashMap<&str, usize> = HashMap::new();
    for (at, (name, _)) in all.clone().enumerate() {
        by_name.entry(name).or_insert(at);
    }
    for (at, (_, aliases)) in all.enumerate() {
        aliases.iter().for_each(|alias| {
            by_name.entry(alias).or_insert(at);
        });
    }
    move |name: &str, aliases: &[String]| {
        let names = std::iter::once(name).chain(aliases.iter().map(String::as_str));
        names.filter_map(|name| by_name.get(name).copied()).next()
    }
}

/// Whether a type is options of options, without end.
fn is_endless(schema: &Schema, mut id: Id) -> bool {
    for _ in schema.types() {
        match schema.get(id) {
            Type::Option(inner) => id = *inner,
            _ => return false,
        }
    }
    true
}

/// A type for people, without what is in it.
fn kind(it: &Type) -> String {
    match it {
        Type::Option(_) => "option".to_owned(),
        Type::Sequence(_) => "sequence".to_owned(),
        Type::Set(_) => "set".to_owned(),
        Type::Map(..) => "map".to_owned(),
        Type::Tuple(ids) => format!("tuple of {}", ids.len()),
        Type::Struct { .. } => "struct".to_owned(),
        Type::Enum { .. } => "enum".to_owned(),
        leaf => leaf.to_string(),
    }
}

/// Of which ops no value, or not every one, can be read. A variant is only refused when it is used.
fn refused(ops: &[Op]) -> Vec<bool> {
    let marked = ops.iter().map(|op| matches!(op, Op::Refused(_))).collect();
    spread(marked, &outer(ops, needed))
}

/// Replaces ops by [`Op::Same`] where all inside is.
fn merge_same(ops: &mut [Op], kept: Vec<bool>) {
    let differs = kept.into_iter().map(|is_kept| !is_kept).collect();
    let differs = spread(differs, &outer(ops, inside));
    for (op, _) in ops.iter_mut().zip(differs).filter(|(_, differs)| !differs) {
        *op = Op::Same;
    }
}

/// Types that take no bytes.
fn empty(types: &[Type]) -> Vec<bool> {
    let mut empty = vec![false; types.len()];
    loop {
        let mut is_done = true;
        for (id, it) in types.iter().enumerate().rev() {
            let is_empty = match it {
                Type::Nothing => true,
                Type::Tuple(_) | Type::Struct { .. } => it.parts().all(|part| empty[part]),
                _ => false,
            };
            is_done &= empty[id] == is_empty;
            empty[id] = is_empty;
        }
        if is_done {
            return empty;
        }
    }
}

/// What is refused, with the paths: all that keeps values from being read, or the variants that
/// are not.
fn problems(ops: &[Op], root: OpId, refused: &[bool], is_whole: bool) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut seen = vec![false; ops.len()];
    let mut left = vec![(root, String::new())];
    while let Some((at, path)) = left.pop() {
        if std::mem::replace(&mut seen[at], true) || problems.len() == MAX_PROBLEMS {
            continue;
        }
        let first = left.len();
        let mut step = |op: OpId, name: fmt::Arguments<'_>| {
            if !is_whole || refused[op] {
                let mut path = path.clone();
                if path.len() < MAX_PATH {
                    let _ = path.write_fmt(name);
                } else if !path.ends_with(CUT) {
                    path.push_str(CUT);
                }
                left.push((op, path));
            }
        };
        match &ops[at] {
            Op::Refused(what) => problems.push(Problem { path: path.clone(), what: what.clone() }),
            Op::Option(op) => step(*op, format_args!("?")),
            Op::Some(op) | Op::Unwrap(op) => step(*op, format_args!("")),
            Op::Sequence(op) => step(*op, format_args!("[]")),
            Op::Map(key, value) => {
                step(*key, format_args!("{{key}}"));
                step(*value, format_args!("{{value}}"));
            }
            Op::Tuple(parts) => {
                parts.iter().enumerate().for_each(|(at, op)| step(*op, format_args!(".{at}")));
            }
            Op::Struct(parts) => parts.iter().for_each(|part| {
                if let Part::Take { name, op } = part {
                    step(*op, format_args!(".{name}"));
                }
            }),
            Op::Enum(all) if !is_whole => all.iter().for_each(|chosen| match chosen {
                Chosen::Take { name, op, .. } => step(*op, format_args!("::{name}")),
                Chosen::Missing(name) => {
                    let what = UNKNOWN_VARIANT.to_owned();
                    problems.push(Problem { path: format!("{path}::{name}"), what });
                }
                Chosen::Other { .. } => {}
            }),
            Op::Enum(_) | Op::Same | Op::Int(_) | Op::Float(_) => {}
        }
        left[first..].reverse();
    }
    problems.truncate(MAX_PROBLEMS);
    problems
}
