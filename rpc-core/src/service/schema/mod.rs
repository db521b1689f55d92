//! Schemas: what the types of a method look like in a message.
//!
//! Owns the comparison of two ends' types. A signature compares the names of types only; a schema
//! has their contents: the names and order of fields and variants, and the type of each value. It
//! comes from the types' own `Deserialize` (see `trace`), once per method and process, so a type
//! needs nothing but serde's derive.
//!
//! A schema is a list of lines, `path: what is there`. Its hash travels with the first call of a
//! method on a connection; the lines travel only to say where two schemas differ.
//!
//! Names of types are not in it, nor what has no bytes of its own: a newtype, `Box`, a reference.
//! Types with the same bytes have the same lines: `String` and `&str`, `Vec<u8>` and `Bulk`,
//! `HashMap` and `BTreeMap`.

mod trace;

use std::fmt::Write;

use serde::de::DeserializeSeed;

use self::trace::Trace;
use crate::service::hash::signature_hash;

/// Most bytes of lines that are sent to explain a difference.
const MAX_TEXT_BYTES: usize = 16 << 10;
/// Most characters of a path or of what is there that are shown.
const MAX_SHOWN_CHARS: usize = 300;

/// The schema of a method, while it is made: the generated code adds its types.
#[derive(Debug, Default)]
pub struct Tracer {
    lines: Vec<String>,
    arguments: usize,
}

impl Tracer {
    /// Adds the next argument.
    pub fn argument<S: DeserializeSeed<'static> + Clone>(&mut self, seed: S) {
        let root = self.arguments.to_string();
        self.arguments += 1;
        self.add(root, seed);
    }

    /// Adds an item of the stream of arguments.
    pub fn sent_item<S: DeserializeSeed<'static> + Clone>(&mut self, seed: S) {
        self.add("sent item".to_owned(), seed);
    }

    /// Adds an item of the stream of results.
    pub fn item<S: DeserializeSeed<'static> + Clone>(&mut self, seed: S) {
        self.add("item".to_owned(), seed);
    }

    /// Adds the error of an early refusal of a stream.
    pub fn refusal<S: DeserializeSeed<'static> + Clone>(&mut self, seed: S) {
        self.add("refusal".to_owned(), seed);
    }

    /// Adds what the method returns.
    pub fn result<S: DeserializeSeed<'static> + Clone>(&mut self, seed: S) {
        self.add(RESULT.to_owned(), seed);
    }

    /// Adds the method's own error.
    pub fn error<S: DeserializeSeed<'static> + Clone>(&mut self, seed: S) {
        self.add(ERROR.to_owned(), seed);
    }

    fn add<S: DeserializeSeed<'static> + Clone>(&mut self, root: String, seed: S) {
        self.lines.extend(Trace::of(root, seed));
    }
}

const RESULT: &str = "result";
const ERROR: &str = "error";

/// What the types of a method look like in a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Schema {
    lines: Vec<String>,
}

impl Schema {
    /// The schema that `trace` makes. `Deserialize` is the user's code: if it panics, there is no
    /// schema.
    pub(crate) fn of(trace: fn(&mut Tracer)) -> Option<Self> {
        let traced = std::panic::catch_unwind(|| {
            let mut tracer = Tracer::default();
            trace(&mut tracer);
            tracer.lines
        });
        traced.ok().map(|lines| Self { lines })
    }

    /// A hash of all lines, to be combined with that of the signature.
    pub(crate) fn hash(&self) -> u64 {
        signature_hash(&self.lines.join("\n"))
    }

    /// All lines.
    #[cfg(feature = "macros")]
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

    /// Where this end's schema and the peer's differ first, for people. `arguments` are their names.
    pub(crate) fn difference(&self, theirs: &str, arguments: &[&str]) -> String {
        let mut mine = self.lines.iter();
        for their in theirs.lines() {
            let Some(mine) = mine.next() else { break };
            if mine != their {
                return difference(mine, their, arguments);
            }
        }
        "their types differ".to_owned()
    }
}

fn difference(mine: &str, theirs: &str, arguments: &[&str]) -> String {
    let split = |line: &str| -> (String, String) {
        let (path, what) = line.split_once(": ").unwrap_or((line, "something else"));
        (shown(path), shown(what))
    };
    let ((my_path, mine), (their_path, theirs)) = (split(mine), split(theirs));
    let my_path = named(&my_path, arguments);
    if my_path == named(&their_path, arguments) {
        return format!("`{my_path}` is `{theirs}` at the server and `{mine}` here");
    }
    format!(
        "the server has `{}`: `{theirs}` where this end has `{my_path}`: `{mine}`",
        named(&their_path, arguments)
    )
}

/// What a peer sends is shown to people, so it is cut and cleaned.
fn shown(text: &str) -> String {
    let mut shown: String =
        text.chars().take(MAX_SHOWN_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX_SHOWN_CHARS).is_some() {
        shown.push_str("..");
    }
    shown
}

/// A path that begins with the argument's name instead of its position.
fn named(path: &str, arguments: &[&str]) -> String {
    let digits = path.find(|c: char| !c.is_ascii_digit()).unwrap_or(path.len());
    let (position, rest) = path.split_at(digits);
    match position.parse().ok().and_then(|at: usize| arguments.get(at)) {
        Some(name) => format!("{name}{rest}"),
        None => path.to_owned(),
    }
}

#[cfg(test)]
mod tests;
