//! Room in the CQ that completions of destroyed QPs may still take.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::VerbsCompletionQueue;

/// Entries that completions of a destroyed QP may still occupy.
pub(super) struct Retired {
    pub(super) destroyed: Arc<AtomicBool>,
    /// Whether it was already destroyed when the CQ was last seen empty. If so, the next time that
    /// the CQ is seen empty it holds no completion of this QP.
    pub(super) was_destroyed: bool,
    pub(super) reserved: u32,
}

impl VerbsCompletionQueue {
    /// The CQ was seen empty: it holds no completion of QPs that were destroyed before.
    pub(super) fn release_retired(&mut self) {
        if self.retired.is_empty() {
            return;
        }
        let reserved = &mut self.reserved;
        self.retired.retain_mut(|retired| {
            let gone = retired.was_destroyed;
            retired.was_destroyed = retired.destroyed.load(Ordering::Acquire);
            if gone {
                *reserved -= retired.reserved;
            }
            !gone
        });
    }
}
