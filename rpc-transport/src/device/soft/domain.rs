//! Protection domains of the software device: which memory a key names, and whether it is still
//! registered.
//!
//! Owns registration and the checks of remote accesses. Never copies payload.
//!
//! Invariants:
//! 1. An rkey is even and an lkey odd, so they differ; both are unique among live regions.
//! 2. A [`Memory`] outlives every handle of its region and every access that an engine has begun:
//!    both hold its `Arc`.
//! 3. After deregistration no access begins: the key is gone from the table, [`Memory::is_live`] is
//!    false, and a peer that has mapped the region sees [`Memory::revoked`].
#![allow(unsafe_code, reason = "hands out the addresses of registered memory")]

mod window;

use std::any::Any;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::device::ProviderError;
use crate::lock::Mutex;
use crate::memory::owned::{OwnedMemory, OwnedParts};
use crate::memory::region::{
    Access, DomainOps, MemoryRegion, MemoryWindow, ProtectionDomain, RegionParts,
};

use self::window::Bound;
pub(super) use self::window::{QpNumber, SoftWindow};
use super::mapping::{self, Mapping, page_bytes};

/// The bytes of a region, as the engines access them.
pub(super) struct Memory {
    base: NonNull<u8>,
    len: usize,
    live: AtomicBool,
    /// Windows made so far.
    windows: AtomicU32,
    /// The memory file, if a peer on this machine may map it.
    file: Option<OwnedFd>,
    /// Keeps `base` valid.
    _backing: Backing,
}

#[derive(Debug)]
enum Backing {
    Mapped { _mapping: Mapping },
    Owned { _owner: Box<dyn Any + Send + Sync> },
}

// SAFETY: `base` points into `_backing`, which is Send + Sync; access goes through raw pointers,
// by atomic copies where peers may write (module doc of `memory`, invariants 1 and 2).
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// First byte.
    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Length, bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether the region is still registered.
    pub(super) fn is_live(&self) -> bool {
        self.live.load(Ordering::Acquire)
    }

    /// The memory file and its size, if a peer may map it. The file has one page more than the
    /// region. The first word of that page shows a peer that has mapped the file whether the region
    /// was deregistered, each further word whether a window of it has ended.
    pub(super) fn file(&self) -> Option<(BorrowedFd<'_>, usize)> {
        let file = self.file.as_ref()?.as_fd();
        Some((file, self.revoked_offset() + page_bytes()))
    }

    fn revoked_offset(&self) -> usize {
        revoked_offset(self.len)
    }

    /// The number of another window; `None` if there are more than words to revoke them with.
    pub(super) fn next_window(&self) -> Option<u32> {
        let number = self.windows.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        ((number as usize) < revoked_words()).then_some(number)
    }

    fn revoke(&self) {
        self.live.store(false, Ordering::Release);
        self.show_revoked(0);
    }

    /// Shows peers that have mapped the file that the region (0), or a window of it, has ended.
    pub(super) fn show_revoked(&self, number: u32) {
        debug_assert!((number as usize) < revoked_words());
        if self.file.is_some() {
            let offset = self.revoked_offset() + number as usize * size_of::<AtomicU32>();
            // SAFETY: a memory file is mapped with one page behind the region's pages.
            let word = unsafe { self.base.add(offset) }.cast::<AtomicU32>();
            // SAFETY: aligned, mapped while `self` lives, only accessed atomically.
            unsafe { word.as_ref() }.store(1, Ordering::SeqCst);
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} bytes, live {})", self.len, self.is_live())
    }
}

/// Offset, in the memory file of a region of `len` bytes, of the word that says that the region was
/// deregistered.
pub(super) fn revoked_offset(len: usize) -> usize {
    len.max(1).next_multiple_of(page_bytes())
}

/// Words behind a region: for itself, and for its windows.
pub(super) fn revoked_words() -> usize {
    page_bytes() / size_of::<AtomicU32>()
}

/// A region that peers may access by its rkey, or a window of one.
#[derive(Debug, Clone)]
pub(super) struct Registered {
    pub(super) memory: Arc<Memory>,
    pub(super) access: Access,
    /// `Some`: the key of a window that is bound.
    pub(super) window: Option<Arc<Bound>>,
    pub(super) remote_base: u64,
}

/// A protection domain of the software device.
#[derive(Debug)]
pub(super) struct SoftDomain {
    shared: Arc<DomainTable>,
}

/// The part of a domain that its QPs and regions share.
#[derive(Debug)]
pub(super) struct DomainTable {
    id: u64,
    regions: Mutex<HashMap<u32, Registered>>,
}

impl SoftDomain {
    /// Allocates a domain.
    pub(super) fn allocate() -> ProtectionDomain {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::new(DomainTable { id, regions: Mutex::default() });
        ProtectionDomain::new(Arc::new(Self { shared }))
    }

    /// Finds the software domain behind a handle.
    pub(super) fn of(pd: &ProtectionDomain) -> Result<Arc<DomainTable>, ProviderError> {
        let domain = pd.ops().as_any().downcast_ref::<Self>();
        let domain = domain.ok_or(ProviderError::WrongDevice("protection domain"))?;
        Ok(Arc::clone(&domain.shared))
    }
}

impl Registered {
    /// Whether the key is still valid.
    pub(super) fn is_live(&self) -> bool {
        self.memory.is_live() && !self.window.as_ref().is_some_and(|bound| bound.has_ended())
    }
}

impl DomainTable {
    /// Identity, unique in this process.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Finds the region of an rkey, if it covers `address..address+len` and allows the access.
    pub(super) fn resolve(
        &self,
        rkey: u32,
        address: u64,
        len: u64,
        write: bool,
        qp: QpNumber,
    ) -> Option<(Registered, usize)> {
        let region = self.regions.lock().get(&rkey)?.clone();
        if region.window.as_ref().is_some_and(|bound| bound.qp != qp) {
            return None;
        }
        let allowed = if write { region.access.remote_write } else { region.access.remote_read };
        let offset = address.checked_sub(region.remote_base)?;
        let end = offset.checked_add(len)?;
        if !allowed || end > region.memory.len() as u64 {
            return None;
        }
        let offset = usize::try_from(offset).ok()?;
        Some((region, offset))
    }

    /// Adds a window under a key of its own.
    pub(super) fn add(&self, window: Registered) -> u32 {
        let mut regions = self.regions.lock();
        let rkey = fresh_key(next_number(), |key| regions.contains_key(&key));
        regions.insert(rkey, window);
        rkey
    }

    /// Changes what a window allows.
    pub(super) fn replace(&self, rkey: u32, window: Registered) {
        self.regions.lock().insert(rkey, window);
    }

    /// Takes a key away: no access begins by it any more.
    pub(super) fn remove(&self, rkey: u32) {
        self.regions.lock().remove(&rkey);
    }

    fn insert(self: &Arc<Self>, memory: Memory, access: Access) -> MemoryRegion {
        let memory = Arc::new(memory);
        let number = next_number();
        let remote_base = u64::from(number) << 36;
        let rkey = {
            let mut regions = self.regions.lock();
            let rkey = fresh_key(number, |key| regions.contains_key(&key));
            if access.is_remote() {
                let memory = Arc::clone(&memory);
                regions.insert(rkey, Registered { memory, access, remote_base, window: None });
            }
            rkey
        };
        let registration =
            Registration { table: Arc::clone(self), rkey, memory: Arc::clone(&memory) };
        let parts = RegionParts {
            base: memory.base,
            len: memory.len,
            lkey: number << 1 | 1,
            rkey,
            access,
            remote_base,
            domain: self.id,
        };
        // SAFETY: `memory` keeps base..+len valid and initialised (zeroed mappings, or memory that
        // its owner vouched for); dropping `registration` removes the key, so that engines begin no
        // further access.
        unsafe { MemoryRegion::from_parts(parts, Box::new(registration), Box::new(memory)) }
    }
}

/// A registered region; dropping it deregisters.
#[derive(Debug)]
pub(super) struct Registration {
    table: Arc<DomainTable>,
    rkey: u32,
    memory: Arc<Memory>,
}

impl Registration {
    /// The bytes.
    pub(super) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.table.remove(self.rkey);
        self.memory.revoke();
    }
}

impl DomainOps for SoftDomain {
    fn allocate(&self, len_bytes: usize, access: Access) -> Result<MemoryRegion, ProviderError> {
        let memory =
            allocate(len_bytes, access.is_remote()).map_err(|error| ProviderError::Resources {
                what: "allocating registered memory",
                message: format!("{len_bytes} bytes: {error}"),
            })?;
        Ok(self.shared.insert(memory, access))
    }

    fn register(&self, memory: OwnedMemory, access: Access) -> Result<MemoryRegion, ProviderError> {
        let OwnedParts { base, len, owner, .. } = memory.into_parts(access.remote_write)?;
        let memory = Memory {
            base,
            len,
            live: AtomicBool::new(true),
            windows: AtomicU32::new(0),
            file: None,
            _backing: Backing::Owned { _owner: owner },
        };
        Ok(self.shared.insert(memory, access))
    }

    fn window(&self, region: &MemoryRegion) -> Result<MemoryWindow, ProviderError> {
        SoftWindow::of_region(&self.shared, region)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Allocates a region. Memory that peers may access lies in a memory file, so that a peer on this
/// machine can map it. If no file can be created (no file descriptor is left, or the system
/// refuses) the memory is allocated without one, and such a peer writes through the engine.
fn allocate(len: usize, remote: bool) -> io::Result<Memory> {
    // Miri does not support memory files.
    if remote && !cfg!(miri) {
        let pages = mapping::whole_pages(len)?;
        let file_bytes = pages.checked_add(page_bytes()).ok_or(io::ErrorKind::OutOfMemory)?;
        if let Ok((file, mapping)) = mapping::create_shared("rpc-region", file_bytes, false) {
            return Ok(mapped(mapping, len, Some(file)));
        }
    }
    Ok(mapped(Mapping::anonymous(len)?, len, None))
}

fn mapped(mapping: Mapping, len: usize, file: Option<OwnedFd>) -> Memory {
    Memory {
        base: mapping.base(),
        len,
        live: AtomicBool::new(true),
        windows: AtomicU32::new(0),
        file,
        _backing: Backing::Mapped { _mapping: mapping },
    }
}

fn next_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed) & 0x0fff_ffff
}

/// An even key that a peer cannot guess from another one (required by RFC 5042 section 8.1.1).
fn fresh_key(number: u32, taken: impl Fn(u32) -> bool) -> u32 {
    static SECRET: OnceLock<RandomState> = OnceLock::new();
    let secret = SECRET.get_or_init(RandomState::new);
    let mut attempt = u64::from(number);
    loop {
        #[allow(clippy::cast_possible_truncation, reason = "32 bits of the hash are wanted")]
        let key = secret.hash_one(attempt) as u32 & !1;
        if key != 0 && !taken(key) {
            return key;
        }
        attempt += 1 << 32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(pd: &ProtectionDomain) -> Arc<DomainTable> {
        SoftDomain::of(pd).unwrap()
    }

    #[test]
    fn only_what_a_region_covers_and_allows_resolves() {
        let pd = SoftDomain::allocate();
        let table = table(&pd);
        let qp = QpNumber::next();
        let region = pd.allocate(100, Access::REMOTE_WRITE).unwrap();
        let at = |offset| region.remote_address(offset);
        let resolve = |address, len, write| table.resolve(region.rkey(), address, len, write, qp);
        assert_eq!(resolve(at(0), 100, true).unwrap().1, 0);
        assert_eq!(resolve(at(99), 1, true).unwrap().1, 99);
        assert_eq!(resolve(at(100), 0, true).unwrap().1, 100);
        assert!(resolve(at(0), 1, false).is_none(), "reads are not allowed");
        assert!(resolve(at(0), 101, true).is_none());
        assert!(resolve(at(100), 1, true).is_none());
        assert!(resolve(at(0).wrapping_sub(1), 1, true).is_none());
        assert!(resolve(u64::MAX, 2, true).is_none());
        assert!(resolve(at(1), u64::MAX, true).is_none());
        assert!(table.resolve(region.lkey(), at(0), 1, true, qp).is_none());
        let local = pd.allocate(100, Access::LOCAL).unwrap();
        assert!(table.resolve(local.rkey(), local.remote_address(0), 1, true, qp).is_none());
    }

    #[test]
    fn deregistration_spares_an_access_already_begun() {
        let pd = SoftDomain::allocate();
        let table = table(&pd);
        let qp = QpNumber::next();
        let region = pd.register(vec![3; 10], Access::REMOTE_WRITE).unwrap();
        let (rkey, address) = (region.rkey(), region.remote_address(0));
        let (begun, _) = table.resolve(rkey, address, 10, true, qp).unwrap();
        drop(region);
        assert!(table.resolve(rkey, address, 10, true, qp).is_none());
        assert!(!begun.memory.is_live());
        // SAFETY: `begun` keeps the memory alive, nobody else accesses it.
        assert_eq!(unsafe { begun.memory.base().read() }, 3);
    }
}
