//! Calls that are answered: arguments and results of every shape and size, one at a time and many.

use std::borrow::Cow;
use std::collections::HashMap;

use bytes::Bytes;
use futures::future::{join_all, try_join_all};
use rpc_core::{CallError, Code, Codec, LinkConfig};
use tests::probe::{Borrowing, Mark, ProbeClient, ProbeError, Shapes};
use tests::raw;
use tests::scheme::Scheme;
use tests::service::{checksum, pattern};
use tests::world::{World, marked};

use crate::SERVER;

on_every_scheme! {
    arguments_and_results_of_every_shape,
    payloads_from_nothing_to_five_mebibytes_both_ways,
    small_receive_buffers_carry_large_messages,
    errors_of_the_methods_own_type,
    every_status_arrives_with_text_details_and_retryability,
    a_thousand_calls_within_16_slots,
    a_thousand_calls_within_100_slots,
    a_thousand_handlers_at_once_on_one_connection,
    started_calls_return_in_any_order,
    large_and_small_calls_share_a_connection,
    clones_of_a_client_share_its_connection,
}

const CODECS: [Codec; 2] = [Codec::Bincode, Codec::Postcard];

async fn arguments_and_results_of_every_shape(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    for codec in CODECS {
        let client = world.client_with(|builder| builder.codec(codec)).await;
        every_shape(&client).await;
    }
}

async fn every_shape(client: &ProbeClient) {
    assert_eq!(client.nothing().await, Ok(()));
    assert_eq!(client.add(u64::MAX, 2).await, Ok(1));
    assert_eq!(client.echo(b"").await, Ok(vec![]));
    assert_eq!(client.echo(&[0, 255, 128]).await, Ok(vec![0, 255, 128]));
    assert_eq!(client.blob(Bytes::from_static(b"shared")).await, Ok(Bytes::from_static(b"shared")));
    let shapes = Shapes::sample(3);
    assert_eq!(client.shapes(shapes.clone()).await, Ok(shapes));
    let borrowed = client.borrowed(
        "text",
        &[1, 2],
        Cow::Borrowed("cow"),
        Cow::Owned(vec![3]),
        Borrowing { name: "name", count: 4 },
    );
    assert_eq!(borrowed.await.as_deref(), Ok("text [1, 2] cow [3] name 4"));
    let many = client.many(
        1,
        -2,
        Some(3),
        (-4, true),
        vec!["five".to_owned(), String::new()],
        HashMap::from([(6, 0.5), (7, -1.0)]),
        [8, 9, 10],
        'z',
    );
    let expected = r#"1 -2 Some(3) (-4, true) ["five", ""] {6: 0.5, 7: -1.0} [8, 9, 10] z"#;
    assert_eq!(many.await.as_deref(), Ok(expected));
}

async fn payloads_from_nothing_to_five_mebibytes_both_ways(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.client().await;
    // Around the limit for copies, around a receive buffer, around a slot of a ring, and segments.
    let around = |size: usize| [size - 40, size - 1, size, size + 1];
    let mut sizes = vec![0, 1, 64, 100, 512];
    for size in [1024, 8 * 1024, 64 * 1024] {
        sizes.extend(around(size));
    }
    sizes.extend([1 << 20, (5 << 20) + 3]);
    for (seed, size) in (0..).zip(sizes) {
        both_ways(&client, size, seed).await;
    }
}

async fn both_ways(client: &ProbeClient, size: usize, seed: u64) {
    let data = pattern(size, seed);
    let digest = (size as u64, checksum(&data));
    assert_eq!(client.digest(&data).await, Ok(digest), "{size} bytes out");
    let produced = client.produce(size as u64, seed).await.expect("produced");
    assert!(produced == data, "{size} bytes back");
    let echoed = client.echo(&data).await.expect("echoed");
    assert!(echoed == data, "{size} bytes out and back");
}

async fn small_receive_buffers_carry_large_messages(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    // A handshake needs more.
    let (bytes, credits) = if tests::device::has_tls() { (4096, 8) } else { (256, 4) };
    let link = LinkConfig::default().receive_buffer_bytes(bytes).data_credits(credits);
    let link = link.send_queue_slots(3);
    let client = world.client_with(|builder| builder.link(link)).await;
    for (seed, size) in [(1, 200), (2, 256), (3, 5000), (4, 300_000)] {
        both_ways(&client, size, seed).await;
    }
}

async fn errors_of_the_methods_own_type(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    for codec in CODECS {
        let client = world.client_with(|builder| builder.codec(codec)).await;
        assert_eq!(client.divide(7, -2).await, Ok(-3));
        let by_zero = client.divide(1, 0).await;
        assert_eq!(by_zero, Err(CallError::User(ProbeError::DivisionByZero)));
        let refused = client.refuse(403, "größe").await;
        let error = ProbeError::Refused { code: 403, reason: "größe".to_owned() };
        assert_eq!(refused, Err(CallError::User(error)));
        let huge = "x".repeat(100_000);
        let refused = client.refuse(1, &huge).await.expect_err("it always fails");
        assert_eq!(refused.user(), Some(ProbeError::Refused { code: 1, reason: huge }));
    }
}

async fn every_status_arrives_with_text_details_and_retryability(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let channel = world.channel_with(|builder| builder).await;
    for code in Code::ALL.into_iter().filter(|code| *code != Code::Ok) {
        let status = raw::fail(&channel, code).await.expect_err("it always fails");
        assert_eq!((status.code(), status.message()), (code, raw::TEXT));
        assert_eq!(status.details(), raw::details(code), "{code}");
        assert_eq!(status.is_retryable(), code == Code::Aborted, "{code}");
    }
}

async fn a_thousand_calls_within_16_slots(scheme: Scheme) {
    a_thousand_calls(scheme, "16").await;
}

async fn a_thousand_calls_within_100_slots(scheme: Scheme) {
    a_thousand_calls(scheme, "100").await;
}

async fn a_thousand_calls(scheme: Scheme, max_calls: &str) {
    let world = World::start_with(SERVER, scheme, &["--max-calls", max_calls]).await;
    let client = world.client().await;
    let calls = (0..1000_u64).map(|a| {
        let turns = u32::try_from(a % 4).expect("small");
        client.add_slowly(a, a * a, turns)
    });
    let sums = join_all(calls).await;
    for (a, sum) in (0..).zip(sums) {
        assert_eq!(sum, Ok(a + a * a));
    }
}

async fn a_thousand_handlers_at_once_on_one_connection(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let (client, other) = (world.client().await, world.client().await);
    let calls: Vec<_> = (0..1000).map(|_| client.hold(1).start()).collect();
    assert_eq!(marked(&other, 1, Mark::Started, 1000).await, 1000);
    assert_eq!(other.marks(1, Mark::Finished).await, Ok(0));
    other.open(1).await.expect("opened");
    assert_eq!(try_join_all(calls).await, Ok(vec![1; 1000]));
    assert_eq!(other.marks(1, Mark::Finished).await, Ok(1000));
}

async fn started_calls_return_in_any_order(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.client().await;
    // Gates are opened in the opposite order of the calls; the calls run without being awaited.
    let calls: Vec<_> = (0..20).map(|tag| client.hold(tag).start()).collect();
    for tag in (0..20).rev() {
        marked(&client, tag, Mark::Started, 1).await;
        client.open(tag).await.expect("opened");
        marked(&client, tag, Mark::Finished, 1).await;
    }
    // A started call does not borrow the client.
    drop(client);
    let mut tasks = tokio::task::JoinSet::new();
    for call in calls {
        tasks.spawn(call);
    }
    let mut tags: Vec<_> =
        tasks.join_all().await.into_iter().map(|tag| tag.expect("held")).collect();
    tags.sort_unstable();
    assert_eq!(tags, (0..20).collect::<Vec<_>>());
}

async fn large_and_small_calls_share_a_connection(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.client().await;
    let data = pattern(3 << 20, 5);
    let digest = (data.len() as u64, checksum(&data));
    let large = join_all((0..4).map(|_| client.digest(&data)));
    let small = join_all((0..200).map(|a| client.add(a, 1)));
    let (large, small) = futures::future::join(large, small).await;
    assert_eq!(large, vec![Ok(digest); 4]);
    assert!((0..).zip(small).all(|(a, sum)| sum == Ok(a + 1)));
}

async fn clones_of_a_client_share_its_connection(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.client().await;
    let tasks = (0..50_u64).map(|number| {
        let client = client.clone();
        tokio::spawn(async move { client.add(number, number).await })
    });
    for (number, sum) in (0..).zip(join_all(tasks).await) {
        assert_eq!(sum.expect("no panic"), Ok(2 * number));
    }
    let seen = client.seen().await.expect("seen");
    let clone = client.clone();
    drop(client);
    assert_eq!(clone.seen().await.expect("seen").peer, seen.peer);
}
