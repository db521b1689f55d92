//! Shared private memory: bytes of this process that do not change while anybody holds them.
//!
//! Owns the pointer to the bytes of an owner behind an `Arc`, so that they can be sliced, sent and
//! kept without naming the owner's type. Never writes.
//!
//! Invariants:
//! 1. `base..base+len` is what `AsRef` returned once, of an owner that the `Arc` pins: nobody has
//!    exclusive access to it while this handle lives, so the bytes neither move nor change.
#![allow(unsafe_code, reason = "keeps the address of the owner's bytes beside the owner")]

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::memory::owned::OwnedMemory;
use crate::user_code::UserOwner;

/// Bytes of an owner of any type. Cloning shares the owner.
#[derive(Clone)]
pub struct SharedBytes {
    base: NonNull<u8>,
    len: usize,
    owner: UserOwner,
}

// SAFETY: the bytes belong to `owner`, which is Send + Sync, and are only read (invariant 1).
unsafe impl Send for SharedBytes {}
// SAFETY: as above.
unsafe impl Sync for SharedBytes {}

impl SharedBytes {
    /// Shares the bytes that `owner.as_ref()` returns now.
    #[must_use]
    pub fn new<T: AsRef<[u8]> + Send + Sync + 'static>(owner: Arc<T>) -> Self {
        let bytes = (*owner).as_ref();
        let (base, len) = (NonNull::from(bytes).cast(), bytes.len());
        Self { base, len, owner: UserOwner::new(owner) }
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: invariant 1; the borrow of `self` keeps the owner alive.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    /// The same bytes as memory to register for reading by the device of this process.
    #[must_use]
    pub(crate) fn to_owned_memory(&self) -> OwnedMemory {
        let owner = Box::new(self.owner.clone());
        // SAFETY: readable while the owner lives, which the box sees to, and never written
        // (invariant 1).
        unsafe { OwnedMemory::from_raw_shared(self.base, self.len, owner) }
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBytes({})", self.len)
    }
}
