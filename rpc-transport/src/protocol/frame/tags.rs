//! The TAGS block: the tags of the records that a sealed frame names.
//!
//! What one frame says was written is cut into *records* of [`RECORD_BYTES`], the last one shorter,
//! and each is encrypted with a number and a tag of its own. Owns the bytes of the block. The tags
//! are checked by who reads the records.

pub use crate::message::record::{RECORD_BYTES, TAG_BYTES, Tag};
use crate::protocol::error::ProtocolError;

/// Most records that a frame names.
pub const MAX_RECORDS: usize = 4;
/// Epoch, reserved field and first number, bytes.
const PREFIX_BYTES: usize = 16;
/// Longest TAGS block, bytes.
pub(crate) const TAGS_MAX_BYTES: usize = PREFIX_BYTES + MAX_RECORDS * TAG_BYTES;

/// The records of one frame. Their number follows from the bytes that were written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tags {
    /// The key of the direction that sealed them: how often it was changed before.
    pub epoch: u32,
    /// The number of the first record; the others follow it.
    pub first: u64,
    /// The tag of each.
    pub tags: Vec<Tag>,
}

impl Tags {
    /// The block.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(TAGS_MAX_BYTES);
        bytes.extend_from_slice(&self.epoch.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.first.to_le_bytes());
        bytes.extend_from_slice(self.tags.as_flattened());
        bytes
    }
}

/// How many records `bytes` written bytes are.
///
/// # Errors
/// More than a frame may name.
pub(super) fn record_count(bytes: u64) -> Result<usize, ProtocolError> {
    let count = usize::try_from(bytes.div_ceil(RECORD_BYTES as u64));
    let count = count.ok().filter(|count| *count <= MAX_RECORDS);
    count.ok_or(ProtocolError::TooManyRecords { bytes, max: MAX_RECORDS })
}
