//! Registered private memory: bytes of this process that its device can read in place.
//!
//! Owns the registration together with the bytes, for senders that use the same memory many times.
//! Never writes, and gives peers no access: the registration is local only.

use std::fmt;
use std::sync::Arc;

use crate::error::ProviderError;
use crate::memory::region::{Access, MemoryRegion, ProtectionDomain};
use crate::memory::shared::SharedBytes;

/// Bytes of an owner of any type, registered in a protection domain. Clones share both. The
/// registration ends, and the owner is dropped, with the last clone and the last part in flight.
#[derive(Clone)]
pub struct RegisteredBytes {
    region: MemoryRegion,
    bytes: SharedBytes,
}

impl RegisteredBytes {
    /// Registers the bytes that `owner.as_ref()` returns now.
    ///
    /// # Errors
    /// [`ProviderError::Resources`]: the device has no room, or the memory cannot be registered
    /// (read-only memory of the program cannot).
    pub fn register<T: AsRef<[u8]> + Send + Sync + 'static>(
        domain: &ProtectionDomain,
        owner: Arc<T>,
    ) -> Result<Self, ProviderError> {
        let bytes = SharedBytes::new(owner);
        let region = domain.register(bytes.to_owned_memory(), Access::LOCAL)?;
        Ok(Self { region, bytes })
    }

    /// The region that the bytes lie in; they are all of it.
    #[must_use]
    pub fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.as_slice()
    }
}

impl fmt::Debug for RegisteredBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegisteredBytes({})", self.as_slice().len())
    }
}
