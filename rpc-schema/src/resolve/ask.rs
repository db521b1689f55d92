//! What a type asks its format for.
//!
//! Each question is a type of its own, so that a method of a deserializer compiles only what that
//! method can meet: users' types are compiled once for each format.

use serde::de::{Deserialize, Deserializer, Visitor};

use super::access::{Entries, Fields, Parts};
use super::number::Number;
use super::{Optional, Resolved, Variants};
use crate::plan::Op;

pub(super) trait Ask: Copy {
    /// Asks a format.
    fn of<'de, D: Deserializer<'de>, V: Visitor<'de>>(
        self,
        from: D,
        visitor: V,
    ) -> Result<V::Value, D::Error>;

    /// Asks for something that the writer has written in another way.
    fn of_other<'de, 'p, D: Deserializer<'de>, V: Visitor<'de>>(
        self,
        _op: &'p Op,
        from: Resolved<'p, D>,
        _visitor: V,
    ) -> Result<V::Value, D::Error> {
        from.mismatch()
    }
}

macro_rules! asks {
    ($($name:ident($($arg:ident: $ty:ty),*) $method:ident $($other:ident)?;)*) => {$(
        #[derive(Clone, Copy)]
        pub(super) struct $name($(pub(super) $ty),*);

        impl Ask for $name {
            fn of<'de, D: Deserializer<'de>, V: Visitor<'de>>(
                self,
                from: D,
                visitor: V,
            ) -> Result<V::Value, D::Error> {
                let Self($($arg),*) = self;
                from.$method($($arg,)* visitor)
            }

            $(fn of_other<'de, 'p, D: Deserializer<'de>, V: Visitor<'de>>(
                self,
                op: &'p Op,
                from: Resolved<'p, D>,
                visitor: V,
            ) -> Result<V::Value, D::Error> {
                $other(self, op, from, visitor)
            })?
        }
    )*};
}

asks! {
    Anything() deserialize_any;
    Bool() deserialize_bool;
    F32() deserialize_f32 single;
    F64() deserialize_f64 double;
    Char() deserialize_char;
    Str() deserialize_str;
    String() deserialize_string;
    Bytes() deserialize_bytes;
    ByteBuf() deserialize_byte_buf;
    Maybe() deserialize_option option;
    Unit() deserialize_unit;
    UnitStruct(name: &'static str) deserialize_unit_struct;
    Newtype(name: &'static str) deserialize_newtype_struct newtype;
    Seq() deserialize_seq sequence;
    Tuple(len: usize) deserialize_tuple tuple;
    TupleStruct(name: &'static str, len: usize) deserialize_tuple_struct tuple;
    Map() deserialize_map map;
    Struct(name: &'static str, fields: &'static [&'static str]) deserialize_struct fields;
    Enum(name: &'static str, variants: &'static [&'static str]) deserialize_enum variants;
}

macro_rules! whole {
    ($($name:ident $method:ident $ty:ty, $visit:ident;)*) => {$(
        #[derive(Clone, Copy)]
        pub(super) struct $name;

        impl Ask for $name {
            fn of<'de, D: Deserializer<'de>, V: Visitor<'de>>(
                self,
                from: D,
                visitor: V,
            ) -> Result<V::Value, D::Error> {
                from.$method(visitor)
            }

            fn of_other<'de, 'p, D: Deserializer<'de>, V: Visitor<'de>>(
                self,
                op: &'p Op,
                from: Resolved<'p, D>,
                visitor: V,
            ) -> Result<V::Value, D::Error> {
                let Op::Int(written) = op else { return from.mismatch() };
                let Resolved { at, from } = from;
                let number = Number::read(*written, from)?;
                match number.to() {
                    Some(value) => visitor.$visit(value),
                    None => {
                        Err(at.path.error(format_args!("{number} fits no {}", stringify!($ty))))
                    }
                }
            }
        }
    )*};
}

whole! {
    I8 deserialize_i8 i8, visit_i8;
    I16 deserialize_i16 i16, visit_i16;
    I32 deserialize_i32 i32, visit_i32;
    I64 deserialize_i64 i64, visit_i64;
    I128 deserialize_i128 i128, visit_i128;
    U8 deserialize_u8 u8, visit_u8;
    U16 deserialize_u16 u16, visit_u16;
    U32 deserialize_u32 u32, visit_u32;
    U64 deserialize_u64 u64, visit_u64;
    U128 deserialize_u128 u128, visit_u128;
}

fn single<'de, 'p, D: Deserializer<'de>, V: Visitor<'de>>(
    _: F32,
    op: &'p Op,
    from: Resolved<'p, D>,
    visitor: V,
) -> Result<V::Value, D::Error> {
    let Op::Float(true) = op else { return from.mismatch() };
    let Resolved { at, from } = from;
    let value = f64::deserialize(from)?;
    #[expect(clippy::cast_possible_truncation, reason = "rounded, as is every f32")]
    let rounded = value as f32;
    if rounded.is_infinite() && value.is_finite() {
        return Err(at.path.error(format_args!("{value} fits no f32")));
    }
    visitor.visit_f32(rounded)
}

fn double<'de, 'p, D: Deserializer<'de>, V: Visitor<'de>>(
    _: F64,
    op: &'p Op,
    from: Resolved<'p, D>,
    visitor: V,
) -> Result<V::Value, D::Error> {
    match op {
        Op::Float(false) => visitor.visit_f64(f32::deserialize(from.from)?.into()),
        _ => from.mismatch(),
    }
}

fn option<'de, 'p, D: Deserializer<'de>, V: Visitor<'de>>(
    _: Maybe,
    op: &'p Op,
    from: Resolved<'p, D>,
    visitor: V,
) -> Result<V::Value, D::Error> {
    match op {
        Op::Some(op) => visitor.visit_some(from.then(*op)),
        Op::Option(op) => {
            let Resolved { at, from } = from.then(*op);
            from.deserialize_option(Optional { at, visitor })
        }
        _ => from.mismatch(),
    }
}

/// Has no bytes of its own.
fn newtype<'de, 'p, D: Deserializer<'de>, V: Visitor<'de>>(
    _: Newtype,
    _: &'p Op,
    from: Resolved<'p, D>,
    visitor: V,
) -> Result<V::Value, D::Error> {
    visitor.visit_newtype_struct(from)
}

fn sequence<'de, 'p, D: Deserializer<'de>, V: Visitor<'de>>(
    _: Seq,
    op: &'p Op,
    from: Resolved<'p, D>,
    visitor: V,
) -> Result<V::Value, D::Error> {
    let Op::Sequence(op) = op else { return from.mismatch() };
    let Resolved { at, from } = from.then(*op);
    from.deserialize_seq(Parts::each(at, visitor))
}

fn map<'de, 'p, D: Deserializer<'de>, V: Visitor<'de>>(
    _: Map,
    op: &'p Op,
    from: Resolved<'p, D>,
    visitor: V,
) -> Result<V::Value, D::Error> {
    let Op::Map(key, value) = op else { return from.mismatch() };
    from.from.deserialize_map(Entries::new(from.at, *key, *value, visitor))
}

fn tuple<'de, 'p, D: Deserializer<'de>, V: Visitor<'de>>(
    _: impl Ask,
    op: &'p Op,
    from: Resolved<'p, D>,
    visitor: V,
) -> Result<V::Value, D::Error> {
    let Op::Tuple(ops) = op else { return from.mismatch() };
    from.from.deserialize_tuple(ops.len(), Parts::tuple(from.at, ops, visitor))
}

fn fields<'de, 'p, D: Deserializer<'de>, V: Visitor<'de>>(
    _: Struct,
    op: &'p Op,
    from: Resolved<'p, D>,
    visitor: V,
) -> Result<V::Value, D::Error> {
    let Op::Struct(parts) = op else { return from.mismatch() };
    from.from.deserialize_tuple(parts.len(), Fields::new(from.at, parts, visitor))
}

fn variants<'de, 'p, D: Deserializer<'de>, V: Visitor<'de>>(
    Enum(name, variants): Enum,
    op: &'p Op,
    from: Resolved<'p, D>,
    visitor: V,
) -> Result<V::Value, D::Error> {
    let Op::Enum(chosen) = op else { return from.mismatch() };
    from.from.deserialize_enum(name, variants, Variants { at: from.at, chosen, visitor })
}
