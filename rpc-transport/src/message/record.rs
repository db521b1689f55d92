//! Records: the pieces in which large messages are encrypted on their way into memory.
//!
//! Owns their sizes and the interface of their cryptography, which another crate implements.

/// Bytes that a sealed frame or record is longer than its content.
pub const TAG_BYTES: usize = 16;
/// Bytes of each record but the last one of a frame.
pub const RECORD_BYTES: usize = 64 << 10;

/// The tag of a record.
pub type Tag = [u8; TAG_BYTES];

/// The key of the records of one direction, until the key of the frames changes. Its nonces differ
/// from those of frames with the same number.
pub trait RecordKey: Send + Sync {
    /// Encrypts `record` in place and returns its tag.
    ///
    /// # Errors
    /// [`RecordError`]: the key cannot seal it.
    fn seal(&self, number: u64, record: &mut [u8]) -> Result<Tag, RecordError>;

    /// Decrypts `sealed` in place: a record, and its tag in the last [`TAG_BYTES`] bytes.
    ///
    /// # Errors
    /// [`RecordError`]: it is forged, and of no use.
    fn open(&self, number: u64, sealed: &mut [u8]) -> Result<(), RecordError>;
}

/// A record is not sealed, or not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a record could not be sealed, or failed its check")]
pub struct RecordError;
