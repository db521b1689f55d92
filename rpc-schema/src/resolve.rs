//! Reads by a [`Plan`]: what a writer has written, into a type of another schema.
//!
//! A layer between the type and its format. The format is asked for what the writer has written;
//! the type is given what it asks for: fields and variants by name, numbers of its own width. No
//! value is kept in between, and texts are borrowed from the message as without a plan.
//!
//! The format's own bounds on depth and memory hold: each level here is one of the format's.

mod access;
mod ask;
mod number;
mod other;
mod skip;

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, Visitor};

use self::access::Contents;
use self::ask::{
    Anything, Bool, ByteBuf, Bytes, Char, Enum, F32, F64, I8, I16, I32, I64, I128, Map, Maybe,
    Newtype, Seq, Str, String, Struct, Tuple, TupleStruct, U8, U16, U32, U64, U128, Unit,
    UnitStruct,
};
use self::other::Other;
use crate::plan::{Chosen, Op, OpId, Plan};

/// Where in a value, for errors.
#[derive(Clone, Copy)]
pub(crate) enum Step<'p> {
    Start,
    Field(&'p str),
    Variant(&'p str),
    Index(usize),
    Item,
    Key,
    Value,
}

/// A path, from the inside out.
#[derive(Clone, Copy)]
pub(crate) struct Path<'p> {
    parent: Option<&'p Path<'p>>,
    step: Step<'p>,
}

impl<'p> Path<'p> {
    pub(crate) const START: Path<'static> = Path { parent: None, step: Step::Start };

    pub(crate) fn then(&'p self, step: Step<'p>) -> Self {
        Self { parent: Some(self), step }
    }

    #[cold]
    pub(crate) fn error<E: Error>(&self, what: impl fmt::Display) -> E {
        E::custom(format_args!("{self}: {what}"))
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.step {
            Step::Start => Ok(()),
            Step::Field(name) => write!(f, ".{name}"),
            Step::Variant(name) => write!(f, "::{name}"),
            Step::Index(at) => write!(f, ".{at}"),
            Step::Item => f.write_str("[]"),
            Step::Key => f.write_str("{key}"),
            Step::Value => f.write_str("{value}"),
        }
    }
}

impl Plan {
    /// Reads by this plan what `seed` reads otherwise.
    pub fn seed<S>(&self, seed: S) -> Planned<'_, S> {
        Planned { plan: self, seed }
    }
}

/// A seed that reads by a plan.
#[derive(Debug, Clone)]
pub struct Planned<'p, S> {
    plan: &'p Plan,
    seed: S,
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Planned<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<S::Value, D::Error> {
        let Self { plan, seed } = self;
        Part { plan, op: plan.root, path: &Path::START, seed }.deserialize(from)
    }
}

/// Where reading has come to.
#[derive(Clone, Copy)]
pub(crate) struct At<'p> {
    pub(crate) plan: &'p Plan,
    pub(crate) op: OpId,
    pub(crate) path: &'p Path<'p>,
}

/// A part of a value, and the seed that reads it.
pub(crate) struct Part<'p, S> {
    pub(crate) plan: &'p Plan,
    pub(crate) op: OpId,
    pub(crate) path: &'p Path<'p>,
    pub(crate) seed: S,
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Part<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<S::Value, D::Error> {
        let Self { plan, op, path, seed } = self;
        match &plan.ops[op] {
            // From here on nothing differs.
            Op::Same => seed.deserialize(from),
            _ => seed.deserialize(Resolved { at: At { plan, op, path }, from }),
        }
    }
}

macro_rules! asks {
    ($($method:ident($($arg:ident: $ty:ty),*) $ask:expr;)*) => {$(
        fn $method<V: Visitor<'de>>(self, $($arg: $ty,)* visitor: V) -> Result<V::Value, D::Error> {
            self.read($ask, visitor)
        }
    )*};
}

/// A deserializer of what differs.
struct Resolved<'p, D> {
    at: At<'p>,
    from: D,
}

impl<'de, 'p, D: Deserializer<'de>> Resolved<'p, D> {
    fn read<A: Other, V: Visitor<'de>>(self, ask: A, visitor: V) -> Result<V::Value, D::Error> {
        let Self { at, from } = self;
        match &at.plan.ops[at.op] {
            Op::Same => ask.of(from, visitor),
            Op::Refused(what) => Err(at.path.error(what)),
            Op::Unwrap(op) => {
                from.deserialize_option(Unwrap { at: At { op: *op, ..at }, ask, visitor })
            }
            op => ask.of_other(op, Self { at, from }, visitor),
        }
    }

    /// The part that another op reads.
    fn then(self, op: OpId) -> Self {
        Self { at: At { op, ..self.at }, from: self.from }
    }

    fn mismatch<T>(&self) -> Result<T, D::Error> {
        Err(self.at.path.error("the type asks for something else than its schema says"))
    }
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Resolved<'_, D> {
    type Error = D::Error;

    fn is_human_readable(&self) -> bool {
        self.from.is_human_readable()
    }

    asks! {
        deserialize_any() Anything();
        deserialize_bool() Bool();
        deserialize_i8() I8();
        deserialize_i16() I16();
        deserialize_i32() I32();
        deserialize_i64() I64();
        deserialize_i128() I128();
        deserialize_u8() U8();
        deserialize_u16() U16();
        deserialize_u32() U32();
        deserialize_u64() U64();
        deserialize_u128() U128();
        deserialize_f32() F32();
        deserialize_f64() F64();
        deserialize_char() Char();
        deserialize_str() Str();
        deserialize_string() String();
        deserialize_bytes() Bytes();
        deserialize_byte_buf() ByteBuf();
        deserialize_option() Maybe();
        deserialize_unit() Unit();
        deserialize_unit_struct(name: &'static str) UnitStruct(name);
        deserialize_newtype_struct(name: &'static str) Newtype(name);
        deserialize_seq() Seq();
        deserialize_tuple(len: usize) Tuple(len);
        deserialize_tuple_struct(name: &'static str, len: usize) TupleStruct(name, len);
        deserialize_map() Map();
        deserialize_struct(name: &'static str, fields: &'static [&'static str])
            Struct(name, fields);
        deserialize_enum(name: &'static str, variants: &'static [&'static str])
            Enum(name, variants);
        deserialize_identifier() Anything();
        deserialize_ignored_any() Anything();
    }
}

/// Visits an option of which the reader takes the value.
struct Unwrap<'p, A, V> {
    at: At<'p>,
    ask: A,
    visitor: V,
}

impl<'de, A: Other, V: Visitor<'de>> Visitor<'de> for Unwrap<'_, A, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        Err(self.at.path.error("it is `None`, and here it must have a value"))
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<V::Value, D::Error> {
        Resolved { at: self.at, from }.read(self.ask, self.visitor)
    }
}

/// Visits an option of something that differs.
struct Optional<'p, V> {
    at: At<'p>,
    visitor: V,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Optional<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_none()
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_some(Resolved { at: self.at, from })
    }
}

/// Visits an enum.
struct Variants<'p, V> {
    at: At<'p>,
    chosen: &'p [Chosen],
    visitor: V,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Variants<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    fn visit_enum<A: serde::de::EnumAccess<'de>>(self, from: A) -> Result<V::Value, A::Error> {
        let (number, from) = from.variant_seed(skip::Number)?;
        let found = usize::try_from(number).ok().and_then(|at| self.chosen.get(at));
        let chosen = match found {
            Some(Chosen::Missing(name)) => {
                let path = self.at.path.then(Step::Variant(name));
                return Err(path.error("this variant of the writer is unknown here"));
            }
            Some(chosen) => chosen,
            None => {
                return Err(self.at.path.error(format_args!("the writer has no variant {number}")));
            }
        };
        self.visitor.visit_enum(Contents { at: self.at, chosen, from })
    }
}
