//! Values of types that are known from a schema: from JSON to what a codec writes, and back.

use std::fmt;

use rpc_core::serde::de::{
    DeserializeSeed, EnumAccess, Error as _, MapAccess, SeqAccess, VariantAccess, Visitor,
};
use rpc_core::serde::ser::{SerializeMap, SerializeSeq, SerializeTuple};
use rpc_core::serde::{Deserializer, Serialize, Serializer};
use serde_json::{Map, Number, Value};

use crate::schema::{Id, Int, Type, Types};

/// A value that fits its type.
#[derive(Debug)]
pub(crate) enum Data {
    Bool(bool),
    Int(Int, i128),
    U128(u128),
    F32(f32),
    F64(f64),
    Char(char),
    Str(String),
    Bytes(Vec<u8>),
    Nothing,
    None,
    Some(Box<Data>),
    Sequence(Vec<Data>),
    Map(Vec<(Data, Data)>),
    Tuple(Vec<Data>),
    Variant(u32, Box<Data>),
}

/// What a JSON value does not fit.
fn misfit(types: &Types, id: Id, path: &str, found: &Value) -> String {
    let found = match found {
        Value::Null => "null".to_owned(),
        Value::Array(all) => format!("a list of {}", all.len()),
        Value::Object(fields) => match fields.keys().next() {
            Some(first) => format!("an object with {first}"),
            None => "an empty object".to_owned(),
        },
        other => other.to_string(),
    };
    format!("{path}: expected {}, found {found}", types.name(id))
}

/// Reads the arguments of a method: an object by their names, or a list.
pub(crate) fn read_arguments(
    types: &Types,
    arguments: &[(String, Id)],
    json: &Value,
) -> Result<Data, String> {
    let names = || arguments.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    match json {
        Value::Object(given) => fields(types, arguments, given, ""),
        Value::Array(all) if all.len() == arguments.len() => {
            let each = arguments.iter().zip(all);
            let each = each.map(|((name, id), value)| read(types, *id, value, name));
            Ok(Data::Tuple(each.collect::<Result<_, _>>()?))
        }
        _ => Err(format!("the arguments are an object with the names ({})", names())),
    }
}

fn fields(
    types: &Types,
    fields: &[(String, Id)],
    given: &Map<String, Value>,
    path: &str,
) -> Result<Data, String> {
    let below = |name: &str| match path {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    };
    if let Some(unknown) = given.keys().find(|key| fields.iter().all(|(name, _)| name != *key)) {
        let names: Vec<_> = fields.iter().map(|(name, _)| name.as_str()).collect();
        let known = match &names[..] {
            [] => "there is nothing to give".to_owned(),
            names => format!("there are {}", names.join(", ")),
        };
        return Err(format!("{}: there is no such name; {known}", below(unknown)));
    }
    let field = |(name, id): &(String, Id)| match given.get(name) {
        Some(value) => read(types, *id, value, &below(name)),
        None if matches!(types.get(*id), Type::Option(_)) => Ok(Data::None),
        None => Err(format!("{}: it is missing; expected {}", below(name), types.name(*id))),
    };
    Ok(Data::Tuple(fields.iter().map(field).collect::<Result<_, _>>()?))
}

/// Reads a value. An error names the path and what is expected there.
pub(crate) fn read(types: &Types, id: Id, json: &Value, path: &str) -> Result<Data, String> {
    let no = || misfit(types, id, path, json);
    let each = |ids: &mut dyn Iterator<Item = Id>, all: &[Value]| {
        let each = ids.zip(all).enumerate();
        each.map(|(at, (id, value))| read(types, id, value, &format!("{path}[{at}]")))
            .collect::<Result<_, String>>()
    };
    Ok(match (types.get(id), json) {
        (Type::Bool, Value::Bool(value)) => Data::Bool(*value),
        (Type::Int(int), _) => integer(*int, json).ok_or_else(no)?,
        (Type::F32, _) => {
            let value = float(json).ok_or_else(no)?;
            #[expect(clippy::cast_possible_truncation, reason = "rounded, as is every f32")]
            let rounded = value as f32;
            if rounded.is_infinite() && value.is_finite() {
                return Err(no());
            }
            Data::F32(rounded)
        }
        (Type::F64, _) => Data::F64(float(json).ok_or_else(no)?),
        (Type::Char, Value::String(text)) => {
            let mut chars = text.chars();
            match (chars.next(), chars.next()) {
                (Some(one), None) => Data::Char(one),
                _ => return Err(no()),
            }
        }
        (Type::Str, Value::String(text)) => Data::Str(text.clone()),
        (Type::Bytes, _) => Data::Bytes(bytes(json).ok_or_else(no)?),
        (Type::Nothing, Value::Null) => Data::Nothing,
        (Type::Option(_), Value::Null) => Data::None,
        (Type::Option(inner), _) => Data::Some(Box::new(read(types, *inner, json, path)?)),
        (Type::Sequence(item), Value::Array(all)) => {
            Data::Sequence(each(&mut std::iter::repeat(*item), all)?)
        }
        (Type::Map(key, value), Value::Object(all)) => {
            let entry = |(name, json): (&String, &Value)| {
                let below = format!("{path}[{name:?}]");
                let name = match types.get(*key) {
                    // Of whole numbers the text is taken: JSON's readers round 128 bits.
                    Type::F32 | Type::F64 | Type::Bool => {
                        serde_json::from_str(name).unwrap_or_else(|_| Value::from(name.as_str()))
                    }
                    _ => Value::from(name.as_str()),
                };
                let key = read(types, *key, &name, &format!("the key {below}"))?;
                Ok((key, read(types, *value, json, &below)?))
            };
            Data::Map(all.iter().map(entry).collect::<Result<_, String>>()?)
        }
        (Type::Map(key, value), Value::Array(all)) => {
            let entry = |(at, pair): (usize, &Value)| match pair.as_array().map(Vec::as_slice) {
                Some([first, second]) => Ok((
                    read(types, *key, first, &format!("{path}[{at}][0]"))?,
                    read(types, *value, second, &format!("{path}[{at}][1]"))?,
                )),
                _ => Err(no()),
            };
            Data::Map(all.iter().enumerate().map(entry).collect::<Result<_, String>>()?)
        }
        (Type::Tuple(parts), Value::Array(all)) if parts.len() == all.len() => {
            Data::Tuple(each(&mut parts.iter().copied(), all)?)
        }
        (Type::Struct(named), Value::Object(given)) => fields(types, named, given, path)?,
        (Type::Enum(variants), Value::String(name)) => {
            let at = variants.iter().position(|(known, _)| known == name).ok_or_else(no)?;
            variant(at, read(types, variants[at].1, &Value::Null, &format!("{path}::{name}"))?)
        }
        (Type::Enum(variants), Value::Object(given)) if given.len() == 1 => {
            let (name, inner) = given.iter().next().ok_or_else(no)?;
            let at = variants.iter().position(|(known, _)| known == name).ok_or_else(no)?;
            variant(at, read(types, variants[at].1, inner, &format!("{path}::{name}"))?)
        }
        _ => return Err(no()),
    })
}

fn variant(at: usize, inner: Data) -> Data {
    Data::Variant(u32::try_from(at).unwrap_or(u32::MAX), Box::new(inner))
}

/// A number, or text of one where JSON's readers are not exact.
fn integer(int: Int, json: &Value) -> Option<Data> {
    let text = match json {
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.clone(),
        _ => return None,
    };
    if int == Int::U128 {
        return text.parse().ok().map(Data::U128);
    }
    let value: i128 = text.parse().ok()?;
    let fits = match int {
        Int::I8 => i8::try_from(value).is_ok(),
        Int::I16 => i16::try_from(value).is_ok(),
        Int::I32 => i32::try_from(value).is_ok(),
        Int::I64 => i64::try_from(value).is_ok(),
        Int::U8 => u8::try_from(value).is_ok(),
        Int::U16 => u16::try_from(value).is_ok(),
        Int::U32 => u32::try_from(value).is_ok(),
        Int::U64 => u64::try_from(value).is_ok(),
        Int::I128 | Int::U128 => true,
    };
    fits.then_some(Data::Int(int, value))
}

fn float(json: &Value) -> Option<f64> {
    match json {
        Value::Number(number) => number.as_f64(),
        // `NaN` and `inf`, which JSON lacks.
        Value::String(text) => text.parse().ok().filter(|value: &f64| !value.is_finite()),
        _ => None,
    }
}

fn bytes(json: &Value) -> Option<Vec<u8>> {
    match json {
        Value::String(text) => Some(text.clone().into_bytes()),
        Value::Array(all) => all.iter().map(|byte| u8::try_from(byte.as_u64()?).ok()).collect(),
        Value::Object(given) if given.len() == 1 => {
            let hex = given.get("hex")?.as_str()?.as_bytes();
            let digit = |at: u8| char::from(at).to_digit(16).and_then(|it| u8::try_from(it).ok());
            let (pairs, rest) = hex.as_chunks::<2>();
            let pair = |[high, low]: &[u8; 2]| Some(digit(*high)? << 4 | digit(*low)?);
            rest.is_empty().then(|| pairs.iter().map(pair).collect())?
        }
        _ => None,
    }
}

impl Serialize for Data {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        macro_rules! int {
            ($method:ident, $value:expr) => {
                to.$method((*$value).try_into().map_err(rpc_core::serde::ser::Error::custom)?)
            };
        }
        match self {
            Self::Bool(value) => to.serialize_bool(*value),
            Self::Int(int, value) => match int {
                Int::I8 => int!(serialize_i8, value),
                Int::I16 => int!(serialize_i16, value),
                Int::I32 => int!(serialize_i32, value),
                Int::I64 => int!(serialize_i64, value),
                Int::I128 => to.serialize_i128(*value),
                Int::U8 => int!(serialize_u8, value),
                Int::U16 => int!(serialize_u16, value),
                Int::U32 => int!(serialize_u32, value),
                Int::U64 => int!(serialize_u64, value),
                Int::U128 => int!(serialize_u128, value),
            },
            Self::U128(value) => to.serialize_u128(*value),
            Self::F32(value) => to.serialize_f32(*value),
            Self::F64(value) => to.serialize_f64(*value),
            Self::Char(value) => to.serialize_char(*value),
            Self::Str(value) => to.serialize_str(value),
            Self::Bytes(value) => to.serialize_bytes(value),
            Self::Nothing => to.serialize_unit(),
            Self::None => to.serialize_none(),
            Self::Some(inner) => to.serialize_some(&**inner),
            Self::Sequence(all) => {
                let mut sequence = to.serialize_seq(Some(all.len()))?;
                all.iter().try_for_each(|item| sequence.serialize_element(item))?;
                sequence.end()
            }
            Self::Map(all) => {
                let mut map = to.serialize_map(Some(all.len()))?;
                all.iter().try_for_each(|(key, value)| map.serialize_entry(key, value))?;
                map.end()
            }
            Self::Tuple(parts) => {
                let mut tuple = to.serialize_tuple(parts.len())?;
                parts.iter().try_for_each(|part| tuple.serialize_element(part))?;
                tuple.end()
            }
            Self::Variant(at, inner) => to.serialize_newtype_variant("", *at, "", &**inner),
        }
    }
}

/// Decodes a value of that type as JSON.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seed<'t> {
    pub(crate) types: &'t Types,
    pub(crate) id: Id,
}

impl<'t> Seed<'t> {
    fn of(self, id: Id) -> Self {
        Self { id, ..self }
    }

    fn ty(self) -> &'t Type {
        self.types.get(self.id)
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        match self.ty() {
            Type::Bool => from.deserialize_bool(self),
            Type::Int(int) => match int {
                Int::I8 => from.deserialize_i8(self),
                Int::I16 => from.deserialize_i16(self),
                Int::I32 => from.deserialize_i32(self),
                Int::I64 => from.deserialize_i64(self),
                Int::I128 => from.deserialize_i128(self),
                Int::U8 => from.deserialize_u8(self),
                Int::U16 => from.deserialize_u16(self),
                Int::U32 => from.deserialize_u32(self),
                Int::U64 => from.deserialize_u64(self),
                Int::U128 => from.deserialize_u128(self),
            },
            Type::F32 => from.deserialize_f32(self),
            Type::F64 => from.deserialize_f64(self),
            Type::Char => from.deserialize_char(self),
            Type::Str => from.deserialize_str(self),
            Type::Bytes => from.deserialize_bytes(self),
            Type::Nothing => from.deserialize_unit(self),
            Type::Option(_) => from.deserialize_option(self),
            Type::Sequence(_) => from.deserialize_seq(self),
            Type::Map(..) => from.deserialize_map(self),
            Type::Tuple(parts) => from.deserialize_tuple(parts.len(), self),
            // As in a message, where fields have no names.
            Type::Struct(fields) => from.deserialize_tuple(fields.len(), self),
            Type::Enum(_) => from.deserialize_enum("", &[], self),
            Type::Unknown(why) => Err(D::Error::custom(why)),
        }
    }
}

/// A float as it is written, or the text of what JSON lacks.
fn of_float(value: f64) -> Value {
    Number::from_f64(value).map_or_else(|| Value::from(value.to_string()), Value::Number)
}

/// Text where it is some, else digits.
fn of_bytes(bytes: &[u8]) -> Value {
    let is_text = |text: &&str| !text.chars().any(|c| c.is_control() && !"\n\r\t".contains(c));
    match std::str::from_utf8(bytes).ok().filter(is_text) {
        Some(text) => Value::from(text),
        None => {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            serde_json::json!({ "hex": digits })
        }
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value as the server has described it")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Value, E> {
        Ok(i64::try_from(value).map_or_else(|_| Value::from(value.to_string()), Value::from))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Value, E> {
        Ok(u64::try_from(value).map_or_else(|_| Value::from(value.to_string()), Value::from))
    }

    fn visit_f32<E>(self, value: f32) -> Result<Value, E> {
        // The shortest digits that are this f32, and not those of the f64 beside it.
        Ok(of_float(value.to_string().parse().unwrap_or(f64::from(value))))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(of_float(value))
    }

    fn visit_char<E>(self, value: char) -> Result<Value, E> {
        Ok(Value::from(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_bytes<E>(self, value: &[u8]) -> Result<Value, E> {
        Ok(of_bytes(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        match self.ty() {
            Type::Option(inner) => self.of(*inner).deserialize(from),
            _ => Err(D::Error::custom("an option in the place of another type")),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let missing = || A::Error::custom("a part is missing");
        match self.ty() {
            Type::Sequence(item) => {
                let mut all = Vec::new();
                while let Some(value) = from.next_element_seed(self.of(*item))? {
                    all.push(value);
                }
                Ok(Value::Array(all))
            }
            Type::Tuple(parts) => {
                let part = |id: &Id| from.next_element_seed(self.of(*id))?.ok_or_else(missing);
                parts.iter().map(part).collect::<Result<_, _>>().map(Value::Array)
            }
            Type::Struct(fields) => {
                let mut object = Map::new();
                for (name, id) in fields {
                    let value = from.next_element_seed(self.of(*id))?.ok_or_else(missing)?;
                    object.insert(name.clone(), value);
                }
                Ok(Value::Object(object))
            }
            _ => Err(A::Error::custom("a list in the place of another type")),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let Type::Map(key, value) = self.ty() else {
            return Err(A::Error::custom("a map in the place of another type"));
        };
        let mut all = Vec::new();
        while let Some(entry) = from.next_entry_seed(self.of(*key), self.of(*value))? {
            all.push(entry);
        }
        let name = |key: &Value| match key {
            Value::String(text) => Some(text.clone()),
            Value::Number(_) | Value::Bool(_) => Some(key.to_string()),
            _ => None,
        };
        let object: Option<Map<String, Value>> =
            all.iter().map(|(key, value)| Some((name(key)?, value.clone()))).collect();
        Ok(object.map_or_else(
            || all.into_iter().map(|(key, value)| Value::Array(vec![key, value])).collect(),
            Value::Object,
        ))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, from: A) -> Result<Value, A::Error> {
        let Type::Enum(variants) = self.ty() else {
            return Err(A::Error::custom("an enum in the place of another type"));
        };
        let (at, contents) = from.variant_seed(Position)?;
        let found = usize::try_from(at).ok().and_then(|at| variants.get(at));
        let (name, id) = found.ok_or_else(|| A::Error::custom(format!("no variant {at}")))?;
        if *self.types.get(*id) == Type::Nothing {
            contents.unit_variant()?;
            return Ok(Value::from(name.as_str()));
        }
        let inner = contents.newtype_variant_seed(self.of(*id))?;
        Ok(serde_json::json!({ name: inner }))
    }
}

/// Which variant of an enum it is.
struct Position;

impl<'de> DeserializeSeed<'de> for Position {
    type Value = u64;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<u64, D::Error> {
        from.deserialize_u32(self)
    }
}

impl Visitor<'_> for Position {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the position of a variant")
    }

    fn visit_u64<E>(self, value: u64) -> Result<u64, E> {
        Ok(value)
    }
}
