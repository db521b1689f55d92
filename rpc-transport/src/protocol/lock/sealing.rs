//! Sealed frames: encryption and authentication of each frame behind the handshake.
//!
//! Owns the number of each direction's next frame and next record, and when its key changes. Never
//! does cryptography: a [`FrameKey`] does, which another crate implements.
//!
//! A sealed frame is the header with [`SEALED`] set in its kind, the encrypted bytes behind the
//! header, and a tag. The header stays in clear and is authenticated. The number of a frame is not
//! sent: it counts the frames of its direction.
//!
//! What is written into memory of the peer is sealed in *records*, with the key of the frames and
//! numbers of their own. Their tags travel in the frame that names them, and the reader of a record
//! opens it.
//!
//! Invariants:
//! 1. No number of a direction is sealed twice with one key. It is used up by sealing, whatever
//!    becomes of the frame or record. Numbers of records never start again, also with a new key.
//! 2. Nothing of a frame is given out that is not the next one of its direction, unchanged. After
//!    the first such frame an [`Opener`] opens no more.
//! 3. A key seals [`REKEY_FRAMES`] frames at most, and both ends change it at the same number. A
//!    frame names [`MAX_RECORDS`] records at most, and each that is sealed is named or ends the
//!    connection. So a key is used fewer than 2^23 times, for fewer than 2^35 blocks of AES: the
//!    limits of AES-GCM.

use std::fmt;
use std::sync::Arc;

pub use crate::message::record::{RecordError, RecordKey};
pub use crate::protocol::frame::TAG_BYTES;
use crate::protocol::frame::{HEADER_BYTES, MAX_RECORDS, RECORD_BYTES, Tags};
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

    /// The key of the records of now.
    fn record_key(&self) -> Arc<dyn RecordKey>;
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
    /// More is written for one frame than it may name.
    #[error("{0} bytes are too many for the records of a frame")]
    TooLong(usize),
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

/// The keys of the records that a frame may name.
#[derive(Clone)]
pub struct RecordKeys {
    epoch: u32,
    this: Arc<dyn RecordKey>,
    /// Until the last change.
    last: Option<Arc<dyn RecordKey>>,
}

impl RecordKeys {
    /// How often the key has changed.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The key of an epoch: of this one, or of the last.
    #[must_use]
    pub fn of(&self, epoch: u32) -> Option<&Arc<dyn RecordKey>> {
        match self.epoch.checked_sub(epoch) {
            Some(0) => Some(&self.this),
            Some(1) => self.last.as_ref(),
            _ => None,
        }
    }
}

impl fmt::Debug for RecordKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordKeys(epoch {})", self.epoch)
    }
}

/// A key, and the number of its direction's next frame.
struct Direction {
    key: Box<dyn FrameKey>,
    next: u64,
    records: RecordKeys,
}

impl Direction {
    fn new(key: Box<dyn FrameKey>, next: u64) -> Self {
        let records = RecordKeys { epoch: 0, this: key.record_key(), last: None };
        Self { key, next, records }
    }

    fn advance(&mut self) {
        self.key.advance();
        let this = self.key.record_key();
        self.records.epoch += 1;
        self.records.last = Some(std::mem::replace(&mut self.records.this, this));
    }

    #[cfg(any(test, feature = "model"))]
    fn skip_to(&mut self, number: u64) {
        while (u64::from(self.records.epoch) + 1) * REKEY_FRAMES < number {
            self.advance();
        }
        self.next = number;
    }

    /// The number of the next frame. Its key is then the right one.
    fn take(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        if number != 0 && number.is_multiple_of(REKEY_FRAMES) {
            self.advance();
        }
        number
    }
}

/// Seals the frames of this end, and the records that they name.
pub struct Sealer {
    direction: Direction,
    /// The number of the next record.
    next_record: u64,
}

impl Sealer {
    /// The first `sealed` numbers are used up.
    #[must_use]
    pub fn new(key: Box<dyn FrameKey>, sealed: u64) -> Self {
        Self { direction: Direction::new(key, sealed), next_record: 0 }
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
        let number = self.direction.take();
        *tag = self.direction.key.seal(number, header, payload)?;
        Ok(())
    }

    /// Seals what is written for the next frame in place, as records. The frame has to name them.
    ///
    /// # Errors
    /// [`SealError`]: nothing of it must be sent, and nothing after it.
    pub fn seal_records(&mut self, bytes: &mut [u8]) -> Result<Tags, SealError> {
        if bytes.len() > MAX_RECORDS * RECORD_BYTES {
            return Err(SealError::TooLong(bytes.len()));
        }
        let RecordKeys { epoch, this, .. } = &self.direction.records;
        let first = self.next_record;
        let mut tags = Vec::with_capacity(MAX_RECORDS);
        for record in bytes.chunks_mut(RECORD_BYTES) {
            let number = self.next_record;
            self.next_record += 1;
            tags.push(this.seal(number, record).map_err(|_| SealError::Key)?);
        }
        Ok(Tags { epoch: *epoch, first, tags })
    }

    #[cfg(any(test, feature = "model"))]
    pub(crate) fn skip_to(&mut self, number: u64) {
        self.direction.skip_to(number);
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealer({} frames)", self.direction.next)
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
        Self { direction: Direction::new(key, opened), has_failed: false }
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

    /// The keys of the records that the frame may name that was opened last.
    #[must_use]
    pub fn record_keys(&self) -> &RecordKeys {
        &self.direction.records
    }

    /// Frames that were opened, and one more after a failure.
    pub(crate) fn opened(&self) -> u64 {
        self.direction.next
    }

    #[cfg(any(test, feature = "model"))]
    pub(crate) fn skip_to(&mut self, number: u64) {
        self.direction.skip_to(number);
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opener({} frames)", self.direction.next)
    }
}
