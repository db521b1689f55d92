//! Whether a value is written as nothing, which a format with names writes for `None`.

use std::fmt;

use serde::ser::{Error, Impossible, Serialize, Serializer};

use crate::layout::PAYLOAD;

/// Whether the value would be read as `None`.
pub(super) fn looks_like_none<T: Serialize + ?Sized>(value: &T) -> bool {
    value.serialize(Finder).is_ok()
}

/// Refuses every value but `None` and `()` at once, so that it costs little to ask.
struct Finder;

#[derive(Debug)]
struct Something;

impl fmt::Display for Something {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("something")
    }
}

impl std::error::Error for Something {}

impl Error for Something {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

macro_rules! something {
    ($($method:ident($($ty:ty),*) -> $ok:ty),* $(,)?) => {$(
        fn $method(self, $(_: $ty),*) -> Result<$ok, Something> {
            Err(Something)
        }
    )*};
}

type Never = Impossible<(), Something>;

impl Serializer for Finder {
    type Ok = ();
    type Error = Something;
    type SerializeSeq = Never;
    type SerializeTuple = Never;
    type SerializeTupleStruct = Never;
    type SerializeTupleVariant = Never;
    type SerializeMap = Never;
    type SerializeStruct = Never;
    type SerializeStructVariant = Never;

    something! {
        serialize_bool(bool) -> (),
        serialize_i8(i8) -> (),
        serialize_i16(i16) -> (),
        serialize_i32(i32) -> (),
        serialize_i64(i64) -> (),
        serialize_u8(u8) -> (),
        serialize_u16(u16) -> (),
        serialize_u32(u32) -> (),
        serialize_u64(u64) -> (),
        serialize_f32(f32) -> (),
        serialize_f64(f64) -> (),
        serialize_char(char) -> (),
        serialize_str(&str) -> (),
        serialize_bytes(&[u8]) -> (),
        serialize_unit_struct(&'static str) -> (),
        serialize_unit_variant(&'static str, u32, &'static str) -> (),
        serialize_seq(Option<usize>) -> Never,
        serialize_tuple(usize) -> Never,
        serialize_tuple_struct(&'static str, usize) -> Never,
        serialize_tuple_variant(&'static str, u32, &'static str, usize) -> Never,
        serialize_map(Option<usize>) -> Never,
        serialize_struct(&'static str, usize) -> Never,
        serialize_struct_variant(&'static str, u32, &'static str, usize) -> Never,
    }

    fn serialize_none(self) -> Result<(), Something> {
        Ok(())
    }

    fn serialize_unit(self) -> Result<(), Something> {
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Something> {
        value.serialize(self)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<(), Something> {
        // It is bytes, which may be many.
        if name == PAYLOAD { Err(Something) } else { value.serialize(self) }
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<(), Something> {
        Err(Something)
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}
