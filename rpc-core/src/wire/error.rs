//! Violations of the frame format.
//!
//! Owns one variant per rule; the receiver closes the connection with it.

use super::Kind;

/// The rule of the format that a peer's frame breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// Shorter than the header.
    #[error("a frame of {0} bytes is shorter than the session header")]
    HeaderTruncated(usize),
    /// An unknown kind.
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    /// A flag that this kind does not have.
    #[error("unknown flags {flags:#04x} on a frame of kind {kind:?}")]
    UnknownFlags {
        /// The frame's kind.
        kind: Kind,
        /// The unknown flags.
        flags: u8,
    },
    /// The reserved byte, or a field that this kind does not use, is not zero.
    #[error("an unused header field is not zero on a frame of kind {0:?}")]
    UnusedFieldSet(Kind),
    /// An answer says in two ways how the arguments were read, or in one that is not known.
    #[error(
        "a frame of kind {kind:?} says with flags {flags:#04x} and byte {byte} how the arguments \
         were read"
    )]
    UnknownReading {
        /// The frame's kind.
        kind: Kind,
        /// Its flags.
        flags: u8,
        /// Its byte for what is not a flag.
        byte: u8,
    },
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
    #[error("{0} parts, at most {max} are allowed", max = super::MAX_PARTS)]
    TooManyParts(u16),
    /// A part without bytes.
    #[error("an empty part")]
    EmptyPart,
    /// A part listed after one that follows it in the body.
    #[error("the parts are not in order")]
    PartsOutOfOrder,
    /// A part with a place beyond the end of the body.
    #[error("a part at offset {at} lies outside a body of {body_bytes} bytes")]
    PartBeyondBody {
        /// Its place.
        at: u32,
        /// Length of the body without its parts.
        body_bytes: usize,
    },
    /// The parts do not add up to the message's tail.
    #[error("parts of {total} bytes in a tail of {tail_bytes}")]
    TailMismatch {
        /// Total length of the parts, bytes.
        total: u64,
        /// Length of the tail, bytes.
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
    /// A restarting deadline without a deadline or a stream, or a call with streams that cannot be
    /// cancelled.
    #[error("request flags {0:#04x} contradict each other")]
    RequestFlagsConflict(u8),
    /// Initial metadata on the stream of arguments, or with parts.
    #[error("item flags {0:#04x} contradict each other")]
    ItemFlagsConflict(u8),
    /// Initial metadata longer than [`MAX_METADATA_BYTES`](super::MAX_METADATA_BYTES).
    #[error("initial metadata of {0} bytes, at most {max} are allowed", max = super::MAX_METADATA_BYTES)]
    MetadataTooLong(usize),
    /// A frame about streams is shorter than its fields.
    #[error("a frame of kind {0:?} is cut short")]
    StreamFrameTruncated(Kind),
    /// A grant of nothing.
    #[error("a grant of no items and no bytes")]
    EmptyGrant,
    /// A status text that is not UTF-8.
    #[error("a status text is not UTF-8")]
    StatusTextNotUtf8,
    /// Bytes after a frame that has no body.
    #[error("{count} bytes after a frame of kind {kind:?}")]
    TrailingBytes {
        /// The frame's kind.
        kind: Kind,
        /// Their number.
        count: usize,
    },
    /// The hello's body is cut short.
    #[error("the hello is cut short")]
    HelloTruncated,
    /// The credentials in a hello are too long.
    #[error("credentials of {0} bytes exceed {max}", max = super::MAX_CREDENTIALS_BYTES)]
    CredentialsTooLong(usize),
    /// The hello's lowest version is above its highest.
    #[error("the hello's version range {min}..={max} is empty")]
    HelloVersionRange {
        /// Lowest version offered.
        min: u16,
        /// Highest version offered.
        max: u16,
    },
}
