//! The numbers of a channel.

use std::sync::Arc;

use super::shared::{Shared, Targets};
use super::subchannel::Subchannel;
use crate::observability::stats::ChannelStats;
use crate::observability::stats::counts::{Counter, End, Methods};
use crate::server::stats::survey;
use crate::service::MethodDescriptor;
use crate::status::Code;

/// What is counted of a channel, over all of its connections.
#[derive(Debug, Default)]
pub(crate) struct ChannelCounts {
    pub(super) methods: Arc<Methods>,
    /// Written from any thread.
    pub(super) connected: Counter,
    pub(super) connect_failures: Counter,
    /// Calls of the peers.
    pub(super) served: Option<Arc<Methods>>,
}

impl ChannelCounts {
    /// A call has ended that no connection has taken.
    #[cold]
    pub(crate) fn on_unsent(&self, method: &'static MethodDescriptor, code: Code) {
        let method = self.methods.method(Some(method));
        method.shared.on_shared_start();
        method.shared.on_shared_end(End::Code(code), 0);
    }
}

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
