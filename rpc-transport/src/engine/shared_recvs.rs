//! The RECVs that the connections of a shard share, on a device with a shared receive queue.
//!
//! Owns the queue's content and the shares of connections. Posts all RECVs when the queue is made;
//! each that a message takes is posted again by the connection that got it.
//!
//! Invariants:
//! 1. A connection has a [`Share`] from before its QP exists until that is destroyed, so the queue
//!    is never oversubscribed ([`SharePool`]).
//! 2. A share is spent unless its QP had drained (contract rule 22), and where the device may have
//!    lost the RECV that it was filling: that is, after each end but one by the peer's Close.
//! 3. None of these buffers is lent: a message above 1 KiB is copied.

use std::fmt;
use std::sync::Arc;

use crate::device::{CompletionQueue, ProviderError, RecvWr};
use crate::lock::Mutex;
use crate::memory::region::{BufferPool, ProtectionDomain};
use crate::protocol::credit::SharePool;

/// The shared receive queue of a shard.
pub(crate) struct SharedRecvs {
    domain: ProtectionDomain,
    domain_id: u64,
    places: u32,
    /// RECVs of each share.
    share: u32,
    buffer_bytes: u32,
    /// The device may lose a RECV that it was filling as a QP failed.
    may_lose: bool,
    shares: Mutex<SharePool>,
}

impl SharedRecvs {
    /// Makes the queue on a CQ, with `share` RECVs for each of so many connections.
    ///
    /// # Errors
    /// [`ProviderError`]: no memory, or the device does not have as many RECVs.
    pub(crate) fn create(
        cq: &mut dyn CompletionQueue,
        domain: &ProtectionDomain,
        [places, share]: [u32; 2],
        buffer_bytes: u32,
        may_lose: bool,
    ) -> Result<Arc<Self>, ProviderError> {
        let (domain, shares) = (domain.clone(), Mutex::new(SharePool::new(0)));
        let mut shared =
            Self { domain, domain_id: 0, places, share, buffer_bytes, may_lose, shares };
        let (made, domain_id) = shared.make(cq)?;
        (shared.domain_id, shared.shares) = (domain_id, Mutex::new(made));
        Ok(Arc::new(shared))
    }

    /// Makes the queue, in place of the one that there is, and posts all RECVs. Returns its shares,
    /// and the identity of the domain.
    fn make(&self, cq: &mut dyn CompletionQueue) -> Result<(SharePool, u64), ProviderError> {
        let recvs = self.places * self.share;
        let buffers = BufferPool::allocate(&self.domain, self.buffer_bytes, recvs)?;
        cq.create_srq(&self.domain, recvs)?;
        let mut posted = 0;
        while let Some(buffer) = buffers.take()
            && cq.post_srq_recv(RecvWr { wr_id: 0, buffer }).is_ok()
        {
            posted += 1;
        }
        // What a device refuses, though it has the room, nobody gets.
        Ok((SharePool::new(posted / self.share), buffers.domain()))
    }

    /// The shares as they are now.
    pub(crate) fn shares(&self) -> SharePool {
        *self.shares.lock()
    }

    /// Whether so many connections may begin. Makes the queue anew where that gives back spent
    /// shares; if the device refuses, the next call tries again.
    pub(crate) fn has_room(&self, cq: &mut dyn CompletionQueue, count: u32) -> bool {
        let mut shares = self.shares.lock();
        if shares.is_to_renew()
            && let Ok((renewed, _)) = self.make(cq)
        {
            *shares = renewed;
        }
        count <= shares.room()
    }

    /// The share of a connection that begins.
    ///
    /// # Errors
    /// [`ProviderError::Resources`]: others have all.
    pub(crate) fn begin(self: &Arc<Self>) -> Result<Share, ProviderError> {
        let mut shares = self.shares.lock();
        if shares.begin() {
            return Ok(Share { shared: Arc::clone(self), is_whole: true, is_closed: false });
        }
        let (used, spent) = (shares.used(), shares.spent());
        let message = format!(
            "the shared receive queue is that of {used} connections, and {spent} shares of it may \
             lack a receive until these have ended"
        );
        Err(ProviderError::Resources { what: "share receives", message })
    }
}

impl fmt::Debug for SharedRecvs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRecvs").field("shares", &self.shares()).finish_non_exhaustive()
    }
}

/// A connection's share. It goes back when this is dropped.
pub(crate) struct Share {
    shared: Arc<SharedRecvs>,
    /// All its RECVs are posted.
    is_whole: bool,
    /// The peer's Close has arrived.
    is_closed: bool,
}

impl Share {
    /// Identity of the RECVs' protection domain.
    pub(crate) fn domain(&self) -> u64 {
        self.shared.domain_id
    }

    /// The connection has a QP, which takes RECVs from now on.
    pub(crate) fn on_qp(&mut self) {
        self.is_whole = false;
    }

    /// The peer's Close has arrived, its last message: no other one is cut off.
    pub(crate) fn on_close(&mut self) {
        self.is_closed = true;
    }

    /// The QP has drained, and all that its messages took is posted again.
    pub(crate) fn on_drained(&mut self) {
        self.is_whole = self.is_closed || !self.shared.may_lose;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shared.shares.lock().end(self.is_whole);
    }
}
