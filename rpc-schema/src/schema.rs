//! Schemas as data: the types of a method as a graph.
//!
//! Owns what a well-formed schema is. Schemas come from peers, so what is in one never makes its
//! reader work without bound.
//!
//! Invariants of a [`Schema`]:
//! 1. Every id in it is the id of one of its types.
//! 2. The names of a struct's fields are distinct, as are those of an enum's variants.
//! 3. A type contains itself only within an option, a list, a map or an enum, so that each level of
//!    a value takes bytes.
//! 4. Without these, a type has at most [`MAX_PARTS`] parts, counted in full.

use std::collections::HashSet;
use std::fmt;

/// Maximum number of types in a schema.
pub const MAX_TYPES: usize = 1 << 16;
/// Maximum number of parts of a type, without what options, lists, maps and enums contain.
pub const MAX_PARTS: usize = 1 << 12;

/// A kind of integer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Int {
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
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::I128,
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
        Self::U128,
    ];

    /// Its name in Rust.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::I128 => "i128",
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
            Self::U128 => "u128",
        }
    }

    /// The integer of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|int| int.name() == name)
    }
}

/// The index of a type in its schema.
pub type Id = usize;

/// What a reader makes of a message that lacks a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Absent {
    /// It refuses the message.
    Refused,
    /// It takes a default: `#[serde(default)]`, `#[rpc(default)]`, or an `Option`.
    Default,
    /// This is not known before it is tried.
    Unknown,
}

/// A field of a struct.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Field {
    /// The name that is written.
    pub name: String,
    /// Other names that are read.
    pub aliases: Vec<String>,
    /// What a reader does without it.
    pub absent: Absent,
    /// The type of its value.
    pub id: Id,
}

/// A variant of an enum.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Variant {
    /// The name that is written.
    pub name: String,
    /// Other names that are read.
    pub aliases: Vec<String>,
    /// What it holds: [`Type::Nothing`], a value, a tuple or a struct.
    pub id: Id,
}

/// A type.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Type {
    /// `bool`.
    Bool,
    /// An integer.
    Int(Int),
    /// `f32`.
    F32,
    /// `f64`.
    F64,
    /// `char`.
    Char,
    /// A text.
    Str,
    /// A byte string.
    Bytes,
    /// `()`, a unit struct, a variant without content.
    Nothing,
    /// An option of that type.
    Option(Id),
    /// A list of that type.
    Sequence(Id),
    /// A list of that type that becomes a set at its reader: equal items are one.
    Set(Id),
    /// A map: keys and values.
    Map(Id, Id),
    /// A tuple or an array.
    Tuple(Vec<Id>),
    /// A struct.
    Struct {
        /// In the order of a message.
        fields: Vec<Field>,
        /// `#[serde(deny_unknown_fields)]`.
        denies_unknown: bool,
    },
    /// An enum.
    Enum {
        /// By their numbers in a message.
        variants: Vec<Variant>,
        /// The position of the variant that stands for all unknown ones: `#[serde(other)]`.
        other: Option<usize>,
    },
    /// An unknown type, with the reason.
    Unknown(String),
}

impl Type {
    /// The types in it.
    pub fn parts(&self) -> impl Iterator<Item = Id> + '_ {
        let (ids, fields, variants): (&[Id], &[Field], &[Variant]) = match self {
            Self::Tuple(ids) => (ids, &[], &[]),
            Self::Struct { fields, .. } => (&[], fields, &[]),
            Self::Enum { variants, .. } => (&[], &[], variants),
            _ => (&[], &[], &[]),
        };
        let (first, second) = match self {
            Self::Option(id) | Self::Sequence(id) | Self::Set(id) => (Some(*id), None),
            Self::Map(key, value) => (Some(*key), Some(*value)),
            _ => (None, None),
        };
        let named = fields.iter().map(|it| it.id).chain(variants.iter().map(|it| it.id));
        ids.iter().copied().chain(named).chain(first).chain(second)
    }

    /// The same type with other ids.
    #[must_use]
    pub fn with_ids(mut self, mut new: impl FnMut(Id) -> Id) -> Self {
        match &mut self {
            Self::Option(id) | Self::Sequence(id) | Self::Set(id) => *id = new(*id),
            Self::Map(key, value) => (*key, *value) = (new(*key), new(*value)),
            Self::Tuple(ids) => ids.iter_mut().for_each(|id| *id = new(*id)),
            Self::Struct { fields, .. } => fields.iter_mut().for_each(|it| it.id = new(it.id)),
            Self::Enum { variants, .. } => variants.iter_mut().for_each(|it| it.id = new(it.id)),
            _ => {}
        }
        self
    }

    /// Whether its parts follow one another, without a byte that says how many there are.
    fn is_product(&self) -> bool {
        matches!(self, Self::Tuple(_) | Self::Struct { .. })
    }
}

/// What a type is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Root {
    /// The next argument.
    Argument {
        /// Its name.
        name: String,
        /// What a server does without it.
        absent: Absent,
    },
    /// An item of the stream of arguments.
    SentItem,
    /// An item of the stream of results.
    Item,
    /// What the method returns.
    Result,
    /// The method's own error.
    Error,
    /// The error of an early refusal of a stream.
    Refusal,
}

impl Root {
    /// What it is called in a text. An argument is called by its name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Argument { name, .. } => name,
            Self::SentItem => "sent item",
            Self::Item => "item",
            Self::Result => "result",
            Self::Error => "error",
            Self::Refusal => "refusal",
        }
    }

    /// The one of that name, which is no argument.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::SentItem, Self::Item, Self::Result, Self::Error, Self::Refusal];
        all.into_iter().find(|root| root.name() == name)
    }
}

/// Why types are no schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Flaw {
    /// More than [`MAX_TYPES`] types.
    TooManyTypes,
    /// A type refers to a type that is not there.
    NoSuchType(Id),
    /// Two fields or variants of this type have one name.
    NameTwice(Id),
    /// The type contains itself, and takes no byte for it.
    Endless(Id),
    /// The type has more than [`MAX_PARTS`] parts.
    TooManyParts(Id),
    /// The enum's variant for unknown ones is none of its variants.
    NoSuchVariant(Id),
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyTypes => write!(f, "it has more than {MAX_TYPES} types"),
            Self::NoSuchType(id) => write!(f, "type #{id} refers to a type that is missing"),
            Self::NameTwice(id) => write!(f, "type #{id} uses a name twice"),
            Self::Endless(id) => write!(f, "every value of type #{id} contains another one"),
            Self::TooManyParts(id) => write!(f, "type #{id} has more than {MAX_PARTS} parts"),
            Self::NoSuchVariant(id) => write!(f, "type #{id} lacks its `other` variant"),
        }
    }
}

impl std::error::Error for Flaw {}

/// The types of a method.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Schema {
    types: Vec<Type>,
    roots: Vec<(Root, Id)>,
}

impl Schema {
    /// A schema of these types.
    ///
    /// # Errors
    /// An invariant is broken.
    pub fn new(types: Vec<Type>, roots: Vec<(Root, Id)>) -> Result<Self, Flaw> {
        if types.len() > MAX_TYPES {
            return Err(Flaw::TooManyTypes);
        }
        let is_missing = |id: Id| id >= types.len();
        for (id, it) in types.iter().enumerate() {
            if it.parts().any(is_missing) {
                return Err(Flaw::NoSuchType(id));
            }
            check_names(id, it)?;
        }
        if let Some((_, id)) = roots.iter().find(|(_, id)| is_missing(*id)) {
            return Err(Flaw::NoSuchType(*id));
        }
        match flaws(&types).first() {
            Some(flaw) => Err(*flaw),
            None => Ok(Self { types, roots }),
        }
    }

    /// A type.
    ///
    /// # Panics
    /// The id is not of this schema.
    #[must_use]
    pub fn get(&self, id: Id) -> &Type {
        &self.types[id]
    }

    /// All types, by their ids.
    #[must_use]
    pub fn types(&self) -> &[Type] {
        &self.types
    }

    /// What the types are for.
    #[must_use]
    pub fn roots(&self) -> &[(Root, Id)] {
        &self.roots
    }

    /// The arguments, in their order.
    pub fn arguments(&self) -> impl Iterator<Item = (&str, Id)> {
        let arguments = self.roots.iter().filter(|(it, _)| matches!(it, Root::Argument { .. }));
        arguments.map(|(root, id)| (root.name(), *id))
    }

    /// The type of what is no argument.
    #[must_use]
    pub fn root(&self, root: &Root) -> Option<Id> {
        self.roots.iter().find(|(it, _)| it == root).map(|(_, id)| *id)
    }

    /// Why values of a type cannot be converted; `None` if they can.
    #[must_use]
    pub fn unknown(&self, id: Id) -> Option<&str> {
        let (mut seen, mut left) = (vec![false; self.types.len()], vec![id]);
        while let Some(id) = left.pop() {
            if std::mem::replace(&mut seen[id], true) {
                continue;
            }
            match self.get(id) {
                Type::Unknown(why) => return Some(why),
                known => left.extend(known.parts()),
            }
        }
        None
    }

    /// About how much memory it takes, bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let names = |name: &String, aliases: &[String]| {
            name.len() + size_of_val(aliases) + aliases.iter().map(String::len).sum::<usize>()
        };
        let parts = |it: &Type| match it {
            Type::Tuple(ids) => size_of_val(&**ids),
            Type::Struct { fields, .. } => {
                let names = fields.iter().map(|it| names(&it.name, &it.aliases));
                size_of_val(&**fields) + names.sum::<usize>()
            }
            Type::Enum { variants, .. } => {
                let names = variants.iter().map(|it| names(&it.name, &it.aliases));
                size_of_val(&**variants) + names.sum::<usize>()
            }
            Type::Unknown(why) => why.len(),
            _ => 0,
        };
        let roots: usize = self.roots.iter().map(|(root, _)| root.name().len()).sum();
        let types: usize = self.types.iter().map(parts).sum();
        size_of_val(&*self.types) + types + size_of_val(&*self.roots) + roots
    }

    /// The types and what they are for.
    #[must_use]
    pub fn into_parts(self) -> (Vec<Type>, Vec<(Root, Id)>) {
        (self.types, self.roots)
    }
}

fn check_names(id: Id, it: &Type) -> Result<(), Flaw> {
    let mut seen = HashSet::new();
    let is_new = match it {
        Type::Struct { fields, .. } => fields.iter().all(|field| seen.insert(&field.name)),
        Type::Enum { variants, other } => {
            if other.is_some_and(|at| at >= variants.len()) {
                return Err(Flaw::NoSuchVariant(id));
            }
            variants.iter().all(|variant| seen.insert(&variant.name))
        }
        _ => true,
    };
    if is_new { Ok(()) } else { Err(Flaw::NameTwice(id)) }
}

/// Types that break the last two invariants. All their ids must be in there.
pub(crate) fn flaws(types: &[Type]) -> Vec<Flaw> {
    #[derive(Clone, Copy)]
    enum State {
        New,
        Open,
        /// With the number of its parts.
        Done(usize),
    }
    let mut states = vec![State::New; types.len()];
    let mut flaws = Vec::new();
    // Not recursive: a peer decides how deep this goes.
    let mut stack: Vec<(Id, bool)> = (0..types.len()).rev().map(|id| (id, false)).collect();
    while let Some((id, is_second)) = stack.pop() {
        let it = &types[id];
        match states[id] {
            State::New if it.is_product() => {
                states[id] = State::Open;
                stack.push((id, true));
                for part in it.parts() {
                    match states[part] {
                        State::New => stack.push((part, false)),
                        State::Open => flaws.push(Flaw::Endless(id)),
                        State::Done(_) => {}
                    }
                }
            }
            State::New => states[id] = State::Done(1),
            State::Open if is_second => {
                let parts = it.parts().map(|part| match states[part] {
                    State::Done(count) => count,
                    _ => 1,
                });
                let count = parts.fold(1, usize::saturating_add);
                if count > MAX_PARTS {
                    flaws.push(Flaw::TooManyParts(id));
                }
                states[id] = State::Done(if count > MAX_PARTS { 1 } else { count });
            }
            // It was put on the stack again by a type that was opened after it, and contains it.
            State::Open | State::Done(_) => {}
        }
    }
    flaws
}
