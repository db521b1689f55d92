//! What docs/changing-types.md says of a value and of two versions of its type.
//!
//! Written apart from plans: it goes through values, and looks names up each time. It has no limits
//! and takes any time.

use std::collections::HashSet;

use rpc_schema::Schema;
use rpc_schema::schema::{Absent, Field, Id, Type, Variant};
use rpc_schema::value::Data;

use crate::typed::{Read, fits};

/// Two versions of a type.
pub(crate) struct Oracle<'a> {
    pub(crate) writer: &'a Schema,
    pub(crate) reader: &'a Schema,
}

type Pairs = HashSet<(Id, Id)>;

/// The first of the writer's names that the reader knows, as a name or else as an alias.
fn find<'a>(
    (name, aliases): (&String, &[String]),
    known: impl Iterator<Item = (&'a String, &'a [String])> + Clone,
) -> Option<usize> {
    std::iter::once(name).chain(aliases).find_map(|name| {
        let main = known.clone().position(|(other, _)| other == name);
        main.or_else(|| known.clone().position(|(_, aliases)| aliases.contains(name)))
    })
}

fn field(of: &Field, all: &[Field]) -> Option<usize> {
    find((&of.name, &of.aliases), all.iter().map(|it| (&it.name, it.aliases.as_slice())))
}

fn variant(of: &Variant, all: &[Variant]) -> Option<usize> {
    find((&of.name, &of.aliases), all.iter().map(|it| (&it.name, it.aliases.as_slice())))
}

/// Whether each field has one place at the reader, and the reader has all that it needs.
fn have_places(from: &[Field], to: &[Field], denies_unknown: bool) -> bool {
    let mut given = vec![false; to.len()];
    let each = from.iter().all(|it| match field(it, to) {
        Some(at) => !std::mem::replace(&mut given[at], true),
        None => !denies_unknown,
    });
    each && to.iter().zip(given).all(|(it, given)| given || it.absent != Absent::Refused)
}

impl Oracle<'_> {
    /// Whether values can be read at all. What a variant holds decides for its values alone.
    pub(crate) fn fits(&self, from: Id, to: Id) -> bool {
        self.fits_within(from, to, &mut Pairs::new())
    }

    fn fits_within(&self, from: Id, to: Id, seen: &mut Pairs) -> bool {
        if !seen.insert((from, to)) {
            return true;
        }
        match (self.writer.get(from), self.reader.get(to)) {
            (Type::Option(from), Type::Option(to)) => self.fits_within(*from, *to, seen),
            (_, Type::Option(to)) => self.fits_within(from, *to, seen),
            (Type::Option(from), _) => self.fits_within(*from, to, seen),
            (Type::Int(_), Type::Int(_)) | (Type::F32 | Type::F64, Type::F32 | Type::F64) => true,
            (Type::Sequence(from) | Type::Set(from), Type::Sequence(to)) => {
                self.fits_within(*from, *to, seen)
            }
            (Type::Sequence(from) | Type::Set(from), Type::Set(to)) => {
                self.fits_within(*from, *to, seen) && self.keeps_apart(*from, *to)
            }
            (Type::Map(key, value), Type::Map(to_key, to_value)) => {
                self.fits_within(*key, *to_key, seen)
                    && self.fits_within(*value, *to_value, seen)
                    && self.keeps_apart(*key, *to_key)
            }
            (Type::Tuple(from), Type::Tuple(to)) => {
                from.len() == to.len()
                    && from.iter().zip(to).all(|(from, to)| self.fits_within(*from, *to, seen))
            }
            (Type::Struct { fields: from, .. }, Type::Struct { fields: to, denies_unknown }) => {
                self.fields_fit(from, to, *denies_unknown, seen)
            }
            (Type::Nothing, Type::Struct { fields, denies_unknown }) => {
                self.fields_fit(&[], fields, *denies_unknown, seen)
            }
            (Type::Enum { .. }, Type::Enum { .. }) => true,
            (from, to) => from == to,
        }
    }

    fn fields_fit(&self, from: &[Field], to: &[Field], denies: bool, seen: &mut Pairs) -> bool {
        let pairs = from.iter().filter_map(|it| Some((it.id, to[field(it, to)?].id)));
        have_places(from, to, denies)
            && pairs.into_iter().all(|(from, to)| self.fits_within(from, to, seen))
    }

    /// Whether different values of the writer are never equal at the reader. A struct or tuple that
    /// is never read makes none equal.
    fn keeps_apart(&self, from: Id, to: Id) -> bool {
        self.keeps_apart_within(from, to, &mut Pairs::new())
    }

    fn keeps_apart_within(&self, from: Id, to: Id, seen: &mut Pairs) -> bool {
        if !seen.insert((from, to)) {
            return true;
        }
        let mut inside = |from: Id, to: Id| self.keeps_apart_within(from, to, seen);
        match (self.writer.get(from), self.reader.get(to)) {
            (Type::Option(from), Type::Option(to)) => inside(*from, *to),
            (_, Type::Option(to)) => inside(from, *to),
            (Type::Option(from), _) => inside(*from, to),
            (Type::F64, Type::F32) => false,
            (Type::Sequence(from) | Type::Set(from), Type::Sequence(to) | Type::Set(to)) => {
                inside(*from, *to)
            }
            (Type::Map(key, value), Type::Map(to_key, to_value)) => {
                inside(*key, *to_key) && inside(*value, *to_value)
            }
            (Type::Tuple(from), Type::Tuple(to)) => {
                from.len() != to.len() || from.iter().zip(to).all(|(from, to)| inside(*from, *to))
            }
            (Type::Struct { fields: from, .. }, Type::Struct { fields: to, denies_unknown })
                if have_places(from, to, *denies_unknown) =>
            {
                from.iter().all(|it| match field(it, to) {
                    Some(at) => inside(it.id, to[at].id),
                    None => self.is_empty(it.id),
                })
            }
            (Type::Enum { variants: from, .. }, Type::Enum { variants: to, other }) => {
                let mut taken = HashSet::new();
                from.iter().all(|it| match (variant(it, to).or(*other), other) {
                    (None, _) => true,
                    (Some(at), Some(other)) if at == *other => {
                        taken.insert(at) && self.is_empty(it.id)
                    }
                    (Some(at), _) => taken.insert(at) && inside(it.id, to[at].id),
                })
            }
            _ => true,
        }
    }

    /// Whether all values of a type of the writer are equal.
    fn is_empty(&self, id: Id) -> bool {
        match self.writer.get(id) {
            Type::Nothing => true,
            Type::Tuple(ids) => ids.iter().all(|id| self.is_empty(*id)),
            Type::Struct { fields, .. } => fields.iter().all(|it| self.is_empty(it.id)),
            _ => false,
        }
    }

    /// What a value becomes. `None`: it ends its call, as a part of it does not fit.
    pub(crate) fn read(&self, from: Id, to: Id, data: &Data) -> Option<Read> {
        Some(match (self.writer.get(from), self.reader.get(to), data) {
            (Type::Option(_), Type::Option(_), Data::None) => Read::None,
            (Type::Option(from), Type::Option(to), Data::Some(data)) => {
                Read::Some(Box::new(self.read(*from, *to, data)?))
            }
            (_, Type::Option(to), data) => Read::Some(Box::new(self.read(from, *to, data)?)),
            (_, _, Data::None) => return None,
            (Type::Option(from), _, Data::Some(data)) => self.read(*from, to, data)?,
            (Type::Int(_), Type::Int(int), Data::Int(_, value)) => {
                fits(*int, *value).then_some(Read::Int(*value))?
            }
            (Type::Int(_), Type::Int(int), Data::U128(value)) => {
                let value = i128::try_from(*value).ok()?;
                fits(*int, value).then_some(Read::Int(value))?
            }
            (_, Type::F32 | Type::F64, Data::F32(value)) => Read::Float(f64::from(*value)),
            (_, Type::F64, Data::F64(value)) => Read::Float(*value),
            (_, Type::F32, Data::F64(value)) => {
                #[expect(clippy::cast_possible_truncation, reason = "rounded, as is every f32")]
                let rounded = *value as f32;
                rounded.is_finite().then_some(Read::Float(rounded.into()))?
            }
            (_, Type::Bool, Data::Bool(value)) => Read::Bool(*value),
            (_, Type::Char, Data::Char(value)) => Read::Text(value.to_string()),
            (_, Type::Str, Data::Str(value)) => Read::Text(value.clone()),
            (_, Type::Bytes, Data::Bytes(value)) => Read::Bytes(value.clone()),
            (
                Type::Sequence(from) | Type::Set(from),
                list @ (Type::Sequence(to) | Type::Set(to)),
                Data::Sequence(all),
            ) => {
                if matches!(list, Type::Set(_)) && !self.keeps_apart(*from, *to) {
                    return None;
                }
                let all = all.iter().map(|data| self.read(*from, *to, data));
                Read::List(all.collect::<Option<_>>()?)
            }
            (Type::Map(key, value), Type::Map(to_key, to_value), Data::Map(all)) => {
                if !self.keeps_apart(*key, *to_key) {
                    return None;
                }
                let entry = |(k, v): &(Data, Data)| {
                    Some((self.read(*key, *to_key, k)?, self.read(*value, *to_value, v)?))
                };
                let mut all = all.iter().map(entry).collect::<Option<Vec<_>>>()?;
                all.sort_by_key(|(key, _)| format!("{key:?}"));
                Read::Map(all)
            }
            (Type::Tuple(from), Type::Tuple(to), Data::Tuple(all)) if from.len() == to.len() => {
                let ids = from.iter().zip(to).zip(all);
                let all = ids.map(|((from, to), data)| self.read(*from, *to, data));
                Read::List(all.collect::<Option<_>>()?)
            }
            (
                Type::Struct { fields: from, .. },
                Type::Struct { fields: to, denies_unknown },
                Data::Tuple(all),
            ) => self.read_fields(from, to, *denies_unknown, all)?,
            (_, Type::Struct { fields, denies_unknown }, Data::Nothing) => {
                self.read_fields(&[], fields, *denies_unknown, &[])?
            }
            (_, Type::Nothing, Data::Nothing) => Read::Nothing,
            (
                Type::Enum { variants: from, .. },
                Type::Enum { variants: to, other },
                Data::Variant(at, data),
            ) => {
                let it = &from[usize::try_from(*at).expect("small")];
                let at = variant(it, to).or(*other)?;
                if Some(at) == *other {
                    return Some(Read::Variant(at, Box::new(Read::Nothing)));
                }
                Read::Variant(at, Box::new(self.read(it.id, to[at].id, data)?))
            }
            _ => return None,
        })
    }

    fn read_fields(
        &self,
        from: &[Field],
        to: &[Field],
        denies: bool,
        all: &[Data],
    ) -> Option<Read> {
        let mut values: Vec<Option<Read>> = vec![None; to.len()];
        for (it, data) in from.iter().zip(all) {
            match field(it, to) {
                Some(at) if values[at].is_some() => return None,
                Some(at) => values[at] = Some(self.read(it.id, to[at].id, data)?),
                None if denies => return None,
                None => {}
            }
        }
        let value = |(it, value): (&Field, Option<Read>)| match (value, it.absent) {
            (None, Absent::Refused) => None,
            (value, _) => Some(value.unwrap_or(Read::Default)),
        };
        to.iter().zip(values).map(value).collect::<Option<_>>().map(Read::Fields)
    }
}
