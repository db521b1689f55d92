//! Reply slots: memory of a caller that the answer's tail is written into, without an arena.
//!
//! Owns the handles of both ends. The caller's link keeps the memory until the answerer says that
//! it is done writing, or until the QP is destroyed: neither a cancelled call nor a timer frees it.
//!
//! Invariant: a [`PeerSlot`] is reported done exactly once, after the last WRITE to it: by the
//! frame of that WRITE, or when it is dropped.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::memory::region::MemoryRegion;

/// Memory that the answer to a message may be written into (see [`OutBuf::offer_slot`]).
///
/// [`OutBuf::offer_slot`]: crate::message::outgoing::OutBuf::offer_slot
#[derive(Clone)]
pub struct SlotOffer {
    pub(crate) region: MemoryRegion,
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) owner: Option<Arc<dyn Any + Send + Sync>>,
}

impl SlotOffer {
    /// `len` bytes of a region from `start` on. `owner` is dropped when the peer is done writing
    /// and no payload uses the bytes any more.
    ///
    /// # Panics
    /// When the span is empty or lies outside the region, or peers may not write it.
    #[must_use]
    pub fn new(
        region: MemoryRegion,
        start: u64,
        len: u64,
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Self {
        let end = start.checked_add(len);
        let is_inside = len > 0 && end.is_some_and(|end| end <= region.len() as u64);
        assert!(is_inside, "slot {start}+{len} in a region of {} bytes", region.len());
        assert!(region.access().remote_write, "a slot that peers may not write");
        Self { region, start, len, owner }
    }

    /// Length, bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes; it always has some.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl fmt::Debug for SlotOffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlotOffer({} bytes)", self.len)
    }
}

/// Receives the slots that are done; called from any thread, holding no lock that it takes itself.
pub(crate) trait SlotReturns: Send + Sync {
    /// This end will not write the slot any more.
    fn done(&self, slot: u32);
}

/// A slot of the peer, for the tail of one answer (see [`OutBuf::place_in`]). Dropping it gives the
/// memory back to the peer.
///
/// [`OutBuf::place_in`]: crate::message::outgoing::OutBuf::place_in
pub struct PeerSlot {
    pub(crate) slot: u32,
    pub(crate) rkey: u32,
    pub(crate) address: u64,
    pub(crate) len: u64,
    pub(crate) return_queue: Option<Arc<dyn SlotReturns>>,
}

impl PeerSlot {
    /// Length, bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for PeerSlot {
    fn drop(&mut self) {
        if let Some(queue) = self.return_queue.take() {
            queue.done(self.slot);
        }
    }
}

impl fmt::Debug for PeerSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerSlot({} of {} bytes)", self.slot, self.len)
    }
}
