//! Receive buffers: registered memory for the RECVs of one connection, and for messages that are lent.
//!
//! Owns the buffers, one size each. Never posts, and never decides when a window grows.
//!
//! Invariants:
//! 1. From set-up on there are buffers for the first window. Where registering is free there are
//!    those for the largest window, too: only address space, until they are used. Where memory is locked
//!    they come with the windows, as far as there is memory.
//! 2. Where registering is free there is one pool, and what a window may still grow by is not lent.

use super::growth::Growth;
use crate::device::{Capabilities, Device, ProviderError};
use crate::memory::region::{Buffer, BufferPool, ProtectionDomain};
use crate::protocol::config::LinkConfig;

/// Receive buffers beyond the posted ones, which is how many large messages can be lent at once.
const LENDABLE: u32 = 32;

/// RECVs of the window that a connection starts with, and one whose repost may wait until the reply has
/// been sent.
const fn first_recvs(config: &LinkConfig) -> u32 {
    config.window().first().rq_len() + 1
}

/// The same of a window that has grown to all that is offered.
pub(crate) const fn most_recvs(config: &LinkConfig) -> u32 {
    config.window().rq_len() + 1
}

/// Buffers that a connection has from set-up on where memory is locked. Of a window that may grow none
/// is lent before it has grown: larger messages are copied.
pub(crate) const fn first_locked(config: &LinkConfig) -> u32 {
    let first = first_recvs(config);
    if first < most_recvs(config) { first } else { with_lendable(first) }
}

/// Buffers that come with so many more RECVs where memory is locked: half as many again may be lent.
pub(crate) const fn with_lendable(recvs: u32) -> u32 {
    recvs + recvs / 2
}

/// The receive buffers of a connection.
pub(crate) struct RecvBuffers {
    /// The newest first.
    pools: Vec<BufferPool>,
    /// How many are to be posted at set-up.
    first: u32,
    /// Buffers that are there for a window that grows.
    kept: u32,
    growth: Growth,
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
            (first_locked(config), 0)
        };
        let pools = vec![BufferPool::allocate(domain, config.receive_buffer(), count)?];
        Ok(Self { pools, first, kept, growth: Growth::default() })
    }

    /// Those of one pool, of which `kept` are there for a window that grows.
    #[cfg(test)]
    pub(crate) fn of(pool: BufferPool, first: u32, kept: u32) -> Self {
        Self { pools: vec![pool], first, kept, growth: Growth::default() }
    }

    /// How many are to be posted at set-up: one more than the window has RECVs.
    pub(crate) fn first(&self) -> u32 {
        self.first
    }

    /// Identity of the protection domain.
    pub(super) fn domain(&self) -> u64 {
        self.pools.first().map_or(0, BufferPool::domain)
    }

    #[cfg(any(test, feature = "model"))]
    pub(super) fn pools(&self) -> &[BufferPool] {
        &self.pools
    }

    /// Takes a buffer to post.
    pub(crate) fn take(&self) -> Option<Buffer> {
        self.pools.iter().find_map(BufferPool::take)
    }

    /// Takes a buffer to post in the place of one that is lent, unless windows need it.
    #[inline]
    pub(super) fn take_spare(&self) -> Option<Buffer> {
        // Invariant 2: where some are kept there is one pool.
        let kept = self.kept as usize;
        self.pools.iter().find_map(|pool| pool.take_above(kept))
    }

    /// Whether there are, or now come to be, buffers for a window that grows by `more`. They are to be
    /// taken next.
    pub(super) fn grow(&mut self, domain: &ProtectionDomain, more: u32) -> bool {
        if let Some(kept) = self.kept.checked_sub(more) {
            self.kept = kept;
            return true;
        }
        let Some(buffer_bytes) = self.pools.first().map(BufferPool::buffer_bytes) else {
            return false;
        };
        // All or nothing: the sizes of a window are rules of the protocol.
        let pool =
            self.growth.by(1, |_| BufferPool::allocate(domain, buffer_bytes, with_lendable(more)));
        let has_grown = pool.is_some();
        self.pools.splice(..0, pool);
        has_grown
    }
}
