//! The lines in which a server describes its types, `path: kind of value`.
//!
//! The path of an argument begins with its position, others with `result`, `error`, `sent item`,
//! `item` or `refusal`. The lines come from a peer: each is used once, so a schema of them is never
//! larger than they are.

use std::collections::{HashMap, HashSet};

use crate::schema::{Absent, Field, Flaw, Id, MAX_TYPES, Root, Schema, Type, Variant, flaws};
use crate::text::leaf;

/// Maximum length of a path, bytes: bounds the depth.
const MAX_PATH: usize = 1024;

/// Where the names of the arguments are that only these tell apart.
pub const ARGUMENTS: &str = "arguments";

/// Why a type is unknown.
const TOO_DEEP: &str = "its type nests too deeply";
const UNDESCRIBED: &str = "the server does not describe its type";
const ITSELF: &str = "it contains itself in an unsupported way";

impl Schema {
    /// The schema that lines describe. What they do not describe is [`Type::Unknown`], or missing
    /// from the roots. They say nothing about aliases and defaults.
    pub fn from_lines<L, A>(lines: &[L], arguments: &[A]) -> Self
    where
        L: AsRef<str>,
        A: AsRef<str>,
    {
        let lines = lines.iter().filter_map(|line| line.as_ref().split_once(": "));
        let mut reader = Reader { lines: lines.collect(), types: Vec::new() };
        let mut roots = Vec::new();
        for (at, name) in arguments.iter().enumerate() {
            let name = name.as_ref().to_owned();
            let root = Root::Argument { name, absent: Absent::Unknown };
            roots.extend(reader.root(&at.to_string()).map(|id| (root, id)));
        }
        for root in [Root::SentItem, Root::Item, Root::Result, Root::Error, Root::Refusal] {
            let id = reader.root(root.name());
            roots.extend(id.map(|id| (root, id)));
        }
        let mut types = reader.types;
        for flaw in flaws(&types) {
            if let Flaw::Endless(id) | Flaw::TooManyParts(id) = flaw {
                types[id] = Type::Unknown(flaw.to_string());
            }
        }
        Self::new(types, roots).unwrap_or_default()
    }
}

/// A type that contains others.
struct Around {
    id: Id,
    is_tuple: bool,
}

struct Reader<'a> {
    lines: HashMap<&'a str, &'a str>,
    types: Vec<Type>,
}

impl Reader<'_> {
    fn root(&mut self, path: &str) -> Option<Id> {
        let is_there = self.lines.contains_key(path) && self.types.len() < MAX_TYPES;
        is_there.then(|| self.add(path.to_owned(), false, &mut Vec::new()))
    }

    fn add(&mut self, path: String, is_variant: bool, around: &mut Vec<Around>) -> Id {
        if self.types.len() + 1 >= MAX_TYPES {
            // The last one stands for all that have no room.
            self.types.resize(MAX_TYPES, Type::Unknown(TOO_DEEP.to_owned()));
            return MAX_TYPES - 1;
        }
        let id = self.types.len();
        self.types.push(Type::Unknown(TOO_DEEP.to_owned()));
        if path.len() > MAX_PATH {
            return id;
        }
        // A line is used once: with duplicate names, paths would repeat exponentially.
        let what = self.lines.remove(path.as_str()).unwrap_or_default();
        if let Some(levels) = what.strip_prefix("itself, ") {
            return ancestor(levels, around).unwrap_or_else(|| {
                self.types[id] = Type::Unknown(ITSELF.to_owned());
                id
            });
        }
        self.types[id] = self.find(id, &path, what, is_variant, around);
        id
    }

    fn find(
        &mut self,
        id: Id,
        path: &str,
        what: &str,
        is_variant: bool,
        around: &mut Vec<Around>,
    ) -> Type {
        if let Some(leaf) = leaf(what) {
            return leaf;
        }
        let is_tuple = what.starts_with("tuple of ");
        let depth = around.len();
        // Options and lists have no name, and are not counted.
        if is_tuple || what.starts_with("struct {") || what.starts_with("enum {") {
            // A variant with fields counts as part of its enum, a variant that holds a struct does
            // not: they look alike.
            around.push(Around { id, is_tuple: is_tuple || is_variant });
        }
        let found = match what {
            "option" => Type::Option(self.add(format!("{path}?"), false, around)),
            "sequence" => Type::Sequence(self.add(format!("{path}[]"), false, around)),
            "map" => {
                let key = self.add(format!("{path}{{key}}"), false, around);
                Type::Map(key, self.add(format!("{path}{{value}}"), false, around))
            }
            _ => self.parts(path, what, around),
        };
        around.truncate(depth);
        found
    }

    fn parts(&mut self, path: &str, what: &str, around: &mut Vec<Around>) -> Type {
        let count = what.strip_prefix("tuple of ").and_then(|count| count.parse().ok());
        if let Some(count) = count.filter(|count| *count <= self.lines.len()) {
            let part = |at: usize| self.add(format!("{path}.{at}"), false, around);
            return Type::Tuple((0..count).map(part).collect());
        }
        if let Some(names) = names(what, "struct", self.lines.len()) {
            let field = |name: &str| Field {
                name: name.to_owned(),
                aliases: Vec::new(),
                absent: Absent::Unknown,
                id: self.add(format!("{path}.{name}"), false, around),
            };
            let fields = names.into_iter().map(field).collect();
            return Type::Struct { fields, denies_unknown: false };
        }
        if let Some(names) = names(what, "enum", self.lines.len()) {
            let variant = |name: &str| Variant {
                name: name.to_owned(),
                aliases: Vec::new(),
                id: self.add(format!("{path}::{name}"), true, around),
            };
            return Type::Enum { variants: names.into_iter().map(variant).collect(), other: None };
        }
        Type::Unknown(UNDESCRIBED.to_owned())
    }
}

/// The names in `struct { a, b }`, if each is there once, and has a line.
fn names<'a>(what: &'a str, kind: &str, most: usize) -> Option<Vec<&'a str>> {
    let names = what.strip_prefix(kind)?.strip_prefix(" { ")?.strip_suffix(" }")?;
    let names = names.split(", ").filter(|name| !name.is_empty()).take(most + 1);
    let names: Vec<_> = names.collect();
    let mut seen = HashSet::new();
    (names.len() <= most && names.iter().all(|name| seen.insert(*name))).then_some(names)
}

/// The enclosing type the given number of named types further out. The description does not say
/// whether a tuple has a name, so with a tuple in between it is unknown.
fn ancestor(levels: &str, around: &[Around]) -> Option<Id> {
    let levels: usize = levels.strip_suffix(" up")?.parse().ok()?;
    let outer = around.get(around.len().checked_sub(levels)?..)?;
    let is_known = !outer.iter().any(|it| it.is_tuple);
    outer.first().filter(|_| is_known).map(|it| it.id)
}

/// Where two schemas differ first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference<'a> {
    /// The path and the kind at this end.
    pub mine: (&'a str, &'a str),
    /// The path and the kind at the peer.
    pub theirs: (&'a str, &'a str),
}

impl Difference<'_> {
    /// Whether only the names of arguments differ that have one type.
    #[must_use]
    pub fn is_of_arguments(&self) -> bool {
        self.mine.0 == ARGUMENTS && self.theirs.0 == ARGUMENTS
    }
}

/// Where the lines of this end and of the peer differ first. `None`: not as far as both go.
pub fn difference<'a, L: AsRef<str>>(mine: &'a [L], theirs: &'a str) -> Option<Difference<'a>> {
    fn split(line: &str) -> (&str, &str) {
        line.split_once(": ").unwrap_or((line, "something else"))
    }
    let mut both = mine.iter().map(AsRef::as_ref).zip(theirs.lines());
    let (mine, theirs) = both.find(|(mine, theirs)| mine != theirs)?;
    Some(Difference { mine: split(mine), theirs: split(theirs) })
}

/// A path that begins with the argument's name instead of its position.
pub fn named<A: AsRef<str>>(path: &str, arguments: &[A]) -> String {
    let digits = path.find(|c: char| !c.is_ascii_digit()).unwrap_or(path.len());
    let (position, rest) = path.split_at(digits);
    match position.parse().ok().and_then(|at: usize| arguments.get(at)) {
        Some(name) => format!("{}{rest}", name.as_ref()),
        None => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema<L: AsRef<str>>(lines: &[L]) -> Schema {
        Schema::from_lines(lines, &["first"])
    }

    fn unknown(schema: &Schema) -> Vec<&str> {
        let why = |it: &Type| matches!(it, Type::Unknown(_));
        let unknown = schema.types().iter().filter(|it| why(it));
        unknown
            .map(|it| match it {
                Type::Unknown(why) => why.as_str(),
                _ => "",
            })
            .collect()
    }

    #[test]
    fn lines_become_a_schema() {
        let lines = [
            "0: struct { next, value, more }",
            "0.next: option",
            "0.next?: itself, 1 up",
            "0.value: map",
            "0.value{key}: u8",
            "0.value{value}: tuple of 2",
            "0.value{value}.0: bytes",
            "0.value{value}.1: sequence",
            "0.value{value}.1[]: str",
            "0.more: enum { A, B }",
            "0.more::A: nothing",
            "0.more::B: f32",
            "result: nothing",
            "arguments: a, b",
        ];
        let expected = "\
argument first~: #0
result: #10
#0 struct { next~: #1, value~: #2, more~: #8 }
#1 option #0
#2 map #3 #4
#3 u8
#4 tuple (#5, #6)
#5 bytes
#6 sequence #7
#7 str
#8 enum { A: #9, B: #10 }
#9 nothing
#10 f32
";
        let found = schema(&lines).minimal().to_string();
        assert_eq!(found.replace("result: #9", "result: #10"), expected);
        assert_eq!(crate::text::parse(&found).unwrap().to_string(), found);
    }

    /// Regression: the field of a variant was counted as another named type, so `itself` was the
    /// variant.
    #[test]
    fn a_variant_is_not_a_named_type() {
        for name in ["two-way", "two.way", "two::way", "TwoWay"] {
            let schema = schema(&[
                &format!("0: enum {{ leaf, {name} }}"),
                "0::leaf: nothing",
                &format!("0::{name}: struct {{ left }}"),
                &format!("0::{name}.left: option"),
                &format!("0::{name}.left?: itself, 1 up"),
            ]);
            assert_eq!(unknown(&schema.minimal()), [ITSELF]);
        }
    }

    #[test]
    fn a_type_that_only_contains_itself_is_unknown() {
        let found = schema(&["0: struct { a, b }", "0.a: itself, 1 up", "0.b: u8"]).minimal();
        assert!(matches!(unknown(&found)[..], [why] if why.contains("contains another one")));
    }

    /// Regression: forty lines with duplicate names became 2^40 types.
    #[test]
    fn a_hostile_schema_stays_small() {
        let mut lines = Vec::new();
        let mut path = "0".to_owned();
        for _ in 0..40 {
            lines.push(format!("{path}: struct {{ a, a }}"));
            path.push_str(".a");
        }
        let twice = schema(&lines);
        assert!(twice.types().len() <= 2 * lines.len() + 1, "{}", twice.types().len());
        assert_eq!(unknown(&twice.minimal()), [UNDESCRIBED]);
        let names: Vec<String> = (0..MAX_TYPES + 9).map(|at| format!("f{at}")).collect();
        let mut lines = vec![format!("0: struct {{ {} }}", names.join(", "))];
        lines.extend(names.iter().map(|name| format!("0.{name}: u8")));
        let wide = schema(&lines);
        assert!(wide.types().len() <= MAX_TYPES, "{}", wide.types().len());
        assert!(unknown(&wide)[0].contains("parts"), "{:?}", unknown(&wide));
    }

    #[test]
    fn path_length_limits_the_depth() {
        let lines: Vec<_> =
            (0..2000).map(|depth| format!("0{}: option", "?".repeat(depth))).collect();
        assert_eq!(unknown(&schema(&lines)), [TOO_DEEP]);
    }

    #[test]
    fn positions_become_names() {
        assert_eq!(named("1.id", &["a", "b"]), "b.id");
        assert_eq!(named("2.id", &["a", "b"]), "2.id");
        assert_eq!(named("result", &["a"]), "result");
    }

    #[test]
    fn the_first_difference_is_found() {
        let mine = ["0: u8", "1: str"];
        let found = difference(&mine, "0: u8\n1: u64\n").unwrap();
        assert_eq!((found.mine, found.theirs), (("1", "str"), ("1", "u64")));
        assert_eq!(difference(&mine, "0: u8\n"), None);
        let found = difference(&["arguments: a, b"], "arguments: b, a").unwrap();
        assert!(found.is_of_arguments());
    }
}
