//! Why the bytes of a received payload cannot be read.

use std::io;

use crate::memory::process::FORKED;

/// Why the bytes of a received payload cannot be read. Other bytes of the same payload may be
/// readable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The bytes are in memory that belongs to the parent of this process, which gives it back to
    /// the peer at any time.
    #[error("the payload {FORKED}, or detach it before the fork")]
    Forked,
    /// The bytes were encrypted, and were changed on the way, or by somebody who has a key of the
    /// memory. The connection ends.
    #[error("the payload failed its check: somebody changed it on its way")]
    Forged,
}

/// Of kind [`InvalidData`](io::ErrorKind::InvalidData) if the bytes were changed, else
/// [`Other`](io::ErrorKind::Other); the source is the [`ReadError`].
impl From<ReadError> for io::Error {
    #[cold]
    fn from(error: ReadError) -> Self {
        let kind = match error {
            ReadError::Forged => io::ErrorKind::InvalidData,
            ReadError::Forked => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
