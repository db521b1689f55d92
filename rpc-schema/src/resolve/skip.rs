//! Reads what nobody takes.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess};
use serde::de::{VariantAccess, Visitor};

use crate::plan::Plan;
use crate::schema::{Id, Int, Type};

/// Skips a value of a type of the writer.
#[derive(Clone, Copy)]
pub(super) struct Skip<'p> {
    pub(super) plan: &'p Plan,
    pub(super) id: Id,
}

impl<'p> Skip<'p> {
    fn of(self, id: Id) -> Self {
        Self { id, ..self }
    }

    fn ty(self) -> &'p Type {
        self.plan.writer.get(self.id)
    }

    /// What takes no bytes is not looked at: there may be very much of it.
    fn is_empty(self) -> bool {
        self.plan.empty[self.id]
    }
}

impl<'de> DeserializeSeed<'de> for Skip<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        if self.is_empty() {
            return from.deserialize_unit(self);
        }
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
            Type::Struct { fields, .. } => from.deserialize_tuple(fields.len(), self),
            Type::Enum { .. } => from.deserialize_enum("", &[], self),
            Type::Unknown(why) => Err(D::Error::custom(why)),
        }
    }
}

macro_rules! ignore {
    ($($visit:ident $ty:ty),* $(,)?) => {$(
        fn $visit<E>(self, _: $ty) -> Result<(), E> {
            Ok(())
        }
    )*};
}

impl<'de> Visitor<'de> for Skip<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of the writer's type")
    }

    ignore! {
        visit_bool bool, visit_i64 i64, visit_i128 i128, visit_u64 u64, visit_u128 u128,
        visit_f64 f64, visit_char char, visit_str &str, visit_bytes &[u8],
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        match self.ty() {
            Type::Option(inner) => self.of(*inner).deserialize(from),
            _ => Err(D::Error::custom("an option where another type is expected")),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<(), A::Error> {
        if let Type::Sequence(item) | Type::Set(item) = self.ty() {
            while from.next_element_seed(self.of(*item))?.is_some() {}
            return Ok(());
        }
        let mut parts = self.ty().parts();
        parts.try_for_each(|id| {
            from.next_element_seed(self.of(id))?
                .ok_or_else(|| A::Error::custom("a part is missing"))
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<(), A::Error> {
        let Type::Map(key, value) = self.ty() else {
            return Err(A::Error::custom("a map where another type is expected"));
        };
        while from.next_entry_seed(self.of(*key), self.of(*value))?.is_some() {}
        Ok(())
    }

    fn visit_enum<A: EnumAccess<'de>>(self, from: A) -> Result<(), A::Error> {
        let Type::Enum { variants, .. } = self.ty() else {
            return Err(A::Error::custom("an enum where another type is expected"));
        };
        let (at, contents) = from.variant_seed(Number)?;
        let found = usize::try_from(at).ok().and_then(|at| variants.get(at));
        let variant = found.ok_or_else(|| A::Error::custom(format!("no variant {at}")))?;
        match self.of(variant.id).is_empty() {
            true => contents.unit_variant(),
            false => contents.newtype_variant_seed(self.of(variant.id)),
        }
    }
}

/// The number of a variant.
pub(super) struct Number;

impl<'de> DeserializeSeed<'de> for Number {
    type Value = u64;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<u64, D::Error> {
        from.deserialize_u32(self)
    }
}

impl Visitor<'_> for Number {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the number of a variant")
    }

    fn visit_u64<E>(self, value: u64) -> Result<u64, E> {
        Ok(value)
    }
}
