//! Answers where the writer has written something else than the type asks for.

use serde::de::{Deserialize, Deserializer, Visitor};

use super::access::{Entries, Fields, Parts};
use super::ask::{
    Anything, Ask, Bool, ByteBuf, Bytes, Char, Enum, F32, F64, I8, I16, I32, I64, I128, Map, Maybe,
    Newtype, Seq, Str, String, Struct, Tuple, TupleStruct, U8, U16, U32, U64, U128, Unit,
    UnitStruct,
};
use super::number::Number;
use super::{Optional, Resolved, Variants};
use crate::plan::Op;

pub(super) trait Other: Ask {
    fn of_other<'de, 'p, D: Deserializer<'de>, V: Visitor<'de>>(
        self,
        _op: &'p Op,
        from: Resolved<'p, D>,
        _visitor: V,
    ) -> Result<V::Value, D::Error> {
        from.mismatch()
    }
}

macro_rules! alike {
    ($($name:ident)*) => {$(impl Other for $name {})*};
}

alike! { Anything Bool Char Str String Bytes ByteBuf Unit UnitStruct }

/// Implements [`Other`] for a question, from: the question, how the writer's type is read, the
/// format, and the visitor of the type.
macro_rules! other {
    ($name:ident, |$ask:pat_param, $op:ident, $from:ident, $visitor:ident| $value:expr) => {
        impl Other for $name {
            fn of_other<'de, 'p, D: Deserializer<'de>, V: Visitor<'de>>(
                self,
                $op: &'p Op,
                $from: Resolved<'p, D>,
                $visitor: V,
            ) -> Result<V::Value, D::Error> {
                let $ask = self;
                $value
            }
        }
    };
}

macro_rules! whole {
    ($($name:ident $ty:ident $visit:ident;)*) => {$(
        other!($name, |_, op, from, visitor| {
            let Op::Int(written) = op else { return from.mismatch() };
            let Resolved { at, from } = from;
            let number = Number::read(*written, from)?;
            match number.to() {
                Some(value) => visitor.$visit(value),
                None => Err(at.path.error(format_args!("{number} fits no {}", stringify!($ty)))),
            }
        });
    )*};
}

whole! {
    I8 i8 visit_i8;
    I16 i16 visit_i16;
    I32 i32 visit_i32;
    I64 i64 visit_i64;
    I128 i128 visit_i128;
    U8 u8 visit_u8;
    U16 u16 visit_u16;
    U32 u32 visit_u32;
    U64 u64 visit_u64;
    U128 u128 visit_u128;
}

other!(F32, |_, op, from, visitor| {
    let Op::Float(true) = op else { return from.mismatch() };
    let Resolved { at, from } = from;
    let value = f64::deserialize(from)?;
    #[expect(clippy::cast_possible_truncation, reason = "rounded, as is every f32")]
    let rounded = value as f32;
    if rounded.is_infinite() && value.is_finite() {
        return Err(at.path.error(format_args!("{value} fits no f32")));
    }
    visitor.visit_f32(rounded)
});

other!(F64, |_, op, from, visitor| {
    match op {
        Op::Float(false) => visitor.visit_f64(f32::deserialize(from.from)?.into()),
        _ => from.mismatch(),
    }
});

other!(Maybe, |_, op, from, visitor| {
    match op {
        Op::Some(op) => visitor.visit_some(from.then(*op)),
        Op::Option(op) => {
            let Resolved { at, from } = from.then(*op);
            from.deserialize_option(Optional { at, visitor })
        }
        _ => from.mismatch(),
    }
});

// Has no bytes of its own.
other!(Newtype, |_, _op, from, visitor| visitor.visit_newtype_struct(from));

other!(Seq, |_, op, from, visitor| {
    let Op::Sequence(op) = op else { return from.mismatch() };
    let Resolved { at, from } = from.then(*op);
    from.deserialize_seq(Parts::each(at, visitor))
});

other!(Map, |_, op, from, visitor| {
    let Op::Map(key, value) = op else { return from.mismatch() };
    from.from.deserialize_map(Entries::new(from.at, *key, *value, visitor))
});

other!(Tuple, |_, op, from, visitor| {
    let Op::Tuple(ops) = op else { return from.mismatch() };
    from.from.deserialize_tuple(ops.len(), Parts::tuple(from.at, ops, visitor))
});

other!(TupleStruct, |TupleStruct(_, len), op, from, visitor| {
    Tuple(len).of_other(op, from, visitor)
});

other!(Struct, |_, op, from, visitor| {
    let Op::Struct(parts) = op else { return from.mismatch() };
    from.from.deserialize_tuple(parts.len(), Fields::new(from.at, parts, visitor))
});

other!(Enum, |Enum(name, variants), op, from, visitor| {
    let Op::Enum(chosen) = op else { return from.mismatch() };
    from.from.deserialize_enum(name, variants, Variants { at: from.at, chosen, visitor })
});
