//! The numbers of a channel.

use super::shared::{Retries, Shared, Targets};
use super::subchannel::Subchannel;
use crate::endpoint::survey::survey;
use crate::resolution::Role;
use crate::stats::ChannelStats;
use crate::stats::converted::converted;
#[cfg(feature = "metrics")]
use crate::{client::Channel, stats::MetricsPublisher};

impl Shared {
    pub(super) fn stats(&self) -> ChannelStats {
        if !self.process.is_current() {
            return ChannelStats::default();
        }
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
        let ((members, ejections), resolver) = match &self.targets {
            Targets::Several(balancer) => (balancer.stats(), Some(balancer.resolver_stats())),
            _ => Default::default(),
        };
        let methods = self.counts.methods.read();
        ChannelStats {
            converted: converted(Role::Caller, &methods),
            methods,
            members,
            resolver,
            ejections,
            served: self.counts.served.as_ref().map(|served| served.read()).unwrap_or_default(),
            connections,
            connected: self.counts.connected.get(),
            connect_failures: self.counts.connect_failures.get(),
            waiting_calls: self.demand.waiting_count() as u64,
            retries_throttled: self.retry.as_ref().map_or(0, Retries::throttled),
        }
    }
}

#[cfg(feature = "metrics")]
impl MetricsPublisher {
    /// Publishes the numbers of a channel, and keeps it.
    #[must_use]
    pub fn of_channel(channel: &Channel) -> Self {
        let channel = channel.clone();
        Self::of_channel_stats(move || channel.stats())
    }
}
