//! Sealed frames: encryption and authentication of each frame behind the handshake.
//!
//! Owns the number of each direction's next frame, and when its key changes. Never does
//! cryptography: a [`FrameKey`] does, which another crate implements.
//!
//! A sealed frame is the header with [`SEALED`] set in its kind, the encrypted bytes behind the
//! header, and a tag. The header stays in clear and is authenticated. The number of a frame is not
//! sent: it counts the frames of its direction.
//!
//! Invariants:
//! 1. No number of a direction is sealed twice with one key. It is used up by sealing, whatever
//!    becomes of the frame.
//! 2. Nothing of a frame is given out that is not the next one of its direction, unchanged. After
//!    the first such frame an [`Opener`] opens no more.
//! 3. A key seals [`REKEY_FRAMES`] frames at most, and both ends change it at the same number. With
//!    the longest receive buffer of a secure link that is far below the limits of AES-GCM.

use std::fmt;

use crate::protocol::frame::HEADER_BYTES;

/// Bytes that a sealed frame is longer than its content.
pub const TAG_BYTES: usize = 16;
/// Set in the first byte of a sealed frame.
pub const SEALED: u8 = 0x80;
/// Frames of a direction between two changes of its key.
pub const REKEY_FRAMES: u64 = 1 << 20;

/// The key of one direction. The header is authenticated with the payload.
pub trait FrameKey: Send {
    /// Encrypts `payload` in place and returns its tag.
    ///
    /// # Errors
    /// [`SealError::Key`]: the key cannot seal it.
    fn seal(
        &self,
        number: u64,
        header: &[u8; HEADER_BYTES],
        payload: &mut [u8],
    ) -> Result<[u8; TAG_BYTES], SealError>;

    /// Decrypts `sealed` in place: a payload, and its tag in the last [`TAG_BYTES`] bytes.
    ///
    /// # Errors
    /// [`SealError::Forged`].
    fn open(
        &self,
        number: u64,
        header: &[u8; HEADER_BYTES],
        sealed: &mut [u8],
    ) -> Result<(), SealError>;

    /// Becomes the next key, as it does at the other end.
    fn advance(&mut self);
}

/// The keys of a connection.
pub struct FrameKeys {
    /// For frames of this end.
    pub own: Box<dyn FrameKey>,
    /// For frames of the peer.
    pub peer: Box<dyn FrameKey>,
}

impl fmt::Debug for FrameKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameKeys").finish_non_exhaustive()
    }
}

/// Why a frame is not sealed or not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// The key refuses to seal.
    #[error("a frame could not be encrypted")]
    Key,
    /// It is in clear.
    #[error("a plain frame on a sealed connection")]
    Plain,
    /// It has immediate data, which nothing authenticates.
    #[error("immediate data on a sealed connection")]
    Immediate,
    /// It is shorter than a header and a tag.
    #[error("sealed frame of {0} bytes is cut off")]
    Truncated(usize),
    /// Somebody changed it, or one before it is missing.
    #[error("a frame failed its check")]
    Forged,
}

/// A key, and the number of its direction's next frame.
struct Direction {
    key: Box<dyn FrameKey>,
    next: u64,
}

impl Direction {
    /// The number of the next frame. Its key is then the right one.
    fn take(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        if number != 0 && number.is_multiple_of(REKEY_FRAMES) {
            self.key.advance();
        }
        number
    }
}

/// Seals the frames of this end.
pub struct Sealer(Direction);

impl Sealer {
    /// The first `sealed` numbers are used up.
    #[must_use]
    pub fn new(key: Box<dyn FrameKey>, sealed: u64) -> Self {
        Self(Direction { key, next: sealed })
    }

    /// Seals the next frame in place. Its last [`TAG_BYTES`] bytes are room for the tag.
    ///
    /// # Errors
    /// [`SealError`]: it must not be sent, and nothing after it.
    pub fn seal(&mut self, frame: &mut [u8]) -> Result<(), SealError> {
        let len = frame.len();
        let Some((header, rest)) = frame.split_first_chunk_mut::<HEADER_BYTES>() else {
            return Err(SealError::Truncated(len));
        };
        let Some((payload, tag)) = rest.split_last_chunk_mut::<TAG_BYTES>() else {
            return Err(SealError::Truncated(len));
        };
        header[0] |= SEALED;
        let number = self.0.take();
        *tag = self.0.key.seal(number, header, payload)?;
        Ok(())
    }

    #[cfg(any(test, feature = "model"))]
    pub(crate) fn skip_to(&mut self, number: u64) {
        self.0.next = number;
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealer({} frames)", self.0.next)
    }
}

/// Opens the frames of the peer.
pub struct Opener {
    direction: Direction,
    has_failed: bool,
}

impl Opener {
    /// The first `opened` numbers are used up.
    #[must_use]
    pub fn new(key: Box<dyn FrameKey>, opened: u64) -> Self {
        Self { direction: Direction { key, next: opened }, has_failed: false }
    }

    /// Opens the next frame in place, which arrived with the immediate `imm`. Returns its length
    /// without the tag.
    ///
    /// # Errors
    /// [`SealError`]: end the connection.
    pub fn open(&mut self, imm: Option<u32>, frame: &mut [u8]) -> Result<usize, SealError> {
        let opened = self.try_open(imm, frame);
        self.has_failed |= opened.is_err();
        opened
    }

    fn try_open(&mut self, imm: Option<u32>, frame: &mut [u8]) -> Result<usize, SealError> {
        let len = frame.len();
        if self.has_failed {
            return Err(SealError::Forged);
        }
        if frame.first().is_none_or(|kind| kind & SEALED == 0) {
            return Err(SealError::Plain);
        }
        if imm.is_some() {
            return Err(SealError::Immediate);
        }
        let Some((header, sealed)) = frame.split_first_chunk_mut::<HEADER_BYTES>() else {
            return Err(SealError::Truncated(len));
        };
        if sealed.len() < TAG_BYTES {
            return Err(SealError::Truncated(len));
        }
        let number = self.direction.take();
        self.direction.key.open(number, header, sealed)?;
        header[0] &= !SEALED;
        Ok(len - TAG_BYTES)
    }

    #[cfg(any(test, feature = "model"))]
    pub(crate) fn skip_to(&mut self, number: u64) {
        self.direction.next = number;
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opener({} frames)", self.direction.next)
    }
}
