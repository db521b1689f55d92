//! Shapes: how the generated code encodes and decodes one argument or result.
//!
//! Owns the choice between what serde does with a type by itself ([`Plain`]) and what this crate
//! does with byte strings ([`Blob`]): in one piece, and borrowed from the message where the type
//! can borrow. Both give the same bytes, so the choice is never part of a signature.
//!
//! A type's shape is found by the compiler, not by its name: [`Probe`] has an inherent method for
//! types that [`Blob`] knows, which method lookup prefers to the same method of a trait that every
//! type has. That works only where the type is known, which in generated code it is.
//!
//! [`Blob`] knows `[u8]`, `Vec<u8>`, `Box<[u8]>`, [`Bytes`], `[u8; N]`, `Cow<[u8]>`, references to
//! them, `Option` and `Vec` of them, and for arguments `Cow<str>`, which serde itself would copy.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use bytes::Bytes;
use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};
use serde::ser::{SerializeSeq, SerializeTuple, Serializer};
use serde::{Deserialize, Serialize};

/// Most elements that room is made for on the strength of an announced count.
const MAX_RESERVED: usize = 1024;

/// serde's own way with a type.
#[derive(Debug, Clone, Copy, Default)]
pub struct Plain;

/// Byte strings in one piece.
#[derive(Debug, Clone, Copy, Default)]
pub struct Blob;

/// Byte strings in one piece, decoded into owners.
#[derive(Debug, Clone, Copy, Default)]
pub struct OwnedBlob;

/// Encodes a `T`.
pub trait PutShape<T: ?Sized>: Copy {
    /// Encodes it.
    ///
    /// # Errors
    /// The serializer's.
    fn put<S: Serializer>(self, value: &T, serializer: S) -> Result<S::Ok, S::Error>;
}

/// Decodes a `T` that may borrow for `'de`.
pub trait TakeShape<'de, T>: Copy {
    /// Decodes it.
    ///
    /// # Errors
    /// The deserializer's.
    fn take<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error>;
}

impl<T: Serialize + ?Sized> PutShape<T> for Plain {
    #[inline]
    fn put<S: Serializer>(self, value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        value.serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>> TakeShape<'de, T> for Plain {
    #[inline]
    fn take<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        T::deserialize(deserializer)
    }
}

impl<T: PutBlob + ?Sized> PutShape<T> for Blob {
    #[inline]
    fn put<S: Serializer>(self, value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        value.put_blob(serializer)
    }
}

impl<'de, T: TakeBlob<'de>> TakeShape<'de, T> for Blob {
    #[inline]
    fn take<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        T::take_blob(deserializer)
    }
}

impl<'de, T: TakeOwnedBlob> TakeShape<'de, T> for OwnedBlob {
    #[inline]
    fn take<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        T::take_owned_blob(deserializer)
    }
}

/// A value with the shape to encode it in.
#[derive(Debug)]
pub struct Put<'a, T: ?Sized, H>(pub &'a T, pub H);

impl<T: ?Sized, H: PutShape<T>> Serialize for Put<'_, T, H> {
    #[inline]
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.1.put(self.0, serializer)
    }
}

/// A shape to decode a `T` in.
pub struct Take<T, H>(H, PhantomData<fn() -> T>);

impl<T, H> Take<T, H> {
    /// Decodes a `T` in shape `shape`.
    #[inline]
    pub fn new(shape: H) -> Self {
        Self(shape, PhantomData)
    }
}

impl<T, H: fmt::Debug> fmt::Debug for Take<T, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Take").field(&self.0).finish()
    }
}

impl<'de, T, H: TakeShape<'de, T>> DeserializeSeed<'de> for Take<T, H> {
    type Value = T;

    #[inline]
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        self.0.take(deserializer)
    }
}

/// Finds the shape of a type; see the module's documentation.
pub struct Probe<T: ?Sized>(PhantomData<fn() -> Box<T>>);

impl<T: ?Sized> Probe<T> {
    /// A probe of `T`.
    #[inline]
    #[must_use]
    pub fn new() -> Self {
        Self(PhantomData)
    }

    /// A probe of the value's type.
    #[inline]
    #[must_use]
    pub fn of(_: &T) -> Self {
        Self(PhantomData)
    }
}

impl<T: ?Sized> Default for Probe<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: ?Sized> fmt::Debug for Probe<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Probe")
    }
}

impl<T: PutBlob + ?Sized> Probe<T> {
    /// The shape to encode in.
    #[inline]
    #[must_use]
    pub fn put_shape(&self) -> Blob {
        Blob
    }
}

impl<'de, T: TakeBlob<'de>> Probe<T> {
    /// The shape to decode in, borrowing.
    #[inline]
    #[must_use]
    pub fn take_shape(&self) -> Blob {
        Blob
    }
}

impl<T: TakeOwnedBlob> Probe<T> {
    /// The shape to decode in, owning.
    #[inline]
    #[must_use]
    pub fn take_owned_shape(&self) -> OwnedBlob {
        OwnedBlob
    }
}

/// What [`Probe`] answers for types that [`Blob`] does not know.
pub trait ProbePlain {
    /// The shape to encode in.
    #[inline]
    fn put_shape(&self) -> Plain {
        Plain
    }

    /// The shape to decode in, borrowing.
    #[inline]
    fn take_shape(&self) -> Plain {
        Plain
    }

    /// The shape to decode in, owning.
    #[inline]
    fn take_owned_shape(&self) -> Plain {
        Plain
    }
}

impl<T: ?Sized> ProbePlain for Probe<T> {}

/// Types that [`Blob`] encodes.
pub trait PutBlob {
    /// Encodes as bytes.
    ///
    /// # Errors
    /// The serializer's.
    fn put_blob<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error>;
}

/// Types that [`Blob`] decodes.
pub trait TakeBlob<'de>: Sized {
    /// Decodes from bytes.
    ///
    /// # Errors
    /// The deserializer's.
    fn take_blob<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error>;
}

/// Types that [`OwnedBlob`] decodes.
pub trait TakeOwnedBlob: Sized {
    /// Decodes from bytes.
    ///
    /// # Errors
    /// The deserializer's.
    fn take_owned_blob<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error>;
}

impl PutBlob for [u8] {
    #[inline]
    fn put_blob<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self)
    }
}

impl<T: PutBlob> PutBlob for [T] {
    fn put_blob<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut seq = serializer.serialize_seq(Some(self.len()))?;
        for element in self {
            seq.serialize_element(&Put(element, Blob))?;
        }
        seq.end()
    }
}

impl<T: PutBlob> PutBlob for Option<T> {
    #[inline]
    fn put_blob<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Some(value) => serializer.serialize_some(&Put(value, Blob)),
            None => serializer.serialize_none(),
        }
    }
}

macro_rules! put_as {
    ($([$($generics:tt)*] $type:ty => $target:ty),* $(,)?) => {$(
        impl<$($generics)*> PutBlob for $type {
            #[inline]
            fn put_blob<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                <$target>::put_blob(self, serializer)
            }
        }
    )*};
}

put_as! {
    [T: PutBlob + ?Sized] &T => T,
    [] Vec<u8> => [u8],
    [] Box<[u8]> => [u8],
    [] Bytes => [u8],
    [] Cow<'_, [u8]> => [u8],
    [T: PutBlob] Vec<T> => [T],
}

/// Visits bytes, and hands what it gets to `Self::Value`'s constructor.
struct BytesVisitor<T>(PhantomData<fn() -> T>);

/// What can be made from bytes that live for `'de`.
trait FromBytes<'de>: Sized {
    const EXPECTED: &'static str = "bytes";
    fn from_borrowed(bytes: &'de [u8]) -> Option<Self>;
    fn from_transient(bytes: &[u8]) -> Option<Self>;
}

impl<'de, T: FromBytes<'de>> Visitor<'de> for BytesVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    #[inline]
    fn visit_borrowed_bytes<E: Error>(self, bytes: &'de [u8]) -> Result<T, E> {
        T::from_borrowed(bytes).ok_or_else(|| E::invalid_length(bytes.len(), &self))
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<T, E> {
        T::from_transient(bytes).ok_or_else(|| E::invalid_length(bytes.len(), &self))
    }
}

impl<'de> FromBytes<'de> for &'de [u8] {
    const EXPECTED: &'static str = "bytes of the message itself";

    #[inline]
    fn from_borrowed(bytes: &'de [u8]) -> Option<Self> {
        Some(bytes)
    }

    fn from_transient(_: &[u8]) -> Option<Self> {
        None
    }
}

impl<'de> FromBytes<'de> for Cow<'de, [u8]> {
    #[inline]
    fn from_borrowed(bytes: &'de [u8]) -> Option<Self> {
        Some(Self::Borrowed(bytes))
    }

    fn from_transient(bytes: &[u8]) -> Option<Self> {
        Some(Self::Owned(bytes.to_vec()))
    }
}

macro_rules! from_copy {
    ($($type:ty => $convert:expr),* $(,)?) => {$(
        impl<'de> FromBytes<'de> for $type {
            #[inline]
            fn from_borrowed(bytes: &'de [u8]) -> Option<Self> {
                Some($convert(bytes))
            }

            fn from_transient(bytes: &[u8]) -> Option<Self> {
                Some($convert(bytes))
            }
        }

        impl TakeOwnedBlob for $type {
            #[inline]
            fn take_owned_blob<'de, D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                Self::take_blob(d)
            }
        }
    )*};
}

from_copy! {
    Vec<u8> => <[u8]>::to_vec,
    Box<[u8]> => Box::from,
    Bytes => Bytes::copy_from_slice,
}

impl TakeOwnedBlob for Cow<'static, [u8]> {
    #[inline]
    fn take_owned_blob<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::take_blob(deserializer).map(Self::Owned)
    }
}

macro_rules! take_bytes {
    ($([$($generics:tt)*] $type:ty),* $(,)?) => {$(
        impl<'de, $($generics)*> TakeBlob<'de> for $type {
            #[inline]
            fn take_blob<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_bytes(BytesVisitor(PhantomData))
            }
        }
    )*};
}

take_bytes! {
    [] &'de [u8],
    [] Cow<'de, [u8]>,
    [] Vec<u8>,
    [] Box<[u8]>,
    [] Bytes,
}

/// Arrays have no length on the wire: serde's way, for any length.
impl<const N: usize> PutBlob for [u8; N] {
    fn put_blob<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut tuple = serializer.serialize_tuple(N)?;
        for byte in self {
            tuple.serialize_element(byte)?;
        }
        tuple.end()
    }
}

struct ArrayVisitor<const N: usize>;

impl<'de, const N: usize> Visitor<'de> for ArrayVisitor<N> {
    type Value = [u8; N];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{N} bytes")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<[u8; N], A::Error> {
        let mut array = [0; N];
        for (at, byte) in array.iter_mut().enumerate() {
            let Some(element) = elements.next_element()? else {
                return Err(A::Error::invalid_length(at, &self));
            };
            *byte = element;
        }
        Ok(array)
    }
}

impl<'de, const N: usize> TakeBlob<'de> for [u8; N] {
    fn take_blob<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_tuple(N, ArrayVisitor)
    }
}

impl<const N: usize> TakeOwnedBlob for [u8; N] {
    fn take_owned_blob<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::take_blob(deserializer)
    }
}

impl<'de> TakeBlob<'de> for Cow<'de, str> {
    #[inline]
    fn take_blob<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;

        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Cow<'de, str>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            #[inline]
            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Cow::Borrowed(text))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Cow::Owned(text.to_owned()))
            }
        }

        deserializer.deserialize_str(TextVisitor)
    }
}

/// Visits an option whose value is of shape `H`.
struct OptionVisitor<T, H>(H, PhantomData<fn() -> T>);

impl<'de, T, H: TakeShape<'de, T>> Visitor<'de> for OptionVisitor<T, H> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an option")
    }

    #[inline]
    fn visit_none<E: Error>(self) -> Result<Option<T>, E> {
        Ok(None)
    }

    #[inline]
    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<T>, D::Error> {
        self.0.take(deserializer).map(Some)
    }
}

/// Visits a sequence whose elements are of shape `H`.
struct VecVisitor<T, H>(H, PhantomData<fn() -> T>);

impl<'de, T, H: TakeShape<'de, T>> Visitor<'de> for VecVisitor<T, H> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sequence")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
        let announced = elements.size_hint().unwrap_or(0);
        let mut vec = Vec::with_capacity(announced.min(MAX_RESERVED));
        while let Some(element) = elements.next_element_seed(Take::new(self.0))? {
            vec.push(element);
        }
        Ok(vec)
    }
}

impl<'de, T: TakeBlob<'de>> TakeBlob<'de> for Option<T> {
    #[inline]
    fn take_blob<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_option(OptionVisitor(Blob, PhantomData))
    }
}

impl<T: TakeOwnedBlob> TakeOwnedBlob for Option<T> {
    #[inline]
    fn take_owned_blob<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_option(OptionVisitor(OwnedBlob, PhantomData))
    }
}

impl<'de, T: TakeBlob<'de>> TakeBlob<'de> for Vec<T> {
    fn take_blob<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(VecVisitor(Blob, PhantomData))
    }
}

impl<T: TakeOwnedBlob> TakeOwnedBlob for Vec<T> {
    fn take_owned_blob<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(VecVisitor(OwnedBlob, PhantomData))
    }
}

/// Tuples of shapes are the shapes of tuples: of a method's arguments, and of tuples among them.
macro_rules! tuples {
    ($($len:literal: $($type:ident $shape:ident $at:tt),*;)*) => {$(
        impl<'de, $($type, $shape: TakeShape<'de, $type>),*> TakeShape<'de, ($($type,)*)>
            for ($($shape,)*)
        {
            #[inline]
            fn take<De: Deserializer<'de>>(self, d: De) -> Result<($($type,)*), De::Error> {
                d.deserialize_tuple($len, TupleVisitor(self, PhantomData::<fn() -> ($($type,)*)>))
            }
        }

        impl<'de, $($type, $shape: TakeShape<'de, $type>),*> Visitor<'de>
            for TupleVisitor<($($shape,)*), ($($type,)*)>
        {
            type Value = ($($type,)*);

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!("a tuple of ", $len))
            }

            #[inline]
            #[allow(unused_variables, unused_mut, reason = "not needed for the empty tuple")]
            fn visit_seq<Acc: SeqAccess<'de>>(self, mut elements: Acc)
                -> Result<Self::Value, Acc::Error>
            {
                Ok(($(
                    elements
                        .next_element_seed(Take::<$type, $shape>::new(self.0.$at))?
                        .ok_or_else(|| Acc::Error::invalid_length($at, &self))?,
                )*))
            }
        }

        impl<$($type, $shape: PutShape<$type>),*> PutShape<($($type,)*)> for ($($shape,)*) {
            #[inline]
            #[allow(clippy::unused_unit, unused_variables, reason = "the empty tuple")]
            fn put<Se: Serializer>(
                self,
                value: &($($type,)*),
                serializer: Se,
            ) -> Result<Se::Ok, Se::Error> {
                ($(Put(&value.$at, self.$at),)*).serialize(serializer)
            }
        }
    )*};
}

struct TupleVisitor<H, T>(H, PhantomData<fn() -> T>);

tuples! {
    0: ;
    1: A HA 0;
    2: A HA 0, B HB 1;
    3: A HA 0, B HB 1, C HC 2;
    4: A HA 0, B HB 1, C HC 2, D HD 3;
    5: A HA 0, B HB 1, C HC 2, D HD 3, E HE 4;
    6: A HA 0, B HB 1, C HC 2, D HD 3, E HE 4, F HF 5;
    7: A HA 0, B HB 1, C HC 2, D HD 3, E HE 4, F HF 5, G HG 6;
    8: A HA 0, B HB 1, C HC 2, D HD 3, E HE 4, F HF 5, G HG 6, H HH 7;
    9: A HA 0, B HB 1, C HC 2, D HD 3, E HE 4, F HF 5, G HG 6, H HH 7, I HI 8;
    10: A HA 0, B HB 1, C HC 2, D HD 3, E HE 4, F HF 5, G HG 6, H HH 7, I HI 8, J HJ 9;
    11: A HA 0, B HB 1, C HC 2, D HD 3, E HE 4, F HF 5, G HG 6, H HH 7, I HI 8, J HJ 9, K HK 10;
    12: A HA 0, B HB 1, C HC 2, D HD 3, E HE 4, F HF 5, G HG 6, H HH 7, I HI 8, J HJ 9, K HK 10,
        L HL 11;
    13: A HA 0, B HB 1, C HC 2, D HD 3, E HE 4, F HF 5, G HG 6, H HH 7, I HI 8, J HJ 9, K HK 10,
        L HL 11, M HM 12;
    14: A HA 0, B HB 1, C HC 2, D HD 3, E HE 4, F HF 5, G HG 6, H HH 7, I HI 8, J HJ 9, K HK 10,
        L HL 11, M HM 12, N HN 13;
    15: A HA 0, B HB 1, C HC 2, D HD 3, E HE 4, F HF 5, G HG 6, H HH 7, I HI 8, J HJ 9, K HK 10,
        L HL 11, M HM 12, N HN 13, O HO 14;
    16: A HA 0, B HB 1, C HC 2, D HD 3, E HE 4, F HF 5, G HG 6, H HH 7, I HI 8, J HJ 9, K HK 10,
        L HL 11, M HM 12, N HN 13, O HO 14, P HP 15;
}
