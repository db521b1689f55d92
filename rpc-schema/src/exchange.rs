//! What two ends exchange of a method's types when these differ, and the bounds on it.
//!
//! The text is that of the schema. In front of it is a line with the method's version, `version 2`,
//! if it has one: methods of other versions are never converted. Ends and comparisons of files
//! share these rules, so that both find the same changes to work.

use crate::schema::{Field, Flaw, Id, Root, Schema, Type};

/// The longest text that ends exchange, bytes.
pub const MAX_SCHEMA_BYTES: usize = 16 << 10;
/// Most memory of the plans by which an end reads the messages of the other one, bytes.
pub const MAX_PLAN_BYTES: usize = 256 << 10;

/// Begins the line with a method's version.
const VERSION: &str = "version ";

/// The version at the end of a signature: `2` of `(Item) -> u64 #2`.
#[must_use]
pub fn version(signature: &str) -> Option<&str> {
    let version = signature.rsplit_once(" #").map(|(_, version)| version);
    version.filter(|it| it.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The text that is sent of these types.
#[must_use]
pub fn text(schema: &Schema, signature: &str) -> String {
    match version(signature) {
        Some(version) => format!("{VERSION}{version}\n{schema}"),
        None => schema.to_string(),
    }
}

/// The version in a text that was sent, and the text of its schema.
#[must_use]
pub fn split(text: &str) -> (Option<&str>, &str) {
    let line = text.strip_prefix(VERSION).and_then(|rest| rest.split_once('\n'));
    line.map_or((None, text), |(version, schema)| (Some(version), schema))
}

/// The types of a method, of either end.
#[derive(Debug)]
pub struct MethodTypes {
    /// The types.
    pub schema: Schema,
    /// The arguments as one struct: they are read by name.
    pub arguments: Id,
}

impl MethodTypes {
    /// The types of a schema.
    ///
    /// # Errors
    /// The arguments are no struct: two have one name, or they have too many parts.
    pub fn new(schema: Schema) -> Result<Self, Flaw> {
        let (mut types, roots) = schema.into_parts();
        let argument = |(root, id): &(Root, Id)| match root {
            Root::Argument { name, absent } => {
                let (name, aliases) = (name.clone(), Vec::new());
                Some(Field { name, aliases, absent: *absent, id: *id })
            }
            _ => None,
        };
        let fields = roots.iter().filter_map(argument).collect();
        let arguments = types.len();
        types.push(Type::Struct { fields, denies_unknown: false });
        Ok(Self { schema: Schema::new(types, roots)?, arguments })
    }
}

/// The types of a method of this end.
#[derive(Debug)]
pub struct OwnTypes {
    /// The types.
    pub types: MethodTypes,
    /// The text that is sent.
    pub text: String,
}

impl OwnTypes {
    /// The types of a method with this signature and so many arguments. `None`: one of these could
    /// not be looked into, they cannot be read by name, or the text is too long to be sent.
    #[must_use]
    pub fn new(schema: &Schema, signature: &str, arguments: usize) -> Option<Self> {
        let text = text(schema, signature);
        // An argument that could not be looked into is missing.
        let is_whole = schema.arguments().count() == arguments;
        let types = MethodTypes::new(schema.clone()).ok()?;
        (is_whole && text.len() <= MAX_SCHEMA_BYTES).then_some(Self { types, text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::parse;

    #[test]
    fn a_version_goes_in_front_of_the_schema() {
        let schema = parse("result: #0\n#0 u8\n").unwrap();
        let plain = text(&schema, "() -> u8");
        assert_eq!(split(&plain), (None, "result: #0\n#0 u8\n"));
        let second = text(&schema, "() -> u8 #2");
        assert_eq!(second, format!("version 2\n{plain}"));
        assert_eq!(split(&second), (Some("2"), plain.as_str()));
        assert_eq!(version("(A) -> B / E #17"), Some("17"));
        assert_eq!((version("(A #b)"), version("() -> u8 #two")), (None, None));
    }
}
