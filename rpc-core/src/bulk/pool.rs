//! Registered buffers of a connection, to fill and to send without a copy.
//!
//! Owns the memory of [`BulkMut`]s, in sizes of powers of two, and keeps it for reuse: registering
//! memory and touching its pages for the first time costs more than sending it. Never frees memory
//! that is in use.
//!
//! "Home" is the pool that a buffer goes back to: a buffer at home is idle.
//!
//! Invariants:
//! 1. A buffer has one writer or any number of readers: [`BulkMut`] is not `Clone`, and the
//!    [`Bulk`] that it freezes to is only read until its last handle is gone.
//! 2. Idle buffers take at most [`MAX_IDLE_BYTES`], and stay for about [`IDLE_TIME`]. The first
//!    limit is enforced when a buffer comes back, the second by a task that runs while any is idle.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rpc_transport::device::ProviderError;
use rpc_transport::device::soft::mem_device;
use rpc_transport::memory::region::{Buffer, BufferPool, OnHome, ProtectionDomain};
use rpc_transport::memory::registered::RegisteredBytes;
use rpc_transport::message::outgoing::OutBuf;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::Bulk;
use super::buffer::BulkMut;
use super::error::PoolError;
use super::slot::{ReplySlot, SlotHome};

/// Smallest buffer that is allocated, bytes.
const MIN_BUFFER_BYTES: u32 = 64 * 1024;
/// Buffers above this are not rounded up to a power of two, nor kept, bytes.
const MAX_KEPT_BYTES: u32 = 64 << 20;
/// Most idle memory that is kept for reuse, bytes.
const MAX_IDLE_BYTES: u64 = 128 << 20;

/// How long idle memory is kept for reuse.
const IDLE_TIME: Duration = Duration::from_secs(5);

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
    domain: Result<ProtectionDomain, ProviderError>,
    slabs: Mutex<Slabs>,
    slots: Arc<SlotHome>,
    /// The runtime of the trimming task; without one, nothing is trimmed by time.
    runtime: Option<Handle>,
}

#[derive(Default)]
struct Slabs {
    /// One buffer each.
    all: Vec<Slab>,
    trimmer: Option<AbortHandle>,
}

struct Slab {
    pool: BufferPool,
    /// Since when its buffer is idle; set when a check first finds it so.
    idle_since: Option<Instant>,
}

impl Slab {
    fn is_idle(&self) -> bool {
        self.pool.free_count() > 0
    }

    fn bytes(&self) -> u64 {
        self.pool.buffer_bytes().into()
    }
}

impl BulkPool {
    pub(crate) fn new(domain: ProtectionDomain) -> Self {
        Self::in_domain(Ok(domain))
    }

    /// Buffers for a channel that has no connection yet: what they hold is copied to be sent.
    pub(crate) fn of_no_connection() -> Self {
        Self::in_domain(mem_device().allocate_pd())
    }

    fn in_domain(domain: Result<ProtectionDomain, ProviderError>) -> Self {
        let runtime = Handle::try_current().ok();
        Self(Arc::new_cyclic(|this: &Weak<Inner>| {
            let slots = Arc::new(SlotHome::watched(on_home(this)));
            Inner { domain, slabs: Mutex::default(), slots, runtime }
        }))
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
            let slab = BufferPool::allocate(self.domain()?, size, 1)?;
            return Self::first_of(&slab, len);
        }
        let size = size.max(MIN_BUFFER_BYTES).next_power_of_two();
        if let Some(buffer) = self.0.slabs.lock().take(size) {
            return Ok(BulkMut::of(buffer, len));
        }
        let on_home = on_home(&Arc::downgrade(&self.0));
        let pool = BufferPool::allocate_watched(self.domain()?, size, 1, Some(on_home))?;
        let taken = Self::first_of(&pool, len);
        self.0.slabs.lock().all.push(Slab { pool, idle_since: None });
        taken
    }

    fn first_of(slab: &BufferPool, len: usize) -> Result<BulkMut, PoolError> {
        match slab.take() {
            Some(buffer) => Ok(BulkMut::of(buffer, len)),
            None => Err(PoolError::TooLong { bytes: len as u64 }),
        }
    }

    /// Memory of `len` bytes that the peer writes a reply into: see [`ReplySlot`].
    ///
    /// # Errors
    /// [`PoolError`]: longer than 2 GiB, or the device has no memory for it.
    pub fn slot(&self, len: usize) -> Result<ReplySlot, PoolError> {
        ReplySlot::take(&self.0.slots, self.domain()?, len)
    }

    fn domain(&self) -> Result<&ProtectionDomain, PoolError> {
        self.0.domain.as_ref().map_err(|error| error.clone().into())
    }

    /// Offers a slot with a request over the connection whose pool this is.
    pub(crate) fn offer(&self, slot: ReplySlot, body: &mut OutBuf) {
        slot.offer_with(body, &self.0.slots);
    }

    /// Registers the caller's memory, once for many calls: the returned [`Bulk`], its slices and
    /// its clones are sent without a copy. The memory is given back when the last of them is gone.
    ///
    /// # Errors
    /// [`PoolError::Device`]: the device cannot register it.
    pub fn register(
        &self,
        memory: impl AsRef<[u8]> + Send + Sync + 'static,
    ) -> Result<Bulk, PoolError> {
        Ok(RegisteredBytes::register(self.domain()?, Arc::new(memory))?.into())
    }

    /// Frees the memory of all idle buffers.
    pub fn trim(&self) {
        let idle = self.0.slabs.lock().take_out(Slab::is_idle);
        drop(idle);
        self.0.slots.trim();
    }

    /// Memory of the pool's buffers, in use or idle, bytes; slots are not counted.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.0.slabs.lock().all.iter().map(Slab::bytes).sum()
    }
}

/// Where copies are made in registered buffers; asked only when there is something to copy.
pub(crate) trait Copies: Send + Sync {
    /// A copy; `None` when no buffer can be had.
    fn copy_of(&self, bytes: &[u8]) -> Option<Bulk>;
}

impl Copies for BulkPool {
    fn copy_of(&self, bytes: &[u8]) -> Option<Bulk> {
        let mut buffer = self.take(bytes.len()).ok()?;
        buffer.copy_from_slice(bytes);
        Some(buffer.freeze())
    }
}

/// The callback for a buffer or a slot that comes back to the pool.
fn on_home(pool: &Weak<Inner>) -> OnHome {
    let pool = Weak::clone(pool);
    Box::new(move || {
        if let Some(pool) = pool.upgrade() {
            pool.on_home();
        }
    })
}

impl Inner {
    /// A buffer or slot has come back: frees idle memory above the limit, and starts the trimming
    /// task if it does not run.
    fn on_home(self: &Arc<Self>) {
        let excess = {
            let mut slabs = self.slabs.lock();
            if slabs.trimmer.is_none()
                && let Some(runtime) = &self.runtime
            {
                let task = runtime.spawn(trim_by_time(Arc::downgrade(self)));
                slabs.trimmer = Some(task.abort_handle());
            }
            slabs.take_excess(Instant::now())
        };
        drop(excess);
    }

    /// Frees buffers and slots that have been idle since `since` or longer. Returns whether any
    /// idle ones are left.
    fn trim_idle(&self, since: Instant) -> bool {
        let keeps_slots = self.slots.trim_idle(since);
        let (gone, goes_on) = {
            let mut slabs = self.slabs.lock();
            let gone = slabs.take_out(|slab| slab.idle_since.is_some_and(|idle| idle <= since));
            let goes_on = keeps_slots || slabs.all.iter().any(Slab::is_idle);
            if !goes_on {
                slabs.trimmer = None;
            }
            (gone, goes_on)
        };
        drop(gone);
        goes_on
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(trimmer) = self.slabs.get_mut().trimmer.take() {
            trimmer.abort();
        }
    }
}

/// The trimming task: runs while a buffer or slot is idle.
async fn trim_by_time(pool: Weak<Inner>) {
    loop {
        let since = Instant::now();
        tokio::time::sleep(IDLE_TIME).await;
        let Some(pool) = pool.upgrade() else { return };
        if !pool.trim_idle(since) {
            return;
        }
    }
}

impl Slabs {
    fn take(&mut self, size: u32) -> Option<Buffer> {
        let mut of_size = self.all.iter_mut().filter(|slab| slab.pool.buffer_bytes() == size);
        of_size.find_map(|slab| {
            let buffer = slab.pool.take()?;
            slab.idle_since = None;
            Some(buffer)
        })
    }

    /// Takes out idle memory above [`MAX_IDLE_BYTES`], oldest first, to be dropped outside the
    /// lock.
    fn take_excess(&mut self, now: Instant) -> Vec<Slab> {
        let mut idle = 0;
        for slab in self.all.iter_mut().filter(|slab| slab.is_idle()) {
            slab.idle_since.get_or_insert(now);
            idle += slab.bytes();
        }
        let mut excess = idle.saturating_sub(MAX_IDLE_BYTES);
        self.take_out(|slab| {
            let goes = excess > 0 && slab.is_idle();
            if goes {
                excess = excess.saturating_sub(slab.bytes());
            }
            goes
        })
    }

    fn take_out(&mut self, goes: impl FnMut(&Slab) -> bool) -> Vec<Slab> {
        let mut goes = goes;
        self.all.extract_if(.., |slab| goes(slab)).collect()
    }
}

impl fmt::Debug for BulkPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BulkPool({} bytes)", self.allocated_bytes())
    }
}
