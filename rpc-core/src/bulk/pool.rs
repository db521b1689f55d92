//! Registered buffers of a connection, for sending without a copy.
//!
//! Owns the memory of [`BulkMut`]s, in power-of-two sizes, and keeps it for reuse: registering
//! memory and first touching its pages costs more than sending it. Never frees memory that is in
//! use.
//!
//! "Home" is the pool that a buffer returns to.
//!
//! Invariants:
//! 1. A buffer has one writer or any number of readers: [`BulkMut`] is not `Clone`, and the
//!    [`Bulk`] that it freezes to is read-only until its last handle is dropped.
//! 2. Idle buffers take at most [`MAX_IDLE_BYTES`], and stay for about [`IDLE_TIME`]. The first
//!    limit is enforced when a buffer returns, the second by a task that runs while any buffer is
//!    idle. If its runtime ends, the task is restarted in the runtime of the next buffer that
//!    returns.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rpc_transport::device::ProviderError;
use rpc_transport::device::soft::mem_device;
use rpc_transport::lock::Mutex;
use rpc_transport::memory::process::OfProcess;
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
/// Larger buffers are neither rounded up to a power of two nor kept, bytes.
const MAX_KEPT_BYTES: u32 = 64 << 20;
/// Maximum idle memory kept for reuse, bytes.
const MAX_IDLE_BYTES: u64 = 128 << 20;

/// Time for which idle memory is kept for reuse.
const IDLE_TIME: Duration = Duration::from_secs(5);

/// Memory that a connection's device sends from without copying. Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
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
    slabs: OfProcess<Mutex<Slabs>>,
    slots: Arc<SlotHome>,
}

#[derive(Default)]
struct Slabs {
    /// One buffer per entry.
    all: Vec<Slab>,
    /// The runtime of the trimming task; without one, there is no trimming by time.
    runtime: Option<Handle>,
    /// Whether that task runs, or is about to be started.
    is_trimmed: bool,
    trimmer: Option<AbortHandle>,
}

struct Slab {
    pool: BufferPool,
    /// Since when the buffer is idle; set by the first check that finds it idle.
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

    /// Buffers for a channel without a connection yet: their contents are copied for sending.
    pub(crate) fn of_no_connection() -> Self {
        Self::in_domain(mem_device().allocate_pd())
    }

    fn in_domain(domain: Result<ProtectionDomain, ProviderError>) -> Self {
        let slabs = Slabs { runtime: Handle::try_current().ok(), ..Slabs::default() };
        Self(Arc::new_cyclic(|this: &Weak<Inner>| {
            let slots = Arc::new(SlotHome::watched(on_home(this)));
            Inner { domain, slabs: OfProcess::new(Mutex::new(slabs)), slots }
        }))
    }

    /// A buffer of `len` bytes with arbitrary contents.
    ///
    /// # Errors
    /// [`PoolError`]: longer than 4 GiB, or the device has no memory for it.
    pub fn take(&self, len: usize) -> Result<BulkMut, PoolError> {
        let slabs = self.0.slabs.get().ok_or(PoolError::Forked)?;
        let too_long = |_| PoolError::TooLong { bytes: len as u64 };
        // Sizes are rounded up to 64 bytes.
        let size = u32::try_from(len.saturating_add(63)).map_err(too_long)?;
        if size > MAX_KEPT_BYTES {
            let slab = BufferPool::allocate(self.domain()?, size, 1)?;
            return Self::first_of(&slab, len);
        }
        let size = size.max(MIN_BUFFER_BYTES).next_power_of_two();
        if let Some(buffer) = slabs.lock().take(size) {
            return Ok(BulkMut::of(buffer, len));
        }
        let on_home = on_home(&Arc::downgrade(&self.0));
        let pool = BufferPool::allocate_watched(self.domain()?, size, 1, Some(on_home))?;
        let taken = Self::first_of(&pool, len);
        slabs.lock().all.push(Slab { pool, idle_since: None });
        taken
    }

    fn first_of(slab: &BufferPool, len: usize) -> Result<BulkMut, PoolError> {
        match slab.take() {
            Some(buffer) => Ok(BulkMut::of(buffer, len)),
            None => Err(PoolError::TooLong { bytes: len as u64 }),
        }
    }

    /// Memory of `len` bytes into which the peer writes a reply: see [`ReplySlot`].
    ///
    /// # Errors
    /// [`PoolError`]: longer than 2 GiB, or the device has no memory for it.
    pub fn slot(&self, len: usize) -> Result<ReplySlot, PoolError> {
        ReplySlot::take(&self.0.slots, self.domain()?, len)
    }

    fn domain(&self) -> Result<&ProtectionDomain, PoolError> {
        if !self.0.slabs.is_here() {
            return Err(PoolError::Forked);
        }
        self.0.domain.as_ref().map_err(|error| error.clone().into())
    }

    /// Offers a slot with a request over the connection whose pool this is.
    pub(crate) fn offer(&self, slot: ReplySlot, body: &mut OutBuf) {
        slot.offer_with(body, &self.0.slots);
    }

    /// Registers the caller's memory, once for many calls: the returned [`Bulk`], its slices and
    /// its clones are sent without a copy. The memory is released when the last of them is dropped.
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
        let Some(slabs) = self.0.slabs.get() else { return };
        let idle = slabs.lock().take_out(Slab::is_idle);
        drop(idle);
        self.0.slots.trim();
    }

    /// Memory of the pool's buffers, in use or idle, bytes; slots are not counted.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.0.slabs.get().map_or(0, |slabs| slabs.lock().all.iter().map(Slab::bytes).sum())
    }
}

/// The source of registered buffers for copies; called only if there is something to copy.
pub(crate) trait Copies: Send + Sync {
    /// A copy; `None` if no buffer is available.
    fn copy_of(&self, bytes: &[u8]) -> Option<Bulk>;
}

impl Copies for BulkPool {
    fn copy_of(&self, bytes: &[u8]) -> Option<Bulk> {
        let mut buffer = self.take(bytes.len()).ok()?;
        buffer.copy_from_slice(bytes);
        Some(buffer.freeze())
    }
}

/// The callback for a buffer or a slot that returns to the pool.
fn on_home(pool: &Weak<Inner>) -> OnHome {
    let pool = Weak::clone(pool);
    Box::new(move || {
        if let Some(pool) = pool.upgrade() {
            pool.on_home();
        }
    })
}

impl Inner {
    /// Called when a buffer or slot has returned: frees idle memory above the limit, and starts the
    /// trimming task if it does not run.
    fn on_home(self: &Arc<Self>) {
        if !self.slabs.is_here() {
            return;
        }
        let (excess, starts) = {
            let mut slabs = self.slabs.lock();
            if slabs.runtime.is_none() {
                slabs.runtime = Handle::try_current().ok();
            }
            let starts = if slabs.is_trimmed { None } else { slabs.runtime.clone() };
            slabs.is_trimmed |= starts.is_some();
            (slabs.take_excess(Instant::now()), starts)
        };
        drop(excess);
        if let Some(runtime) = starts {
            // A runtime that has shut down drops the task at once.
            let trims = Trims { pool: Arc::downgrade(self), is_done: false };
            let task = runtime.spawn(trims.by_time());
            let mut slabs = self.slabs.lock();
            slabs.trimmer = Some(task.abort_handle()).filter(|_| slabs.is_trimmed);
        }
    }

    /// Frees buffers and slots that have been idle since `since` or longer. Returns whether any
    /// idle ones are left.
    fn trim_idle(&self, since: Instant) -> bool {
        self.slots.trim_idle(since);
        let (gone, goes_on) = {
            let mut slabs = self.slabs.lock();
            let gone = slabs.take_out(|slab| slab.idle_since.is_some_and(|idle| idle <= since));
            // Checked under the lock: a slot that returns right now finds the task running, or
            // ended.
            let goes_on = self.slots.has_idle() || slabs.all.iter().any(Slab::is_idle);
            if !goes_on {
                (slabs.trimmer, slabs.is_trimmed) = (None, false);
            }
            (gone, goes_on)
        };
        drop(gone);
        goes_on
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.slabs.is_here()
            && let Some(trimmer) = self.slabs.get_mut().trimmer.take()
        {
            trimmer.abort();
        }
    }
}

/// The trimming task: runs while a buffer or slot is idle.
struct Trims {
    pool: Weak<Inner>,
    is_done: bool,
}

impl Trims {
    async fn by_time(mut self) {
        while !self.is_done {
            let since = Instant::now();
            tokio::time::sleep(IDLE_TIME).await;
            self.is_done = self.pool.upgrade().is_none_or(|pool| !pool.trim_idle(since));
        }
    }
}

impl Drop for Trims {
    fn drop(&mut self) {
        if !self.is_done
            && let Some(pool) = self.pool.upgrade()
        {
            // Its runtime has shut down.
            let _ended = {
                let mut slabs = pool.slabs.lock();
                slabs.is_trimmed = false;
                (slabs.trimmer.take(), slabs.runtime.take())
            };
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
