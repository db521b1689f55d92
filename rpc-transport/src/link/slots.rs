//! The slots that this end has offered for replies.
//!
//! Owns their memory from the frame that advertises a slot to the DONE that frees it. Never frees
//! one on a timer.
//!
//! Invariants:
//! 1. A number is used once in 2^32 slots, so that what is late names no other slot.
//! 2. At most [`MAX_OPEN`] are open; what is offered beyond comes back through the arena.

use std::collections::HashMap;

use crate::frame::{Placed, SlotBlock};
use crate::payload::Piece;
use crate::protocol_error::ProtocolError;
use crate::reply_slot::SlotOffer;

/// Most slots that a peer may keep open.
const MAX_OPEN: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Slots {
    open: HashMap<u32, SlotOffer>,
    next: u32,
    /// The handshake agreed on them.
    agreed: bool,
}

impl Slots {
    pub(super) fn new(agreed: bool) -> Self {
        Self { agreed, ..Self::default() }
    }

    /// Advertises a slot from now on; `None` if too many are open, or the peer knows none.
    pub(super) fn open(&mut self, offer: &SlotOffer) -> Option<SlotBlock> {
        if !self.agreed || self.open.len() >= MAX_OPEN {
            return None;
        }
        let slot = self.next;
        self.next = slot.wrapping_add(1);
        self.open.insert(slot, offer.clone());
        let SlotOffer { region, start, len, .. } = offer;
        let address = region.remote_address(*start);
        Some(SlotBlock { slot, rkey: region.rkey(), address, len: *len })
    }

    /// Bytes `at..at + placed.bytes` of a tail were written into a slot.
    pub(super) fn piece(&self, placed: Placed, at: u64) -> Result<Piece, ProtocolError> {
        let Placed { slot, bytes } = placed;
        let open = self.open.get(&slot).ok_or(ProtocolError::UnknownSlot(slot))?;
        let end = at.saturating_add(bytes);
        if end > open.len {
            return Err(ProtocolError::BeyondSlot { slot, end, len: open.len });
        }
        let in_region = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        let owner = open.owner.clone();
        Ok(Piece::Remote {
            region: open.region.clone(),
            offset: in_region(open.start + at),
            len: in_region(bytes),
            lease: owner.map(|owner| Box::new(owner) as _),
        })
    }

    /// The peer writes a slot no more.
    pub(super) fn close(&mut self, slot: u32) -> Result<SlotOffer, ProtocolError> {
        self.open.remove(&slot).ok_or(ProtocolError::UnknownSlot(slot))
    }

    pub(super) fn open_count(&self) -> usize {
        self.open.len()
    }
}
