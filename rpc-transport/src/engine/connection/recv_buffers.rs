//! Receive buffers: registered memory for the RECVs of one connection, and for messages that are lent.
//!
//! Owns the buffers, one size each. Never posts, and never decides when a window grows.
//!
//! Invariants:
//! 1. From set-up on there are buffers for the first window. Where registering is free there are
//!    those for the largest window, too: only address space, until they are used. Where memory is locked
//!    they come with the windows, as far as there is memory.
//! 2. Where registering is free there is one pool, and what a window may still grow by is not lent.
//! 3. When a window has fallen, RECVs that are posted stay until messages have taken them. Until then,
//!    and until the buffers that came with the window are all back, none is lent, so that there are enough
//!    of them whenever the window grows again.

use std::sync::Arc;

use crate::device::{Capabilities, Device, ProviderError};
use crate::engine::growth::Growth;
use crate::engine::shared_recvs::{Share, SharedRecvs};
use crate::memory::region::{Buffer, BufferPool, ProtectionDomain};
use crate::protocol::config::LinkConfig;

/// Receive buffers beyond the posted ones, which is how many large messages can be lent at once.
const LENDABLE: u32 = 32;

/// RECVs of the window that a connection starts with, and one whose repost may wait until the reply has
/// been sent.
pub(crate) const fn first_recvs(config: &LinkConfig) -> u32 {
    config.first_window().rq_len() + 1
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
    /// The newest pools that the window of now does not need: their memory is given up when all of their
    /// buffers are back.
    unneeded: usize,
    /// How many are to be posted at set-up.
    first: u32,
    /// Registering is free.
    is_free: bool,
    /// Buffers that are there for a window that grows, where registering is free.
    kept: u32,
    /// RECVs that are posted beyond those of a window that has fallen.
    surplus: u32,
    growth: Growth,
    /// The RECVs are those of a pool that connections share; there are no buffers here then.
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
            (first_locked(config), 0)
        };
        let pool = BufferPool::allocate(domain, config.receive_buffer(), count)?;
        Ok(Self::of(pool, first, is_free, kept))
    }

    /// Those of one pool, of which `kept` are there for a window that grows.
    pub(crate) fn of(pool: BufferPool, first: u32, is_free: bool, kept: u32) -> Self {
        let growth = Growth::default();
        let pools = vec![pool];
        Self { pools, unneeded: 0, first, is_free, kept, surplus: 0, growth, share: None }
    }

    /// Those of a pool that connections share.
    ///
    /// # Errors
    /// [`ProviderError::Resources`] when the others have all, or there is no memory.
    pub(crate) fn of_shared(
        shared: &Arc<SharedRecvs>,
        config: &LinkConfig,
    ) -> Result<Self, ProviderError> {
        let first = first_recvs(config);
        let share = Some(shared.begin(first)?);
        let growth = Growth::default();
        let (pools, is_free) = (Vec::new(), false);
        Ok(Self { pools, unneeded: 0, first, is_free, kept: 0, surplus: 0, growth, share })
    }

    /// The pool that connections share, if it is such a one.
    pub(super) fn shared(&self) -> Option<&SharedRecvs> {
        self.share.as_ref().map(|share| &**share.shared())
    }

    /// How many are to be posted at set-up: one more than the window has RECVs.
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

    /// Takes a buffer to post, of the oldest pool that has one.
    pub(crate) fn take(&self) -> Option<Buffer> {
        self.pools.iter().rev().find_map(BufferPool::take)
    }

    /// Takes a buffer to post in the place of one that is lent, unless windows need it; of the oldest pool
    /// that has one, so that the newer ones are whole again sooner, and go when the window falls.
    #[inline]
    pub(super) fn take_spare(&self) -> Option<Buffer> {
        if self.is_settling() {
            return None;
        }
        // Invariant 2: where some are kept there is one pool.
        let kept = self.kept as usize;
        self.pools.iter().rev().find_map(|pool| pool.take_above(kept))
    }

    /// How many RECVs are to be posted for a window that grows by `more`, if there are buffers for them,
    /// or now come to be. They are to be taken next.
    pub(super) fn grow(&mut self, domain: &ProtectionDomain, more: u32) -> Option<u32> {
        if let Some(share) = &mut self.share {
            return share.grow(more).then_some(0);
        }
        let posted = self.surplus.min(more);
        if self.is_free {
            self.kept = self.kept.checked_sub(more - posted)?;
        } else if let Some(unneeded) = self.unneeded.checked_sub(1) {
            let free: usize = self.pools.iter().map(BufferPool::free_count).sum();
            if free < (more - posted) as usize {
                return None;
            }
            self.unneeded = unneeded;
        } else {
            let size = self.pools.first()?.buffer_bytes();
            let allocate = |_| BufferPool::allocate(domain, size, with_lendable(more));
            // All or nothing: the sizes of a window are rules of the protocol.
            let pool = self.growth.by(1, allocate)?;
            self.pools.insert(0, pool);
        }
        self.surplus -= posted;
        Some(more - posted)
    }

    /// The window has fallen by `less`. Whether they are others' from now on.
    pub(super) fn fall(&mut self, less: u32) -> bool {
        if let Some(share) = &mut self.share {
            share.fall(less);
            return true;
        }
        self.surplus += less;
        if !self.is_free {
            self.unneeded += 1;
        }
        false
    }

    /// The peer sends nothing more.
    pub(super) fn on_last_message(&mut self) {
        if let Some(share) = &mut self.share {
            share.on_last_message();
        }
    }

    /// Whether the window has fallen, and not all that came with it is back; always where the RECVs are
    /// shared.
    #[inline]
    pub(super) fn is_settling(&self) -> bool {
        self.surplus != 0 || self.unneeded != 0 || self.share.is_some()
    }

    /// In the place of a buffer that is to be posted, while settling: none if its RECV is not needed, else
    /// one of a pool that stays, as far as there is any.
    pub(super) fn exchange(&mut self, buffer: Buffer) -> Option<Buffer> {
        drop(buffer);
        if let Some(surplus) = self.surplus.checked_sub(1) {
            self.surplus = surplus;
            self.kept += u32::from(self.is_free);
            return None;
        }
        self.take()
    }

    /// Gives the memory of pools up that are not needed and whose buffers are all back. To be called now
    /// and then, so that a peer whose window grows and falls all the time makes nobody register for it
    /// each time.
    pub(super) fn give_up(&mut self) {
        if let Some(shared) = self.shared() {
            shared.give_up();
        }
        while self.unneeded > 0
            && self.pools.first().is_some_and(|pool| pool.free_count() == pool.count() as usize)
            && self.may_grow_without_newest()
        {
            self.pools.remove(0);
            self.unneeded -= 1;
        }
    }

    /// Whether the other pools have buffers for the windows that they came with, whatever is lent.
    fn may_grow_without_newest(&self) -> bool {
        let others = self.pools.get(1..).unwrap_or_default();
        let free: usize = others.iter().map(BufferPool::free_count).sum();
        let unneeded = others.iter().take(self.unneeded.saturating_sub(1));
        let more: u32 = unneeded.map(|pool| pool.count() - pool.count() / 3).sum();
        free + self.surplus as usize >= more as usize
    }

    /// The connection is quiet: where nothing is pinned, pages behind buffers that are not posted go back
    /// to the operating system.
    pub(super) fn rest(&self) {
        if self.is_free {
            self.pools.iter().for_each(BufferPool::rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::soft::mem_device;

    #[test]
    fn a_buffer_in_the_place_of_one_that_is_lent_is_of_the_oldest_pool_that_has_one() {
        let domain = mem_device().allocate_pd().unwrap();
        let oldest = BufferPool::allocate(&domain, 64, 2).unwrap();
        let mut buffers = RecvBuffers::of(oldest, 2, false, 0);
        assert_eq!(buffers.grow(&domain, 2), Some(2));
        let free = |buffers: &RecvBuffers| {
            buffers.pools().iter().map(BufferPool::free_count).collect::<Vec<_>>()
        };
        assert_eq!(free(&buffers), [3, 2], "the newest first");
        let lent: Vec<_> = (0..3).map(|_| buffers.take_spare().unwrap()).collect();
        assert_eq!(free(&buffers), [2, 0]);
        // The window falls: nothing is lent, and of the newest only what had to be is still away.
        buffers.fall(2);
        assert!(buffers.take_spare().is_none());
        drop(lent);
        assert_eq!(free(&buffers), [3, 2]);
    }
}
