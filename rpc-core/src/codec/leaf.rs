//! Visitors of values without parts.

use std::fmt;

use serde::de::{Error, Visitor};

use super::reason::Noted;

/// The methods of a visitor that passes values without parts on to the visitor in its field, and
/// records what that one rejects.
macro_rules! leaves {
    ($field:tt: $($method:ident($ty:ty)),* $(,)?) => {$(
        #[inline]
        fn $method<E: Error>(self, value: $ty) -> Result<V::Value, E> {
            self.$field.$method(value).map_err(Noted::into_inner)
        }
    )*};
    ($field:tt) => {
        leaves! {
            $field:
            visit_bool(bool),
            visit_i8(i8),
            visit_i16(i16),
            visit_i32(i32),
            visit_i64(i64),
            visit_i128(i128),
            visit_u8(u8),
            visit_u16(u16),
            visit_u32(u32),
            visit_u64(u64),
            visit_u128(u128),
            visit_f32(f32),
            visit_f64(f64),
            visit_char(char),
            visit_str(&str),
            visit_borrowed_str(&'de str),
            visit_string(String),
            visit_bytes(&[u8]),
            visit_borrowed_bytes(&'de [u8]),
            visit_byte_buf(Vec<u8>),
        }

        #[inline]
        fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
            self.$field.visit_unit().map_err(Noted::into_inner)
        }
    };
}

pub(super) use leaves;

/// The visitor of a value without parts, whose rejection is recorded.
pub(super) struct Leaf<V>(pub(super) V);

impl<'de, V: Visitor<'de>> Visitor<'de> for Leaf<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    leaves!(0);
}
