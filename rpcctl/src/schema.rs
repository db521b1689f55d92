//! The types of a method, from the lines in which a server describes them.
//!
//! Lines come from a peer: whatever they say, each is used once, so the tree is no larger than they are.

use std::cell::Cell;
use std::collections::HashMap;

use serde_json::{Value, json};

/// Longest path that is looked into, bytes: each level takes some.
const MAX_PATH: usize = 1024;
/// Most types of a method.
const MAX_TYPES: usize = 1 << 16;
/// Deepest value that is shown as an example.
const EXAMPLE_DEPTH: usize = 8;
/// Longest example, about, bytes.
const EXAMPLE_BYTES: usize = 1 << 14;

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
        self.lines.contains_key(path).then(|| self.add(path.to_owned(), false, &mut Vec::new()))
    }

    pub(crate) fn get(&self, id: Id) -> &Type {
        &self.types[id]
    }

    fn add(&mut self, path: String, is_variant: bool, around: &mut Vec<Around>) -> Id {
        let id = self.types.len();
        self.types.push(Type::Unknown("its type does not end"));
        if id >= MAX_TYPES || path.len() > MAX_PATH {
            return id;
        }
        // A line is used once: where names are there twice, paths would come again and again.
        let what = self.lines.remove(&path).unwrap_or_default();
        if let Some(levels) = what.strip_prefix("itself, ") {
            return ancestor(levels, around).unwrap_or_else(|| {
                self.types[id] = Type::Unknown("it is inside itself, in a way that is not known");
                id
            });
        }
        self.types[id] = self.find(id, &path, &what, is_variant, around);
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
        if let Some((_, int)) = Int::ALL.iter().find(|(name, _)| *name == what) {
            return Type::Int(*int);
        }
        let is_tuple = what.starts_with("tuple of ");
        let depth = around.len();
        // Options and lists have no name, and are not counted.
        if is_tuple || what.starts_with("struct {") || what.starts_with("enum {") {
            // A variant with fields belongs to its enum, and one that holds a struct does not: they
            // look alike.
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
        let room = MAX_TYPES.saturating_sub(self.types.len());
        if let Some(count) = count.filter(|count| *count <= room.min(self.lines.len())) {
            let part = |at: usize| self.add(format!("{path}.{at}"), false, around);
            return Type::Tuple((0..count).map(part).collect());
        }
        let names = |kind: &str| {
            let names = what.strip_prefix(kind)?.strip_prefix(" { ")?.strip_suffix(" }")?;
            let names = names.split(", ").filter(|name| !name.is_empty()).take(room + 1);
            let names: Vec<_> = names.map(str::to_owned).collect();
            (names.len() <= room).then_some(names)
        };
        if let Some(names) = names("struct") {
            let mut field =
                |name: String| (name.clone(), self.add(format!("{path}.{name}"), false, around));
            return Type::Struct(names.into_iter().map(&mut field).collect());
        }
        if let Some(names) = names("enum") {
            let mut variant =
                |name: String| (name.clone(), self.add(format!("{path}::{name}"), true, around));
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

    /// Why values of a type cannot be read or written; `None` where they can.
    pub(crate) fn unknown(&self, id: Id) -> Option<&'static str> {
        let (mut seen, mut left) = (vec![false; self.types.len()], vec![id]);
        while let Some(id) = left.pop() {
            if std::mem::replace(&mut seen[id], true) {
                continue;
            }
            match self.get(id) {
                Type::Unknown(why) => return Some(why),
                Type::Option(inner) | Type::Sequence(inner) => left.push(*inner),
                Type::Map(key, value) => left.extend([*key, *value]),
                Type::Tuple(parts) => left.extend(parts),
                Type::Struct(named) | Type::Enum(named) => {
                    left.extend(named.iter().map(|(_, id)| *id));
                }
                _ => {}
            }
        }
        None
    }

    /// A value that fits, if there is one of moderate size.
    pub(crate) fn example(&self, id: Id) -> Value {
        self.example_at(id, 0, &Cell::new(EXAMPLE_BYTES))
    }

    fn example_at(&self, id: Id, depth: usize, room: &Cell<usize>) -> Value {
        let take = |bytes: usize| room.set(room.get().saturating_sub(bytes));
        let has_room = || room.get() > 0;
        take(4);
        let inner = |id: &Id| self.example_at(*id, depth + 1, room);
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
            Type::Tuple(parts) => parts.iter().take_while(|_| has_room()).map(inner).collect(),
            Type::Struct(fields) => {
                let fields = fields.iter().take_while(|_| has_room()).map(|(name, id)| {
                    take(name.len());
                    (name.clone(), inner(id))
                });
                Value::Object(fields.collect())
            }
            Type::Enum(variants) => match variants.first() {
                Some((name, id)) => {
                    take(name.len());
                    match self.get(*id) {
                        Type::Nothing => json!(name),
                        _ => json!({ name: inner(id) }),
                    }
                }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn types(lines: &[&str]) -> Types {
        Types::new(&lines.iter().map(|&line| line.to_owned()).collect::<Vec<_>>())
    }

    /// The field of a variant was taken for one more named type, so `itself` was the variant.
    #[test]
    fn a_variant_of_any_name_is_no_type_of_its_own() {
        for name in ["two-way", "two.way", "two::way", "TwoWay"] {
            let mut types = types(&[
                &format!("0: enum {{ leaf, {name} }}"),
                "0::leaf: nothing",
                &format!("0::{name}: struct {{ left }}"),
                &format!("0::{name}.left: option"),
                &format!("0::{name}.left?: itself, 1 up"),
            ]);
            let id = types.at("0").unwrap();
            let Type::Enum(variants) = types.get(id).clone() else { panic!("{types:?}") };
            let Type::Struct(fields) = types.get(variants[1].1).clone() else {
                panic!("{types:?}")
            };
            let Type::Option(left) = *types.get(fields[0].1) else { panic!("{types:?}") };
            assert!(matches!(types.get(left), Type::Unknown(_)), "{name}: {:?}", types.get(left));
            assert!(types.unknown(id).is_some_and(|why| why.contains("inside itself")));
        }
    }

    #[test]
    fn a_type_inside_itself_is_known_as_a_whole() {
        let mut types = types(&[
            "0: struct { next, value }",
            "0.next: option",
            "0.next?: itself, 1 up",
            "0.value: u8",
        ]);
        let id = types.at("0").unwrap();
        assert_eq!(types.unknown(id), None);
        assert_eq!(types.example(id), json!({ "next": null, "value": 0 }));
    }

    /// Forty lines with each name twice were 2^40 types.
    #[test]
    fn a_hostile_schema_is_no_larger_than_its_lines() {
        let mut lines = Vec::new();
        let mut path = "0".to_owned();
        for _ in 0..40 {
            lines.push(format!("{path}: struct {{ a, a }}"));
            path.push_str(".a");
        }
        let mut twice = Types::new(&lines);
        let id = twice.at("0").unwrap();
        assert!(twice.types.len() <= 2 * lines.len() + 1, "{}", twice.types.len());
        assert!(twice.unknown(id).is_some());
        let names = "a, ".repeat(MAX_TYPES + 1);
        let mut wide = types(&[&format!("0: struct {{ {names} }}")]);
        let id = wide.at("0").unwrap();
        assert!(wide.types.len() <= MAX_TYPES && wide.unknown(id).is_some());
    }

    /// Eight levels of a hundred fields were 10^16 values.
    #[test]
    fn an_example_is_bounded_in_width() {
        let names: Vec<_> = (0..100).map(|at| format!("f{at}")).collect();
        let mut lines = vec![format!("0: struct {{ {} }}", names.join(", "))];
        lines.extend(names.iter().map(|name| format!("0.{name}: itself, 1 up")));
        let mut types = Types::new(&lines);
        let id = types.at("0").unwrap();
        assert_eq!(types.unknown(id), None);
        let length = types.example(id).to_string().len();
        assert!(length < 4 * EXAMPLE_BYTES, "{length}");
    }
}
