//! Reads and writes a type of a schema as code from serde's derive would.

use std::fmt;

use rpc_schema::Schema;
use rpc_schema::schema::{Absent, Field, Id, Int, Type};
use rpc_schema::value::Data;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, IgnoredAny, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};
use serde_json::{Map, Value, json};

/// JSON has no characters and no byte strings: these are texts that begin so, and no others do.
const CHAR: &str = "char ";
const BYTES: &str = "bytes ";

/// A value that was read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Read {
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    Nothing,
    None,
    Some(Box<Read>),
    List(Vec<Read>),
    Map(Vec<(Read, Read)>),
    Fields(Vec<Read>),
    Variant(usize, Box<Read>),
    /// What `Default` gives.
    Default,
}

/// The seed of a type.
#[derive(Clone, Copy)]
pub(crate) struct Typed<'s> {
    pub(crate) schema: &'s Schema,
    pub(crate) id: Id,
}

impl<'s> Typed<'s> {
    fn of(self, id: Id) -> Self {
        Self { id, ..self }
    }

    fn ty(self) -> &'s Type {
        self.schema.get(self.id)
    }
}

/// Derived code has such lists in its statics.
fn leak<'a>(names: impl Iterator<Item = (&'a String, &'a Vec<String>)>) -> &'static [&'static str] {
    let all = names.flat_map(|(name, aliases)| std::iter::once(name).chain(aliases));
    let all: Vec<&'static str> =
        all.map(|name| &*Box::leak(name.clone().into_boxed_str())).collect();
    all.leak()
}

impl<'de> DeserializeSeed<'de> for Typed<'_> {
    type Value = Read;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Read, D::Error> {
        let typed = Visit { typed: self, is_json: from.is_human_readable() };
        match self.ty() {
            Type::Bool => from.deserialize_bool(typed),
            Type::Int(int) => match int {
                Int::I8 => from.deserialize_i8(typed),
                Int::I16 => from.deserialize_i16(typed),
                Int::I32 => from.deserialize_i32(typed),
                Int::I64 => from.deserialize_i64(typed),
                Int::I128 => from.deserialize_i128(typed),
                Int::U8 => from.deserialize_u8(typed),
                Int::U16 => from.deserialize_u16(typed),
                Int::U32 => from.deserialize_u32(typed),
                Int::U64 => from.deserialize_u64(typed),
                Int::U128 => from.deserialize_u128(typed),
            },
            Type::F32 => from.deserialize_f32(typed),
            Type::F64 => from.deserialize_f64(typed),
            Type::Char => from.deserialize_char(typed),
            Type::Str => from.deserialize_str(typed),
            Type::Bytes => from.deserialize_bytes(typed),
            Type::Nothing => from.deserialize_unit(typed),
            Type::Option(_) => from.deserialize_option(typed),
            Type::Sequence(_) | Type::Set(_) => from.deserialize_seq(typed),
            Type::Map(..) => from.deserialize_map(typed),
            Type::Tuple(parts) => from.deserialize_tuple(parts.len(), typed),
            Type::Struct { fields, .. } => {
                let names = leak(fields.iter().map(|it| (&it.name, &it.aliases)));
                from.deserialize_struct("S", names, typed)
            }
            Type::Enum { variants, .. } => {
                let names = leak(variants.iter().map(|it| (&it.name, &it.aliases)));
                from.deserialize_enum("E", names, typed)
            }
            Type::Unknown(why) => Err(D::Error::custom(why)),
        }
    }
}

struct Visit<'s> {
    typed: Typed<'s>,
    is_json: bool,
}

fn wrong<E: Error>() -> E {
    E::custom("another type")
}

impl Visit<'_> {
    fn int<E: Error>(&self, value: i128) -> Result<Read, E> {
        let Type::Int(int) = self.typed.ty() else { return Err(wrong()) };
        match fits(*int, value) {
            true => Ok(Read::Int(value)),
            false => Err(E::custom("out of range")),
        }
    }
}

/// Whether a value fits an integer.
pub(crate) fn fits(int: Int, value: i128) -> bool {
    match int {
        Int::I8 => i8::try_from(value).is_ok(),
        Int::I16 => i16::try_from(value).is_ok(),
        Int::I32 => i32::try_from(value).is_ok(),
        Int::I64 => i64::try_from(value).is_ok(),
        Int::I128 => true,
        Int::U8 => u8::try_from(value).is_ok(),
        Int::U16 => u16::try_from(value).is_ok(),
        Int::U32 => u32::try_from(value).is_ok(),
        Int::U64 => u64::try_from(value).is_ok(),
        Int::U128 => value >= 0,
    }
}

impl<'de> Visitor<'de> for Visit<'_> {
    type Value = Read;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.typed.ty())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Read, E> {
        match self.typed.ty() {
            Type::Bool => Ok(Read::Bool(value)),
            _ => Err(wrong()),
        }
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Read, E> {
        self.int(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Read, E> {
        self.int(value.into())
    }

    fn visit_i128<E: Error>(self, value: i128) -> Result<Read, E> {
        self.int(value)
    }

    fn visit_u128<E: Error>(self, value: u128) -> Result<Read, E> {
        self.int(value.try_into().map_err(E::custom)?)
    }

    fn visit_f32<E: Error>(self, value: f32) -> Result<Read, E> {
        self.visit_f64(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Read, E> {
        match self.typed.ty() {
            #[expect(clippy::cast_possible_truncation, reason = "as serde does")]
            Type::F32 => Ok(Read::Float((value as f32).into())),
            Type::F64 => Ok(Read::Float(value)),
            _ => Err(wrong()),
        }
    }

    fn visit_char<E: Error>(self, value: char) -> Result<Read, E> {
        match self.typed.ty() {
            Type::Char => Ok(Read::Text(value.into())),
            _ => Err(wrong()),
        }
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Read, E> {
        match (self.typed.ty(), value.strip_prefix(CHAR), value.strip_prefix(BYTES)) {
            (Type::Str, None, None) => Ok(Read::Text(value.into())),
            (Type::Char, Some(value), _) => Ok(Read::Text(value.into())),
            (Type::Bytes, _, Some(value)) => Ok(Read::Bytes(value.into())),
            _ => Err(wrong()),
        }
    }

    fn visit_bytes<E: Error>(self, value: &[u8]) -> Result<Read, E> {
        match self.typed.ty() {
            Type::Bytes => Ok(Read::Bytes(value.to_vec())),
            _ => Err(wrong()),
        }
    }

    fn visit_unit<E: Error>(self) -> Result<Read, E> {
        match self.typed.ty() {
            Type::Nothing => Ok(Read::Nothing),
            _ => Err(wrong()),
        }
    }

    fn visit_none<E: Error>(self) -> Result<Read, E> {
        Ok(Read::None)
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Read, D::Error> {
        match self.typed.ty() {
            Type::Option(inner) => {
                Ok(Read::Some(Box::new(self.typed.of(*inner).deserialize(from)?)))
            }
            _ => Err(wrong()),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Read, A::Error> {
        let mut part = |id| {
            let part = from.next_element_seed(self.typed.of(id))?;
            part.ok_or_else(|| A::Error::custom("too short"))
        };
        match self.typed.ty() {
            Type::Tuple(ids) => {
                let parts = ids.iter().map(|id| part(*id)).collect::<Result<_, _>>();
                parts.map(Read::List)
            }
            Type::Struct { fields, .. } => {
                let parts = fields.iter().map(|it| part(it.id)).collect::<Result<_, _>>();
                parts.map(Read::Fields)
            }
            Type::Sequence(item) | Type::Set(item) => {
                let mut all = Vec::new();
                while let Some(item) = from.next_element_seed(self.typed.of(*item))? {
                    all.push(item);
                }
                Ok(Read::List(all))
            }
            _ => Err(wrong()),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Read, A::Error> {
        let typed = self.typed;
        if let Type::Map(key, value) = typed.ty() {
            let mut all = Vec::new();
            while let Some(entry) = from.next_entry_seed(typed.of(*key), typed.of(*value))? {
                all.push(entry);
            }
            all.sort_by_key(|(key, _)| format!("{key:?}"));
            return Ok(Read::Map(all));
        }
        let Type::Struct { fields, denies_unknown } = typed.ty() else { return Err(wrong()) };
        let names: Vec<_> = fields.iter().map(|it| (&it.name, &it.aliases)).collect();
        let mut values: Vec<Option<Read>> = vec![None; fields.len()];
        while let Some(key) = from.next_key_seed(Key(&names))? {
            match key {
                Some(at) if values[at].is_some() => {
                    return Err(A::Error::custom("duplicate field"));
                }
                Some(at) => values[at] = Some(from.next_value_seed(typed.of(fields[at].id))?),
                None if *denies_unknown => return Err(A::Error::custom("unknown field")),
                None => drop(from.next_value::<IgnoredAny>()?),
            }
        }
        let value = |(field, value): (&Field, Option<Read>)| match (value, field.absent) {
            (Some(value), _) => Ok(value),
            (None, Absent::Refused) => Err(A::Error::custom("missing field")),
            (None, _) => Ok(Read::Default),
        };
        let fields = fields.iter().zip(values).map(value).collect::<Result<_, _>>();
        fields.map(Read::Fields)
    }

    fn visit_enum<A: EnumAccess<'de>>(self, from: A) -> Result<Read, A::Error> {
        let Type::Enum { variants, other } = self.typed.ty() else { return Err(wrong()) };
        let names: Vec<_> = variants.iter().map(|it| (&it.name, &it.aliases)).collect();
        let (key, contents) = from.variant_seed(Key(&names))?;
        let Some(at) = key.or(*other) else { return Err(A::Error::custom("unknown variant")) };
        let typed = self.typed.of(variants[at].id);
        let value = match typed.ty() {
            // What serde_json refuses: a variant for unknown ones that has something in it.
            Type::Nothing if self.is_json && Some(at) == *other => {
                let _ = contents.newtype_variant::<IgnoredAny>();
                Read::Nothing
            }
            Type::Nothing => contents.unit_variant().map(|()| Read::Nothing)?,
            Type::Tuple(ids) => {
                contents.tuple_variant(ids.len(), Visit { typed, is_json: self.is_json })?
            }
            Type::Struct { fields, .. } => {
                let names = leak(fields.iter().map(|it| (&it.name, &it.aliases)));
                contents.struct_variant(names, Visit { typed, is_json: self.is_json })?
            }
            _ => contents.newtype_variant_seed(typed)?,
        };
        Ok(Read::Variant(at, Box::new(value)))
    }
}

/// A field or variant, by its name or number.
struct Key<'a>(&'a [(&'a String, &'a Vec<String>)]);

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Option<usize>, D::Error> {
        from.deserialize_identifier(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_u64<E>(self, value: u64) -> Result<Option<usize>, E> {
        Ok(usize::try_from(value).ok().filter(|at| *at < self.0.len()))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Option<usize>, E> {
        // All names begin so. JSON also takes a text for an unknown variant.
        if !value.starts_with('n') {
            return Err(wrong());
        }
        let is_it = |(name, aliases): &(&String, &Vec<String>)| {
            *name == value || aliases.iter().any(|alias| alias == value)
        };
        Ok(self.0.iter().position(is_it))
    }
}

/// A value of a type as JSON. A name is one that the reader knows, if it knows any.
pub(crate) fn to_json(schema: &Schema, id: Id, data: &Data, knows: &dyn Fn(&str) -> bool) -> Value {
    let inner = |id: Id, data: &Data| to_json(schema, id, data, knows);
    let name = |name: &String, aliases: &Vec<String>| {
        let known = std::iter::once(name).chain(aliases).find(|name| knows(name));
        known.unwrap_or(name).clone()
    };
    match (schema.get(id), data) {
        (_, Data::Bool(value)) => json!(value),
        (_, Data::Int(_, value)) => i64::try_from(*value)
            .map_or_else(|_| json!(u64::try_from(*value).expect("64 bits")), Value::from),
        (_, Data::U128(value)) => json!(u64::try_from(*value).expect("64 bits")),
        (_, Data::F32(value)) => json!(f64::from(*value)),
        (_, Data::F64(value)) => json!(value),
        (_, Data::Char(value)) => json!(format!("{CHAR}{value}")),
        (_, Data::Str(value)) => json!(value),
        (_, Data::Bytes(value)) => {
            json!(format!("{BYTES}{}", std::str::from_utf8(value).expect("ASCII")))
        }
        (_, Data::Nothing | Data::None) => Value::Null,
        (Type::Option(of), Data::Some(value)) => inner(*of, value),
        (Type::Sequence(of) | Type::Set(of), Data::Sequence(all)) => {
            all.iter().map(|item| inner(*of, item)).collect()
        }
        (Type::Map(key, value), Data::Map(all)) => {
            let entry = |(k, v): &(Data, Data)| {
                let k = match inner(*key, k) {
                    Value::String(text) => text,
                    other => other.to_string(),
                };
                (k, inner(*value, v))
            };
            Value::Object(all.iter().map(entry).collect())
        }
        (Type::Tuple(ids), Data::Tuple(parts)) => {
            ids.iter().zip(parts).map(|(id, part)| inner(*id, part)).collect()
        }
        (Type::Struct { fields, .. }, Data::Tuple(parts)) => {
            let fields = fields.iter().zip(parts);
            let fields = fields.map(|(it, part)| (name(&it.name, &it.aliases), inner(it.id, part)));
            Value::Object(fields.collect::<Map<_, _>>())
        }
        (Type::Enum { variants, .. }, Data::Variant(at, contents)) => {
            let variant = &variants[usize::try_from(*at).expect("small")];
            let name = name(&variant.name, &variant.aliases);
            match schema.get(variant.id) {
                Type::Nothing => json!(name),
                _ => json!({ name: inner(variant.id, contents) }),
            }
        }
        (it, data) => panic!("{data:?} is no {it}"),
    }
}
