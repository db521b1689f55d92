//! Shows the fields of a struct, by name.
//!
//! Owns the order in which they are shown: refused fields come last, so that they hide nothing.

use std::any::type_name;

use serde::de::value::{BorrowedStrDeserializer, UnitDeserializer};
use serde::de::{DeserializeSeed, MapAccess, Visitor};

use super::derive::{is_derived, is_derived_key, key_of};
use super::read::{At, Elements};
use super::trace::{Round, STRANGER, Stopped, Traced};
use super::tree::{Cause, QUIET, Stranger, What};

impl At<'_> {
    /// Traces fields: by name, if serde's derive reads them, so that what is refused comes last.
    pub(super) fn fields<V: Visitor<'static>>(
        &mut self,
        names: &'static [&'static str],
        visitor: V,
    ) -> Traced<V::Value> {
        if self.id == QUIET || !is_derived::<V>() {
            return visitor.visit_seq(Elements::new(self, names.len()));
        }
        // Fields that may be absent are left out once all else has been seen.
        let tree = &self.trace.tree;
        let is_bare = self.trace.is_zero
            && tree.get(self.id).zip(tree.names(self.id)).is_some_and(|(node, names)| {
                let is_settled = |field| self.trace.is_settled(tree.part(self.id, field));
                !node.was_bare && (0..names.len()).all(is_settled)
            });
        let stranger = Asking::of(is_bare && self.trace.asks_stranger(type_name::<V>()));
        let (given, next) = (Vec::new(), [0; 2]);
        let mut fields = Fields { at: self, given, current: None, next, is_bare, stranger };
        let visited = visitor.visit_map(&mut fields);
        let asked = fields.stranger;
        match asked {
            Asking::Skipped => {
                self.trace.strangers.insert(type_name::<V>(), Stranger::Skipped);
            }
            Asking::Refused => {
                self.trace.strangers.insert(type_name::<V>(), Stranger::Refused);
            }
            Asking::No | Asking::Next => {}
        }
        let stranger = self.trace.strangers.get(type_name::<V>()).copied();
        if let Some(node) = self.trace.tree.get_mut(self.id) {
            node.stranger = stranger;
        }
        if asked == Asking::Refused {
            // The run ends here; what can be left out is found in the next one.
            self.trace.has_more();
            return visited;
        }
        self.after_fields(is_bare, visited.as_ref().err());
        visited
    }

    /// Learns from how reading the fields has ended.
    fn after_fields(&mut self, is_bare: bool, stopped: Option<&Stopped>) {
        let Self { trace, id } = self;
        let id = *id;
        let told = match stopped {
            Some(Stopped::Missing(name) | Stopped::Twice(name)) => Some(*name),
            _ => None,
        };
        let field = told.and_then(|name| {
            let names = trace.tree.names_mut(id)?;
            names.set_main(name);
            names.find(name)
        });
        let part = field.and_then(|field| trace.tree.part(id, field));
        if is_bare {
            let needed = part.and_then(|part| trace.tree.get_mut(part));
            let is_new = matches!(stopped, Some(Stopped::Missing(_)))
                && needed.is_some_and(|node| {
                    !node.is_dead && !std::mem::replace(&mut node.is_needed, true)
                });
            if is_new {
                trace.has_more();
            } else if let Some(node) = trace.tree.get_mut(id) {
                node.was_bare = true;
            }
            return;
        }
        let tree = &trace.tree;
        // Otherwise it asks the format.
        let Some(names) = tree.names(id) else { return };
        let is_known = names.next_untried().is_none();
        let count = names.len();
        let is_seen = is_known
            && (0..count).all(|field| tree.is_settled(tree.part(id, field), trace.round as u8));
        let is_unbare = tree.get(id).is_some_and(|node| !node.was_bare);
        match stopped {
            Some(Stopped::Missing(_)) if is_seen => trace.lacks(),
            Some(Stopped::Twice(_)) => trace.has_more(),
            Some(Stopped::Inside) if is_seen && trace.round == Round::Ones => trace.has_more(),
            Some(_) if !is_seen => trace.has_more(),
            None if trace.is_zero && is_unbare => trace.has_more(),
            _ => {}
        }
    }
}

/// Fields by name.
struct Fields<'a, 'b> {
    at: &'a mut At<'b>,
    given: Vec<bool>,
    /// The field whose name was given; `None`: a new or a strange one.
    current: Option<usize>,
    /// All fields before these are given or not to be chosen: among those to give first, and among
    /// those that were refused. A struct has up to thousands of fields, and as many runs.
    next: [usize; 2],
    is_bare: bool,
    stranger: Asking,
}

/// Whether a field is given that the type does not have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asking {
    No,
    /// It comes first.
    Next,
    /// The type has refused it.
    Refused,
    /// The type skips it.
    Skipped,
}

impl Asking {
    fn of(is_asked: bool) -> Self {
        if is_asked { Self::Next } else { Self::No }
    }
}

impl Fields<'_, '_> {
    /// The name to give next: first what was accepted before, then what is new, then what was
    /// refused.
    fn choose(&mut self) -> Option<&'static str> {
        let tree = &self.at.trace.tree;
        let names = tree.names(self.at.id)?;
        let node = |field: usize| tree.part(self.at.id, field).and_then(|part| tree.get(part));
        let is_open = |field: &usize| {
            !self.given.get(*field).copied().unwrap_or(false)
                && !node(*field).is_some_and(|node| node.is_dead)
        };
        let is_first = |field: &usize| match self.is_bare {
            true => node(*field).is_some_and(|node| node.is_needed),
            false => !node(*field).is_some_and(|node| node.refuses),
        };
        let [first, last] = &mut self.next;
        self.current = (*first..names.len()).find(|field| is_open(field) && is_first(field));
        *first = self.current.unwrap_or(names.len());
        if self.current.is_none() && !self.is_bare {
            if let Some(new) = names.next_untried() {
                return Some(new);
            }
            self.current = (*last..names.len()).find(is_open);
            *last = self.current.unwrap_or(names.len());
        }
        self.current.map(|field| names.any_of(field))
    }
}

impl MapAccess<'static> for &mut Fields<'_, '_> {
    type Error = Stopped;

    fn next_key_seed<S: DeserializeSeed<'static>>(&mut self, seed: S) -> Traced<Option<S::Value>> {
        if self.stranger == Asking::Next && is_derived_key::<S::Value>() {
            self.stranger = Asking::Refused;
            let key = seed.deserialize(BorrowedStrDeserializer::<Stopped>::new(STRANGER))?;
            self.stranger = Asking::Skipped;
            self.current = None;
            return Ok(Some(key));
        }
        let Some(name) = self.choose() else { return Ok(None) };
        let key = seed.deserialize(BorrowedStrDeserializer::new(name))?;
        let id = self.at.id;
        if !is_derived_key::<S::Value>() {
            if let Some(node) = self.at.trace.tree.get_mut(id) {
                node.what = What::Anything(Cause::TagAndContent);
            }
            return Err(Stopped::Other);
        }
        let Some(names) = self.at.trace.tree.names_mut(id) else { return Err(Stopped::Other) };
        let current = self.current.unwrap_or_else(|| names.learn(key_of(&key)));
        self.current = Some(current);
        if self.given.len() <= current {
            self.given.resize(current + 1, false);
        }
        self.given[current] = true;
        Ok(Some(key))
    }

    fn next_value_seed<S: DeserializeSeed<'static>>(&mut self, seed: S) -> Traced<S::Value> {
        match self.current {
            None => seed.deserialize(UnitDeserializer::new()),
            Some(field) => self.at.part(field, seed),
        }
    }
}
