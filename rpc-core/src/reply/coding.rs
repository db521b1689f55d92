//! What a status says of values that cannot be encoded or decoded.

use std::sync::Arc;

use crate::codec::{CodecError, CodecErrorKind};
use crate::method::MethodDescriptor;
use crate::status::{Code, Status};

/// Advice for bytes that are not a value of the type. The check of schemas has not found this where
/// a type cannot be looked into.
const TYPES_DIFFER: &str = "; if the types of the two ends differ, update both";

/// The text for bytes that are no value of their type.
#[cold]
pub(crate) fn undecodable(
    part: &str,
    method: &'static MethodDescriptor,
    what: &str,
    kind: &CodecErrorKind,
) -> String {
    let name = method.name;
    // Types that were compared whole are the same at both ends.
    let may_differ = kind.may_come_from_other_types() && !method.is_compared_whole();
    let advice = if may_differ { TYPES_DIFFER } else { "" };
    format!("cannot decode {part} of {name}: {what}{advice}")
}

/// The status of a call whose arguments cannot be encoded. That of types that cannot be sent is the
/// same for each value.
#[cold]
pub(crate) fn unencodable_arguments(
    method: &'static MethodDescriptor,
    error: CodecError,
) -> Status {
    if let Err(why) = method.check_types() {
        return Status::failed_precondition(why);
    }
    let what = error.describe(method.arguments);
    let text = format!("cannot encode the arguments of {}: {what}", method.name);
    Status::new(error.kind().code_or(Code::InvalidArgument), text)
        .with_source(Arc::new(error) as Arc<dyn std::error::Error + Send + Sync>)
}

#[cold]
pub(crate) fn undecodable_item(method: &'static MethodDescriptor, error: CodecError) -> Status {
    unfit_item(method, error, Code::InvalidArgument)
}

/// The status of an item that does not fit its type here.
#[cold]
pub(crate) fn unfit_item(
    method: &'static MethodDescriptor,
    error: CodecError,
    code: Code,
) -> Status {
    let text = undecodable("an item", method, &error.to_string(), error.kind());
    Status::new(error.kind().code_or(code), text)
        .with_source(Arc::new(error) as Arc<dyn std::error::Error + Send + Sync>)
}

#[cold]
pub(crate) fn unencodable_item(method: &'static MethodDescriptor, error: CodecError) -> Status {
    let text = format!("cannot encode an item of {}: {error}", method.name);
    Status::new(error.kind().code_or(Code::InvalidArgument), text)
}

#[cold]
pub(crate) fn undecodable_reply(method: &'static MethodDescriptor, error: CodecError) -> Status {
    let text = undecodable("the reply", method, &error.to_string(), error.kind());
    Status::new(error.kind().code_or(Code::Internal), text)
        .with_source(Arc::new(error) as Arc<dyn std::error::Error + Send + Sync>)
}

/// The status of a call whose result does not fit the type of its reader, which differs.
#[cold]
pub(crate) fn unfit_reply(method: &'static MethodDescriptor, error: CodecError) -> Status {
    let text = undecodable("the reply", method, &error.to_string(), error.kind());
    Status::new(error.kind().code_or(Code::DataLoss), text)
        .with_source(Arc::new(error) as Arc<dyn std::error::Error + Send + Sync>)
}

/// The status of a call with a value that one of the two ends does not describe.
#[cold]
pub(crate) fn undescribed(method: &'static MethodDescriptor, part: &str, why: &str) -> Status {
    Status::internal(format!("cannot decode {part} of {}: {why}", method.name))
}

/// The status of a call that ended with the method's own error, which does not fit its type here.
#[cold]
pub(crate) fn unreadable_error(method: &'static MethodDescriptor, why: &str) -> Status {
    let name = method.name;
    Status::new(
        Code::Unknown,
        format!("{name}: the server returned the method's own error, which cannot be read: {why}"),
    )
}
