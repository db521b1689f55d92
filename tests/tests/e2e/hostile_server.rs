//! A client of a server that breaks the rules: the connection closes with the broken rule as its
//! cause, and the client's other connections live.

use rpc_core::transport::CloseCause;
use rpc_core::{Code, LinkConfig};
#[cfg(feature = "verbs")]
use rpc_transport::device::Capabilities;
use rpc_transport::device::Listener;
use tests::hostile::bytes::{self, data, hello, link_header, segment, session_header, session_of};
use tests::hostile::{Heard, HostilePeer};
use tests::limit;
use tests::probe::ProbeClient;
#[cfg(feature = "verbs")]
use tests::process::{CALL, Child, READY};
use tests::scheme::Scheme;
use tests::world::World;

#[cfg(feature = "verbs")]
use crate::CLIENT;
use crate::SERVER;

/// A frame, and immediate data.
type Sent = (Vec<u8>, Option<u32>);

fn plain(frame: Vec<u8>) -> Vec<Sent> {
    vec![(frame, None)]
}

/// Broken rules for devices with immediates.
fn broken_immediates() -> Vec<(Vec<Sent>, &'static str)> {
    vec![
        (vec![(link_header(2, 0, 1, 0), Some(2))], "differs from its payload"),
        (vec![(link_header(4, 0, 0, 0), Some(0))], "only an Ack carries it"),
    ]
}

/// Frames of a server, and words of the rule that they break.
fn broken_link_rules() -> Vec<(Vec<Sent>, &'static str)> {
    let with = |at: usize, byte: u8, mut frame: Vec<u8>| {
        frame[at] = byte;
        frame
    };
    vec![
        (plain(vec![]), "cut off"),
        (plain(vec![1]), "cut off"),
        (plain(link_header(1, 0, 0, 0)[..7].to_vec()), "frame of 7 bytes is cut off"),
        (plain(link_header(0, 0, 0, 0)), "unknown frame kind 0"),
        (plain(link_header(9, 0, 0, 0)), "unknown frame kind 9"),
        (plain(vec![0xff; 4096]), "unknown frame kind 255"),
        (plain(link_header(1, 0x80, 0, 0)), "MAX_STREAM_DATA block without the feature"),
        (plain(link_header(1, 0x02, 0, 0)), "ARENA block without the feature"),
        (plain(link_header(1, 0x40, 0, 0)), "CRC32C block without the feature"),
        (plain(with(6, 1, link_header(1, 0, 0, 0))), "released extents"),
        (plain(with(7, 1, link_header(1, 0, 0, 0))), "arena extents"),
        (plain(link_header(3, 0, 0, 0)), "Release frame without the feature"),
        (plain(link_header(4, 1, 0, 0)), "flags 0x01"),
        (plain(with(6, 1, link_header(2, 0, 0, 0))), "counts"),
        (plain([link_header(2, 0, 0, 0), vec![0]].concat()), "1 bytes after its end"),
        (plain(link_header(5, 0, 0, 0)), "Pong without a Ping"),
        // More than was ever sent.
        (plain(link_header(2, 0, 1000, 0)), "granted 1000 data credits"),
        (plain(link_header(2, 0, 0, 1000)), "granted 1000 ack credits"),
        (plain(link_header(2, 0, 0, 0)), "grants nothing"),
        (plain(segment(0, 0, 0, 100, b"")), "without bytes"),
        (plain(segment(0, 1, 0, 0, b"")), "0 bytes"),
        (plain(segment(0, 0, 5, 100, b"x")), "offset 5"),
        (plain(segment(7, 0, 0, 100, b"x")), "message 7"),
        (plain(segment(0, 3, 0, 100, b"x")), "both LAST or HEAD_END and ABORT"),
        (plain(segment(0, 8, 0, 100, b"x")), "unknown segment flags"),
        (plain(segment(0, 1, 0, 100, b"x")), "LAST is true"),
        (plain(segment(0, 0, 0, 1, b"x")), "LAST is false"),
        (plain(segment(0, 0, 0, 2, b"xyz")), "past the total"),
        (plain(segment(0, 0, 0, u64::MAX, b"x")), "exceeds max_message_bytes"),
        (plain(segment(0, 2, 0, 100, b"x")), "abort segment with 1 bytes"),
        (
            [plain(segment(0, 0, 0, 100, b"x")), plain(segment(0, 0, 1, 101, b"x"))].concat(),
            "changes from 100 to 101",
        ),
        (
            [plain(segment(0, 0, 0, 100, b"x")), plain(segment(0, 0, 0, 100, b"x"))].concat(),
            "offset 0 where 1 is expected",
        ),
        (plain([link_header(6, 0, 0, 0), vec![0, 0, 5, 0, b'x']].concat()), "cut off"),
        (plain([link_header(6, 0, 0, 0), vec![0, 0, 1, 0, 0xff]].concat()), "not UTF-8"),
        (plain([link_header(6, 0, 0, 0), vec![0, 0, 0, 9]].concat()), "reserved byte"),
        (plain([link_header(6, 0, 1, 0), vec![0, 0, 0, 0]].concat()), "grants credits"),
    ]
}

fn broken_session_rules() -> Vec<(Vec<Sent>, &'static str)> {
    let say = |session: Vec<u8>| plain(data(&session));
    let after_hello = |session: Vec<u8>| [say(hello(16)), say(session)].concat();
    let response = |slot, generation| session_header(3, 0, 0, 0, slot, generation);
    let with_parts =
        |block: &[u8]| after_hello([&session_header(3, 0x10, 0, 0, 0, 1)[..], block].concat());
    let part = |at: u32, len: u64| [&[1, 0][..], &at.to_le_bytes(), &len.to_le_bytes()].concat();
    vec![
        (say(vec![]), "0 bytes is shorter than the session header"),
        (say(vec![1; 15]), "15 bytes is shorter than the session header"),
        (say(response(0, 1)), "the first frame is not a hello"),
        (say(session_header(1, 0, 0, 0, 0, 0)), "hello is cut short"),
        (after_hello(hello(16)), "a second hello"),
        (after_hello(session_header(0, 0, 0, 0, 0, 0)), "unknown frame kind 0"),
        (after_hello(session_header(200, 0, 0, 0, 0, 0)), "unknown frame kind 200"),
        (after_hello(session_header(6, 0, 0, 0, 0, 1)), "StreamData"),
        (after_hello(response(9, 1)), "response to no call: slot 9"),
        (after_hello(response(u32::MAX, 1)), "response to no call"),
        (after_hello(response(0, 0)), "generation 0"),
        (after_hello(session_header(3, 0, 99, 0, 0, 1)), "unknown status code 99"),
        (after_hello(session_header(5, 0xf0, 0, 0, 0, 1)), "unknown flags"),
        (after_hello(session_header(5, 0, 0, 0, 9, 1)), "cancelled frame for no call"),
        (after_hello(session_header(5, 0, 0, 0, 0, 1)), "was not cancelled"),
        (after_hello(session_header(4, 0, 0, 0, 100, 1)), "slot 100 is not below"),
        (after_hello([session_header(4, 0, 0, 0, 0, 1), vec![0]].concat()), "1 bytes after"),
        (with_parts(&[]), "parts block is cut short"),
        (with_parts(&[0, 0]), "empty block"),
        (with_parts(&[1, 16, 0]), "4097 parts"),
        (with_parts(&part(9, 1)), "a part at offset 9 lies outside a body of 0 bytes"),
        (with_parts(&part(0, 0)), "an empty part"),
        (with_parts(&part(0, 7)), "parts of 7 bytes in a tail of 0"),
        (with_parts(&part(0, u64::MAX)), "in a tail of 0"),
        (
            // A head in one segment and a tail in another, of a frame that announces no tail.
            [
                say(hello(16)),
                plain(segment(0, 4, 0, 17, &response(0, 1))),
                plain(segment(0, 1, 16, 17, b"x")),
            ]
            .concat(),
            "a tail on a frame of kind Response",
        ),
        // This client offers no services.
        (after_hello(session_header(2, 0, 1, 7, 100, 1)), "slot 100 is not below"),
        (after_hello([session_header(2, 0x01, 1, 7, 0, 1), vec![0; 4]].concat()), "deadline"),
        (after_hello([session_header(2, 0x04, 1, 7, 0, 1), vec![9, 9]].concat()), "metadata"),
        (
            [
                after_hello(session_header(10, 0, 0, 0, 0, 0)),
                say(session_header(10, 0, 0, 0, 0, 0)),
            ]
            .concat(),
            "a second go-away",
        ),
        (after_hello(session_header(10, 1, 0, 0, 0, 0)), "go-away that was not sent"),
    ]
}

pub(crate) async fn listen(scheme: Scheme) -> (Box<dyn Listener>, String) {
    let address = scheme.fresh_address().parse().expect("an address");
    let listener = rpc_transport::connect::schemes::listen(&address).await.expect("it is free");
    let address = listener.local_address().to_string();
    (listener, address)
}

async fn client_of(address: &str) -> ProbeClient {
    // The listener accepts exactly the connections that the test expects.
    let builder = tests::limit::patient_channel().reconnect(None);
    ProbeClient::new(builder.connect(address).await.expect("an honest handshake"))
}

/// A connection between a client and a server that sends the test's frames.
async fn pair(listener: &mut dyn Listener, address: &str) -> (ProbeClient, HostilePeer) {
    tokio::join!(client_of(address), HostilePeer::accept(listener))
}

async fn check_rules(scheme: Scheme, rules: Vec<(Vec<Sent>, &'static str)>) {
    let honest = World::start(SERVER, scheme).await;
    let other = honest.client().await;
    let (mut listener, address) = listen(scheme).await;
    for (frames, words) in rules {
        let (client, mut server) = pair(&mut *listener, &address).await;
        let call = client.add(1, 1).start();
        for (frame, imm) in &frames {
            match imm {
                None => server.send(frame),
                Some(imm) => server.send_with_imm(frame, *imm),
            }
        }
        let status = call.await.expect_err("the server breaks a rule");
        assert_eq!(status.code(), Code::Unavailable, "{words}: {status}");
        let cause = client.channel().close_cause();
        let Some(CloseCause::Protocol(rule)) = &cause else { panic!("{words}: {cause:?}") };
        assert!(rule.contains(words), "`{rule}` lacks `{words}`");
        assert!(status.message().contains(&**rule), "{status}");
        server.hear_to_the_end().await;
        assert_eq!(other.add(20, 22).await, Ok(42), "other connections live");
    }
}

/// Checks the rules with the client in a process of its own: on the peer's machine, if there is
/// one.
#[cfg(feature = "verbs")]
async fn check_rules_there(scheme: Scheme, rules: Vec<(Vec<Sent>, &'static str)>) {
    let honest = World::start(SERVER, scheme).await;
    let other = honest.client().await;
    let (mut listener, address) = listen(scheme).await;
    let mut victim = Child::start_there(CLIENT, ["--address", &address, "victim"]);
    victim.expect(READY).await;
    for (frames, words) in rules {
        victim.command(CALL).await;
        let mut server = HostilePeer::accept(&mut *listener).await;
        victim.expect("STARTED").await;
        for (frame, imm) in &frames {
            match imm {
                None => server.send(frame),
                Some(imm) => server.send_with_imm(frame, *imm),
            }
        }
        assert_eq!(victim.expect("ENDED").await, "Unavailable", "{words}");
        let rule = victim.expect("RULE").await;
        assert!(rule.contains(words), "`{rule}` lacks `{words}`");
        let status = victim.expect("STATUS").await;
        assert!(status.contains(&rule), "`{status}` lacks `{rule}`");
        server.hear_to_the_end().await;
        assert_eq!(other.add(20, 22).await, Ok(42), "other connections live");
    }
}

#[cfg(feature = "verbs")]
#[test]
fn broken_link_rules_are_named_over_rdma() {
    limit::run(check_rules_there(Scheme::Rdma, broken_link_rules()));
}

#[cfg(feature = "verbs")]
#[test]
fn broken_immediates_are_named_over_rdma() {
    tests::device::needs(Capabilities::IMMEDIATE);
    limit::run(check_rules_there(Scheme::Rdma, broken_immediates()));
}

#[cfg(feature = "verbs")]
#[test]
fn broken_session_rules_are_named_over_rdma() {
    limit::run(check_rules_there(Scheme::Rdma, broken_session_rules()));
}

macro_rules! rules_on {
    ($module:ident, $scheme:ident) => {
        on_scheme!(
            $module,
            $scheme,
            broken_rules_of_the_link_are_named,
            broken_immediates_are_named,
            broken_rules_of_the_session_are_named
        );
    };
}

rules_on!(mem, Mem);
rules_on!(tcp, Tcp);
rules_on!(shm, ShmName);

async fn broken_immediates_are_named(scheme: Scheme) {
    check_rules(scheme, broken_immediates()).await;
}

async fn broken_rules_of_the_link_are_named(scheme: Scheme) {
    check_rules(scheme, broken_link_rules()).await;
}

async fn broken_rules_of_the_session_are_named(scheme: Scheme) {
    check_rules(scheme, broken_session_rules()).await;
}

/// Waits for a request; returns its slot.
async fn request(server: &mut HostilePeer) -> u32 {
    loop {
        let Heard::Frame(frame, _) = server.hear().await else { panic!("the client is gone") };
        if let Some((2, _, slot)) = session_of(&frame) {
            return slot;
        }
    }
}

#[test]
fn a_replayed_answer_closes_the_connection() {
    limit::run(async {
        let (mut listener, address) = listen(Scheme::Mem).await;
        let (client, mut server) = pair(&mut *listener, &address).await;
        server.send(&data(&hello(16)));
        let first = client.add(1, 1).start();
        let slot = request(&mut server).await;
        // The answer is the number 2: one byte in the codec.
        let answer = [session_header(3, 0x08, 0, 0, slot, 1), vec![2]].concat();
        server.send(&data(&answer));
        assert_eq!(first.await, Ok(2));
        let second = client.add(2, 3).start();
        assert_eq!(request(&mut server).await, slot, "the slot is used again");
        server.send(&data(&answer));
        let status = second.await.expect_err("not the first call's answer");
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        let cause = client.channel().close_cause();
        assert!(matches!(cause, Some(CloseCause::Protocol(_))), "{cause:?}");
    });
}

#[test]
fn an_undecodable_answer_fails_its_call_alone() {
    limit::run(async {
        let (mut listener, address) = listen(Scheme::Mem).await;
        let (client, mut server) = pair(&mut *listener, &address).await;
        server.send(&data(&hello(16)));
        let garbage = [&b""[..], b"far too long for a number", &[0xff; 300]];
        // The calls of one slot have ascending generations.
        for (generation, garbage) in (1..).zip(garbage) {
            let call = client.add(1, 1).start();
            let slot = request(&mut server).await;
            let head = session_header(3, 0x08, 0, 0, slot, generation);
            server.send(&data(&[head, garbage.to_vec()].concat()));
            let status = call.await.expect_err("no number");
            assert_eq!(status.code(), Code::Internal, "{status}");
            let text = status.message();
            assert!(text.contains("cannot decode the reply of Probe.add"), "{status}");
        }
        assert!(client.channel().close_cause().is_none());
    });
}

#[test]
fn a_server_vanishing_in_the_handshake_fails() {
    limit::run(async {
        for scheme in [Scheme::Mem, Scheme::ShmName, Scheme::Tcp] {
            let (mut listener, address) = listen(scheme).await;
            let vanish = async {
                let incoming = listener.incoming().await.expect("it listens");
                drop(incoming);
            };
            let (connected, ()) = tokio::join!(ProbeClient::connect(&address), vanish);
            let error = connected.expect_err("nobody accepted").to_string();
            assert!(error.contains(&address), "`{error}` lacks `{address}`");
        }
    });
}

#[test]
fn a_malformed_accept_is_another_protocol() {
    limit::run(async {
        let offer = tests::hostile::honest_offer();
        let honest = offer.to_reply();
        let mut future = honest;
        // Versions 9 to 9.
        (future[6], future[7]) = (9, 9);
        let mut no_credits = honest;
        // D is at 10.
        (no_credits[10], no_credits[11]) = (0, 0);
        let garbage = [0xab; 60];
        let cases: [(&[u8], &[&str]); 5] = [
            (b"", &["does not speak this protocol"]),
            (&garbage, &["does not speak this protocol", "magic"]),
            (&honest[..20], &["does not speak this protocol", "max_message_bytes is 0"]),
            (&future, &["no common version", "versions 9 to 9", "2 to 2"]),
            (&no_credits, &["does not speak this protocol", "data_credits is 0"]),
        ];
        for scheme in [Scheme::Mem, Scheme::ShmName, Scheme::Tcp] {
            for (reply, words) in cases {
                let (mut listener, address) = listen(scheme).await;
                let serve = async {
                    // The client may be gone before the accept has returned.
                    if let Ok(mut incoming) = listener.incoming().await {
                        let domain = incoming.device().allocate_pd().expect("a domain");
                        let mut cq = incoming.device().create_cq(64).expect("a queue");
                        let capacity = rpc_transport::device::QpCapacity {
                            max_send_wr: 4,
                            max_recv_wr: 4,
                            max_inline_bytes: 0,
                            uses_srq: false,
                        };
                        incoming.create_qp(&mut *cq, &domain, capacity).expect("a queue pair");
                        let _ = incoming.accept(reply).await;
                    }
                };
                let (connected, ()) = tokio::join!(ProbeClient::connect(&address), serve);
                let error = connected.expect_err("nonsense").to_string();
                for word in words {
                    assert!(error.contains(word), "{scheme:?}: `{error}` lacks `{word}`");
                }
                assert!(error.contains(&address), "`{error}` lacks `{address}`");
            }
        }
    });
}

#[test]
fn more_frames_than_were_credited_close_the_connection() {
    limit::run(async {
        let (mut listener, address) = listen(Scheme::Mem).await;
        let link = LinkConfig::default().data_credits(4);
        let connect = async {
            let builder = tests::limit::patient_channel().link(link).reconnect(None);
            ProbeClient::new(builder.connect(&address).await.expect("an honest handshake"))
        };
        let (client, mut server) = tokio::join!(connect, HostilePeer::accept(&mut *listener));
        let call = client.add(1, 1).start();
        server.send(&data(&hello(16)));
        // Pings spend credits and ask for answers; far more than four are pending at once.
        for _ in 0..100 {
            server.send(&link_header(4, 0, 0, 0));
        }
        let status = call.await.expect_err("the server breaks a rule");
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        let cause = client.channel().close_cause();
        assert!(
            matches!(cause, Some(CloseCause::Protocol(_) | CloseCause::Disconnected)),
            "{cause:?}"
        );
        server.hear_to_the_end().await;
    });
}

#[test]
fn frames_are_bytes_of_the_wire_format() {
    // The hand-written frames of these tests equal those of the crates.
    use rpc_transport::protocol::credit::Grant;
    use rpc_transport::protocol::frame::{Kind, Segment, header, segment_header};
    assert_eq!(bytes::link_header(2, 0, 3, 4), header(Kind::Ack, Grant { data: 3, ack: 4 }));
    let grant = Grant::default();
    let block =
        Segment { number: 7, last: true, abort: false, head_end: false, offset: 8, total: 9 };
    assert_eq!(bytes::segment(7, 1, 8, 9, b""), segment_header(grant, block));
    let hello = rpc_core::wire::Hello {
        min_version: 1,
        max_version: 1,
        max_calls: 5,
        features: 0,
        stream_window: None,
    };
    assert_eq!(bytes::hello(5), *rpc_core::wire::hello(&hello));
}
