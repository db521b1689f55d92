//! Memory that the peer writes a reply into directly (RDMA WRITE).
//!
//! Owns the regions that peers may write, apart from all other memory, and keeps them for reuse.
//!
//! Invariant: a region is home, in one slot that a caller holds, or with the link; it leaves the
//! link only when the peer writes it no more and no payload lies there.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use rpc_transport::memory::region::{Access, MemoryRegion, OnHome, ProtectionDomain};
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::reply_slot::SlotOffer;

use super::error::PoolError;

/// Smallest region, bytes.
const MIN_SLOT_BYTES: usize = 64 * 1024;
/// Most idle memory that is kept for reuse, bytes.
const MAX_IDLE_BYTES: usize = 64 << 20;

/// Regions at home, and since when.
#[derive(Default)]
pub(super) struct SlotHome {
    idle: Mutex<Vec<(MemoryRegion, Instant)>>,
    on_home: Option<OnHome>,
}

impl SlotHome {
    /// `on_home` is called for each region that is kept.
    pub(super) fn watched(on_home: OnHome) -> Self {
        Self { idle: Mutex::default(), on_home: Some(on_home) }
    }

    fn take(&self, size: usize) -> Option<MemoryRegion> {
        let mut idle = self.idle.lock();
        let at = idle.iter().position(|(region, _)| region.len() == size)?;
        Some(idle.swap_remove(at).0)
    }

    fn keep(&self, region: MemoryRegion) {
        {
            let mut idle = self.idle.lock();
            let bytes: usize = idle.iter().map(|(region, _)| region.len()).sum();
            if bytes + region.len() > MAX_IDLE_BYTES {
                return;
            }
            idle.push((region, Instant::now()));
        }
        if let Some(on_home) = &self.on_home {
            on_home();
        }
    }

    pub(super) fn trim(&self) {
        let idle = std::mem::take(&mut *self.idle.lock());
        drop(idle);
    }

    /// Gives back what was at home at `since` already. Returns whether something is left.
    pub(super) fn trim_idle(&self, since: Instant) -> bool {
        let mut idle = self.idle.lock();
        let gone: Vec<_> = idle.extract_if(.., |(_, at)| *at <= since).collect();
        let is_left = !idle.is_empty();
        drop(idle);
        drop(gone);
        is_left
    }

    #[cfg(test)]
    pub(super) fn idle_count(&self) -> usize {
        self.idle.lock().len()
    }
}

impl fmt::Debug for SlotHome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlotHome({} regions)", self.idle.lock().len())
    }
}

/// A region in use: goes back to its home when dropped.
struct Region {
    region: Option<MemoryRegion>,
    home: Weak<SlotHome>,
}

impl Drop for Region {
    fn drop(&mut self) {
        if let (Some(region), Some(home)) = (self.region.take(), self.home.upgrade()) {
            home.keep(region);
        }
    }
}

/// Memory for one reply ([`Call::into`](crate::Call::into)), from [`BulkPool::slot`](crate::BulkPool::slot): the server
/// writes the large part of its reply straight into it, and what the call gives lies there.
///
/// That is memory which the server could write at any time, so such a [`Bulk`](crate::Bulk) is
/// remote: it is read by copying. The memory goes back to the pool, for the next slot, when the
/// last handle of the reply is gone and the server has said that it writes there no more, whatever
/// becomes of the call.
pub struct ReplySlot {
    region: Region,
    len: usize,
}

impl ReplySlot {
    pub(super) fn take(
        home: &Arc<SlotHome>,
        domain: &ProtectionDomain,
        len: usize,
    ) -> Result<Self, PoolError> {
        let too_long = || PoolError::TooLong { bytes: len as u64 };
        let size = len.max(MIN_SLOT_BYTES).checked_next_power_of_two().ok_or_else(too_long)?;
        u32::try_from(size).map_err(|_| too_long())?;
        let region = match home.take(size) {
            Some(region) => region,
            None => domain.allocate(size, Access::REMOTE_WRITE)?,
        };
        let region = Region { region: Some(region), home: Arc::downgrade(home) };
        Ok(Self { region, len })
    }

    /// Length, bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Offers it with a request over the connection whose slots have their home at `home`. A slot of
    /// another connection is of no use to that peer, and goes back to its own pool.
    pub(super) fn offer_with(self, body: &mut OutBuf, home: &Arc<SlotHome>) {
        let Self { region, len } = self;
        let is_of_pool = region.home.upgrade().is_some_and(|own| Arc::ptr_eq(&own, home));
        if let Some(memory) = region.region.clone()
            && is_of_pool
            && len > 0
        {
            body.offer_slot(SlotOffer::new(memory, 0, len as u64, Some(Arc::new(region))));
        }
    }
}

impl fmt::Debug for ReplySlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReplySlot({} bytes)", self.len)
    }
}
