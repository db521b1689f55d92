//! The text of a schema, and its parser.
//!
//! ```text
//! argument item: #0
//! argument count?: #2
//! result: #4
//! #0 struct { id: #1, name | title: #3, note?: #4 }
//! #1 u64
//! #2 u32
//! #3 str
//! #4 option #3
//! ```
//!
//! First what the types are for, then the types by their numbers. `|` separates a name from its
//! aliases. `?` marks what a reader has a default for, `~` what it may have one for, and `*` the
//! variant that stands for unknown ones. `struct deny` refuses unknown fields. A name that is more
//! than letters, digits, `_` and `-` is quoted, with the escapes `\"`, `\\` and `\u{..}`.
//!
//! Invariant: a text that is parsed is written again as it was, so each schema has one text.

use std::fmt::{self, Write};

use crate::schema::{Absent, Field, Flaw, Id, Int, Root, Schema, Type, Variant};

/// A text that is no schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError {
    /// The number of the line, from 1; 0: all of it.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "not a schema: {}", self.what),
            line => write!(f, "not a schema: line {line}: {}", self.what),
        }
    }
}

impl std::error::Error for ParseError {}

impl From<Flaw> for ParseError {
    fn from(flaw: Flaw) -> Self {
        Self { line: 0, what: flaw.to_string() }
    }
}

/// The types without parts, by their names.
const LEAVES: [(&str, Type); 7] = [
    ("bool", Type::Bool),
    ("f32", Type::F32),
    ("f64", Type::F64),
    ("char", Type::Char),
    ("str", Type::Str),
    ("bytes", Type::Bytes),
    ("nothing", Type::Nothing),
];

/// The type of that name, which has no parts.
pub(crate) fn leaf(name: &str) -> Option<Type> {
    let leaf = LEAVES.into_iter().find(|(known, _)| *known == name).map(|(_, leaf)| leaf);
    leaf.or_else(|| Int::named(name).map(Type::Int))
}

fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}

/// A name, quoted where that is needed.
struct Name<'a>(&'a str);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if is_plain(self.0) { f.write_str(self.0) } else { write!(f, "{}", Quoted(self.0)) }
    }
}

/// A text in quotes.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                c if is_escaped(c) => write!(f, "\\u{{{:x}}}", u32::from(c))?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

/// What would end a line for somebody.
fn is_escaped(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')
}

const fn mark(absent: Absent) -> &'static str {
    match absent {
        Absent::Refused => "",
        Absent::Default => "?",
        Absent::Unknown => "~",
    }
}

fn write_names(f: &mut fmt::Formatter<'_>, name: &str, aliases: &[String]) -> fmt::Result {
    write!(f, "{}", Name(name))?;
    aliases.iter().try_for_each(|alias| write!(f, " | {}", Name(alias)))
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(int) => f.write_str(int.name()),
            Self::Option(id) => write!(f, "option #{id}"),
            Self::Sequence(id) => write!(f, "sequence #{id}"),
            Self::Set(id) => write!(f, "set #{id}"),
            Self::Map(key, value) => write!(f, "map #{key} #{value}"),
            Self::Tuple(ids) => {
                f.write_str("tuple (")?;
                for (at, id) in ids.iter().enumerate() {
                    write!(f, "{}#{id}", if at == 0 { "" } else { ", " })?;
                }
                f.write_str(")")
            }
            Self::Struct { fields, denies_unknown } => {
                f.write_str(if *denies_unknown { "struct deny {" } else { "struct {" })?;
                for (at, field) in fields.iter().enumerate() {
                    f.write_str(if at == 0 { " " } else { ", " })?;
                    write_names(f, &field.name, &field.aliases)?;
                    write!(f, "{}: #{}", mark(field.absent), field.id)?;
                }
                f.write_str(" }")
            }
            Self::Enum { variants, other } => {
                f.write_str("enum {")?;
                for (at, variant) in variants.iter().enumerate() {
                    f.write_str(if at == 0 { " " } else { ", " })?;
                    write_names(f, &variant.name, &variant.aliases)?;
                    let mark = if *other == Some(at) { "*" } else { "" };
                    write!(f, "{mark}: #{}", variant.id)?;
                }
                f.write_str(" }")
            }
            Self::Unknown(why) => write!(f, "unknown {}", Quoted(why)),
            leaf => {
                let name = LEAVES.iter().find(|(_, known)| known == leaf).map(|(name, _)| *name);
                f.write_str(name.unwrap_or_default())
            }
        }
    }
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (root, id) in self.roots() {
            match root {
                Root::Argument { name, absent } => {
                    writeln!(f, "argument {}{}: #{id}", Name(name), mark(*absent))?;
                }
                other => writeln!(f, "{}: #{id}", other.name())?,
            }
        }
        for (id, it) in self.types().iter().enumerate() {
            writeln!(f, "#{id} {it}")?;
        }
        Ok(())
    }
}

/// What is left of a line.
struct Line<'a>(&'a str);

type Parsed<T> = Result<T, String>;

impl<'a> Line<'a> {
    fn eat(&mut self, text: &str) -> bool {
        let rest = self.0.strip_prefix(text);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn expect(&mut self, text: &str) -> Parsed<()> {
        if self.eat(text) { Ok(()) } else { Err(format!("expected `{text}`")) }
    }

    fn word(&mut self, is_part: impl Fn(u8) -> bool) -> &'a str {
        let len = self.0.bytes().position(|byte| !is_part(byte)).unwrap_or(self.0.len());
        let (word, rest) = self.0.split_at(len);
        self.0 = rest;
        word
    }

    fn id(&mut self) -> Parsed<Id> {
        self.expect("#")?;
        let digits = self.word(|byte| byte.is_ascii_digit());
        let id: Id = digits.parse().map_err(|_| "expected a number after `#`".to_owned())?;
        if id.to_string() == digits { Ok(id) } else { Err("a number begins with 0".to_owned()) }
    }

    fn name(&mut self) -> Parsed<String> {
        if !self.0.starts_with('"') {
            let name = self.word(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
            return if name.is_empty() {
                Err("expected a name".to_owned())
            } else {
                Ok(name.to_owned())
            };
        }
        let name = self.quoted()?;
        if is_plain(&name) { Err(format!("`{name}` needs no quotes")) } else { Ok(name) }
    }

    fn quoted(&mut self) -> Parsed<String> {
        self.expect("\"")?;
        let mut name = String::new();
        let mut chars = self.0.chars();
        loop {
            match chars.next().ok_or("a quote is not closed")? {
                '"' => break,
                '\\' => match chars.next() {
                    Some(c @ ('"' | '\\')) => name.push(c),
                    Some('u') => {
                        let (digits, rest) = chars
                            .as_str()
                            .strip_prefix('{')
                            .and_then(|rest| rest.split_once('}'))
                            .ok_or("expected `\\u{..}`")?;
                        let code = u32::from_str_radix(digits, 16).ok().and_then(char::from_u32);
                        let is_right =
                            |c: &char| is_escaped(*c) && format!("{:x}", u32::from(*c)) == digits;
                        name.push(code.filter(is_right).ok_or("a character needs no `\\u`")?);
                        chars = rest.chars();
                    }
                    _ => return Err("an unknown escape".to_owned()),
                },
                c if is_escaped(c) => return Err("a character needs `\\u`".to_owned()),
                c => name.push(c),
            }
        }
        self.0 = chars.as_str();
        Ok(name)
    }

    fn names(&mut self) -> Parsed<(String, Vec<String>)> {
        let name = self.name()?;
        let mut aliases = Vec::new();
        while self.eat(" | ") {
            aliases.push(self.name()?);
        }
        Ok((name, aliases))
    }

    fn absent(&mut self) -> Absent {
        if self.eat("?") {
            Absent::Default
        } else if self.eat("~") {
            Absent::Unknown
        } else {
            Absent::Refused
        }
    }

    /// What stands between braces.
    fn all<T>(&mut self, mut one: impl FnMut(&mut Self, usize) -> Parsed<T>) -> Parsed<Vec<T>> {
        let mut all = Vec::new();
        if self.eat(" }") {
            return Ok(all);
        }
        self.expect(" ")?;
        loop {
            all.push(one(self, all.len())?);
            if !self.eat(", ") {
                break;
            }
        }
        self.expect(" }").map(|()| all)
    }

    fn end(&self) -> Parsed<()> {
        if self.0.is_empty() { Ok(()) } else { Err("the line goes on".to_owned()) }
    }

    fn ty(&mut self) -> Parsed<Type> {
        let kind = self.word(|byte| byte.is_ascii_alphanumeric());
        Ok(match kind {
            "option" => {
                self.expect(" ")?;
                Type::Option(self.id()?)
            }
            "sequence" => {
                self.expect(" ")?;
                Type::Sequence(self.id()?)
            }
            "set" => {
                self.expect(" ")?;
                Type::Set(self.id()?)
            }
            "map" => {
                self.expect(" ")?;
                let key = self.id()?;
                self.expect(" ")?;
                Type::Map(key, self.id()?)
            }
            "tuple" => {
                self.expect(" (")?;
                let mut ids = Vec::new();
                while !self.eat(")") {
                    if !ids.is_empty() {
                        self.expect(", ")?;
                    }
                    ids.push(self.id()?);
                }
                Type::Tuple(ids)
            }
            "struct" => {
                let denies_unknown = self.eat(" deny");
                self.expect(" {")?;
                let fields = self.all(|line, _| {
                    let (name, aliases) = line.names()?;
                    let absent = line.absent();
                    line.expect(": ")?;
                    Ok(Field { name, aliases, absent, id: line.id()? })
                })?;
                Type::Struct { fields, denies_unknown }
            }
            "enum" => {
                self.expect(" {")?;
                let mut other = None;
                let variants = self.all(|line, at| {
                    let (name, aliases) = line.names()?;
                    if line.eat("*") && other.replace(at).is_some() {
                        return Err("a second `*`".to_owned());
                    }
                    line.expect(": ")?;
                    Ok(Variant { name, aliases, id: line.id()? })
                })?;
                Type::Enum { variants, other }
            }
            "unknown" => {
                self.expect(" ")?;
                Type::Unknown(self.quoted()?)
            }
            name => leaf(name).ok_or_else(|| "no such kind of type".to_owned())?,
        })
    }

    fn root(&mut self) -> Parsed<(Root, Id)> {
        let root = if self.eat("argument ") {
            let name = self.name()?;
            Root::Argument { name, absent: self.absent() }
        } else {
            let name = self.word(|byte| byte != b':');
            Root::named(name)
                .ok_or_else(|| "expected `argument`, `result` or the like".to_owned())?
        };
        self.expect(": ")?;
        Ok((root, self.id()?))
    }
}

/// Parses a schema.
///
/// # Errors
/// The text is not exactly that of a schema.
pub fn parse(text: &str) -> Result<Schema, ParseError> {
    let (mut roots, mut types) = (Vec::new(), Vec::new());
    let lines = text.split_terminator('\n');
    for (number, line) in lines.enumerate() {
        let at = |what: String| ParseError { line: number + 1, what };
        let mut line = Line(line);
        if line.0.starts_with('#') {
            let id = line.id().map_err(at)?;
            if id != types.len() {
                return Err(at(format!("expected type #{}", types.len())));
            }
            line.expect(" ").map_err(at)?;
            types.push(line.ty().map_err(at)?);
        } else if types.is_empty() {
            roots.push(line.root().map_err(at)?);
        } else {
            return Err(at("expected a type".to_owned()));
        }
        line.end().map_err(at)?;
    }
    if !text.is_empty() && !text.ends_with('\n') {
        return Err(ParseError { line: 0, what: "its end is missing".to_owned() });
    }
    Ok(Schema::new(types, roots)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
argument item: #0
argument \"a b\"?: #2
sent item: #8
result: #4
error: #9
#0 struct { id: #1, name | title | \"a\\u{a}\\\"\\\\\": #3, note?: #4, more~: #6 }
#1 u64
#2 u32
#3 str
#4 option #3
#5 tuple (#1, #0)
#6 sequence #5
#7 tuple ()
#8 map #3 #7
#9 enum { Gone: #7, Old | Older: #0, Other*: #10 }
#10 nothing
#11 struct deny { }
#12 set #3
#13 unknown \"it is \\\"deep\\\"\"
";

    #[test]
    fn a_text_is_written_as_it_was_read() {
        let schema = parse(TEXT).unwrap();
        assert_eq!(schema.to_string(), TEXT);
        assert_eq!(parse("").unwrap(), Schema::default());
        for name in ["bool", "f32", "f64", "char", "str", "bytes", "nothing", "i8", "u128"] {
            let text = format!("#0 {name}\n");
            assert_eq!(parse(&text).unwrap().to_string(), text);
        }
    }

    #[track_caller]
    fn refused(text: &str, what: &str) {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(what), "{text:?}: {error}");
    }

    #[test]
    fn what_is_not_written_so_is_refused() {
        refused("#0 u64", "its end is missing");
        refused("#0 u65\n", "line 1: no such kind");
        refused("#1 u64\n", "expected type #0");
        refused("#00 u64\n", "begins with 0");
        refused("#0 u64 \n", "the line goes on");
        refused("#0 u64\n\n", "line 2: expected a type");
        refused("#0 u64\nresult: #0\n", "line 2: expected a type");
        refused("reslut: #0\n#0 u64\n", "line 1: expected `argument`");
        refused("#0 struct { \"a\": #0 }\n", "needs no quotes");
        refused("#0 struct { \"\\u{61} \": #0 }\n", "needs no `\\u`");
        refused("#0 struct { \"\\n\": #0 }\n", "unknown escape");
        refused("#0 enum { A*: #1, B*: #1 }\n#1 nothing\n", "a second `*`");
        refused("#0 tuple (#1,#1)\n#1 u8\n", "expected `, `");
    }

    #[test]
    fn broken_invariants_are_refused() {
        refused("#0 option #1\n", "type #0 refers to a type that is missing");
        refused("result: #1\n#0 u8\n", "refers to a type that is missing");
        refused("#0 struct { a: #1, a: #1 }\n#1 u8\n", "uses a name twice");
        refused("#0 struct { a: #1 }\n#1 tuple (#2, #0)\n#2 u8\n", "contains another one");
        assert!(parse("#0 struct { a: #1 }\n#1 option #0\n").is_ok());
    }

    /// Each level twice the one before: 2^40 parts in forty lines.
    #[test]
    fn a_type_of_many_parts_is_refused() {
        let mut text = String::new();
        for id in 0..40 {
            let _ = writeln!(text, "#{id} tuple (#{next}, #{next})", next = id + 1);
        }
        text.push_str("#40 nothing\n");
        refused(&text, "parts");
        let deep: String = (0..3000).map(|id| format!("#{id} tuple (#{})\n", id + 1)).collect();
        assert!(parse(&(deep + "#3000 u8\n")).is_ok());
    }
}
