//! The wrapper around a format's deserializer: counts, depth, borrowing.
//!
//! Owns the decoding half of the codec's invariants 2, 3, 5 and 7. Leaves everything else to the
//! format: scalars pass straight through, only containers are wrapped.

#[cfg(feature = "msgpack")]
use std::cell::Cell;
use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor,
};

use super::MAX_DEPTH;
use super::error::{CodecErrorKind, Step};
use super::guard::Guard;
#[cfg(feature = "msgpack")]
use super::keys::{Fields, Key};
use super::leaf::{Leaf, leaves};
use super::reason::Noted;
use super::source::Source;
use crate::layout::PAYLOAD;

/// A seed whose value is decoded under the guard.
pub(super) struct Seed<'g, S, P> {
    seed: S,
    source: P,
    guard: &'g Guard,
    depth: u32,
}

impl<'g, S, P> Seed<'g, S, P> {
    #[inline]
    pub(super) fn new(seed: S, source: P, guard: &'g Guard) -> Self {
        Self { seed, source, guard, depth: MAX_DEPTH }
    }
}

impl<'de, S: DeserializeSeed<'de>, P: Source<'de>> DeserializeSeed<'de> for Seed<'_, S, P> {
    type Value = S::Value;

    #[inline]
    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<S::Value, D::Error> {
        let Self { seed, source, guard, depth } = self;
        seed.deserialize(Guarded { inner, source, guard, depth }).map_err(Noted::into_inner)
    }
}

/// A format's deserializer under the guard; `depth` is the number of containers that may still
/// open.
struct Guarded<'g, D, P> {
    inner: D,
    source: P,
    guard: &'g Guard,
    depth: u32,
}

/// The name of a container's elements in an error.
#[derive(Clone, Copy)]
enum Naming {
    Fields(&'static [&'static str]),
    Positions,
}

impl Naming {
    #[cold]
    fn step(self, index: usize) -> Step {
        match self {
            Self::Fields(names) if index < names.len() => Step::Field(names[index]),
            _ => Step::Index(index),
        }
    }
}

/// A format's deserializer, and the visitor of the container that it opens.
type Opened<'g, D, V, P, E> = Result<(D, Contents<'g, V, P>), Noted<E>>;

impl<'de, 'g, D: Deserializer<'de>, P> Guarded<'g, D, P> {
    /// Opens a container: its visitor sees one level less. `counted` containers announce their
    /// length in the message.
    #[inline]
    fn open<V>(self, visitor: V, naming: Naming, counted: bool) -> Opened<'g, D, V, P, D::Error> {
        let Some(depth) = self.depth.checked_sub(1) else {
            self.guard.note(CodecErrorKind::TooDeep);
            return Err(Noted(D::Error::custom(CodecErrorKind::TooDeep)));
        };
        if !self.guard.has_stack() {
            return Err(Noted(D::Error::custom(CodecErrorKind::TooMuchStack)));
        }
        let Self { inner, source, guard, .. } = self;
        let contents = Contents { visitor, source, guard, depth, naming, counted };
        Ok((inner, contents))
    }

    #[cold]
    fn not_self_describing(&self) -> Noted<D::Error> {
        self.guard.note(CodecErrorKind::NotSelfDescribing);
        Noted(D::Error::custom(CodecErrorKind::NotSelfDescribing))
    }
}

macro_rules! pass_through {
    ($($method:ident => $inner:ident),* $(,)?) => {$(
        #[inline]
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Noted<D::Error>> {
            self.inner.$inner(Leaf(visitor)).map_err(Noted)
        }
    )*};
}

impl<'de, D: Deserializer<'de>, P: Source<'de>> Deserializer<'de> for Guarded<'_, D, P> {
    type Error = Noted<D::Error>;

    pass_through! {
        deserialize_bool => deserialize_bool,
        deserialize_i8 => deserialize_i8,
        deserialize_i16 => deserialize_i16,
        deserialize_i32 => deserialize_i32,
        deserialize_i64 => deserialize_i64,
        deserialize_i128 => deserialize_i128,
        deserialize_u8 => deserialize_u8,
        deserialize_u16 => deserialize_u16,
        deserialize_u32 => deserialize_u32,
        deserialize_u64 => deserialize_u64,
        deserialize_u128 => deserialize_u128,
        deserialize_f32 => deserialize_f32,
        deserialize_f64 => deserialize_f64,
        deserialize_char => deserialize_char,
        deserialize_unit => deserialize_unit,
    }

    #[inline]
    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Noted<D::Error>> {
        self.source.text(self.inner, Leaf(visitor)).map_err(Noted)
    }

    // Borrowed even when the type owns its bytes: formats allocate for an announced length before
    // checking it.
    #[inline]
    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Noted<D::Error>> {
        self.source.text(self.inner, Leaf(visitor)).map_err(Noted)
    }

    #[inline]
    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Noted<D::Error>> {
        self.source.bytes(self.inner, Leaf(visitor)).map_err(Noted)
    }

    #[inline]
    fn deserialize_byte_buf<V: Visitor<'de>>(
        self,
        visitor: V,
    ) -> Result<V::Value, Noted<D::Error>> {
        self.source.owned_bytes(self.inner, Leaf(visitor)).map_err(Noted)
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Noted<D::Error>> {
        if !P::HAS_NAMES {
            return Err(self.not_self_describing());
        }
        let (inner, contents) = self.open(visitor, Naming::Positions, true)?;
        inner.deserialize_any(contents).map_err(Noted)
    }

    fn deserialize_identifier<V: Visitor<'de>>(
        self,
        visitor: V,
    ) -> Result<V::Value, Noted<D::Error>> {
        if !P::HAS_NAMES {
            return Err(self.not_self_describing());
        }
        self.inner.deserialize_identifier(Leaf(visitor)).map_err(Noted)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(
        self,
        visitor: V,
    ) -> Result<V::Value, Noted<D::Error>> {
        if !P::HAS_NAMES {
            return Err(self.not_self_describing());
        }
        let (inner, contents) = self.open(visitor, Naming::Positions, true)?;
        inner.deserialize_ignored_any(contents).map_err(Noted)
    }

    #[inline]
    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Noted<D::Error>> {
        self.inner.deserialize_unit_struct(name, Leaf(visitor)).map_err(Noted)
    }

    #[inline]
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Noted<D::Error>> {
        let (inner, contents) = self.open(visitor, Naming::Positions, false)?;
        inner.deserialize_option(contents).map_err(Noted)
    }

    // A payload, which may be sent beside the body, is a newtype with a private name. It counts as
    // bytes, not as a container.
    #[inline]
    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Noted<D::Error>> {
        if name == PAYLOAD {
            return self.source.bulk(self.inner, visitor).map_err(Noted);
        }
        let (inner, contents) = self.open(visitor, Naming::Positions, false)?;
        inner.deserialize_newtype_struct(name, contents).map_err(Noted)
    }

    #[inline]
    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Noted<D::Error>> {
        let (inner, contents) = self.open(visitor, Naming::Positions, true)?;
        inner.deserialize_seq(contents).map_err(Noted)
    }

    #[inline]
    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Noted<D::Error>> {
        let (inner, contents) = self.open(visitor, Naming::Positions, false)?;
        inner.deserialize_tuple(len, contents).map_err(Noted)
    }

    #[inline]
    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Noted<D::Error>> {
        let (inner, contents) = self.open(visitor, Naming::Positions, false)?;
        inner.deserialize_tuple_struct(name, len, contents).map_err(Noted)
    }

    #[inline]
    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Noted<D::Error>> {
        let (inner, contents) = self.open(visitor, Naming::Positions, true)?;
        inner.deserialize_map(contents).map_err(Noted)
    }

    #[inline]
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Noted<D::Error>> {
        let (inner, contents) = self.open(visitor, Naming::Fields(fields), false)?;
        inner.deserialize_struct(name, fields, contents).map_err(Noted)
    }

    #[inline]
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Noted<D::Error>> {
        let (inner, contents) = self.open(visitor, Naming::Positions, false)?;
        inner.deserialize_enum(name, variants, contents).map_err(Noted)
    }

    #[inline]
    fn is_human_readable(&self) -> bool {
        false
    }
}

/// The visitor of a container, or the access to its contents, under the guard.
struct Contents<'g, V, P> {
    visitor: V,
    source: P,
    guard: &'g Guard,
    depth: u32,
    naming: Naming,
    counted: bool,
}

impl<'g, V, P: Copy> Contents<'g, V, P> {
    /// Refuses a count that the message cannot hold, before anything is done with it.
    #[inline]
    fn check<E: Error>(&self, announced: Option<usize>) -> Result<(), E> {
        if !self.counted || self.guard.claim(announced.unwrap_or(usize::MAX)) {
            return Ok(());
        }
        Err(E::custom("too many elements"))
    }

    #[inline]
    fn elements<A>(&self, inner: A, announced: Option<usize>) -> Elements<'g, A, P> {
        let Self { source, guard, depth, naming, counted, .. } = *self;
        // An uncounted container (a tuple, say) is counted with the one that holds it.
        let announced = if counted { announced.unwrap_or(0) } else { 0 };
        Elements {
            inner,
            source,
            guard,
            depth,
            naming,
            announced,
            index: 0,
            #[cfg(feature = "msgpack")]
            field: Cell::new(None),
        }
    }

    #[inline]
    fn nested<D>(&self, inner: D) -> Guarded<'g, D, P> {
        Guarded { inner, source: self.source, guard: self.guard, depth: self.depth }
    }
}

impl<'de, V: Visitor<'de>, P: Source<'de>> Visitor<'de> for Contents<'_, V, P> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    // A format that describes its values finds scalars where anything is wanted.
    leaves!(visitor);

    #[inline]
    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_none().map_err(Noted::into_inner)
    }

    #[inline]
    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        let nested = self.nested(inner);
        self.visitor.visit_some(nested).map_err(Noted::into_inner)
    }

    #[inline]
    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        let nested = self.nested(inner);
        self.visitor.visit_newtype_struct(nested).map_err(Noted::into_inner)
    }

    #[inline]
    fn visit_seq<A: SeqAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        let announced = inner.size_hint();
        self.check(announced)?;
        let elements = self.elements(inner, announced);
        self.visitor.visit_seq(elements).map_err(Noted::into_inner)
    }

    #[inline]
    fn visit_map<A: MapAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        let announced = inner.size_hint();
        self.check(announced)?;
        let elements = self.elements(inner, announced);
        self.visitor.visit_map(elements).map_err(Noted::into_inner)
    }

    #[inline]
    fn visit_enum<A: EnumAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        let Self { visitor, source, guard, depth, .. } = self;
        let variants = Variants { inner, source, guard, depth };
        visitor.visit_enum(variants).map_err(Noted::into_inner)
    }
}

/// Access to the elements of a container.
struct Elements<'g, A, P> {
    inner: A,
    source: P,
    guard: &'g Guard,
    depth: u32,
    naming: Naming,
    /// Elements of a counted container.
    announced: usize,
    index: usize,
    /// The field that was read last, in a format with names.
    #[cfg(feature = "msgpack")]
    field: Cell<Option<usize>>,
}

impl<'g, A, P: Copy> Elements<'g, A, P> {
    /// Refuses elements that take too much memory, before the first one: their type is known only
    /// here.
    #[inline]
    fn check_memory<T, E: Error>(&self) -> Result<(), E> {
        if self.index > 0 || self.guard.claim_memory(self.announced, size_of::<T>()) {
            return Ok(());
        }
        Err(E::custom("too much memory"))
    }

    #[inline]
    fn seed<S>(&self, seed: S) -> Seed<'g, S, P> {
        Seed { seed, source: self.source, guard: self.guard, depth: self.depth }
    }

    #[inline]
    fn located<T, E>(&mut self, result: Result<T, E>) -> Result<T, Noted<E>> {
        match result {
            Ok(value) => Ok(value),
            Err(error) => {
                self.guard.step(self.naming.step(self.index));
                Err(Noted(error))
            }
        }
    }
}

impl<'de, A: SeqAccess<'de>, P: Source<'de>> SeqAccess<'de> for Elements<'_, A, P> {
    type Error = Noted<A::Error>;

    #[inline]
    fn next_element_seed<S>(&mut self, seed: S) -> Result<Option<S::Value>, Noted<A::Error>>
    where
        S: DeserializeSeed<'de>,
    {
        self.check_memory::<S::Value, Noted<A::Error>>()?;
        let result = self.inner.next_element_seed(self.seed(seed));
        let element = self.located(result)?;
        self.index += 1;
        Ok(element)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, A: MapAccess<'de>, P: Source<'de>> MapAccess<'de> for Elements<'_, A, P> {
    type Error = Noted<A::Error>;

    #[inline]
    fn next_key_seed<S>(&mut self, seed: S) -> Result<Option<S::Value>, Noted<A::Error>>
    where
        S: DeserializeSeed<'de>,
    {
        self.check_memory::<S::Value, Noted<A::Error>>()?;
        #[cfg(feature = "msgpack")]
        if P::HAS_NAMES
            && let Naming::Fields(names) = self.naming
        {
            let seed = Key(self.seed(seed), Fields { names, last: &self.field });
            let key = self.inner.next_key_seed(seed).map_err(Noted)?;
            // For the error of the value.
            self.index = self.field.get().unwrap_or(names.len());
            return Ok(key);
        }
        let result = self.inner.next_key_seed(self.seed(seed));
        self.located(result)
    }

    #[inline]
    fn next_value_seed<S>(&mut self, seed: S) -> Result<S::Value, Noted<A::Error>>
    where
        S: DeserializeSeed<'de>,
    {
        self.check_memory::<S::Value, Noted<A::Error>>()?;
        let result = self.inner.next_value_seed(self.seed(seed));
        let value = self.located(result)?;
        self.index += 1;
        Ok(value)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

/// Access to an enum: first the variant, then its contents.
struct Variants<'g, A, P> {
    inner: A,
    source: P,
    guard: &'g Guard,
    depth: u32,
}

impl<'de, 'g, A: EnumAccess<'de>, P: Source<'de>> EnumAccess<'de> for Variants<'g, A, P> {
    type Error = Noted<A::Error>;
    type Variant = Variants<'g, A::Variant, P>;

    #[inline]
    fn variant_seed<S>(self, seed: S) -> Result<(S::Value, Self::Variant), Noted<A::Error>>
    where
        S: DeserializeSeed<'de>,
    {
        let Self { inner, source, guard, depth } = self;
        let (value, inner) = inner.variant_seed(Variant(seed)).map_err(Noted)?;
        Ok((value, Variants { inner, source, guard, depth }))
    }
}

impl<'g, A, P: Copy> Variants<'g, A, P> {
    #[inline]
    fn contents<V>(&self, visitor: V, naming: Naming) -> Contents<'g, V, P> {
        let Self { source, guard, depth, .. } = *self;
        Contents { visitor, source, guard, depth, naming, counted: false }
    }
}

impl<'de, A: VariantAccess<'de>, P: Source<'de>> VariantAccess<'de> for Variants<'_, A, P> {
    type Error = Noted<A::Error>;

    #[inline]
    fn unit_variant(self) -> Result<(), Noted<A::Error>> {
        self.inner.unit_variant().map_err(Noted)
    }

    #[inline]
    fn newtype_variant_seed<S>(self, seed: S) -> Result<S::Value, Noted<A::Error>>
    where
        S: DeserializeSeed<'de>,
    {
        let Self { inner, source, guard, depth } = self;
        inner.newtype_variant_seed(Seed { seed, source, guard, depth }).map_err(Noted)
    }

    #[inline]
    fn tuple_variant<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Noted<A::Error>> {
        let contents = self.contents(visitor, Naming::Positions);
        self.inner.tuple_variant(len, contents).map_err(Noted)
    }

    #[inline]
    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Noted<A::Error>> {
        let contents = self.contents(visitor, Naming::Fields(fields));
        self.inner.struct_variant(fields, contents).map_err(Noted)
    }
}

/// The index of a variant, whose rejection is recorded too.
struct Variant<T>(T);

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Variant<S> {
    type Value = S::Value;

    #[inline]
    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Variant(inner)).map_err(Noted::into_inner)
    }
}

// Formats pass a plain number.
impl<'de, D: Deserializer<'de>> Deserializer<'de> for Variant<D> {
    type Error = Noted<D::Error>;

    #[inline]
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        self.0.deserialize_any(Leaf(visitor)).map_err(Noted)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }

    #[inline]
    fn is_human_readable(&self) -> bool {
        false
    }
}
