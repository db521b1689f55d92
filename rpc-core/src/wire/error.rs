//! How a frame can break the format.
//!
//! Owns one variant per rule; who receives one closes the connection with it.

use super::Kind;

/// Which rule of the format a peer's frame breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// Shorter than the header.
    #[error("a frame of {0} bytes is shorter than the session header")]
    HeaderTruncated(usize),
    /// No such kind.
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    /// A flag that this kind does not have.
    #[error("unknown flags {flags:#04x} on a frame of kind {kind:?}")]
    UnknownFlags {
        /// The frame's kind.
        kind: Kind,
        /// The flags that it has no meaning for.
        flags: u8,
    },
    /// The reserved byte, or a field that this kind does not use, is not zero.
    #[error("an unused header field is not zero on a frame of kind {0:?}")]
    UnusedFieldSet(Kind),
    /// Generation 0 names no call.
    #[error("generation 0 on a frame of kind {0:?}")]
    ZeroGeneration(Kind),
    /// The DEADLINE block is cut short.
    #[error("the deadline block is cut short")]
    DeadlineTruncated,
    /// The SIGNATURE block is cut short.
    #[error("the signature block is cut short")]
    SignatureTruncated,
    /// The METADATA block is cut short or longer than the frame.
    #[error("the metadata block is cut short")]
    MetadataTruncated,
    /// The DETAILS block is cut short or longer than the frame.
    #[error("the details block is cut short")]
    DetailsTruncated,
    /// The PARTS block is cut short or longer than the frame.
    #[error("the parts block is cut short")]
    PartsTruncated,
    /// More parts than a message may have.
    #[error("{0} parts, the most is {max}", max = super::MAX_PARTS)]
    TooManyParts(u16),
    /// A part without bytes.
    #[error("an empty part")]
    EmptyPart,
    /// A part that belongs before the one listed before it.
    #[error("the parts are not in the order of their places")]
    PartsOutOfOrder,
    /// A part that belongs behind the end of the body.
    #[error("a part belongs at {at} of a body of {body_bytes} bytes")]
    PartBeyondBody {
        /// Its place.
        at: u32,
        /// Length of the body without its parts.
        body_bytes: usize,
    },
    /// The parts are not the message's tail.
    #[error("parts of {total} bytes in a tail of {tail_bytes}")]
    TailMismatch {
        /// What the parts take together.
        total: u64,
        /// What the tail has.
        tail_bytes: u64,
    },
    /// A tail on a frame that has no parts.
    #[error("a tail on a frame of kind {0:?} without parts")]
    UnexpectedTail(Kind),
    /// A METADATA, DETAILS or PARTS block without content: its flag should be clear.
    #[error("an empty block on a frame of kind {0:?}")]
    EmptyBlock(Kind),
    /// Not one of the seventeen codes.
    #[error("unknown status code {0}")]
    UnknownStatus(u8),
    /// A user error with a status code, or a success that is retryable or has details.
    #[error("response flags {flags:#04x} contradict status code {code}")]
    ResponseFlagsConflict {
        /// The flags.
        flags: u8,
        /// The code.
        code: u8,
    },
    /// A deadline that restarts but is not there or has no stream to restart it, or a call with
    /// streams that cannot be cancelled.
    #[error("request flags {0:#04x} contradict each other")]
    RequestFlagsConflict(u8),
    /// Metadata that is an item of arguments, or has parts.
    #[error("item flags {0:#04x} contradict each other")]
    ItemFlagsConflict(u8),
    /// Initial metadata longer than [`MAX_METADATA_BYTES`](super::MAX_METADATA_BYTES).
    #[error("initial metadata of {0} bytes, of which there are {max} at most", max = super::MAX_METADATA_BYTES)]
    MetadataTooLong(usize),
    /// A frame about streams is shorter than its fields.
    #[error("a frame of kind {0:?} is cut short")]
    StreamFrameTruncated(Kind),
    /// A grant of nothing.
    #[error("a grant of neither items nor bytes")]
    EmptyGrant,
    /// A status text that is not UTF-8.
    #[error("a status text is not utf-8")]
    StatusTextNotUtf8,
    /// Bytes after a frame that has no body.
    #[error("{count} bytes after a frame of kind {kind:?}")]
    TrailingBytes {
        /// The frame's kind.
        kind: Kind,
        /// How many.
        count: usize,
    },
    /// The hello's body is cut short.
    #[error("the hello is cut short")]
    HelloTruncated,
    /// The hello's lowest version is above its highest.
    #[error("the hello's version range {min}..={max} is empty")]
    HelloVersionRange {
        /// Lowest version offered.
        min: u16,
        /// Highest version offered.
        max: u16,
    },
}
