//! Heads and tails: large messages through arenas, over every wire.

use std::collections::VecDeque;

use rpc_transport::device::connection_error::CloseCause;
use rpc_transport::device::fault::FaultPlan;
use rpc_transport::engine::spin::PollMode;
use rpc_transport::message::payload::Payload;
use rpc_transport::message::received::Message;
use rpc_transport::protocol::arena::ArenaConfig;

use crate::parts::{KEEP, quiet, region, send, shared, streaming, warm_up, whole};
use crate::random::{PrintSeed, Random, variable};
use crate::world::{End, Options, Pair, WIRES, assert_home, parked, pattern, run};

/// Chunks of the receiver: the number that hold messages, and the total.
fn held(end: &End) -> (u32, u32) {
    let metrics = end.shard.link_metrics(end.key).unwrap();
    (metrics.landing_held, metrics.landing_chunks)
}

#[test]
fn tails_of_every_memory_kind_reach_the_arena() {
    run("kinds", async {
        for wire in WIRES {
            let pair = Pair::with(wire, &Options { habits: KEEP, ..Options::default() }).await;
            warm_up(&pair.client, &pair.server).await;
            let (a, b, c) = (pattern(1, 300_000), pattern(2, 77), pattern(3, 65_536));
            let ours = whole(region(&pair.client, &a));
            let theirs = whole(region(&pair.server, &c));
            send(&pair.client, b"head", [ours, shared(b.clone()), theirs]);
            let mut message = pair.server.next().await;
            assert_eq!(&*message, b"head");
            let tail = message.take_tail().unwrap();
            assert!(!tail.is_private(), "{wire}: {tail:?}");
            let expected = [a, b, c].concat();
            assert!(tail.to_vec().unwrap() == expected, "{wire}");
            assert!(held(&pair.server).0 > 0);
            // Forwarded in place.
            send(&pair.server, b"back", tail.slice(5..300_100).to_parts().unwrap());
            drop(tail);
            let back = pair.client.next().await.take_tail().unwrap();
            assert!(back.to_vec().unwrap() == expected[5..300_100], "{wire}");
            drop(back);
            warm_up(&pair.client, &pair.server).await;
            pair.end().await;
        }
    });
}

#[test]
fn first_large_message_requests_the_arena() {
    run("first", async {
        for wire in WIRES {
            let pair = Pair::with(wire, &Options { habits: KEEP, ..Options::default() }).await;
            pair.client.send(b"small");
            pair.server.next().await;
            assert_eq!(held(&pair.server), (0, 0));
            warm_up(&pair.client, &pair.server).await;
            assert!(held(&pair.server).1 > 0);
            assert_eq!(held(&pair.client), (0, 0), "the other direction has none");
            pair.end().await;
        }
    });
}

#[test]
fn large_messages_arrive_without_an_arena() {
    run("none", async {
        let arena = ArenaConfig::default().max_chunks(0);
        let options = Options { habits: KEEP, ..Options::alike(quiet().arena(arena)) };
        for wire in WIRES {
            let pair = Pair::with(wire, &options).await;
            for round in 0..5 {
                let len = 200_000 + round;
                send(&pair.client, &pattern(round as u64, 10_000), [shared(pattern(3, len))]);
                let mut message = pair.server.next().await;
                assert!(*message == pattern(round as u64, 10_000)[..]);
                let tail = message.take_tail().unwrap();
                assert!(tail.is_private());
                assert!(tail.to_vec().unwrap() == pattern(3, len));
            }
            pair.end().await;
        }
    });
}

/// The application holds everything it receives, and more messages keep arriving: as private
/// copies.
#[test]
fn an_application_that_holds_everything_stalls_nothing() {
    run("hold", async {
        let arena = ArenaConfig::default().arena_chunks(8).max_chunks(16);
        let options = Options { habits: KEEP, ..Options::alike(quiet().arena(arena)) };
        for wire in WIRES {
            let pair = Pair::with(wire, &options).await;
            warm_up(&pair.client, &pair.server).await;
            let mut all: Vec<Message> = Vec::new();
            for number in 0..30 {
                send(&pair.client, &[number], [shared(pattern(number.into(), 150_000))]);
                all.push(pair.server.next().await);
            }
            let remote = |message: &&Message| !message.tail().unwrap().is_private();
            let count = all.iter().filter(remote).count();
            assert!(count > 0 && count < all.len(), "{wire}: {count} of {} are remote", all.len());
            let (chunks, of) = held(&pair.server);
            assert!(chunks > 0 && chunks <= of / 2, "{wire}: {chunks} of {of}");
            for (number, message) in (0..).zip(&all) {
                assert!(message.tail().unwrap().to_vec().unwrap() == pattern(number, 150_000));
            }
            drop(all);
            warm_up(&pair.client, &pair.server).await;
            pair.end().await;
        }
    });
}

/// With the smallest arena, and half of it held: the chunks that the transport returns are enough.
#[test]
fn half_an_arena_is_enough_to_go_on() {
    run("wake", async {
        let arena = ArenaConfig::default().arena_chunks(2).max_chunks(2);
        let config = quiet().arena(arena);
        let options = Options { habits: KEEP, mode: PollMode::Event, ..Options::alike(config) };
        for wire in WIRES {
            let pair = Pair::with(wire, &options).await;
            warm_up(&pair.client, &pair.server).await;
            for round in 0..300_u64 {
                let len = 40_000;
                send(&pair.client, b"one", [shared(pattern(round, len))]);
                let first = pair.server.next().await.take_tail().unwrap();
                send(&pair.client, b"two", [shared(pattern(round + 1, len))]);
                send(&pair.client, b"three", [shared(pattern(round + 2, len))]);
                let second = pair.server.next().await.take_tail().unwrap();
                drop(first);
                let third = pair.server.next().await.take_tail().unwrap();
                assert!(second.to_vec().unwrap() == pattern(round + 1, len));
                assert!(third.to_vec().unwrap() == pattern(round + 2, len));
            }
            pair.end().await;
        }
    });
}

/// Payloads of all sizes both ways, held for a while and dropped anywhere.
async fn exchange(wire: &str, options: Options, count: u64) {
    let seed = variable("MODEL_SEED").unwrap_or(11);
    let _print = PrintSeed::new(seed);
    let mut random = Random::new(seed);
    let pair = Pair::with(wire, &options).await;
    let ends = [&pair.client, &pair.server];
    let mut sent: [VecDeque<Vec<u8>>; 2] = Default::default();
    let mut held: Vec<(Vec<u8>, Payload)> = Vec::new();
    for _ in 0..count {
        let at = usize::from(random.below(2) == 0);
        while sent[at].len() < 6 {
            let mut expected = Vec::new();
            let mut parts = Vec::new();
            for _ in 0..1 + random.below(9) {
                let most = random.pick(&[2, 300, 9000, 20_000, 70_000, 300_000]);
                let bytes = pattern(random.below(1000), 1 + random.below(most) as usize);
                expected.extend_from_slice(&bytes);
                let is_registered = random.below(2) == 0;
                let registered = |bytes: &[u8]| whole(region(ends[at], bytes));
                parts.push(if is_registered { registered(&bytes) } else { shared(bytes) });
            }
            send(ends[at], b"head", parts);
            sent[at].push_back(expected);
        }
        let mut message = ends[1 - at].next().await;
        assert_eq!(*message, *b"head");
        let expected = sent[at].pop_front().unwrap();
        held.push((expected, message.take_tail().unwrap()));
        while held.len() > random.below(6) as usize {
            let (expected, tail) = held.swap_remove(random.below(held.len() as u64) as usize);
            assert!(tail.to_vec().unwrap() == expected, "{tail:?} arrived changed");
        }
    }
    drop(held);
    for (at, sent) in sent.iter().enumerate() {
        for _ in sent {
            drop(ends[1 - at].next().await);
        }
    }
    pair.end().await;
}

#[test]
fn payloads_of_all_sizes_arrive_over_every_wire() {
    run("exchange", async {
        for wire in WIRES {
            let options = Options { mode: PollMode::Adaptive, habits: KEEP, ..Options::default() };
            exchange(wire, options, 300).await;
        }
    });
}

#[test]
fn payloads_of_all_sizes_pass_a_tiny_arena() {
    run("tiny", async {
        for (wire, mode) in
            WIRES.into_iter().zip([PollMode::Event, PollMode::Busy, PollMode::Event])
        {
            for chunks in [1, 2, 3, 7] {
                let arena = ArenaConfig::default()
                    .log2_chunk(13)
                    .arena_chunks(chunks)
                    .max_chunks(u32::from(chunks) * 2);
                let config = quiet().arena(arena);
                let options = Options { mode, habits: KEEP, ..Options::alike(config) };
                exchange(wire, options, 60).await;
            }
        }
    });
}

/// Completions come late and out of turn, and memory is read long after the post.
#[test]
fn payloads_of_all_sizes_survive_a_faulty_device() {
    run("bad device", async {
        for seed in 0..12 {
            let plan = FaultPlan::new(seed)
                .delay_completions(20)
                .interleave_queues(true)
                .poison_receives(true)
                .touch_memory_late(30);
            let options =
                Options { habits: KEEP, faults: Some([plan.clone(), plan]), ..Options::default() };
            exchange(["mem", "shm", "tcp"][seed as usize % 3], options, 25).await;
        }
    });
}

/// The end comes in the middle of transfers: arrived data can still be read, and every buffer
/// returns.
#[test]
fn end_during_transfers_leaves_nothing_behind() {
    run("end", async {
        for round in 0..60_u64 {
            let wire = WIRES[round as usize % 3];
            let pair = Pair::with(wire, &Options { habits: KEEP, ..Options::default() }).await;
            warm_up(&pair.client, &pair.server).await;
            send(&pair.client, b"kept", [shared(pattern(5, 90_000))]);
            let kept = pair.server.next().await.take_tail().unwrap();
            for number in 0..8 {
                send(&pair.client, b"lost", [shared(pattern(number, 700_000))]);
            }
            for _ in 0..round % 7 {
                drop(pair.server.next().await);
            }
            let pools = [pair.client.pools(), pair.server.pools()].concat();
            let victim = if round % 2 == 0 { &pair.client } else { &pair.server };
            victim.shard.fail(victim.key, &CloseCause::Local);
            pair.client.gone().await;
            pair.server.gone().await;
            assert!(kept.to_vec().unwrap() == pattern(5, 90_000), "{wire}");
            for end in [&pair.client, &pair.server] {
                end.shard.look(end.key, |probe| std::mem::take(&mut probe.inbox));
                end.shard.release(end.key);
                end.shard.shutdown();
            }
            for driver in pair.drivers {
                driver.await.unwrap();
            }
            assert_home(&pools);
        }
    });
}

/// The writer waits for the chunks of a stream while both drivers sleep: a dropped segment wakes
/// the owner.
#[test]
fn a_dropped_segment_wakes_a_sleeping_driver() {
    run("wake", async {
        let mode = PollMode::Event;
        for wire in WIRES {
            let options = Options { habits: KEEP, mode, ..Options::alike(streaming()) };
            let pair = Pair::with(wire, &options).await;
            warm_up(&pair.client, &pair.server).await;
            send(&pair.client, b"long", (0..4).map(|part| shared(pattern(part, 2 << 20))));
            let mut stream = pair.server.next().await.take_stream().unwrap();
            let mut read = 0;
            while let Some(segment) = stream.next().await {
                let segment = segment.unwrap();
                read += segment.len();
                parked(&pair.server.shard).await;
                parked(&pair.client.shard).await;
                drop(segment);
            }
            assert_eq!(read, 8 << 20);
            drop(stream);
            pair.end().await;
        }
    });
}

/// A consumer that does not read blocks only large messages of that direction; dropping the stream
/// unblocks them.
#[test]
fn unread_stream_stops_no_small_message() {
    run("unread", async {
        for wire in WIRES {
            let options = Options { habits: KEEP, ..Options::alike(streaming()) };
            let pair = Pair::with(wire, &options).await;
            warm_up(&pair.client, &pair.server).await;
            send(&pair.client, b"long", [shared(pattern(1, 2 << 20)), shared(pattern(2, 2 << 20))]);
            let mut long = pair.server.next().await;
            let stream = long.take_stream().unwrap();
            for number in 0..500_u64 {
                pair.client.send(&number.to_le_bytes());
                assert_eq!(*pair.server.next().await, number.to_le_bytes());
                pair.server.send(&number.to_le_bytes());
                assert_eq!(*pair.client.next().await, number.to_le_bytes());
            }
            send(&pair.client, b"next", [shared(pattern(3, 100_000))]);
            drop(stream);
            let next = pair.server.next().await.take_tail().unwrap();
            assert!(next.to_vec().unwrap() == pattern(3, 100_000));
            drop(next);
            pair.end().await;
        }
    });
}

#[test]
fn end_of_a_connection_ends_its_streams() {
    run("stream's end", async {
        for wire in WIRES {
            let options = Options { habits: KEEP, ..Options::alike(streaming()) };
            let pair = Pair::with(wire, &options).await;
            warm_up(&pair.client, &pair.server).await;
            send(&pair.client, b"long", [shared(pattern(1, 2 << 20)), shared(pattern(2, 2 << 20))]);
            let mut stream = pair.server.next().await.take_stream().unwrap();
            let first = stream.next().await.unwrap().unwrap();
            pair.client.shard.fail(pair.client.key, &CloseCause::Local);
            pair.server.gone().await;
            let error = loop {
                match stream.next().await.unwrap() {
                    Ok(segment) => drop(segment),
                    Err(error) => break error,
                }
            };
            assert!(error.to_string().starts_with("the connection ended after "), "{error}");
            assert!(stream.next().await.is_none());
            assert!(first.to_vec().unwrap() == pattern(1, 2 << 20)[..first.len() as usize]);
            for end in [&pair.client, &pair.server] {
                end.shard.release(end.key);
                end.shard.shutdown();
            }
        }
    });
}
