//! Names of the connection manager's ids, and handles to them.
//!
//! Owns the identity of an id. Never knows what the connection manager does with it: the owner of
//! the ids is an [`IdOwner`], so a queue pair can hold a handle and know no more.
//!
//! Invariants:
//! 1. A key ([`IdKey`]) is never used twice, so a command for an id that is gone reaches no other
//!    id.
//! 2. An id is closed, at the latest, when the last [`IdLink`] to it is dropped.

use super::inherited::is_inherited;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Identifies an id of the connection manager. It travels through the kernel as the id's context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct IdKey(usize);

impl IdKey {
    /// No id.
    pub(super) const NONE: Self = Self(0);

    /// A new key.
    pub(super) fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Never wraps with 64 bits. A 32-bit address space has 2^32 keys; no such machine with RDMA
        // is known.
        Self(usize::try_from(NEXT.fetch_add(1, Ordering::Relaxed)).unwrap_or(0))
    }

    /// Encodes as the context of an id: a number, not an address.
    pub(super) fn to_context(self) -> *mut std::ffi::c_void {
        std::ptr::without_provenance_mut(self.0)
    }

    /// Decodes the context of an id.
    pub(super) fn from_context(context: *mut std::ffi::c_void) -> Self {
        Self(context.addr())
    }
}

/// The owner of the ids. Never waits.
pub(super) trait IdOwner: fmt::Debug + Send + Sync {
    /// The QP of this id is in ERR: notify the peer.
    fn disconnect(&self, key: IdKey);

    /// Nobody needs this id any more. It may be closed already.
    fn close(&self, key: IdKey);
}

/// A shared handle to an id. Dropping the last one closes the id.
#[derive(Debug, Clone)]
pub(super) struct IdLink(Arc<Share>);

#[derive(Debug)]
struct Share {
    key: IdKey,
    owner: &'static dyn IdOwner,
}

impl IdLink {
    /// The first handle to an id.
    pub(super) fn new(owner: &'static dyn IdOwner, key: IdKey) -> Self {
        Self(Arc::new(Share { key, owner }))
    }

    /// The id's key.
    pub(super) fn key(&self) -> IdKey {
        self.0.key
    }

    /// Notifies the peer that the QP is in ERR.
    pub(super) fn disconnect(&self) {
        self.0.owner.disconnect(self.0.key);
    }

    /// Closes the id at once, even if others hold a handle. Harmless if it is already closed.
    pub(super) fn close(&self) {
        self.0.owner.close(self.0.key);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if is_inherited() {
            return;
        }
        self.owner.close(self.key);
    }
}
