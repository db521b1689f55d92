//! Memory windows: keys of a region that are valid on one QP only.
//!
//! Owns the key and what ends it. Never posts the bind.
//!
//! Invariant: the key ends before the registration of its region, which the window holds.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use super::MemoryRegion;
use crate::memory::process::OfProcess;

struct Inner {
    // Field order is drop order: the key ends first.
    grant: OfProcess<Box<dyn Any + Send + Sync>>,
    region: MemoryRegion,
}

/// A memory window (type 2B) of a whole region: a key by which the peer of one QP may write there.
/// The key is useless before [`SendOp::Bind`](crate::device::SendOp::Bind) has taken effect, on any
/// other QP, and after the last handle is gone. Cloning shares the window.
#[derive(Clone)]
pub struct MemoryWindow {
    rkey: u32,
    inner: Arc<Inner>,
}

impl MemoryWindow {
    /// Builds a window from a provider's. Dropping `grant` ends the key.
    pub fn new(region: MemoryRegion, rkey: u32, grant: Box<dyn Any + Send + Sync>) -> Self {
        Self { rkey, inner: Arc::new(Inner { grant: OfProcess::new(grant), region }) }
    }

    /// The same window, said to have another key.
    pub(crate) fn with_key(self, rkey: u32) -> Self {
        Self { rkey, ..self }
    }

    /// Remote key, to advertise to the peer of the QP.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// The region. Its addresses are those of the window.
    #[must_use]
    pub fn region(&self) -> &MemoryRegion {
        &self.inner.region
    }

    /// For providers: to find their own window behind the handle.
    #[must_use]
    pub fn grant(&self) -> &(dyn Any + Send + Sync) {
        &**self.inner.grant
    }
}

impl fmt::Debug for MemoryWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryWindow(rkey {:#x} of {:?})", self.rkey(), self.region())
    }
}
