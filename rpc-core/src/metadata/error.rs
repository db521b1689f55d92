//! Which rule metadata breaks.

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
    #[error("metadata of a call takes more than {MAX_ENCODED_BYTES} bytes")]
    TooLong,
    /// It begins with [`RESERVED_PREFIX`].
    #[error(
        "metadata names that begin with `{RESERVED_PREFIX}` are reserved for this framework: take \
         another name"
    )]
    Reserved,
    /// Metadata of a reply, set by who serves no call.
    #[error(
        "metadata of a reply is set in the handler of a call, and this is none: a task that a \
         handler has spawned has no reply"
    )]
    NoCall,
    /// Initial metadata that is set when what was set before has left.
    #[error(
        "the initial metadata has left: set all of it before the stream first waits, or send this \
         with the reply by `Context::set_reply_metadata`"
    )]
    InitialTwice,
    /// Initial metadata that is set when the stream has begun.
    #[error(
        "the first item, or the end, of the stream has left, and initial metadata goes before it: send \
         this with the reply by `Context::set_reply_metadata`"
    )]
    InitialLate,
    /// More than [`MAX_ENTRIES`].
    #[error("metadata of a call has more than {MAX_ENTRIES} entries")]
    TooMany,
    /// A block that is there holds an entry.
    #[error("metadata is announced and has no entries")]
    Empty,
    /// Names ascend.
    #[error("metadata is not sorted, or names a value twice")]
    Unsorted,
    /// It ends too early.
    #[error("metadata ends too early")]
    Truncated,
    /// Bytes are left over.
    #[error("bytes are left over after metadata")]
    TrailingBytes,
}
