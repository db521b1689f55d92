//! User memory, handed over to be registered.
//!
//! Owns the contract of who else may use it: nobody ([`OwnedMemory::from_raw`]), or everybody, but
//! only for reading ([`OwnedMemory::from_raw_shared`]). Never touches the bytes.
#![allow(unsafe_code, reason = "addresses of memory that somebody else keeps")]

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;

use crate::error::ProviderError;

/// User memory handed over for registration: its address is stable, and it owns what keeps the
/// bytes alive.
pub struct OwnedMemory {
    pub(super) base: NonNull<u8>,
    pub(super) len: usize,
    pub(super) writable: bool,
    pub(super) owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: `base` points into `owner`, which is Send + Sync and keeps the bytes; the contracts of
// the two constructors say who may use them.
unsafe impl Send for OwnedMemory {}
// SAFETY: as above; shared access gives no access to the bytes.
unsafe impl Sync for OwnedMemory {}

impl OwnedMemory {
    /// Hands over memory of any kind that nobody else uses.
    ///
    /// # Safety
    /// `base..base+len` is initialised, readable and writable, stays in place until `owner` is
    /// dropped, and nobody else reads or writes it until then.
    pub unsafe fn from_raw(
        base: NonNull<u8>,
        len: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Self {
        Self { base, len, writable: true, owner }
    }

    /// Hands over memory of any kind (a mapped file, say) that is only sent from: neither the
    /// device of this process nor a peer may write it, so others may read it at the same time.
    ///
    /// # Safety
    /// `base..base+len` is initialised and readable, stays in place until `owner` is dropped, and
    /// nobody writes it until then.
    pub unsafe fn from_raw_shared(
        base: NonNull<u8>,
        len: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Self {
        Self { base, len, writable: false, owner }
    }

    /// Length, bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The parts of the memory, for a provider that registers it; `remote_write` says whether peers
    /// are to write it.
    ///
    /// # Errors
    /// [`ProviderError::Unsupported`] when peers would write read-only memory.
    pub fn into_parts(self, remote_write: bool) -> Result<OwnedParts, ProviderError> {
        let Self { base, len, writable, owner } = self;
        if remote_write && !writable {
            return Err(ProviderError::Unsupported(
                "that peers write memory which may only be read",
            ));
        }
        Ok(OwnedParts { base, len, writable, owner })
    }
}

/// The parts of an [`OwnedMemory`].
#[derive(Debug)]
pub struct OwnedParts {
    /// First byte.
    pub base: NonNull<u8>,
    /// Length, bytes.
    pub len: usize,
    /// Whether the device may write it. If not, it is registered without that right.
    pub writable: bool,
    /// Keeps the memory alive.
    pub owner: Box<dyn Any + Send + Sync>,
}

impl From<Vec<u8>> for OwnedMemory {
    fn from(mut bytes: Vec<u8>) -> Self {
        let len = bytes.len();
        let base = NonNull::new(bytes.as_mut_ptr()).unwrap_or(NonNull::dangling());
        Self { base, len, writable: true, owner: Box::new(bytes) }
    }
}

impl fmt::Debug for OwnedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedMemory").field("len", &self.len).finish_non_exhaustive()
    }
}
