//! Metadata on the wire.
//!
//! One byte: number of entries; then for each: one byte length of the name, the name; two bytes
//! (little endian) length of the value, the value. Entries are in ascending order of their names.

use std::sync::Arc;

use bytes::Bytes;
use rpc_transport::message::outgoing::OutBuf;

use super::{Entry, MAX_ENCODED_BYTES, MAX_ENTRIES, Metadata, MetadataError, check_name};

impl Metadata {
    /// Appends the encoding; nothing when there are no entries.
    #[doc(hidden)]
    pub fn encode(&self, out: &mut OutBuf) {
        let entries = self.entries();
        let Ok(count @ 1..) = u8::try_from(entries.len()) else { return };
        out.extend_from_slice(&[count]);
        for Entry { name, value } in entries {
            // Invariants 1 and 2 keep both lengths in range.
            let name_len = u8::try_from(name.len()).unwrap_or(0);
            let value_len = u16::try_from(value.len()).unwrap_or(0);
            out.extend_from_slice(&[name_len]);
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(&value_len.to_le_bytes());
            out.extend_from_slice(value);
        }
    }

    /// Parses what [`Metadata::encode`] wrote; `bytes` is all of it.
    ///
    /// # Errors
    /// [`MetadataError`]: the rule that the bytes break.
    #[doc(hidden)]
    pub fn decode(bytes: &[u8]) -> Result<Self, MetadataError> {
        if bytes.is_empty() {
            return Ok(Self::new());
        }
        if bytes.len() > MAX_ENCODED_BYTES {
            return Err(MetadataError::TooLong);
        }
        let mut rest = bytes;
        let count = usize::from(take(&mut rest, 1)?[0]);
        if count > MAX_ENTRIES {
            return Err(MetadataError::TooMany);
        }
        if count == 0 {
            return Err(MetadataError::Empty);
        }
        let mut entries: Vec<Entry> = Vec::with_capacity(count);
        for _ in 0..count {
            let name_len = usize::from(take(&mut rest, 1)?[0]);
            let name = check_name(take(&mut rest, name_len)?)?.into();
            let length = take(&mut rest, 2)?;
            let value = take(&mut rest, usize::from(u16::from_le_bytes([length[0], length[1]])))?;
            let entry = Entry { name, value: Bytes::copy_from_slice(value) };
            if entries.last().is_some_and(|last| last.name >= entry.name) {
                return Err(MetadataError::Unsorted);
            }
            entries.push(entry);
        }
        if !rest.is_empty() {
            return Err(MetadataError::TrailingBytes);
        }
        Ok(Self(Some(Arc::new(entries))))
    }
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Result<&'a [u8], MetadataError> {
    let (taken, left) = rest.split_at_checked(count).ok_or(MetadataError::Truncated)?;
    *rest = left;
    Ok(taken)
}
