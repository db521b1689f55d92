//! How often plans are used: whether a peer with other types is still there.
//!
//! The numbers are those of the process, which its servers and channels share, as they share the
//! plans. A plan that is gone takes its numbers along.

use std::collections::HashSet;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rpc_schema::hash::signature_hash;
use rpc_transport::engine::clock;

use super::{Role, cache};
use crate::method::method_in_use;
use crate::stats::{ConvertedStats, MethodStats};

/// Most entries in one report: those used last.
const MAX_REPORTED: usize = 64;

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

/// The messages that this process converts as a server, of these methods.
pub(crate) fn converted_by_callee(of: &[MethodStats]) -> Vec<ConvertedStats> {
    converted(Role::Callee, of)
}

/// The messages that this process converts as a client, of these methods.
pub(crate) fn converted_by_caller(of: &[MethodStats]) -> Vec<ConvertedStats> {
    converted(Role::Caller, of)
}

fn converted(role: Role, of: &[MethodStats]) -> Vec<ConvertedStats> {
    let now = millis();
    let names: HashSet<&str> = of.iter().map(|stats| stats.name).collect();
    let mut found = Vec::new();
    for (method, resolution) in cache::all(role) {
        let Some(method) = method_in_use(method) else { continue };
        if !names.contains(method.name) {
            continue;
        }
        let Used { hashes: (own, peers), messages, last } = &resolution.used;
        let idle = Duration::from_millis(now.saturating_sub(last.load(Ordering::Relaxed)));
        found.push(ConvertedStats {
            method: method.name.to_owned(),
            own_schema: format!("{own:016x}"),
            peer_schema: format!("{peers:016x}"),
            messages: messages.load(Ordering::Relaxed),
            idle,
        });
    }
    found.sort_by(|a, b| (a.idle, &a.method).cmp(&(b.idle, &b.method)));
    found.truncate(MAX_REPORTED);
    found
}
