//! Streams between processes: every shape and size, readers that stop, each kind of end, and
//! deaths.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use futures::{StreamExt, TryStreamExt};
use rpc_core::stream::{self, Stream, StreamEnd};
use rpc_core::{CallError, Code, Status};
use tests::flow::{FlowClient, FlowError, Piece, marked};
use tests::limit::paced;
use tests::probe::{Mark, ProbeClient};
use tests::process::{Child, READY};
use tests::scheme::Scheme;
use tests::service::{checksum, pattern};
use tests::world::World;

use crate::{CLIENT, SERVER};

on_every_scheme! {
    a_stream_of_results,
    a_stream_of_arguments,
    streams_in_both_directions,
    an_early_refusal,
    a_value_after_the_items,
    each_end_can_be_told_apart,
    items_of_every_size,
    payloads_in_items,
    a_reader_that_stops_holds_up_nobody_else,
    a_stream_that_depends_on_another,
    a_dropped_stream_stops_its_sender,
    a_dropped_call_stops_its_stream,
    a_reader_that_gives_up_drops_the_source,
    the_deadline_of_the_whole_call,
    a_pausing_stream_hits_its_idle_deadline,
    a_thousand_streams_at_once,
}

between_processes! {
    arrived_items_precede_the_peers_death,
    a_killed_client_is_no_stream_end,
}

/// Items of this test run: fewer on an emulated machine.
fn many(count: u64) -> u64 {
    if tests::agent::of_the_peer().is_some() { count / 10 } else { count }
}

async fn a_stream_of_results(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.flow().await;
    for upto in [0, 1, 2, 15, 16, 17, 1000] {
        let numbers = client.count(0, upto).await.expect("accepted");
        let numbers: Vec<u64> = numbers.try_collect().await.expect("they come");
        assert_eq!(numbers, (0..upto).collect::<Vec<_>>());
    }
    // It borrows from the request.
    let text = "a stream that borrows from its argument ".repeat(1000);
    let words = client.words(&text).await.expect("accepted");
    let words: Vec<String> = words.try_collect().await.expect("they come");
    assert!(words.iter().map(String::as_str).eq(text.split(' ')));
}

async fn a_stream_of_arguments(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.flow().await;
    for count in [0, 1, 17, 1000] {
        let rows: Vec<Vec<u8>> = (0..count).map(|seed| pattern(40, seed)).collect();
        let sum = rows.iter().fold(0, |sum: u64, row| sum.rotate_left(1) ^ checksum(row));
        assert_eq!(client.digest(stream::iter(rows)).await, Ok((count, sum)));
    }
}

async fn streams_in_both_directions(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.flow().await;
    let items: Vec<Vec<u8>> = (0..500).map(|seed| pattern(seed % 300, seed as u64)).collect();
    let echoed = client.echo(stream::iter(items.clone())).await.expect("accepted");
    assert!(echoed.try_collect::<Vec<_>>().await.expect("they come") == items);
}

async fn an_early_refusal(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.flow().await;
    let refused = client.checked("no").await.expect_err("refused");
    assert_eq!(refused, CallError::User(FlowError::Refused("no".to_owned())));
    let numbers = client.checked("four").await.expect("accepted");
    assert_eq!(numbers.count().await, 4);
}

async fn a_value_after_the_items(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.flow().await;
    let mut numbers = client.summed(100).await.expect("accepted");
    for number in 0..100 {
        assert_eq!(numbers.next().await, Some(Ok(number)));
    }
    assert_eq!(numbers.finish().await, Ok(4950));
}

/// A source that never ends, and reports when it is dropped.
fn endless(held: &Arc<()>, items: u64) -> impl Stream<Item = u64> + use<> {
    let held = Arc::clone(held);
    stream::iter(0..items).chain(futures::stream::poll_fn(move |_| {
        let _held = &held;
        std::task::Poll::Pending
    }))
}

async fn each_end_can_be_told_apart(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.flow().await;
    // Of results.
    let mut numbers = client.count(0, 1).await.expect("accepted");
    while numbers.next().await.is_some() {}
    assert_eq!(numbers.end(), Some(StreamEnd::Finished));
    let mut numbers = client.failing(20).await.expect("accepted");
    let failed = loop {
        match numbers.next().await {
            Some(Ok(_)) => assert_eq!(numbers.end(), None),
            other => break other,
        }
    };
    assert_eq!(failed, Some(Err(CallError::User(FlowError::After(20)))));
    assert_eq!(numbers.end(), Some(StreamEnd::Failed));
    let mut numbers = client.panicking(1).await.expect("accepted");
    assert_eq!(numbers.next().await, Some(Ok(0)));
    let status = numbers.next().await.expect("an end with a status").expect_err("a panic");
    assert_eq!(status.code(), Code::Internal);
    assert!(!status.message().contains("secret"), "{status}");
    // Of arguments, as the server sees them.
    assert_eq!(client.observe(1, stream::iter(0..20)).await, Ok(20));
    assert_eq!(client.observed(1).await.as_deref(), Ok("20 Finished"));
    let rows = stream::iter([Ok(1), Ok(2), Err(Status::data_loss("a torn page"))]);
    let status = client.observe(2, rows).await.expect_err("the source failed");
    assert_eq!((status.code(), status.message()), (Code::DataLoss, "a torn page"));
    assert_eq!(client.observed(2).await.as_deref(), Ok("2 Reset(DataLoss) DataLoss"));
    // A dropped call also drops its handler.
    let held = Arc::new(());
    let dropped = tokio::spawn(client.hold_then_sum(3, endless(&held, 5)).start());
    marked(&client, 3, Mark::Started).await;
    dropped.abort();
    marked(&client, 3, Mark::Cancelled).await;
}

async fn items_of_every_size(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.flow().await;
    // Around the window of 64 KiB, several windows, and some MiB.
    let window: u32 = 64 << 10;
    let mut sizes = vec![0, 1, 2, 63, 64, 100, 4095, 4096, 8191, 8192, 8193, 16_383, 16_384];
    sizes.extend([window - 1, window, window + 1, 2 * window, 3 * window, 1 << 20, 3 << 20, 7]);
    let mut items = client.sized(&sizes).await.expect("accepted");
    for (seed, &size) in (0..).zip(&sizes) {
        let item = items.next().await.expect("one for each size").expect("it comes");
        assert!(item == pattern(size as usize, seed), "{size} bytes");
    }
    assert_eq!(items.next().await, None);
    let rows: Vec<_> =
        (0..).zip(&sizes).map(|(seed, &size)| pattern(size as usize, seed)).collect();
    let echoed = client.echo(stream::iter(rows.clone())).await.expect("accepted");
    assert!(echoed.try_collect::<Vec<_>>().await.expect("they come") == rows);
}

async fn payloads_in_items(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.flow().await;
    let sizes = [0, 100, 8192, 100_000, 1 << 20, 5, 2 << 20];
    let pieces = client.pieces(sizes.to_vec()).await.expect("accepted");
    let pieces: Vec<Piece> = pieces.try_collect().await.expect("they come");
    for ((number, size), piece) in (0..).zip(sizes).zip(&pieces) {
        assert_eq!(piece.number, number);
        assert!(piece.content.to_vec().expect("readable") == pattern(size as usize, number));
    }
    assert_eq!(pieces.len(), sizes.len());
    let total = sizes.iter().map(|&size| u64::from(size)).sum();
    assert_eq!(client.lengths(stream::iter(pieces)).await, Ok(total));
}

async fn a_reader_that_stops_holds_up_nobody_else(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.flow().await;
    let probe = ProbeClient::new(client.channel().clone());
    let before = probe.resources().await.expect("answered").rss_bytes;
    // Each would be 400 MiB.
    let sizes = vec![1 << 20; 400];
    let mut stopped = Vec::new();
    for _ in 0..4 {
        stopped.push(client.sized(&sizes).await.expect("accepted"));
    }
    let held = Arc::new(());
    let unread = tokio::spawn(client.hold_then_sum(1, endless(&held, u64::MAX)).start());
    marked(&client, 1, Mark::Started).await;
    for a in 0..100 {
        assert_eq!(probe.add(a, 1).await, Ok(a + 1));
    }
    let others = client.count(0, 1000).await.expect("accepted");
    assert_eq!(others.count().await, 1000);
    let after = probe.resources().await.expect("answered").rss_bytes;
    let grown = after.saturating_sub(before) >> 20;
    assert!(grown < 200, "the server has grown by {grown} MiB");
    for stream in &mut stopped {
        for (seed, &size) in (0..3).zip(&sizes) {
            let item = stream.next().await.expect("it goes on").expect("it comes");
            assert!(item == pattern(size as usize, seed));
        }
    }
    unread.abort();
}

/// A hash join: one stream is read completely before the other, which has the same sender, is read
/// at all.
async fn a_stream_that_depends_on_another(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.flow().await;
    let probe = client.count(0, many(5000)).await.expect("accepted");
    let build = client.count(0, many(5000)).await.expect("accepted");
    let build: Vec<u64> = build.try_collect().await.expect("they come");
    let probe: Vec<u64> = probe.try_collect().await.expect("they come");
    assert_eq!(probe, build);
    // One stream's items are another's arguments.
    let numbers = client.count(0, many(2000)).await.expect("accepted");
    let relayed = client.relay(numbers).await.expect("accepted");
    let relayed: Vec<u64> = relayed.try_collect().await.expect("they come");
    assert_eq!(relayed, build[..relayed.len()]);
    assert_eq!(relayed.len() as u64, many(2000));
}

async fn a_dropped_stream_stops_its_sender(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.flow().await;
    let mut numbers = client.hold(1, 3).await.expect("accepted");
    assert_eq!(numbers.next().await, Some(Ok(0)));
    marked(&client, 1, Mark::Started).await;
    drop(numbers);
    marked(&client, 1, Mark::Cancelled).await;
}

async fn a_dropped_call_stops_its_stream(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.flow().await;
    let call = client.hold(1, 0).start();
    marked(&client, 1, Mark::Started).await;
    drop(call);
    marked(&client, 1, Mark::Cancelled).await;
    // One that was never sent.
    drop(client.hold(2, 0));
    let probe = ProbeClient::new(client.channel().clone());
    assert_eq!(probe.marks(2, Mark::Started).await, Ok(0));
}

async fn a_reader_that_gives_up_drops_the_source(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.flow().await;
    let held = Arc::new(());
    // Pending after 5 items, and with more items than the server reads.
    for (tag, items) in [(1, 5), (2, u64::MAX)] {
        let call = tokio::spawn(client.read_some(tag, 5, endless(&held, items)).start());
        marked(&client, tag, Mark::Started).await;
        while Arc::strong_count(&held) > 1 {
            tokio::task::yield_now().await;
        }
        ProbeClient::new(client.channel().clone()).open(tag).await.expect("opened");
        assert_eq!(call.await.expect("no panic"), Ok(10), "the call went on");
    }
}

async fn the_deadline_of_the_whole_call(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.flow().await;
    let call = client.hold(1, 3).timeout(paced(Duration::from_secs(2)));
    let mut numbers = call.await.expect("accepted");
    let status = loop {
        match numbers.next().await.expect("no clean end") {
            Ok(number) => assert!(number < 3),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    marked(&client, 1, Mark::Cancelled).await;
    let held = Arc::new(());
    let call = client.hold_then_sum(2, endless(&held, 5)).timeout(paced(Duration::from_secs(2)));
    let status = call.await.expect_err("nobody opens the gate");
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert_eq!(Arc::strong_count(&held), 1);
}

/// Virtual time shows that each item restarts the deadline, in `rpc-core/tests/paused_clock.rs`.
async fn a_pausing_stream_hits_its_idle_deadline(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.flow().await;
    let held = Arc::new(());
    let deadline = paced(Duration::from_secs(5));
    let mut relayed = client.relay(endless(&held, 5)).timeout(deadline).await.expect("accepted");
    for number in 0..5 {
        assert_eq!(relayed.next().await, Some(Ok(number)));
    }
    let status = relayed.next().await.expect("no clean end").expect_err("nothing comes any more");
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert_eq!(Arc::strong_count(&held), 1);
}

async fn a_thousand_streams_at_once(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.flow().await;
    let count = async |from: u64| {
        let numbers = client.count(from, from + 40).await.expect("accepted");
        let numbers: Vec<u64> = numbers.try_collect().await.expect("they come");
        assert!(numbers.into_iter().eq(from..from + 40));
    };
    join_all((0..many(1000)).map(count)).await;
}

async fn arrived_items_precede_the_peers_death(scheme: Scheme) {
    let mut world = World::start(SERVER, scheme).await;
    let client = world.flow().await;
    let mut numbers = client.hold(1, 10).await.expect("accepted");
    // The gate comes after the items, and so does its mark.
    marked(&client, 1, Mark::Started).await;
    world.process().kill().await;
    let status = ProbeClient::new(client.channel().clone()).add(1, 1).await;
    assert_eq!(status.expect_err("the server is dead").code(), Code::Unavailable);
    for number in 0..10 {
        assert_eq!(numbers.next().await, Some(Ok(number)));
    }
    let status = numbers.next().await.expect("no clean end").expect_err("the server is dead");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(!status.is_retryable(), "it ran: {status}");
    assert_eq!(numbers.end(), Some(StreamEnd::Disconnected));
}

async fn a_killed_client_is_no_stream_end(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client: FlowClient = world.flow().await;
    let mut dying = Child::start(CLIENT, ["--address", &world.address, "upload", "1"]);
    dying.expect(READY).await;
    dying.kill().await;
    let seen = client.observed(1).await.expect("the server notices");
    assert!(seen.ends_with("dropped") || seen.contains("Disconnected"), "{seen}");
    assert_eq!(client.observe(2, stream::iter(0..3)).await, Ok(3));
}
