//! Values as JSON: read for a type, made of what is decoded, and examples.

use std::cell::Cell;
use std::collections::HashSet;
use std::fmt;

use rpc_core::serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use rpc_schema::schema::{Id, Int, Schema, Type, Variant};
use rpc_schema::value::{Build, Data};
use serde_json::{Map, Number, Value, json};

/// Maximum depth of a value, as in the codecs. A type of a peer may have no end of its own.
const MAX_DEPTH: usize = 128;
/// Maximum depth of an example.
const EXAMPLE_DEPTH: usize = 8;
/// Approximate maximum length of an example, bytes.
const EXAMPLE_BYTES: usize = 1 << 14;

/// JSON in which no name is given twice in an object: the last one would win in silence.
///
/// # Errors
/// It is no JSON, or has such an object.
pub(crate) fn parse(text: &[u8]) -> serde_json::Result<Value> {
    serde_json::from_slice(text).map(|Unique(value)| value)
}

struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(AnyUnique).map(Self)
    }
}

struct AnyUnique;

macro_rules! leaves {
    ($($visit:ident $ty:ty),* $(,)?) => {$(
        fn $visit<E>(self, value: $ty) -> Result<Value, E> {
            Ok(Value::from(value))
        }
    )*};
}

impl<'de> Visitor<'de> for AnyUnique {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    leaves! { visit_bool bool, visit_i64 i64, visit_u64 u64, visit_f64 f64, visit_str &str }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(Unique(value)) = from.next_element()? {
            all.push(value);
        }
        Ok(Value::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some(name) = from.next_key::<String>()? {
            let Unique(value) = from.next_value()?;
            if all.contains_key(&name) {
                return Err(A::Error::custom(format_args!("the name {name:?} is given twice")));
            }
            all.insert(name, value);
        }
        Ok(Value::Object(all))
    }
}

/// The expected JSON value, for people.
fn expected(schema: &Schema, mut id: Id) -> String {
    let is_option = matches!(schema.get(id), Type::Option(_));
    for _ in 0..MAX_DEPTH {
        let Type::Option(inner) = schema.get(id) else { break };
        id = *inner;
    }
    let or_null = if is_option { "null or " } else { "" };
    let expected = match schema.get(id) {
        Type::Bool => "true or false".to_owned(),
        Type::Int(int) => format!("a number ({})", int.name()),
        Type::F32 | Type::F64 => "a number".to_owned(),
        Type::Char => "a string of one character".to_owned(),
        Type::Str => "text".to_owned(),
        Type::Bytes => "bytes: a string, {\"hex\": \"00ff\"}, or a list of numbers".to_owned(),
        Type::Nothing => "null".to_owned(),
        Type::Option(_) => "something that is not described".to_owned(),
        Type::Sequence(_) | Type::Set(_) => "a list".to_owned(),
        Type::Map(..) => "an object, or a list of [key, value]".to_owned(),
        Type::Tuple(parts) => format!("a list of {}", parts.len()),
        Type::Struct { fields, .. } => {
            let names: Vec<_> = fields.iter().map(|field| field.name.as_str()).collect();
            format!("an object with {}", names.join(", "))
        }
        Type::Enum { variants, .. } => {
            let names: Vec<_> = variants.iter().map(|variant| variant.name.as_str()).collect();
            format!("one of the variants {}", names.join(", "))
        }
        Type::Unknown(why) => format!("a value that JSON cannot express ({why})"),
    };
    format!("{or_null}{expected}")
}

/// The error for a JSON value that does not fit.
fn misfit(schema: &Schema, id: Id, path: &str, found: &Value) -> String {
    let found = match found {
        Value::Null => "null".to_owned(),
        Value::Array(all) => format!("a list of {}", all.len()),
        Value::Object(fields) => match fields.keys().next() {
            Some(first) => format!("an object with {first}"),
            None => "an empty object".to_owned(),
        },
        other => other.to_string(),
    };
    format!("{path}: expected {}, found {found}", expected(schema, id))
}

/// Reads the arguments of a method: an object with their names, or a list.
pub(crate) fn read_arguments(
    schema: &Schema,
    arguments: &[(&str, Id)],
    json: &Value,
) -> Result<Data, String> {
    let names = || arguments.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    match json {
        Value::Object(given) => fields(schema, arguments, given, "", 0),
        Value::Array(all) if all.len() == arguments.len() => {
            let each = arguments.iter().zip(all);
            let each = each.map(|((name, id), value)| read(schema, *id, value, name));
            Ok(Data::Tuple(each.collect::<Result<_, _>>()?))
        }
        _ => Err(format!("expected the arguments as an object with the names ({})", names())),
    }
}

fn fields(
    schema: &Schema,
    fields: &[(&str, Id)],
    given: &Map<String, Value>,
    path: &str,
    depth: usize,
) -> Result<Data, String> {
    let below = |name: &str| match path {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    };
    if let Some(unknown) = given.keys().find(|key| fields.iter().all(|(name, _)| name != key)) {
        let names: Vec<_> = fields.iter().map(|(name, _)| *name).collect();
        let known = match &names[..] {
            [] => "it has no fields".to_owned(),
            names => format!("the names are {}", names.join(", ")),
        };
        return Err(format!("{}: unknown name; {known}", below(unknown)));
    }
    let field = |(name, id): &(&str, Id)| match given.get(*name) {
        Some(value) => read_at(schema, *id, value, &below(name), depth),
        None if matches!(schema.get(*id), Type::Option(_)) => Ok(Data::None),
        None => Err(format!("{}: missing; expected {}", below(name), expected(schema, *id))),
    };
    Ok(Data::Tuple(fields.iter().map(field).collect::<Result<_, _>>()?))
}

/// Reads a value. An error names the path and the expected type.
pub(crate) fn read(schema: &Schema, id: Id, json: &Value, path: &str) -> Result<Data, String> {
    read_at(schema, id, json, path, 0)
}

fn read_at(
    schema: &Schema,
    id: Id,
    json: &Value,
    path: &str,
    depth: usize,
) -> Result<Data, String> {
    if depth == MAX_DEPTH {
        return Err(format!("{path}: values nest at most {MAX_DEPTH} deep"));
    }
    let read = |id: Id, json: &Value, path: &str| read_at(schema, id, json, path, depth + 1);
    let no = || misfit(schema, id, path, json);
    let each = |ids: &mut dyn Iterator<Item = Id>, all: &[Value]| {
        let each = ids.zip(all).enumerate();
        each.map(|(at, (id, value))| read(id, value, &format!("{path}[{at}]")))
            .collect::<Result<_, String>>()
    };
    Ok(match (schema.get(id), json) {
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
        (Type::Option(inner), _) => Data::Some(Box::new(read(*inner, json, path)?)),
        (Type::Sequence(item), Value::Array(all)) => {
            Data::Sequence(each(&mut std::iter::repeat(*item), all)?)
        }
        (Type::Set(item), Value::Array(all)) => {
            let items: Vec<Data> = each(&mut std::iter::repeat(*item), all)?;
            distinct(path, "item", items.iter())?;
            Data::Sequence(items)
        }
        (Type::Map(key, value), Value::Object(all)) => {
            let entry = |(name, json): (&String, &Value)| {
                let below = format!("{path}[{name:?}]");
                let name = match schema.get(*key) {
                    // Integers are read from their text: JSON parsers round 128-bit numbers.
                    Type::F32 | Type::F64 | Type::Bool => {
                        serde_json::from_str(name).unwrap_or_else(|_| Value::from(name.as_str()))
                    }
                    _ => Value::from(name.as_str()),
                };
                let key = read(*key, &name, &format!("the key {below}"))?;
                Ok((key, read(*value, json, &below)?))
            };
            map(path, all.iter().map(entry).collect::<Result<_, String>>()?)?
        }
        (Type::Map(key, value), Value::Array(all)) => {
            let entry = |(at, pair): (usize, &Value)| match pair.as_array().map(Vec::as_slice) {
                Some([first, second]) => Ok((
                    read(*key, first, &format!("{path}[{at}][0]"))?,
                    read(*value, second, &format!("{path}[{at}][1]"))?,
                )),
                _ => Err(no()),
            };
            map(path, all.iter().enumerate().map(entry).collect::<Result<_, String>>()?)?
        }
        (Type::Tuple(parts), Value::Array(all)) if parts.len() == all.len() => {
            Data::Tuple(each(&mut parts.iter().copied(), all)?)
        }
        (Type::Struct { fields: all, .. }, Value::Object(given)) => {
            let named: Vec<_> = all.iter().map(|field| (field.name.as_str(), field.id)).collect();
            fields(schema, &named, given, path, depth + 1)?
        }
        (Type::Enum { variants, .. }, Value::String(name)) => {
            let at = variants.iter().position(|known| known.name == *name).ok_or_else(no)?;
            variant(at, read(variants[at].id, &Value::Null, &format!("{path}::{name}"))?)
        }
        (Type::Enum { variants, .. }, Value::Object(given)) if given.len() == 1 => {
            let (name, inner) = given.iter().next().ok_or_else(no)?;
            let at = variants.iter().position(|known| known.name == *name).ok_or_else(no)?;
            variant(at, read(variants[at].id, inner, &format!("{path}::{name}"))?)
        }
        _ => return Err(no()),
    })
}

fn map(path: &str, entries: Vec<(Data, Data)>) -> Result<Data, String> {
    distinct(path, "key", entries.iter().map(|(key, _)| key))?;
    Ok(Data::Map(entries))
}

/// Refuses what is there twice: of equal keys one would be left. They may have different texts:
/// `1` and `01`.
fn distinct<'d>(
    path: &str,
    what: &str,
    mut all: impl Iterator<Item = &'d Data>,
) -> Result<(), String> {
    let mut seen = HashSet::new();
    match all.find(|one| !seen.insert(format!("{one:?}"))) {
        Some(one) => Err(format!("{path}: the {what} {} is given twice", shown(one))),
        None => Ok(()),
    }
}

/// A key, for people.
fn shown(key: &Data) -> String {
    match key {
        Data::Int(_, value) => value.to_string(),
        Data::Str(text) => format!("{text:?}"),
        other => format!("{other:?}"),
    }
}

fn variant(at: usize, inner: Data) -> Data {
    Data::Variant(u32::try_from(at).unwrap_or(u32::MAX), Box::new(inner))
}

/// A number, or its text where JSON parsers are not exact.
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
        // Parses `NaN` and `inf`, which JSON lacks.
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

/// Makes JSON of what is decoded.
#[derive(Debug)]
pub(crate) struct Json;

impl Build for Json {
    type Value = Value;

    fn bool(&self, value: bool) -> Value {
        Value::from(value)
    }

    fn int(&self, value: i128) -> Value {
        let signed = i64::try_from(value).map(Value::from);
        signed
            .or_else(|_| u64::try_from(value).map(Value::from))
            .unwrap_or_else(|_| Value::from(value.to_string()))
    }

    fn large(&self, value: u128) -> Value {
        Value::from(value.to_string())
    }

    fn f32(&self, value: f32) -> Value {
        // The shortest digits of this f32, not those of the nearest f64.
        of_float(value.to_string().parse().unwrap_or(f64::from(value)))
    }

    fn f64(&self, value: f64) -> Value {
        of_float(value)
    }

    fn char(&self, value: char) -> Value {
        Value::from(value.to_string())
    }

    fn str(&self, value: &str) -> Value {
        Value::from(value)
    }

    fn bytes(&self, value: &[u8]) -> Value {
        of_bytes(value)
    }

    fn nothing(&self) -> Value {
        Value::Null
    }

    fn none(&self) -> Value {
        Value::Null
    }

    fn some(&self, value: Value) -> Value {
        value
    }

    fn sequence(&self, items: Vec<Value>) -> Value {
        Value::Array(items)
    }

    fn map(&self, all: Vec<(Value, Value)>) -> Value {
        let name = |key: &Value| match key {
            Value::String(text) => Some(text.clone()),
            Value::Number(_) | Value::Bool(_) => Some(key.to_string()),
            _ => None,
        };
        let object: Option<Map<String, Value>> =
            all.iter().map(|(key, value)| Some((name(key)?, value.clone()))).collect();
        object.map_or_else(
            || all.into_iter().map(|(key, value)| Value::Array(vec![key, value])).collect(),
            Value::Object,
        )
    }

    fn tuple(&self, parts: Vec<Value>) -> Value {
        Value::Array(parts)
    }

    fn fields(&self, fields: Vec<(&str, Value)>) -> Value {
        Value::Object(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    fn variant(&self, name: &str, contents: Option<Value>) -> Value {
        contents.map_or_else(|| Value::from(name), |contents| json!({ name: contents }))
    }
}

/// A float, or its text if JSON cannot express it.
fn of_float(value: f64) -> Value {
    Number::from_f64(value).map_or_else(|| Value::from(value.to_string()), Value::Number)
}

/// A string if it is UTF-8, otherwise hexadecimal digits.
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

/// An example value, if there is one of moderate size.
pub(crate) fn example(schema: &Schema, id: Id) -> Value {
    example_at(schema, id, 0, &Cell::new(EXAMPLE_BYTES))
}

fn example_at(schema: &Schema, id: Id, depth: usize, room: &Cell<usize>) -> Value {
    let take = |bytes: usize| room.set(room.get().saturating_sub(bytes));
    let has_room = || room.get() > 0;
    take(4);
    let inner = |id: &Id| example_at(schema, *id, depth + 1, room);
    match schema.get(id) {
        Type::Bool => json!(false),
        Type::Int(_) => json!(0),
        Type::F32 | Type::F64 => json!(0.5),
        Type::Char => json!("c"),
        Type::Str | Type::Bytes => json!("text"),
        Type::Nothing | Type::Option(_) | Type::Unknown(_) => Value::Null,
        _ if depth == EXAMPLE_DEPTH => Value::Null,
        Type::Sequence(item) | Type::Set(item) => json!([inner(item)]),
        Type::Map(..) => json!({}),
        Type::Tuple(parts) => parts.iter().take_while(|_| has_room()).map(inner).collect(),
        Type::Struct { fields, .. } => {
            let fields = fields.iter().take_while(|_| has_room()).map(|field| {
                take(field.name.len());
                (field.name.clone(), inner(&field.id))
            });
            Value::Object(fields.collect())
        }
        Type::Enum { variants, .. } => match variants.first() {
            Some(Variant { name, id, .. }) => {
                take(name.len());
                match schema.get(*id) {
                    Type::Nothing => json!(name),
                    _ => json!({ name: inner(id) }),
                }
            }
            None => Value::Null,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(types: &str) -> Schema {
        rpc_schema::text::parse(&format!("argument a: #0\n{types}")).unwrap()
    }

    /// Regression: a server's option of itself, and a long chain of options, overflowed the stack.
    #[test]
    fn types_without_end_are_refused() {
        let chain: String = (0..60_000).map(|id| format!("#{id} option #{}\n", id + 1)).collect();
        for types in ["#0 option #0\n", "#0 option #1\n#1 option #0\n", &(chain + "#60000 u8\n")] {
            let schema = one(types);
            let error = read(&schema, 0, &json!("x"), "a").unwrap_err();
            assert_eq!(error, "a: values nest at most 128 deep");
            assert!(matches!(read(&schema, 0, &Value::Null, "a"), Ok(Data::None)));
            let error = read_arguments(&schema, &[("a", 0), ("b", 0)], &json!([])).unwrap_err();
            assert!(error.contains("the names (a, b)"), "{error}");
            assert_eq!(expected(&schema, 0), "null or something that is not described");
            assert_eq!(example(&schema, 0), Value::Null);
        }
        assert_eq!(expected(&one("#0 option #1\n#1 option #2\n#2 str\n"), 0), "null or text");
    }

    /// Regression: of entries whose keys become one, all but one vanished.
    #[test]
    fn keys_are_given_once() {
        let schema = one("#0 map #1 #2\n#1 i64\n#2 u8\n");
        for text in [r#"{"1": 1, "01": 2}"#, r#"{"2": 3, "+1": 1, "1": 2}"#, "[[1, 1], [1, 2]]"] {
            let error = read(&schema, 0, &parse(text.as_bytes()).unwrap(), "m").unwrap_err();
            assert_eq!(error, "m: the key 1 is given twice", "{text}");
        }
        assert!(read(&schema, 0, &json!({ "1": 1, "-1": 2 }), "m").is_ok());
        let set = one("#0 set #1\n#1 str\n");
        let error = read(&set, 0, &json!(["a", "b", "a"]), "s").unwrap_err();
        assert_eq!(error, "s: the item \"a\" is given twice");
        assert!(read(&set, 0, &json!(["a", "b"]), "s").is_ok());
        for text in [r#"{"a": 1, "a": 2}"#, r#"[{"b": {"a": 1, "\u0061": 2}}]"#] {
            let error = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("the name \"a\" is given twice"), "{error}");
        }
        let text = r#"[null, true, -1, 18446744073709551615, 1e300, "a", {"a": {}, "b": []}]"#;
        let value: Value = serde_json::from_str(text).unwrap();
        assert_eq!(parse(text.as_bytes()).unwrap(), value);
    }

    #[test]
    fn an_example_of_a_recursive_type_ends() {
        let lines =
            ["0: struct { next, value }", "0.next: option", "0.next?: itself, 1 up", "0.value: u8"];
        let schema = Schema::from_lines(&lines, &["first"]);
        let (_, id) = schema.arguments().next().unwrap();
        assert_eq!(example(&schema, id), json!({ "next": null, "value": 0 }));
    }

    /// Regression: eight levels of a hundred fields became 10^16 values.
    #[test]
    fn an_example_is_bounded_in_width() {
        let names: Vec<_> = (0..100).map(|at| format!("f{at}")).collect();
        let mut lines = vec![format!("0: struct {{ {} }}", names.join(", "))];
        for name in &names {
            lines.push(format!("0.{name}: sequence"));
            lines.push(format!("0.{name}[]: itself, 1 up"));
        }
        let schema = Schema::from_lines(&lines, &["first"]);
        let (_, id) = schema.arguments().next().unwrap();
        assert_eq!(schema.unknown(id), None);
        let length = example(&schema, id).to_string().len();
        assert!(length < 4 * EXAMPLE_BYTES, "{length}");
    }
}
