//! The RECVs that were posted to an SRQ (contract rule 22).
//!
//! Owns the memory of a RECV from its post until a completion names it. Never knows which QP takes
//! one.
#![allow(unsafe_code, reason = "calls libibverbs")]

use std::io;
use std::sync::Arc;

use slab::Slab;

use crate::device::{PostErrorKind, RecvWr};

use super::ffi;
use super::memory::PdGuard;
use super::recv_post::RecvPost;
use super::srq::SrqGuard;
use super::wr_key::{Queue, WrKey};

/// An SRQ as the CQ's owner knows it.
#[derive(Debug)]
pub(super) struct SharedQueue {
    guard: Arc<SrqGuard>,
    recvs: Slab<RecvWr>,
    max_wr: u32,
    /// Tells its RECVs from those of an SRQ that the CQ had before.
    generation: u32,
    /// QPs that use it and were not destroyed.
    pub(super) users: u32,
}

impl SharedQueue {
    pub(super) fn create(pd: &Arc<PdGuard>, max_wr: u32, generation: u32) -> io::Result<Self> {
        let guard = Arc::new(SrqGuard::create(pd, max_wr)?);
        Ok(Self { guard, recvs: Slab::new(), max_wr, generation, users: 0 })
    }

    pub(super) fn guard(&self) -> &Arc<SrqGuard> {
        &self.guard
    }

    pub(super) fn max_wr(&self) -> u32 {
        self.max_wr
    }

    /// Posts a RECV to the device, or hands it back.
    #[allow(clippy::result_large_err, reason = "the WR goes home with the error")]
    pub(super) fn post(&mut self, wr: RecvWr) -> Result<(), (PostErrorKind, RecvWr)> {
        if self.recvs.len() >= self.max_wr as usize {
            return Err((PostErrorKind::QueueFull(self.max_wr), wr));
        }
        let mut recv = RecvPost::of(&wr);
        let position = self.recvs.insert(wr);
        // SAFETY: a live SRQ; one WR with one span of memory that `recvs` keeps.
        let posted = recv.post(self.key(position), |wr, bad| unsafe {
            ffi::ibv_post_srq_recv(self.guard.as_ptr(), wr, bad)
        });
        posted.map_err(|kind| (kind, self.recvs.remove(position)))
    }

    fn key(&self, position: usize) -> u64 {
        // Below the SRQ's limit, so it fits.
        let position = u32::try_from(position).unwrap_or(0);
        WrKey { queue: Queue::Shared, qp: 0, generation: self.generation, position }.encode()
    }

    /// The RECV that a completion names, if it is one of this SRQ.
    pub(super) fn take(&mut self, key: WrKey) -> Option<RecvWr> {
        if !key.is_of(self.generation) {
            return None;
        }
        self.recvs.try_remove(key.position as usize)
    }
}

impl Drop for SharedQueue {
    fn drop(&mut self) {
        let recvs = std::mem::take(&mut self.recvs);
        self.guard.keep(recvs.into_iter().map(|(_, wr)| wr));
    }
}
