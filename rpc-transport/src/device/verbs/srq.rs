//! An SRQ and the RECVs that were posted to it (contract rule 22).
//!
//! Owns the memory of a RECV from its post until a completion names it. Never knows which QP takes
//! one.
//!
//! Invariants:
//! 1. Every QP that uses the SRQ holds it, so the SRQ is destroyed after them.
//! 2. Memory that the device might still touch is released after that, never before.
#![allow(unsafe_code, reason = "calls libibverbs")]

use std::fmt;
use std::io;
use std::mem;
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;
use slab::Slab;

use crate::device::{PostErrorKind, RecvWr};

use super::ffi::{self, Plain};
use super::inherited::is_inherited;
use super::memory::PdGuard;
use super::reaper;
use super::recv_post::RecvPost;
use super::wr_key::{Queue, WrKey};
use crate::user_code::logged;

/// An SRQ of the device.
pub(super) struct Srq {
    raw: NonNull<ffi::ibv_srq>,
    pd: Arc<PdGuard>,
    max_wr: u32,
    /// Distinguishes its RECVs from those of an SRQ that the CQ had before.
    generation: u32,
    /// Used by the CQ's owner alone; a QP that outlives the CQ keeps them (invariant 2).
    recvs: Mutex<Slab<RecvWr>>,
}

// SAFETY: libibverbs is thread-safe; the pointer is only passed to it.
unsafe impl Send for Srq {}
// SAFETY: as above.
unsafe impl Sync for Srq {}

impl Srq {
    pub(super) fn create(pd: &Arc<PdGuard>, max_wr: u32, generation: u32) -> io::Result<Self> {
        let mut attributes = ffi::ibv_srq_init_attr::zeroed();
        attributes.attr.max_wr = max_wr.max(1);
        attributes.attr.max_sge = 1;
        // SAFETY: a live PD, and a filled-in struct.
        let raw =
            ffi::created(|| unsafe { ffi::ibv_create_srq(pd.as_ptr(), &raw mut attributes) })?;
        Ok(Self { raw, pd: Arc::clone(pd), max_wr, generation, recvs: Mutex::default() })
    }

    pub(super) fn as_ptr(&self) -> *mut ffi::ibv_srq {
        self.raw.as_ptr()
    }

    /// The domain of its RECVs.
    pub(super) fn pd(&self) -> &Arc<PdGuard> {
        &self.pd
    }

    pub(super) fn max_wr(&self) -> u32 {
        self.max_wr
    }

    /// Posts a RECV to the device, or hands it back.
    #[allow(clippy::result_large_err, reason = "the WR goes home with the error")]
    pub(super) fn post(&self, wr: RecvWr) -> Result<(), (PostErrorKind, RecvWr)> {
        let mut recvs = self.recvs.lock();
        if recvs.len() >= self.max_wr as usize {
            return Err((PostErrorKind::QueueFull(self.max_wr), wr));
        }
        let mut recv = RecvPost::of(&wr);
        let at = recvs.insert(wr);
        // Below the SRQ's limit, so it fits.
        let position = u32::try_from(at).unwrap_or(0);
        let key = WrKey { queue: Queue::Shared, qp: 0, generation: self.generation, position };
        // SAFETY: a live SRQ; one WR with one span of memory that `recvs` keeps.
        let posted = recv.post(key.encode(), |wr, bad| unsafe {
            ffi::ibv_post_srq_recv(self.raw.as_ptr(), wr, bad)
        });
        posted.map_err(|kind| (kind, recvs.remove(at)))
    }

    /// The RECV that a completion names, if it is one of this SRQ.
    pub(super) fn take(&self, key: WrKey) -> Option<RecvWr> {
        if !key.is_of(self.generation) {
            return None;
        }
        self.recvs.lock().try_remove(key.position as usize)
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        if is_inherited() {
            return;
        }
        let recvs = mem::take(self.recvs.get_mut());
        let dead = RawSrq { raw: self.raw, recvs, pd: Arc::clone(&self.pd) };
        reaper::dispose(move || dead.destroy());
    }
}

impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Srq({})", self.pd.context().name())
    }
}

struct RawSrq {
    raw: NonNull<ffi::ibv_srq>,
    recvs: Slab<RecvWr>,
    pd: Arc<PdGuard>,
}

// SAFETY: as for `Srq`.
unsafe impl Send for RawSrq {}

impl RawSrq {
    fn destroy(mut self) {
        // SAFETY: the `Srq` was the only owner, and all QPs that used it are gone (invariant 1).
        let returned = unsafe { ffi::ibv_destroy_srq(self.raw.as_ptr()) };
        if let Err(error) = ffi::verbs_result(returned) {
            let (device, wrs) = (self.pd.context().name().to_owned(), self.recvs.len());
            let text = "shared receive queue leaked, with what was posted on it";
            logged(move || tracing::error!(device, %error, wrs, "{text}"));
            // The device may still use it.
            mem::forget(mem::take(&mut self.recvs));
        }
    }
}
