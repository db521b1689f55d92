//! Statistics of a server and a channel.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use rpc_core::service::Dispatch;
use rpc_core::stats::MethodStats;
use rpc_core::stats::{ChannelStats, ServerStats, StatsHandle};
use rpc_core::{CallError, Channel, Code, LinkConfig};
use tests::flow::{FlowServer, FlowService};
use tests::hostile::HostilePeer;
use tests::hostile::bytes::{data, hello, request, session_header};
use tests::journal::Journal;
use tests::limit::patient_channel;
use tests::probe::{Mark, ProbeClient, ProbeServer};
use tests::scheme::Scheme;
use tests::service::ProbeService;

/// Makes a test of each on the software devices: the counts are above the device, and these tests
/// wait by polling, for which two emulated CPUs have no time.
macro_rules! on_software {
    ($($name:ident),* $(,)?) => {
        on_scheme!(mem, Mem, $($name),*);
        on_scheme!(shm, ShmName, $($name),*);
        on_scheme!(tcp, Tcp, $($name),*);
    };
}

on_software! {
    every_call_end_is_counted_at_both_ends,
    a_deadline_stopped_handler_is_not_cancelled,
    a_too_large_reply_counts_as_seen,
    a_connection_is_seen_while_it_is_up,
    what_was_counted_outlives_its_connection,
    methods_that_a_peer_makes_up_grow_nothing,
    a_server_of_many_connections_tells_of_all,
}

struct Here {
    address: String,
    journal: Arc<Journal>,
    stats: StatsHandle,
}

/// A server in this process.
async fn here(scheme: Scheme) -> Here {
    let journal = Arc::<Journal>::default();
    let service = ProbeServer::new(ProbeService::new(Arc::clone(&journal), None));
    let flow = FlowServer::new(FlowService::new(Arc::clone(&journal)));
    let builder = tests::device::server().add_service(service).add_service(flow);
    let server = builder.bind(scheme.fresh_address()).await.expect("a fresh address");
    let (address, stats) = (server.local_address().to_string(), server.stats_handle());
    tokio::spawn(server.serve());
    Here { address, journal, stats }
}

impl Here {
    async fn channel(&self) -> Channel {
        patient_channel().connect(&self.address).await.expect("it listens")
    }

    /// Waits until the server's statistics satisfy the condition.
    async fn until(&self, holds: impl Fn(&ServerStats) -> bool) -> ServerStats {
        let mut stats = self.stats.stats();
        while !holds(&stats) {
            tokio::task::yield_now().await;
            stats = self.stats.stats();
        }
        stats
    }
}

fn method<'a>(methods: &'a [MethodStats], name: &str) -> &'a MethodStats {
    methods.iter().find(|method| method.name == name).expect("it is there")
}

/// Ends and codes of a method; the ends with the method's own error are a separate number.
fn ends(method: &MethodStats) -> (u64, Vec<(Code, u64)>, u64) {
    let ended = method.ended.iter().map(|(code, count)| (*code, *count)).collect();
    (method.started, ended, method.user_errors)
}

/// A hello that offers streams, and a window for them.
fn hello_with_streams() -> Vec<u8> {
    let mut hello = hello(0);
    let features = hello.len() - 8;
    hello[features] = 1;
    for window in [16_u32, 64 * 1024] {
        hello.extend_from_slice(&window.to_le_bytes());
    }
    hello
}

async fn cancelled(call: impl Future) {
    drop(call);
}

async fn every_call_end_is_counted_at_both_ends(scheme: Scheme) {
    let here = here(scheme).await;
    let channel = here.channel().await;
    let client = ProbeClient::new(channel.clone());
    for a in 0..40 {
        assert_eq!(client.add(a, 1).await, Ok(a + 1));
    }
    let crowd = join_all((0..60).map(|_| client.echo(&[7; 1000]).start())).await;
    assert!(crowd.iter().all(|echo| echo.as_ref().is_ok_and(|bytes| bytes.len() == 1000)));
    assert!(matches!(client.divide(1, 0).await, Err(CallError::User(_))));
    assert_eq!(client.divide(4, 2).await.ok(), Some(2));
    for late in [false, true] {
        let panicked = client.panic("on purpose", late).await.expect_err("it panics");
        assert_eq!(panicked.code(), Code::Internal);
    }
    // One answered late, one timed out, one abandoned.
    let held = client.hold(1).start();
    here.journal.wait_for(1, Mark::Started, 1).await;
    let now = here.stats.stats();
    assert_eq!(method(&now.methods, "Probe.hold").in_flight(), 1);
    assert_eq!(now.connections.iter().map(|it| it.calls_in).sum::<u64>(), 1);
    let left = client.hold(2).start();
    here.journal.wait_for(2, Mark::Started, 1).await;
    cancelled(left).await;
    let late = client.hold(3).timeout(Duration::from_millis(20)).await.expect_err("too late");
    assert_eq!(late.code(), Code::DeadlineExceeded);
    here.journal.open(1);
    assert_eq!(held.await, Ok(1));
    // A call that is not sent at all.
    let bad = client.nothing().metadata("Bad Key", "x").await.expect_err("a bad key");
    assert_eq!(bad.code(), Code::InvalidArgument);

    let ChannelStats { methods, connected, .. } = channel.stats();
    assert_eq!(connected, 1);
    let of_channel = |name: &str| ends(method(&methods, name));
    assert_eq!(of_channel("Probe.add"), (40, vec![(Code::Ok, 40)], 0));
    assert_eq!(of_channel("Probe.echo"), (60, vec![(Code::Ok, 60)], 0));
    assert_eq!(of_channel("Probe.divide"), (2, vec![(Code::Ok, 1)], 1));
    assert_eq!(of_channel("Probe.panic"), (2, vec![(Code::Internal, 2)], 0));
    let held = vec![(Code::Ok, 1), (Code::Cancelled, 1), (Code::DeadlineExceeded, 1)];
    assert_eq!(of_channel("Probe.hold"), (3, held, 0));
    assert_eq!(of_channel("Probe.nothing"), (1, vec![(Code::InvalidArgument, 1)], 0));
    let echo = method(&methods, "Probe.echo");
    assert!(echo.request_bytes >= 60 * 1000 && echo.reply_bytes >= 60 * 1000, "{echo:?}");
    assert!((16..=60).contains(&echo.took.count()), "a sample: {:?}", echo.took);

    let stats = here.until(|stats| stats.methods.iter().all(|it| it.in_flight() == 0)).await;
    let of_server = |name: &str| ends(method(&stats.methods, name));
    assert_eq!(of_server("Probe.add"), (40, vec![(Code::Ok, 40)], 0));
    assert_eq!(of_server("Probe.echo"), (60, vec![(Code::Ok, 60)], 0));
    assert_eq!(of_server("Probe.divide"), (2, vec![(Code::Ok, 1)], 1));
    assert_eq!(of_server("Probe.panic"), (2, vec![(Code::Internal, 2)], 0));
    let hold = method(&stats.methods, "Probe.hold");
    assert_eq!(hold.ended.get(&Code::Ok), Some(&1));
    assert_eq!(hold.started, hold.took.count(), "handlers that wait are timed each: {hold:?}");
    assert_eq!(of_server("Probe.nothing"), (0, vec![], 0), "it never came");
    assert_eq!(of_server(""), (0, vec![], 0));
    let echo = method(&stats.methods, "Probe.echo");
    assert!(echo.request_bytes >= 60 * 1000 && echo.reply_bytes >= 60 * 1000, "{echo:?}");
}

#[rpc_core::service]
trait Large {
    async fn now(&self, len: u32) -> Vec<u8>;
    async fn later(&self, len: u32) -> Vec<u8>;
}

struct Zeros;

impl Large for Zeros {
    async fn now(&self, len: u32) -> Vec<u8> {
        vec![0; len as usize]
    }

    async fn later(&self, len: u32) -> Vec<u8> {
        // Makes the handler become a task.
        tokio::task::yield_now().await;
        vec![0; len as usize]
    }
}

/// A regression: it was counted as `Ok`. Counts precede the reply.
async fn a_too_large_reply_counts_as_seen(scheme: Scheme) {
    let server = tests::device::server().add_service(LargeServer::new(Zeros));
    let server = server.bind(scheme.fresh_address()).await.expect("a fresh address");
    let (address, stats) = (server.local_address().to_string(), server.stats_handle());
    tokio::spawn(server.serve());
    let link = LinkConfig::default().max_message_bytes(1 << 20);
    let channel = patient_channel().link(link).connect(&address).await.expect("it listens");
    let client = LargeClient::new(channel);
    let counted = |name: &str| {
        let stats = stats.stats();
        let method = method(&stats.methods, name);
        (ends(method), method.reply_bytes)
    };
    let refused = (Code::ResourceExhausted, 1);
    for name in ["Large.now", "Large.later"] {
        let of = |len| if name == "Large.now" { client.now(len) } else { client.later(len) };
        let status = of(2 << 20).await.expect_err("too large");
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(counted(name), ((1, vec![refused], 0), 0), "nothing of it was sent");
        for len in [0, 1000, 500_000] {
            assert_eq!(of(len).await.map(|bytes| bytes.len()), Ok(len as usize));
        }
        let (ends, bytes) = counted(name);
        assert_eq!(ends, (4, vec![(Code::Ok, 3), refused], 0));
        assert!((501_000..502_000).contains(&bytes), "{bytes}");
    }
}

/// A regression: they were all counted as `Cancelled`. The caller leaves its deadlines to the
/// server.
async fn a_deadline_stopped_handler_is_not_cancelled(scheme: Scheme) {
    const HAS_RESULTS: u8 = 0x40;
    const DEADLINE_MICROS: u64 = 200_000;
    let here = here(scheme).await;
    let probe = ProbeServer::new(ProbeService::default());
    let flow = FlowServer::new(FlowService::new(Arc::default()));
    let of = |service: &dyn Dispatch, name: &str| {
        let methods = service.descriptor().methods;
        methods.iter().find(|method| method.name == name).expect("it is there")
    };
    let hold = of(&probe, "Probe.hold");
    let flow_hold = of(&flow, "Flow.hold");
    let mut peer = HostilePeer::connect(&here.address).await.expect("an honest handshake");
    peer.send(&data(&hello_with_streams()));
    // The tags of gates that nobody opens, each a byte.
    peer.send(&data(&request(0, 1, hold, Some(DEADLINE_MICROS), &[1])));
    peer.send(&data(&request(1, 1, hold, None, &[2])));
    let mut streaming = request(2, 1, flow_hold, Some(DEADLINE_MICROS), &[3, 0]);
    streaming[1] |= HAS_RESULTS;
    peer.send(&data(&streaming));
    let stopped = |stats: &ServerStats, name: &str| {
        let method = method(&stats.methods, name);
        (method.started, method.ended.clone())
    };
    here.journal.wait_for(2, Mark::Started, 1).await;
    let late = BTreeMap::from([(Code::DeadlineExceeded, 1)]);
    here.until(|stats| !stopped(stats, "Probe.hold").1.is_empty()).await;
    let stats = here.until(|stats| !stopped(stats, "Flow.hold").1.is_empty()).await;
    assert_eq!(stopped(&stats, "Probe.hold"), (2, late.clone()));
    assert_eq!(stopped(&stats, "Flow.hold"), (1, late));
    // The call without a deadline is cancelled by its caller.
    peer.send(&data(&session_header(4, 0, 0, 0, 1, 1)));
    let both = BTreeMap::from([(Code::DeadlineExceeded, 1), (Code::Cancelled, 1)]);
    let stats = here.until(|stats| method(&stats.methods, "Probe.hold").in_flight() == 0).await;
    assert_eq!(stopped(&stats, "Probe.hold"), (2, both));
}

async fn a_connection_is_seen_while_it_is_up(scheme: Scheme) {
    let here = here(scheme).await;
    assert!(here.stats.stats().connections.is_empty());
    let channel = here.channel().await;
    let client = ProbeClient::new(channel.clone());
    // Large enough to need an arena.
    assert_eq!(client.echo(&vec![1; 300_000]).await.map(|bytes| bytes.len()), Ok(300_000));
    let stats = here.until(|stats| stats.accepted == 1).await;
    let [there] = &stats.connections[..] else { panic!("one connection: {stats:?}") };
    let own = channel.stats();
    let [ours] = &own.connections[..] else { panic!("one connection: {own:?}") };
    for seen in [there, ours] {
        assert!(seen.bytes_in > 300_000 && seen.bytes_out > 300_000, "{seen:?}");
        assert!(seen.messages_in >= 2 && seen.credits_held > 0, "{seen:?}");
        assert!(seen.send_queue_free > 0 && seen.arena_chunks > 0, "{seen:?}");
        assert!(!seen.device.is_empty() && !seen.peer.is_empty(), "{seen:?}");
    }
    assert!(stats.memory_limit_bytes > 0 && stats.cq_entries > 0 && !stats.is_draining);
    drop((client, channel));
    let after = here.until(|stats| stats.connections.is_empty()).await;
    assert_eq!((after.accepted, after.refused), (1, 0));
}

async fn what_was_counted_outlives_its_connection(scheme: Scheme) {
    let here = here(scheme).await;
    let channel = here.channel().await;
    let client = ProbeClient::new(channel.clone());
    for round in 1..=3 {
        assert_eq!(client.add(1, 1).await, Ok(2));
        assert_eq!(method(&channel.stats().methods, "Probe.add").started, round);
        let other = here.channel().await;
        assert_eq!(ProbeClient::new(other).add(2, 2).await, Ok(4));
        let stats = here.until(|stats| stats.connections.len() == 1).await;
        let add = method(&stats.methods, "Probe.add");
        assert_eq!(ends(add), (2 * round, vec![(Code::Ok, 2 * round)], 0));
    }
}

async fn methods_that_a_peer_makes_up_grow_nothing(scheme: Scheme) {
    let here = here(scheme).await;
    let before = here.stats.stats().methods.len();
    let mut peers = Vec::new();
    for number in 0..16_u32 {
        let mut peer = HostilePeer::connect(&here.address).await.expect("an honest handshake");
        peer.send(&data(&hello(0)));
        for slot in 0..4 {
            let method = (0x5eed_0000 + number * 4 + slot, 7);
            let request = test_kit::hostile::frames::request(slot, 1, method, None, b"x");
            peer.send(&data(&request));
        }
        peers.push(peer);
    }
    let made_up = |stats: &ServerStats| method(&stats.methods, "").started;
    let stats = here.until(|stats| made_up(stats) == 64).await;
    assert_eq!(stats.methods.len(), before);
    assert_eq!(ends(method(&stats.methods, "")), (64, vec![(Code::Unimplemented, 64)], 0));
    drop(peers);
}

/// More than a shard reports while it holds its lock.
async fn a_server_of_many_connections_tells_of_all(scheme: Scheme) {
    let here = here(scheme).await;
    let mut channels = Vec::new();
    for _ in 0..40 {
        channels.push(here.channel().await);
    }
    let stats = here.until(|stats| stats.accepted == 40).await;
    assert_eq!(stats.connections.len(), 40);
    channels.truncate(7);
    here.until(|stats| stats.connections.len() == 7).await;
    drop(channels);
    let none = here.until(|stats| stats.connections.is_empty()).await;
    assert_eq!(none.accepted, 40);
}
