//! Send buffers: registered memory for frames that the device cannot take inline.
//!
//! Owns the buffers of one connection, one size each. Never decides what is sent.
//!
//! Invariants:
//! 1. Where memory is locked, [`FIRST`] buffers are there from set-up on, so that a connection
//!    which is up can send. The rest comes as it is needed, as far as there is memory.
//! 2. A WR that takes one of the last two buffers is signaled, so that its completion returns all
//!    of them, whatever else is sent.

use crate::device::{Capabilities, Device, ProviderError};
use crate::memory::region::{Buffer, BufferPool, ProtectionDomain};

use crate::engine::growth::Growth;

/// Buffers that a connection has at least, where memory is locked: one to stage from, and one for
/// the frame behind it.
pub(crate) const FIRST: u32 = 2;

/// The send buffers of a connection.
pub(crate) struct SendBuffers {
    /// The largest first.
    pools: Vec<BufferPool>,
    /// Size of each buffer: the longest frame, bytes.
    buffer_bytes: u32,
    /// SQ slots, WRs: more buffers are never of use.
    slots: u32,
    growth: Growth,
    /// The last buffer was taken.
    ran_out: bool,
}

impl SendBuffers {
    /// The first buffers for an SQ of `slots` WRs if memory is locked, else none until a frame
    /// needs one. `buffer_bytes`: the longest frame that there may be.
    ///
    /// # Errors
    /// That of the registration.
    pub(crate) fn new(
        domain: &ProtectionDomain,
        device: &dyn Device,
        slots: u32,
        buffer_bytes: u32,
    ) -> Result<Self, ProviderError> {
        let mut pools = Vec::new();
        if !device.attributes().capabilities.contains(Capabilities::FREE_REGISTRATION) {
            pools.push(BufferPool::allocate(domain, buffer_bytes, FIRST)?);
        }
        let growth = Growth::default();
        Ok(Self { pools, buffer_bytes, slots, growth, ran_out: false })
    }

    /// The longest frame is known: further buffers are not longer.
    pub(super) fn set_frame_bytes(&mut self, bytes: u32) {
        self.buffer_bytes = bytes;
    }

    #[cfg(any(test, feature = "model"))]
    pub(super) fn pools(&self) -> &[BufferPool] {
        &self.pools
    }

    /// Whether every buffer is in flight, and there is no memory for more: nothing can be sent
    /// until a send completes.
    #[inline]
    pub(super) fn are_out(&mut self) -> bool {
        self.ran_out && self.look()
    }

    #[cold]
    fn look(&mut self) -> bool {
        self.ran_out = self.free_count() == 0;
        self.ran_out
    }

    fn free_count(&self) -> usize {
        self.pools.iter().map(BufferPool::free_count).sum()
    }

    /// Takes a buffer for a frame, and says whether its WR must be signaled (invariant 2).
    ///
    /// # Errors
    /// That of the registration, when there is none at all.
    pub(super) fn take(
        &mut self,
        domain: &ProtectionDomain,
    ) -> Result<(Buffer, bool), ProviderError> {
        if self.pools.is_empty() {
            self.pools.push(BufferPool::allocate(domain, self.buffer_bytes, self.slots)?);
        }
        let taken = self.pools.iter().find_map(BufferPool::take_counted);
        let (buffer, left) = taken.ok_or_else(|| ProviderError::Resources {
            what: "copying a frame",
            message: "no send buffer is left for a free slot".into(),
        })?;
        Ok((buffer, left < 2 && self.is_low(domain)))
    }

    /// Takes a buffer to stage from, if another is left for the frame behind it. Its WR must be
    /// signaled.
    pub(super) fn take_spare(&mut self, domain: &ProtectionDomain) -> Option<Buffer> {
        if self.free_count() < 2 {
            return None;
        }
        self.take(domain).ok().map(|(buffer, _)| buffer)
    }

    /// Whether fewer than two buffers are free, also after growing.
    #[cold]
    fn is_low(&mut self, domain: &ProtectionDomain) -> bool {
        if self.free_count() >= 2 {
            return false;
        }
        let count: u32 = self.pools.iter().map(BufferPool::count).sum();
        let missing = self.slots.saturating_sub(count);
        if missing > 0
            && let Some(pool) = self.growth.by(count.min(missing), |count| {
                BufferPool::allocate(domain, self.buffer_bytes, count)
            })
        {
            self.pools.insert(0, pool);
        }
        let free = self.free_count();
        self.ran_out = free == 0;
        free < 2
    }
}
