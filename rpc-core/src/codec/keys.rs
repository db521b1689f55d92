//! The keys of a struct in a format with names: the field that was read last, for an error.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, Visitor};
use serde::forward_to_deserialize_any;

/// The names of a struct's fields, and the one that was read last.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    pub(super) names: &'static [&'static str],
    pub(super) last: &'a Cell<Option<usize>>,
}

/// A key, or its deserializer, or its visitor, which remembers the key.
pub(super) struct Key<'a, T>(pub(super) T, pub(super) Fields<'a>);

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Key<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Key(inner, self.1))
    }
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Key<'_, D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_identifier(Key(visitor, self.1))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

impl<V> Key<'_, V> {
    fn remember(&self, name: &str) {
        self.1.last.set(self.1.names.iter().position(|it| *it == name));
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Key<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<V::Value, E> {
        self.1.last.set(usize::try_from(number).ok().filter(|at| *at < self.1.names.len()));
        self.0.visit_u64(number)
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<V::Value, E> {
        self.remember(name);
        self.0.visit_str(name)
    }

    fn visit_borrowed_str<E: Error>(self, name: &'de str) -> Result<V::Value, E> {
        self.remember(name);
        self.0.visit_borrowed_str(name)
    }
}
