//! The types of a method, from the lines in which a server describes them.
//!
//! Lines come from a peer: whatever they say, the tree is no larger than they are.

use std::collections::HashMap;

use serde_json::{Value, json};

/// Longest path that is looked into, bytes: each level takes some.
const MAX_PATH: usize = 1024;
/// Most types of a method.
const MAX_TYPES: usize = 1 << 16;
/// Deepest value that is shown as an example.
const EXAMPLE_DEPTH: usize = 8;

/// A kind of number without a fraction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Int {
    I8,
    I16,
    I32,
    I64,
    I128,
    U8,
    U16,
    U32,
    U64,
    U128,
}

impl Int {
    const ALL: [(&'static str, Self); 10] = [
        ("i8", Self::I8),
        ("i16", Self::I16),
        ("i32", Self::I32),
        ("i64", Self::I64),
        ("i128", Self::I128),
        ("u8", Self::U8),
        ("u16", Self::U16),
        ("u32", Self::U32),
        ("u64", Self::U64),
        ("u128", Self::U128),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, int)| *int == self).map_or("", |(name, _)| name)
    }
}

/// Where a type is among the [`Types`].
pub(crate) type Id = usize;

/// A type.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Type {
    Bool,
    Int(Int),
    F32,
    F64,
    Char,
    Str,
    Bytes,
    Nothing,
    Option(Id),
    Sequence(Id),
    Map(Id, Id),
    Tuple(Vec<Id>),
    Struct(Vec<(String, Id)>),
    Enum(Vec<(String, Id)>),
    /// It is not known what is there; the text says why.
    Unknown(&'static str),
}

/// All types of a method.
#[derive(Debug)]
pub(crate) struct Types {
    lines: HashMap<String, String>,
    types: Vec<Type>,
}

/// A type that others may be inside of.
struct Around {
    id: Id,
    is_tuple: bool,
}

impl Types {
    pub(crate) fn new(lines: &[String]) -> Self {
        let lines = lines.iter().filter_map(|line| line.split_once(": "));
        let lines = lines.map(|(path, what)| (path.to_owned(), what.to_owned())).collect();
        Self { lines, types: Vec::new() }
    }

    /// The type at a path; `None` where nothing is.
    pub(crate) fn at(&mut self, path: &str) -> Option<Id> {
        self.lines.contains_key(path).then(|| self.add(path.to_owned(), &mut Vec::new()))
    }

    pub(crate) fn get(&self, id: Id) -> &Type {
        &self.types[id]
    }

    fn add(&mut self, path: String, around: &mut Vec<Around>) -> Id {
        let id = self.types.len();
        self.types.push(Type::Unknown("its type does not end"));
        let what = self.lines.get(&path).cloned().unwrap_or_default();
        if let Some(levels) = what.strip_prefix("itself, ") {
            return ancestor(levels, around).unwrap_or_else(|| {
                self.types[id] = Type::Unknown("it is inside itself, in a way that is not known");
                id
            });
        }
        if path.len() <= MAX_PATH {
            self.types[id] = self.find(id, &path, &what, around);
        }
        id
    }

    fn find(&mut self, id: Id, path: &str, what: &str, around: &mut Vec<Around>) -> Type {
        if let Some((_, int)) = Int::ALL.iter().find(|(name, _)| *name == what) {
            return Type::Int(*int);
        }
        let is_tuple = what.starts_with("tuple of ");
        let depth = around.len();
        // Options and lists have no name, and are not counted.
        if is_tuple || what.starts_with("struct {") || what.starts_with("enum {") {
            // A variant with fields belongs to its enum.
            let is_variant = path.rsplit_once("::").is_some_and(|(outer, name)| {
                name.chars().all(|c| c.is_alphanumeric() || c == '_')
                    && self.lines.get(outer).is_some_and(|line| line.starts_with("enum {"))
            });
            around.push(Around { id, is_tuple: is_tuple || is_variant });
        }
        let found = match what {
            "bool" => Type::Bool,
            "f32" => Type::F32,
            "f64" => Type::F64,
            "char" => Type::Char,
            "str" => Type::Str,
            "bytes" => Type::Bytes,
            "nothing" => Type::Nothing,
            "option" => Type::Option(self.add(format!("{path}?"), around)),
            "sequence" => Type::Sequence(self.add(format!("{path}[]"), around)),
            "map" => {
                let key = self.add(format!("{path}{{key}}"), around);
                Type::Map(key, self.add(format!("{path}{{value}}"), around))
            }
            _ => self.parts(path, what, around),
        };
        around.truncate(depth);
        found
    }

    fn parts(&mut self, path: &str, what: &str, around: &mut Vec<Around>) -> Type {
        let count = what.strip_prefix("tuple of ").and_then(|count| count.parse().ok());
        let room = MAX_TYPES.saturating_sub(self.types.len()).min(self.lines.len());
        if let Some(count) = count.filter(|count| *count <= room) {
            let part = |at: usize| self.add(format!("{path}.{at}"), around);
            return Type::Tuple((0..count).map(part).collect());
        }
        let names = |kind: &str| {
            let names = what.strip_prefix(kind)?.strip_prefix(" { ")?.strip_suffix(" }")?;
            let names = names.split(", ").filter(|name| !name.is_empty());
            Some(names.map(str::to_owned).collect::<Vec<_>>())
        };
        if let Some(names) = names("struct") {
            let mut field =
                |name: String| (name.clone(), self.add(format!("{path}.{name}"), around));
            return Type::Struct(names.into_iter().map(&mut field).collect());
        }
        if let Some(names) = names("enum") {
            let mut variant =
                |name: String| (name.clone(), self.add(format!("{path}::{name}"), around));
            return Type::Enum(names.into_iter().map(&mut variant).collect());
        }
        Type::Unknown("the server does not know its type")
    }

    /// What is expected where this type is, for people.
    pub(crate) fn name(&self, id: Id) -> String {
        let named = |all: &[(String, Id)]| {
            all.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
        };
        match self.get(id) {
            Type::Bool => "true or false".to_owned(),
            Type::Int(int) => format!("a number ({})", int.name()),
            Type::F32 | Type::F64 => "a number".to_owned(),
            Type::Char => "text of one character".to_owned(),
            Type::Str => "text".to_owned(),
            Type::Bytes => "bytes: text, {\"hex\": \"00ff\"}, or numbers in brackets".to_owned(),
            Type::Nothing => "null".to_owned(),
            Type::Option(inner) => format!("null or {}", self.name(*inner)),
            Type::Sequence(_) => "a list".to_owned(),
            Type::Map(..) => "an object, or a list of [key, value]".to_owned(),
            Type::Tuple(parts) => format!("a list of {}", parts.len()),
            Type::Struct(fields) => format!("an object with {}", named(fields)),
            Type::Enum(variants) => format!("one of the variants {}", named(variants)),
            Type::Unknown(why) => format!("nothing that can be written ({why})"),
        }
    }

    /// A value that fits.
    pub(crate) fn example(&self, id: Id) -> Value {
        self.example_at(id, 0)
    }

    fn example_at(&self, id: Id, depth: usize) -> Value {
        let inner = |id: &Id| self.example_at(*id, depth + 1);
        match self.get(id) {
            Type::Bool => json!(false),
            Type::Int(_) => json!(0),
            Type::F32 | Type::F64 => json!(0.5),
            Type::Char => json!("c"),
            Type::Str | Type::Bytes => json!("text"),
            Type::Nothing | Type::Option(_) | Type::Unknown(_) => Value::Null,
            _ if depth == EXAMPLE_DEPTH => Value::Null,
            Type::Sequence(item) => json!([inner(item)]),
            Type::Map(..) => json!({}),
            Type::Tuple(parts) => parts.iter().map(inner).collect(),
            Type::Struct(fields) => {
                let fields = fields.iter().map(|(name, id)| (name.clone(), inner(id)));
                Value::Object(fields.collect())
            }
            Type::Enum(variants) => match variants.first() {
                Some((name, id)) if *self.get(*id) != Type::Nothing => json!({ name: inner(id) }),
                Some((name, _)) => json!(name),
                None => Value::Null,
            },
        }
    }
}

/// The type that is so many named types further out. Whether a tuple has a name is not said, so with
/// one between there it is not known.
fn ancestor(levels: &str, around: &[Around]) -> Option<Id> {
    let levels: usize = levels.strip_suffix(" up")?.parse().ok()?;
    let outer = around.get(around.len().checked_sub(levels)?..)?;
    let is_known = !outer.iter().any(|it| it.is_tuple);
    outer.first().filter(|_| is_known).map(|it| it.id)
}
