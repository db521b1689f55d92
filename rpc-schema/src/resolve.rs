//! Reads by a [`Plan`]: what a writer has written, into a type of another schema.
//!
//! A layer between the type and its format. The format is asked for what the writer has written;
//! the type is given what it asks for: fields and variants by name, numbers of its own width. No
//! value is kept in between, and texts are borrowed from the message as without a plan.
//!
//! The format's own bounds on depth and memory hold: each level here is one of the format's.

mod access;
mod number;
mod skip;

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, Visitor};

use self::access::{Contents, Entries, Fields, Parts};
use self::number::{Float, Whole};
use crate::plan::{Chosen, Op, OpId, Plan};
use crate::schema::Int;

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

/// What a type asks its format for.
#[derive(Clone, Copy)]
enum Ask {
    Bool,
    Int(Int),
    F32,
    F64,
    Char,
    Str,
    String,
    Bytes,
    ByteBuf,
    Option,
    Unit,
    UnitStruct(&'static str),
    Newtype(&'static str),
    Seq,
    Tuple(usize),
    TupleStruct(&'static str, usize),
    Map,
    Struct(&'static str, &'static [&'static str]),
    Enum(&'static str, &'static [&'static str]),
    Anything,
}

impl Ask {
    /// Asks a format.
    fn of<'de, D: Deserializer<'de>, V: Visitor<'de>>(
        self,
        from: D,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        match self {
            Self::Bool => from.deserialize_bool(visitor),
            Self::Int(int) => ask_int(int, from, visitor),
            Self::F32 => from.deserialize_f32(visitor),
            Self::F64 => from.deserialize_f64(visitor),
            Self::Char => from.deserialize_char(visitor),
            Self::Str => from.deserialize_str(visitor),
            Self::String => from.deserialize_string(visitor),
            Self::Bytes => from.deserialize_bytes(visitor),
            Self::ByteBuf => from.deserialize_byte_buf(visitor),
            Self::Option => from.deserialize_option(visitor),
            Self::Unit => from.deserialize_unit(visitor),
            Self::UnitStruct(name) => from.deserialize_unit_struct(name, visitor),
            Self::Newtype(name) => from.deserialize_newtype_struct(name, visitor),
            Self::Seq => from.deserialize_seq(visitor),
            Self::Tuple(len) => from.deserialize_tuple(len, visitor),
            Self::TupleStruct(name, len) => from.deserialize_tuple_struct(name, len, visitor),
            Self::Map => from.deserialize_map(visitor),
            Self::Struct(name, fields) => from.deserialize_struct(name, fields, visitor),
            Self::Enum(name, variants) => from.deserialize_enum(name, variants, visitor),
            Self::Anything => from.deserialize_any(visitor),
        }
    }
}

fn ask_int<'de, D: Deserializer<'de>, V: Visitor<'de>>(
    int: Int,
    from: D,
    visitor: V,
) -> Result<V::Value, D::Error> {
    match int {
        Int::I8 => from.deserialize_i8(visitor),
        Int::I16 => from.deserialize_i16(visitor),
        Int::I32 => from.deserialize_i32(visitor),
        Int::I64 => from.deserialize_i64(visitor),
        Int::I128 => from.deserialize_i128(visitor),
        Int::U8 => from.deserialize_u8(visitor),
        Int::U16 => from.deserialize_u16(visitor),
        Int::U32 => from.deserialize_u32(visitor),
        Int::U64 => from.deserialize_u64(visitor),
        Int::U128 => from.deserialize_u128(visitor),
    }
}

/// A deserializer of what differs.
struct Resolved<'p, D> {
    at: At<'p>,
    from: D,
}

impl<'de, D: Deserializer<'de>> Resolved<'_, D> {
    fn read<V: Visitor<'de>>(self, ask: Ask, visitor: V) -> Result<V::Value, D::Error> {
        let Self { at, from } = self;
        let At { plan, op, path } = at;
        match (&plan.ops[op], ask) {
            (Op::Same, ask) => ask.of(from, visitor),
            (Op::Refused(what), _) => Err(path.error(what)),
            (Op::Unwrap(op), ask) => {
                from.deserialize_option(Unwrap { at: At { op: *op, ..at }, ask, visitor })
            }
            // Has no bytes of its own.
            (_, Ask::Newtype(_)) => visitor.visit_newtype_struct(Self { at, from }),
            (Op::Some(op), Ask::Option) => {
                visitor.visit_some(Resolved { at: At { op: *op, ..at }, from })
            }
            (Op::Option(op), Ask::Option) => {
                from.deserialize_option(Optional { at: At { op: *op, ..at }, visitor })
            }
            (Op::Int(written), Ask::Int(to)) => {
                ask_int(*written, from, Whole { to, path, visitor })
            }
            (Op::Float(true), Ask::F32) => {
                from.deserialize_f64(Float { is_double: false, path, visitor })
            }
            (Op::Float(false), Ask::F64) => {
                from.deserialize_f32(Float { is_double: true, path, visitor })
            }
            (Op::Sequence(op), Ask::Seq) => {
                from.deserialize_seq(Parts::each(At { op: *op, ..at }, visitor))
            }
            (Op::Map(key, value), Ask::Map) => {
                from.deserialize_map(Entries::new(at, *key, *value, visitor))
            }
            (Op::Tuple(ops), Ask::Tuple(_) | Ask::TupleStruct(..)) => {
                from.deserialize_tuple(ops.len(), Parts::tuple(at, ops, visitor))
            }
            (Op::Struct(parts), Ask::Struct(..)) => {
                from.deserialize_tuple(parts.len(), Fields::new(at, parts, visitor))
            }
            (Op::Enum(chosen), Ask::Enum(name, variants)) => {
                from.deserialize_enum(name, variants, Variants { at, chosen, visitor })
            }
            _ => Err(path.error("the type asks for something else than its schema says")),
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

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Resolved<'_, D> {
    type Error = D::Error;

    fn is_human_readable(&self) -> bool {
        self.from.is_human_readable()
    }

    asks! {
        deserialize_any() Ask::Anything;
        deserialize_bool() Ask::Bool;
        deserialize_i8() Ask::Int(Int::I8);
        deserialize_i16() Ask::Int(Int::I16);
        deserialize_i32() Ask::Int(Int::I32);
        deserialize_i64() Ask::Int(Int::I64);
        deserialize_i128() Ask::Int(Int::I128);
        deserialize_u8() Ask::Int(Int::U8);
        deserialize_u16() Ask::Int(Int::U16);
        deserialize_u32() Ask::Int(Int::U32);
        deserialize_u64() Ask::Int(Int::U64);
        deserialize_u128() Ask::Int(Int::U128);
        deserialize_f32() Ask::F32;
        deserialize_f64() Ask::F64;
        deserialize_char() Ask::Char;
        deserialize_str() Ask::Str;
        deserialize_string() Ask::String;
        deserialize_bytes() Ask::Bytes;
        deserialize_byte_buf() Ask::ByteBuf;
        deserialize_option() Ask::Option;
        deserialize_unit() Ask::Unit;
        deserialize_unit_struct(name: &'static str) Ask::UnitStruct(name);
        deserialize_newtype_struct(name: &'static str) Ask::Newtype(name);
        deserialize_seq() Ask::Seq;
        deserialize_tuple(len: usize) Ask::Tuple(len);
        deserialize_tuple_struct(name: &'static str, len: usize) Ask::TupleStruct(name, len);
        deserialize_map() Ask::Map;
        deserialize_struct(name: &'static str, fields: &'static [&'static str])
            Ask::Struct(name, fields);
        deserialize_enum(name: &'static str, variants: &'static [&'static str])
            Ask::Enum(name, variants);
        deserialize_identifier() Ask::Anything;
        deserialize_ignored_any() Ask::Anything;
    }
}

/// Visits an option of which the reader takes the value.
struct Unwrap<'p, V> {
    at: At<'p>,
    ask: Ask,
    visitor: V,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Unwrap<'_, V> {
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
