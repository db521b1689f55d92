//! The destination of the large part of a reply.

use super::buffer::BulkMut;
use super::slot::ReplySlot;

/// The destination of the large part of a reply: see [`Call::into`](crate::Call::into).
#[derive(Debug)]
#[non_exhaustive]
pub enum Landing {
    /// Private memory; the reply is copied into it once.
    Buffer(BulkMut),
    /// Memory that the server writes directly.
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
