//! The numbers of a channel.

use super::shared::{Shared, Targets};
use super::subchannel::Subchannel;
use crate::observability::stats::ChannelStats;
use crate::server::stats::survey;

impl Shared {
    pub(super) fn stats(&self) -> ChannelStats {
        let mut connections = Vec::new();
        let mut add = |subchannel: &Subchannel| {
            if let Some(connection) = subchannel.connection().as_ref() {
                survey(&connection.shard, &mut connections);
            }
        };
        match &self.targets {
            Targets::One(subchannel) => add(subchannel),
            Targets::Several(balancer) => balancer.members().iter().for_each(|it| add(it)),
            // On its shard are those of others, too.
            Targets::Peer(_) => {}
        }
        ChannelStats {
            methods: self.counts.methods.read(),
            served: self.counts.served.as_ref().map(|served| served.read()).unwrap_or_default(),
            connections,
            connected: self.counts.connected.get(),
            connect_failures: self.counts.connect_failures.get(),
            waiting_calls: self.demand.waiting_count() as u64,
        }
    }
}
