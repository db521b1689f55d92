//! A serde deserializer without input: it records the calls that a type makes, and answers with
//! made-up values.
//!
//! Owns the answer to each kind of type. [`Trace`] decides which value is shown next; `fields` and
//! `variants` show those of structs and enums.

use std::any::type_name;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::PAYLOAD;
use super::derive::{is_derived, is_set, struct_of};
use super::trace::{BYTES, LENGTHS, NUMBERS, Stopped, TEXTS, Trace, Traced};
use super::tree::{Cause, Id, Names, QUIET, What};

/// The deserializer of the value at a place.
pub(super) struct At<'a> {
    pub(super) trace: &'a mut Trace,
    pub(super) id: Id,
}

impl At<'_> {
    pub(super) fn note(&mut self, what: What) {
        self.trace.tree.note(self.id, what);
    }

    fn leaf(&mut self, name: &'static str) {
        self.note(What::Leaf(name));
        let is_zero = self.trace.is_zero;
        self.trace.show(self.id, is_zero);
    }

    fn refuse<T>(&mut self, cause: Cause) -> Traced<T> {
        self.note(What::Anything(cause));
        Err(Stopped::Other)
    }

    /// Traces a part of what is here.
    pub(super) fn part<S: DeserializeSeed<'static>>(
        &mut self,
        at: usize,
        seed: S,
    ) -> Traced<S::Value> {
        let id = self.trace.tree.part_or_new(self.id, at);
        self.trace.part(id, type_name::<S::Value>(), |trace| seed.deserialize(At { trace, id }))
    }

    /// Whether a container is shown with content: while that has more to show. After that the
    /// second round shows it empty.
    fn is_full(&mut self) -> bool {
        if self.id == QUIET {
            return false;
        }
        let parts = [0, 1].map(|at| self.trace.tree.part(self.id, at));
        if parts.iter().any(|part| self.trace.tree.is_dead(*part)) {
            return false;
        }
        let len = self.trace.tree.parts_len(self.id);
        !self.trace.is_zero
            || (LENGTHS[self.trace.candidate] > 0
                && parts.iter().take(len).any(|part| !self.trace.is_settled(*part)))
    }

    /// Traces a container that may be empty.
    fn container<T>(&mut self, trace: impl FnOnce(&mut At<'_>, bool) -> Traced<T>) -> Traced<T> {
        let is_full = self.is_full();
        let id = self.id;
        let traced = self.deeper(|at| trace(at, is_full));
        let tracing = &mut *self.trace;
        tracing.show(id, !is_full);
        let has_dead = || [0, 1].iter().any(|at| tracing.tree.is_dead(tracing.tree.part(id, *at)));
        // It is empty in the next run: because it cannot hold anything, or to be seen as that.
        if is_full && ((traced.is_err() && has_dead()) || tracing.is_zero) {
            tracing.has_more();
        }
        traced
    }

    pub(super) fn deeper<T>(&mut self, trace: impl FnOnce(&mut At<'_>) -> Traced<T>) -> Traced<T> {
        let id = self.id;
        self.trace.deeper(id, |trace_| trace(&mut At { trace: trace_, id }))
    }

    /// Traces a type with a name, which may be inside itself.
    fn nominal<T, V>(
        mut self,
        what: impl FnOnce() -> What,
        trace: impl FnOnce(&mut At<'_>) -> Traced<V>,
    ) -> Traced<V> {
        let name = type_name::<T>();
        let levels = self.trace.levels_up(name);
        let mut id = self.id;
        let here = self.id;
        if let Some((levels, outer)) = levels {
            self.note(What::Itself(levels, outer));
            id = QUIET;
        } else if id != QUIET {
            self.note(what());
        }
        self.trace.show(self.id, false);
        self.trace.within(name, here, |trace_| {
            trace_.deeper(id, |trace_| trace(&mut At { trace: trace_, id }))
        })
    }
}

/// A value without parts.
macro_rules! leaves {
    ($($method:ident $visit:ident $name:literal $type:ty;)*) => {$(
        fn $method<V: Visitor<'static>>(mut self, visitor: V) -> Traced<V::Value> {
            self.leaf($name);
            visitor.$visit(self.number() as $type)
        }
    )*};
}

impl At<'_> {
    fn number(&self) -> i8 {
        if self.trace.is_zero { 0 } else { NUMBERS[self.trace.candidate] }
    }

    fn text(&self) -> &'static str {
        if self.trace.is_zero { "" } else { TEXTS[self.trace.candidate] }
    }
}

impl Deserializer<'static> for At<'_> {
    type Error = Stopped;

    fn is_human_readable(&self) -> bool {
        false
    }

    leaves! {
        deserialize_i8 visit_i8 "i8" i8;
        deserialize_i16 visit_i16 "i16" i16;
        deserialize_i32 visit_i32 "i32" i32;
        deserialize_i64 visit_i64 "i64" i64;
        deserialize_i128 visit_i128 "i128" i128;
        deserialize_u8 visit_u8 "u8" u8;
        deserialize_u16 visit_u16 "u16" u16;
        deserialize_u32 visit_u32 "u32" u32;
        deserialize_u64 visit_u64 "u64" u64;
        deserialize_u128 visit_u128 "u128" u128;
        deserialize_f32 visit_f32 "f32" f32;
        deserialize_f64 visit_f64 "f64" f64;
    }

    fn deserialize_bool<V: Visitor<'static>>(mut self, visitor: V) -> Traced<V::Value> {
        self.leaf("bool");
        visitor.visit_bool(!self.trace.is_zero && self.trace.candidate.is_multiple_of(2))
    }

    fn deserialize_char<V: Visitor<'static>>(mut self, visitor: V) -> Traced<V::Value> {
        self.leaf("char");
        visitor.visit_char(self.text().chars().next().unwrap_or('\0'))
    }

    fn deserialize_str<V: Visitor<'static>>(mut self, visitor: V) -> Traced<V::Value> {
        self.leaf("str");
        visitor.visit_borrowed_str(self.text())
    }

    fn deserialize_string<V: Visitor<'static>>(self, visitor: V) -> Traced<V::Value> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bytes<V: Visitor<'static>>(mut self, visitor: V) -> Traced<V::Value> {
        self.leaf("bytes");
        let len = if self.trace.is_zero { 0 } else { BYTES[self.trace.candidate] };
        visitor.visit_borrowed_bytes(&[1; 64][..len])
    }

    fn deserialize_byte_buf<V: Visitor<'static>>(self, visitor: V) -> Traced<V::Value> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_unit<V: Visitor<'static>>(mut self, visitor: V) -> Traced<V::Value> {
        self.note(What::Leaf("nothing"));
        self.trace.show(self.id, false);
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'static>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Traced<V::Value> {
        self.deserialize_unit(visitor)
    }

    /// Has no bytes of its own.
    fn deserialize_newtype_struct<V: Visitor<'static>>(
        mut self,
        name: &'static str,
        visitor: V,
    ) -> Traced<V::Value> {
        if name.starts_with("$serde_json::") {
            return self.refuse(Cause::RawValue);
        }
        self.trace.has_bulk |= name == PAYLOAD;
        self.deeper(|at| visitor.visit_newtype_struct(At { trace: at.trace, id: at.id }))
    }

    fn deserialize_option<V: Visitor<'static>>(mut self, visitor: V) -> Traced<V::Value> {
        self.note(What::Option);
        self.container(|at, is_full| {
            if !is_full {
                return visitor.visit_none();
            }
            let id = at.trace.tree.part_or_new(at.id, 0);
            at.trace.part(id, "", |trace| visitor.visit_some(At { trace, id }))
        })
    }

    fn deserialize_seq<V: Visitor<'static>>(mut self, visitor: V) -> Traced<V::Value> {
        self.note(What::Sequence);
        if let Some(node) = self.trace.tree.get_mut(self.id) {
            node.is_set = is_set::<V::Value>();
        }
        let len = LENGTHS[self.trace.candidate];
        self.container(|at, is_full| {
            visitor.visit_seq(Elements::repeated(at, if is_full { len } else { 0 }, 1))
        })
    }

    fn deserialize_map<V: Visitor<'static>>(mut self, visitor: V) -> Traced<V::Value> {
        if is_derived::<V>() {
            return self.refuse(Cause::Flatten);
        }
        self.note(What::Map);
        let len = LENGTHS[self.trace.candidate];
        self.container(|at, is_full| {
            visitor.visit_map(Elements::repeated(at, if is_full { 2 * len } else { 0 }, 2))
        })
    }

    fn deserialize_tuple<V: Visitor<'static>>(
        mut self,
        len: usize,
        visitor: V,
    ) -> Traced<V::Value> {
        self.note(What::Tuple(len));
        self.trace.show(self.id, false);
        self.deeper(|at| visitor.visit_seq(Elements::new(at, len)))
    }

    fn deserialize_tuple_struct<V: Visitor<'static>>(
        self,
        _: &'static str,
        len: usize,
        visitor: V,
    ) -> Traced<V::Value> {
        self.nominal::<V::Value, _>(
            || What::Tuple(len),
            |at| visitor.visit_seq(Elements::new(at, len)),
        )
    }

    fn deserialize_struct<V: Visitor<'static>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Traced<V::Value> {
        self.nominal::<V::Value, _>(|| struct_of::<V>(fields), |at| at.fields(fields, visitor))
    }

    fn deserialize_enum<V: Visitor<'static>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Traced<V::Value> {
        let what = || match is_derived::<V>() {
            true => What::Enum(Names::untried(variants)),
            false => What::Enum(Names::distinct(variants)),
        };
        self.nominal::<V::Value, _>(what, |at| {
            if at.id != QUIET {
                return at.variants(visitor);
            }
            at.quiet_variant(variants.len(), visitor)
        })
    }

    fn deserialize_any<V: Visitor<'static>>(mut self, _: V) -> Traced<V::Value> {
        let (visitor, value) = (type_name::<V>(), type_name::<V::Value>());
        let cause = if visitor.contains("TaggedContentVisitor") {
            Cause::Tag
        } else if visitor.contains("ContentVisitor") {
            Cause::Untagged
        } else if value.starts_with("serde_json::") {
            Cause::Json
        } else if value.starts_with("rust_decimal::") || visitor.contains("rust_decimal::") {
            Cause::Decimal
        } else {
            Cause::Other
        };
        self.refuse(cause)
    }

    fn deserialize_identifier<V: Visitor<'static>>(self, visitor: V) -> Traced<V::Value> {
        self.deserialize_any(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'static>>(self, visitor: V) -> Traced<V::Value> {
        self.deserialize_any(visitor)
    }
}

/// Parts in one order.
pub(super) struct Elements<'a, 'b> {
    at: &'a mut At<'b>,
    next: usize,
    count: usize,
    /// The number of parts after which it begins anew.
    period: usize,
}

impl<'a, 'b> Elements<'a, 'b> {
    pub(super) fn new(at: &'a mut At<'b>, count: usize) -> Self {
        Self { at, next: 0, count, period: count.max(1) }
    }

    fn repeated(at: &'a mut At<'b>, count: usize, period: usize) -> Self {
        Self { at, next: 0, count, period }
    }

    fn next<S: DeserializeSeed<'static>>(&mut self, seed: S) -> Traced<S::Value> {
        let part = self.next % self.period;
        self.next += 1;
        self.at.part(part, seed)
    }
}

impl SeqAccess<'static> for Elements<'_, '_> {
    type Error = Stopped;

    fn next_element_seed<S: DeserializeSeed<'static>>(
        &mut self,
        seed: S,
    ) -> Traced<Option<S::Value>> {
        if self.next == self.count { Ok(None) } else { self.next(seed).map(Some) }
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.count - self.next)
    }
}

impl MapAccess<'static> for Elements<'_, '_> {
    type Error = Stopped;

    fn next_key_seed<S: DeserializeSeed<'static>>(&mut self, seed: S) -> Traced<Option<S::Value>> {
        if self.next == self.count { Ok(None) } else { self.next(seed).map(Some) }
    }

    fn next_value_seed<S: DeserializeSeed<'static>>(&mut self, seed: S) -> Traced<S::Value> {
        self.next(seed)
    }
}
