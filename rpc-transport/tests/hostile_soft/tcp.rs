//! Hostile peers of the tcp wire.

mod set_up;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use rpc_transport::address::{Address, HostPort};
use rpc_transport::device::connection_error::ConnectError;
use rpc_transport::device::soft;
use rpc_transport::device::{Connector, PostErrorKind, QpHandle, QpState, Status};
use rpc_transport::memory::region::Access;
use test_kit::Rng;
use test_kit::hostile::kind::{PROBE, REFUSE, REPLY, REQUEST};
use test_kit::hostile::op::{self, ACK, FIRST, LAST, NAK, READ_REQUEST, SEND, WHOLE, WRITE};
use test_kit::hostile::span;
use test_kit::hostile::tcp::{self, frame, is_closed, message, read_message};

use crate::fixture::*;
use crate::victim::{POSTED, Victim};

fn victim() -> Victim {
    let listen = async || {
        let at = HostPort { host: "127.0.0.1".to_owned(), port: 0 };
        let answer: soft::ProbeAnswer = Arc::new(|request| [b"you said ", request].concat());
        soft::listen_tcp(&at, Some(answer)).await.unwrap()
    };
    Victim::new(listen, Arc::new(soft::TcpConnector))
}

fn dial(victim: &Victim) -> TcpStream {
    dial_to(&victim.listener.local_address())
}

fn dial_to(address: &Address) -> TcpStream {
    let Address::Tcp(at) = address else { panic!("not tcp") };
    tcp::dial(&at.host, at.port)
}

/// A hostile peer past a correct set-up.
fn intrude(victim: &mut Victim) -> (TcpStream, QpHandle) {
    let mut stream = dial(victim);
    stream.write_all(&message(REQUEST, &[0; 56])).unwrap();
    let qp = victim.accept();
    assert_eq!(read_message(&mut stream).unwrap().0, REPLY);
    (stream, qp)
}

/// Like [`intrude`], from a socket that makes the victim's send buffer small: it is sized by
/// segments.
fn intrude_narrowly(victim: &mut Victim) -> (TcpStream, QpHandle) {
    let Address::Tcp(at) = victim.listener.local_address() else { panic!("not tcp") };
    let (family, kind) = (rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM);
    let socket = rustix::net::socket(family, kind, None).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4096).unwrap();
    let segment: libc::c_int = 88;
    // SAFETY: the option's value is an int, which lives until the call returns.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_MAXSEG,
            std::ptr::from_ref(&segment).cast(),
            4,
        )
    };
    assert_eq!(result, 0);
    let at: std::net::SocketAddr = format!("{}:{}", at.host, at.port).parse().unwrap();
    rustix::net::connect(&socket, &at).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_nodelay(true).unwrap();
    stream.write_all(&message(REQUEST, &[0; 56])).unwrap();
    let qp = victim.accept();
    assert_eq!(read_message(&mut stream).unwrap().0, REPLY);
    (stream, qp)
}

#[test]
fn an_honest_stream_one_byte_at_a_time() {
    let _watchdog = Watchdog::start("one byte at a time");
    let mut victim = victim();
    let (mut stream, qp) = intrude(&mut victim);
    let target = victim.region(Access::REMOTE_WRITE);
    let mut bytes = frame(0, SEND, WHOLE, b"one");
    bytes.extend(frame(0, SEND, FIRST, b"in two "));
    bytes.extend(frame(0, SEND, LAST, b"parts"));
    let mut body = span(target.remote_address(10), target.rkey(), 0, 6);
    body.extend(b"write");
    bytes.extend(frame(0, WRITE, FIRST, &body));
    bytes.extend(frame(0, WRITE, LAST, b"!"));
    bytes.extend(frame(0, ACK, WHOLE, b""));
    bytes.extend(frame(0, SEND, WHOLE | 8, b"two"));
    for byte in bytes {
        stream.write_all(&[byte]).unwrap();
        // Each byte is received separately.
        victim.wait(|_| true);
    }
    victim.wait(|victim| victim.received(qp).len() == 3);
    assert_eq!(victim.received(qp), [&b"one"[..], b"in two parts", b"two"]);
    assert_eq!(&contents(&target)[9..17], b"\x07write!\x07");
    // The last frame asked for an acknowledgement: of six packets, not counting its own ack.
    victim.wait(|_| true);
    victim.server.cq.flush();
    let mut ack = [0; 8];
    stream.read_exact(&mut ack).unwrap();
    assert_eq!(ack, [6, 0, 0, 0, ACK, WHOLE, 0, 0]);
}

/// Senseless frames end their own connection.
#[test]
fn senseless_frames_kill_only_their_own_connection() {
    let _watchdog = Watchdog::start("senseless frames");
    let mut victim = victim();
    let target = victim.region(Access::REMOTE_READ_WRITE);
    let at = |offset, len| span(target.remote_address(offset), target.rkey(), 0, len);
    let with = |mut span: Vec<u8>, payload: &[u8]| {
        span.extend(payload);
        span
    };
    let senseless: Vec<(&str, Vec<u8>)> = vec![
        ("unknown operation", frame(0, 0, WHOLE, b"")),
        ("unknown operation", frame(0, 200, WHOLE, b"x")),
        ("map answer", frame(0, 7, WHOLE, &at(0, 4096))),
        ("read response", frame(0, 5, WHOLE, b"x")),
        ("placed without a recv address", frame(0, 3, WHOLE, b"short")),
        ("oversize body", frame(0, SEND, FIRST, &[0; 61_465])),
        ("not first", frame(0, SEND, LAST, b"x")),
        ("first again", frame(0, SEND, FIRST, b"x").repeat(2)),
        ("write without span", frame(0, WRITE, LAST, b"x")),
        ("write too short", frame(0, WRITE, WHOLE, &with(at(0, 10), b"x"))),
        ("write too long", frame(0, WRITE, WHOLE, &with(at(0, 1), b"xy"))),
        ("write out of bounds", frame(0, WRITE, WHOLE, &with(at(4096, 1), b"x"))),
        ("write that wraps", frame(0, WRITE, WHOLE, &with(at(1, u64::MAX), b"x"))),
        ("write without key", frame(0, WRITE, WHOLE, &with(span(0, 0, 0, 1), b"x"))),
        ("send inside a write", {
            let mut bytes = frame(0, WRITE, FIRST, &with(at(0, 2), b"x"));
            bytes.extend(frame(0, SEND, WHOLE, b"x"));
            bytes
        }),
        ("reads without end", frame(0, READ_REQUEST, WHOLE, &at(0, 4096)).repeat(5000)),
        ("ack of what was never sent", frame(1, ACK, WHOLE, b"")),
        ("ack far away", frame(u32::MAX, ACK, WHOLE, b"")),
        ("ack with a body", frame(0, ACK, WHOLE, b"x")),
        ("nak of unknown code", frame(0, NAK, WHOLE, &[9, 9, 9, 9])),
        ("send longer than the recv", frame(0, SEND, WHOLE, &[1; 4097])),
    ];
    for (what, bytes) in senseless {
        println!("{what}");
        let (stream, qp) = intrude(&mut victim);
        // The flooding peer does not read, and so may block until it is cut off.
        let writer = std::thread::spawn({
            let mut stream = stream.try_clone().unwrap();
            move || drop(stream.write_all(&bytes))
        });
        victim.wait_dead(qp);
        victim.server.cq.destroy_qp(qp).unwrap();
        writer.join().unwrap();
        drop(stream);
    }
    assert_eq!(contents(&target)[1..], [7; 4095]);
    victim.assert_unharmed();
}

#[test]
fn random_bytes_only_end_the_connection() {
    let _watchdog = Watchdog::start("random bytes");
    let mut victim = victim();
    for seed in 0..60 {
        println!("seed {seed}");
        let mut random = Rng::new(seed);
        let (mut stream, qp) = intrude(&mut victim);
        for _ in 0..20 {
            // Now and then bytes that begin correctly.
            let bytes = if random.below(2) == 0 {
                let len = random.below(100) as usize;
                let body: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
                frame(0, random.below(11) as u8, random.below(16) as u8, &body)
            } else {
                let len = random.below(300);
                (0..len).map(|_| random.below(256) as u8).collect()
            };
            if stream.write_all(&bytes).is_err() {
                break;
            }
            victim.poll();
        }
        let _ = stream.shutdown(Shutdown::Write);
        let gone = |victim: &Victim| victim.state(qp) == QpState::Error;
        for _ in 0..200 {
            victim.poll();
            if gone(&victim) {
                break;
            }
        }
        victim.server.cq.destroy_qp(qp).unwrap();
        victim.completions.clear();
    }
    victim.assert_unharmed();
}

#[test]
fn a_truncated_frame_is_no_message() {
    let _watchdog = Watchdog::start("a truncated frame");
    let mut victim = victim();
    let whole = frame(0, SEND, WHOLE, b"never complete");
    for cut in 0..whole.len() {
        let (mut stream, qp) = intrude(&mut victim);
        stream.write_all(&whole[..cut]).unwrap();
        drop(stream);
        let mut events = 0;
        while events == 0 {
            victim.server.cq.arm().unwrap();
            victim.server.cq.poll(&mut victim.completions, 16).unwrap();
            events += std::iter::from_fn(|| victim.server.cq.poll_event()).count();
            if events == 0 {
                assert!(readable(&[victim.server.cq.event_fd()], PATIENCE));
                victim.server.cq.clear_events().unwrap();
            }
        }
        assert!(victim.received(qp).is_empty());
        victim.server.cq.destroy_qp(qp).unwrap();
    }
    victim.assert_unharmed();
}

/// A peer that never reads fills its socket; the CQ continues, and the QP's SQ is bounded.
#[test]
fn a_peer_that_reads_nothing_blocks_nobody() {
    let _watchdog = Watchdog::start("a peer that reads nothing");
    let mut victim = victim();
    let (stream, qp) = intrude(&mut victim);
    let source = region(&victim.server.pd, 1 << 20, Access::LOCAL, 3);
    let mut posted = 0;
    let refused = loop {
        let mut wrs = [send(posted, true, whole(&source))];
        match victim.server.cq.post_send(qp, &mut wrs) {
            Ok(()) => posted += 1,
            Err(error) => break error,
        }
        victim.server.cq.flush();
    };
    assert_eq!((posted, refused.kind), (16, PostErrorKind::QueueFull(16)));
    victim.assert_unharmed();
    // The connection still ends, with every WR completed.
    victim.completions.clear();
    drop(stream);
    victim.wait(|victim| {
        victim.completions.iter().filter(|completion| completion.qp == qp).count()
            >= 16 + POSTED as usize
    });
    victim.assert_unharmed();
}

/// Acknowledging unreceived frames must not free memory that is still to be sent.
#[test]
fn an_early_ack_frees_nothing() {
    let _watchdog = Watchdog::start("an early ack");
    let mut victim = victim();
    let (mut stream, qp) = intrude(&mut victim);
    let source = region(&victim.server.pd, 64 << 20, Access::LOCAL, 3);
    victim.post(qp, send(1, true, whole(&source)));
    // More than a thousand frames, of which the socket has taken a few.
    stream.write_all(&frame(1000, ACK, WHOLE, b"")).unwrap();
    victim.wait_dead(qp);
    let completion = victim.completions.iter().find(|completion| completion.qp == qp).unwrap();
    assert_ne!(completion.status, Status::Success);
    victim.assert_unharmed();
}

#[test]
fn half_open_peers_are_reported() {
    let _watchdog = Watchdog::start("half-open peers");
    let mut victim = victim();
    let (mut stream, qp) = intrude(&mut victim);
    stream.write_all(&frame(0, SEND, WHOLE, b"goodbye")).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut gone = false;
    while !gone {
        victim.server.cq.poll(&mut victim.completions, 16).unwrap();
        gone = victim.server.cq.poll_event().is_some();
        if !gone {
            victim.server.cq.arm().unwrap();
            assert!(readable(&[victim.server.cq.event_fd()], PATIENCE));
            victim.server.cq.clear_events().unwrap();
        }
    }
    assert_eq!(victim.received(qp), [b"goodbye"]);
    victim.server.cq.modify_to_error(qp).unwrap();
    victim.wait_dead(qp);
    assert!(is_closed(&mut stream));
    victim.assert_unharmed();
}

/// Forwards bytes both ways in small pieces of random size.
fn dribble(mut from: TcpStream, mut to: TcpStream, seed: u64) {
    let mut random = Rng::new(seed);
    let mut bytes = [0; 23];
    loop {
        let len = 1 + random.below(bytes.len() as u64) as usize;
        match from.read(&mut bytes[..len]) {
            Ok(0) | Err(_) => break,
            Ok(count) => {
                if to.write_all(&bytes[..count]).is_err() {
                    break;
                }
            }
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// Messages, WRITEs and READs of all sizes through a proxy that cuts the stream anywhere.
#[test]
fn streams_cut_at_random_places_carry_everything() {
    let _watchdog = Watchdog::start("a dribbling proxy");
    let runtime = runtime();
    let at = HostPort { host: "127.0.0.1".to_owned(), port: 0 };
    let options = Options { buffer_bytes: 16 * 1024, ..Options::default() };
    let (client, server) = runtime.block_on(async {
        let mut listener = soft::listen_tcp(&at, None).await.unwrap();
        let Address::Tcp(real) = listener.local_address() else { panic!("not tcp") };
        let proxy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp(proxy.local_addr().unwrap().into());
        std::thread::spawn(move || {
            let (near, _) = proxy.accept().unwrap();
            let far = TcpStream::connect((real.host.as_str(), real.port)).unwrap();
            near.set_nodelay(true).unwrap();
            far.set_nodelay(true).unwrap();
            let (near_too, far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            std::thread::spawn(move || dribble(far_too, near_too, 1));
            dribble(near, far, 2);
        });
        let connecting = async {
            let mut outgoing = soft::TcpConnector.resolve(&address).await.unwrap();
            let mut objects = End::objects(outgoing.device(), &options);
            let capacity = End::capacity(&options);
            let qp = outgoing.create_qp(&mut *objects.cq, &objects.pd, capacity).unwrap();
            let mut end = objects.into_end(qp, &options);
            outgoing.connect(b"").await.unwrap().attach.run(&mut *end.cq).unwrap();
            end
        };
        tokio::join!(connecting, accept(&mut listener, &options))
    });
    let mut ends = [client, server];
    let region_bytes = 150_000;
    let target = region(&ends[1].pd, region_bytes, Access::REMOTE_READ_WRITE, 0);
    for (round, len) in [1, 7, 8, 9, 24, 100, 4096, 16 * 1024].into_iter().enumerate() {
        let bytes = pattern(round as u64, len);
        let source = ends[0].pd.register(pattern(!0, region_bytes), Access::LOCAL).unwrap();
        let message = ends[0].filled(&bytes);
        let mut list = [
            write(1, remote(&target, 0), whole(&source)),
            send(2, true, message),
            read(3, remote(&target, 0), &ends[0].pd, region_bytes),
        ];
        ends[0].post(&mut list).unwrap();
        while ends[0].got.len() < 3 || ends[1].got.is_empty() {
            let mut any = false;
            for end in &mut ends {
                end.cq.arm().unwrap();
                any |= end.pump();
            }
            if !any {
                let fds = [ends[0].cq.event_fd(), ends[1].cq.event_fd()];
                assert!(readable(&fds, PATIENCE), "round {round} is stuck");
                for end in &mut ends {
                    end.cq.clear_events().unwrap();
                }
            }
        }
        assert!(payload(&ends[1].got[0]) == bytes);
        assert!(contents(&target) == pattern(!0, region_bytes));
        for completion in ends[0].got.drain(..) {
            assert_eq!(completion.status, Status::Success);
            if completion.wr_id == 3 {
                assert!(brought(&completion, region_bytes) == pattern(!0, region_bytes));
            }
        }
        ends[1].got.clear();
        ends[1].post_recv(0);
    }
}

/// Acknowledgements carry the total number of received packets, so one waiting acknowledgement is
/// enough.
#[test]
fn probing_peer_cannot_grow_the_outbox() {
    let _watchdog = Watchdog::start("probes without reading");
    let mut victim = victim();
    let (mut stream, qp) = intrude_narrowly(&mut victim);
    let probe = frame(0, op::PROBE, WHOLE | op::WANTS_ACK, b"");
    let (mut sent, mut pending) = (0_u32, 0);
    loop {
        for _ in 0..1000 {
            stream.write_all(&probe).unwrap();
            victim.poll();
        }
        sent += 1000;
        let before = std::mem::replace(&mut pending, victim.server.cq.traffic(qp).unwrap().pending);
        if before == pending && sent > 10_000 {
            break;
        }
        assert!(sent < 100_000, "{pending} bytes wait for a peer that does not read");
    }
    victim.assert_unharmed();
    // When it reads at last, it learns the whole number.
    stream.set_nonblocking(true).unwrap();
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    let newest = |bytes: &[u8]| {
        let last = bytes.len() / 8;
        last.checked_sub(1)
            .map(|last| u32::from_le_bytes(bytes[8 * last..][..4].try_into().unwrap()))
    };
    let start = std::time::Instant::now();
    while newest(&bytes) != Some(sent) {
        victim.poll();
        if let Ok(count) = stream.read(&mut buffer) {
            bytes.extend_from_slice(&buffer[..count]);
        }
        assert!(start.elapsed() < PATIENCE, "it has learned {:?} of {sent}", newest(&bytes));
    }
}

/// A visit takes a bounded number of frames, however small; the rest follows without further bytes
/// from the peer.
#[test]
fn flood_of_small_frames_yields_and_loses_nothing() {
    let _watchdog = Watchdog::start("a flood of small frames");
    let mut victim = victim();
    let (mut stream, qp) = intrude(&mut victim);
    let target = victim.region(Access::REMOTE_WRITE);
    let writes = |at: u64| {
        let mut body = span(target.remote_address(at), target.rkey(), 0, 1);
        body.push(1);
        frame(0, WRITE, WHOLE, &body)
    };
    let flood: Vec<u8> = (0..1500).flat_map(writes).collect();
    stream.write_all(&flood).unwrap();
    let mut taken = 0;
    let start = std::time::Instant::now();
    while taken < 1500 {
        victim.server.cq.arm().unwrap();
        victim.poll();
        let now = contents(&target).iter().filter(|byte| **byte == 1).count();
        assert!(now - taken <= 64, "one visit took {} frames", now - taken);
        taken = now;
        // Everything has arrived: only the visit's end can wake.
        if taken < 1500 {
            assert!(readable(&[victim.server.cq.event_fd()], PATIENCE), "{taken} were taken");
        }
        victim.server.cq.clear_events().unwrap();
        assert!(start.elapsed() < PATIENCE);
    }
    // The last bytes count too, when the peer ends after them.
    stream.write_all(&flood[..flood.len() / 2]).unwrap();
    stream.write_all(&frame(0, SEND, WHOLE, b"goodbye")).unwrap();
    drop(stream);
    victim.wait(|victim| victim.received(qp) == [b"goodbye"]);
    victim.assert_unharmed();
}
