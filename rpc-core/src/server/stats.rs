//! The numbers of a server, and how they are read.

use super::acceptor::{Acceptor, ServerShard};
use super::allow::Allow;
use crate::endpoint::survey::{Surveyed, collect};
use crate::resolution::Role;
use crate::stats::ServerStats;
use crate::stats::converted::converted;
use crate::stats::handle::ReadStats;

impl ReadStats for Acceptor {
    fn read_stats(&self) -> ServerStats {
        self.read(|_| {}).0
    }

    #[cfg(feature = "macros")]
    fn read_busiest(&self, most: usize) -> (ServerStats, u64) {
        self.read(|found| {
            found.sort_by_key(|it| {
                std::cmp::Reverse(it.stats.messages_in.max(it.stats.messages_out))
            });
            found.truncate(most);
        })
    }
}

impl Acceptor {
    /// The numbers with the connections that `choose` keeps, and how many there are.
    fn read(&self, choose: impl FnOnce(&mut Vec<Surveyed<'_>>)) -> (ServerStats, u64) {
        if !self.is_here() {
            return (ServerStats::default(), 0);
        }
        let shards = self.all_shards();
        let mut found = Vec::new();
        for shard in &shards {
            collect(shard, &mut found);
        }
        let count = found.len() as u64;
        choose(&mut found);
        let methods = self.methods.read();
        let stats = ServerStats {
            converted: converted(Role::Callee, &methods),
            methods,
            connections: found.into_iter().map(Surveyed::with_texts).collect(),
            accepted: self.admissions.accepted.get(),
            refused: self.admissions.refused.get(),
            denied: self.admissions.denied.get(),
            calls_denied: self.config.allow.as_ref().map_or(0, Allow::denied_calls),
            accepted_plain: self.admissions.plain.get(),
            set_ups_failed: self.admissions.failed.get(),
            set_ups: shards.iter().map(ServerShard::set_ups_under_way).sum(),
            is_draining: self.is_draining(),
            overload: self.overload.as_ref().map(|overload| overload.stats()),
            memory_used_bytes: self.memory.used_bytes(),
            memory_limit_bytes: self.memory.limit_bytes(),
            cq_entries: shards.iter().map(|shard| u64::from(shard.cq_capacity())).sum(),
            unflushed: shards.iter().map(|shard| shard.unflushed()).sum(),
        };
        (stats, count)
    }
}
