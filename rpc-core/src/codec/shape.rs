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

use serde::de::value::SeqDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
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
) -> impl ArgumentSeed<'de, Value = T> + Clone + use<'de, T, H> {
    Take::new(shape)
}

/// [`seed`] for an argument that has its default if the caller lacks it. The default is a function,
/// and no bound, so that a type without one is a single error.
#[inline]
pub fn seed_or_default<'de, T, H: TakeShape<'de, T>>(
    shape: H,
    default: fn() -> T,
) -> impl ArgumentSeed<'de, Value = T> + Clone + use<'de, T, H> {
    TakeOrDefault(Take::new(shape), default)
}

/// The seed of an argument.
pub trait ArgumentSeed<'de>: DeserializeSeed<'de> {
    /// The value of an argument that the caller lacks.
    ///
    /// # Errors
    /// It has none.
    fn absent<E: Error>(self, name: &'static str) -> Result<Self::Value, E>;
}

impl<'de, T, H: TakeShape<'de, T>> ArgumentSeed<'de> for Take<T, H> {
    fn absent<E: Error>(self, name: &'static str) -> Result<T, E> {
        self.deserialize(Absent(name, PhantomData))
    }
}

/// A [`Take`] with a default.
#[derive(Debug)]
struct TakeOrDefault<T, H>(Take<T, H>, fn() -> T);

impl<T, H: Copy> Clone for TakeOrDefault<T, H> {
    #[inline]
    fn clone(&self) -> Self {
        Self(self.0, self.1)
    }
}

impl<'de, T, H: TakeShape<'de, T>> DeserializeSeed<'de> for TakeOrDefault<T, H> {
    type Value = T;

    #[inline]
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        self.0.deserialize(deserializer)
    }
}

impl<'de, T, H: TakeShape<'de, T>> ArgumentSeed<'de> for TakeOrDefault<T, H> {
    fn absent<E: Error>(self, _: &'static str) -> Result<T, E> {
        Ok((self.1)())
    }
}

/// The seed of a tuple: a tuple of seeds.
#[derive(Debug, Clone)]
pub struct Seeds<S>(pub S);

/// Seeds of arguments that are read by name, in the order of a writer whose arguments differ. Those
/// that the writer lacks are `None` or their default.
#[derive(Debug, Clone)]
pub struct ByName<S> {
    pub(crate) seeds: S,
    pub(crate) names: &'static [&'static str],
}

/// Reads the name of an argument as its position.
#[derive(Clone, Copy)]
struct Position(&'static [&'static str]);

impl<'de> DeserializeSeed<'de> for Position {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<usize, D::Error> {
        d.deserialize_identifier(self)
    }
}

impl Visitor<'_> for Position {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of an argument")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<usize, E> {
        let position = self.0.iter().position(|other| *other == name);
        position.ok_or_else(|| E::custom(format_args!("there is no argument `{name}`")))
    }
}

/// What is read in place of an argument that the writer lacks.
struct Absent<E>(&'static str, PhantomData<E>);

impl<'de, E: Error> Deserializer<'de> for Absent<E> {
    type Error = E;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, E> {
        Err(E::missing_field(self.0))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, E> {
        visitor.visit_none()
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

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

            // How a format with names writes the empty tuple.
            fn visit_unit<Er: Error>(self) -> Result<Self::Value, Er> {
                self.visit_seq(SeqDeserializer::<_, Er>::new(std::iter::empty::<()>()))
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

        impl<'de, $($type: ArgumentSeed<'de>),*> DeserializeSeed<'de>
            for ByName<Seeds<($($type,)*)>>
        {
            type Value = ($($type::Value,)*);

            fn deserialize<De: Deserializer<'de>>(self, d: De) -> Result<Self::Value, De::Error> {
                d.deserialize_struct("arguments", self.names, self)
            }
        }

        impl<'de, $($type: ArgumentSeed<'de>),*> Visitor<'de> for ByName<Seeds<($($type,)*)>> {
            type Value = ($($type::Value,)*);

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!($len, " arguments with names"))
            }

            #[allow(unused_variables, unused_mut, clippy::never_loop, clippy::match_single_binding,
                clippy::unused_unit, reason = "not needed for the empty tuple")]
            fn visit_map<Acc: MapAccess<'de>>(self, mut entries: Acc)
                -> Result<Self::Value, Acc::Error>
            {
                let Self { seeds: Seeds(seeds), names } = self;
                let mut left = ($(Some(seeds.$at),)*);
                let mut found = ($(None::<$type::Value>,)*);
                while let Some(position) = entries.next_key_seed(Position(names))? {
                    match position {
                        $($at if left.$at.is_some() => {
                            if let Some(seed) = left.$at.take() {
                                found.$at = Some(entries.next_value_seed(seed)?);
                            }
                        })*
                        _ => return Err(Acc::Error::custom("an argument comes twice")),
                    }
                }
                Ok(($(
                    match (found.$at, left.$at) {
                        (Some(value), _) => value,
                        (None, Some(seed)) => {
                            seed.absent(names.get($at).copied().unwrap_or_default())?
                        }
                        (None, None) => return Err(Acc::Error::custom("an argument is lost")),
                    },
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
