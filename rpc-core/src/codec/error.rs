//! Errors of encoding and decoding: which rule was broken, and where in the value.

use std::fmt;

use super::{Codec, MAX_DEPTH};

/// Most stack that decoding a message may have used when a container opens, bytes. Half of what a
/// thread has that others than its program's main function run on (2 MiB) is left to the caller,
/// and a quarter to the container.
pub(super) const MAX_STACK_BYTES: usize = 512 << 10;

/// Which rule a value or a message broke.
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
    /// Bytes are left over: the two sides disagree about the type.
    #[error("{count} bytes are left over after the value")]
    TrailingBytes {
        /// Number of bytes left over.
        count: usize,
    },
    /// Sequences and maps have more elements than the message has bytes.
    #[error(
        "sequences hold more elements than the message has bytes ({limit}); elements that take no \
         bytes cannot be sent"
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
        "decoding it takes more than {} KiB of stack: it nests too deeply for the size of its types; \
         box what is large in them",
        MAX_STACK_BYTES / 1024
    )]
    TooMuchStack,
    /// Elements of sequences and maps take much more memory than the message has bytes.
    #[error(
        "elements of sequences take more than the {limit} bytes of memory that a message of this \
         length may take; box what is large in them, or send fewer"
    )]
    TooMuchMemory {
        /// Most memory for this message, bytes.
        limit: usize,
    },
    /// A field was left out (`skip_serializing_if`): the format has no place to say so.
    #[error("a field is left out (serde's skip_serializing_if), which this format cannot express")]
    SkippedField,
    /// A sequence or map of unknown length (`serde(flatten)`, or an iterator).
    #[error(
        "a sequence or map of unknown length (serde's flatten), which this format cannot express"
    )]
    UnknownLength,
    /// The type asks the format what comes next (`serde(untagged)`, `serde(tag)`, `flatten`).
    #[error(
        "the type needs a self-describing format (serde's untagged, tag or flatten), which this \
         one is not"
    )]
    NotSelfDescribing,
    /// A payload too long to be held in memory whole, in a type that does not read it as a stream.
    #[error(
        "payloads of {bytes} bytes are longer than the `assembly_bytes` of the end that receives them, \
         which therefore takes them only as one `BulkReader`; take them as that, or raise that end's \
         `LinkConfig::assembly_bytes`"
    )]
    StillArriving {
        /// Their length.
        bytes: u64,
    },
    /// The value's own `Serialize` failed.
    #[error("{reason}")]
    Unencodable {
        /// Its message.
        reason: String,
    },
    /// The bytes are not an encoding of the type.
    #[error("{reason}")]
    Malformed {
        /// The format's message.
        reason: String,
    },
}

impl CodecErrorKind {
    /// Whether the cause may be that the two ends have different types of the same name.
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
            | Self::StillArriving { .. }
            | Self::Unencodable { .. } => false,
        }
    }

    /// Whether the decoding end refused it because of one of its limits.
    pub(crate) fn is_limit(&self) -> bool {
        matches!(self, Self::TooMuchStack | Self::TooMuchMemory { .. } | Self::StillArriving { .. })
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

    /// Which rule was broken.
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

/// Longest path that is rendered in full, steps.
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
