//! Shared private memory: bytes of this process that do not change while anybody holds them.
//!
//! Owns the pointer to the bytes of an owner behind an `Arc`, so that they can be sliced, sent and
//! kept without naming the owner's type. Never writes.
//!
//! Invariants:
//! 1. `base..base+len` is the slice that `AsRef` returned once for an owner that the `Arc` pins:
//!    nobody has exclusive access to the owner while this handle lives, so the bytes neither move
//!    nor change.
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

    /// These bytes as memory to register for reading by the device of this process.
    #[must_use]
    pub(crate) fn to_owned_memory(&self) -> OwnedMemory {
        let owner = Box::new(self.owner.clone());
        // SAFETY: readable while the owner lives, which the box ensures, and never written
        // (invariant 1).
        unsafe { OwnedMemory::from_raw_shared(self.base, self.len, owner) }
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBytes({})", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Others may read these bytes at any time: a device that could write them would race with
    /// those reads.
    #[test]
    fn what_others_read_is_registered_for_reading_alone() {
        let shared = SharedBytes::new(Arc::new(vec![7_u8; 64]));
        let parts = shared.to_owned_memory().into_parts(false).unwrap();
        assert!(!parts.writable, "the device of this process would get the right to write");
        assert_eq!(parts.base.as_ptr().cast_const(), shared.as_slice().as_ptr());
        let refused = shared.to_owned_memory().into_parts(true).unwrap_err();
        assert!(refused.to_string().contains("may only be read"), "{refused}");
        let own = OwnedMemory::from(vec![0_u8; 64]).into_parts(true).unwrap();
        assert!(own.writable, "nobody else has it");
    }
}
