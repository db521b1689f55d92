//! The orderly end of what a channel serves.
//!
//! Invariant: each connection that a server may call on is told, also one that comes up meanwhile: what
//! is served is stopped first, and a new connection is in its place before it looks at that.

use std::sync::Arc;
use std::time::Duration;

use super::Channel;
use super::connection::Connection;
use super::shared::{Shared, Targets};
use super::subchannel::Subchannel;

/// Time between two looks whether calls have ended.
const LOOK: Duration = Duration::from_millis(5);

impl Channel {
    /// Serves no more ([`ChannelBuilder::serve`](crate::ChannelBuilder::serve)): servers are told to start
    /// no calls, as a server that shuts down tells its clients, and those that run are waited for. They
    /// learn of it by [`Context::draining`](crate::Context::draining). A call that a server makes after
    /// that fails with a retryable [`Unavailable`](crate::Code::Unavailable). Calls of the channel itself
    /// go on. To be called before a program ends; it ends early if it is dropped, and the servers have
    /// been told nevertheless.
    ///
    /// Gives whether all calls have ended, and all servers have answered, within `grace`. Those that have
    /// not run on, until the channel is dropped.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # async fn example(channel: rpc_core::Channel) {
    /// if !channel.stop_serving(Duration::from_secs(10)).await {
    ///     eprintln!("a call of the server is cut");
    /// }
    /// drop(channel);
    /// # }
    /// ```
    pub async fn stop_serving(&self, grace: Duration) -> bool {
        let connections = self.shared.stop_serving();
        let ended = async {
            let has_ended = |connection: &Arc<Connection>| {
                let look =
                    connection.shard.look(connection.key, |peer| peer.session.has_no_callers());
                look.unwrap_or(true)
            };
            while !connections.iter().all(has_ended) {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::time::timeout(grace, ended).await.is_ok()
    }
}

impl Shared {
    /// Tells the handlers and the servers. Gives the connections on which servers may have called.
    fn stop_serving(&self) -> Vec<Arc<Connection>> {
        let served = match &self.targets {
            Targets::One(subchannel) => subchannel.served(),
            Targets::Several(balancer) => balancer.served(),
            // It serves nothing of its own.
            Targets::Peer(_) => None,
        };
        let Some(served) = served else { return Vec::new() };
        served.stop();
        // Those of before: who comes after sees that.
        let subchannels = match &self.targets {
            Targets::One(subchannel) => vec![Arc::clone(subchannel)],
            Targets::Several(balancer) => balancer.members().to_vec(),
            Targets::Peer(_) => Vec::new(),
        };
        let connections: Vec<_> = subchannels.iter().flat_map(|it| it.all_connections()).collect();
        connections.iter().for_each(|connection| tell(connection));
        served.tell_handlers();
        connections
    }
}

impl Subchannel {
    /// A connection has come up: what is served may have been stopped before.
    pub(super) fn stop_serving_late(&self) {
        if self.served().is_some_and(|served| served.is_stopped())
            && let Some(connection) = self.connection().as_ref()
        {
            tell(connection);
        }
    }
}

fn tell(connection: &Connection) {
    connection.shard.with(connection.key, |peer| peer.session.go_away());
}
