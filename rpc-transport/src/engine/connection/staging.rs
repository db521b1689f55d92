//! Staging: registered buffers for bytes that a device cannot read in place.
//!
//! Owns the buffers of one connection. Never decides what is staged.
//!
//! Invariants:
//! 1. Frames in flight find a buffer whatever their sizes: the pools grow to the highest number of
//!    frames ever in flight, which the SQ bounds, and never shrink. So a steady load registers
//!    nothing.
//! 2. A short frame does not take a long buffer, so pinned memory is in proportion to what is sent.

use crate::device::ProviderError;
use crate::memory::region::{Buffer, BufferPool, ProtectionDomain};
use crate::protocol::config::LinkConfig;

/// A short buffer has 1/`SHORT` of the size of a long one.
const SHORT: u32 = 16;

/// Buffers of two sizes, allocated when they are first needed.
pub(super) struct Staging {
    pools: Vec<BufferPool>,
    long_bytes: u32,
    /// Buffers of a new pool: as many as the bulk lane has frames of full length in the SQ, plus
    /// one that is being posted.
    count: u32,
    /// Buffers ever taken.
    taken: u64,
}

impl Staging {
    pub(super) fn new(config: &LinkConfig) -> Self {
        let long_bytes = config.arena_segment_bytes;
        let count = (config.bulk_queue_bytes / long_bytes).clamp(2, 64) + 1;
        Self { pools: Vec::new(), long_bytes, count, taken: 0 }
    }

    #[cfg(any(test, feature = "model"))]
    pub(super) fn pools(&self) -> &[BufferPool] {
        &self.pools
    }

    /// Frames that were copied into a buffer.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// Takes a buffer for a frame of `bytes` bytes.
    pub(super) fn take(
        &mut self,
        domain: &ProtectionDomain,
        bytes: u64,
    ) -> Result<Buffer, ProviderError> {
        self.taken += 1;
        let short_bytes = self.long_bytes / SHORT;
        let size = if bytes <= short_bytes.into() { short_bytes } else { self.long_bytes };
        let fits = |pool: &&BufferPool| (size..2 * size.max(1)).contains(&pool.buffer_bytes());
        if let Some(buffer) = self.pools.iter().filter(fits).find_map(BufferPool::take) {
            return Ok(buffer);
        }
        let pool = BufferPool::allocate(domain, size, self.count)?;
        let buffer = pool.take();
        self.pools.push(pool);
        buffer.ok_or_else(|| ProviderError::Resources {
            what: "staging a large message",
            message: "a new pool has no buffer".into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::soft;

    #[test]
    fn many_short_frames_at_once_find_buffers_and_later_ones_need_no_more() {
        let domain = soft::mem_device().allocate_pd().unwrap();
        let config = LinkConfig::default();
        let mut staging = Staging::new(&config);
        let mut allocated = 0;
        for round in 0..3 {
            let mut in_flight = Vec::new();
            for frame in 0..64 {
                let bytes = if frame % 8 == 0 { config.arena_segment_bytes } else { 10_000 };
                let buffer = staging.take(&domain, bytes.into()).unwrap();
                assert!(buffer.len() >= bytes as usize, "{bytes} bytes in {}", buffer.len());
                assert!(
                    bytes > 10_000 || buffer.len() <= 20_000,
                    "a long buffer for {bytes} bytes"
                );
                in_flight.push(buffer);
            }
            let now: usize = staging.pools().iter().map(|pool| pool.count() as usize).sum();
            assert!(round == 0 || now == allocated, "{now} buffers after {allocated}");
            allocated = now;
        }
    }
}
