//! The numbers of a server, and how they are read.

#[cfg(feature = "macros")]
use std::fmt;

use super::acceptor::{Acceptor, ServedShard};
use crate::endpoint::survey::{Surveyed, look_at};
use crate::observability::stats::ServerStats;
use crate::observability::stats::handle::ReadStats;

/// A [`StatsHandle`](crate::StatsHandle) for what the server itself owns.
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

impl ReadStats for Acceptor {
    fn read_stats(&self) -> ServerStats {
        self.read(|_| {}).0
    }
}

impl Acceptor {
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
