//! Shapes: how the generated code encodes and decodes one argument or result.
//!
//! Owns the choice between serde's own encoding of a type ([`Plain`]) and this crate's encoding of
//! byte strings ([`Blob`](crate::codec::blob::Blob)), which handles them in one piece and borrows
//! them from the message where the type can borrow. Both give the same bytes, so the choice is
//! never part of a signature.
//!
//! [`probe`](crate::codec::probe) finds the shape of a type.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use crate::status::Status;

/// serde's own encoding of a type.
#[derive(Debug, Clone, Copy, Default)]
pub struct Plain;

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

impl PutShape<Status> for StatusShape {
    fn put<S: Serializer>(self, _: &Status, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("a status cannot be encoded as a method's own error"))
    }
}

impl<'de> TakeShape<'de, Status> for StatusShape {
    fn take<D: Deserializer<'de>>(self, _: D) -> Result<Status, D::Error> {
        Err(D::Error::custom("a status cannot be encoded as a method's own error"))
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
pub struct Owned<T, H>(pub(super) T, pub(super) H);

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
