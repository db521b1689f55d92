//! A limit on locked memory: what a device charges against it, and the error beyond it.
//!
//! Owns the count, by which a test sees what a NIC would lock. Each object is charged by
//! [`locked`](crate::device::locked) until it is gone.

use std::any::Any;

use crate::device::ProviderError;
use crate::device::locked;
use crate::memory::budget::{MemoryBudget, Reservation};
use crate::memory::owned::OwnedMemory;
use crate::memory::region::{Access, DomainOps, MemoryRegion, MemoryWindow, ProtectionDomain};

/// The limit of one process, or of all devices that share the budget.
#[derive(Debug, Clone)]
pub(super) struct LockLimit(pub(super) MemoryBudget);

impl PartialEq for LockLimit {
    fn eq(&self, other: &Self) -> bool {
        self.0.is_same(&other.0)
    }
}

impl Eq for LockLimit {}

impl LockLimit {
    /// Charges an object of `bytes`, or refuses it with ENOMEM, as the system does.
    pub(super) fn lock(
        &self,
        what: &'static str,
        bytes: u64,
    ) -> Result<Reservation, ProviderError> {
        self.0.reserve(bytes).map_err(|full| ProviderError::Resources {
            what,
            message: format!(
                "Cannot allocate memory (os error 12); it locks {bytes} bytes in addition to the \
                 {} locked already, and the limit on locked memory (RLIMIT_MEMLOCK) is {} bytes",
                full.used, full.limit
            ),
        })
    }
}

/// A domain whose regions are charged.
#[derive(Debug)]
pub(super) struct LimitedDomain {
    pub(super) inner: ProtectionDomain,
    pub(super) limit: LockLimit,
}

impl LimitedDomain {
    fn charged(
        &self,
        len: usize,
        register: impl FnOnce() -> Result<MemoryRegion, ProviderError>,
    ) -> Result<MemoryRegion, ProviderError> {
        let locked = self.limit.lock("register memory", locked::region(len))?;
        let region = register()?;
        region.charge_locked(locked);
        Ok(region)
    }
}

impl DomainOps for LimitedDomain {
    fn allocate(&self, len_bytes: usize, access: Access) -> Result<MemoryRegion, ProviderError> {
        self.charged(len_bytes, || self.inner.allocate(len_bytes, access))
    }

    fn register(&self, memory: OwnedMemory, access: Access) -> Result<MemoryRegion, ProviderError> {
        self.charged(memory.len(), || self.inner.register(memory, access))
    }

    fn window(&self, region: &MemoryRegion) -> Result<MemoryWindow, ProviderError> {
        self.inner.window(region)
    }

    fn as_any(&self) -> &dyn Any {
        // The inner device knows only its own domain.
        self.inner.ops().as_any()
    }
}
