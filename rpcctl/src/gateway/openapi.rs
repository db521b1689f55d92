//! The document of OpenAPI 3.1 that describes the gateway.
//!
//! Each type that holds others is a component of its own, so the document grows with the schemas
//! and not with the paths through them.

use rpc_schema::schema::{Id, Int, Schema, Type};
use serde_json::{Map, Value, json};

use super::answer::METADATA;
use super::calls::TIMEOUT;
use super::catalog::Method;

/// The document for these methods.
pub(crate) fn document<'a>(methods: impl Iterator<Item = &'a Method>, server: &str) -> Value {
    let (mut paths, mut components) = (Map::new(), Map::new());
    for method in methods {
        let name = &method.info().name;
        let Some((service, short)) = name.rsplit_once('.') else { continue };
        let mut types = Types { name, schema: &method.parts.schema, components: &mut components };
        types.add_components();
        let operation = types.operation(method, service);
        paths.insert(format!("/{service}/{short}"), json!({ "post": operation }));
    }
    components.insert("Error".to_owned(), error());
    json!({
        "openapi": "3.1.0",
        "info": { "title": format!("Services of {server}"), "version": env!("CARGO_PKG_VERSION") },
        "paths": paths,
        "components": { "schemas": components, "parameters": { "Timeout": timeout() } },
    })
}

fn timeout() -> Value {
    json!({
        "name": TIMEOUT,
        "in": "header",
        "description": format!(
            "How much time the call has, milliseconds. Headers that begin with `{METADATA}` carry \
             metadata, as does `authorization`."
        ),
        "schema": { "type": "integer", "minimum": 0 },
    })
}

fn error() -> Value {
    json!({
        "type": "object",
        "required": ["error"],
        "properties": { "error": {
            "type": "object",
            "required": ["code", "message"],
            "properties": {
                "code": { "type": "string" },
                "message": { "type": "string" },
                "retryable": { "type": "boolean" },
                "value": { "description": "The method's own error." },
            },
        } },
    })
}

/// The types of one method.
struct Types<'a> {
    name: &'a str,
    schema: &'a Schema,
    components: &'a mut Map<String, Value>,
}

impl Types<'_> {
    fn add_components(&mut self) {
        for id in 0..self.schema.types().len() {
            if self.schema.get(id).parts().next().is_some() {
                let component = self.component(id);
                self.components.insert(format!("{}.{id}", self.name), component);
            }
        }
    }

    fn operation(&self, method: &Method, service: &str) -> Value {
        let info = method.info();
        let arguments: Vec<_> = self.schema.arguments().collect();
        let required: Vec<_> = arguments
            .iter()
            .filter(|(_, id)| !self.is_optional(*id))
            .map(|(name, _)| *name)
            .collect();
        let properties: Map<String, Value> =
            arguments.iter().map(|(name, id)| ((*name).to_owned(), self.reference(*id))).collect();
        let arguments = json!({
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        });
        let request = match method.parts.sent_item.filter(|_| info.streams_arguments) {
            Some(id) => json!({ "application/x-ndjson": {
                "schema": { "anyOf": [arguments, self.reference(id)] },
            } }),
            None => json!({ "application/json": { "schema": arguments } }),
        };
        let result = |id: Option<Id>| id.map_or_else(|| json!({}), |id| self.reference(id));
        let answer = match info.streams_results {
            false => json!({ "application/json": { "schema": result(method.parts.result) } }),
            true => json!({
                "application/x-ndjson": { "schema": { "anyOf": [
                    { "type": "object", "properties": { "item": result(method.parts.item) } },
                    { "type": "object", "properties": { "result": result(method.parts.result) } },
                    { "$ref": "#/components/schemas/Error" },
                ] } },
                "text/event-stream": { "schema": {
                    "type": "string",
                    "description": "With the header `Accept: text/event-stream`: an event for each \
                                    item, then one named `result` or `error`.",
                } },
            }),
        };
        let error = json!({ "application/json": {
            "schema": { "$ref": "#/components/schemas/Error" },
        } });
        json!({
            "operationId": self.name,
            "tags": [service],
            "description": info.docs,
            "parameters": [{ "$ref": "#/components/parameters/Timeout" }],
            "requestBody": { "required": true, "content": request },
            "responses": {
                "200": { "description": "The result.", "content": answer },
                "default": { "description": "The call failed.", "content": error },
            },
        })
    }

    fn is_optional(&self, id: Id) -> bool {
        matches!(self.schema.get(id), Type::Option(_))
    }

    /// A type where it is used.
    fn reference(&self, id: Id) -> Value {
        match self.schema.get(id).parts().next() {
            Some(_) => json!({ "$ref": format!("#/components/schemas/{}.{id}", self.name) }),
            None => leaf(self.schema.get(id)),
        }
    }

    /// A type that holds others.
    fn component(&self, id: Id) -> Value {
        match self.schema.get(id) {
            Type::Option(inner) => json!({ "anyOf": [self.reference(*inner), { "type": "null" }] }),
            Type::Sequence(item) => json!({ "type": "array", "items": self.reference(*item) }),
            Type::Set(item) => json!({
                "type": "array", "items": self.reference(*item), "uniqueItems": true,
            }),
            Type::Map(key, value) => json!({ "anyOf": [
                { "type": "object", "additionalProperties": self.reference(*value) },
                { "type": "array", "items": self.tuple(&[*key, *value]) },
            ] }),
            Type::Tuple(parts) => self.tuple(parts),
            Type::Struct { fields, .. } => {
                let properties: Map<String, Value> = fields
                    .iter()
                    .map(|field| (field.name.clone(), self.reference(field.id)))
                    .collect();
                let required: Vec<_> = fields
                    .iter()
                    .filter(|field| !self.is_optional(field.id))
                    .map(|field| field.name.as_str())
                    .collect();
                json!({
                    "type": "object",
                    "properties": properties,
                    "required": required,
                    "additionalProperties": false,
                })
            }
            Type::Enum { variants, .. } => {
                let variants = variants.iter().map(|variant| match self.schema.get(variant.id) {
                    Type::Nothing => json!({ "const": variant.name }),
                    _ => json!({
                        "type": "object",
                        "properties": { variant.name.as_str(): self.reference(variant.id) },
                        "required": [variant.name],
                        "additionalProperties": false,
                    }),
                });
                json!({ "oneOf": variants.collect::<Vec<_>>() })
            }
            leaf_type => leaf(leaf_type),
        }
    }

    fn tuple(&self, parts: &[Id]) -> Value {
        let items: Vec<_> = parts.iter().map(|id| self.reference(*id)).collect();
        json!({
            "type": "array",
            "prefixItems": items,
            "minItems": parts.len(),
            "maxItems": parts.len(),
        })
    }
}

/// A type that holds no others.
fn leaf(of: &Type) -> Value {
    match of {
        Type::Bool => json!({ "type": "boolean" }),
        Type::Int(int) => integer(*int),
        Type::F32 | Type::F64 => json!({ "anyOf": [
            { "type": "number" },
            { "enum": ["NaN", "inf", "-inf"] },
        ] }),
        Type::Char => json!({ "type": "string", "minLength": 1, "maxLength": 1 }),
        Type::Str => json!({ "type": "string" }),
        Type::Bytes => json!({ "anyOf": [
            { "type": "string" },
            { "type": "object", "properties": { "hex": { "type": "string" } }, "required": ["hex"] },
            { "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": 255 } },
        ] }),
        Type::Nothing => json!({ "type": "null" }),
        Type::Unknown(why) => json!({ "description": why }),
        // Without parts: a struct without fields, an empty tuple, an enum without variants.
        Type::Struct { .. } => json!({ "type": "object" }),
        Type::Tuple(_) => json!({ "type": "array", "maxItems": 0 }),
        _ => json!({}),
    }
}

fn integer(int: Int) -> Value {
    let (least, most) = match int {
        Int::I8 => (i64::from(i8::MIN), i8::MAX as u64),
        Int::I16 => (i64::from(i16::MIN), i16::MAX as u64),
        Int::I32 => (i64::from(i32::MIN), i32::MAX as u64),
        Int::I64 => (i64::MIN, i64::MAX as u64),
        Int::U8 => (0, u64::from(u8::MAX)),
        Int::U16 => (0, u64::from(u16::MAX)),
        Int::U32 => (0, u64::from(u32::MAX)),
        Int::U64 => (0, u64::MAX),
        Int::I128 | Int::U128 => {
            return json!({ "anyOf": [{ "type": "integer" }, { "type": "string" }] });
        }
    };
    json!({ "type": "integer", "minimum": least, "maximum": most })
}
