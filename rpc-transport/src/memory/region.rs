//! Registered memory: protection domains, memory regions, and the pools that carve regions into
//! buffers.
//!
//! Owns the rules of who may read and write which bytes when. Never posts anything.
//!
//! Invariants:
//! 1. A [`Buffer`] is the only safe access to its bytes (so its region is not handed out), its
//!    region has no remote access, and it is not `Clone`: only its holder may read and write. A
//!    posted buffer is owned by the queue, so nobody else can use it.
//! 2. Bytes of a region that a peer may write are never lent as `&[u8]`. They may be written by a
//!    device, the kernel, or an engine of this process on any thread. So this process reads and
//!    writes them only by the atomic copies of `copy` ([`MemoryRegion::copy_out`]), which race with
//!    none of these.
//! 3. A region's memory outlives every handle, and the device's guard is dropped (deregistration)
//!    before the memory is freed.
//! 4. A buffer returns to its pool exactly once, by `Drop`.
//! 5. A child of `fork(2)` shares the memory of regions with its parent, which continues to use it.
//!    So the child copies nothing out of them or into them, deregisters none, and returns no
//!    buffer. (Buffers of pools are its own copies.)
#![allow(unsafe_code, reason = "registered memory is shared with a device through raw pointers")]

#[cfg(any(test, feature = "model"))]
mod inherited;
mod window;

use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use super::budget::Reservation;
use super::process::{FORKED, OfProcess, Process};
use crate::error::ProviderError;
use crate::lock::Mutex;
use crate::memory::owned::OwnedMemory;
use crate::memory::{copy, pages};

pub use self::window::MemoryWindow;
pub use super::access::Access;

/// The operations of a device on a protection domain.
pub trait DomainOps: Send + Sync + fmt::Debug {
    /// Allocates and registers `len_bytes` of zeroed, page-aligned memory.
    ///
    /// # Errors
    /// [`ProviderError::Resources`]: out of memory, or over the lock limit (the text says which).
    fn allocate(&self, len_bytes: usize, access: Access) -> Result<MemoryRegion, ProviderError>;

    /// Registers memory that the caller owns.
    ///
    /// # Errors
    /// [`ProviderError::Unsupported`] for remote access without
    /// [`Capabilities::REGISTER_REMOTE`](crate::device::Capabilities::REGISTER_REMOTE);
    /// [`ProviderError::Resources`].
    fn register(&self, memory: OwnedMemory, access: Access) -> Result<MemoryRegion, ProviderError>;

    /// Makes a window of a region of this domain, not bound yet. Default: refuses, for devices
    /// that have none.
    ///
    /// # Errors
    /// [`ProviderError::Unsupported`], [`ProviderError::Resources`].
    fn window(&self, region: &MemoryRegion) -> Result<MemoryWindow, ProviderError> {
        let _ = region;
        Err(ProviderError::Unsupported("memory windows"))
    }

    /// For providers: to find their own domain behind the trait object.
    fn as_any(&self) -> &dyn Any;
}

/// A protection domain: keys of one domain mean nothing in another. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ProtectionDomain(Arc<dyn DomainOps>);

impl ProtectionDomain {
    /// Wraps a provider's domain.
    pub fn new(ops: Arc<dyn DomainOps>) -> Self {
        Self(ops)
    }

    /// Allocates and registers zeroed, page-aligned memory; pages are touched on first use.
    ///
    /// # Errors
    /// [`ProviderError::Resources`].
    pub fn allocate(
        &self,
        len_bytes: usize,
        access: Access,
    ) -> Result<MemoryRegion, ProviderError> {
        self.0.allocate(len_bytes, access)
    }

    /// Registers memory that the caller owns; its owner is dropped when the last handle of the
    /// region is gone.
    ///
    /// # Errors
    /// See [`DomainOps::register`].
    pub fn register(
        &self,
        memory: impl Into<OwnedMemory>,
        access: Access,
    ) -> Result<MemoryRegion, ProviderError> {
        self.0.register(memory.into(), access)
    }

    /// Makes a window of a region of this domain ([`Access::WINDOWS`]). Its key is useless until
    /// [`SendOp::Bind`](crate::device::SendOp::Bind) has bound it to a QP.
    ///
    /// # Errors
    /// See [`DomainOps::window`].
    pub fn window(&self, region: &MemoryRegion) -> Result<MemoryWindow, ProviderError> {
        self.0.window(region)
    }

    /// For providers: to find their own domain behind the handle.
    #[must_use]
    pub fn ops(&self) -> &dyn DomainOps {
        &*self.0
    }
}

/// The properties of a region, as its provider reports them.
#[derive(Debug)]
pub struct RegionParts {
    /// First byte.
    pub base: NonNull<u8>,
    /// Length, bytes.
    pub len: usize,
    /// Local key.
    pub lkey: u32,
    /// Remote key; differs from `lkey` where the device allows the choice.
    pub rkey: u32,
    /// The accesses that the region allows.
    pub access: Access,
    /// Address that peers use for the first byte.
    pub remote_base: u64,
    /// Identity of the protection domain, unique in this process.
    pub domain: u64,
}

struct RegionInner {
    parts: RegionParts,
    /// Its share of a memory budget, held until the region is gone.
    charge: OnceLock<Reservation>,
    /// Its share of a device's limit on locked memory, held until the region is gone.
    locked: OnceLock<Reservation>,
    // Field order is drop order: deregister first, free the memory after (invariant 3).
    registration: OfProcess<Box<dyn Any + Send + Sync>>,
    _memory: OfProcess<Box<dyn Any + Send + Sync>>,
}

// SAFETY: the raw pointer is to memory owned by `_memory` (Send + Sync); all access goes through
// the methods below, which follow invariants 1 and 2.
unsafe impl Send for RegionInner {}
// SAFETY: as above.
unsafe impl Sync for RegionInner {}

/// A registered memory region (MR). Cloning shares the same registration.
#[derive(Clone)]
pub struct MemoryRegion(Arc<RegionInner>);

impl MemoryRegion {
    /// Builds a region from a provider's registration.
    ///
    /// # Safety
    /// - `parts.base..+len` is initialised and readable until `memory` is dropped; writable, too,
    ///   if the access lets peers write it, or if a [`BufferPool`] is made of the region.
    /// - Until then nothing of this process writes it except through handles of the region, or the
    ///   provider for a peer: by atomic accesses of bytes, or by the kernel or a device.
    /// - Dropping `registration` ends the device's access.
    pub unsafe fn from_parts(
        parts: RegionParts,
        registration: Box<dyn Any + Send + Sync>,
        memory: Box<dyn Any + Send + Sync>,
    ) -> Self {
        let (charge, locked) = (OnceLock::new(), OnceLock::new());
        let (registration, _memory) = (OfProcess::new(registration), OfProcess::new(memory));
        Self(Arc::new(RegionInner { parts, charge, locked, registration, _memory }))
    }

    /// Holds a reservation for as long as the memory exists. At most once.
    pub fn charge(&self, charge: Reservation) {
        let kept = self.0.charge.set(charge);
        debug_assert!(kept.is_ok(), "a region is charged once");
    }

    /// Holds a device's charge for locked memory for as long as the memory exists. At most once.
    pub(crate) fn charge_locked(&self, locked: Reservation) {
        let kept = self.0.locked.set(locked);
        debug_assert!(kept.is_ok(), "a region is locked once");
    }

    /// Length, bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.parts.len
    }

    /// Whether the region has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Local key, for WRs of this process.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.0.parts.lkey
    }

    /// Remote key, to advertise to a peer.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.0.parts.rkey
    }

    /// The accesses that the region allows.
    #[must_use]
    pub fn access(&self) -> Access {
        self.0.parts.access
    }

    /// Address to advertise for byte `offset`.
    #[must_use]
    pub fn remote_address(&self, offset: u64) -> u64 {
        self.0.parts.remote_base.wrapping_add(offset)
    }

    /// Identity of the protection domain.
    #[must_use]
    pub fn domain(&self) -> u64 {
        self.0.parts.domain
    }

    /// The provider's registration.
    pub(crate) fn registration(&self) -> &(dyn Any + Send + Sync) {
        &**self.0.registration
    }

    /// First byte, for providers.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.0.parts.base
    }

    /// Copies bytes to `to`; a peer may be writing them at the same time (invariant 2).
    ///
    /// # Panics
    /// When the span lies outside the region, or in a child of `fork(2)`.
    #[inline]
    pub fn copy_out(&self, offset: usize, to: &mut [u8]) {
        self.check(offset, to.len());
        // SAFETY: the span is inside the region (checked); `to` is a distinct unique borrow.
        unsafe { self.read(offset, to.as_mut_ptr(), to.len()) };
    }

    /// Copies `len` bytes, starting at `offset`, to `to`.
    ///
    /// # Safety
    /// The span is inside the region, and `to` is the caller's own memory of at least `len` bytes.
    #[inline]
    unsafe fn read(&self, offset: usize, to: *mut u8, len: usize) {
        // SAFETY: the offset is inside the region (the caller's promise).
        let from = unsafe { self.base().as_ptr().add(offset) };
        // SAFETY: in bounds, `to` by the caller; other writers use such copies, or are the kernel
        // or a device (invariant 2).
        unsafe { copy::from_shared(from, to, len) };
    }

    /// Appends `len` bytes to `to`; a peer may be writing them at the same time (invariant 2).
    ///
    /// # Panics
    /// When the span lies outside the region, or in a child of `fork(2)`.
    pub fn append_to(&self, offset: usize, len: usize, to: &mut Vec<u8>) {
        self.check(offset, len);
        to.reserve(len);
        let end = to.len();
        let room = to.spare_capacity_mut().as_mut_ptr().cast();
        // SAFETY: in bounds (checked); `len` bytes of room are reserved.
        unsafe { self.read(offset, room, len) };
        // SAFETY: the bytes behind the old end were written just now.
        unsafe { to.set_len(end + len) };
    }

    /// Writes as the DMA of a peer's device would, for models that have no device.
    ///
    /// # Safety
    /// Nobody relies on the peer not writing these bytes, as
    /// [`Payload::as_slice`](crate::message::payload::Payload::as_slice) does.
    ///
    /// # Panics
    /// When the span lies outside the region, or peers may not write it.
    #[cfg(any(test, feature = "model"))]
    pub unsafe fn write_as_peer(&self, offset: usize, from: &[u8]) {
        assert!(self.access().remote_write, "a peer may not write {self:?}");
        self.check(offset, from.len());
        // SAFETY: `check` keeps the offset inside the region.
        let to = unsafe { self.base().as_ptr().add(offset) };
        // SAFETY: in bounds (checked); all others use such copies (invariant 2, and the caller's
        // promise); `from` is borrowed, so nobody writes it, and it cannot lie in the region.
        unsafe { copy::to_shared(from.as_ptr(), to, from.len()) };
    }

    /// Number of handles that share the registration.
    #[cfg(any(test, feature = "model"))]
    #[must_use]
    pub fn handle_count(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// Whether both are handles of the same registration.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Copies bytes in, for regions that peers read, and for tests.
    ///
    /// # Safety
    /// The memory may be written (it was not handed over by [`OwnedMemory::from_raw_shared`]), and
    /// no reference to the bytes is in use. Devices and copies may use them.
    ///
    /// # Panics
    /// When the span lies outside the region.
    pub unsafe fn copy_in(&self, offset: usize, from: &[u8]) {
        self.check(offset, from.len());
        // SAFETY: `check` keeps the offset inside the region.
        let to = unsafe { self.base().as_ptr().add(offset) };
        // SAFETY: in bounds (checked); others use such copies or are devices (invariant 2, and the
        // caller's promise); `from` is borrowed, so nobody writes it, and it cannot lie in the
        // region.
        unsafe { copy::to_shared(from.as_ptr(), to, from.len()) };
    }

    /// These bytes as memory to register in another domain, for reading only.
    #[must_use]
    pub(crate) fn to_owned_memory(&self) -> OwnedMemory {
        let owner = Box::new(self.clone());
        OwnedMemory { base: self.base(), len: self.len(), writable: false, owner }
    }

    /// Whether this process registered the memory, and so may use it (invariant 5).
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.0.registration.is_here()
    }

    #[inline]
    fn check(&self, offset: usize, len: usize) {
        assert!(self.is_here(), "registered memory {FORKED}, or copy it before");
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.len()),
            "span {offset}+{len} lies outside the region of {} bytes",
            self.len()
        );
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RegionParts { len, lkey, rkey, access, .. } = &self.0.parts;
        write!(f, "MemoryRegion({len} bytes, lkey {lkey:#x}, rkey {rkey:#x}, {access:?})")
    }
}

struct PoolInner {
    region: MemoryRegion,
    buffer_bytes: u32,
    count: u32,
    free: Mutex<Vec<u32>>,
    /// Called when a buffer returns to the pool, without holding the pool's lock.
    on_home: Option<OnHome>,
    process: Process,
}

/// Buffers start and end with a cache line, bytes.
const BUFFER_ALIGN: u32 = 64;

/// A callback for a buffer's return to its pool, on whatever thread dropped it.
pub type OnHome = Box<dyn Fn() + Send + Sync>;

/// A region carved into buffers of one size. Cloning shares the pool.
///
/// Send and receive memory never share a pool: senders that take every buffer must not prevent the
/// reposting of RECVs.
#[derive(Clone)]
pub struct BufferPool(Arc<PoolInner>);

impl BufferPool {
    /// Allocates `count` buffers of `buffer_bytes` each (rounded up to 64). Untouched buffers cost
    /// address space, not memory, unless the device pins them.
    ///
    /// # Errors
    /// [`ProviderError::Resources`] from the allocation.
    pub fn allocate(
        domain: &ProtectionDomain,
        buffer_bytes: u32,
        count: u32,
    ) -> Result<Self, ProviderError> {
        Self::allocate_watched(domain, buffer_bytes, count, None)
    }

    /// Length of the region of such a pool, bytes.
    pub(crate) fn region_bytes(buffer_bytes: u32, count: u32) -> usize {
        buffer_bytes.next_multiple_of(BUFFER_ALIGN) as usize * count as usize
    }

    /// Like [`BufferPool::allocate`], and calls `on_home` for each buffer that returns to the pool.
    ///
    /// # Errors
    /// [`ProviderError::Resources`] from the allocation.
    pub fn allocate_watched(
        domain: &ProtectionDomain,
        buffer_bytes: u32,
        count: u32,
        on_home: Option<OnHome>,
    ) -> Result<Self, ProviderError> {
        let region = domain.allocate(Self::region_bytes(buffer_bytes, count), Access::LOCAL)?;
        let buffer_bytes = buffer_bytes.next_multiple_of(BUFFER_ALIGN);
        // Popped from the end: low indices first, so that few pages are touched.
        let free = Mutex::new((0..count).rev().collect());
        let process = Process::current();
        Ok(Self(Arc::new(PoolInner { region, buffer_bytes, count, free, on_home, process })))
    }

    /// Takes a buffer, if one is free.
    #[must_use]
    pub fn take(&self) -> Option<Buffer> {
        self.take_counted().map(|(buffer, _)| buffer)
    }

    /// Like [`BufferPool::take`], and returns the number of buffers left.
    #[inline]
    pub(crate) fn take_counted(&self) -> Option<(Buffer, usize)> {
        let mut free = self.0.free.lock();
        let index = free.pop()?;
        Some((Buffer { pool: Arc::clone(&self.0), index }, free.len()))
    }

    /// Like [`BufferPool::take`], unless that would leave fewer than `kept` buffers.
    #[inline]
    pub(crate) fn take_above(&self, kept: usize) -> Option<Buffer> {
        let mut free = self.0.free.lock();
        if free.len() <= kept {
            return None;
        }
        let index = free.pop()?;
        Some(Buffer { pool: Arc::clone(&self.0), index })
    }

    /// Size of each buffer, bytes.
    #[must_use]
    pub fn buffer_bytes(&self) -> u32 {
        self.0.buffer_bytes
    }

    /// Identity of the protection domain.
    #[must_use]
    pub fn domain(&self) -> u64 {
        self.0.region.domain()
    }

    /// Total number of buffers.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.0.count
    }

    /// Number of pages that its buffers occupy now, in pages of the system's size.
    #[cfg(any(test, feature = "model"))]
    #[must_use]
    pub fn resident_pages(&self) -> usize {
        let region = &self.0.region;
        let mut pages = vec![0_u8; region.len().div_ceil(rustix::param::page_size())];
        // SAFETY: the region is mapped as long as it lives, starts with a page as every allocation
        // does, and there is a byte for each of its pages. Nothing of the region is read.
        let result = unsafe {
            libc::mincore(region.base().as_ptr().cast(), region.len(), pages.as_mut_ptr())
        };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        pages.iter().filter(|page| **page & 1 == 1).count()
    }

    /// Gives the pages behind free buffers back to the operating system until they are written.
    /// Only allowed if no device has pinned them: the device would continue to use the old ones.
    pub(crate) fn release_pages(&self) {
        let free = self.0.free.lock();
        let mut indices = free.clone();
        indices.sort_unstable();
        let size = self.0.buffer_bytes as usize;
        // Adjacent buffers in one system call, including the pages that they share.
        for run in indices.chunk_by(|before, next| before + 1 == *next) {
            let Some(first) = run.first() else { continue };
            // SAFETY: free indices are below `count`, so the offset is inside the region.
            let base = unsafe { self.0.region.base().add(*first as usize * size) };
            // SAFETY: whole buffers that are free, and stay free while `free` is locked: nobody
            // else has access to them (invariant 1), and the next holder of one expects no
            // contents.
            unsafe { pages::discard(base, run.len() * size) };
        }
    }

    /// Number of free buffers.
    #[must_use]
    pub fn free_count(&self) -> usize {
        self.0.free.lock().len()
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufferPool({}/{} x {})", self.free_count(), self.0.count, self.0.buffer_bytes)
    }
}

/// A uniquely owned registered buffer of a [`BufferPool`]; returns to it on drop.
pub struct Buffer {
    pool: Arc<PoolInner>,
    index: u32,
}

impl Buffer {
    /// The region of the buffer, for its keys. Not public: a handle of the region would bypass the
    /// buffers.
    #[must_use]
    pub(crate) fn region(&self) -> &MemoryRegion {
        &self.pool.region
    }

    /// Local key of the buffer's region, for providers.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.pool.region.lkey()
    }

    /// Identity of the protection domain, for providers.
    #[must_use]
    pub fn domain(&self) -> u64 {
        self.pool.region.domain()
    }

    /// Where the buffer starts within its region, bytes.
    #[must_use]
    pub fn region_offset(&self) -> usize {
        self.index as usize * self.pool.buffer_bytes as usize
    }

    /// First byte, for providers.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        // SAFETY: `index < count` (only `BufferPool::take` makes buffers), so the offset is inside
        // the region, which the pool keeps alive.
        unsafe { self.pool.region.base().add(self.region_offset()) }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: in bounds as in `as_ptr`; zero-initialised by `allocate`; invariant 1 makes this
        // borrow of `self` the only access.
        unsafe {
            std::slice::from_raw_parts(self.as_ptr().as_ptr(), self.pool.buffer_bytes as usize)
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.pool.buffer_bytes as usize;
        // SAFETY: as in `deref`, and `&mut self` makes it unique.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr().as_ptr(), len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if !self.pool.process.is_current() {
            return;
        }
        self.pool.free.lock().push(self.index);
        if let Some(on_home) = &self.pool.on_home {
            on_home();
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} of {} bytes)", self.index, self.pool.buffer_bytes)
    }
}
