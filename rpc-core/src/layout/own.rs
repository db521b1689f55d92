//! The types of a method of this process, as its peers get them and as it reads theirs.

use rpc_schema::exchange::{MAX_SCHEMA_BYTES, text, with_arguments};
use rpc_schema::schema::{Flaw, Id, Schema};

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
        let (schema, arguments) = with_arguments(schema)?;
        Ok(Self { schema, arguments })
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
        let text = text(&schema, signature);
        let types = MethodTypes::new(schema).ok()?;
        (text.len() <= MAX_SCHEMA_BYTES).then_some(Self { types, text })
    }
}
