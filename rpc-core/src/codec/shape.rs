//! Shapes: how the generated code encodes and decodes one argument or result.
//!
//! Owns the choice between serde's own encoding of a type ([`Plain`]) and this crate's encoding of
//! byte strings ([`Blob`]), which handles them in one piece and borrows them from the message where
//! the type can borrow. Both give the same bytes, so the choice is never part of a signature.
//!
//! The compiler finds a type's shape by method lookup on [`Probe`] (autoref specialization), not by
//! the type's name. In order of preference: an inherent method, for types that [`Blob`] supports; a
//! trait method, for types that serde supports; and the method of a trait on `&Probe`, for every
//! type. This works only where the type is concrete, which it is in generated code.
//!
//! [`crate::codec::blob`] lists the types that [`Blob`] supports. A method whose error type is
//! [`Status`] is found in the same way: [`StatusShape`].
//!
//! A type that serde does not support has the shape [`Missing`]. So generated code type-checks
//! wherever it names that type, and the only error comes from the check of the type ([`Lacking`]).

use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use crate::codec::blob::{OwnedBytes, PutBlob, TakeBlob, TakeOwnedBlob};
use crate::status::{CallError, Status};

/// serde's own encoding of a type.
#[derive(Debug, Clone, Copy, Default)]
pub struct Plain;

/// Byte strings in one piece, borrowed where the type can borrow.
#[derive(Debug, Clone, Copy, Default)]
pub struct Blob;

/// Byte strings in one piece, decoded into owners.
#[derive(Debug, Clone, Copy, Default)]
pub struct OwnedBlob;

/// A [`Status`] as a method's own error: sent as the call's status, not as an encoded body.
#[derive(Debug, Clone, Copy, Default)]
pub struct StatusShape;

/// A type that serde does not support. A check in the generated code makes such a type a compile
/// error, so the methods of this shape never run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Missing;

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

impl<'de> TakeShape<'de, Status> for StatusShape {
    fn take<D: Deserializer<'de>>(self, _: D) -> Result<Status, D::Error> {
        Err(D::Error::custom("a status does not travel as a method's own error"))
    }
}

impl<T: ?Sized> PutShape<T> for Missing {
    fn put<S: Serializer>(self, _: &T, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("the type does not implement serde's `Serialize`"))
    }
}

impl<'de, T> TakeShape<'de, T> for Missing {
    fn take<D: Deserializer<'de>>(self, _: D) -> Result<T, D::Error> {
        Err(D::Error::custom("the type does not implement serde's `Deserialize`"))
    }
}

/// A value with the shape to encode it in.
#[derive(Debug)]
pub(crate) struct Put<'a, T: ?Sized, H>(pub(crate) &'a T, pub(crate) H);

impl<T: ?Sized, H: PutShape<T>> Serialize for Put<'_, T, H> {
    #[inline]
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.1.put(self.0, serializer)
    }
}

/// A value owned by the encoder, with the shape to encode it in.
#[derive(Debug)]
pub struct Owned<T, H>(T, H);

impl<T, H: PutShape<T>> Serialize for Owned<T, H> {
    #[inline]
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.1.put(&self.0, serializer)
    }
}

/// A shape to decode a `T` in.
pub(crate) struct Take<T, H>(H, PhantomData<fn() -> T>);

impl<T, H: Copy> Clone for Take<T, H> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, H: Copy> Copy for Take<T, H> {}

impl<T, H> Take<T, H> {
    /// Decodes a `T` in shape `shape`.
    #[inline]
    pub(crate) fn new(shape: H) -> Self {
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

/// Pairs a value with the shape to encode it in.
#[inline]
pub fn put<'a, T: ?Sized, H: PutShape<T>>(
    value: &'a T,
    shape: H,
) -> impl Serialize + use<'a, T, H> {
    Put(value, shape)
}

/// A seed that decodes a `T` in shape `shape`.
#[inline]
pub fn seed<'de, T, H: TakeShape<'de, T>>(
    shape: H,
) -> impl DeserializeSeed<'de, Value = T> + Clone + use<'de, T, H> {
    Take::new(shape)
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

    /// A probe of the type of a value.
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

impl Probe<Vec<u8>> {
    /// Takes the vector, so that it is sent without a copy if it is large.
    #[inline]
    #[must_use]
    pub fn own(&self, bytes: Vec<u8>) -> Owned<OwnedBytes, Blob> {
        Owned(bytes.into(), Blob)
    }
}

impl Probe<Option<Vec<u8>>> {
    /// The same for an optional vector.
    #[inline]
    #[must_use]
    pub fn own(&self, bytes: Option<Vec<u8>>) -> Owned<Option<OwnedBytes>, Blob> {
        Owned(bytes.map(OwnedBytes::from), Blob)
    }
}

impl Probe<Status> {
    /// It is a [`Status`].
    pub const IS_STATUS: bool = true;

    /// How this error travels to the caller.
    #[inline]
    #[must_use]
    pub fn put_error_shape(&self) -> StatusShape {
        StatusShape
    }

    /// How this error comes from the server.
    #[inline]
    #[must_use]
    pub fn take_error_shape(&self) -> StatusShape {
        StatusShape
    }
}

impl<E> Probe<CallError<E>> {
    /// It is a [`CallError`], which the macro takes apart where it sees one.
    pub const IS_CALL_ERROR: bool = true;
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

/// [`Probe`]'s methods for types that serde can encode and [`Blob`] does not support.
pub trait ProbePut {
    /// The shape to encode in.
    #[inline]
    fn put_shape(&self) -> Plain {
        Plain
    }

    /// The value as it is. Generic, because the macro goes by the name `Vec<u8>`, which may be a
    /// type of the user's.
    #[inline]
    fn own<T>(&self, value: T) -> Owned<T, Plain> {
        Owned(value, Plain)
    }

    /// How this error travels to the caller.
    #[inline]
    fn put_error_shape(&self) -> Plain {
        Plain
    }
}

impl<T: Serialize + ?Sized> ProbePut for Probe<T> {}

/// [`Probe`]'s methods for types that serde can decode and [`Blob`] does not support.
pub trait ProbeTake {
    /// The shape to decode in, borrowing.
    #[inline]
    fn take_shape(&self) -> Plain {
        Plain
    }
}

impl<'de, T: Deserialize<'de>> ProbeTake for Probe<T> {}

/// The same for types that borrow nothing.
pub trait ProbeTakeOwned {
    /// The shape to decode in, owning.
    #[inline]
    fn take_owned_shape(&self) -> Plain {
        Plain
    }

    /// How this error comes from the server.
    #[inline]
    fn take_error_shape(&self) -> Plain {
        Plain
    }
}

impl<T: DeserializeOwned> ProbeTakeOwned for Probe<T> {}

/// The methods of a reference to a [`Probe`], for all other types.
pub trait ProbeMissing {
    /// No shape to encode in.
    fn put_shape(&self) -> Missing {
        Missing
    }

    /// The value as it is.
    fn own<T>(&self, value: T) -> Owned<T, Missing> {
        Owned(value, Missing)
    }

    /// This error cannot be sent to the caller.
    fn put_error_shape(&self) -> Missing {
        Missing
    }

    /// No shape to decode in, borrowing.
    fn take_shape(&self) -> Missing {
        Missing
    }

    /// No shape to decode in, owning.
    fn take_owned_shape(&self) -> Missing {
        Missing
    }

    /// This error cannot be received from the server.
    fn take_error_shape(&self) -> Missing {
        Missing
    }
}

impl<T: ?Sized> ProbeMissing for &Probe<T> {}

impl<T: Serialize + ?Sized> Probe<T> {
    /// serde can encode it.
    pub const SERIALIZES: bool = true;
}

impl<T: PutBlob + ?Sized> Probe<T> {
    /// [`Blob`] can encode it.
    pub const PUTS: bool = true;
}

impl<'de, T: Deserialize<'de>> Probe<T> {
    /// serde can decode it.
    pub const DESERIALIZES: bool = true;
}

impl<'de, T: TakeBlob<'de>> Probe<T> {
    /// [`Blob`] can decode it.
    pub const TAKES: bool = true;
}

impl<T: DeserializeOwned> Probe<T> {
    /// serde can decode it, and it borrows nothing.
    pub const DESERIALIZES_OWNED: bool = true;
}

impl<T: TakeOwnedBlob> Probe<T> {
    /// [`OwnedBlob`] can decode it.
    pub const TAKES_OWNED: bool = true;
}

/// Defaults of [`Probe`]'s constants: the type lacks the ability. The compiler prefers an inherent
/// constant, where the type meets its bounds.
pub trait Lacking {
    /// serde cannot encode it.
    const SERIALIZES: bool = false;
    /// [`Blob`] cannot encode it.
    const PUTS: bool = false;
    /// serde cannot decode it.
    const DESERIALIZES: bool = false;
    /// [`Blob`] cannot decode it.
    const TAKES: bool = false;
    /// serde cannot decode it, or it borrows.
    const DESERIALIZES_OWNED: bool = false;
    /// [`OwnedBlob`] cannot decode it.
    const TAKES_OWNED: bool = false;
    /// It is no [`Status`].
    const IS_STATUS: bool = false;
    /// It is no [`CallError`].
    const IS_CALL_ERROR: bool = false;
}

impl<T: ?Sized> Lacking for Probe<T> {}

/// The seed of a tuple: a tuple of seeds.
#[derive(Debug, Clone)]
pub struct Seeds<S>(pub S);

/// A tuple of shapes is the shape of a tuple.
macro_rules! tuples {
    ($($len:literal: $($type:ident $shape:ident $at:tt),*;)*) => {$(
        impl<'de, $($type: DeserializeSeed<'de>),*> DeserializeSeed<'de> for Seeds<($($type,)*)> {
            type Value = ($($type::Value,)*);

            #[inline]
            fn deserialize<De: Deserializer<'de>>(self, d: De) -> Result<Self::Value, De::Error> {
                d.deserialize_tuple($len, self)
            }
        }

        impl<'de, $($type: DeserializeSeed<'de>),*> Visitor<'de> for Seeds<($($type,)*)> {
            type Value = ($($type::Value,)*);

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
                        .next_element_seed(self.0.$at)?
                        .ok_or_else(|| Acc::Error::invalid_length($at, &"all elements"))?,
                )*))
            }
        }

                impl<'de, $($type, $shape: TakeShape<'de, $type>),*> TakeShape<'de, ($($type,)*)>
            for ($($shape,)*)
        {
            #[inline]
            fn take<De: Deserializer<'de>>(self, d: De) -> Result<($($type,)*), De::Error> {
                Seeds(($(Take::<$type, $shape>::new(self.$at),)*)).deserialize(d)
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
