//! What is inside of what differs: elements, entries, fields, and the contents of variants.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{StrDeserializer, U32Deserializer};
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

use super::ask::{Ask, Struct, Tuple};
use super::skip::Skip;
use super::{At, Part, Step};
use crate::plan::{self, Chosen, Op, OpId};
use crate::schema::Id;

/// The ops of elements.
#[derive(Clone, Copy)]
enum Ops<'p> {
    /// All alike.
    Each(OpId),
    Tuple(&'p [OpId]),
}

/// Visits a list or a tuple, and gives its elements.
pub(super) struct Parts<'p, V> {
    at: At<'p>,
    ops: Ops<'p>,
    visitor: V,
}

impl<'p, V> Parts<'p, V> {
    pub(super) fn each(at: At<'p>, visitor: V) -> Self {
        Self { at, ops: Ops::Each(at.op), visitor }
    }

    pub(super) fn tuple(at: At<'p>, ops: &'p [OpId], visitor: V) -> Self {
        Self { at, ops: Ops::Tuple(ops), visitor }
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Parts<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, from: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_seq(Elements { at: self.at, ops: self.ops, next: 0, from })
    }
}

struct Elements<'p, A> {
    at: At<'p>,
    ops: Ops<'p>,
    next: usize,
    from: A,
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Elements<'_, A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        let At { plan, path, .. } = self.at;
        let at = self.next;
        let (op, step) = match self.ops {
            Ops::Each(op) => (op, Step::Item),
            Ops::Tuple(ops) => match ops.get(at) {
                Some(op) => (*op, Step::Index(at)),
                None => return Ok(None),
            },
        };
        self.next += 1;
        let path = &path.then(step);
        self.from.next_element_seed(Part { plan, op, path, seed })
    }

    fn size_hint(&self) -> Option<usize> {
        self.from.size_hint()
    }
}

/// Visits a map, and gives its entries.
pub(super) struct Entries<'p, V> {
    at: At<'p>,
    key: OpId,
    value: OpId,
    visitor: V,
}

impl<'p, V> Entries<'p, V> {
    pub(super) fn new(at: At<'p>, key: OpId, value: OpId, visitor: V) -> Self {
        Self { at, key, value, visitor }
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Entries<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, from: A) -> Result<V::Value, A::Error> {
        let Self { at, key, value, visitor } = self;
        visitor.visit_map(Pairs { at, key, value, from })
    }
}

struct Pairs<'p, A> {
    at: At<'p>,
    key: OpId,
    value: OpId,
    from: A,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Pairs<'_, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        let At { plan, path, .. } = self.at;
        let path = &path.then(Step::Key);
        self.from.next_key_seed(Part { plan, op: self.key, path, seed })
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        let At { plan, path, .. } = self.at;
        let path = &path.then(Step::Value);
        self.from.next_value_seed(Part { plan, op: self.value, path, seed })
    }

    fn size_hint(&self) -> Option<usize> {
        self.from.size_hint()
    }
}

/// Visits the fields that the writer has, and gives them by the reader's names.
pub(super) struct Fields<'p, V> {
    at: At<'p>,
    parts: &'p [plan::Part],
    visitor: V,
}

impl<'p, V> Fields<'p, V> {
    pub(super) fn new(at: At<'p>, parts: &'p [plan::Part], visitor: V) -> Self {
        Self { at, parts, visitor }
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Fields<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, from: A) -> Result<V::Value, A::Error> {
        let Self { at, parts, visitor } = self;
        let mut named = Named { at, left: parts, current: None, from };
        let value = visitor.visit_map(&mut named)?;
        // What is left would be taken for what follows.
        match named.left.is_empty() && named.current.is_none() {
            true => Ok(value),
            false => Err(at.path.error("the type did not read all fields")),
        }
    }
}

struct Named<'p, A> {
    at: At<'p>,
    left: &'p [plan::Part],
    /// The field whose name was given.
    current: Option<(&'p str, OpId)>,
    from: A,
}

impl<'de, A: SeqAccess<'de>> Named<'_, A> {
    fn missing<T>(&self) -> Result<T, A::Error> {
        Err(self.at.path.error("a field is missing in the message"))
    }

    fn skip(&mut self, id: Id) -> Result<(), A::Error> {
        let plan = self.at.plan;
        match self.from.next_element_seed(Skip { plan, id })? {
            Some(()) => Ok(()),
            None => self.missing(),
        }
    }
}

impl<'de, A: SeqAccess<'de>> MapAccess<'de> for &mut Named<'_, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        if self.current.is_some() {
            return Err(self.at.path.error("a name was asked for before its value"));
        }
        while let Some((part, left)) = self.left.split_first() {
            self.left = left;
            match part {
                plan::Part::Take { name, op } => {
                    self.current = Some((name, *op));
                    let name: StrDeserializer<'_, A::Error> = (**name).into_deserializer();
                    return seed.deserialize(name).map(Some);
                }
                plan::Part::Skip(id) => self.skip(*id)?,
            }
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        let At { plan, path, .. } = self.at;
        let Some((name, op)) = self.current.take() else {
            return Err(path.error("a value was asked for before its name"));
        };
        let path = &path.then(Step::Field(name));
        match self.from.next_element_seed(Part { plan, op, path, seed })? {
            Some(value) => Ok(value),
            None => self.missing(),
        }
    }
}

/// The contents of a variant, under the reader's number of it.
pub(super) struct Contents<'p, A> {
    pub(super) at: At<'p>,
    pub(super) chosen: &'p Chosen,
    pub(super) from: A,
}

impl<'de, A: VariantAccess<'de>> EnumAccess<'de> for Contents<'_, A> {
    type Error = A::Error;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), A::Error> {
        let to = match self.chosen {
            Chosen::Take { to, .. } | Chosen::Other { to, .. } => *to,
            Chosen::Missing(_) => return Err(self.at.path.error("an unknown variant")),
        };
        let number: U32Deserializer<A::Error> = to.into_deserializer();
        Ok((seed.deserialize(number)?, self))
    }
}

impl<'de, 'p, A: VariantAccess<'de>> Contents<'p, A> {
    /// Reads what the variant holds. Its bytes follow the number, whatever kind it is of.
    fn read<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        let At { plan, path, .. } = self.at;
        match self.chosen {
            Chosen::Take { name, op, .. } => {
                let path = &path.then(Step::Variant(name));
                self.from.newtype_variant_seed(Part { plan, op: *op, path, seed })
            }
            Chosen::Other { .. } | Chosen::Missing(_) => {
                Err(path.error("the type asks for the contents of a variant that it lacks"))
            }
        }
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Contents<'_, A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        let plan = self.at.plan;
        match self.chosen {
            Chosen::Other { contents, .. } if plan.empty[*contents] => self.from.unit_variant(),
            Chosen::Other { contents, .. } => {
                self.from.newtype_variant_seed(Skip { plan, id: *contents })
            }
            Chosen::Take { op, .. } if plan.ops[*op] == Op::Same => self.from.unit_variant(),
            _ => self.read(PhantomData),
        }
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.read(seed)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.read(Asked { ask: Tuple(len), visitor })
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.read(Asked { ask: Struct("", fields), visitor })
    }
}

/// Asks for something, and visits it.
struct Asked<A, V> {
    ask: A,
    visitor: V,
}

impl<'de, A: Ask, V: Visitor<'de>> DeserializeSeed<'de> for Asked<A, V> {
    type Value = V::Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<V::Value, D::Error> {
        self.ask.of(from, self.visitor)
    }
}
