//! Staging: registered buffers for bytes that a device cannot read in place.
//!
//! Owns the buffers of one connection. Never decides what is staged.
//!
//! Invariants:
//! 1. Frames in flight find a buffer whatever their sizes: the pools grow to the highest number of
//!    frames ever in flight, which the SQ bounds, and never shrink. So a steady load registers
//!    nothing.
//! 2. A short frame does not take a long buffer, so pinned memory is in proportion to what is sent.
//! 3. Where there is no memory for a buffer, a frame waits for one in flight, whose WR is signaled;
//!    if there is none, a send buffer does. So a lack of memory makes large messages slow, and ends
//!    nothing.

use super::send_buffers::SendBuffers;
use crate::engine::growth::Growth;
use crate::memory::region::{Buffer, BufferPool, ProtectionDomain};
use crate::protocol::config::LinkConfig;

/// A short buffer has 1/`SHORT` of the size of a long one.
const SHORT: u32 = 16;
/// Most short buffers that are registered at once.
const SHORT_STEP: u32 = 4;
/// Lengths of buffers are rounded up to multiples of this.
const BUFFER_ALIGN: u32 = 64;

/// Buffers of two sizes, allocated when they are first needed.
pub(super) struct Staging {
    pools: Vec<BufferPool>,
    /// For the next frame.
    ready: Option<Buffer>,
    long_bytes: u32,
    /// The shortest buffer that a long frame takes: what was granted last.
    least_long_bytes: u32,
    growth: Growth,
    /// Buffers ever taken.
    taken: u64,
}

impl Staging {
    pub(super) fn new(config: &LinkConfig) -> Self {
        let long_bytes = config.arena_segment_bytes.next_multiple_of(SHORT * BUFFER_ALIGN);
        Self {
            pools: Vec::new(),
            ready: None,
            long_bytes,
            least_long_bytes: long_bytes,
            growth: Growth::default(),
            taken: 0,
        }
    }

    #[cfg(any(test, feature = "model"))]
    pub(super) fn pools(&self) -> &[BufferPool] {
        &self.pools
    }

    /// Frames that were copied into a buffer.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// Takes the buffer that was made ready for this frame.
    pub(super) fn take(&mut self) -> Option<Buffer> {
        self.taken += 1;
        self.ready.take()
    }

    /// Makes a buffer ready for the next frame, which would stage `bytes` bytes, and returns how
    /// many it may. `None`: it waits until a send has completed.
    pub(super) fn make_ready(
        &mut self,
        domain: &ProtectionDomain,
        send_buffers: &mut SendBuffers,
        bytes: u64,
    ) -> Option<u64> {
        self.ready = None;
        self.ready = self.find(domain, send_buffers, bytes);
        self.ready.as_ref().map(|buffer| buffer.len() as u64)
    }

    fn find(
        &mut self,
        domain: &ProtectionDomain,
        send_buffers: &mut SendBuffers,
        bytes: u64,
    ) -> Option<Buffer> {
        let short_bytes = self.long_bytes / SHORT;
        let is_short = bytes <= short_bytes.into();
        let sizes = match is_short {
            true => short_bytes..2 * short_bytes,
            false => self.least_long_bytes..2 * self.long_bytes,
        };
        let fits = |pool: &&BufferPool| sizes.contains(&pool.buffer_bytes());
        if let Some(buffer) = self.pools.iter().filter(fits).find_map(BufferPool::take) {
            return Some(buffer);
        }
        // One long buffer, or else shorter and shorter ones.
        let steps = if is_short { SHORT_STEP } else { SHORT };
        let grown = self.growth.by(steps, |step| {
            let count = if is_short { step } else { 1 };
            BufferPool::allocate(domain, short_bytes * step / count, count)
        });
        if let Some(pool) = grown {
            let buffer = pool.take();
            if !is_short {
                self.least_long_bytes = pool.buffer_bytes();
            }
            self.pools.push(pool);
            return buffer;
        }
        if let Some(buffer) = self.pools.iter().find_map(BufferPool::take) {
            return Some(buffer);
        }
        if self.pools.is_empty() { send_buffers.take_spare(domain) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::soft;

    /// Their buffers were rounded down, and then not found again: each frame registered one more.
    #[test]
    fn odd_long_buffers_are_found_again() {
        let domain = soft::mem_device().allocate_pd().unwrap();
        let mut send_buffers =
            SendBuffers::new(&domain, &**soft::mem_device(), 64, 8 << 10).unwrap();
        for odd in [4097, 5000, 65_537, 1_000_001] {
            let config = LinkConfig::default().arena_segment_bytes(odd);
            let mut staging = Staging::new(&config);
            for _ in 0..5 {
                let room = staging.make_ready(&domain, &mut send_buffers, odd.into()).unwrap();
                assert!(room >= odd.into(), "{room} of {odd}");
                drop(staging.take());
            }
            assert_eq!(staging.pools().len(), 1);
        }
    }

    #[test]
    fn partly_granted_long_buffer_is_used_first() {
        let domain = soft::mem_device().allocate_pd().unwrap();
        let mut send_buffers =
            SendBuffers::new(&domain, &**soft::mem_device(), 64, 8 << 10).unwrap();
        let mut staging = Staging::new(&LinkConfig::default());
        let half = staging.long_bytes / 2;
        staging.pools.push(BufferPool::allocate(&domain, half, 1).unwrap());
        staging.least_long_bytes = half;
        let bytes = staging.long_bytes.into();
        let room = staging.make_ready(&domain, &mut send_buffers, bytes);
        assert_eq!((room, staging.pools().len()), (Some(half.into()), 1));
        let _in_flight = staging.take();
        let room = staging.make_ready(&domain, &mut send_buffers, bytes);
        assert_eq!((room, staging.pools().len()), (Some(bytes), 2));
    }

    #[test]
    fn short_frames_reuse_buffers_of_the_first_burst() {
        let domain = soft::mem_device().allocate_pd().unwrap();
        let config = LinkConfig::default();
        let mut staging = Staging::new(&config);
        let mut allocated = 0;
        let device = soft::mem_device();
        let mut send_buffers = SendBuffers::new(&domain, &**device, 64, 8 << 10).unwrap();
        for round in 0..3 {
            let mut in_flight = Vec::new();
            for frame in 0..64 {
                let bytes = if frame % 8 == 0 { config.arena_segment_bytes } else { 10_000 };
                staging.make_ready(&domain, &mut send_buffers, bytes.into()).unwrap();
                let buffer = staging.take().unwrap();
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
