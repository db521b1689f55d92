//! Receive buffers: registered memory for the RECVs of one connection, and for messages that are
//! lent.
//!
//! Owns the buffers, one size each. Never posts, and never decides when a window grows.
//!
//! Invariants:
//! 1. From set-up on there are buffers for the first window. Where registering is free there are
//!    those for the largest window, too: only address space, until they are used. Where memory is
//!    locked they come with the windows, as far as there is memory.
//! 2. Where registering is free there is one pool, and what a window may still grow by is not lent.
//! 3. A connection that shares its receives has none here, and a window that does not grow.

use crate::device::{Capabilities, Device, ProviderError};
use crate::engine::growth::Growth;
use crate::engine::shared_recvs::Share;
use crate::memory::region::{Buffer, BufferPool, ProtectionDomain};
use crate::protocol::config::LinkConfig;

/// Receive buffers beyond the posted ones, which is how many large messages can be lent at once.
const LENDABLE: u32 = 32;

/// RECVs of the window that a connection starts with, and one whose repost may wait until the reply
/// has been sent.
pub(crate) const fn first_recvs(config: &LinkConfig) -> u32 {
    config.first_window().rq_len() + 1
}

/// RECVs of a window that has grown to all that is offered, and the additional one.
pub(crate) const fn most_recvs(config: &LinkConfig) -> u32 {
    config.window().rq_len() + 1
}

/// Buffers that come with so many more RECVs where memory is locked: half as many again may be
/// lent.
pub(crate) const fn with_lendable(recvs: u32) -> u32 {
    recvs + recvs / 2
}

/// The receive buffers of a connection.
pub(crate) struct RecvBuffers {
    /// The oldest first.
    pools: Vec<BufferPool>,
    /// RECVs of the first window, and one more.
    first: u32,
    /// Registering is free.
    is_free: bool,
    /// Buffers that are there for a window that grows, where registering is free.
    kept: u32,
    growth: Growth,
    /// Where connections share their receives.
    pub(super) share: Option<Share>,
}

impl RecvBuffers {
    /// The buffers that a connection begins with.
    ///
    /// # Errors
    /// That of the registration.
    pub(crate) fn new(
        domain: &ProtectionDomain,
        device: &dyn Device,
        config: &LinkConfig,
    ) -> Result<Self, ProviderError> {
        let first = first_recvs(config);
        let is_free = device.attributes().capabilities.contains(Capabilities::FREE_REGISTRATION);
        let (count, kept) = if is_free {
            (most_recvs(config) + LENDABLE, most_recvs(config) - first)
        } else {
            (first, 0)
        };
        let pool = BufferPool::allocate(domain, config.receive_buffer(), count)?;
        Ok(Self::of(pool, first, is_free, kept))
    }

    /// Those of one pool, of which `kept` are there for a window that grows.
    pub(crate) fn of(pool: BufferPool, first: u32, is_free: bool, kept: u32) -> Self {
        let growth = Growth::default();
        let pools = vec![pool];
        Self { pools, first, is_free, kept, growth, share: None }
    }

    /// None but those that connections share.
    pub(crate) fn shared(share: Share, config: &LinkConfig) -> Self {
        let (pools, growth, first) = (Vec::new(), Growth::default(), first_recvs(config));
        Self { pools, first, is_free: false, kept: 0, growth, share: Some(share) }
    }

    /// RECVs of the first window, and one more.
    pub(crate) fn first(&self) -> u32 {
        self.first
    }

    /// Identity of the protection domain.
    pub(super) fn domain(&self) -> u64 {
        match &self.share {
            Some(share) => share.domain(),
            None => self.pools.first().map_or(0, BufferPool::domain),
        }
    }

    #[cfg(any(test, feature = "model"))]
    pub(super) fn pools(&self) -> &[BufferPool] {
        &self.pools
    }

    /// Takes a buffer to post.
    pub(crate) fn take(&self) -> Option<Buffer> {
        self.pools.iter().find_map(BufferPool::take)
    }

    /// Takes a buffer to post instead of one that is lent, unless windows need it.
    #[inline]
    pub(super) fn take_spare(&self) -> Option<Buffer> {
        // Invariant 2: where some are kept there is one pool.
        let kept = self.kept as usize;
        self.pools.iter().find_map(|pool| pool.take_above(kept))
    }

    /// The buffers of `more` RECVs for a window that grows, if there is memory for all of them.
    pub(super) fn grow(&mut self, domain: &ProtectionDomain, more: u32) -> Option<Vec<Buffer>> {
        if self.is_free {
            self.kept = self.kept.checked_sub(more)?;
        } else {
            let size = self.pools.first()?.buffer_bytes();
            let allocate = |_| BufferPool::allocate(domain, size, with_lendable(more));
            // All or nothing: the sizes of a window are rules of the protocol.
            let pool = self.growth.by(1, allocate)?;
            self.pools.push(pool);
        }
        Some((0..more).map_while(|_| self.take()).collect())
    }

    /// The connection is quiet: where nothing is pinned, pages behind buffers that are not posted
    /// go back to the operating system.
    pub(super) fn release_pages(&self) {
        if self.is_free {
            self.pools.iter().for_each(BufferPool::release_pages);
        }
    }
}
