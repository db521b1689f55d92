//! The types of a method of this process, as its peers get them and as it reads theirs.

use rpc_schema::schema::{Field, Flaw, Id, Root, Schema, Type};

/// Longest text of a schema that is sent or read, bytes.
pub(crate) const MAX_SCHEMA_BYTES: usize = 16 << 10;

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
    /// The text of the schema.
    pub(crate) text: String,
}

impl OwnTypes {
    /// `None`: the schema is too long to be sent, or its arguments cannot be read by name.
    pub(super) fn new(schema: Schema) -> Option<Self> {
        let text = schema.to_string();
        let types = MethodTypes::new(schema).ok()?;
        (text.len() <= MAX_SCHEMA_BYTES).then_some(Self { types, text })
    }
}
