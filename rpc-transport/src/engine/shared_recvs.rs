//! The RECVs that the connections of a shard have together, on a device with a shared receive queue.
//!
//! Owns their buffers, and the count of what each connection was granted. Never posts: whoever gets a
//! buffer posts it to the shared receive queue of the shard's CQ.
//!
//! Invariants:
//! 1. Those of [`RecvPool`]: nobody is granted what is not posted, so no queue is ever oversubscribed.
//! 2. A connection's [`Share`] is given back once, at a poll that finds nothing after its QP was
//!    destroyed: by then all that its messages have taken is posted again.
//! 3. Windows grow by what is not kept for connections that begin, so that those which have grown keep
//!    nobody out.
//! 4. None of these buffers is lent: a message above 1 KiB is copied.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::device::ProviderError;
use crate::engine::connection::Growth;
use crate::memory::region::{Buffer, BufferPool, ProtectionDomain};
use crate::protocol::credit::RecvPool;

/// Buffers that are registered at once: each registration is a command, and locks whole pages.
pub(crate) const STEP: u32 = 16;

/// The pool of a shard.
pub(crate) struct SharedRecvs {
    domain: ProtectionDomain,
    buffer_bytes: u32,
    inner: Mutex<Inner>,
}

struct Inner {
    pool: RecvPool,
    /// The oldest first.
    buffers: Vec<BufferPool>,
    /// Shares of connections whose QPs were destroyed since a poll has last found nothing.
    leaving: u32,
    /// RECVs that windows may still grow by: what is kept for connections that begin is not lent.
    spare: u32,
    /// Those of `leaving` that were of `spare`.
    leaving_spare: u32,
    growth: Growth,
}

impl SharedRecvs {
    /// A pool of at most so many RECVs, of which `kept` are for connections that begin. Nothing is
    /// registered before it is needed.
    pub(crate) fn new(
        domain: ProtectionDomain,
        buffer_bytes: u32,
        most: u32,
        kept: u32,
    ) -> Arc<Self> {
        let inner = Inner {
            pool: RecvPool::new(most),
            buffers: Vec::new(),
            leaving: 0,
            spare: most.saturating_sub(kept),
            leaving_spare: 0,
            growth: Growth::default(),
        };
        Arc::new(Self { domain, buffer_bytes, inner: Mutex::new(inner) })
    }

    /// The pool as it is now, for metrics and tests.
    pub(crate) fn pool(&self) -> RecvPool {
        self.inner.lock().pool
    }

    /// The RECVs of a connection that begins.
    ///
    /// # Errors
    /// [`ProviderError::Resources`]: others have them, or there is no memory.
    pub(crate) fn begin(self: &Arc<Self>, count: u32) -> Result<Share, ProviderError> {
        loop {
            let more = {
                let mut inner = self.inner.lock();
                let Some(missing) = inner.pool.to_post(count) else {
                    return Err(inner.refusal());
                };
                let more = inner.lacks(missing);
                if more == 0 && inner.pool.grant(count).is_some() {
                    let (shared, unposted) = (Arc::clone(self), inner.take(missing));
                    return Ok(Share { shared, count, spare: 0, unposted });
                }
                more
            };
            // Without the lock, which those take who hold the shard's.
            let buffers = self.allocate(more)?;
            self.inner.lock().buffers.push(buffers);
        }
    }

    /// So many buffers, or some more.
    fn allocate(&self, count: u32) -> Result<BufferPool, ProviderError> {
        let allocate = |count| BufferPool::allocate(&self.domain, self.buffer_bytes, count);
        allocate(count.next_multiple_of(STEP)).or_else(|_| allocate(count))
    }

    /// A message has taken a RECV: what is to be posted in its place, if anything is.
    pub(crate) fn settle(&self, buffer: Buffer) -> Option<Buffer> {
        let is_to_repost = self.inner.lock().pool.is_to_repost();
        is_to_repost.then_some(buffer)
    }

    /// A poll has found nothing: what connections had whose QPs are gone is free.
    pub(crate) fn on_quiet(&self) {
        let inner = &mut *self.inner.lock();
        let left = std::mem::take(&mut inner.leaving);
        if left > 0 {
            inner.pool.give_back(left);
            inner.spare += std::mem::take(&mut inner.leaving_spare);
        }
    }

    /// Gives memory of buffers up that are all at home, but not the last of it.
    pub(crate) fn give_up(&self) {
        let mut inner = self.inner.lock();
        while inner.buffers.len() > 1
            && inner.buffers.last().is_some_and(|pool| pool.free_count() == pool.count() as usize)
        {
            inner.buffers.pop();
        }
    }
}

impl Inner {
    /// How many buffers there have to be more, so that so many are free.
    fn lacks(&self, count: u32) -> u32 {
        let free: usize = self.buffers.iter().map(BufferPool::free_count).sum();
        count.saturating_sub(u32::try_from(free).unwrap_or(u32::MAX))
    }

    fn refusal(&self) -> ProviderError {
        let (most, granted) = (self.pool.most(), self.pool.granted());
        let message = format!(
            "the shared receive queue has {most} receives, of which other connections have {granted}"
        );
        ProviderError::Resources { what: "have receives", message }
    }

    fn take(&self, count: u32) -> Vec<Buffer> {
        let free = || self.buffers.iter().find_map(BufferPool::take);
        (0..count).map_while(|_| free()).collect()
    }
}

/// What a connection was granted; it goes back when this is dropped, which is after its QP was destroyed.
pub(crate) struct Share {
    shared: Arc<SharedRecvs>,
    /// RECVs granted.
    count: u32,
    /// Those of them that the window has grown by.
    spare: u32,
    /// Buffers of those that are yet to be posted.
    unposted: Vec<Buffer>,
}

impl Share {
    /// The pool that it is of.
    pub(crate) fn shared(&self) -> &Arc<SharedRecvs> {
        &self.shared
    }

    /// RECVs granted.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Identity of the protection domain.
    pub(crate) fn domain(&self) -> u64 {
        let inner = self.shared.inner.lock();
        inner.buffers.first().map_or(0, BufferPool::domain)
    }

    /// The next buffer that is to be posted.
    pub(crate) fn next_unposted(&mut self) -> Option<Buffer> {
        self.unposted.pop()
    }

    /// A RECV could not be posted.
    pub(crate) fn put_back(&mut self, buffer: Buffer) {
        self.unposted.push(buffer);
    }

    /// More RECVs for a window that grows, to be posted before it does. False: there are none.
    pub(crate) fn grow(&mut self, more: u32) -> bool {
        let shared = Arc::clone(&self.shared);
        let inner = &mut *shared.inner.lock();
        let Some(missing) = inner.pool.to_post(more).filter(|_| more <= inner.spare) else {
            return false;
        };
        let lacks = inner.lacks(missing);
        if lacks > 0 {
            let Some(buffers) = inner.growth.by(1, |_| shared.allocate(lacks)) else {
                return false;
            };
            inner.buffers.push(buffers);
        }
        if inner.pool.grant(more).is_none() {
            return false;
        }
        self.unposted.extend(inner.take(missing));
        inner.spare -= more;
        (self.count, self.spare) = (self.count + more, self.spare + more);
        true
    }

    /// The window has fallen.
    pub(crate) fn fall(&mut self, less: u32) {
        (self.count, self.spare) = (self.count - less, self.spare - less);
        let mut inner = self.shared.inner.lock();
        inner.pool.give_back(less);
        inner.spare += less;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut inner = self.shared.inner.lock();
        let unposted = u32::try_from(self.unposted.len()).unwrap_or(u32::MAX).min(self.count);
        // What was never posted is nowhere.
        inner.pool.revoke(unposted, unposted);
        inner.leaving += self.count - unposted;
        inner.leaving_spare += self.spare;
    }
}

impl fmt::Debug for SharedRecvs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRecvs").field("pool", &self.pool()).finish_non_exhaustive()
    }
}
