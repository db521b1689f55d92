//! The reply slots that this end has offered: buffers into which the peer may WRITE replies.
//!
//! Owns their memory from the frame that advertises a slot to the DONE that frees it. Never frees
//! one on a timer.
//!
//! Invariants:
//! 1. A number is used once in 2^32 slots, so a late frame never names another slot.
//! 2. At most [`MAX_OPEN`] slots are open, and their bytes are within the budget; one slot of any
//!    length is always allowed. Slots of calls that were given up count until their DONE. If no
//!    slot can be opened, the reply comes through the arena.

use std::collections::HashMap;

use crate::message::payload::Piece;
use crate::message::reply_slot::SlotOffer;
use crate::protocol::error::ProtocolError;
use crate::protocol::frame::{Placed, SlotBlock};

/// Most slots that this end has open at a peer, and that it accepts from a peer.
pub(super) const MAX_OPEN: usize = 1024;

#[derive(Debug, Default)]
pub(in crate::protocol::link) struct Slots {
    open: HashMap<u32, SlotOffer>,
    open_bytes: u64,
    max_bytes: u64,
    next: u32,
    /// The handshake agreed on reply slots.
    agreed: bool,
}

impl Slots {
    /// `max_bytes`: the budget; with 0 no slot is opened.
    pub(in crate::protocol::link) fn new(agreed: bool, max_bytes: u64) -> Self {
        Self { agreed, max_bytes, ..Self::default() }
    }

    /// Opens a slot to be advertised; `None` if the limits are reached or slots were not agreed on.
    pub(in crate::protocol::link) fn open(&mut self, offer: &SlotOffer) -> Option<SlotBlock> {
        let fits = self.open_bytes.saturating_add(offer.len) <= self.max_bytes;
        let may_open = self.agreed && self.max_bytes > 0 && self.open.len() < MAX_OPEN;
        if !may_open || !(fits || self.open.is_empty()) {
            return None;
        }
        self.open_bytes += offer.len;
        let slot = self.next;
        self.next = slot.wrapping_add(1);
        self.open.insert(slot, offer.clone());
        let SlotOffer { region, start, len, .. } = offer;
        let address = region.remote_address(*start);
        Some(SlotBlock { slot, rkey: region.rkey(), address, len: *len })
    }

    /// The piece of a tail, at offset `at`, that was written into a slot.
    pub(in crate::protocol::link) fn piece(
        &self,
        placed: Placed,
        at: u64,
    ) -> Result<Piece, ProtocolError> {
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

    /// The peer will not write a slot again.
    pub(in crate::protocol::link) fn close(
        &mut self,
        slot: u32,
    ) -> Result<SlotOffer, ProtocolError> {
        let offer = self.open.remove(&slot).ok_or(ProtocolError::UnknownSlot(slot))?;
        self.open_bytes -= offer.len;
        Ok(offer)
    }

    pub(in crate::protocol::link) fn open_count(&self) -> usize {
        self.open.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::soft;
    use crate::memory::region::Access;

    fn offer(len: u64) -> SlotOffer {
        let domain = soft::mem_device().allocate_pd().unwrap();
        SlotOffer::new(domain.allocate(1 << 16, Access::REMOTE_WRITE).unwrap(), 0, len, None)
    }

    #[test]
    fn open_slots_stay_within_the_budget() {
        let mut slots = Slots::new(true, 10_000);
        let open = |slots: &mut Slots, len| slots.open(&offer(len)).map(|block| block.slot);
        assert_eq!(open(&mut slots, 6_000), Some(0));
        assert_eq!(open(&mut slots, 4_001), None);
        assert_eq!(open(&mut slots, 4_000), Some(1));
        assert_eq!(open(&mut slots, 1), None);
        slots.close(0).unwrap();
        assert!(slots.close(0).is_err(), "done twice");
        assert_eq!(open(&mut slots, 6_001), None);
        assert_eq!(open(&mut slots, 6_000), Some(2));
    }

    #[test]
    fn one_slot_of_any_length_needs_a_budget() {
        let mut slots = Slots::new(true, 100);
        assert!(slots.open(&offer(60_000)).is_some());
        assert!(slots.open(&offer(1)).is_none());
        slots.close(0).unwrap();
        assert!(slots.open(&offer(100)).is_some());
        assert!(Slots::new(true, 0).open(&offer(1)).is_none());
    }
}
