//! Rejects: why a server refuses a connection, as a code for programs and a text for people.
//!
//! Owns the codes and the byte format, which is the same in every version: a client that shares no
//! version with the server must still be able to read the reason.

use std::fmt;

use super::{Fields, HandshakeError, PREFIX_BYTES, VERSIONS, Versions, What, prefix, read_prefix};
use crate::protocol::text::truncated;
use crate::text::printable;

/// Longest text of a reject, bytes.
pub const REJECT_TEXT_MAX_BYTES: usize = 100;
/// Length of a reject without text, bytes: prefix, code, text length.
const REJECT_MIN_BYTES: usize = PREFIX_BYTES + 3;
/// Length of a reject with the longest text, bytes.
pub(super) const REJECT_MAX_BYTES: usize = REJECT_MIN_BYTES + REJECT_TEXT_MAX_BYTES;

/// Why a connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RejectCode {
    /// No common protocol version.
    VersionMismatch,
    /// A value of the request is out of range, or the request is malformed.
    BadConfig,
    /// No room for another connection now; there may be later.
    Busy,
    /// The server is shutting down.
    ShuttingDown,
    /// The server does not have the requested service.
    WrongService,
    /// The application refused.
    Application,
    /// A code of a later version.
    Other(u16),
}

impl RejectCode {
    /// The number on the wire.
    #[must_use]
    pub const fn to_wire(self) -> u16 {
        match self {
            Self::VersionMismatch => 1,
            Self::BadConfig => 2,
            Self::Busy => 3,
            Self::ShuttingDown => 4,
            Self::WrongService => 5,
            Self::Application => 6,
            Self::Other(code) => code,
        }
    }

    /// Reads a number; every number is a valid code.
    #[must_use]
    pub const fn from_wire(code: u16) -> Self {
        match code {
            1 => Self::VersionMismatch,
            2 => Self::BadConfig,
            3 => Self::Busy,
            4 => Self::ShuttingDown,
            5 => Self::WrongService,
            6 => Self::Application,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for RejectCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::VersionMismatch => f.write_str("no common version"),
            Self::BadConfig => f.write_str("bad configuration"),
            Self::Busy => f.write_str("busy"),
            Self::ShuttingDown => f.write_str("shutting down"),
            Self::WrongService => f.write_str("wrong service"),
            Self::Application => f.write_str("refused by the application"),
            Self::Other(code) => write!(f, "reject code {code}"),
        }
    }
}

/// The reason for a refused connection. The client's error shows it, as [`printable`] text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reject {
    /// The code, for programs.
    pub code: RejectCode,
    /// The text, for people; at most [`REJECT_TEXT_MAX_BYTES`] bytes of it are sent.
    pub text: String,
}

impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.text {
            "" => self.code.fmt(f),
            text => write!(f, "{}: {}", self.code, printable(text)),
        }
    }
}

impl std::error::Error for Reject {}

impl Reject {
    /// A reject. Text beyond the limit is cut off when it is written.
    pub fn new(code: RejectCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// The answer to a request that could not be read or has a value out of range.
    #[must_use]
    pub fn malformed(error: &HandshakeError) -> Self {
        // The client shows this text, and there is little room.
        let text = match error {
            HandshakeError::BadValue(bad) => {
                format!("offered {} is {}, allowed is {}", bad.field, bad.value, bad.allowed)
            }
            other => other.to_string(),
        };
        Self::new(RejectCode::BadConfig, text)
    }

    /// The ends have no common version.
    #[must_use]
    pub fn version_mismatch(server: Versions, client: Versions) -> Self {
        let text = format!(
            "the server speaks versions {server}, this client {client}; update the older \
                     one"
        );
        Self::new(RejectCode::VersionMismatch, text)
    }

    /// The private data of a rejection.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let text = truncated(&self.text, REJECT_TEXT_MAX_BYTES);
        let mut bytes = prefix(REJECT_MIN_BYTES + text.len(), What::Reject, VERSIONS).to_vec();
        bytes.extend_from_slice(&self.code.to_wire().to_le_bytes());
        bytes.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
        bytes.extend_from_slice(text.as_bytes());
        bytes
    }

    /// Reads the private data of a rejection.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, HandshakeError> {
        let (_, mut fields) = read_prefix(bytes, What::Reject, REJECT_MIN_BYTES)?;
        let code = RejectCode::from_wire(u16::from_le_bytes(fields.take()?));
        let [len] = fields.take()?;
        let text = Self::text(&fields, usize::from(len)).ok_or(HandshakeError::BadText)?;
        Ok(Self::new(code, text))
    }

    /// The text: all remaining bytes, within its limit.
    fn text<'a>(fields: &Fields<'a>, len: usize) -> Option<&'a str> {
        let text = fields.rest();
        if len > REJECT_TEXT_MAX_BYTES || len != text.len() {
            return None;
        }
        std::str::from_utf8(text).ok()
    }
}
