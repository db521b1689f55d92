//! A region after `fork(2)`, for tests.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use super::{Access, MemoryRegion, RegionInner, RegionParts};
use crate::memory::process::OfProcess;

impl MemoryRegion {
    /// A region as a child of the process that registered it would find it.
    pub(crate) fn inherited(len: usize) -> Self {
        let mut memory = vec![0_u8; len];
        let base = NonNull::from(&mut *memory).cast();
        let access = Access::REMOTE_WRITE;
        let parts = RegionParts { base, len, lkey: 0, rkey: 0, access, remote_base: 0, domain: 0 };
        Self(Arc::new(RegionInner {
            parts,
            charge: OnceLock::new(),
            locked: OnceLock::new(),
            registration: OfProcess::<Box<dyn Any + Send + Sync>>::new(Box::new(())).inherited(),
            _memory: OfProcess::new(Box::new(memory)),
        }))
    }
}
