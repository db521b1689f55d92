//! The types of a method of this process, as its peers get them and as it reads theirs.
//!
//! The text that is sent is that of the schema. In front of it is a line with the method's version,
//! `version 2`, if it has one: methods of other versions are never converted.

use rpc_schema::schema::{Field, Flaw, Id, Root, Schema, Type};

/// Longest text of a schema that is sent or read, bytes.
pub(crate) const MAX_SCHEMA_BYTES: usize = 16 << 10;

/// Begins the line with a method's version.
const VERSION: &str = "version ";

/// The version in a text that was sent, and its schema.
pub(crate) fn version(text: &str) -> (Option<&str>, &str) {
    let line = text.strip_prefix(VERSION).and_then(|rest| rest.split_once('\n'));
    line.map_or((None, text), |(version, schema)| (Some(version), schema))
}

/// The types of a method, of either end.
#[derive(Debug)]
pub(crate) struct MethodTypes {
    pub(crate) schema: Schema,
    /// The arguments as one struct: they are read by name.
    pub(crate) arguments: Id,
}

impl MethodTypes {
    /// # Errors
    /// The arguments are no struct: two have one name, or they have too many parts.
    pub(crate) fn new(schema: Schema) -> Result<Self, Flaw> {
        let (mut types, roots) = schema.into_parts();
        let argument = |(root, id): &(Root, Id)| match root {
            Root::Argument { name, absent } => {
                let (name, absent, aliases) = (name.clone(), *absent, Vec::new());
                Some(Field { name, aliases, absent, id: *id })
            }
            _ => None,
        };
        let fields = roots.iter().filter_map(argument).collect();
        let arguments = types.len();
        types.push(Type::Struct { fields, denies_unknown: false });
        Ok(Self { schema: Schema::new(types, roots)?, arguments })
    }
}

/// The types of a method of this process.
#[derive(Debug)]
pub(crate) struct OwnTypes {
    pub(crate) types: MethodTypes,
    /// The text that is sent.
    pub(crate) text: String,
}

impl OwnTypes {
    /// `None`: the schema is too long to be sent, or its arguments cannot be read by name.
    pub(super) fn new(schema: Schema, signature: &str) -> Option<Self> {
        let version = signature.rsplit_once(" #").map(|(_, version)| version);
        let text = match version.filter(|it| it.bytes().all(|byte| byte.is_ascii_digit())) {
            Some(version) => format!("{VERSION}{version}\n{schema}"),
            None => schema.to_string(),
        };
        let types = MethodTypes::new(schema).ok()?;
        (text.len() <= MAX_SCHEMA_BYTES).then_some(Self { types, text })
    }
}
