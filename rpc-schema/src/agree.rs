//! Whether two descriptions of the same types agree: the lines whose hash ends compare, and the
//! schema by which values are written and read.
//!
//! A reader that takes the lines of one description and the schema of another reads values by the
//! wrong types, and no end notices. So it compares both first.

use std::fmt::Write;

use crate::lines::ARGUMENTS;
use crate::schema::{Id, Root, Schema, Type};
use crate::text::leaf;

impl Schema {
    /// The path of the first place where these lines, as a server describes its types, say
    /// something else than this schema. `None`: they agree. What is unknown in the schema agrees
    /// with any line. `arguments` are the names of the method's arguments.
    pub fn disagreement<L, A>(&self, lines: &[L], arguments: &[A]) -> Option<String>
    where
        L: AsRef<str>,
        A: AsRef<str>,
    {
        let lines = lines.iter().map(AsRef::as_ref);
        let lines: Vec<_> = lines.map(|line| line.split_once(": ").unwrap_or((line, ""))).collect();
        let lines: Vec<_> = lines.into_iter().filter(|(path, _)| *path != ARGUMENTS).collect();
        let mut compared = vec![false; lines.len()];
        for (root, id) in self.roots() {
            let path = match root {
                Root::Argument { name, .. } => {
                    match arguments.iter().position(|it| it.as_ref() == name) {
                        Some(at) => at.to_string(),
                        None => return Some(name.clone()),
                    }
                }
                other => other.name().to_owned(),
            };
            let first = lines.iter().position(|(other, _)| *other == path).unwrap_or(lines.len());
            let mut walk = Walk { schema: self, lines: &lines[first..], path, around: Vec::new() };
            if !walk.agrees(*id) {
                return Some(walk.path);
            }
            compared[first..lines.len() - walk.lines.len()].fill(true);
        }
        let left = lines.iter().zip(&compared).find(|(_, is_compared)| !**is_compared);
        left.map(|((path, _), _)| (*path).to_owned())
    }
}

/// How a path goes on.
enum Step<'a> {
    Fixed(&'static str),
    Index(usize),
    Named(&'static str, &'a str),
}

/// A place that is still to be compared.
struct Left<'a> {
    id: Id,
    /// How many types are around it, and how long the path to the nearest one is.
    around: usize,
    path: usize,
    step: Step<'a>,
}

struct Walk<'a> {
    schema: &'a Schema,
    /// Those that are not compared yet.
    lines: &'a [(&'a str, &'a str)],
    path: String,
    around: Vec<Id>,
}

impl<'a> Walk<'a> {
    /// Compares a type and all that is in it, in the order of the lines. If they do not agree,
    /// `path` is the place.
    fn agrees(&mut self, root: Id) -> bool {
        // Not recursive: a peer decides how deep this goes.
        let path = self.path.len();
        let mut left = vec![Left { id: root, around: 0, path, step: Step::Fixed("") }];
        while let Some(Left { id, around, path, step }) = left.pop() {
            self.around.truncate(around);
            self.path.truncate(path);
            let _ = match step {
                Step::Fixed(step) => write!(self.path, "{step}"),
                Step::Index(at) => write!(self.path, ".{at}"),
                Step::Named(sign, name) => write!(self.path, "{sign}{name}"),
            };
            let is_known = !matches!(self.schema.get(id), Type::Unknown(_));
            let line = self.lines.split_first().filter(|((path, _), _)| *path == self.path);
            let Some(((_, what), rest)) = line else {
                if is_known {
                    return false;
                }
                continue;
            };
            self.lines = rest;
            if !is_known {
                self.skip_inside();
                continue;
            }
            if what.starts_with("itself, ") {
                if !self.around.contains(&id) {
                    return false;
                }
                continue;
            }
            let Some(steps) = steps(self.schema.get(id), what) else { return false };
            self.around.push(id);
            let (around, path) = (self.around.len(), self.path.len());
            let parts = self.schema.get(id).parts().zip(steps);
            let first = left.len();
            left.extend(parts.map(|(id, step)| Left { id, around, path, step }));
            left[first..].reverse();
        }
        true
    }

    /// Passes over the lines of what is in an unknown type.
    fn skip_inside(&mut self) {
        let is_inside = |(path, _): &(&str, &str)| {
            let rest = path.strip_prefix(self.path.as_str());
            rest.is_some_and(|rest| rest.starts_with(['.', ':', '?', '[', '{']))
        };
        let count = self.lines.iter().take_while(|line| is_inside(line)).count();
        self.lines = &self.lines[count..];
    }
}

/// The steps to the parts of a type that a line describes so. `None`: it is another type.
fn steps<'a>(it: &Type, what: &'a str) -> Option<Vec<Step<'a>>> {
    let fixed = |name: &str, steps: &[&'static str]| {
        (what == name).then(|| steps.iter().map(|step| Step::Fixed(step)).collect())
    };
    match it {
        Type::Option(_) => fixed("option", &["?"]),
        Type::Sequence(_) | Type::Set(_) => fixed("sequence", &["[]"]),
        Type::Map(..) => fixed("map", &["{key}", "{value}"]),
        Type::Tuple(ids) => {
            let len: usize = what.strip_prefix("tuple of ")?.parse().ok()?;
            (len == ids.len()).then(|| (0..len).map(Step::Index).collect())
        }
        Type::Struct { fields, .. } => {
            let all = fields.iter().map(|it| (it.name.as_str(), it.aliases.as_slice()));
            let names = names(what.strip_prefix("struct { ")?.strip_suffix(" }")?, all)?;
            Some(names.into_iter().map(|name| Step::Named(".", name)).collect())
        }
        Type::Enum { variants, .. } => {
            let all = variants.iter().map(|it| (it.name.as_str(), it.aliases.as_slice()));
            let names = names(what.strip_prefix("enum { ")?.strip_suffix(" }")?, all)?;
            Some(names.into_iter().map(|name| Step::Named("::", name)).collect())
        }
        Type::Unknown(_) => None,
        known => (leaf(what).as_ref() == Some(known)).then(Vec::new),
    }
}

/// The names in a line, if these are those of a type. Where it is not known which of its names is
/// written, a line has all of them: `a|b`.
fn names<'a, 't>(
    mut text: &'a str,
    all: impl Iterator<Item = (&'t str, &'t [String])>,
) -> Option<Vec<&'a str>> {
    let mut names = Vec::new();
    for (name, aliases) in all {
        text = if names.is_empty() { text } else { text.strip_prefix(", ")? };
        let joined = aliases.iter().fold(name.to_owned(), |joined, it| joined + "|" + it);
        let ends = |rest: &str| rest.is_empty() || rest.starts_with(", ");
        let rest = [joined.as_str(), name].into_iter().find_map(|name| {
            let rest = text.strip_prefix(name)?;
            ends(rest).then_some(rest)
        })?;
        names.push(&text[..text.len() - rest.len()]);
        text = rest;
    }
    text.is_empty().then_some(names)
}

#[cfg(test)]
mod tests {
    use crate::text::parse;

    const LINES: [&str; 14] = [
        "0: struct { next, value, a|b }",
        "0.next: option",
        "0.next?: itself, 1 up",
        "0.value: map",
        "0.value{key}: u8",
        "0.value{value}: tuple of 2",
        "0.value{value}.0: bytes",
        "0.value{value}.1: sequence",
        "0.value{value}.1[]: str",
        "0.a|b: enum { A, B }",
        "0.a|b::A: nothing",
        "0.a|b::B: f32",
        "result: nothing",
        "arguments: first, second",
    ];

    const TYPES: &str = "\
argument first: #0
result: #9
#0 struct { next: #1, value | old?: #2, a | b: #8 }
#1 option #0
#2 map #3 #4
#3 u8
#4 tuple (#5, #6)
#5 bytes
#6 sequence #7
#7 str
#8 enum { A: #9, B | C*: #10 }
#9 nothing
#10 f32
";

    fn disagreement(lines: &[&str], types: &str) -> Option<String> {
        parse(types).unwrap().disagreement(lines, &["first"])
    }

    #[test]
    fn lines_agree_with_their_types() {
        assert_eq!(disagreement(&LINES, TYPES), None);
        assert_eq!(disagreement(&[], ""), None);
        let unknown = TYPES.replace("#4 tuple (#5, #6)", "#4 unknown \"why\"");
        assert_eq!(disagreement(&LINES, &unknown), None);
        let hidden: Vec<_> = LINES.into_iter().filter(|it| !it.contains("{value}")).collect();
        assert_eq!(disagreement(&hidden, &unknown), None);
    }

    #[test]
    fn another_type_is_found_at_its_place() {
        for (from, to, place) in [
            ("#3 u8", "#3 u16", "0.value{key}"),
            ("next: #1, value | old?: #2", "value | old?: #2, next: #1", "0"),
            ("next: #1", "next: #8", "0.next"),
            ("#1 option #0", "#1 option #8", "0.next?"),
            ("tuple (#5, #6)", "tuple (#6, #5)", "0.value{value}.0"),
            ("tuple (#5, #6)", "tuple (#5)", "0.value{value}"),
            ("A: #9, B | C*: #10", "A: #10, B | C*: #9", "0.a|b::A"),
            ("enum { A: #9, B", "enum { AB: #9, B", "0.a|b"),
            ("argument first: #0\n", "", "0"),
            ("argument first", "argument other", "other"),
            ("result: #9", "result: #10", "result"),
            ("result: #9", "error: #9", "error"),
        ] {
            assert!(TYPES.contains(from), "{from}");
            let found = disagreement(&LINES, &TYPES.replace(from, to));
            assert_eq!(found.as_deref(), Some(place), "{from} -> {to}");
        }
        assert_eq!(disagreement(&LINES[..12], TYPES).as_deref(), Some("result"));
        assert_eq!(disagreement(&[], TYPES).as_deref(), Some("0"));
        assert_eq!(disagreement(&LINES, "").as_deref(), Some("0"));
    }
}
