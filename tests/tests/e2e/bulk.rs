//! Large payloads: intact in every type and size, and gone without a trace when calls end early.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{join_all, try_join_all};
use rpc_core::identity::Protection;
use rpc_core::transport::Isolation;
use rpc_core::{Bulk, Code, Codec, LinkConfig};
use tests::probe::{Mark, Parcel, ProbeClient};
use tests::scheme::Scheme;
use tests::service::{checksum, digest_of, pattern};
use tests::world::{World, marked};

use crate::SERVER;

on_every_scheme! {
    payloads_of_every_size_come_back,
    every_kind_of_memory_is_sent_alike,
    payloads_travel_inside_of_other_types,
    byte_strings_of_every_type_travel_alike,
    repeated_byte_strings_arrive_unchanged,
    thresholds_of_either_side_change_nothing,
    replies_land_in_their_buffers,
    replies_are_written_into_their_slots,
    kept_payloads_do_not_stop_others,
    small_calls_pass_large_ones,
    cancelled_calls_with_payloads_leave_the_connection_usable,
    deadlines_pass_while_payloads_are_held,
    payloads_beyond_the_limit_are_refused_by_name,
}

between_processes! {
    a_killed_server_ends_calls_with_payloads,
    a_stopped_server_blocks_no_caller,
}

fn digest(bytes: &[u8]) -> (u64, u64) {
    (bytes.len() as u64, checksum(bytes))
}

async fn there_and_back(client: &ProbeClient, size: usize, seed: u64) {
    let data = pattern(size, seed);
    let bulk = Bulk::from(data.clone());
    assert_eq!(client.digest_bulk(bulk.clone()).await, Ok(digest(&data)), "{size} bytes out");
    let produced = client.produce_bulk(size as u64, seed).await.expect("produced");
    let produced = produced.expect("a handler has a pool");
    assert_eq!(digest_of(&produced).await.expect("read"), digest(&data), "{size} bytes back");
    drop(produced);
    let back = client.bulk(bulk).await.expect("given back");
    assert!(back == data, "{size} bytes out and back");
    let detached = back.detach().expect("readable");
    assert!(!detached.is_remote());
    assert!(detached.as_slice().is_some_and(|bytes| bytes == data));
}

async fn payloads_of_every_size_come_back(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    for codec in [Codec::Bincode, Codec::Postcard] {
        let client = world.client_with(|builder| builder.codec(codec)).await;
        let sizes = [0, 1, 8191, 8192, 8193, 65_536, 65_537, 300_001, 1 << 20, (5 << 20) + 3];
        for (seed, size) in (0..).zip(sizes) {
            there_and_back(&client, size, seed).await;
        }
    }
}

async fn every_kind_of_memory_is_sent_alike(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let (client, other) = (world.client().await, world.client().await);
    let data = pattern(1 << 20, 3);
    let pool = client.channel().bulk_pool();
    let mut buffer = pool.take(data.len()).expect("a buffer");
    buffer.copy_from_slice(&data);
    let kinds = [
        Bulk::from(data.clone()),
        Bulk::from(Bytes::from(data.clone())),
        buffer.freeze(),
        pool.register(data.clone()).expect("registered"),
        other.bulk(Bulk::from(data.clone())).await.expect("from another connection"),
        client.bulk(Bulk::from(data.clone())).await.expect("from this connection"),
    ];
    for kind in &kinds {
        // Several concurrent calls from one memory, whole and in part.
        let whole = client.digest_bulk(kind.clone());
        let part = client.digest_bulk(kind.slice(1..data.len() as u64 - 7));
        let elsewhere = other.digest_bulk(kind.slice(5..500_000));
        let (whole, part, elsewhere) = tokio::join!(whole, part, elsewhere);
        assert_eq!(whole, Ok(digest(&data)), "{kind:?}");
        assert_eq!(part, Ok(digest(&data[1..data.len() - 7])), "{kind:?}");
        assert_eq!(elsewhere, Ok(digest(&data[5..500_000])), "{kind:?}");
    }
}

fn parcel(seed: u64, depth: u64) -> Parcel {
    let bulk = |size, seed| Bulk::from(pattern(size, seed));
    Parcel {
        name: format!("parcel {seed}"),
        content: bulk(20_000, seed),
        label: (!seed.is_multiple_of(3)).then(|| bulk(100, seed + 1)),
        inside: (0..depth).map(|at| parcel(10 * seed + at, depth - 1)).collect(),
    }
}

async fn payloads_travel_inside_of_other_types(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    for codec in [Codec::Bincode, Codec::Postcard] {
        let client = world.client_with(|builder| builder.codec(codec)).await;
        let sent = vec![parcel(1, 3), parcel(2, 0), parcel(3, 1)];
        let mut back = client.parcels(sent.clone()).await.expect("given back");
        back.reverse();
        assert!(back == sent, "{codec:?}");
    }
}

async fn byte_strings_of_every_type_travel_alike(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    for codec in [Codec::Bincode, Codec::Postcard] {
        let client = world.client_with(|builder| builder.codec(codec)).await;
        for size in [10, 9_000, 200_000] {
            let data: Vec<Vec<u8>> = (0..6).map(|seed| pattern(size, seed)).collect();
            let sums = client.digests(
                &data[0],
                Cow::Borrowed(&data[1]),
                data[2].clone(),
                Bytes::from(data[3].clone()),
                Bulk::from(data[4].clone()),
                Some(&data[5]),
            );
            let expected: Vec<u64> = data.iter().map(|bytes| checksum(bytes)).collect();
            assert_eq!(sums.await, Ok(expected), "{codec:?} {size}");
        }
    }
}

async fn repeated_byte_strings_arrive_unchanged(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.client().await;
    for round in 0..2 {
        for seed in 0..12 {
            let data = Bytes::from(pattern(300_001 + 130_000 * seed, round));
            assert!(client.blob(data.clone()).await == Ok(data), "{seed} of round {round}");
        }
        let data = pattern(1 << 20, round);
        assert_eq!(client.digest_bulk(Bulk::from(data.clone())).await, Ok(digest(&data)));
        let several = (0..8).map(|seed| Bytes::from(pattern(900_000 + 100_000 * seed, round)));
        let several: Vec<_> = several.collect();
        let back = try_join_all(several.iter().map(|data| client.blob(data.clone()))).await;
        assert!(back == Ok(several), "several at once in round {round}");
    }
}

async fn thresholds_of_either_side_change_nothing(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    for threshold in [0, 1, 100, 1 << 20, usize::MAX] {
        let client = world.client_with(|builder| builder.min_part_bytes(threshold)).await;
        for size in [0, 1, 99, 5_000, 100_000] {
            there_and_back(&client, size, size as u64).await;
            let data = pattern(size, 9);
            assert_eq!(client.echo(&data).await.as_deref(), Ok(&*data), "{threshold} {size}");
        }
    }
}

async fn replies_land_in_their_buffers(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.client().await;
    let mut buffer = client.channel().bulk_pool().take(1 << 20).expect("a buffer");
    let address = buffer.as_ptr();
    for (seed, size) in (0..).zip([1 << 20, 500_000, 300_000]) {
        let reply = client.produce_bulk(size as u64, seed).into(buffer).await;
        let bulk = reply.expect("produced").expect("a handler has a pool");
        let bytes = bulk.as_slice().expect("what lies in a buffer is private");
        assert!(bytes == pattern(size, seed));
        assert_eq!(bytes.as_ptr(), address);
        buffer = bulk.try_into_mut().expect("nobody else has it");
    }
    // More than the buffer holds.
    buffer = client.channel().bulk_pool().take(10).expect("a buffer");
    let reply = client.produce_bulk(2 << 20, 7).into(buffer).await;
    assert!(reply.expect("produced").expect("a pool") == pattern(2 << 20, 7));
    // Nothing large at all.
    buffer = client.channel().bulk_pool().take(10).expect("a buffer");
    assert_eq!(client.add(1, 2).into(buffer).await, Ok(3));
}

async fn replies_are_written_into_their_slots(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let own_domain = LinkConfig::default().isolation(Isolation::PerConnection);
    for link in [LinkConfig::default(), own_domain] {
        let client = world.client_with(|builder| builder.link(link)).await;
        replies_are_written_into_slots(client, world.client().await).await;
    }
}

async fn replies_are_written_into_slots(client: ProbeClient, other: ProbeClient) {
    let pool = client.channel().bulk_pool();
    // Encrypted replies are written into no slot: they come as all large ones do.
    let path = client.channel().path().expect("it is connected");
    let is_encrypted = path.identity.protection() == Some(Protection::Encrypt);
    let mut kept = Vec::new();
    for (seed, size) in (0..).zip([1 << 20, 500_000, 300_000, 3_000_000, 20_000]) {
        let slot = pool.slot(3_000_000).expect("a slot");
        let reply = client.produce_bulk(size as u64, seed).into(slot).await;
        let bulk = reply.expect("produced").expect("a handler has a pool");
        assert!(bulk.is_remote() || is_encrypted, "it is not in the slot");
        let expected = pattern(size, seed);
        assert!(bulk == expected, "{size}");
        // Received payloads are sent on in place.
        assert_eq!(client.digest_bulk(bulk.clone()).await, Ok(digest(&expected)));
        kept.push((bulk, expected));
    }
    // Each has memory of its own.
    assert!(kept.iter().all(|(bulk, expected)| bulk == expected));
    drop(kept);
    // More than the slot holds, nothing large, and the slot of another connection.
    let slot = pool.slot(100_000).expect("a slot");
    let reply = client.produce_bulk(2 << 20, 7).into(slot).await;
    assert!(reply.expect("produced").expect("a pool") == pattern(2 << 20, 7));
    assert_eq!(client.add(1, 2).into(pool.slot(10).expect("a slot")).await, Ok(3));
    let foreign = other.channel().bulk_pool().slot(1 << 20).expect("a slot");
    let reply = client.produce_bulk(1 << 20, 8).into(foreign).await;
    assert!(reply.expect("produced").expect("a pool") == pattern(1 << 20, 8));
    // Many concurrent calls, some of them cancelled; a late write lands in no other call's memory.
    for round in 0..5 {
        let call =
            |seed| client.produce_bulk(1 << 20, seed).into(pool.slot(1 << 20).expect("a slot"));
        let given_up: Vec<_> = (0..4).map(|seed| call(100 + seed).start()).collect();
        let calls: Vec<_> = (0..6).map(|seed| call(seed).start()).collect();
        drop(given_up);
        for (seed, bulk) in (0..).zip(try_join_all(calls).await.expect("produced")) {
            assert!(bulk.expect("a pool") == pattern(1 << 20, seed), "{round} {seed}");
        }
    }
    let held =
        client.hold_bulk(1, Bulk::from(vec![1; 1 << 20])).into(pool.slot(1 << 20).expect("a slot"));
    let status = held.timeout(Duration::from_millis(50)).await.expect_err("nobody opens");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    there_and_back(&client, 2 << 20, 8).await;
}

async fn kept_payloads_do_not_stop_others(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.client().await;
    // Far more than any arena has.
    let data: Vec<Vec<u8>> = (0..24).map(|seed| pattern(1 << 20, seed)).collect();
    for (count, bytes) in (1..).zip(&data) {
        assert_eq!(client.keep(Bulk::from(bytes.clone())).await, Ok(count));
    }
    let kept: Vec<Bulk> = try_join_all((0..24).map(|seed| client.produce_bulk(1 << 20, seed)))
        .await
        .expect("produced")
        .into_iter()
        .map(|bulk| bulk.expect("a handler has a pool"))
        .collect();
    there_and_back(&client, 3 << 20, 5).await;
    let digests: Vec<_> = data.iter().map(|bytes| digest(bytes)).collect();
    assert!(kept.iter().zip(&data).all(|(bulk, bytes)| bulk == bytes));
    assert_eq!(client.let_go().await, Ok(digests));
    drop(kept);
    there_and_back(&client, 3 << 20, 6).await;
}

async fn small_calls_pass_large_ones(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.client().await;
    let data = pattern(3 << 20, 5);
    let large = join_all((0..4).map(|_| client.digest_bulk(Bulk::from(data.clone()))));
    let small = join_all((0..200).map(|a| client.add(a, 1)));
    let (large, small) = futures::future::join(large, small).await;
    assert_eq!(large, vec![Ok(digest(&data)); 4]);
    assert!((0..).zip(small).all(|(a, sum)| sum == Ok(a + 1)));
}

async fn cancelled_calls_with_payloads_leave_the_connection_usable(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let (client, other) = (world.client().await, world.client().await);
    let data = Bulk::from(pattern(1 << 20, 1));
    for round in 0..10 {
        // Some are held by their handlers, some are in flight, some were never sent.
        let calls: Vec<_> = (0..8).map(|_| client.hold_bulk(round, data.clone()).start()).collect();
        marked(&other, round, Mark::Started, 1).await;
        drop(calls);
        drop(client.bulk(data.clone()));
        drop(client.bulk(data.clone()).start());
    }
    let held = client.hold_bulk(99, data.clone()).start();
    marked(&other, 99, Mark::Started, 1).await;
    other.open(99).await.expect("opened");
    assert!(held.await.expect("held") == data);
    there_and_back(&client, 2 << 20, 8).await;
}

async fn deadlines_pass_while_payloads_are_held(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.client().await;
    let data = Bulk::from(pattern(1 << 20, 1));
    let calls = (0..6_u64)
        .map(|at| client.hold_bulk(1, data.clone()).timeout(Duration::from_millis(20 * at + 1)));
    for outcome in join_all(calls).await {
        let status = outcome.expect_err("nobody opens the gate");
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    }
    there_and_back(&client, 2 << 20, 8).await;
}

async fn payloads_beyond_the_limit_are_refused_by_name(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let link = LinkConfig::default().max_message_bytes(1 << 20);
    let client = world.client_with(|builder| builder.link(link)).await;
    let status = client.bulk(Bulk::from(vec![0; 65 << 20])).await.expect_err("too large");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("`max_message_bytes`"), "{status}");
    let status = client.produce_bulk(2 << 20, 1).await.expect_err("too large for this end");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("`max_message_bytes`"), "{status}");
    there_and_back(&client, 900_000, 1).await;
}

async fn a_killed_server_ends_calls_with_payloads(scheme: Scheme) {
    let mut world = World::start(SERVER, scheme).await;
    let (client, other) = (world.client().await, world.client().await);
    let data = pattern(8 << 20, 7);
    let kept = client.produce_bulk(1 << 20, 4).await.expect("produced").expect("a pool");
    let held = client.hold_bulk(1, Bulk::from(data.clone())).start();
    marked(&other, 1, Mark::Started, 1).await;
    let calls: Vec<_> = (0..4).map(|_| client.bulk(Bulk::from(data.clone())).start()).collect();
    world.process().kill().await;
    let status = held.await.expect_err("the server is dead");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    for outcome in join_all(calls).await {
        match outcome {
            Ok(back) => assert!(back == data, "answered before the end"),
            Err(status) => assert_eq!(status.code(), Code::Unavailable, "{status}"),
        }
    }
    // Received data is still there.
    assert!(kept == pattern(1 << 20, 4));
}

async fn a_stopped_server_blocks_no_caller(scheme: Scheme) {
    let mut world = World::start(SERVER, scheme).await;
    let client = world.client().await;
    let data = pattern(4 << 20, 2);
    assert_eq!(client.digest_bulk(Bulk::from(data.clone())).await, Ok(digest(&data)));
    world.process().stop();
    let calls =
        (0..4).map(|_| client.bulk(Bulk::from(data.clone())).timeout(Duration::from_millis(100)));
    for outcome in join_all(calls).await {
        assert_eq!(outcome.expect_err("stopped").code(), Code::DeadlineExceeded);
    }
    world.process().resume();
    there_and_back(&client, 4 << 20, 3).await;
}
