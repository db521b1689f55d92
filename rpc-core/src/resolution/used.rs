//! How often plans are used: whether a peer with other types is still there.
//!
//! The numbers are those of the process, which its servers and channels share, as they share the
//! plans. A plan that is gone takes its numbers along.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rpc_schema::hash::signature_hash;
use rpc_transport::engine::clock;

use super::{Role, cache};

/// The start of the times below.
static BASE: LazyLock<Instant> = LazyLock::new(clock::now);

/// The uses of a plan.
#[derive(Debug, Default)]
pub(super) struct Used {
    /// Hashes of the schemas of this end and of the peer.
    hashes: (u64, u64),
    messages: AtomicU64,
    /// The time of the last one, milliseconds.
    last: AtomicU64,
}

impl Used {
    pub(super) fn between(own: &str, peers: &str) -> Self {
        let used = Self { hashes: (signature_hash(own), signature_hash(peers)), ..Self::default() };
        used.last.store(millis(), Ordering::Relaxed);
        used
    }

    pub(super) fn count(&self) {
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.last.store(millis(), Ordering::Relaxed);
    }
}

fn millis() -> u64 {
    let base = *BASE;
    u64::try_from(clock::now().saturating_duration_since(base).as_millis()).unwrap_or(u64::MAX)
}

/// How often one plan was used.
pub(crate) struct Uses {
    /// The number of the method in this process.
    pub(crate) method: u32,
    /// Hashes of the schemas of this end and of the peer.
    pub(crate) hashes: (u64, u64),
    pub(crate) messages: u64,
    /// Since the last one.
    pub(crate) idle: Duration,
}

/// How often the plans of a role were used.
pub(crate) fn uses(role: Role) -> impl Iterator<Item = Uses> {
    let now = millis();
    cache::all(role).into_iter().map(move |(method, resolution)| {
        let Used { hashes, messages, last } = &resolution.used;
        Uses {
            method,
            hashes: *hashes,
            messages: messages.load(Ordering::Relaxed),
            idle: Duration::from_millis(now.saturating_sub(last.load(Ordering::Relaxed))),
        }
    })
}
