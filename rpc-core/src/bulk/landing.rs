//! Where the caller wants the large part of a reply.

use super::buffer::BulkMut;
use super::slot::ReplySlot;

/// Where the large part of a reply shall lie: see [`Call::into`](crate::Call::into).
#[derive(Debug)]
#[non_exhaustive]
pub enum Landing {
    /// Private memory, into which the reply is copied once.
    Buffer(BulkMut),
    /// Memory that the server writes itself.
    Slot(ReplySlot),
}

impl From<BulkMut> for Landing {
    fn from(buffer: BulkMut) -> Self {
        Self::Buffer(buffer)
    }
}

impl From<ReplySlot> for Landing {
    fn from(slot: ReplySlot) -> Self {
        Self::Slot(slot)
    }
}
