//! Shows the variants of an enum, one in each run.

use std::any::type_name;

use serde::de::value::{BorrowedStrDeserializer, U32Deserializer};
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, VariantAccess, Visitor,
};

use super::derive::{is_derived, is_derived_key, key_of, struct_of};
use super::read::At;
use super::trace::{STRANGER, Stopped, Traced};
use super::tree::{Names, QUIET, Stranger, What};

impl At<'_> {
    /// Shows a variant that was not seen yet, or one with more inside, or else one that is
    /// accepted. New ones go first: what holds this type again needs a variant that ends.
    pub(super) fn variants<V: Visitor<'static>>(&mut self, visitor: V) -> Traced<V::Value> {
        let id = self.id;
        let tree = &self.trace.tree;
        let count = tree.parts_len(id);
        let part = |at: usize| tree.part(id, at);
        let is_unseen = |at: &usize| !self.trace.is_settled(part(*at));
        let is_fine =
            |at: &usize| part(*at).and_then(|part| tree.get(part)).is_some_and(|it| !it.refuses);
        let open = (0..count).find(is_unseen);
        let new = tree.names(id).and_then(Names::next_untried);
        let is_asked =
            new.is_none() && is_derived::<V>() && self.trace.asks_stranger(type_name::<V>());
        let shown = match (open, new) {
            _ if is_asked => Shown::Stranger,
            (_, Some(name)) => Shown::New(name),
            (Some(open), None) => Shown::Known(open),
            (None, None) => Shown::Known((0..count).find(is_fine).unwrap_or(0)),
        };
        self.trace.other = None;
        let visited = visitor.visit_enum(Variant { at: self, shown });
        let chosen = match shown {
            Shown::Known(at) | Shown::Number(at) => Some(at),
            Shown::New(name) => self.trace.tree.names(id).and_then(|names| names.find(name)),
            Shown::Stranger => self.trace.other,
        };
        if is_asked {
            let stranger = self.trace.other.map_or(Stranger::Refused, Stranger::Other);
            self.trace.strangers.insert(type_name::<V>(), stranger);
        }
        let stranger = self.trace.strangers.get(type_name::<V>()).copied();
        if let Some(node) = self.trace.tree.get_mut(id) {
            node.stranger = stranger;
        }
        if is_asked && chosen.is_none() {
            self.trace.has_more();
            return visited;
        }
        if let Some(chosen) = chosen.filter(|_| visited.is_ok()) {
            // If it is the first, it does not hold this type again.
            self.trace.ends.entry(type_name::<V::Value>()).or_insert(chosen);
        }
        // A variant that is never asked for what it holds.
        if let Some(chosen) = chosen.filter(|at| self.trace.tree.part(id, *at).is_none()) {
            let part = self.trace.tree.part_or_new(id, chosen);
            self.trace.close(part, visited.is_err());
        }
        let tree = &self.trace.tree;
        let count = tree.parts_len(id);
        let part = |at: usize| tree.part(id, at);
        let is_new = tree.names(id).is_some_and(|names| names.next_untried().is_some());
        let has_unseen = (0..count).any(|at| !self.trace.is_settled(part(at)));
        let is_fine = |at: usize| {
            part(at).and_then(|part| tree.get(part)).is_some_and(|it| !it.refuses && !it.is_dead)
        };
        if is_new || has_unseen || (visited.is_err() && (0..count).any(is_fine)) {
            self.trace.has_more();
        }
        visited
    }

    /// Shows a variant of a type that is inside itself: another one at each level of this type,
    /// until one is found that ends.
    pub(super) fn quiet_variant<V: Visitor<'static>>(
        &mut self,
        count: usize,
        visitor: V,
    ) -> Traced<V::Value> {
        let name = type_name::<V::Value>();
        let known = self.trace.ends.get(name).copied();
        let turn = (self.trace.levels_of(name) + self.trace.candidate) % count.max(1);
        let variant = known.unwrap_or(turn);
        let shown = Shown::Number(variant);
        let value = visitor.visit_enum(Variant { at: &mut *self, shown })?;
        // The first variant that was found: the variants around it end because of it.
        self.trace.ends.entry(name).or_insert(variant);
        Ok(value)
    }
}

/// Which variant is shown.
#[derive(Clone, Copy)]
enum Shown {
    /// Of a type inside itself.
    Number(usize),
    Known(usize),
    New(&'static str),
    /// One that the type does not have.
    Stranger,
}

/// One variant of an enum.
struct Variant<'a, 'b> {
    at: &'a mut At<'b>,
    shown: Shown,
}

impl<'a, 'b> EnumAccess<'static> for Variant<'a, 'b> {
    type Error = Stopped;
    type Variant = Contents<'a, 'b>;

    fn variant_seed<S: DeserializeSeed<'static>>(
        self,
        seed: S,
    ) -> Traced<(S::Value, Contents<'a, 'b>)> {
        let id = self.at.id;
        let by_name = is_derived_key::<S::Value>();
        let number = |at: usize| -> U32Deserializer<Stopped> {
            u32::try_from(at).unwrap_or(u32::MAX).into_deserializer()
        };
        let (key, variant) = match self.shown {
            Shown::Number(at) | Shown::Known(at) if !by_name || id == QUIET => {
                (seed.deserialize(number(at))?, at)
            }
            Shown::Number(at) | Shown::Known(at) => {
                let name = self.at.trace.tree.names(id).map_or("", |names| names.any_of(at));
                (seed.deserialize(BorrowedStrDeserializer::new(name))?, at)
            }
            Shown::Stranger => {
                let key = seed.deserialize(BorrowedStrDeserializer::<Stopped>::new(STRANGER))?;
                let names = self.at.trace.tree.names(id);
                let at = names.and_then(|names| names.with_key(key_of(&key)));
                self.at.trace.other = at;
                (key, at.ok_or(Stopped::Other)?)
            }
            Shown::New(name) => {
                let key = seed.deserialize(BorrowedStrDeserializer::<Stopped>::new(name))?;
                let names = self.at.trace.tree.names_mut(id).ok_or(Stopped::Other)?;
                let at = names.learn(key_of(&key));
                (key, at)
            }
        };
        // Its first variant is one zero byte, if there is nothing in it.
        self.at.trace.show(id, false);
        Ok((key, Contents { at: self.at, variant }))
    }
}

/// What a variant holds.
struct Contents<'a, 'b> {
    at: &'a mut At<'b>,
    variant: usize,
}

impl Contents<'_, '_> {
    fn part<T>(
        self,
        type_name: &'static str,
        trace: impl FnOnce(At<'_>) -> Traced<T>,
    ) -> Traced<T> {
        let id = self.at.trace.tree.part_or_new(self.at.id, self.variant);
        self.at.trace.part(id, type_name, |tracing| trace(At { trace: tracing, id }))
    }
}

impl VariantAccess<'static> for Contents<'_, '_> {
    type Error = Stopped;

    fn unit_variant(self) -> Traced<()> {
        let (id, is_first) = (self.at.id, self.variant == 0);
        self.at.trace.show(id, is_first);
        self.part("", |mut at| {
            at.note(What::Leaf("nothing"));
            Ok(())
        })
    }

    fn newtype_variant_seed<S: DeserializeSeed<'static>>(self, seed: S) -> Traced<S::Value> {
        self.part(type_name::<S::Value>(), |at| seed.deserialize(at))
    }

    fn tuple_variant<V: Visitor<'static>>(self, len: usize, visitor: V) -> Traced<V::Value> {
        self.part("", |at| at.deserialize_tuple(len, visitor))
    }

    fn struct_variant<V: Visitor<'static>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Traced<V::Value> {
        self.part("", |mut at| {
            at.note(struct_of::<V>(fields));
            at.trace.show(at.id, false);
            at.deeper(|at| at.fields(fields, visitor))
        })
    }
}
