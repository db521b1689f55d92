//! The numbers of a server, and a handle to read them while it serves.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use rpc_transport::device::PeerIdentity;
use rpc_transport::engine::clock;

use super::acceptor::{Acceptor, ServedShard};
use crate::endpoint::RpcShard;
use crate::observability::stats::{ConnectionStats, ServerStats};

/// Places of a shard's table that are looked at while its lock is held: a snapshot of many connections
/// holds nobody up for longer than that takes.
const AT_ONCE: usize = 16;

/// Reads the numbers of a server, from anywhere, also while it serves and after that.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = rpc_core::Server::builder().bind("mem://stats-handle").await?;
/// let handle = server.stats_handle();
/// tokio::spawn(server.serve());
/// println!("{} connections", handle.stats().connections.len());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct StatsHandle(pub(super) Arc<Acceptor>);

impl StatsHandle {
    /// A snapshot. It takes a few hundred nanoseconds for each connection, and the lock of a shard
    /// for sixteen of them at a time.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        self.0.stats()
    }
}

/// The same for what the server itself owns.
#[cfg(feature = "macros")]
#[derive(Clone)]
pub(crate) struct WeakStatsHandle(pub(super) std::sync::Weak<Acceptor>);

#[cfg(feature = "macros")]
impl WeakStatsHandle {
    /// A snapshot with at most so many connections, those with the most messages, and how many there
    /// are; as long as there is a server.
    pub(crate) fn busiest(&self, most: usize) -> Option<(ServerStats, u64)> {
        let read = self.0.upgrade()?.read(|found| {
            found.sort_by_key(|it| {
                std::cmp::Reverse(it.stats.messages_in.max(it.stats.messages_out))
            });
            found.truncate(most);
        });
        Some(read)
    }
}

#[cfg(feature = "macros")]
impl fmt::Debug for WeakStatsHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakStatsHandle")
    }
}

impl fmt::Debug for StatsHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatsHandle").finish_non_exhaustive()
    }
}

impl Acceptor {
    pub(super) fn stats(&self) -> ServerStats {
        self.read(|_| {}).0
    }

    /// The numbers with the connections that `choose` keeps, and how many there are.
    fn read(&self, choose: impl FnOnce(&mut Vec<Surveyed<'_>>)) -> (ServerStats, u64) {
        let shards = self.all_shards();
        let mut found = Vec::new();
        for shard in &shards {
            look_at(shard, &mut found);
        }
        let count = found.len() as u64;
        choose(&mut found);
        let stats = ServerStats {
            methods: self.methods.read(),
            connections: found.into_iter().map(Surveyed::with_texts).collect(),
            accepted: self.admissions.accepted.get(),
            refused: self.admissions.refused.get(),
            set_ups_failed: self.admissions.failed.get(),
            set_ups: shards.iter().map(ServedShard::set_ups_under_way).sum(),
            is_draining: self.is_draining(),
            memory_used_bytes: self.memory.used_bytes(),
            memory_limit_bytes: self.memory.limit_bytes(),
            cq_entries: shards.iter().map(|shard| u64::from(shard.cq_capacity())).sum(),
            unflushed: shards.iter().map(|shard| shard.unflushed()).sum(),
        };
        (stats, count)
    }
}

/// A connection without its texts: of many, only those are made that are shown.
struct Surveyed<'s> {
    peer: Arc<PeerIdentity>,
    device: &'s str,
    since: Instant,
    stats: ConnectionStats,
}

impl Surveyed<'_> {
    fn with_texts(self) -> ConnectionStats {
        ConnectionStats {
            peer: format!("{:?}", self.peer),
            device: self.device.to_owned(),
            age: clock::now().saturating_duration_since(self.since),
            ..self.stats
        }
    }
}

/// Appends the connections of a shard.
pub(crate) fn survey(shard: &RpcShard, into: &mut Vec<ConnectionStats>) {
    let mut found = Vec::new();
    look_at(shard, &mut found);
    into.extend(found.into_iter().map(Surveyed::with_texts));
}

fn look_at<'s>(shard: &'s RpcShard, into: &mut Vec<Surveyed<'s>>) {
    let device = shard.device().attributes().name.as_str();
    let mut from = Some(0);
    while let Some(at) = from {
        // Memory is taken when the lock has been let go.
        into.reserve(AT_ONCE);
        from = shard.survey(at, AT_ONCE, |endpoint, survey| {
            if let Some(since) = endpoint.established() {
                let (peer, stats) = (Arc::clone(endpoint.identity()), endpoint.stats(survey));
                into.push(Surveyed { peer, device, since, stats });
            }
        });
    }
}
