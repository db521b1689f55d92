//! Values of types that a schema describes: encoded by any serde format, and decoded by it.
//!
//! [`Data`] is a value to encode. What decoding makes is up to a [`Build`].

use std::fmt;

use serde::de::{
    DeserializeSeed, EnumAccess, Error as _, MapAccess, SeqAccess, VariantAccess, Visitor,
};
use serde::ser::{SerializeMap, SerializeSeq, SerializeTuple};
use serde::{Deserializer, Serialize, Serializer};

use crate::schema::{Id, Int, Schema, Type};

/// A value that fits its type.
#[derive(Debug)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Data {
    Bool(bool),
    Int(Int, i128),
    U128(u128),
    F32(f32),
    F64(f64),
    Char(char),
    Str(String),
    Bytes(Vec<u8>),
    Nothing,
    None,
    Some(Box<Data>),
    Sequence(Vec<Data>),
    Map(Vec<(Data, Data)>),
    Tuple(Vec<Data>),
    Variant(u32, Box<Data>),
}

impl Serialize for Data {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        macro_rules! int {
            ($method:ident, $value:expr) => {
                to.$method((*$value).try_into().map_err(serde::ser::Error::custom)?)
            };
        }
        match self {
            Self::Bool(value) => to.serialize_bool(*value),
            Self::Int(int, value) => match int {
                Int::I8 => int!(serialize_i8, value),
                Int::I16 => int!(serialize_i16, value),
                Int::I32 => int!(serialize_i32, value),
                Int::I64 => int!(serialize_i64, value),
                Int::I128 => to.serialize_i128(*value),
                Int::U8 => int!(serialize_u8, value),
                Int::U16 => int!(serialize_u16, value),
                Int::U32 => int!(serialize_u32, value),
                Int::U64 => int!(serialize_u64, value),
                Int::U128 => int!(serialize_u128, value),
            },
            Self::U128(value) => to.serialize_u128(*value),
            Self::F32(value) => to.serialize_f32(*value),
            Self::F64(value) => to.serialize_f64(*value),
            Self::Char(value) => to.serialize_char(*value),
            Self::Str(value) => to.serialize_str(value),
            Self::Bytes(value) => to.serialize_bytes(value),
            Self::Nothing => to.serialize_unit(),
            Self::None => to.serialize_none(),
            Self::Some(inner) => to.serialize_some(&**inner),
            Self::Sequence(all) => {
                let mut sequence = to.serialize_seq(Some(all.len()))?;
                all.iter().try_for_each(|item| sequence.serialize_element(item))?;
                sequence.end()
            }
            Self::Map(all) => {
                let mut map = to.serialize_map(Some(all.len()))?;
                all.iter().try_for_each(|(key, value)| map.serialize_entry(key, value))?;
                map.end()
            }
            Self::Tuple(parts) => {
                let mut tuple = to.serialize_tuple(parts.len())?;
                parts.iter().try_for_each(|part| tuple.serialize_element(part))?;
                tuple.end()
            }
            Self::Variant(at, inner) => to.serialize_newtype_variant("", *at, "", &**inner),
        }
    }
}

/// Makes values out of what is decoded.
pub trait Build {
    /// A value that was made.
    type Value;

    /// A `bool`.
    fn bool(&self, value: bool) -> Self::Value;
    /// An integer; a `u128` only if it fits.
    fn int(&self, value: i128) -> Self::Value;
    /// A `u128` that is larger than any `i128`.
    fn large(&self, value: u128) -> Self::Value;
    /// An `f32`.
    fn f32(&self, value: f32) -> Self::Value;
    /// An `f64`.
    fn f64(&self, value: f64) -> Self::Value;
    /// A `char`.
    fn char(&self, value: char) -> Self::Value;
    /// A text.
    fn str(&self, value: &str) -> Self::Value;
    /// A byte string.
    fn bytes(&self, value: &[u8]) -> Self::Value;
    /// A value without content.
    fn nothing(&self) -> Self::Value;
    /// An option without a value.
    fn none(&self) -> Self::Value;
    /// An option with a value.
    fn some(&self, value: Self::Value) -> Self::Value;
    /// A list.
    fn sequence(&self, items: Vec<Self::Value>) -> Self::Value;
    /// A map, in the order of the message. A key may come twice.
    fn map(&self, entries: Vec<(Self::Value, Self::Value)>) -> Self::Value;
    /// A tuple.
    fn tuple(&self, parts: Vec<Self::Value>) -> Self::Value;
    /// A struct: the names of its fields with their values. A name may come twice.
    fn fields(&self, fields: Vec<(&str, Self::Value)>) -> Self::Value;
    /// A variant of an enum, with what it holds.
    fn variant(&self, name: &str, contents: Option<Self::Value>) -> Self::Value;
}

/// Makes nothing: a value is only checked.
#[derive(Debug, Clone, Copy, Default)]
pub struct Nothing;

impl Build for Nothing {
    type Value = ();

    fn bool(&self, _: bool) {}
    fn int(&self, _: i128) {}
    fn large(&self, _: u128) {}
    fn f32(&self, _: f32) {}
    fn f64(&self, _: f64) {}
    fn char(&self, _: char) {}
    fn str(&self, _: &str) {}
    fn bytes(&self, _: &[u8]) {}
    fn nothing(&self) {}
    fn none(&self) {}
    fn some(&self, (): ()) {}
    fn sequence(&self, _: Vec<()>) {}
    fn map(&self, _: Vec<((), ())>) {}
    fn tuple(&self, _: Vec<()>) {}
    fn fields(&self, _: Vec<(&str, ())>) {}
    fn variant(&self, _: &str, _: Option<()>) {}
}

/// Decodes a value of a type.
#[derive(Debug)]
pub struct Seed<'t, B> {
    /// The schema of the type.
    pub schema: &'t Schema,
    /// The type of the value.
    pub id: Id,
    /// Makes the value.
    pub build: &'t B,
}

impl<B> Clone for Seed<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for Seed<'_, B> {}

impl<'t, B> Seed<'t, B> {
    fn of(self, id: Id) -> Self {
        Self { id, ..self }
    }

    fn ty(self) -> &'t Type {
        self.schema.get(self.id)
    }
}

impl<'de, B: Build> DeserializeSeed<'de> for Seed<'_, B> {
    type Value = B::Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<B::Value, D::Error> {
        match self.ty() {
            Type::Bool => from.deserialize_bool(self),
            Type::Int(int) => match int {
                Int::I8 => from.deserialize_i8(self),
                Int::I16 => from.deserialize_i16(self),
                Int::I32 => from.deserialize_i32(self),
                Int::I64 => from.deserialize_i64(self),
                Int::I128 => from.deserialize_i128(self),
                Int::U8 => from.deserialize_u8(self),
                Int::U16 => from.deserialize_u16(self),
                Int::U32 => from.deserialize_u32(self),
                Int::U64 => from.deserialize_u64(self),
                Int::U128 => from.deserialize_u128(self),
            },
            Type::F32 => from.deserialize_f32(self),
            Type::F64 => from.deserialize_f64(self),
            Type::Char => from.deserialize_char(self),
            Type::Str => from.deserialize_str(self),
            Type::Bytes => from.deserialize_bytes(self),
            Type::Nothing => from.deserialize_unit(self),
            Type::Option(_) => from.deserialize_option(self),
            Type::Sequence(_) | Type::Set(_) => from.deserialize_seq(self),
            Type::Map(..) => from.deserialize_map(self),
            Type::Tuple(parts) => from.deserialize_tuple(parts.len(), self),
            // As encoded, where fields have no names.
            Type::Struct { fields, .. } => from.deserialize_tuple(fields.len(), self),
            Type::Enum { .. } => from.deserialize_enum("", &[], self),
            Type::Unknown(why) => Err(D::Error::custom(why)),
        }
    }
}

impl<'de, B: Build> Visitor<'de> for Seed<'_, B> {
    type Value = B::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of the type that the server describes")
    }

    fn visit_bool<E>(self, value: bool) -> Result<B::Value, E> {
        Ok(self.build.bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<B::Value, E> {
        Ok(self.build.int(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<B::Value, E> {
        Ok(self.build.int(value.into()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<B::Value, E> {
        Ok(self.build.int(value))
    }

    fn visit_u128<E>(self, value: u128) -> Result<B::Value, E> {
        Ok(i128::try_from(value)
            .map_or_else(|_| self.build.large(value), |value| self.build.int(value)))
    }

    fn visit_f32<E>(self, value: f32) -> Result<B::Value, E> {
        Ok(self.build.f32(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<B::Value, E> {
        Ok(self.build.f64(value))
    }

    fn visit_char<E>(self, value: char) -> Result<B::Value, E> {
        Ok(self.build.char(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<B::Value, E> {
        Ok(self.build.str(value))
    }

    fn visit_bytes<E>(self, value: &[u8]) -> Result<B::Value, E> {
        Ok(self.build.bytes(value))
    }

    fn visit_unit<E>(self) -> Result<B::Value, E> {
        Ok(self.build.nothing())
    }

    fn visit_none<E>(self) -> Result<B::Value, E> {
        Ok(self.build.none())
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<B::Value, D::Error> {
        match self.ty() {
            Type::Option(inner) => Ok(self.build.some(self.of(*inner).deserialize(from)?)),
            _ => Err(D::Error::custom("an option where another type is expected")),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<B::Value, A::Error> {
        let missing = || A::Error::custom("a part is missing");
        match self.ty() {
            Type::Sequence(item) | Type::Set(item) => {
                let mut all = Vec::new();
                while let Some(value) = from.next_element_seed(self.of(*item))? {
                    all.push(value);
                }
                Ok(self.build.sequence(all))
            }
            Type::Tuple(parts) => {
                let part = |id: &Id| from.next_element_seed(self.of(*id))?.ok_or_else(missing);
                let parts = parts.iter().map(part).collect::<Result<_, _>>()?;
                Ok(self.build.tuple(parts))
            }
            Type::Struct { fields, .. } => {
                let mut all = Vec::new();
                for field in fields {
                    let value = from.next_element_seed(self.of(field.id))?.ok_or_else(missing)?;
                    all.push((field.name.as_str(), value));
                }
                Ok(self.build.fields(all))
            }
            _ => Err(A::Error::custom("a list where another type is expected")),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<B::Value, A::Error> {
        let Type::Map(key, value) = self.ty() else {
            return Err(A::Error::custom("a map where another type is expected"));
        };
        let mut all = Vec::new();
        while let Some(entry) = from.next_entry_seed(self.of(*key), self.of(*value))? {
            all.push(entry);
        }
        Ok(self.build.map(all))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, from: A) -> Result<B::Value, A::Error> {
        let Type::Enum { variants, .. } = self.ty() else {
            return Err(A::Error::custom("an enum where another type is expected"));
        };
        let (at, contents) = from.variant_seed(Position)?;
        let found = usize::try_from(at).ok().and_then(|at| variants.get(at));
        let variant = found.ok_or_else(|| A::Error::custom(format!("no variant {at}")))?;
        if *self.schema.get(variant.id) == Type::Nothing {
            contents.unit_variant()?;
            return Ok(self.build.variant(&variant.name, None));
        }
        let inner = contents.newtype_variant_seed(self.of(variant.id))?;
        Ok(self.build.variant(&variant.name, Some(inner)))
    }
}

/// The variant of an enum.
struct Position;

impl<'de> DeserializeSeed<'de> for Position {
    type Value = u64;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<u64, D::Error> {
        from.deserialize_u32(self)
    }
}

impl Visitor<'_> for Position {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the position of a variant")
    }

    fn visit_u64<E>(self, value: u64) -> Result<u64, E> {
        Ok(value)
    }
}
