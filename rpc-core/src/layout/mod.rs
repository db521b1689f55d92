//! Schemas: the layout of a method's types in a message.
//!
//! Owns the comparison of two ends' types. A signature compares the names of types only; a schema
//! has their contents: the names and order of fields and variants, and the type of each value. It
//! comes from the types' own `Deserialize` (see `read`), once per method and process, so a type
//! needs nothing but serde's derive.
//!
//! The trace also finds types that cannot be sent, and types whose `Serialize` and `Deserialize`
//! differ (`look`).
//!
//! A schema is a list of lines, `path: kind of value`. Its hash travels with the first call of a
//! method on a connection; the lines travel only to say where two schemas differ.
//!
//! Names of types are not in it, nor what has no bytes of its own: a newtype, `Box`, a reference.
//! Types with the same bytes have the same lines: `String` and `&str`, `Vec<u8>` and `Bulk`,
//! `HashMap` and `BTreeMap`.

mod derive;
mod fields;
mod graph;
mod look;
mod read;
mod trace;
mod tree;
mod variants;
mod write;

use std::fmt::Write;

pub(crate) use rpc_schema::exchange::{MAX_SCHEMA_BYTES, MethodTypes, OwnTypes, split as version};
use rpc_schema::hash::signature_hash;
use rpc_schema::lines::{self, ARGUMENTS, Difference, named};
use rpc_schema::schema::{Absent, Root, Type};
use serde::de::DeserializeSeed;

pub use self::look::Writes;
use self::look::{Looked, look};
use self::tree::Tree;
use crate::session::CopiedTails;
use crate::text::printable;

/// The name of the newtype struct by which serde code represents a payload.
pub(crate) const PAYLOAD: &str = "$rpc_core::Bulk";
/// Most bytes of lines that are sent to explain a difference.
const MAX_TEXT_BYTES: usize = 16 << 10;
/// Most bytes of a path or of what is there that are shown.
const MAX_SHOWN_BYTES: usize = 300;

/// The schema of a method, while it is made: the generated code adds its types, each with how it is
/// read and how it is written.
#[derive(Debug)]
pub struct Tracer {
    looked: Vec<Looked>,
    arguments: usize,
    /// The arguments that have a default.
    defaults: Vec<usize>,
    copied_tails: CopiedTails,
}

impl Default for Tracer {
    fn default() -> Self {
        Self {
            looked: Vec::new(),
            arguments: 0,
            defaults: Vec::new(),
            copied_tails: CopiedTails::ALL,
        }
    }
}

impl Tracer {
    /// Adds the next argument.
    pub fn argument<S, H>(&mut self, seed: S, shape: H)
    where
        S: DeserializeSeed<'static> + Clone,
        H: Writes<S::Value>,
    {
        let root = self.arguments.to_string();
        self.arguments += 1;
        self.copied_tails.arguments &= self.add(&root, seed, shape);
    }

    /// Adds the next argument, which has a default.
    pub fn argument_or_default<S, H>(&mut self, seed: S, shape: H)
    where
        S: DeserializeSeed<'static> + Clone,
        H: Writes<S::Value>,
    {
        self.argument(seed, shape);
        self.defaults.push(self.arguments - 1);
    }

    /// Adds an item of the stream of arguments.
    pub fn sent_item<S, H>(&mut self, seed: S, shape: H)
    where
        S: DeserializeSeed<'static> + Clone,
        H: Writes<S::Value>,
    {
        self.copied_tails.sent_items &= self.add("sent item", seed, shape);
    }

    /// Adds an item of the stream of results.
    pub fn item<S, H>(&mut self, seed: S, shape: H)
    where
        S: DeserializeSeed<'static> + Clone,
        H: Writes<S::Value>,
    {
        self.copied_tails.items &= self.add("item", seed, shape);
    }

    /// Adds the error of an early refusal of a stream.
    pub fn refusal<S, H>(&mut self, seed: S, shape: H)
    where
        S: DeserializeSeed<'static> + Clone,
        H: Writes<S::Value>,
    {
        self.copied_tails.results &= self.add("refusal", seed, shape);
    }

    /// Adds what the method returns.
    pub fn result<S, H>(&mut self, seed: S, shape: H)
    where
        S: DeserializeSeed<'static> + Clone,
        H: Writes<S::Value>,
    {
        self.copied_tails.results &= self.add("result", seed, shape);
    }

    /// Adds the method's own error.
    pub fn error<S, H>(&mut self, seed: S, shape: H)
    where
        S: DeserializeSeed<'static> + Clone,
        H: Writes<S::Value>,
    {
        self.copied_tails.results &= self.add("error", seed, shape);
    }

    /// Returns whether all byte strings in it are copied out of a tail. A payload that is read in
    /// place is not, nor may be what could not be looked into.
    fn add<S, H>(&mut self, root: &str, seed: S, shape: H) -> bool
    where
        S: DeserializeSeed<'static> + Clone,
        H: Writes<S::Value>,
    {
        let looked = look(root, seed, shape);
        let is_copied = !looked.has_bulk && looked.unseen.is_empty();
        self.looked.push(looked);
        is_copied
    }
}

/// What the types of a method look like in a message.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Schema {
    lines: Vec<String>,
    /// Why these types cannot be sent.
    pub(crate) refusals: Vec<String>,
    /// What could not be looked into.
    pub(crate) unseen: Vec<String>,
    /// Fields that may be left out when they are written.
    left_out: Vec<String>,
    pub(crate) copied_tails: CopiedTails,
}

impl Schema {
    /// The schema that `trace` makes. Serde's traits are the user's code: if it panics, there is no
    /// schema.
    pub(crate) fn of(trace: fn(&mut Tracer), arguments: &[&str]) -> Option<Self> {
        let Tracer { looked, copied_tails, .. } = traced(trace)?;
        Some(Self { copied_tails, ..Self::from_looked(looked, arguments) })
    }

    /// The schema that these lines describe.
    pub(crate) fn of_lines(lines: Vec<String>) -> Self {
        Self { lines, ..Self::default() }
    }

    fn from_looked(looked: Vec<Looked>, arguments: &[&str]) -> Self {
        let alike = alike(&looked, arguments);
        let mut schema = Self::default();
        // Of a type that stands in several places one is enough.
        let mut refused = Vec::new();
        for mut one in looked {
            schema.lines.extend(one.lines);
            one.refusals.retain(|(_, text)| {
                let is_new = !refused.contains(text);
                refused.push(text.clone());
                is_new
            });
            let named = |texts: Vec<(String, String)>| {
                texts
                    .into_iter()
                    .map(|(path, text)| format!("`{}` {text}", named(&path, arguments)))
            };
            schema.refusals.extend(named(one.refusals));
            schema.unseen.extend(named(one.unseen));
            schema.left_out.extend(one.left_out);
        }
        if !alike.is_empty() {
            schema.lines.push(format!("{ARGUMENTS}: {}", alike.join(", ")));
        }
        schema
    }

    /// Whether a field of that name may be left out when it is written: its value is then one zero
    /// byte.
    pub(crate) fn may_leave_out(&self, field: &str) -> bool {
        self.left_out.iter().any(|name| name == field)
    }

    /// A hash of all lines, to be combined with that of the signature.
    pub(crate) fn hash(&self) -> u64 {
        signature_hash(&self.lines.join("\n"))
    }

    /// All lines.
    pub(crate) fn lines(&self) -> &[String] {
        &self.lines
    }

    /// The lines, as far as they are sent to explain a difference.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for line in &self.lines {
            if text.len() + line.len() >= MAX_TEXT_BYTES {
                break;
            }
            let _ = writeln!(text, "{line}");
        }
        text
    }

    /// Where this end's schema and the peer's differ first, for people. `arguments` are their
    /// names.
    pub(crate) fn difference(&self, theirs: &str, arguments: &[&str]) -> String {
        match lines::difference(&self.lines, theirs) {
            Some(difference) => shown_difference(&difference, arguments),
            None => "their types differ".to_owned(),
        }
    }
}

/// What `trace` finds, unless one of the types panics.
fn traced(trace: fn(&mut Tracer)) -> Option<Tracer> {
    let traced = std::panic::catch_unwind(|| {
        let mut tracer = Tracer::default();
        trace(&mut tracer);
        tracer
    });
    traced.ok()
}

/// The types that `trace` finds, as a graph. `None`: they panic, or are no schema.
pub(crate) fn graph(trace: fn(&mut Tracer), arguments: &[&str]) -> Option<rpc_schema::Schema> {
    let (mut types, mut roots) = (Vec::new(), Vec::new());
    let mut names = arguments.iter().enumerate();
    let Tracer { looked, defaults, .. } = traced(trace)?;
    for Looked { tree, .. } in looked {
        let id = tree.add_types(&mut types);
        let root = match Root::named(&tree.path(Tree::ROOT)) {
            Some(root) => root,
            None => {
                let (at, name) = names.next()?;
                let absent = match types[id] {
                    Type::Option(_) => Absent::Default,
                    _ if defaults.contains(&at) => Absent::Default,
                    _ => Absent::Refused,
                };
                Root::Argument { name: (*name).to_owned(), absent }
            }
        };
        // A `Status` as an error asks for nothing.
        if !tree.is_unseen() {
            roots.push((root, id));
        }
    }
    Some(rpc_schema::Schema::new(types, roots).ok()?.minimal())
}

fn shown_difference(difference: &Difference<'_>, arguments: &[&str]) -> String {
    let [my_path, mine] = [difference.mine.0, difference.mine.1].map(shown);
    let [their_path, theirs] = [difference.theirs.0, difference.theirs.1].map(shown);
    if difference.is_of_arguments() {
        return format!(
            "the arguments with equal types are named `{theirs}` on the server and `{mine}` here"
        );
    }
    let my_path = named(&my_path, arguments);
    let their_path = named(&their_path, arguments);
    if my_path == their_path {
        return format!("`{my_path}` is `{theirs}` on the server and `{mine}` here");
    }
    format!("the server has `{their_path}`: `{theirs}`, this end has `{my_path}`: `{mine}`")
}

/// The names of the arguments that look like another one: were they to change places, no type would
/// differ.
fn alike<'a>(looked: &[Looked], arguments: &[&'a str]) -> Vec<&'a str> {
    let shape = |at: usize| {
        let root = at.to_string();
        let lines = looked[at].lines.iter();
        lines.map(|line| line.strip_prefix(&root).unwrap_or(line)).collect::<Vec<_>>()
    };
    let shapes: Vec<_> = (0..arguments.len().min(looked.len())).map(shape).collect();
    let is_alike = |at: &usize| shapes.iter().filter(|other| **other == shapes[*at]).count() > 1;
    (0..shapes.len()).filter(is_alike).map(|at| arguments[at]).collect()
}

/// What a peer sends is shown to people, so it is cut and cleaned.
fn shown(text: &str) -> String {
    printable(text).at_most(MAX_SHOWN_BYTES).to_string()
}

#[cfg(test)]
mod graph_tests;
#[cfg(test)]
mod kinds_tests;
#[cfg(test)]
mod tests;
