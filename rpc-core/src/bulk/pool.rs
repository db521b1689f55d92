//! Registered buffers of a connection, to fill and send from where they lie.
//!
//! Owns the memory that [`BulkMut`]s are carved from, in sizes of powers of two, and keeps it for
//! the next one: registering memory and touching its pages for the first time costs more than
//! sending it. Never shrinks below what is in use.
//!
//! Invariants:
//! 1. A buffer has one writer or any number of readers: [`BulkMut`] is not `Clone`, and what it
//!    freezes to is only read until the last handle is gone.
//! 2. Buffers at home take at most [`MAX_IDLE_BYTES`] when a new one is allocated.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use parking_lot::Mutex;
use rpc_transport::device::ProviderError;
use rpc_transport::memory::region::{Buffer, BufferPool, ProtectionDomain};
use rpc_transport::memory::registered::RegisteredBytes;

use super::slot::{ReplySlot, SlotHome};
use super::{Bulk, Memory};

/// Smallest buffer that is allocated, bytes.
const MIN_BUFFER_BYTES: u32 = 64 * 1024;
/// Buffers above this are not rounded up to a power of two, nor kept, bytes.
const MAX_KEPT_BYTES: u32 = 64 << 20;
/// Most memory that is kept for later, bytes.
const MAX_IDLE_BYTES: u64 = 128 << 20;

/// A pool has no buffer to give.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// Longer than one buffer can be.
    #[error("a buffer of {bytes} bytes is longer than the {max} that one can have", max = u32::MAX)]
    TooLong {
        /// What was asked for.
        bytes: u64,
    },
    /// The device has no memory, or does not register it.
    #[error(transparent)]
    Device(#[from] ProviderError),
}

/// Memory that a connection's device sends from without copying. Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use rpc_core::{Bulk, Channel, Server};
/// # #[rpc_core::service] trait Sink { async fn take(&self, data: Bulk) -> u64; }
/// # struct Count; impl Sink for Count { async fn take(&self, data: Bulk) -> u64 { data.len() } }
/// # let server = Server::builder().add_service(SinkServer::new(Count)).bind("mem://pool").await?;
/// # tokio::spawn(server.serve());
/// let channel = Channel::connect("mem://pool").await?;
/// let mut buffer = channel.bulk_pool().take(1 << 20)?;
/// buffer.fill(7);
/// let sink = SinkClient::new(channel);
/// assert_eq!(sink.take(buffer.freeze()).await?, 1 << 20);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct BulkPool(Arc<Inner>);

struct Inner {
    domain: ProtectionDomain,
    /// Each of one size; many have one buffer only.
    slabs: Mutex<Vec<BufferPool>>,
    slots: Arc<SlotHome>,
}

impl BulkPool {
    pub(crate) fn new(domain: ProtectionDomain) -> Self {
        let slots = Arc::default();
        Self(Arc::new(Inner { domain, slabs: Mutex::new(Vec::new()), slots }))
    }

    /// A buffer of `len` bytes whose content is arbitrary.
    ///
    /// # Errors
    /// [`PoolError`]: longer than 4 GiB, or the device has no memory for it.
    pub fn take(&self, len: usize) -> Result<BulkMut, PoolError> {
        let too_long = |_| PoolError::TooLong { bytes: len as u64 };
        // Sizes are rounded up to 64 bytes.
        let size = u32::try_from(len.saturating_add(63)).map_err(too_long)?;
        if size > MAX_KEPT_BYTES {
            let slab = BufferPool::allocate(&self.0.domain, size, 1)?;
            return Self::first_of(&slab, len);
        }
        let size = size.max(MIN_BUFFER_BYTES).next_power_of_two();
        let mut slabs = self.0.slabs.lock();
        let mut of_size = slabs.iter().filter(|slab| slab.buffer_bytes() == size);
        if let Some(buffer) = of_size.find_map(BufferPool::take) {
            return Ok(BulkMut { buffer, len });
        }
        make_room(&mut slabs, u64::from(size));
        let slab = BufferPool::allocate(&self.0.domain, size, 1)?;
        let taken = Self::first_of(&slab, len);
        slabs.push(slab);
        taken
    }

    fn first_of(slab: &BufferPool, len: usize) -> Result<BulkMut, PoolError> {
        match slab.take() {
            Some(buffer) => Ok(BulkMut { buffer, len }),
            None => Err(PoolError::TooLong { bytes: len as u64 }),
        }
    }

    /// Memory of `len` bytes that the peer writes a reply into: see [`ReplySlot`].
    ///
    /// # Errors
    /// [`PoolError`]: longer than 2 GiB, or the device has no memory for it.
    pub fn slot(&self, len: usize) -> Result<ReplySlot, PoolError> {
        ReplySlot::take(&self.0.slots, &self.0.domain, len)
    }

    /// Whether slots of `home` are this pool's.
    pub(super) fn is_home(&self, home: &Arc<SlotHome>) -> bool {
        Arc::ptr_eq(&self.0.slots, home)
    }

    /// Registers memory of the caller's, once for many calls: slices and clones of what it gives
    /// are sent from where they lie. The memory is given back when the last of them is gone.
    ///
    /// # Errors
    /// [`PoolError::Device`]: the device cannot register it.
    pub fn register(
        &self,
        memory: impl AsRef<[u8]> + Send + Sync + 'static,
    ) -> Result<Bulk, PoolError> {
        Ok(RegisteredBytes::register(&self.0.domain, Arc::new(memory))?.into())
    }

    /// Gives the memory of all buffers that nobody uses back to the system.
    pub fn trim(&self) {
        self.0.slabs.lock().retain(|slab| slab.free_count() == 0);
        self.0.slots.trim();
    }

    /// Memory of the pool's buffers, used or kept for later, bytes; slots are not counted.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.0.slabs.lock().iter().map(|slab| u64::from(slab.buffer_bytes())).sum()
    }

    /// A copy of `bytes` in a buffer; `None` when there is none.
    pub(crate) fn copy_of(&self, bytes: &[u8]) -> Option<Bulk> {
        let mut buffer = self.take(bytes.len()).ok()?;
        buffer.copy_from_slice(bytes);
        Some(buffer.freeze())
    }
}

/// Gives back what is idle, oldest first, until `bytes` more may be kept.
fn make_room(slabs: &mut Vec<BufferPool>, bytes: u64) {
    let is_idle = |slab: &BufferPool| slab.free_count() > 0;
    let size = |slab: &BufferPool| u64::from(slab.buffer_bytes());
    let idle: u64 = slabs.iter().filter(|slab| is_idle(slab)).map(size).sum();
    let mut excess = (idle + bytes).saturating_sub(MAX_IDLE_BYTES);
    slabs.retain(|slab| {
        let goes = excess > 0 && is_idle(slab);
        if goes {
            excess = excess.saturating_sub(size(slab));
        }
        !goes
    });
}

impl fmt::Debug for BulkPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BulkPool({} bytes)", self.allocated_bytes())
    }
}

/// A registered buffer that one owner fills; then [`freeze`](BulkMut::freeze) it to send it. Goes
/// back to its pool when it, or the last handle of what it was frozen to, is dropped.
pub struct BulkMut {
    buffer: Buffer,
    len: usize,
}

impl BulkMut {
    pub(super) fn of(buffer: Buffer, len: usize) -> Self {
        Self { buffer, len }
    }

    /// Cuts it to `len` bytes; a longer one stays as it is.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Bytes that it can have at most.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.buffer.len()
    }

    /// Makes it `len` bytes long; what is new has arbitrary content.
    ///
    /// # Panics
    /// When that is more than its [`capacity`](BulkMut::capacity).
    pub fn resize(&mut self, len: usize) {
        let capacity = self.capacity();
        assert!(len <= capacity, "{len} bytes in a buffer of {capacity}");
        self.len = len;
    }

    /// Ends the filling.
    #[must_use]
    pub fn freeze(self) -> Bulk {
        let Self { buffer, len } = self;
        Bulk(Memory::Pooled { buffer: Arc::new(buffer), start: 0, len })
    }
}

impl Deref for BulkMut {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[..self.len]
    }
}

impl DerefMut for BulkMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.len]
    }
}

impl From<BulkMut> for Bulk {
    fn from(buffer: BulkMut) -> Self {
        buffer.freeze()
    }
}

impl fmt::Debug for BulkMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BulkMut({} of {} bytes)", self.len, self.capacity())
    }
}
