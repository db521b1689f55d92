//! Whole numbers of another width than the one that is asked for.

use std::fmt;

use serde::de::{Deserialize, Deserializer};

use crate::schema::Int;

/// A whole number of any width.
#[derive(Clone, Copy)]
pub(super) enum Number {
    Signed(i64),
    Unsigned(u64),
    // Numbers of this width are rare, and slow to take along with the others.
    LongSigned(i128),
    LongUnsigned(u128),
}

impl Number {
    /// Reads a number of this width.
    // A call that returns a number of any kind passes it through memory.
    #[inline(always)]
    pub(super) fn read<'de, D: Deserializer<'de>>(width: Int, from: D) -> Result<Self, D::Error> {
        Ok(match width {
            Int::I8 => Self::Signed(i8::deserialize(from)?.into()),
            Int::I16 => Self::Signed(i16::deserialize(from)?.into()),
            Int::I32 => Self::Signed(i32::deserialize(from)?.into()),
            Int::I64 => Self::Signed(i64::deserialize(from)?),
            Int::I128 => Self::LongSigned(i128::deserialize(from)?),
            Int::U8 => Self::Unsigned(u8::deserialize(from)?.into()),
            Int::U16 => Self::Unsigned(u16::deserialize(from)?.into()),
            Int::U32 => Self::Unsigned(u32::deserialize(from)?.into()),
            Int::U64 => Self::Unsigned(u64::deserialize(from)?),
            Int::U128 => Self::LongUnsigned(u128::deserialize(from)?),
        })
    }

    /// In another width, if it fits.
    #[inline]
    pub(super) fn to<T>(self) -> Option<T>
    where
        T: TryFrom<i64> + TryFrom<u64> + TryFrom<i128> + TryFrom<u128>,
    {
        match self {
            Self::Signed(value) => value.try_into().ok(),
            Self::Unsigned(value) => value.try_into().ok(),
            Self::LongSigned(value) => value.try_into().ok(),
            Self::LongUnsigned(value) => value.try_into().ok(),
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signed(value) => value.fmt(f),
            Self::Unsigned(value) => value.fmt(f),
            Self::LongSigned(value) => value.fmt(f),
            Self::LongUnsigned(value) => value.fmt(f),
        }
    }
}
