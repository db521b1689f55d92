//! Paths to a server: several at once, the one that `auto://` chooses, and that it reports the
//! choice.

use std::sync::Arc;

use rpc_core::transport::PeerIdentity;
use rpc_core::{Address, PollMode};
use tests::journal::Journal;
use tests::limit;
use tests::probe::{ProbeClient, ProbeServer};
use tests::scheme::Scheme;
use tests::service::ProbeService;
use tests::world::World;

use crate::SERVER;

#[test]
fn auto_takes_shared_memory_on_one_host() {
    limit::run(async {
        let world = World::start(SERVER, Scheme::Auto).await;
        let channel = world.channel_with(|builder| builder).await;
        let path = channel.path().expect("connected");
        assert!(matches!(path.address, Address::ShmName(_)), "{path}");
        assert!(path.device.contains("shm"), "{path}");
        assert!(path.reason.contains("same host"), "{path}");
        match path.peer {
            PeerIdentity::Process { pid, .. } => assert_eq!(pid, world.pid()),
            ref other => panic!("{other:?}"),
        }
    });
}

#[test]
fn auto_at_a_plain_tcp_server_takes_tcp() {
    limit::run(async {
        let world = World::start(SERVER, Scheme::Tcp).await;
        let address = world.address.replace("tcp://", "auto://");
        let channel = tests::device::channel().connect(&address).await.expect("it listens");
        let path = channel.path().expect("connected");
        assert!(matches!(path.address, Address::Tcp(_)), "{path}");
        assert!(path.reason.contains("tcp"), "{path}");
        assert_eq!(ProbeClient::new(channel).add(1, 1).await, Ok(2));
    });
}

#[test]
fn tcp_at_an_auto_server_stays_tcp() {
    limit::run(async {
        let world = World::start(SERVER, Scheme::Auto).await;
        let address = world.address.replace("auto://", "tcp://");
        let channel = tests::device::channel().connect(&address).await.expect("it listens");
        let path = channel.path().expect("connected");
        assert_eq!(path.address.to_string(), address);
        assert!(matches!(path.peer, PeerIdentity::Network(_)), "{path:?}");
        assert_eq!(ProbeClient::new(channel).add(1, 1).await, Ok(2));
    });
}

#[test]
fn one_server_serves_every_scheme_at_once() {
    limit::run(async {
        let journal = Arc::new(Journal::default());
        let service = ProbeService::new(journal, None);
        let server = tests::device::server()
            .add_service(ProbeServer::new(service))
            .poll_mode(PollMode::Event)
            .shards(2)
            .bind_all(Scheme::ALL.map(Scheme::fresh_address))
            .await
            .expect("they are free");
        let addresses = server.local_addresses();
        assert_eq!(addresses.len(), Scheme::ALL.len());
        let handle = server.shutdown_handle();
        let serving = tokio::spawn(server.serve());
        let mut clients = Vec::new();
        for address in &addresses {
            let builder = tests::device::channel().poll_mode(PollMode::Event);
            let channel = builder.connect(address.to_string()).await.expect("it listens");
            clients.push(ProbeClient::new(channel));
        }
        // Opening a gate over one path releases calls that came over another.
        let held: Vec<_> = clients.iter().map(|client| client.hold(1).start()).collect();
        clients[0].open(1).await.expect("opened");
        for held in held {
            assert_eq!(held.await, Ok(1));
        }
        handle.shutdown();
        serving.await.expect("no panic").expect("an orderly end");
    });
}

#[test]
fn a_failing_address_leaves_none_open() {
    limit::run(async {
        let (good, bad) = (Scheme::Mem.fresh_address(), "shm:///nonexistent-directory/socket");
        tests::device::server().bind_all([&*good, bad]).await.expect_err("the second fails");
        drop(tests::device::server().bind(&good).await.expect("the first is free again"));
    });
}
