//! An SRQ as an object of the device (contract rule 22).
//!
//! Owns its creation and destruction. Never posts, but keeps memory that was posted and that no
//! completion has named until the SRQ is destroyed.
//!
//! Invariants:
//! 1. Every QP that uses the SRQ holds its guard, so the SRQ is destroyed after them.
//! 2. Memory that the device might still touch is released after that, never before.
#![allow(unsafe_code, reason = "calls libibverbs")]

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::device::RecvWr;

use super::ffi::{self, Plain};
use super::memory::PdGuard;
use super::reaper;
use crate::user_code::logged;

/// An SRQ of the device.
pub(super) struct SrqGuard {
    raw: NonNull<ffi::ibv_srq>,
    /// RECVs that no completion has named (invariant 2).
    leftovers: Mutex<Vec<RecvWr>>,
    pd: Arc<PdGuard>,
}

// SAFETY: libibverbs is thread-safe; the pointer is only passed to it.
unsafe impl Send for SrqGuard {}
// SAFETY: as above.
unsafe impl Sync for SrqGuard {}

impl SrqGuard {
    pub(super) fn create(pd: &Arc<PdGuard>, max_wr: u32) -> io::Result<Self> {
        let mut attributes = ffi::ibv_srq_init_attr::zeroed();
        attributes.attr.max_wr = max_wr.max(1);
        attributes.attr.max_sge = 1;
        // SAFETY: a live PD, and a filled-in struct.
        let raw =
            ffi::created(|| unsafe { ffi::ibv_create_srq(pd.as_ptr(), &raw mut attributes) })?;
        Ok(Self { raw, leftovers: Mutex::default(), pd: Arc::clone(pd) })
    }

    /// The SRQ.
    pub(super) fn as_ptr(&self) -> *mut ffi::ibv_srq {
        self.raw.as_ptr()
    }

    /// Keeps memory until the SRQ is destroyed.
    pub(super) fn keep(&self, wrs: impl Iterator<Item = RecvWr>) {
        self.leftovers.lock().extend(wrs);
    }

    /// The domain of its RECVs.
    pub(super) fn pd(&self) -> &Arc<PdGuard> {
        &self.pd
    }
}

impl Drop for SrqGuard {
    fn drop(&mut self) {
        let leftovers = std::mem::take(&mut *self.leftovers.lock());
        let dead = RawSrq { raw: self.raw, leftovers, pd: Arc::clone(&self.pd) };
        reaper::dispose(move || dead.destroy());
    }
}

impl fmt::Debug for SrqGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SrqGuard({})", self.pd.context().name())
    }
}

struct RawSrq {
    raw: NonNull<ffi::ibv_srq>,
    leftovers: Vec<RecvWr>,
    pd: Arc<PdGuard>,
}

// SAFETY: as for `SrqGuard`.
unsafe impl Send for RawSrq {}

impl RawSrq {
    fn destroy(mut self) {
        // SAFETY: the guard was the only owner, and all QPs that used it are gone (invariant 1).
        let returned = unsafe { ffi::ibv_destroy_srq(self.raw.as_ptr()) };
        if let Err(error) = ffi::verbs_result(returned) {
            let (device, wrs) = (self.pd.context().name().to_owned(), self.leftovers.len());
            let text = "shared receive queue leaked, with what was posted on it";
            logged(move || tracing::error!(device, %error, wrs, "{text}"));
            // The device may still use it.
            std::mem::forget(std::mem::take(&mut self.leftovers));
        }
    }
}
