//! Numbers of another width than the one that is asked for.

use std::fmt;

use serde::de::{Error, Visitor};

use super::Path;
use crate::schema::Int;

/// Gives an integer in the width that is asked for.
pub(super) struct Whole<'p, V> {
    pub(super) to: Int,
    pub(super) path: &'p Path<'p>,
    pub(super) visitor: V,
}

macro_rules! give {
    ($($visit:ident $ty:ty),* $(,)?) => {$(
        #[inline]
        fn $visit<E: Error>(self, value: $ty) -> Result<V::Value, E> {
            macro_rules! to {
                ($give:ident) => {
                    match value.try_into() {
                        Ok(value) => self.visitor.$give(value),
                        Err(_) => Err(self.path.error(format_args!(
                            "{value} fits no {}", self.to.name()
                        ))),
                    }
                };
            }
            match self.to {
                Int::I8 => to!(visit_i8),
                Int::I16 => to!(visit_i16),
                Int::I32 => to!(visit_i32),
                Int::I64 => to!(visit_i64),
                Int::I128 => to!(visit_i128),
                Int::U8 => to!(visit_u8),
                Int::U16 => to!(visit_u16),
                Int::U32 => to!(visit_u32),
                Int::U64 => to!(visit_u64),
                Int::U128 => to!(visit_u128),
            }
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Whole<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    give! {
        visit_i8 i8, visit_i16 i16, visit_i32 i32, visit_i64 i64, visit_i128 i128,
        visit_u8 u8, visit_u16 u16, visit_u32 u32, visit_u64 u64, visit_u128 u128,
    }
}

/// Gives a float in the other width.
pub(super) struct Float<'p, V> {
    /// It is made an `f64`.
    pub(super) is_double: bool,
    pub(super) path: &'p Path<'p>,
    pub(super) visitor: V,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Float<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    fn visit_f32<E: Error>(self, value: f32) -> Result<V::Value, E> {
        match self.is_double {
            true => self.visitor.visit_f64(value.into()),
            false => self.visitor.visit_f32(value),
        }
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<V::Value, E> {
        if self.is_double {
            return self.visitor.visit_f64(value);
        }
        #[expect(clippy::cast_possible_truncation, reason = "rounded, as is every f32")]
        let rounded = value as f32;
        if rounded.is_infinite() && value.is_finite() {
            return Err(self.path.error(format_args!("{value} fits no f32")));
        }
        self.visitor.visit_f32(rounded)
    }
}
