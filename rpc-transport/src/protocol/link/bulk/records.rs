//! The records that frames of the peer name.
//!
//! Owns the rules about their numbers and keys. Never opens one: its reader does.
//!
//! Invariants:
//! 1. A number is named once, and numbers only rise.
//! 2. The key is that of the frame, or the one before it.

use std::sync::Arc;

use crate::message::sealed::Records;
use crate::protocol::error::ProtocolError;
use crate::protocol::frame::Tags;
use crate::protocol::lock::RecordKeys;

/// What the next frame may name.
#[derive(Debug, Default)]
pub(in crate::protocol::link) struct NamedRecords {
    keys: Option<RecordKeys>,
    /// The least number that is left.
    least: u64,
}

impl NamedRecords {
    /// The keys of the frame that has arrived.
    pub(in crate::protocol::link) fn set_keys(&mut self, keys: &RecordKeys) {
        if self.keys.as_ref().is_none_or(|known| known.epoch() != keys.epoch()) {
            self.keys = Some(keys.clone());
        }
    }

    /// The records of a frame.
    ///
    /// # Errors
    /// The rule that the peer broke.
    pub(super) fn name(&mut self, tags: &Tags) -> Result<Records, ProtocolError> {
        let Tags { epoch, first, ref tags } = *tags;
        let keys = self.keys.as_ref().ok_or(ProtocolError::NotAgreed("TAGS block"))?;
        let now = keys.epoch();
        let key = keys.of(epoch).ok_or(ProtocolError::RecordEpoch { epoch, now })?;
        let least = self.least;
        let end = first.checked_add(tags.len() as u64).filter(|end| *end <= MAX_NUMBERS);
        self.least =
            end.filter(|_| first >= least).ok_or(ProtocolError::RecordNumber { first, least })?;
        Ok(Records { key: Arc::clone(key), first, tags: tags.clone() })
    }
}

/// Numbers of records lie below this.
const MAX_NUMBERS: u64 = 1 << 62;
