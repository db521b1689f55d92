//! Errors of encoding and decoding: which rule was broken, and where in the value.

use std::fmt;

use rpc_transport::message::read_error::ReadError;

use super::{Codec, MAX_DEPTH};
use crate::status::{Code, Status};
use crate::text::printable;

/// Maximum stack that decoding a message may have used when a container opens, bytes. Of the 2 MiB
/// of a spawned thread this leaves half to the caller and a quarter to the container.
pub(super) const MAX_STACK_BYTES: usize = 512 << 10;

/// The rule that a value or a message broke.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecErrorKind {
    /// The peer uses a codec id that this version does not know.
    #[error("codec {id} is unknown")]
    UnknownCodec {
        /// The id on the wire.
        id: u8,
    },
    /// The codec is known, but not compiled into this build.
    #[error("codec {} is not compiled in; enable the cargo feature `{}` of rpc-over-rdma",
        .codec.name(), .codec.name())]
    NotCompiledIn {
        /// The codec.
        codec: Codec,
    },
    /// Bytes are left over: the two ends disagree about the type.
    #[error("{count} bytes are left over after the value")]
    TrailingBytes {
        /// Number of bytes left over.
        count: usize,
    },
    /// Sequences and maps have more elements than the message has bytes.
    #[error(
        "sequences claim more elements than the message has bytes ({limit}); elements that are \
         encoded in no bytes cannot be sent"
    )]
    TooManyElements {
        /// Length of the message, bytes.
        limit: usize,
    },
    /// Containers nest too deeply.
    #[error("nested more than {MAX_DEPTH} deep")]
    TooDeep,
    /// A recursive value whose decoding would take too much of the thread's stack.
    #[error(
        "decoding takes more than {} KiB of stack: the value nests too deeply for the size of its \
         types; box their large fields",
        MAX_STACK_BYTES / 1024
    )]
    TooMuchStack,
    /// Elements of sequences and maps take much more memory than the message has bytes.
    #[error(
        "the elements of sequences take more than the {limit} bytes of memory allowed for a \
         message of this length; box their large fields, or send fewer elements"
    )]
    TooMuchMemory {
        /// Maximum memory for this message, bytes.
        limit: usize,
    },
    /// `skip_serializing_if` omitted a field whose value may not be encoded as one zero byte: the
    /// format cannot express the omission.
    #[error(
        "serde's skip_serializing_if omits a field whose value may be something other than `None`, \
         empty, 0 or false, which this format cannot express; remove the attribute"
    )]
    SkippedField,
    /// A sequence or map of unknown length (`serde(flatten)`, or an iterator).
    #[error(
        "a sequence or map of unknown length (serde's flatten), which this format cannot express"
    )]
    UnknownLength,
    /// The type needs a self-describing format (`serde(untagged)`, `serde(tag)`, `flatten`).
    #[error(
        "the type needs a self-describing format (serde's untagged, tag or flatten), which this \
         one is not"
    )]
    NotSelfDescribing,
    /// `Some` of a value that looks like `None` in a format with names: it would arrive as `None`.
    #[error(
        "`Some` of a value that is empty itself (`Some(None)`, `Some(())`) arrives as `None` in \
         this format; use an enum"
    )]
    LooksLikeNone,
    /// A payload too long to be held in memory as a whole, in a type that does not read it as a
    /// stream.
    #[error(
        "payloads of {bytes} bytes exceed the receiver's `assembly_bytes`, so it accepts them only \
         as a single `BulkReader`; take a `BulkReader` there, or raise the receiver's \
         `LinkConfig::assembly_bytes`"
    )]
    StillArriving {
        /// Their length.
        bytes: u64,
    },
    /// A payload of the value or of the message that cannot be read.
    #[error(transparent)]
    Unreadable(#[from] ReadError),
    /// The value's own `Serialize` failed.
    #[error("{}", printable(.reason))]
    Unencodable {
        /// Its message.
        reason: String,
    },
    /// The bytes are not an encoding of the type.
    #[error("{}", printable(.reason))]
    Malformed {
        /// The format's message.
        reason: String,
    },
}

impl CodecErrorKind {
    /// Whether the cause may be a different definition of the type at the two ends.
    pub(crate) fn may_come_from_other_types(&self) -> bool {
        match self {
            Self::TrailingBytes { .. }
            | Self::TooManyElements { .. }
            | Self::TooDeep
            | Self::Malformed { .. } => true,
            Self::UnknownCodec { .. }
            | Self::NotCompiledIn { .. }
            | Self::TooMuchStack
            | Self::TooMuchMemory { .. }
            | Self::SkippedField
            | Self::UnknownLength
            | Self::NotSelfDescribing
            | Self::LooksLikeNone
            | Self::StillArriving { .. }
            | Self::Unreadable(_)
            | Self::Unencodable { .. } => false,
        }
    }

    /// The code of a call that failed for this reason; `otherwise`, unless the reason is a limit of
    /// the decoder or a payload that cannot be read.
    pub(crate) fn code_or(&self, otherwise: Code) -> Code {
        match self {
            Self::TooMuchStack | Self::TooMuchMemory { .. } | Self::StillArriving { .. } => {
                Code::ResourceExhausted
            }
            Self::Unreadable(error) => Status::from(*error).code(),
            _ => otherwise,
        }
    }
}

/// One step of a path into a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Field(&'static str),
    Index(usize),
}

/// A value that cannot be encoded, or bytes that cannot be decoded.
#[derive(Clone, PartialEq, Eq)]
pub struct CodecError(Box<Inner>);

#[derive(Clone, PartialEq, Eq)]
struct Inner {
    kind: CodecErrorKind,
    path: Vec<Step>,
}

impl CodecError {
    #[cold]
    pub(super) fn new(kind: CodecErrorKind, path: Vec<Step>) -> Self {
        Self(Box::new(Inner { kind, path }))
    }

    /// The broken rule.
    #[must_use]
    pub fn kind(&self) -> &CodecErrorKind {
        &self.0.kind
    }

    /// The path from the value to the part that failed: `[1].items[3].name`; empty if it is the
    /// value itself.
    #[must_use]
    pub fn path(&self) -> String {
        render(&self.0.path, None)
    }

    /// The message with the arguments' names in place of their positions, for a value that is the
    /// tuple of a method's arguments.
    #[must_use]
    pub fn describe(&self, arguments: &[&str]) -> String {
        let path = render(&self.0.path, Some(arguments));
        if path.is_empty() { self.0.kind.to_string() } else { format!("{path}: {}", self.0.kind) }
    }
}

/// Maximum length of a path that is shown in full, steps.
const MAX_STEPS: usize = 16;

fn render(path: &[Step], arguments: Option<&[&str]>) -> String {
    let mut text = String::new();
    for (at, step) in path.iter().take(MAX_STEPS).enumerate() {
        match (step, arguments) {
            (Step::Index(index), Some(names)) if at == 0 && *index < names.len() => {
                text.push_str("argument ");
                text.push_str(names[*index]);
            }
            (Step::Index(index), _) => text.push_str(&format!("[{index}]")),
            (Step::Field(name), _) => {
                if !text.is_empty() {
                    text.push('.');
                }
                text.push_str(name);
            }
        }
    }
    if path.len() > MAX_STEPS {
        text.push_str("...");
    }
    text
}

impl From<CodecErrorKind> for CodecError {
    #[cold]
    fn from(kind: CodecErrorKind) -> Self {
        Self::new(kind, Vec::new())
    }
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path();
        if path.is_empty() {
            write!(f, "{}", self.0.kind)
        } else {
            write!(f, "{path}: {}", self.0.kind)
        }
    }
}

impl fmt::Debug for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CodecError({self})")
    }
}

impl std::error::Error for CodecError {}
