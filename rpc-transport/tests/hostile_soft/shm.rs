//! Hostile peers of the shm wire.

mod servers;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rpc_transport::address::Address;
use rpc_transport::device::soft;
use rpc_transport::device::{PostErrorKind, QpHandle, QpState, SendOp, SendWr, Source, Status};
use rpc_transport::memory::region::Access;
use rustix::fs::{OFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use test_kit::Rng;
use test_kit::hostile::kind::{REFUSE, REQUEST};
use test_kit::hostile::op::{
    ACK, FIRST, LAST, MAP_ANSWER, MAP_REQUEST, READ_REQUEST, READ_RESPONSE, SEND, WHOLE, WRITE,
};
use test_kit::hostile::shm::word::{ACCEPTED, ARMED, CLOSED, NAK};
use test_kit::hostile::shm::{
    self, SEALS, SEGMENT_BYTES, Wire as Intruder, hear, memory_file, message, request, say,
};
use test_kit::hostile::span;

use self::servers::{Client, client_of};
use crate::fixture::*;
use crate::victim::{POSTED, Victim};

fn name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("hostile-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn victim() -> Victim {
    let address: Address = format!("shm://{}", name()).parse().unwrap();
    let listen = async || soft::listen_shm(&address).unwrap();
    Victim::new(listen, Arc::new(soft::ShmConnector::default()))
}

fn dial_to(address: &Address) -> OwnedFd {
    shm::dial(&address.to_string())
}

/// A hostile peer past a correct set-up.
fn intrude(victim: &mut Victim) -> (Intruder, QpHandle) {
    let asked = Intruder::ask(&victim.listener.local_address().to_string());
    let qp = victim.accept();
    (asked.wire(), qp)
}

/// Runs the listener in the background while `act` speaks to it.
fn while_listening<T: Send>(victim: &mut Victim, act: impl FnOnce(&Address) -> T + Send) -> T {
    let Victim { runtime, listener, .. } = victim;
    let address = listener.local_address();
    std::thread::scope(|scope| {
        let (done, mut ended) = tokio::sync::oneshot::channel();
        scope.spawn(move || {
            let _ = done.send(act(&address));
        });
        runtime.block_on(async {
            loop {
                tokio::select! {
                    result = &mut ended => return result.unwrap(),
                    incoming = listener.incoming() => drop(incoming),
                }
            }
        })
    })
}

#[test]
fn bad_requests_are_refused_and_hurt_nobody() {
    let _watchdog = Watchdog::start("bad requests");
    let mut victim = victim();
    let good = || memory_file(SEGMENT_BYTES, SEALS);
    let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let slots = |count| message(REQUEST, count, &[0; 56]);
    let mut bad_magic = request();
    bad_magic[0] ^= 1;
    let mut bad_version = request();
    bad_version[8] = 9;
    let bad: Vec<(&str, Vec<u8>, Vec<OwnedFd>)> = vec![
        ("magic", bad_magic, vec![good()]),
        ("versions 9", bad_version, vec![good()]),
        ("short", b"soft".to_vec(), vec![]),
        ("long", vec![1; 1000], vec![]),
        ("kind", message(77, 512, b""), vec![good()]),
        ("private data", message(REQUEST, 512, &[0; 57]), vec![good()]),
        ("0 slots", slots(0), vec![good()]),
        ("3 slots", slots(3), vec![good()]),
        ("4 slots", slots(4), vec![good()]),
        ("2048 slots", slots(2048), vec![good()]),
        ("slots", slots(u32::MAX), vec![good()]),
        ("announced size", slots(256), vec![good()]),
        ("file", request(), vec![]),
        ("file", request(), vec![good(), null()]),
        ("file", request(), vec![good(), good(), good()]),
        ("not a memory file", request(), vec![null()]),
        ("not sealed", request(), vec![memory_file(SEGMENT_BYTES, SealFlags::empty())]),
        (
            "not sealed",
            request(),
            vec![memory_file(SEGMENT_BYTES, SealFlags::GROW | SealFlags::SEAL)],
        ),
        ("announced size", request(), vec![memory_file(4096, SEALS)]),
        ("announced size", request(), vec![memory_file(SEGMENT_BYTES * 2, SEALS)]),
        ("announced size", request(), vec![memory_file(0, SEALS)]),
    ];
    for (what, bytes, files) in bad {
        let (answer, _) = while_listening(&mut victim, move |address| {
            let socket = dial_to(address);
            let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
            say(&socket, &bytes, &files);
            hear(&socket)
        });
        println!("{what}: {}", String::from_utf8_lossy(answer.get(16..).unwrap_or_default()));
        assert_eq!(answer.get(9), Some(&REFUSE), "{what}");
    }
    victim.assert_unharmed();
    victim.assert_listening(&soft::ShmConnector::default());
}

#[test]
fn peers_that_stall_do_not_keep_others_out() {
    let _watchdog = Watchdog::start("stalling peers");
    let mut victim = victim();
    let mut stalled = Vec::new();
    for _ in 0..400 {
        stalled.push(while_listening(&mut victim, dial_to));
    }
    victim.assert_listening(&soft::ShmConnector::default());
    victim.assert_unharmed();
}

/// The seals hold: neither side can shrink the memory while the other uses it.
#[test]
fn shared_files_are_sealed_and_one_sided() {
    let mut victim = victim();
    let (intruder, _qp) = intrude(&mut victim);
    for file in [&intruder.own_file, &intruder.their_file] {
        for len in [0, 4096, SEGMENT_BYTES as u64 * 2] {
            assert!(rustix::fs::ftruncate(file, len).is_err());
        }
        assert!(rustix::fs::fcntl_add_seals(file, SealFlags::WRITE).is_err());
    }
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let null = std::ptr::null_mut();
    let flags = MapFlags::SHARED;
    // SAFETY: a fresh mapping; it is refused.
    let mapped =
        unsafe { rustix::mm::mmap(null, 4096, protection, flags, &intruder.their_file, 0) };
    assert!(mapped.is_err(), "the victim's segment can be written by its peer");
}

#[test]
fn senseless_packets_kill_only_their_own_connection() {
    let _watchdog = Watchdog::start("senseless packets");
    let mut victim = victim();
    let target = victim.region(Access::REMOTE_READ_WRITE);
    let at = |offset, aux, len| span(target.remote_address(offset), target.rkey(), aux, len);
    let write = |len| [at(0, 0, len), b"x".to_vec()].concat();
    type Act = Box<dyn Fn(&mut Intruder)>;
    let senseless: Vec<(&str, Act)> = vec![
        ("operation 0", Box::new(|i| i.send(0, WHOLE, b""))),
        ("operation 200", Box::new(|i| i.send(200, WHOLE, b"x"))),
        ("map answer", Box::new(|i| i.send(MAP_ANSWER, WHOLE, &[0; 24]))),
        ("read response", Box::new(|i| i.send(READ_RESPONSE, WHOLE, b"x"))),
        ("ack on a ring", Box::new(|i| i.send(ACK, WHOLE, b""))),
        ("oversize body", Box::new(|i| i.packet(SEND, WHOLE, 65_535, b"x"))),
        ("body beyond a quarter", Box::new(|i| i.packet(SEND, WHOLE, 16_377, b"x"))),
        ("not first", Box::new(|i| i.send(SEND, LAST, b"x"))),
        ("first twice", Box::new(|i| (0..2).for_each(|_| i.send(SEND, FIRST, b"x")))),
        ("write without span", Box::new(|i| i.send(WRITE, LAST, b"x"))),
        ("write too short", {
            let write = write(10);
            Box::new(move |i| i.send(WRITE, WHOLE, &write))
        }),
        ("write of nothing known", Box::new(|i| i.send(WRITE, WHOLE, &[1; 25]))),
        ("span cut off", Box::new(|i| i.packet(WRITE, WHOLE, 23, &[0; 23]))),
        ("map of an unknown key", {
            let unknown = span(0, 0x77, 1, 1);
            Box::new(move |i| i.send(MAP_REQUEST, WHOLE, &unknown))
        }),
        ("map with a payload", {
            let map = [at(0, 1, 1), b"x".to_vec()].concat();
            Box::new(move |i| i.send(MAP_REQUEST, WHOLE, &map))
        }),
        ("reads without end", {
            let read = at(0, 0, 4096);
            Box::new(move |i| (0..200).for_each(|_| i.send(READ_REQUEST, WHOLE, &read)))
        }),
        ("maps without end", {
            let map = at(0, 1, 1);
            Box::new(move |i| (0..500).for_each(|_| i.send(MAP_REQUEST, WHOLE, &map)))
        }),
        ("accepted what was never sent", Box::new(|i| i.own.put(ACCEPTED, &[200]))),
        ("nak of unknown code", Box::new(|i| i.own.put(NAK, &[99]))),
    ];
    for (what, act) in senseless {
        println!("{what}");
        let (mut intruder, qp) = intrude(&mut victim);
        act(&mut intruder);
        // Words that only a sender reads.
        victim.post(qp, send(1, true, Source::Inline(b"x")));
        intruder.ring();
        victim.wait_dead(qp);
        victim.server.cq.destroy_qp(qp).unwrap();
    }
    assert_eq!(contents(&target)[1..], [7; 4095]);
    victim.assert_unharmed();
}

#[test]
fn scribbling_never_does_more_than_kill_the_connection() {
    let _watchdog = Watchdog::start("scribbling");
    let mut victim = victim();
    for seed in 0..200 {
        let mut random = Rng::new(seed);
        let (mut intruder, qp) = intrude(&mut victim);
        for step in 0..50 {
            match random.below(4) {
                // Anywhere, anything.
                0 => {
                    let at = random.below(SEGMENT_BYTES as u64 - 64) as usize;
                    let bytes: Vec<u8> = (0..64).map(|_| random.below(256) as u8).collect();
                    intruder.own.put(at, &bytes);
                }
                // The control page.
                1 => {
                    let at = [ACCEPTED, NAK, CLOSED, ARMED][random.below(4) as usize];
                    if at != CLOSED {
                        intruder.own.put(at, &[random.below(256) as u8]);
                    }
                }
                // Packets that begin well.
                _ => {
                    let body: Vec<u8> = (0..100).map(|_| random.below(256) as u8).collect();
                    let claimed = random.below(130) as usize;
                    let op = random.below(12) as u8;
                    intruder.packet(op, random.below(16) as u8, claimed, &body);
                }
            }
            intruder.ring();
            if victim.state(qp) == QpState::ReadyToSend && step % 4 == 0 {
                let mut wr = [send(1, true, Source::Inline(b"x"))];
                // The queue may be full: nobody accepts.
                let _ = victim.server.cq.post_send(qp, &mut wr);
            }
            victim.poll();
        }
        victim.server.cq.destroy_qp(qp).unwrap();
        victim.completions.clear();
        if seed % 50 == 0 {
            println!("seed {seed}");
            victim.assert_unharmed();
        }
    }
    victim.assert_unharmed();
}

/// Old slots are not mistaken for new messages, however often they are replayed.
#[test]
fn replayed_slots_are_not_received_again() {
    let _watchdog = Watchdog::start("replayed slots");
    let mut victim = victim();
    let (mut intruder, qp) = intrude(&mut victim);
    intruder.send(SEND, WHOLE, b"once");
    victim.wait(|victim| victim.received(qp).len() == 1);
    for position in 0..3 {
        // The same message with the same sequence number, in its slot and in the next ones.
        let at = Intruder::slot(position);
        intruder.own.put(at + 8, b"again");
        intruder.own.put(at + 4, &[SEND, WHOLE, 5, 0]);
        intruder.own.put(at, &(1_u32 << 31).to_le_bytes());
        intruder.ring();
        for _ in 0..200 {
            victim.poll();
        }
    }
    assert_eq!(victim.received(qp), [b"once"]);
    // The next in order is received.
    intruder.send(SEND, WHOLE, b"twice");
    victim.wait(|victim| victim.received(qp).len() == 2);
    victim.assert_unharmed();
}

#[test]
fn a_peer_that_accepts_nothing_blocks_nobody() {
    let _watchdog = Watchdog::start("a peer that accepts nothing");
    let mut victim = victim();
    let (intruder, qp) = intrude(&mut victim);
    let refused = loop {
        let source =
            Source::Buffer { buffer: victim.server.send_pool.take().unwrap(), start: 0, len: 4096 };
        match victim.server.cq.post_send(qp, &mut [send(1, true, source)]) {
            Ok(()) => victim.server.cq.flush(),
            Err(error) => break error,
        }
    };
    assert_eq!(refused.kind, PostErrorKind::QueueFull(16));
    victim.assert_unharmed();
    victim.completions.clear();
    // It dies; everything completes.
    drop(intruder);
    victim.wait(|victim| {
        victim.completions.iter().filter(|completion| completion.qp == qp).count()
            >= 16 + POSTED as usize
            || (victim.state(qp) == QpState::Error
                && victim.completions.iter().filter(|one| one.qp == qp).count() >= 16)
    });
    let first = victim.completions.iter().find(|completion| completion.qp == qp).unwrap();
    assert_eq!(first.status, Status::RetryExceeded);
    victim.assert_unharmed();
}

/// A server that lies about its regions to a client that writes.
#[test]
fn false_regions_end_the_connection_unmapped() {
    let _watchdog = Watchdog::start("lies about regions");
    let region_file = |len: usize, seals| memory_file(len, seals);
    type Lie = (&'static str, Box<dyn Fn(&mut Intruder, u32)>);
    let answer = |rkey, len: u64| span(0x1000, rkey, 3, len);
    let lies: Vec<Lie> = vec![
        ("no file", Box::new(move |i, rkey| i.send(MAP_ANSWER, WHOLE, &answer(rkey, 4096)))),
        (
            "an unsealed file",
            Box::new(move |i, rkey| {
                let file = region_file(8192, SealFlags::empty());
                say(&i.socket, &rkey.to_le_bytes(), &[file.as_fd()]);
                i.send(MAP_ANSWER, WHOLE, &answer(rkey, 4096));
            }),
        ),
        (
            "a file too small",
            Box::new(move |i, rkey| {
                let file = region_file(4096, SEALS);
                say(&i.socket, &rkey.to_le_bytes(), &[file.as_fd()]);
                i.send(MAP_ANSWER, WHOLE, &answer(rkey, 4096));
            }),
        ),
        (
            "an endless region",
            Box::new(move |i, rkey| {
                let file = region_file(8192, SEALS);
                say(&i.socket, &rkey.to_le_bytes(), &[file.as_fd()]);
                i.send(MAP_ANSWER, WHOLE, &answer(rkey, u64::MAX));
            }),
        ),
        (
            "a region elsewhere",
            Box::new(move |i, rkey| {
                let file = region_file(8192, SEALS);
                say(&i.socket, &rkey.to_le_bytes(), &[file.as_fd()]);
                i.send(MAP_ANSWER, WHOLE, &span(0x100_0000, rkey, 3, 4096));
            }),
        ),
        (
            "less than was asked for",
            Box::new(move |i, rkey| {
                let file = region_file(8192, SEALS);
                say(&i.socket, &rkey.to_le_bytes(), &[file.as_fd()]);
                i.send(MAP_ANSWER, WHOLE, &span(0x1000, rkey, 3, 63));
            }),
        ),
        (
            "another region's file",
            Box::new(move |i, rkey| {
                let file = region_file(8192, SEALS);
                say(&i.socket, &(rkey + 2).to_le_bytes(), &[file.as_fd()]);
                i.send(MAP_ANSWER, WHOLE, &answer(rkey, 4096));
            }),
        ),
        (
            "another region",
            Box::new(move |i, rkey| i.send(MAP_ANSWER, WHOLE, &answer(rkey + 2, 0))),
        ),
        (
            "a payload",
            Box::new(move |i, rkey| {
                let body = [answer(rkey, 0), b"x".to_vec()].concat();
                i.send(MAP_ANSWER, WHOLE, &body);
            }),
        ),
    ];
    for (what, lie) in lies {
        println!("{what}");
        let mut pair = Client::of_a_hostile_server();
        let rkey = 0x42;
        let to = rpc_transport::device::RemoteSlice { address: 0x1000, rkey };
        let source = pair.end.filled(&[1; 64]);
        let mut wr = [SendWr { wr_id: 1, op: SendOp::Write(to), signaled: true, source }];
        pair.end.post(&mut wr).unwrap();
        lie(&mut pair.server, rkey);
        pair.wait(|end| end.state() == QpState::Error);
        let failed = pair.end.got.front().unwrap();
        assert_ne!(failed.status, Status::Success, "{what}");
    }
}

/// Runs `act` on a thread with the effective user `nobody`; needs root.
fn as_another_user<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::spawn(|| {
        let nobody = rustix::process::Uid::from_raw(65_534);
        // The system call concerns only this thread.
        rustix::thread::set_thread_res_uid(rustix::process::getuid(), nobody, nobody).unwrap();
        act()
    })
    .join()
    .unwrap()
}

#[test]
fn peers_of_another_user_are_refused() {
    if !rustix::process::geteuid().is_root() {
        println!("not run as root: another user cannot be played, so this is not tested");
        return;
    }
    let _watchdog = Watchdog::start("another user");
    let mut victim = victim();
    // The listener refuses a connector that skips its own check.
    let (answer, files) = while_listening(&mut victim, |address| {
        let address = address.clone();
        as_another_user(move || {
            let socket = dial_to(&address);
            say(&socket, &request(), &[memory_file(SEGMENT_BYTES, SEALS).as_fd()]);
            hear(&socket)
        })
    });
    assert_eq!(answer.get(9), Some(&REFUSE));
    let text = String::from_utf8_lossy(&answer[16..]).into_owned();
    assert!(text.contains("user 65534") && text.contains("user 0"), "{text}");
    assert!(files.is_empty());
    // The connector refuses a listener of another user.
    let error = while_listening(&mut victim, |address| {
        let address = address.clone();
        as_another_user(move || {
            runtime().block_on(client_of(&address)).map(drop).unwrap_err().to_string()
        })
    });
    assert!(error.contains("the peer belongs to user 0, this process to user 65534"), "{error}");
    assert!(error.contains("refused the connection") && error.contains("tcp://"), "{error}");
    victim.assert_unharmed();
}

/// A peer that takes no doorbells, and makes everything it shares with us block, affects nobody
/// else.
#[test]
fn peer_stopping_its_doorbell_stops_nobody_else() {
    let _watchdog = Watchdog::start("a doorbell that blocks");
    let mut victim = victim();
    let (intruder, qp) = intrude(&mut victim);
    for shared in [&intruder.socket, &intruder.own_file, &intruder.their_file] {
        rustix::fs::fcntl_setfl(shared, OFlags::empty()).unwrap();
    }
    // The peer reads none of them: more than the socket holds.
    for sent in 1..2_000_u32 {
        intruder.own.put(ARMED, &sent.to_le_bytes());
        victim.post(qp, send(1, false, Source::Inline(b"x")));
        intruder.own.put(ACCEPTED, &sent.to_le_bytes());
        victim.post(qp, send(1, true, Source::Inline(b"x")));
        let accepted = 2 * sent;
        intruder.own.put(ACCEPTED, &accepted.to_le_bytes());
        victim.poll();
    }
    victim.assert_unharmed();
    // Nor does a peer that leaves without reading raise a signal.
    victim.post(qp, send(1, true, Source::Inline(b"x")));
    drop(intruder);
    victim.wait_dead(qp);
    victim.assert_unharmed();
}

/// Peers that keep everything they received when their connections end leave nothing behind here.
#[test]
fn peer_keeping_descriptors_leaves_the_epoll_set() {
    let _watchdog = Watchdog::start("kept descriptors");
    let mut victim = victim();
    let before = victim.watched();
    let mut kept = Vec::new();
    for _ in 0..20 {
        let (intruder, qp) = intrude(&mut victim);
        assert_eq!(victim.watched(), before + 1);
        victim.server.cq.destroy_qp(qp).unwrap();
        kept.push(intruder);
    }
    assert_eq!(victim.watched(), before);
    while victim.server.cq.poll(&mut victim.completions, 16).unwrap() > 0 {}
    victim.server.cq.clear_events().unwrap();
    victim.server.cq.arm().unwrap();
    kept.iter().for_each(Intruder::ring);
    let fd = victim.server.cq.event_fd();
    assert!(!readable(&[fd], std::time::Duration::ZERO), "a dead bell wakes");
    victim.assert_unharmed();
}

/// A hostile peer may use up RECVs that it shares with others, and lose none of them for good.
#[test]
fn srq_loses_no_recv_whatever_is_sent() {
    let _watchdog = Watchdog::start("an SRQ");
    let mut victim = victim();
    let (mut came, mut cut_off) = (0, 0);
    for seed in 0..100 {
        let mut rng = Rng::new(seed);
        let asked = Intruder::ask(&victim.listener.local_address().to_string());
        let qp = victim.accept_shared();
        let mut wire = asked.wire();
        for _ in 0..12 {
            let flags = rng.pick(&[WHOLE, WHOLE, FIRST, LAST, 0]);
            let len = rng.index(100);
            wire.send(rng.pick(&[SEND, SEND, SEND, WRITE]), flags, &rng.bytes(len));
            if rng.chance(50) {
                victim.poll();
            }
        }
        victim.server.cq.modify_to_error(qp).unwrap();
        victim.wait_drained(qp);
        victim.server.cq.destroy_qp(qp).unwrap();
        came += victim.received(qp).len();
        cut_off += victim.completions.iter().filter(|done| done.status != Status::Success).count();
        victim.assert_all_recvs_there(qp);
    }
    assert!(came > 0 && cut_off > 0, "{came} came, {cut_off} were cut off");
    victim.assert_unharmed();
}
