//! Peers that break the rules end their own connection, and nothing else.

use std::time::Duration;

use rpc_transport::connect::schemes;
use rpc_transport::device::{RemoteSlice, SendOp};
use rpc_transport::engine::spin::PollMode;
use rpc_transport::memory::region::Access;
use rpc_transport::protocol::config::LinkConfig;
use rpc_transport::protocol::credit::{FIRST_DATA_CREDITS, Grant};
use rpc_transport::protocol::frame::{self, Blocks, CloseCode, CloseReason, Frame, Kind, Segment};
use rpc_transport::protocol::handshake::Features;

use crate::probe::{Habit, Probe};
use crate::raw::Raw;
use crate::world::{End, Pair, WIRES, assert_home, fresh_address, run, shard};

/// The consequences of a raw peer's actions for its connection, on a shard that also serves another
/// one.
pub(crate) async fn suffer(probe: Probe, act: impl AsyncFnOnce(&mut Raw, &End)) -> String {
    let mut listener = schemes::listen(&fresh_address("mem")).await.unwrap();
    let resolved = schemes::resolve(&listener.local_address()).await.unwrap();
    let config = LinkConfig::default();
    let (server, driver) = shard(resolved.outgoing.device(), &config, 2, PollMode::Event);
    drop(resolved);
    let driver = tokio::spawn(driver);
    let (mut good, honest) =
        Raw::connect(&server, &mut *listener, &config, Probe::new(Habit::Count)).await;
    let (mut raw, end) = Raw::connect(&server, &mut *listener, &config, probe).await;
    let pools = end.pools();
    good.send(Grant::default(), b"before");
    act(&mut raw, &end).await;
    let cause = end.cause().await.to_string();
    tokio::select! {
        () = end.gone() => {}
        () = raw.listen() => {}
    }
    assert_home(&pools);
    good.send(Grant::default(), b"after");
    honest.received(2).await;
    drop(good);
    honest.gone().await;
    server.shutdown();
    driver.await.unwrap();
    assert_eq!((server.stats().entries, server.stats().unflushed), (0, 0));
    cause
}

/// A regression: such a completion carries the length of the write. Mistaken for the length of a
/// message it exceeded the RECV's buffer, and the panic ended every connection of the shard.
#[test]
fn a_write_with_immediate_is_no_message() {
    run("write", async {
        let cause = suffer(Probe::new(Habit::Keep), async |raw, end| {
            let region = end.shard.domain().allocate(1 << 20, Access::REMOTE_WRITE).unwrap();
            let to = RemoteSlice { address: region.remote_address(0), rkey: region.rkey() };
            raw.post_many(SendOp::WriteWithImm(to, 1), 1 << 20);
            while end.events().closed.is_empty() {
                raw.poll();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        assert_eq!(
            cause.await,
            "the peer broke the protocol: a write where a message was expected"
        );
    });
}

#[test]
fn bytes_that_are_no_frame_end_the_connection() {
    run("no frame", async {
        let cause = suffer(Probe::new(Habit::Keep), async |raw, _| {
            raw.post(SendOp::Send, b"what is this");
        });
        assert!(cause.await.starts_with("the peer broke the protocol: "));
    });
}

#[test]
fn violation_in_the_upper_layer_ends_the_connection() {
    run("rule", async {
        let mut probe = Probe::new(Habit::Keep);
        probe.hates = Some(5);
        let cause = suffer(probe, async |raw, _| {
            raw.send(Grant::default(), b"fine");
            raw.send(Grant::default(), b"hated");
            raw.send(Grant::default(), b"too late");
        });
        assert_eq!(cause.await, "the peer broke the protocol: it is hated");
    });
}

/// A regression: the queue pair went to ERR without a message, and the violator read "the peer is
/// gone".
#[test]
fn violator_receives_the_rule_before_the_end() {
    run("told", async {
        let mut told = Vec::new();
        let cause = suffer(Probe::new(Habit::Keep), async |raw, _| {
            let mut frame = frame::header(Kind::Data, Grant::default());
            frame[1] = 0x40;
            raw.post(SendOp::Send, &frame);
            told = raw.frames().await;
        });
        let rule = "CRC32C block without the feature being agreed in the handshake";
        assert_eq!(cause.await, format!("the peer broke the protocol: {rule}"));
        let reason = CloseReason::new(CloseCode::Protocol, rule);
        assert_eq!(told.last(), Some(&Frame::Close(reason)));
    });
}

/// Messages of a violator that is being closed must count for nothing, whatever they are.
#[test]
fn a_violator_is_heard_no_more() {
    run("heard", async {
        let cause = suffer(Probe::new(Habit::Count), async |raw, end| {
            raw.send(Grant { data: 999, ack: 999 }, b"more credits than there are");
            for _ in 0..8 {
                raw.send(Grant::default(), b"a message");
                raw.post(SendOp::Send, b"what is this");
            }
            raw.frames().await;
            assert_eq!(end.events().received, 0);
        });
        let cause = cause.await;
        assert!(cause.contains("grant"), "{cause}");
    });
}

/// A violation between two complete ends, on every wire: the end that broke the rule names it.
#[test]
fn the_error_of_a_violator_names_the_rule() {
    run("names", async {
        for wire in WIRES {
            let pair = Pair::new(wire).await;
            pair.server.with(|probe| probe.hates = Some(5));
            pair.client.send(b"fine");
            pair.client.send(b"hated");
            let text =
                "the peer closed the connection because this side broke the protocol: it is hated";
            assert_eq!(pair.client.cause().await.to_string(), text, "{wire}");
            let text = "the peer broke the protocol: it is hated";
            assert_eq!(pair.server.cause().await.to_string(), text, "{wire}");
            pair.end().await;
        }
    });
}

/// A peer that never takes its Close is dropped at the limit, and nothing of it remains.
#[test]
fn deaf_violator_is_dropped_at_the_limit() {
    run("does not listen", async {
        let mut listener = schemes::listen(&fresh_address("tcp")).await.unwrap();
        let resolved = schemes::resolve(&listener.local_address()).await.unwrap();
        let config = LinkConfig::default();
        let (server, driver) = shard(resolved.outgoing.device(), &config, 1, PollMode::Event);
        let driver = tokio::spawn(driver);
        let (mut raw, end) =
            Raw::connect(&server, &mut *listener, &config, Probe::new(Habit::Keep)).await;
        let pools = end.pools();
        // Never polled again: over tcp nothing completes at the other side.
        raw.post(SendOp::Send, b"what is this");
        assert!(end.cause().await.to_string().starts_with("the peer broke the protocol: "));
        end.gone().await;
        assert_home(&pools);
        server.shutdown();
        driver.await.unwrap();
    });
}

#[test]
fn a_peer_that_vanishes_is_gone() {
    run("vanishes", async {
        let cause = suffer(Probe::new(Habit::Keep), async |raw, end| {
            raw.send(Grant::default(), b"hello");
            end.received(1).await;
            raw.vanish();
        });
        assert_eq!(cause.await, "the peer is gone");
    });
}

/// A regression: a peer that asked without ever reading made answers pile up without a bound.
#[test]
fn a_peer_that_asks_without_reading_is_closed() {
    run("does not read", async {
        let mut probe = Probe::new(Habit::Echo);
        probe.backlog = 100;
        let cause = suffer(probe, async |raw, end| {
            // The first answers spend all of its initial data credits, which it never returns.
            // After that it receives acks, whose credits it returns at once.
            let mut given = 0;
            while end.events().closed.is_empty() {
                let acks = raw.poll().saturating_sub(FIRST_DATA_CREDITS.into());
                let grant = Grant { data: 0, ack: (acks - given) as u16 };
                given = acks;
                raw.send(grant, b"answer this");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        let text = "the peer broke the protocol: it does not read the replies to its requests";
        assert_eq!(cause.await, text);
    });
}

/// A write that the peer has no right to: with an invalid key, beyond the arena, or to a region of
/// another domain.
#[test]
fn wrong_rkey_ends_only_its_own_connection() {
    run("wrong key", async {
        for wrong in ["no key", "beyond", "another domain"] {
            let cause = suffer(Probe::new(Habit::Keep), async |raw, end| {
                let domain = match wrong {
                    "another domain" => end.shard.device().allocate_pd().unwrap(),
                    _ => end.shard.domain().clone(),
                };
                let region = domain.allocate(4096, Access::REMOTE_WRITE).unwrap();
                let to = RemoteSlice {
                    address: region.remote_address(if wrong == "beyond" { 4090 } else { 0 }),
                    rkey: region.rkey() ^ if wrong == "no key" { 0x5a5a } else { 0 },
                };
                raw.post(SendOp::Write(to), b"not here");
                while end.events().closed.is_empty() {
                    raw.poll();
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                let mut bytes = [1; 4096];
                region.copy_out(0, &mut bytes);
                assert_eq!(bytes, [0; 4096], "{wrong}");
            });
            let cause = cause.await;
            assert!(!cause.is_empty(), "{wrong}");
        }
    });
}

/// The rules of arenas, as a raw peer breaks them at a shard.
#[test]
fn broken_arena_rules_end_one_connection() {
    use rpc_transport::protocol::arena::{ArenaBlock, Extent, Extents};
    use rpc_transport::protocol::frame::Written;
    let extents = Extents::from_slice(&[Extent { first: 900, count: 1 }]).unwrap();
    let segment =
        Segment { number: 0, last: true, abort: false, head_end: true, offset: 0, total: 101 };
    let written = Some(Written { bytes: 100, extents });
    let blocks = [
        (
            Kind::Data,
            Blocks { segment: Some(segment), written, ..Blocks::default() },
            "chunks Extent { first: 900, count: 1 } are in no arena",
        ),
        (
            Kind::Release,
            Blocks { releases: extents, ..Blocks::default() },
            "chunks Extent { first: 900, count: 1 } are in no arena",
        ),
        (
            Kind::Release,
            Blocks { arena: Some(ArenaBlock::GivenUp(7)), ..Blocks::default() },
            "arena 7 does not exist",
        ),
    ];
    for (kind, blocks, rule) in blocks {
        run("arena", async move {
            let cause = suffer(Probe::new(Habit::Keep), async |raw, _| {
                let mut frame = blocks.to_prefix(kind, Grant::default());
                if kind == Kind::Data {
                    frame.extend_from_slice(b"h");
                }
                raw.post(SendOp::Send, &frame);
            });
            assert_eq!(cause.await, format!("the peer broke the protocol: {rule}"));
        });
    }
}

/// A regression: the frame whose segment woke the reader of a stream also broke a rule, and the
/// reader was taken out of the stream and dropped.
#[test]
fn reader_wakes_though_its_segment_breaks_a_rule() {
    run("reader", async {
        let features = Features::ARENA.with(Features::REPLY_SLOTS);
        let config = LinkConfig::default().keep_alive(None).assembly_bytes(1 << 20);
        let mut listener = schemes::listen(&fresh_address("mem")).await.unwrap();
        let resolved = schemes::resolve(&listener.local_address()).await.unwrap();
        let (server, driver) = shard(resolved.outgoing.device(), &config, 1, PollMode::Event);
        drop(resolved);
        let driver = tokio::spawn(driver);
        let probe = Probe::new(Habit::Keep);
        let (mut raw, end) =
            Raw::connect_with(features, &server, &mut *listener, &config, probe).await;
        let frame = |offset, head_end, done: Vec<u32>| {
            let (number, last, abort, total) = (0, false, false, 2 << 20);
            let segment = Some(Segment { number, last, abort, head_end, offset, total });
            let blocks = Blocks { segment, done, ..Blocks::default() };
            let mut frame = blocks.to_prefix(Kind::Data, Grant::default());
            frame.extend_from_slice(&[7; 200]);
            frame.to_vec()
        };
        raw.post(SendOp::Send, &frame(0, true, Vec::new()));
        let mut stream = end.next().await.take_stream().expect("it is long");
        let (waits, waiting) = tokio::sync::oneshot::channel();
        let mut waits = Some(waits);
        let reads = tokio::spawn(async move {
            let first = std::future::poll_fn(|cx| {
                let polled = stream.poll_next(cx);
                if polled.is_pending()
                    && let Some(waits) = waits.take()
                {
                    waits.send(()).unwrap();
                }
                polled
            });
            first.await;
            while let Some(Ok(_)) = stream.next().await {}
        });
        waiting.await.unwrap();
        raw.post(SendOp::Send, &frame(200, false, vec![99]));
        assert!(end.cause().await.to_string().starts_with("the peer broke the protocol: "));
        tokio::select! {
            () = end.gone() => {}
            () = raw.listen() => {}
        }
        let read = tokio::time::timeout(Duration::from_secs(10), reads).await;
        read.expect("it waits for ever").unwrap();
        server.shutdown();
        driver.await.unwrap();
    });
}
