//! Memory that the peer writes a reply into directly (RDMA WRITE).
//!
//! Owns the regions that peers may write, separate from all other memory, and keeps them for reuse.
//!
//! Invariant: a region is idle in the pool, in one slot held by a caller, or with the link; it
//! leaves the link only when the peer no longer writes it and no payload is in it.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Instant;

use rpc_transport::lock::Mutex;
use rpc_transport::memory::process::OfProcess;
use rpc_transport::memory::region::{Access, MemoryRegion, OnHome, ProtectionDomain};
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::reply_slot::SlotOffer;

use super::error::PoolError;

/// Smallest region, bytes.
const MIN_SLOT_BYTES: usize = 64 * 1024;
/// Maximum idle memory kept for reuse, bytes.
const MAX_IDLE_BYTES: usize = 64 << 20;

/// The idle regions, and since when they are idle.
#[derive(Default)]
pub(super) struct SlotHome {
    idle: OfProcess<Mutex<Vec<(MemoryRegion, Instant)>>>,
    on_home: Option<OnHome>,
}

impl SlotHome {
    /// `on_home` is called for each region that is kept.
    pub(super) fn watched(on_home: OnHome) -> Self {
        Self { idle: OfProcess::default(), on_home: Some(on_home) }
    }

    fn take(&self, size: usize) -> Option<MemoryRegion> {
        let mut idle = self.idle.lock();
        let at = idle.iter().position(|(region, _)| region.len() == size)?;
        Some(idle.swap_remove(at).0)
    }

    fn keep(&self, region: MemoryRegion) {
        if !self.idle.is_here() {
            return;
        }
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

    /// Frees the regions that have been idle since `since` or longer.
    pub(super) fn trim_idle(&self, since: Instant) {
        let mut idle = self.idle.lock();
        let gone: Vec<_> = idle.extract_if(.., |(_, at)| *at <= since).collect();
        drop(idle);
        drop(gone);
    }

    pub(super) fn has_idle(&self) -> bool {
        !self.idle.lock().is_empty()
    }

    #[cfg(test)]
    pub(super) fn idle_count(&self) -> usize {
        self.idle.lock().len()
    }
}

impl fmt::Debug for SlotHome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.idle.lock().len();
        write!(f, "SlotHome({count} regions)")
    }
}

/// A region in use; returns to its pool when dropped.
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

/// Memory for one reply ([`Call::into`](crate::Call::into)), from
/// [`BulkPool::slot`](crate::BulkPool::slot): the server writes the large part of its reply
/// straight into it, where the returned `Bulk` refers to it.
///
/// The server could write this memory at any time, so the [`Bulk`](crate::Bulk) is remote: it is
/// read by copying. The memory returns to the pool, for the next slot, when the last handle of the
/// reply is dropped and the server has confirmed that it no longer writes there, whatever the
/// outcome of the call.
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

    /// Offers it with a request over the connection that owns the slots at `home`. A slot of
    /// another connection is useless to that peer, and returns to its own pool.
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
