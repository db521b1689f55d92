//! What a type asks its format for.
//!
//! Each question is a type of its own, so that a method of a deserializer compiles only what that
//! method can meet: users' types are compiled once for each format.

use serde::de::{Deserializer, Visitor};

pub(super) trait Ask: Copy {
    /// Asks a format.
    fn of<'de, D: Deserializer<'de>, V: Visitor<'de>>(
        self,
        from: D,
        visitor: V,
    ) -> Result<V::Value, D::Error>;
}

macro_rules! asks {
    ($($name:ident($($arg:ident: $ty:ty),*) $method:ident;)*) => {$(
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
        }
    )*};
}

asks! {
    Anything() deserialize_any;
    Bool() deserialize_bool;
    I8() deserialize_i8;
    I16() deserialize_i16;
    I32() deserialize_i32;
    I64() deserialize_i64;
    I128() deserialize_i128;
    U8() deserialize_u8;
    U16() deserialize_u16;
    U32() deserialize_u32;
    U64() deserialize_u64;
    U128() deserialize_u128;
    F32() deserialize_f32;
    F64() deserialize_f64;
    Char() deserialize_char;
    Str() deserialize_str;
    String() deserialize_string;
    Bytes() deserialize_bytes;
    ByteBuf() deserialize_byte_buf;
    Maybe() deserialize_option;
    Unit() deserialize_unit;
    UnitStruct(name: &'static str) deserialize_unit_struct;
    Newtype(name: &'static str) deserialize_newtype_struct;
    Seq() deserialize_seq;
    Tuple(len: usize) deserialize_tuple;
    TupleStruct(name: &'static str, len: usize) deserialize_tuple_struct;
    Map() deserialize_map;
    Struct(name: &'static str, fields: &'static [&'static str]) deserialize_struct;
    Enum(name: &'static str, variants: &'static [&'static str]) deserialize_enum;
}
