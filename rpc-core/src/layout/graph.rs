//! The types that a trace has found, as a graph.
//!
//! The lines of a schema say what bytes a value has. The graph also says what its reader does with
//! other names and with fields that are missing.

use rpc_schema::schema::{Absent, Field, Id, Int, Type, Variant};

use super::tree::{self, Names, Node, Stranger, Tree, What};

impl Tree {
    /// Adds its types, and gives the first one.
    pub(super) fn add_types(&self, types: &mut Vec<Type>) -> Id {
        let first = types.len();
        // They have the numbers of their places, and what else is needed comes behind.
        let count = self.all().count();
        types.resize(first + count, unknown());
        for (at, node) in self.all() {
            types[first + at] = self.type_of(at, node, first, types);
        }
        first
    }

    fn type_of(&self, at: tree::Id, node: &Node, first: Id, types: &mut Vec<Type>) -> Type {
        if self.is_bytes(at) {
            return Type::Bytes;
        }
        let mut part = |part: usize| match self.part(at, part) {
            Some(part) => self.resolved(part, first),
            None => {
                types.push(unknown());
                types.len() - 1
            }
        };
        match &node.what {
            What::Leaf(name) => leaf(name),
            What::Option => Type::Option(part(0)),
            What::Sequence if node.is_set => Type::Set(part(0)),
            What::Sequence => Type::Sequence(part(0)),
            What::Map => Type::Map(part(0), part(1)),
            What::Tuple(len) => Type::Tuple((0..*len).map(part).collect()),
            What::Struct(names) => {
                let field = |position: usize| {
                    let (name, aliases) = all_names(names, position);
                    let absent = self.absent(at, node, position);
                    Field { name, aliases, absent, id: part(position) }
                };
                let fields = (0..names.len()).map(field).collect();
                Type::Struct { fields, denies_unknown: node.stranger == Some(Stranger::Refused) }
            }
            What::Enum(names) => {
                let variant = |position: usize| {
                    let (name, aliases) = all_names(names, position);
                    Variant { name, aliases, id: part(position) }
                };
                let variants = (0..names.len()).map(variant).collect();
                let other = match node.stranger {
                    Some(Stranger::Other(other)) => Some(other),
                    _ => None,
                };
                Type::Enum { variants, other }
            }
            // Only the root: elsewhere `resolved` gives the type itself.
            What::Itself(..) | What::Unseen | What::Anything(_) | What::More => unknown(),
        }
    }

    /// The type at a place; where that is a type around it, that one.
    fn resolved(&self, at: tree::Id, first: Id) -> Id {
        match self.get(at).map(|node| &node.what) {
            Some(What::Itself(_, outer)) => first + outer,
            _ => first + at,
        }
    }

    /// What the reader does without a field.
    fn absent(&self, at: tree::Id, node: &Node, field: usize) -> Absent {
        let is_needed = |part: &Node| part.is_needed;
        let part = self.part(at, field);
        if part.and_then(|part| self.get(part)).is_some_and(is_needed) {
            return Absent::Refused;
        }
        // One that takes no made-up value ends the run in which fields are left out.
        let has_dead = (0..self.parts_len(at)).any(|part| self.is_dead(self.part(at, part)));
        match node.was_bare && !has_dead {
            true => Absent::Default,
            false => Absent::Unknown,
        }
    }
}

fn unknown() -> Type {
    Type::Unknown("it could not be looked into".to_owned())
}

fn leaf(name: &str) -> Type {
    match name {
        "bool" => Type::Bool,
        "f32" => Type::F32,
        "f64" => Type::F64,
        "char" => Type::Char,
        "str" => Type::Str,
        "bytes" => Type::Bytes,
        "nothing" => Type::Nothing,
        name => Int::named(name).map_or_else(unknown, Type::Int),
    }
}

fn all_names(names: &Names, at: usize) -> (String, Vec<String>) {
    let mut all = names.all_of(at).into_iter().map(str::to_owned);
    (all.next().unwrap_or_default(), all.collect())
}
