//! A server with clients that break the rules: it closes their connections, and its other clients
//! are not affected.

use rpc_core::service::{Dispatch, MethodDescriptor};
use rpc_core::{Code, ConnectError};
use rpc_transport::protocol::handshake::Reject;
use tests::hostile::bytes::{
    data, hello, link_header, request, segment, session_header, session_of,
};
use tests::hostile::{Heard, HostilePeer, honest_offer};
use tests::probe::{Mark, ProbeClient, ProbeServer};
use tests::scheme::Scheme;
use tests::service::ProbeService;
use tests::world::{World, marked};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::SERVER;

on_every_device! {
    broken_rules_end_their_own_connection_alone,
    a_replayed_request_ends_the_connection,
    a_request_beyond_the_limit_ends_the_connection,
    requests_without_a_checked_signature_are_refused,
    arguments_that_claim_too_much_are_refused,
    a_cancel_of_anything_is_harmless,
    malformed_handshakes_are_rejected_with_a_reason,
    a_client_that_never_reads_gets_little,
    peers_that_vanish_during_a_message,
}

fn method(name: &str) -> &'static MethodDescriptor {
    let server = ProbeServer::new(ProbeService::default());
    let methods = server.descriptor().methods;
    methods.iter().find(|method| method.name == name).expect("it is there")
}

async fn hostile(world: &World) -> HostilePeer {
    HostilePeer::connect(&world.address).await.expect("an honest handshake")
}

/// The arguments of `hold`, encoded: a number below 251 is one byte.
fn tag(tag: u8) -> Vec<u8> {
    vec![tag]
}

async fn broken_rules_end_their_own_connection_alone(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let honest = world.client().await;
    let say = |session: Vec<u8>| vec![data(&hello(0)), data(&session)];
    let cases: Vec<Vec<Vec<u8>>> = vec![
        vec![vec![]],
        vec![vec![0]],
        vec![vec![0xff; 4 * 1024]],
        // Longer than any RECV of the server.
        vec![vec![1; 32 * 1024]],
        vec![link_header(0, 0, 0, 0)],
        vec![link_header(1, 0xff, 0, 0)],
        vec![link_header(2, 0, u16::MAX, u16::MAX)],
        vec![link_header(5, 0, 0, 0)],
        vec![segment(0, 0, 0, u64::MAX, b"x")],
        vec![segment(0, 0, 1 << 63, 1 << 40, b"x")],
        vec![segment(3, 1, 0, 1, b"x")],
        vec![segment(0, 0, 0, 10, b"x"), segment(0, 0, 0, 10, b"x")],
        vec![data(b"")],
        vec![data(&[0xff; 4000])],
        vec![data(&request(0, 1, method("Probe.nothing"), None, b""))],
        vec![data(&hello(0)), data(&hello(0))],
        say(session_header(0, 0, 0, 0, 0, 0)),
        say(session_header(7, 0, 0, 0, 0, 1)),
        say(session_header(3, 0, 0, 0, 0, 1)),
        say(session_header(2, 0xf0, 1, 0, 0, 1)),
        say(session_header(2, 0, 1, 0, 0, 0)),
        say(session_header(2, 0, 1, 0, u32::MAX, 1)),
        say([session_header(2, 0x04, 1, 0, 0, 1), vec![0xff, 0xff]].concat()),
        say(session_header(4, 0, 0, 0, u32::MAX, 1)),
        say(session_header(5, 0, 0, 0, 0, 1)),
        say(session_header(10, 1, 0, 0, 0, 0)),
    ];
    for frames in cases {
        let mut peer = hostile(&world).await;
        for frame in &frames {
            peer.send(frame);
        }
        peer.hear_to_the_end().await;
        assert_eq!(honest.add(20, 22).await, Ok(42), "after {frames:?}");
    }
    let late = world.client().await;
    assert_eq!(late.add(1, 1).await, Ok(2));
}

/// The next answer: status and slot.
async fn answer(peer: &mut HostilePeer) -> (u8, u32) {
    loop {
        let Heard::Frame(frame, _) = peer.hear().await else { panic!("the server is gone") };
        if let Some((3, status, slot)) = session_of(&frame) {
            return (status, slot);
        }
    }
}

async fn a_replayed_request_ends_the_connection(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let honest = world.client().await;
    let mut peer = hostile(&world).await;
    peer.send(&data(&hello(0)));
    let hold = data(&request(0, 1, method("Probe.hold"), None, &tag(1)));
    peer.send(&hold);
    marked(&honest, 1, Mark::Started, 1).await;
    peer.send(&hold);
    peer.hear_to_the_end().await;
    // Gone with its caller.
    assert_eq!(marked(&honest, 1, Mark::Cancelled, 1).await, 1);
    assert_eq!(honest.marks(1, Mark::Started).await, Ok(1));

    // Again after the first call has been answered.
    let mut peer = hostile(&world).await;
    peer.send(&data(&hello(0)));
    let open = data(&request(0, 1, method("Probe.open"), None, &tag(2)));
    peer.send(&open);
    assert_eq!(answer(&mut peer).await, (0, 0));
    peer.send(&open);
    peer.hear_to_the_end().await;
    assert_eq!(honest.add(1, 1).await, Ok(2));
}

async fn a_request_beyond_the_limit_ends_the_connection(scheme: Scheme) {
    let world = World::start_with(SERVER, scheme, &["--max-calls", "2"]).await;
    let honest = world.client().await;
    let mut peer = hostile(&world).await;
    peer.send(&data(&hello(0)));
    for slot in 0..2 {
        peer.send(&data(&request(slot, 1, method("Probe.hold"), None, &tag(1))));
    }
    marked(&honest, 1, Mark::Started, 2).await;
    peer.send(&data(&request(2, 1, method("Probe.hold"), None, &tag(1))));
    peer.hear_to_the_end().await;
    assert_eq!(marked(&honest, 1, Mark::Cancelled, 2).await, 2);
}

async fn requests_without_a_checked_signature_are_refused(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let mut peer = hostile(&world).await;
    peer.send(&data(&hello(0)));
    let hold = method("Probe.hold");
    let unchecked = [session_header(2, 0, 1, hold.id, 0, 1), tag(1)].concat();
    peer.send(&data(&unchecked));
    assert_eq!(answer(&mut peer).await, (Code::FailedPrecondition.number(), 0));
    let no_codec = [
        session_header(2, 0x02, 99, hold.id, 1, 1),
        hold.signature_hash.to_le_bytes().to_vec(),
        tag(1),
    ];
    peer.send(&data(&no_codec.concat()));
    assert_eq!(answer(&mut peer).await, (Code::Unimplemented.number(), 1));
    assert_eq!(world.client().await.marks(1, Mark::Started).await, Ok(0));
}

async fn arguments_that_claim_too_much_are_refused(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let honest = world.client().await;
    let before = honest.resources().await.expect("the server answers");
    let mut peer = hostile(&world).await;
    peer.send(&data(&hello(0)));
    // A length of 2^64 - 1, in each method that takes something of variable length.
    let claim = [vec![0xfd], vec![0xff; 8], vec![0; 32]].concat();
    for (slot, name) in (0..).zip(["echo", "digest", "blob", "shapes", "many", "borrowed"]) {
        let method = method(&format!("Probe.{name}"));
        peer.send(&data(&request(slot, 1, method, None, &claim)));
        assert_eq!(answer(&mut peer).await, (Code::InvalidArgument.number(), slot), "{name}");
    }
    let after = honest.resources().await.expect("the server answers");
    assert!(after.rss_bytes < before.rss_bytes + (64 << 20), "{before:?} {after:?}");
}

async fn a_cancel_of_anything_is_harmless(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let honest = world.client().await;
    let own = honest.hold(1).start();
    marked(&honest, 1, Mark::Started, 1).await;
    for slot in 0..50 {
        let mut peer = hostile(&world).await;
        peer.send(&data(&hello(0)));
        for generation in [1, 2, u32::MAX] {
            peer.send(&data(&session_header(4, 0, 0, 0, slot, generation)));
        }
        peer.send(&data(&request(0, 1, method("Probe.nothing"), None, b"")));
        assert_eq!(answer(&mut peer).await, (Code::Ok.number(), 0));
    }
    assert_eq!(honest.marks(1, Mark::Cancelled).await, Ok(0), "a call of somebody else");
    honest.open(1).await.expect("opened");
    assert_eq!(own.await, Ok(1));
}

async fn malformed_handshakes_are_rejected_with_a_reason(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let honest = honest_offer().to_request();
    let with = |changes: &[(usize, u8)]| {
        let mut bytes = honest;
        for (at, byte) in changes {
            bytes[*at] = *byte;
        }
        bytes.to_vec()
    };
    // Magic 0..4, length 4, kind 5, newest version 6, oldest 7, features 8, D 10, I 12, chunks 14,
    // receive buffer 16, rkey 20, largest message 24.
    let cases: Vec<(Vec<u8>, &[&str])> = vec![
        (vec![], &["magic"]),
        (vec![0xab; 56], &["magic"]),
        (honest[..20].to_vec(), &["max_message_bytes is 0"]),
        (with(&[(4, 20)]), &["length of 20"]),
        (with(&[(5, 2)]), &["kind 2"]),
        (
            with(&[(6, 9), (7, 9)]),
            &["no common version", "server speaks versions 2 to 2", "9 to 9"],
        ),
        (with(&[(6, 1), (7, 2)]), &["version range"]),
        (with(&[(10, 0), (11, 0)]), &["data_credits is 0", "1 to 4095"]),
        (with(&[(10, 0xff), (11, 0xff)]), &["data_credits is 65535"]),
        (with(&[(12, 1), (13, 0)]), &["ack_credits is 1", "2 to 4095"]),
        (with(&[(16, 0), (17, 0), (18, 0), (19, 0)]), &["receive_buffer_bytes is 0"]),
        (with(&[(19, 0xff)]), &["receive_buffer_bytes is"]),
        (with(&[(24, 0), (25, 0), (26, 0), (27, 0)]), &["max_message_bytes is 0"]),
        (with(&[(31, 0xff)]), &["max_message_bytes is"]),
    ];
    for (private_data, words) in cases {
        let outcome = HostilePeer::connect_saying(&world.address, &private_data).await;
        let error = outcome.expect_err("it makes no sense");
        let ConnectError::Rejected { private_data, .. } = &error else { panic!("{error:?}") };
        let error = Reject::from_bytes(private_data).expect("a rejection").to_string();
        for word in words {
            assert!(error.contains(word), "`{error}` lacks `{word}`");
        }
    }
    assert_eq!(world.client().await.add(1, 1).await, Ok(2));
}

async fn a_client_that_never_reads_gets_little(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let honest = world.client().await;
    let before = honest.resources().await.expect("the server answers");
    // Eight times five replies of 1 MiB (0xfc and four bytes of length in the codec, and a seed),
    // never read: beyond the credits of a peer they wait at the server.
    let produce = [&[0xfc][..], &(1_u32 << 20).to_le_bytes(), &[1]].concat();
    let mut peers = Vec::new();
    for _ in 0..8 {
        let mut peer = hostile(&world).await;
        peer.send(&data(&hello(0)));
        for slot in 0..5 {
            peer.send(&data(&request(slot, 1, method("Probe.produce"), None, &produce)));
        }
        peers.push(peer);
    }
    for a in 0..100 {
        assert_eq!(honest.add(a, 1).await, Ok(a + 1));
    }
    let during = honest.resources().await.expect("the server answers");
    assert!(during.rss_bytes < before.rss_bytes + (200 << 20), "{before:?} {during:?}");
    drop(peers);
    assert_eq!(world.client().await.add(1, 1).await, Ok(2));
}

async fn peers_that_vanish_during_a_message(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let honest = world.client().await;
    let before = honest.resources().await.expect("the server answers");
    for _ in 0..50 {
        let mut peer = hostile(&world).await;
        peer.send(&data(&hello(0)));
        peer.send(&segment(0, 0, 0, 60 << 20, &[7; 4000]));
        drop(peer);
    }
    assert_eq!(honest.add(1, 1).await, Ok(2));
    // If a CQ holds few connections, a server that is still setting up or ending earlier ones opens
    // a further shard for the next, and keeps it: at most three for this many peers, of five file
    // descriptors each.
    let most_fds = before.fds + 2 + 15;
    let mut after = before;
    for _ in 0..10_000 {
        after = honest.resources().await.expect("the server answers");
        if after.fds <= most_fds {
            break;
        }
    }
    assert!(after.fds <= most_fds, "{before:?} {after:?}");
    assert!(after.rss_bytes < before.rss_bytes + (64 << 20), "{before:?} {after:?}");
}

/// Bytes at the port that are no frames at all.
#[test]
fn strangers_at_the_tcp_port_harm_nobody() {
    tests::limit::run(async {
        for scheme in [Scheme::Tcp, Scheme::Auto] {
            let world = World::start(SERVER, scheme).await;
            let honest = world.client().await;
            let (_, port) = world.address.rsplit_once(':').expect("a port");
            let target = format!("127.0.0.1:{port}");
            let mut silent = Vec::new();
            for text in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", &[0; 4096], &[0xff; 100_000]] {
                let mut stranger =
                    tokio::net::TcpStream::connect(&target).await.expect("the port is open");
                // The server may hang up midway.
                let _ = stranger.write_all(text).await;
                silent.push(stranger);
                assert_eq!(honest.add(1, 1).await, Ok(2));
            }
            // The server hangs up on peers that have sent something wrong.
            for mut stranger in silent.into_iter().skip(1) {
                let mut rest = Vec::new();
                let _ = stranger.read_to_end(&mut rest).await;
            }
            assert_eq!(world.client().await.add(1, 1).await, Ok(2));
        }
    });
}

/// Bytes at the rendezvous socket that are no request.
#[test]
fn strangers_at_the_shm_socket_harm_nobody() {
    tests::limit::run(async {
        let world = World::start(SERVER, Scheme::ShmPath).await;
        let honest = world.client().await;
        let path = world.address.strip_prefix("shm://").expect("a path");
        for text in [&b""[..], b"hello", &[0; 4096], &[0xff; 100_000]] {
            match tokio::net::UnixStream::connect(path).await {
                Ok(mut stranger) => {
                    let _ = stranger.write_all(text).await;
                }
                // A packet socket accepts no streams.
                Err(error) => assert!(path.starts_with('/'), "{error}"),
            }
            assert_eq!(honest.add(1, 1).await, Ok(2));
        }
        assert_eq!(world.client().await.add(1, 1).await, Ok(2));
    });
}

/// Another client's attacks on the server do not affect the client's own connections.
#[test]
fn an_honest_connection_survives_hostile_ones() {
    tests::limit::run(async {
        let world = World::start(SERVER, Scheme::Mem).await;
        let honest: ProbeClient = world.client().await;
        let held = honest.hold(1).start();
        for round in 0..100_u8 {
            let mut peer = hostile(&world).await;
            peer.send(&data(&hello(0)));
            peer.send(&[round; 64]);
            peer.hear_to_the_end().await;
        }
        honest.open(1).await.expect("opened");
        assert_eq!(held.await, Ok(1));
    });
}
