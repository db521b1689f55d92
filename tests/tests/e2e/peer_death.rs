//! A peer is killed with calls in flight: each call ends once, the survivor lives on.

use std::error::Error;
use std::time::Duration;

use futures::future::join_all;
use rpc_core::transport::CloseCause;
use rpc_core::{Code, ConnectError, LinkConfig};
use tests::limit::paced;
use tests::probe::{Mark, ProbeClient};

use tests::process::{Child, READY};
use tests::scheme::Scheme;
use tests::world::{World, marked, start_server};

use crate::{CLIENT, SERVER};

between_processes! {
    a_killed_server_ends_every_call_once,
    a_killed_server_ends_calls_with_large_payloads,
    a_killed_servers_address_is_reusable,
    a_killed_client_frees_its_handlers,
    calls_after_the_death_say_why,
    a_server_without_pongs_is_given_up,
    a_client_without_pongs_is_given_up,
    silence_is_no_death_while_pings_are_answered,
}

async fn a_killed_server_ends_every_call_once(scheme: Scheme) {
    let mut world = World::start(SERVER, scheme).await;
    let (client, other) = (world.client().await, world.client().await);
    let calls: Vec<_> = (0..200).map(|_| client.hold(1).start()).collect();
    marked(&other, 1, Mark::Started, 200).await;
    world.process().kill().await;
    // A completed future cannot be polled again, so each has one outcome.
    let outcomes = join_all(calls).await;
    assert_eq!(outcomes.len(), 200);
    let first = outcomes[0].clone().expect_err("the server is dead");
    for outcome in outcomes {
        let status = outcome.expect_err("the server is dead");
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        // It ran, so a retry may run it twice.
        assert!(!status.is_retryable(), "{status}");
        assert_eq!(status.message(), first.message(), "one cause for all");
        let cause = status.source().and_then(|source| source.downcast_ref::<CloseCause>());
        assert!(matches!(cause, Some(CloseCause::Disconnected)), "{cause:?}");
    }
    let cause = client.channel().close_cause();
    assert!(matches!(cause, Some(CloseCause::Disconnected)), "{cause:?}");
}

async fn a_killed_server_ends_calls_with_large_payloads(scheme: Scheme) {
    let mut world = World::start(SERVER, scheme).await;
    let (client, other) = (world.client().await, world.client().await);
    let held = client.hold(1).start();
    marked(&other, 1, Mark::Started, 1).await;
    let data = vec![7; 8 << 20];
    let calls: Vec<_> = (0..4).map(|_| client.echo(&data).start()).collect();
    world.process().kill().await;
    let status = held.await.expect_err("the server is dead");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    for outcome in join_all(calls).await {
        match outcome {
            Ok(echoed) => assert!(echoed == data, "answered before the end"),
            Err(status) => assert_eq!(status.code(), Code::Unavailable, "{status}"),
        }
    }
}

async fn a_killed_servers_address_is_reusable(scheme: Scheme) {
    let mut world = World::start(SERVER, scheme).await;
    let address = world.address.clone();
    let client = world.client().await;
    assert_eq!(client.add(1, 1).await, Ok(2));
    world.process().kill().await;
    let refused = ProbeClient::connect(&address).await.expect_err("nobody is there");
    assert!(matches!(refused, ConnectError::Refused { .. }), "{refused}");
    assert!(refused.to_string().contains("nothing is listening"), "{refused}");

    // The same address, port or file; the client process is the one that had the old connection.
    let (_server, same) = start_server(SERVER, &address, &[]).await;
    assert_eq!(same, address);
    let again = world.client().await;
    assert_eq!(again.add(2, 2).await, Ok(4));
    // The client of the old server finds the new one on its own.
    assert_eq!(client.add(1, 1).wait_for_ready(true).await, Ok(2));
}

async fn a_killed_client_frees_its_handlers(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let witness = world.client().await;
    let own = witness.hold(2).start();
    let mut dying = Child::start(CLIENT, ["--address", &world.address, "hold", "1", "100"]);
    dying.expect(READY).await;
    marked(&witness, 1, Mark::Started, 100).await;
    dying.kill().await;
    assert_eq!(marked(&witness, 1, Mark::Cancelled, 100).await, 100);
    assert_eq!(witness.marks(1, Mark::Finished).await, Ok(0));
    witness.open(2).await.expect("opened");
    assert_eq!(own.await, Ok(2));
    let late = world.client().await;
    assert_eq!(late.add(1, 2).await, Ok(3));
}

async fn calls_after_the_death_say_why(scheme: Scheme) {
    let mut world = World::start(SERVER, scheme).await;
    let client = world.client().await;
    let held = client.hold(1).start();
    marked(&client, 1, Mark::Started, 1).await;
    world.process().kill().await;
    held.await.expect_err("the server is dead");
    let status = client.add(1, 1).await.expect_err("the connection is closed");
    assert_eq!(status.code(), Code::Unavailable);
    let words = [world.address.clone(), "the peer is gone".to_owned()];
    for word in words {
        assert!(status.message().contains(&word), "`{status}` lacks `{word}`");
    }
}

/// The silence after which a ping is sent.
fn silence() -> Duration {
    paced(Duration::from_millis(100))
}

/// Longest time for a pong. A host that is busy elsewhere stops an emulated machine for seconds,
/// and with it all others of these tests, which must live on.
fn patience() -> Duration {
    5 * silence()
}

fn impatient() -> LinkConfig {
    LinkConfig::default().keep_alive(Some(silence())).keep_alive_timeout(patience())
}

async fn impatient_server(scheme: Scheme) -> World {
    let [silence, patience] = [silence(), patience()].map(|time| time.as_millis().to_string());
    let options = ["--keep-alive-ms", &silence, "--keep-alive-timeout-ms", &patience];
    World::start_with(SERVER, scheme, &options).await
}

async fn a_server_without_pongs_is_given_up(scheme: Scheme) {
    let mut world = World::start(SERVER, scheme).await;
    let client = world.client_with(|builder| builder.link(impatient())).await;
    let held = client.hold(1).start();
    marked(&client, 1, Mark::Started, 1).await;
    // Alive for the kernel, dead for all peers.
    world.process().stop();
    let status = held.await.expect_err("the server does nothing any more");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    let cause = client.channel().close_cause();
    assert!(matches!(cause, Some(CloseCause::PingTimeout(_))), "{cause:?}");
    world.process().resume();
    assert_eq!(world.client().await.add(1, 1).await, Ok(2));
}

async fn a_client_without_pongs_is_given_up(scheme: Scheme) {
    let world = impatient_server(scheme).await;
    let witness = world.client().await;
    let mut silent = Child::start(CLIENT, ["--address", &world.address, "hold", "1", "10"]);
    silent.expect(READY).await;
    marked(&witness, 1, Mark::Started, 10).await;
    silent.stop();
    assert_eq!(marked(&witness, 1, Mark::Cancelled, 10).await, 10);
    silent.resume();
}

async fn silence_is_no_death_while_pings_are_answered(scheme: Scheme) {
    let world = impatient_server(scheme).await;
    let client = world.client_with(|builder| builder.link(impatient())).await;
    assert_eq!(client.add(1, 1).await, Ok(2));
    // Without calls only Pings leave, and Pongs for the server's Pings.
    let channel = client.channel();
    let posted = || channel.link_metrics().map(|metrics| metrics.counters.posted.data);
    let before = posted().expect("it is connected");
    while posted().is_some_and(|now| now.wrapping_sub(before) < 10) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(channel.close_cause().is_none(), "{:?}", channel.close_cause());
    assert_eq!(client.add(2, 2).await, Ok(4));
}
