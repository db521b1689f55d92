//! How many items the streams of a call have moved, for those who ask: interceptors.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::metadata::Metadata;

/// The items of a call's streams that one end has sent and read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ItemCounts {
    /// Items that this end has read.
    pub received: u64,
    /// Their encoded bytes.
    pub received_bytes: u64,
    /// Items that this end has sent.
    pub sent: u64,
    /// Their encoded bytes.
    pub sent_bytes: u64,
}

/// [`ItemCounts`] while the call runs.
#[derive(Debug, Default)]
pub(crate) struct ItemCounters {
    received: AtomicU64,
    received_bytes: AtomicU64,
    sent: AtomicU64,
    sent_bytes: AtomicU64,
    initial: OnceLock<Metadata>,
}

impl ItemCounters {
    pub(crate) fn on_received(&self, bytes: u64) {
        self.received.fetch_add(1, Ordering::Relaxed);
        self.received_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn on_sent(&self, bytes: u64) {
        self.sent.fetch_add(1, Ordering::Relaxed);
        self.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn on_initial(&self, metadata: Metadata) {
        let _ = self.initial.set(metadata);
    }

    /// What came before the items, if it was read.
    pub(crate) fn initial(&self) -> Option<&Metadata> {
        self.initial.get()
    }

    pub(crate) fn counts(&self) -> ItemCounts {
        ItemCounts {
            received: self.received.load(Ordering::Relaxed),
            received_bytes: self.received_bytes.load(Ordering::Relaxed),
            sent: self.sent.load(Ordering::Relaxed),
            sent_bytes: self.sent_bytes.load(Ordering::Relaxed),
        }
    }
}
