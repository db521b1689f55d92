//! The orderly end of what a channel serves.
//!
//! Invariant: each connection that a server may call on says go-away. What is served is stopped
//! first; a connection looks at that before its hello leaves, and, as that may have been too early,
//! once more when it has been in its place.

use std::sync::Arc;
use std::time::Duration;

use rpc_transport::engine::clock;

use super::Channel;
use super::connection::Connection;
use super::shared::{Shared, Targets};
use super::subchannel::Subchannel;

/// Time between two looks whether calls have ended.
const LOOK: Duration = Duration::from_millis(5);

impl Channel {
    /// Stops serving ([`ChannelBuilder::serve`](crate::ChannelBuilder::serve)): sends go-away to
    /// the servers, as a server that shuts down does to its clients, and waits for running calls.
    /// Their handlers learn of it by [`Context::draining`](crate::Context::draining). A call that a
    /// server makes after that fails with a retryable [`Unavailable`](crate::Code::Unavailable).
    /// Calls of the channel itself go on. Call it before a program ends.
    ///
    /// Go-away is sent when the future is first polled, and holds even if the future is dropped
    /// after that. It concerns all clones of the channel, servers that a resolver no longer names
    /// while calls run there, and connections that come up later.
    ///
    /// Gives whether all calls have ended, and all servers have answered, within `grace`, on the
    /// connections that were up. Calls that have not ended run on, until the channel is dropped. On
    /// a channel that serves nothing, as that of
    /// [`ConnectionHandle::channel`](crate::client::ConnectionHandle::channel), it does nothing and
    /// gives true.
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
        if !self.shared.process.is_current() {
            return true;
        }
        let connections = self.shared.stop_serving();
        let until = clock::now().checked_add(grace);
        let ended = async {
            let has_ended = |connection: &Arc<Connection>| {
                let look =
                    connection.shard.look(connection.key, |peer| peer.session.has_no_callers());
                look.unwrap_or(true)
            };
            while !connections.iter().all(has_ended) {
                self.shared.sleep_until(clock::now() + LOOK).await;
            }
        };
        let late = async {
            match until {
                Some(until) => self.shared.sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = ended => true,
            () = late => false,
        }
    }
}

impl Shared {
    /// Notifies the handlers and the servers. Returns the connections on which servers may have
    /// called.
    fn stop_serving(&self) -> Vec<Arc<Connection>> {
        let served = match &self.targets {
            Targets::One(subchannel) => subchannel.served(),
            Targets::Several(balancer) => balancer.served(),
            // It serves nothing of its own.
            Targets::Peer(_) => None,
        };
        let Some(served) = served else { return Vec::new() };
        served.stop();
        // The connections of before. A later one sees that the services are stopped.
        let connections = self.demand.serving.all();
        connections.iter().for_each(|connection| tell(connection));
        served.tell_handlers();
        connections
    }
}

impl Subchannel {
    /// A connection has come up: what is served may have been stopped while it did. Its server may
    /// be going away already, so that it is the current one no more.
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
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::channel::connectivity::ConnectivityState;
    use crate::client::balancer::Balancer;
    use crate::client::connection::{Owner, connect};
    use crate::client::resolve::{Resolve, ResolveError, Resolving, StaticList};
    use crate::server::Server;

    /// A regression: a server that went away as soon as its connection was up got no go-away, and
    /// went on calling.
    #[tokio::test]
    async fn a_connection_going_away_is_notified_late() {
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
    async fn a_later_connection_announces_it_at_once() {
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

    /// A regression: a server that the resolver no longer named got no go-away, and could call
    /// while a call ran on it.
    #[tokio::test(start_paused = true)]
    async fn a_server_no_longer_resolved_is_notified() {
        let server = Server::builder().bind("mem://stop-serving-parted").await.unwrap();
        tokio::spawn(server.serve());
        let channel = Channel::builder().serve_with(Server::builder());
        let servers =
            Once(StaticList::new(["mem://stop-serving-parted"]).unwrap(), AtomicBool::new(false));
        let channel = channel.connect_balanced(servers).unwrap();
        let Targets::Several(balancer) = &channel.shared.targets else { panic!("it has a name") };
        let mut state = channel.state();
        balancer.kick();
        while state != ConnectivityState::Ready {
            state = channel.state_changed(state).await;
        }
        // As a call that runs on it does.
        let connection = balancer.pick(None).expect("it is up");
        resolves_to(balancer, "mem://stop-serving-elsewhere").await;
        assert!(balancer.pick(None).is_none(), "calls go elsewhere");
        assert!(channel.stop_serving(Duration::MAX).await, "nobody has called");
        assert!(is_told(&connection));
        drop(connection);
        assert!(channel.shared.demand.serving.all().is_empty(), "it is over");
    }

    /// A regression: of two servers that went away one after the other, while calls ran on both,
    /// only the last got a go-away.
    #[tokio::test]
    async fn all_departing_servers_are_notified() {
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

    /// A regression: a connection that came up while the resolver dropped its end point said no
    /// go-away, if a call took it.
    #[tokio::test(start_paused = true)]
    async fn a_server_dropped_while_connecting_is_notified() {
        let server = Server::builder().bind("mem://stop-serving-dropped").await.unwrap();
        tokio::spawn(server.serve());
        let channel = Channel::builder().serve_with(Server::builder());
        let servers = StaticList::new(["mem://stop-serving-dropped"]).unwrap();
        let channel = channel.connect_balanced(servers).unwrap();
        let Targets::Several(balancer) = &channel.shared.targets else { panic!("it has a name") };
        resolves_to(balancer, "mem://stop-serving-dropped").await;
        // As who connects holds it.
        let member = balancer.members().iter().next().cloned().expect("it is named");
        resolves_to(balancer, "mem://stop-serving-elsewhere").await;
        member.connect_now().await.unwrap();
        let connection = member.connection().clone().expect("it is up");
        assert!(channel.stop_serving(Duration::MAX).await, "nobody has called");
        assert!(is_told(&connection));
    }

    /// A list that is known once: later questions fail.
    struct Once(StaticList, AtomicBool);

    impl Resolve for Once {
        fn name(&self) -> String {
            self.0.name()
        }

        fn resolve(&self) -> Resolving<'_> {
            if self.1.swap(true, Ordering::Relaxed) {
                return Box::pin(async { Err(ResolveError::new("once", "said already")) });
            }
            self.0.resolve()
        }
    }

    /// The resolver names this server alone, and the others leave.
    async fn resolves_to(balancer: &Arc<Balancer>, address: &str) {
        balancer.on_answer(Ok(vec![address.parse().unwrap()]));
        for _ in 0..12 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            balancer.keep_up(false);
        }
    }

    fn is_told(connection: &Connection) -> bool {
        let said = connection.shard.look(connection.key, |peer| peer.session.has_said_go_away());
        said.expect("it is up")
    }
}
