//! Connections that nobody uses, or that are old, are closed, and no call is lost by it: in virtual
//! time.

use std::time::Duration;

use rpc_core::stats::StatsHandle;
use rpc_core::stream::{self, Stream};
use rpc_core::{Channel, Code, ListenError, Server, ServerBuilder};
use tokio::time::sleep;

#[rpc_core::service]
trait Waiter {
    async fn echo(&self, number: u32) -> u32;
    async fn wait(&self, seconds: u64) -> u64;
    /// Nothing for so many seconds, and then its end.
    fn silent(&self, seconds: u64) -> impl Stream<Item = u32>;
}

struct Patient;

impl Waiter for Patient {
    async fn echo(&self, number: u32) -> u32 {
        number
    }

    async fn wait(&self, seconds: u64) -> u64 {
        sleep(Duration::from_secs(seconds)).await;
        seconds
    }

    fn silent(&self, seconds: u64) -> impl Stream<Item = u32> {
        stream::stream(async move |_| {
            sleep(Duration::from_secs(seconds)).await;
            Ok(())
        })
    }
}

const LIMIT: Duration = Duration::from_secs(60);
/// Longest time until a connection without calls is closed.
const CLOSED_AFTER: Duration = Duration::from_secs(60 + 15);

async fn serve(server: ServerBuilder, address: &str) -> StatsHandle {
    let server = server.add_service(WaiterServer::new(Patient)).bind(address).await.expect("bound");
    let stats = server.stats_handle();
    tokio::spawn(server.serve());
    stats
}

fn open(stats: &StatsHandle) -> usize {
    stats.stats().connections.len()
}

/// What ends a connection is run by tasks that are ready.
async fn settle() {
    sleep(Duration::from_millis(10)).await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_server_connection_is_closed() {
    let stats = serve(Server::builder().max_connection_idle(LIMIT), "mem://idle-server").await;
    let channel = Channel::builder().connect("mem://idle-server").await.unwrap();
    let client = WaiterClient::new(channel.clone());
    for round in 1..=3 {
        assert_eq!(client.echo(round).await, Ok(round));
        sleep(LIMIT - Duration::from_secs(1)).await;
        assert_eq!(open(&stats), 1, "it is not idle for so long yet");
        sleep(CLOSED_AFTER - LIMIT + Duration::from_secs(1)).await;
        settle().await;
        assert_eq!(open(&stats), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn calls_and_streams_keep_a_connection_open() {
    let server = Server::builder().max_connection_idle(LIMIT);
    let stats = serve(server, "mem://idle-busy").await;
    let channel = Channel::builder().max_connection_idle(LIMIT);
    let channel = channel.connect("mem://idle-busy").await.unwrap();
    let client = WaiterClient::new(channel);
    assert_eq!(client.wait(1_000).await, Ok(1_000));
    let mut silent = client.silent(1_000).await.unwrap();
    assert_eq!(silent.next().await, None);
    // Short calls that no check finds under way.
    for _ in 0..20 {
        sleep(LIMIT / 2).await;
        assert_eq!(client.echo(7).await, Ok(7));
    }
    let read = stats.stats();
    assert_eq!((read.connections.len(), read.accepted), (1, 1));
    sleep(CLOSED_AFTER).await;
    settle().await;
    assert_eq!(open(&stats), 0, "and then it is idle");
}

#[tokio::test(start_paused = true)]
async fn a_channel_closes_its_idle_connection() {
    let stats = serve(Server::builder(), "mem://idle-channel").await;
    let channel = Channel::builder().max_connection_idle(LIMIT);
    let channel = channel.connect("mem://idle-channel").await.unwrap();
    let client = WaiterClient::new(channel);
    let lasting = WaiterClient::connect("mem://idle-channel").await.unwrap();
    for round in 1..=3 {
        assert_eq!(client.echo(round).await, Ok(round));
        assert_eq!(open(&stats), 2);
        sleep(CLOSED_AFTER).await;
        settle().await;
        assert_eq!(open(&stats), 1, "that of the channel without the option");
    }
    assert_eq!(lasting.echo(4).await, Ok(4));
    assert_eq!(stats.stats().accepted, 4);
}

/// A call that starts at the moment of the go-away goes on the next connection.
#[tokio::test(start_paused = true)]
async fn calls_at_the_limit_are_all_answered() {
    let address = "mem://idle-races";
    let stats = serve(Server::builder().max_connection_idle(LIMIT), address).await;
    let channel = Channel::builder().max_connection_idle(LIMIT).connect(address).await.unwrap();
    let client = WaiterClient::new(channel);
    for late in 0..400 {
        // Around each check, whichever end it is of.
        sleep(CLOSED_AFTER - Duration::from_millis(2) + Duration::from_micros(10 * late)).await;
        assert_eq!(client.echo(7).await, Ok(7));
    }
    assert!(stats.stats().accepted > 100);
}

#[tokio::test]
async fn an_idle_limit_of_nothing_is_refused() {
    let refused = Server::builder().max_connection_idle(Duration::ZERO).bind("mem://").await;
    let Err(ListenError::Config(text)) = refused else { panic!("{refused:?}") };
    assert!(text.contains("max_connection_idle is 0ns") && text.contains("1ms or more"), "{text}");
    let refused = Channel::builder().max_connection_idle(Duration::ZERO).connect_lazy("mem://x");
    assert!(refused.unwrap_err().to_string().contains("max_connection_idle is 0ns"));
}

/// One that does not connect again would end.
#[tokio::test(start_paused = true)]
async fn a_channel_without_reconnect_stays() {
    let stats = serve(Server::builder(), "mem://idle-once").await;
    let channel = Channel::builder().max_connection_idle(LIMIT).reconnect(None);
    let client = WaiterClient::new(channel.connect("mem://idle-once").await.unwrap());
    sleep(10 * CLOSED_AFTER).await;
    assert_eq!(open(&stats), 1);
    assert_eq!(client.echo(1).await, Ok(1));
    let gone = client.wait(100).timeout(Duration::from_secs(3)).await.unwrap_err();
    assert_eq!(gone.code(), Code::DeadlineExceeded);
}

#[tokio::test(start_paused = true)]
async fn an_old_connection_is_replaced_without_loss() {
    let stats = serve(Server::builder().max_connection_age(LIMIT), "mem://aged").await;
    let client = WaiterClient::connect("mem://aged").await.unwrap();
    let long = client.wait(200).start();
    for _ in 0..3000 {
        assert_eq!(client.echo(7).await, Ok(7));
        sleep(Duration::from_millis(100)).await;
    }
    // Each lasts 54 to 66 s.
    let read = stats.stats();
    assert!((5..=6).contains(&read.accepted), "{} in 300 s", read.accepted);
    assert_eq!(long.await, Ok(200), "it was sent on the first");
    sleep(Duration::from_secs(2)).await;
    // The last one may have reached its age without a call that asks for the next.
    assert!(open(&stats) <= 1, "those before have ended");
    let refused = Server::builder().max_connection_age(Duration::ZERO).bind("mem://").await;
    let Err(ListenError::Config(text)) = refused else { panic!("{refused:?}") };
    assert!(text.contains("max_connection_age is 0ns"), "{text}");
}

/// A regression: an end within a second counted as a failed attempt to connect, after which calls
/// failed for up to five seconds.
#[tokio::test(start_paused = true)]
async fn short_lives_of_connections_lose_no_call() {
    for millis in [20, 900] {
        let limit = Duration::from_millis(millis);
        let (old, idle) = (Server::builder().max_connection_age(limit), Server::builder());
        for (name, server) in [("old", old), ("idle", idle.max_connection_idle(limit))] {
            let address = format!("mem://short-{name}-{millis}");
            let stats = serve(server, &address).await;
            let client = WaiterClient::connect(&address).await.unwrap();
            let lanes = (0..4).map(async |lane| {
                sleep(limit * lane / 100).await;
                for number in 0..64 {
                    assert_eq!(client.echo(number).await, Ok(number), "{name} {millis}");
                    // Longer than the limit now and then, all lanes at about the same time.
                    sleep(limit * 3 / 20 + limit * (number % 16) / 10).await;
                }
            });
            futures::future::join_all(lanes).await;
            let accepted = stats.stats().accepted;
            assert!((5..=256).contains(&accepted), "{name} {millis}: {accepted}");
        }
    }
}
