//! A handle to a CQ for code that does not own it.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// A CQ as set-up sees it: what a provider needs to create a QP on it, without its owner. From
/// [`CompletionQueue::for_setup`](super::CompletionQueue::for_setup).
#[derive(Clone, Default)]
pub struct CqRef(Option<Arc<dyn Any + Send + Sync>>);

impl CqRef {
    /// Wraps what the provider needs.
    #[must_use]
    pub fn new(cq: Arc<dyn Any + Send + Sync>) -> Self {
        Self(Some(cq))
    }

    /// What the provider wrapped; `None` if another provider wrapped it.
    #[must_use]
    pub fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        Arc::clone(self.0.as_ref()?).downcast().ok()
    }
}

impl fmt::Debug for CqRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CqRef")
    }
}
