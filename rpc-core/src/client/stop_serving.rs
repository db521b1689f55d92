//! The orderly end of what a channel serves.
//!
//! Invariant: each connection that a server may call on is told. What is served is stopped first; a
//! connection looks at that before its hello leaves, and, as that may have been too early, once more when
//! it has been in its place.

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
    /// go on. To be called before a program ends.
    ///
    /// Servers are told when the future is first polled; if it is dropped after that, they have been told
    /// nevertheless. It concerns all clones of the channel, servers that a resolver names no longer while
    /// calls run there, and connections that come up later: they tell their servers at once.
    ///
    /// Gives whether all calls have ended, and all servers have answered, within `grace`, on the
    /// connections that were up. Calls that have not ended run on, until the channel is dropped. On a channel
    /// that serves nothing, as that of [`ConnectionHandle::channel`](crate::ConnectionHandle::channel), it
    /// does nothing and gives true.
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
        let connections = self.demand.serving.all();
        connections.iter().for_each(|connection| tell(connection));
        served.tell_handlers();
        connections
    }
}

impl Subchannel {
    /// A connection has come up: what is served may have been stopped while it did. Its server may be
    /// going away already, so that it is the current one no more.
    pub(super) fn stop_serving_late(&self, connection: &Connection) {
        if self.served().is_some_and(|served| served.is_stopped()) {
            tell(connection);
        }
    }
}

fn tell(connection: &Connection) {
    connection.shard.with(connection.key, |peer| peer.session.go_away());
}

#[cfg(test)]
mod tests {
    use rpc_transport::connect::address::Address;

    use super::*;
    use crate::channel::connectivity::ConnectivityState;
    use crate::client::connection::{Owner, connect};
    use crate::client::resolve::StaticList;
    use crate::server::Server;

    /// A server that went away as soon as its connection was up was never told, and could call on.
    #[tokio::test]
    async fn a_connection_whose_server_goes_away_meanwhile_is_told_late() {
        let server = Server::builder().bind("mem://stop-serving-late").await.unwrap();
        tokio::spawn(server.serve());
        let channel = Channel::builder().serve_with(Server::builder());
        let channel = channel.connect("mem://stop-serving-late").await.unwrap();
        let Targets::One(subchannel) = &channel.shared.targets else { panic!("it has one") };
        let connection = subchannel.connection().clone().expect("it is up");
        // What `stop_serving` does when it finds no connection.
        subchannel.served().expect("it serves").stop();
        Owner::on_lost(&**subchannel, connection.epoch, None);
        assert!(subchannel.connection().is_none());
        assert!(!is_told(&connection));
        subchannel.stop_serving_late(&connection);
        assert!(is_told(&connection));
    }

    /// A connection that came up later took calls until it was in its place.
    #[tokio::test]
    async fn a_later_connection_says_so_from_its_first_frames() {
        let server = Server::builder().bind("mem://stop-serving-first").await.unwrap();
        tokio::spawn(server.serve());
        let channel = Channel::builder().serve_with(Server::builder());
        let channel = channel.connect_lazy("mem://stop-serving-first").unwrap();
        assert!(channel.stop_serving(Duration::ZERO).await);
        let Targets::One(subchannel) = &channel.shared.targets else { panic!("it has one") };
        let (target, owner) = (&subchannel.target, Arc::<Subchannel>::downgrade(subchannel));
        // Nobody has put it in its place.
        assert!(is_told(&connect(&subchannel.options, target, 1, owner).await.unwrap()));
    }

    /// A server that the resolver named no longer was not told, and could call while a call ran on it.
    #[tokio::test]
    async fn a_server_that_the_resolver_names_no_longer_is_told() {
        let server = Server::builder().bind("mem://stop-serving-parted").await.unwrap();
        tokio::spawn(server.serve());
        let channel = Channel::builder().serve_with(Server::builder());
        let servers = StaticList::new(["mem://stop-serving-parted"]).unwrap();
        let channel = channel.connect_balanced(servers).unwrap();
        let Targets::Several(balancer) = &channel.shared.targets else { panic!("it has a name") };
        let mut state = channel.state();
        balancer.kick();
        while state != ConnectivityState::Ready {
            state = channel.state_changed(state).await;
        }
        // As a call that runs on it does.
        let connection = balancer.pick().expect("it is up");
        let elsewhere: Address = "mem://stop-serving-elsewhere".parse().unwrap();
        balancer.on_answer(Ok(vec![elsewhere]));
        assert!(balancer.pick().is_none(), "calls go elsewhere");
        assert!(channel.stop_serving(Duration::MAX).await, "nobody has called");
        assert!(is_told(&connection));
        drop(connection);
        assert!(channel.shared.demand.serving.all().is_empty(), "it is over");
    }

    /// Of two servers that went away one after the other, while calls ran on both, only the last was told.
    #[tokio::test]
    async fn servers_that_go_away_one_after_the_other_are_all_told() {
        let server = Server::builder().bind("mem://stop-serving-retired").await.unwrap();
        tokio::spawn(server.serve());
        let channel = Channel::builder().serve_with(Server::builder());
        let channel = channel.connect_lazy("mem://stop-serving-retired").unwrap();
        let Targets::One(subchannel) = &channel.shared.targets else { panic!("it has one") };
        let mut held = Vec::new();
        for _ in 0..3 {
            // Kept, as by a call that runs on it.
            let connection = Arc::clone(&channel.shared).acquire(true, None).await.unwrap();
            Owner::on_lost(&**subchannel, connection.epoch, None);
            held.push(connection);
        }
        assert!(channel.stop_serving(Duration::MAX).await, "nobody has called");
        let told: Vec<bool> = held.iter().map(|connection| is_told(connection)).collect();
        assert_eq!(told, [true; 3]);
        drop(held);
        let _next = Arc::clone(&channel.shared).acquire(true, None).await.unwrap();
        // It, and the last before it, which is kept.
        assert!(channel.shared.demand.serving.len() <= 2, "those that are over leave the list");
    }

    /// A connection that came up while the resolver dropped its end point was not told, if a call took it.
    #[tokio::test]
    async fn a_server_that_is_dropped_while_its_connection_comes_up_is_told() {
        let server = Server::builder().bind("mem://stop-serving-dropped").await.unwrap();
        tokio::spawn(server.serve());
        let channel = Channel::builder().serve_with(Server::builder());
        let servers = StaticList::new(["mem://stop-serving-dropped"]).unwrap();
        let channel = channel.connect_balanced(servers).unwrap();
        let Targets::Several(balancer) = &channel.shared.targets else { panic!("it has a name") };
        let named: Address = "mem://stop-serving-dropped".parse().unwrap();
        balancer.on_answer(Ok(vec![named]));
        // As who connects holds it.
        let member = Arc::clone(&balancer.members()[0]);
        balancer.on_answer(Ok(vec!["mem://stop-serving-elsewhere".parse().unwrap()]));
        member.connect_now().await.unwrap();
        let connection = member.connection().clone().expect("it is up");
        assert!(channel.stop_serving(Duration::MAX).await, "nobody has called");
        assert!(is_told(&connection));
    }

    fn is_told(connection: &Connection) -> bool {
        let said = connection.shard.look(connection.key, |peer| peer.session.has_said_go_away());
        said.expect("it is up")
    }
}
