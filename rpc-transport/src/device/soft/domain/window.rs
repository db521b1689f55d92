//! Memory windows: keys of a region that one QP accepts.
//!
//! Owns what a window is bound to, and its end. The key stands in the table of its domain, as those
//! of regions do.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::device::ProviderError;
use crate::memory::region::{Access, MemoryRegion, MemoryWindow};

use super::{DomainTable, Memory, Registered, Registration};

/// Names a QP in this process; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device::soft) struct QpNumber(u64);

impl QpNumber {
    pub(in crate::device::soft) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// What a window was bound to.
#[derive(Debug)]
pub(in crate::device::soft) struct Bound {
    pub(super) qp: QpNumber,
    /// The word that shows its end to a peer that has mapped the region; `None`: no peer may.
    pub(in crate::device::soft) word: Option<u32>,
    ended: AtomicBool,
}

impl Bound {
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

/// A window of the software device; dropping it ends it.
#[derive(Debug)]
pub(in crate::device::soft) struct SoftWindow {
    table: Arc<DomainTable>,
    memory: Arc<Memory>,
    remote_base: u64,
    rkey: u32,
    bound: OnceLock<Arc<Bound>>,
}

impl SoftWindow {
    /// A window of a region of this domain, not bound yet.
    pub(super) fn of_region(
        table: &Arc<DomainTable>,
        region: &MemoryRegion,
    ) -> Result<MemoryWindow, ProviderError> {
        let registration = region.registration().downcast_ref::<Registration>();
        let registration = registration.ok_or(ProviderError::WrongDevice("memory region"))?;
        if !region.access().windows || region.domain() != table.id() {
            return Err(ProviderError::Unsupported("a memory window of this region"));
        }
        let (memory, remote_base) = (Arc::clone(registration.memory()), region.remote_address(0));
        // Nothing may be done by the key until it is bound.
        let access = Access::LOCAL;
        let unbound = Registered { memory: Arc::clone(&memory), access, remote_base, window: None };
        let rkey = table.add(unbound);
        let (table, bound) = (Arc::clone(table), OnceLock::new());
        let grant = Self { table, memory, remote_base, rkey, bound };
        Ok(MemoryWindow::new(region.clone(), rkey, Box::new(grant)))
    }

    /// Binds it to a QP of its domain. Returns false if it was bound before.
    pub(in crate::device::soft) fn bind(window: &MemoryWindow, qp: QpNumber) -> bool {
        let Some(this) = window.grant().downcast_ref::<Self>() else { return false };
        let word = this.memory.next_window();
        let bound = Arc::new(Bound { qp, word, ended: AtomicBool::new(false) });
        if this.bound.set(Arc::clone(&bound)).is_err() {
            return false;
        }
        let (memory, access) = (Arc::clone(&this.memory), Access::REMOTE_WRITE);
        let remote_base = this.remote_base;
        let window = Some(bound);
        this.table.replace(this.rkey, Registered { memory, access, remote_base, window });
        true
    }
}

impl Drop for SoftWindow {
    fn drop(&mut self) {
        self.table.remove(self.rkey);
        if let Some(bound) = self.bound.get() {
            bound.ended.store(true, Ordering::Release);
            if let Some(word) = bound.word {
                self.memory.show_revoked(word);
            }
        }
    }
}
