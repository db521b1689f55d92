//! Windows that are open to everybody: a device that gets rule 23 wrong.
//!
//! Owns the wrong key. The windows themselves are bound and ended as on the device below.

use std::any::Any;

use crate::device::ProviderError;
use crate::memory::owned::OwnedMemory;
use crate::memory::region::{Access, DomainOps, MemoryRegion, MemoryWindow, ProtectionDomain};

/// A domain whose windows have the keys of their regions.
#[derive(Debug)]
pub(super) struct OpenDomain {
    pub(super) inner: ProtectionDomain,
}

impl DomainOps for OpenDomain {
    fn allocate(&self, len_bytes: usize, access: Access) -> Result<MemoryRegion, ProviderError> {
        self.inner.allocate(len_bytes, Access { remote_write: access.is_remote(), ..access })
    }

    fn register(&self, memory: OwnedMemory, access: Access) -> Result<MemoryRegion, ProviderError> {
        self.inner.register(memory, access)
    }

    fn window(&self, region: &MemoryRegion) -> Result<MemoryWindow, ProviderError> {
        Ok(self.inner.window(region)?.with_key(region.rkey()))
    }

    fn as_any(&self) -> &dyn Any {
        // The inner device knows only its own domain.
        self.inner.ops().as_any()
    }
}
