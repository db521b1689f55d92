//! Protection domains and memory regions, as guards that release their object on drop.
//!
//! Owns registration. Regions have local access only, unless the caller asks for more, and belong
//! to the domain that the caller passes: one per tenant.
//!
//! Invariants:
//! 1. A guard is the only owner of its object, and destroys it on the reaper's thread. A child
//!    holds its parent's `Arc`, so it is destroyed first.
//! 2. Only memory that is allocated here is registered for relaxed ordering, in which a device's
//!    writes reach memory in any order before their completion: nobody polls this memory, and none
//!    of it is written again before that completion. Users may poll the memory that they bring.
//! 3. Registered memory is freed only after deregistration has succeeded; if the device refuses,
//!    the memory is leaked and that is logged.
#![allow(unsafe_code, reason = "registers memory with a device")]

mod window;

use std::any::Any;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::device::ProviderError;
use crate::memory::owned::{OwnedMemory, OwnedParts};
use crate::memory::region::{
    Access, DomainOps, MemoryRegion, MemoryWindow, ProtectionDomain, RegionParts,
};

pub(super) use self::window::{BoundWindows, VerbsWindow};
use super::context::Context;
use super::ffi::{self, ibv_access_flags};
use super::inherited::is_inherited;
use super::limits;
use super::pages::Pages;
use super::reaper;

/// A protection domain.
#[derive(Debug)]
pub(super) struct PdGuard {
    raw: NonNull<ffi::ibv_pd>,
    /// Unique in this process.
    id: u64,
    context: Arc<Context>,
}

// SAFETY: libibverbs is thread-safe; the pointer is only passed to it.
unsafe impl Send for PdGuard {}
// SAFETY: as above.
unsafe impl Sync for PdGuard {}

impl PdGuard {
    /// Allocates a domain.
    pub(super) fn allocate(context: &Arc<Context>) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // SAFETY: the context is open.
        let raw = ffi::created(|| unsafe { ffi::ibv_alloc_pd(context.as_ptr()) })?;
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Self { raw, id, context: Arc::clone(context) })
    }

    /// The domain.
    pub(super) fn as_ptr(&self) -> *mut ffi::ibv_pd {
        self.raw.as_ptr()
    }

    /// The device.
    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for PdGuard {
    fn drop(&mut self) {
        if is_inherited() {
            return;
        }
        let pd = RawPd(self.raw, Arc::clone(&self.context));
        reaper::dispose(move || pd.deallocate());
    }
}

struct RawPd(NonNull<ffi::ibv_pd>, Arc<Context>);

// SAFETY: as for `PdGuard`.
unsafe impl Send for RawPd {}

impl RawPd {
    fn deallocate(self) {
        // SAFETY: invariant 1: the only owner, and all children are gone.
        let returned = unsafe { ffi::ibv_dealloc_pd(self.0.as_ptr()) };
        if let Err(error) = ffi::verbs_result(returned) {
            tracing::error!(device = self.1.name(), %error, "protection domain leaked");
        }
    }
}

/// A protection domain, as the device contract requires it.
#[derive(Debug)]
pub(super) struct VerbsDomain(Arc<PdGuard>);

impl VerbsDomain {
    pub(super) fn new(pd: Arc<PdGuard>) -> Self {
        Self(pd)
    }

    /// Finds the domain behind a handle.
    pub(super) fn of(pd: &ProtectionDomain) -> Result<&Arc<PdGuard>, ProviderError> {
        let domain = pd.ops().as_any().downcast_ref::<Self>();
        Ok(&domain.ok_or(ProviderError::WrongDevice("protection domain"))?.0)
    }

    fn region(
        &self,
        base: NonNull<u8>,
        len: usize,
        writable: bool,
        memory: Box<dyn Any + Send + Sync>,
        access: Access,
        ordering: u32,
    ) -> Result<MemoryRegion, ProviderError> {
        let flags = access_flags(access, writable) | ordering;
        let mr = MrGuard::register(&self.0, base, len, flags, memory)
            .map_err(|error| limits::registration_refused(len, &error))?;
        let (lkey, rkey) = mr.keys();
        let parts = RegionParts {
            base,
            len,
            lkey,
            rkey,
            access,
            remote_base: base.as_ptr().expose_provenance() as u64,
            domain: self.0.id,
        };
        // SAFETY: `base..+len` is initialised and belongs to `memory`, which the guard keeps until
        // the device has deregistered it; so the region itself need not own any memory.
        Ok(unsafe { MemoryRegion::from_parts(parts, Box::new(mr), Box::new(())) })
    }
}

impl DomainOps for VerbsDomain {
    fn allocate(&self, len_bytes: usize, access: Access) -> Result<MemoryRegion, ProviderError> {
        let pages = Pages::map(len_bytes)
            .map_err(|error| limits::registration_refused(len_bytes, &error))?;
        let relaxed = ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0;
        self.region(pages.base(), len_bytes, true, Box::new(pages), access, relaxed)
    }

    fn register(&self, memory: OwnedMemory, access: Access) -> Result<MemoryRegion, ProviderError> {
        let OwnedParts { base, len, writable, owner } = memory.into_parts(access.remote_write)?;
        if len == 0 {
            // An empty slice has no useful address, and the errors that devices give for it do not
            // help.
            return Err(ProviderError::Unsupported("cannot register 0 bytes of memory"));
        }
        self.region(base, len, writable, owner, access, 0)
    }

    fn window(&self, region: &MemoryRegion) -> Result<MemoryWindow, ProviderError> {
        if !region.access().windows || region.domain() != self.0.id {
            return Err(ProviderError::Unsupported("a memory window of this region"));
        }
        let window = VerbsWindow::allocate(&self.0);
        let window = window.map_err(|error| limits::refused("allocate memory window", &error))?;
        Ok(MemoryWindow::new(region.clone(), window.rkey(), Box::new(window)))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A registration together with the memory that it pins.
pub(super) struct MrGuard {
    raw: NonNull<ffi::ibv_mr>,
    /// Taken on drop.
    memory: Option<Box<dyn Any + Send + Sync>>,
    pd: Arc<PdGuard>,
}

// SAFETY: libibverbs is thread-safe; the pointer is only passed to it.
unsafe impl Send for MrGuard {}
// SAFETY: as above.
unsafe impl Sync for MrGuard {}

impl MrGuard {
    fn register(
        pd: &Arc<PdGuard>,
        base: NonNull<u8>,
        len: usize,
        flags: u32,
        memory: Box<dyn Any + Send + Sync>,
    ) -> io::Result<Self> {
        // Devices refuse to register empty memory; `Pages` is at least one byte long.
        let len = len.max(1);
        let (start, address) = (base.as_ptr().cast(), base.as_ptr().expose_provenance() as u64);
        let raw = without_optional(flags, |flags| {
            // SAFETY: the PD is live; the span is mapped and belongs to `memory`, which outlives
            // the registration (invariant 3). This entry point also takes optional flags, and drops
            // those that the kernel does not know.
            ffi::created(|| unsafe {
                ffi::ibv_reg_mr_iova2(pd.as_ptr(), start, len, address, flags)
            })
        })?;
        Ok(Self { raw, memory: Some(memory), pd: Arc::clone(pd) })
    }

    /// The region.
    pub(super) fn as_ptr(&self) -> *mut ffi::ibv_mr {
        self.raw.as_ptr()
    }

    fn keys(&self) -> (u32, u32) {
        // SAFETY: a live MR, never written after registration.
        let mr = unsafe { self.raw.as_ref() };
        (mr.lkey, mr.rkey)
    }
}

/// Registers with `flags`, and again without the optional ones if a driver refuses them. A lack of
/// memory has another cause.
fn without_optional<T>(
    flags: u32,
    mut register: impl FnMut(u32) -> io::Result<T>,
) -> io::Result<T> {
    let plain = flags & !ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0;
    match register(flags) {
        Err(error) if plain != flags && error.kind() != io::ErrorKind::OutOfMemory => {
            register(plain)
        }
        result => result,
    }
}

/// Local reads are always allowed. REMOTE_WRITE requires LOCAL_WRITE (S58), so it is granted to
/// writable memory only.
pub(super) fn access_flags(access: Access, writable: bool) -> u32 {
    let mut flags = 0;
    if writable {
        flags |= ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
    }
    if access.remote_write {
        flags |= ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
    }
    if access.remote_read {
        flags |= ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
    }
    if access.windows {
        flags |= ibv_access_flags::IBV_ACCESS_MW_BIND.0;
    }
    flags
}

impl Drop for MrGuard {
    fn drop(&mut self) {
        if is_inherited() {
            return;
        }
        let mr = RawMr(self.raw, self.memory.take(), Arc::clone(&self.pd));
        reaper::dispose(move || mr.deregister());
    }
}

struct RawMr(NonNull<ffi::ibv_mr>, Option<Box<dyn Any + Send + Sync>>, Arc<PdGuard>);

// SAFETY: as for `MrGuard`.
unsafe impl Send for RawMr {}

impl RawMr {
    fn deregister(self) {
        // SAFETY: invariant 1: the only owner.
        let returned = unsafe { ffi::ibv_dereg_mr(self.0.as_ptr()) };
        if let Err(error) = ffi::verbs_result(returned) {
            let device = self.2.context().name();
            tracing::error!(device, %error, "memory region leaked, with its memory");
            // Invariant 2: the device may still write there.
            std::mem::forget(self.1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_without_relaxed_ordering_registers_without_it() {
        let relaxed = ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0;
        let plain = access_flags(Access::LOCAL, true);
        assert_eq!(plain & relaxed, 0);
        let tried = |flags: u32, errno: Option<i32>| {
            let mut tried = Vec::new();
            let result = without_optional(flags, |flags| {
                tried.push(flags);
                match errno {
                    Some(errno) if flags & relaxed != 0 => Err(io::Error::from_raw_os_error(errno)),
                    _ => Ok(()),
                }
            });
            (result.is_ok(), tried)
        };
        assert_eq!(tried(plain | relaxed, None), (true, vec![plain | relaxed]));
        assert_eq!(tried(plain | relaxed, Some(22)), (true, vec![plain | relaxed, plain]));
        assert_eq!(tried(plain | relaxed, Some(12)), (false, vec![plain | relaxed]));
        assert_eq!(tried(plain, Some(22)), (true, vec![plain]));
    }
}
