//! Errors of metadata.

use super::{MAX_ENCODED_BYTES, MAX_ENTRIES, MAX_NAME_BYTES, RESERVED_PREFIX};

/// Metadata that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// Not 1 to [`MAX_NAME_BYTES`] bytes of lower-case ASCII letters, digits, `-`, `_` and `.`.
    #[error(
        "a metadata name has 1 to {MAX_NAME_BYTES} lower-case ASCII letters, digits, `-`, `_`, `.`"
    )]
    BadName,
    /// More than [`MAX_ENCODED_BYTES`].
    #[error("the metadata of a call exceeds {MAX_ENCODED_BYTES} bytes")]
    TooLong,
    /// It begins with [`RESERVED_PREFIX`].
    #[error(
        "metadata names that begin with `{RESERVED_PREFIX}` are reserved for this framework: \
         choose another name"
    )]
    Reserved,
    /// Reply metadata set outside a handler.
    #[error(
        "reply metadata can only be set in the handler of a call: a task that a handler has \
         spawned has no reply"
    )]
    NoCall,
    /// Initial metadata set after earlier initial metadata has been sent.
    #[error(
        "the initial metadata has already been sent: set all of it before the stream first waits, \
         or send this entry with the reply by `Context::set_reply_metadata`"
    )]
    InitialTwice,
    /// Initial metadata set after the stream has begun.
    #[error(
        "the first item of the stream, or its end, has already been sent, and initial metadata \
         must precede it: send this entry with the reply by `Context::set_reply_metadata`"
    )]
    InitialLate,
    /// More than [`MAX_ENTRIES`].
    #[error("the metadata of a call has more than {MAX_ENTRIES} entries")]
    TooMany,
    /// A block must have an entry.
    #[error("a metadata block without entries")]
    Empty,
    /// Names must be in ascending order.
    #[error("the metadata is not sorted, or has the same name twice")]
    Unsorted,
    /// It ends too early.
    #[error("the metadata ends too early")]
    Truncated,
    /// Bytes are left over.
    #[error("bytes are left over after the metadata")]
    TrailingBytes,
}
