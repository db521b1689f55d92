//! The wrapper around a format's serializer: counts, depth, and values that the format cannot
//! express.
//!
//! Owns the encoding half of the codec's invariants 2 and 3, so that the sender refuses a value,
//! not the receiver.

use std::fmt;

use serde::ser::{
    Error, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant,
    SerializeTuple, SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

use super::MAX_DEPTH;
use super::collector::Collector;
use super::error::{CodecErrorKind, Step};
use super::guard::Guard;
#[cfg(feature = "msgpack")]
use super::nothing::looks_like_none;
use super::reason::Noted;
use crate::bulk::Bulk;
use crate::bulk::handoff::{self, Handed};
use crate::layout::PAYLOAD;

/// A value that is encoded under the guard; `depth` is the number of containers that may still
/// open.
pub(super) struct Guarded<'a, 'g, T: ?Sized> {
    value: &'a T,
    round: Round<'g>,
    depth: u32,
}

impl<'a, 'g, T: ?Sized> Guarded<'a, 'g, T> {
    #[inline]
    pub(super) fn new(value: &'a T, guard: &'g Guard, parts: &'g Collector<'g>) -> Self {
        Self { value, round: Round { guard, parts }, depth: MAX_DEPTH }
    }
}

/// The state shared within one encoding: its guard, and the byte strings taken out of the body.
#[derive(Clone, Copy)]
struct Round<'g> {
    guard: &'g Guard,
    parts: &'g Collector<'g>,
}

impl<T: Serialize + ?Sized> Serialize for Guarded<'_, '_, T> {
    #[inline]
    fn serialize<S: Serializer>(&self, inner: S) -> Result<S::Ok, S::Error> {
        let serializer = GuardedSerializer { inner, round: self.round, depth: self.depth };
        self.value.serialize(serializer).map_err(Noted::into_inner)
    }
}

/// A format's serializer under the guard.
struct GuardedSerializer<'g, S> {
    inner: S,
    round: Round<'g>,
    depth: u32,
}

impl<'g, S: Serializer> GuardedSerializer<'g, S> {
    /// Opens a container: one level less remains for its contents.
    #[inline]
    fn open(self) -> Result<(S, Compound<'g, ()>), Noted<S::Error>> {
        let Some(depth) = self.depth.checked_sub(1) else {
            return Err(broken(self.round.guard, CodecErrorKind::TooDeep));
        };
        Ok((self.inner, Compound { inner: (), round: self.round, depth, index: 0 }))
    }

    /// Takes bytes out of the body: only their length is written.
    #[cold]
    fn take_out(self, bytes: Bulk) -> Result<S::Ok, S::Error> {
        let written = self.inner.serialize_u64(bytes.len())?;
        self.round.parts.push(bytes);
        Ok(written)
    }

    #[cold]
    fn stage(self, bytes: &[u8]) -> Result<S::Ok, S::Error> {
        let copy = self.round.parts.stage(bytes);
        self.take_out(copy)
    }

    #[cold]
    fn bulk(self, bytes: Bulk) -> Result<S::Ok, S::Error> {
        let len = usize::try_from(bytes.len()).unwrap_or(usize::MAX);
        if self.round.parts.takes(len) {
            self.take_out(bytes)
        } else {
            match bytes.contiguous() {
                Ok(bytes) => self.inner.serialize_bytes(&bytes),
                Err(error) => Err(broken(self.round.guard, error.into())),
            }
        }
    }

    /// Opens a container whose length is written to the message.
    #[inline]
    fn open_counted(self, len: Option<usize>) -> Result<(S, Compound<'g, ()>), Noted<S::Error>> {
        let Some(len) = len else {
            if self.round.guard.has_names() {
                return self.open();
            }
            return Err(broken(self.round.guard, CodecErrorKind::UnknownLength));
        };
        // The budget is compared with the bytes written, at the end.
        self.round.guard.claim(len);
        self.open()
    }
}

#[cold]
fn broken<E: Error>(guard: &Guard, kind: CodecErrorKind) -> E {
    let error = E::custom(&kind);
    guard.note(kind);
    error
}

macro_rules! pass_through {
    ($($method:ident($($arg:ident: $ty:ty),*)),* $(,)?) => {$(
        #[inline]
        fn $method(self, $($arg: $ty),*) -> Result<S::Ok, Noted<S::Error>> {
            self.inner.$method($($arg),*).map_err(Noted)
        }
    )*};
}

impl<'g, S: Serializer> Serializer for GuardedSerializer<'g, S> {
    type Ok = S::Ok;
    type Error = Noted<S::Error>;
    type SerializeSeq = Compound<'g, S::SerializeSeq>;
    type SerializeTuple = Compound<'g, S::SerializeTuple>;
    type SerializeTupleStruct = Compound<'g, S::SerializeTupleStruct>;
    type SerializeTupleVariant = Compound<'g, S::SerializeTupleVariant>;
    type SerializeMap = Compound<'g, S::SerializeMap>;
    type SerializeStruct = Compound<'g, S::SerializeStruct>;
    type SerializeStructVariant = Compound<'g, S::SerializeStructVariant>;

    pass_through! {
        serialize_bool(v: bool),
        serialize_i8(v: i8),
        serialize_i16(v: i16),
        serialize_i32(v: i32),
        serialize_i64(v: i64),
        serialize_i128(v: i128),
        serialize_u8(v: u8),
        serialize_u16(v: u16),
        serialize_u32(v: u32),
        serialize_u64(v: u64),
        serialize_u128(v: u128),
        serialize_f32(v: f32),
        serialize_f64(v: f64),
        serialize_char(v: char),
        serialize_str(v: &str),
        serialize_unit(),
        serialize_unit_struct(name: &'static str),
    }

    #[inline]
    fn serialize_bytes(self, bytes: &[u8]) -> Result<S::Ok, Noted<S::Error>> {
        let written = if self.round.parts.takes(bytes.len()) {
            self.stage(bytes)
        } else {
            self.inner.serialize_bytes(bytes)
        };
        written.map_err(Noted)
    }

    // Opened even if it is empty: the decoder opens it before it can know.
    #[inline]
    fn serialize_none(self) -> Result<S::Ok, Noted<S::Error>> {
        self.open()?.0.serialize_none().map_err(Noted)
    }

    #[inline]
    fn serialize_unit_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
    ) -> Result<S::Ok, Noted<S::Error>> {
        self.open()?.0.serialize_unit_variant(name, index, variant).map_err(Noted)
    }

    #[inline]
    fn collect_str<T: fmt::Display + ?Sized>(self, value: &T) -> Result<S::Ok, Noted<S::Error>> {
        self.inner.collect_str(value).map_err(Noted)
    }

    #[inline]
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, Noted<S::Error>> {
        #[cfg(feature = "msgpack")]
        if self.round.guard.has_names() && looks_like_none(value) {
            return Err(broken(self.round.guard, CodecErrorKind::LooksLikeNone));
        }
        let (inner, compound) = self.open()?;
        inner.serialize_some(&compound.nested(value)).map_err(Noted)
    }

    // A payload, which may be sent beside the body, is a newtype with a private name. It counts as
    // bytes, not as a container.
    #[inline]
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<S::Ok, Noted<S::Error>> {
        if name == PAYLOAD
            && let Some(Handed::Bulk(bytes)) = handoff::take()
        {
            return self.bulk(bytes).map_err(Noted);
        }
        let (inner, compound) = self.open()?;
        inner.serialize_newtype_struct(name, &compound.nested(value)).map_err(Noted)
    }

    #[inline]
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, Noted<S::Error>> {
        let (inner, compound) = self.open()?;
        inner
            .serialize_newtype_variant(name, index, variant, &compound.nested(value))
            .map_err(Noted)
    }

    #[inline]
    fn serialize_seq(self, len: Option<usize>) -> Result<Self::SerializeSeq, Noted<S::Error>> {
        let (inner, compound) = self.open_counted(len)?;
        Ok(compound.around(inner.serialize_seq(len).map_err(Noted)?))
    }

    #[inline]
    fn serialize_tuple(self, len: usize) -> Result<Self::SerializeTuple, Noted<S::Error>> {
        let (inner, compound) = self.open()?;
        Ok(compound.around(inner.serialize_tuple(len).map_err(Noted)?))
    }

    #[inline]
    fn serialize_tuple_struct(
        self,
        name: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleStruct, Noted<S::Error>> {
        let (inner, compound) = self.open()?;
        Ok(compound.around(inner.serialize_tuple_struct(name, len).map_err(Noted)?))
    }

    #[inline]
    fn serialize_tuple_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleVariant, Noted<S::Error>> {
        let (inner, compound) = self.open()?;
        Ok(compound
            .around(inner.serialize_tuple_variant(name, index, variant, len).map_err(Noted)?))
    }

    #[inline]
    fn serialize_map(self, len: Option<usize>) -> Result<Self::SerializeMap, Noted<S::Error>> {
        let (inner, compound) = self.open_counted(len)?;
        Ok(compound.around(inner.serialize_map(len).map_err(Noted)?))
    }

    #[inline]
    fn serialize_struct(
        self,
        name: &'static str,
        len: usize,
    ) -> Result<Self::SerializeStruct, Noted<S::Error>> {
        let (inner, compound) = self.open()?;
        Ok(compound.around(inner.serialize_struct(name, len).map_err(Noted)?))
    }

    #[inline]
    fn serialize_struct_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self::SerializeStructVariant, Noted<S::Error>> {
        let (inner, compound) = self.open()?;
        Ok(compound
            .around(inner.serialize_struct_variant(name, index, variant, len).map_err(Noted)?))
    }

    #[inline]
    fn is_human_readable(&self) -> bool {
        false
    }
}

/// A container being written.
struct Compound<'g, C> {
    inner: C,
    round: Round<'g>,
    depth: u32,
    index: usize,
}

impl<'g, C> Compound<'g, C> {
    #[inline]
    fn around<D>(&self, inner: D) -> Compound<'g, D> {
        Compound { inner, round: self.round, depth: self.depth, index: 0 }
    }

    #[inline]
    fn nested<'a, T: ?Sized>(&self, value: &'a T) -> Guarded<'a, 'g, T> {
        Guarded { value, round: self.round, depth: self.depth }
    }

    /// Counts a written element, or records where it failed.
    #[inline]
    fn element<E>(&mut self, result: Result<(), E>) -> Result<(), E> {
        if result.is_err() {
            self.round.guard.step(Step::Index(self.index));
        }
        self.index += 1;
        result
    }

    #[inline]
    fn field<E>(&mut self, name: &'static str, result: Result<(), E>) -> Result<(), E> {
        if result.is_err() {
            self.round.guard.step(Step::Field(name));
        }
        result
    }

    #[cold]
    fn skipped<E: Error>(&self, name: &'static str) -> E {
        self.round.guard.step(Step::Field(name));
        broken(self.round.guard, CodecErrorKind::SkippedField)
    }
}

macro_rules! positional {
    ($($kind:ident::$method:ident),* $(,)?) => {$(
        impl<C: $kind> $kind for Compound<'_, C> {
            type Ok = C::Ok;
            type Error = Noted<C::Error>;

            #[inline]
            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Self::Error> {
                let result = self.inner.$method(&self.nested(value));
                self.element(result).map_err(Noted)
            }

            #[inline]
            fn end(self) -> Result<C::Ok, Self::Error> {
                self.inner.end().map_err(Noted)
            }
        }
    )*};
}

positional! {
    SerializeSeq::serialize_element,
    SerializeTuple::serialize_element,
    SerializeTupleStruct::serialize_field,
    SerializeTupleVariant::serialize_field,
}

macro_rules! named {
    ($($kind:ident),* $(,)?) => {$(
        impl<C: $kind> $kind for Compound<'_, C> {
            type Ok = C::Ok;
            type Error = Noted<C::Error>;

            #[inline]
            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                name: &'static str,
                value: &T,
            ) -> Result<(), Self::Error> {
                let result = self.inner.serialize_field(name, &self.nested(value));
                self.field(name, result).map_err(Noted)
            }

            // Both formats encode `None`, an empty list, map or string, false and 0 as one zero
            // byte.
            fn skip_field(&mut self, name: &'static str) -> Result<(), Self::Error> {
                if self.round.guard.has_names() {
                    return self.inner.skip_field(name).map_err(Noted);
                }
                if !self.round.guard.leave_out(name) {
                    return Err(self.skipped(name));
                }
                self.inner.serialize_field(name, &0_u8).map_err(Noted)
            }

            #[inline]
            fn end(self) -> Result<C::Ok, Self::Error> {
                self.inner.end().map_err(Noted)
            }
        }
    )*};
}

named! { SerializeStruct, SerializeStructVariant }

impl<C: SerializeMap> SerializeMap for Compound<'_, C> {
    type Ok = C::Ok;
    type Error = Noted<C::Error>;

    #[inline]
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Self::Error> {
        let result = self.inner.serialize_key(&self.nested(key));
        if result.is_err() {
            self.round.guard.step(Step::Index(self.index));
        }
        result.map_err(Noted)
    }

    #[inline]
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Self::Error> {
        let result = self.inner.serialize_value(&self.nested(value));
        self.element(result).map_err(Noted)
    }

    #[inline]
    fn end(self) -> Result<C::Ok, Self::Error> {
        self.inner.end().map_err(Noted)
    }
}
