//! What a status says of values that cannot be encoded or decoded.

use std::sync::Arc;

use super::method::MethodDescriptor;
use crate::codec::{CodecError, CodecErrorKind};
use crate::status::Status;

/// Advice for bytes that are not a value of the type. The check of schemas has not found this where
/// a type cannot be looked into.
const TYPES_DIFFER: &str = "; where the types of the two ends differ, bring both up to date";

/// The text for bytes that are no value of their type.
#[cold]
pub(crate) fn undecodable(
    part: &str,
    method: &MethodDescriptor,
    what: &str,
    kind: &CodecErrorKind,
) -> String {
    let name = method.name;
    let advice = if kind.may_come_from_other_types() { TYPES_DIFFER } else { "" };
    format!("cannot decode {part} of {name}: {what}{advice}")
}

/// The status of a call whose arguments cannot be encoded.
#[cold]
pub(crate) fn unencodable_arguments(
    method: &'static MethodDescriptor,
    error: CodecError,
) -> Status {
    let what = error.describe(method.arguments);
    Status::invalid_argument(format!("cannot encode the arguments of {}: {what}", method.name))
        .with_source(Arc::new(error) as Arc<dyn std::error::Error + Send + Sync>)
}

#[cold]
pub(crate) fn undecodable_item(method: &'static MethodDescriptor, error: CodecError) -> Status {
    let text = undecodable("an item", method, &error.to_string(), error.kind());
    let status = match error.kind().is_limit() {
        true => Status::resource_exhausted(text),
        false => Status::invalid_argument(text),
    };
    status.with_source(Arc::new(error) as Arc<dyn std::error::Error + Send + Sync>)
}

#[cold]
pub(crate) fn unencodable_item(method: &'static MethodDescriptor, error: CodecError) -> Status {
    Status::invalid_argument(format!("cannot encode an item of {}: {error}", method.name))
}

#[cold]
pub(crate) fn undecodable_reply(method: &'static MethodDescriptor, error: CodecError) -> Status {
    let text = undecodable("the reply", method, &error.to_string(), error.kind());
    let status = match error.kind().is_limit() {
        true => Status::resource_exhausted(text),
        false => Status::internal(text),
    };
    status.with_source(Arc::new(error) as Arc<dyn std::error::Error + Send + Sync>)
}
