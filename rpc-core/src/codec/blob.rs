//! Byte strings in one piece.
//!
//! Owns the list of types that are encoded as bytes, not element by element, and how each comes out
//! of a message: `[u8]`, `Vec<u8>`, `Box<[u8]>`, [`Bytes`], `Cow<[u8]>`, `[u8; N]`, references to
//! them, `Option` and `Vec` of them. For arguments also `Cow<str>`, which serde itself would copy.
//!
//! Invariants:
//! 1. The encoding is the same as serde's own for the type (an array has no length on the wire,
//!    whatever its size), so the two sides may choose differently.
//! 2. Memory is reserved for at most [`MAX_RESERVED`] elements and [`MAX_RESERVED_BYTES`] before
//!    the elements have been decoded.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use bytes::Bytes;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde::ser::{SerializeSeq, SerializeTuple, Serializer};

use crate::bulk::handoff::{self, Handed};
use crate::codec::shape::{Put, PutShape, Take, TakeShape};
use crate::layout::PAYLOAD;

/// Maximum number of elements for which memory is reserved because of an announced count.
const MAX_RESERVED: usize = 1024;
/// Maximum memory reserved because of an announced count, bytes.
const MAX_RESERVED_BYTES: usize = 64 << 10;
/// From this length on, bytes, [`Bytes`] are passed by reference count, where the codec supports
/// it.
const SHARED_BYTES: usize = 4096;

/// From this length on, bytes, a `Vec<u8>` that the encoder owns is sent without a copy instead of
/// being copied to a registered buffer. From about this size common allocators map every block
/// anew. For shorter vectors the copy is cheaper: a vector that must live until it has been sent
/// makes the allocator use new memory for the next one, with page faults on first touch.
const OWNED_BYTES: usize = 32 << 20;

/// Byte strings in one piece, borrowed where the type can borrow.
#[derive(Debug, Clone, Copy, Default)]
pub struct Blob;

/// Byte strings in one piece, decoded into owners.
#[derive(Debug, Clone, Copy, Default)]
pub struct OwnedBlob;

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
    [] Cow<'_, [u8]> => [u8],
    [T: PutBlob] Vec<T> => [T],
}

impl PutBlob for Bytes {
    #[inline]
    fn put_blob<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.len() < SHARED_BYTES {
            return serializer.serialize_bytes(self);
        }
        handoff::pass(Handed::Bulk(self.clone().into()), || {
            serializer.serialize_newtype_struct(PAYLOAD, &Put(&**self, Blob))
        })
    }
}

/// A vector owned by the encoder.
#[derive(Debug)]
pub enum OwnedBytes {
    /// Sends a copy.
    Small(Vec<u8>),
    /// Sends the buffer itself, by reference count.
    Large(Bytes),
}

impl From<Vec<u8>> for OwnedBytes {
    #[inline]
    fn from(bytes: Vec<u8>) -> Self {
        if bytes.len() < OWNED_BYTES { Self::Small(bytes) } else { Self::Large(bytes.into()) }
    }
}

impl PutBlob for OwnedBytes {
    #[inline]
    fn put_blob<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Small(bytes) => bytes.put_blob(serializer),
            Self::Large(bytes) => bytes.put_blob(serializer),
        }
    }
}

/// Visits bytes and makes a `T` of them.
struct BytesVisitor<T>(PhantomData<fn() -> T>);

/// Types that can be made from bytes that live for `'de`.
trait FromBytes<'de>: Sized {
    const EXPECTED: &'static str = "bytes";
    fn from_borrowed(bytes: &'de [u8]) -> Option<Self>;
    fn from_transient(bytes: &[u8]) -> Option<Self>;
    fn from_owned(bytes: Vec<u8>) -> Option<Self>;
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

    fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<T, E> {
        let len = bytes.len();
        T::from_owned(bytes).ok_or_else(|| E::invalid_length(len, &self))
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

    fn from_owned(_: Vec<u8>) -> Option<Self> {
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

    fn from_owned(bytes: Vec<u8>) -> Option<Self> {
        Some(Self::Owned(bytes))
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

            fn from_owned(bytes: Vec<u8>) -> Option<Self> {
                Some(bytes.into())
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
    ($($type:ty => $how:ident),* $(,)?) => {$(
        impl<'de> TakeBlob<'de> for $type {
            #[inline]
            fn take_blob<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.$how(BytesVisitor(PhantomData))
            }
        }
    )*};
}

take_bytes! {
    &'de [u8] => deserialize_bytes,
    Cow<'de, [u8]> => deserialize_bytes,
    Vec<u8> => deserialize_byte_buf,
    Box<[u8]> => deserialize_byte_buf,
    Bytes => deserialize_byte_buf,
}

/// Arrays have no length on the wire, as serde encodes them, whatever their size.
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
        let fitting = MAX_RESERVED_BYTES / size_of::<T>().max(1);
        let mut vec = Vec::with_capacity(announced.min(MAX_RESERVED).min(fitting));
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
