//! Hostile peers of the shm wire.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rpc_transport::connect::address::Address;
use rpc_transport::connect::error::ConnectError;
use rpc_transport::device::soft;
use rpc_transport::device::{
    Connector, PostErrorKind, QpHandle, QpState, SendOp, SendWr, Source, Status,
};
use rpc_transport::memory::region::Access;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use test_kit::Rng;

use crate::fixture::*;
use crate::victim::{POSTED, Victim};

const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const REFUSE: u8 = 4;

const SEND: u32 = 1;
const WRITE: u32 = 2;
const READ_REQUEST: u32 = 4;
const READ_RESPONSE: u32 = 5;
const MAP_REQUEST: u32 = 6;
const MAP_ANSWER: u32 = 7;
const ACK: u32 = 8;
const FIRST: u32 = 1;
const LAST: u32 = 2;
const WHOLE: u32 = FIRST | LAST;

const SLOTS: usize = 512;
const SLOT_BYTES: usize = 128;
const CONTROL_BYTES: usize = 4096;
const SEGMENT_BYTES: usize = CONTROL_BYTES + SLOTS * SLOT_BYTES;
const ACCEPTED: usize = 0;
const NAK: usize = 8;
const CLOSED: usize = 12;
const ARMED: usize = 128;

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

fn name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("hostile-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn victim() -> Victim {
    let address: Address = format!("shm://{}", name()).parse().unwrap();
    let listen = async || soft::listen_shm(&address).unwrap();
    Victim::new(listen, Arc::new(soft::ShmConnector::default()))
}

fn socket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let family = AddressFamily::UNIX;
    rustix::net::socket_with(family, SocketType::SEQPACKET, flags, None).unwrap()
}

fn dial_to(address: &Address) -> OwnedFd {
    let socket = socket();
    let at = SocketAddrUnix::new_abstract_name(address.to_string().as_bytes()).unwrap();
    rustix::net::connect(&socket, &at).unwrap();
    socket
}

fn say(socket: &OwnedFd, bytes: &[u8], files: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(files)));
    }
    // Whom it is said to may have gone.
    let flags = SendFlags::NOSIGNAL;
    let _ = rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags);
}

/// The next message and its files; empty at the end.
fn hear(socket: &OwnedFd) -> (Vec<u8>, Vec<OwnedFd>) {
    let mut bytes = [0; 1024];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let heard =
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
    let len = heard.map_or(0, |message| message.bytes);
    let mut files = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = part {
            files.extend(fds);
        }
    }
    (bytes[..len].to_vec(), files)
}

fn message(kind: u8, slots: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = b"softrdma".to_vec();
    bytes.extend([1, kind, 0, 0]);
    bytes.extend(slots.to_le_bytes());
    bytes.extend(body);
    bytes
}

fn request() -> Vec<u8> {
    message(REQUEST, SLOTS as u32, &[0; 56])
}

fn memory_file(len: usize, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("hostile", flags).unwrap();
    rustix::fs::ftruncate(&file, len as u64).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

fn bell() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).unwrap()
}

/// A mapping of a file, to be written at will.
struct Map {
    base: *mut u8,
    len: usize,
}

impl Map {
    fn of(file: &OwnedFd, len: usize, protection: ProtFlags) -> Self {
        let null = std::ptr::null_mut();
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base =
            unsafe { rustix::mm::mmap(null, len, protection, MapFlags::SHARED, file, 0) }.unwrap();
        Self { base: base.cast(), len }
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        for (i, byte) in bytes.iter().enumerate() {
            // SAFETY: inside the mapping (asserted).
            let to = unsafe { self.base.add(at + i) };
            // SAFETY: as above; the other side expects anything.
            unsafe { to.write_volatile(*byte) };
        }
    }

    fn word(&self, at: usize) -> u32 {
        assert!(at + 4 <= self.len && at.is_multiple_of(4));
        // SAFETY: inside the mapping (asserted).
        let from = unsafe { self.base.add(at) }.cast::<u32>();
        // SAFETY: aligned and mapped.
        unsafe { from.read_volatile() }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: exactly what `of` mapped.
        unsafe { rustix::mm::munmap(self.base.cast(), self.len) }.unwrap();
    }
}

/// A hostile peer past a correct set-up: its own segment, and the victim's, which it can only read.
struct Intruder {
    socket: OwnedFd,
    own_file: OwnedFd,
    own: Map,
    theirs: Map,
    their_file: OwnedFd,
    bell: OwnedFd,
    position: u32,
}

impl Intruder {
    fn new(victim: &mut Victim) -> (Self, QpHandle) {
        let socket = dial_to(&victim.listener.local_address());
        let own_file = memory_file(SEGMENT_BYTES, SEALS);
        say(&socket, &request(), &[own_file.as_fd(), bell().as_fd()]);
        let qp = victim.accept();
        let (reply, files) = hear(&socket);
        assert_eq!(reply[9], REPLY);
        (Self::with(socket, own_file, files), qp)
    }

    fn with(socket: OwnedFd, own_file: OwnedFd, files: Vec<OwnedFd>) -> Self {
        let [their_file, bell] = <[OwnedFd; 2]>::try_from(files).unwrap();
        let own = Map::of(&own_file, SEGMENT_BYTES, ProtFlags::READ | ProtFlags::WRITE);
        let theirs = Map::of(&their_file, SEGMENT_BYTES, ProtFlags::READ);
        Self { socket, own_file, own, theirs, their_file, bell, position: 0 }
    }

    fn slot(position: u32) -> usize {
        CONTROL_BYTES + (position as usize % SLOTS) * SLOT_BYTES
    }

    /// Publishes a packet of one slot, with a body length that need not be true.
    fn packet(&mut self, op: u32, flags: u32, claimed: usize, body: &[u8]) {
        let at = Self::slot(self.position);
        self.own.put(at + 8, body);
        let head = op | flags << 8 | (claimed as u32) << 16;
        self.own.put(at + 4, &head.to_le_bytes());
        self.own.put(at, &(self.position | 1 << 31).to_le_bytes());
        self.position += 1;
        self.ring();
    }

    fn send(&mut self, op: u32, flags: u32, body: &[u8]) {
        self.packet(op, flags, body.len(), body);
    }

    fn ring(&self) {
        rustix::io::write(&self.bell, &1_u64.to_ne_bytes()).unwrap();
    }
}

fn span(address: u64, rkey: u32, aux: u32, len: u64) -> Vec<u8> {
    let mut bytes = address.to_le_bytes().to_vec();
    bytes.extend(rkey.to_le_bytes());
    bytes.extend(aux.to_le_bytes());
    bytes.extend(len.to_le_bytes());
    bytes
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
        ("magic", bad_magic, vec![good(), bell()]),
        ("version 9", bad_version, vec![good(), bell()]),
        ("short", b"soft".to_vec(), vec![]),
        ("long", vec![1; 1000], vec![]),
        ("kind", message(77, 512, b""), vec![good(), bell()]),
        ("private data", message(REQUEST, 512, &[0; 57]), vec![good(), bell()]),
        ("0 slots", slots(0), vec![good(), bell()]),
        ("3 slots", slots(3), vec![good(), bell()]),
        ("4 slots", slots(4), vec![good(), bell()]),
        ("2048 slots", slots(2048), vec![good(), bell()]),
        ("slots", slots(u32::MAX), vec![good(), bell()]),
        ("announced size", slots(256), vec![good(), bell()]),
        ("files", request(), vec![]),
        ("files", request(), vec![good()]),
        ("files", request(), vec![good(), bell(), bell()]),
        ("files", request(), vec![bell(), good()]),
        ("not a memory file", request(), vec![null(), bell()]),
        ("not sealed", request(), vec![memory_file(SEGMENT_BYTES, SealFlags::empty()), bell()]),
        (
            "not sealed",
            request(),
            vec![memory_file(SEGMENT_BYTES, SealFlags::GROW | SealFlags::SEAL), bell()],
        ),
        ("announced size", request(), vec![memory_file(4096, SEALS), bell()]),
        ("announced size", request(), vec![memory_file(SEGMENT_BYTES * 2, SEALS), bell()]),
        ("announced size", request(), vec![memory_file(0, SEALS), bell()]),
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

/// The seals hold: neither side can pull the memory away from under the other.
#[test]
fn shared_files_cannot_be_resized_nor_written_by_the_wrong_side() {
    let mut victim = victim();
    let (intruder, _qp) = Intruder::new(&mut victim);
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
        let (mut intruder, qp) = Intruder::new(&mut victim);
        act(&mut intruder);
        // What only a sender looks at.
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
        let (mut intruder, qp) = Intruder::new(&mut victim);
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
                    let op = random.below(12) as u32;
                    intruder.packet(op, random.below(16) as u32, claimed, &body);
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

/// Old slots are not taken for new messages, however often they are shown.
#[test]
fn replayed_slots_are_not_received_again() {
    let _watchdog = Watchdog::start("replayed slots");
    let mut victim = victim();
    let (mut intruder, qp) = Intruder::new(&mut victim);
    intruder.send(SEND, WHOLE, b"once");
    victim.wait(|victim| victim.received(qp).len() == 1);
    for position in 0..3 {
        // The same message with the same sequence number, in its slot and in the next ones.
        let at = Intruder::slot(position);
        intruder.own.put(at + 8, b"again");
        intruder.own.put(at + 4, &(SEND | WHOLE << 8 | 5 << 16).to_le_bytes());
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
    let (intruder, qp) = Intruder::new(&mut victim);
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
fn lies_about_regions_kill_the_connection_and_map_nothing() {
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

/// A region without a file is written through the engine, where the hostile server may refuse it.
#[test]
fn a_region_that_cannot_be_mapped_is_written_by_packets() {
    let mut pair = Client::of_a_hostile_server();
    let to = rpc_transport::device::RemoteSlice { address: 0x1000, rkey: 0x42 };
    let source = pair.end.filled(b"through the engine");
    let mut wr = [SendWr { wr_id: 1, op: SendOp::Write(to), signaled: true, source }];
    pair.end.post(&mut wr).unwrap();
    pair.server.send(MAP_ANSWER, WHOLE, &span(0, 0x42, 3, 0));
    for _ in 0..200 {
        pair.end.pump();
    }
    // The second packet of the client: the first was the question.
    let at = Intruder::slot(1);
    assert_eq!(pair.server.theirs.word(at), 1 | 1 << 31);
    assert_eq!(pair.server.theirs.word(at + 4) & 0xff, WRITE);
}

/// An honest client of a hostile server.
struct Client {
    end: End,
    server: Intruder,
}

impl Client {
    fn of_a_hostile_server() -> Self {
        let address: Address = format!("shm://{}", name()).parse().unwrap();
        let listening = socket();
        let at = SocketAddrUnix::new_abstract_name(address.to_string().as_bytes()).unwrap();
        rustix::net::bind(&listening, &at).unwrap();
        rustix::net::listen(&listening, 1).unwrap();
        let server = std::thread::spawn(move || {
            let socket = rustix::net::accept(&listening).unwrap();
            let (_, files) = hear(&socket);
            let own_file = memory_file(SEGMENT_BYTES, SEALS);
            let reply = message(REPLY, SLOTS as u32, &[0; 196]);
            say(&socket, &reply, &[own_file.as_fd(), bell().as_fd()]);
            (socket, own_file, files)
        });
        let end = runtime().block_on(client_of(&address)).unwrap();
        let (socket, own_file, files) = server.join().unwrap();
        Self { end, server: Intruder::with(socket, own_file, files) }
    }

    fn wait(&mut self, until: impl Fn(&End) -> bool) {
        loop {
            self.end.pump();
            if until(&self.end) {
                return;
            }
            self.end.cq.arm().unwrap();
            if self.end.pump() {
                continue;
            }
            assert!(until(&self.end) || self.end.is_woken(PATIENCE));
            self.end.cq.clear_events().unwrap();
        }
    }
}

async fn client_of(address: &Address) -> Result<End, ConnectError> {
    let connector = soft::ShmConnector::default();
    let mut outgoing = connector.resolve(address).await?;
    let options = Options::default();
    let mut objects = End::objects(outgoing.device(), &options);
    let capacity = End::capacity(&options);
    let qp = outgoing.create_qp(&mut *objects.cq, &objects.pd, capacity).unwrap();
    let mut end = objects.into_end(qp, &options);
    let established = outgoing.connect(b"").await?;
    established.attach.run(&mut *end.cq).unwrap();
    Ok(end)
}

#[test]
fn servers_that_answer_nonsense_are_named() {
    let _watchdog = Watchdog::start("nonsense servers");
    let mut bad_version = message(REPLY, 512, &[0; 196]);
    bad_version[8] = 7;
    let good = || vec![memory_file(SEGMENT_BYTES, SEALS), bell()];
    let answers: Vec<(&str, Vec<u8>, Vec<OwnedFd>)> = vec![
        ("dropped", vec![], vec![]),
        ("version 7", bad_version, good()),
        ("kind 42", message(42, 512, b""), vec![]),
        ("another size", message(REPLY, 256, &[0; 196]), {
            vec![memory_file(CONTROL_BYTES + 256 * SLOT_BYTES, SEALS), bell()]
        }),
        ("two files", message(REPLY, 512, &[0; 196]), vec![]),
        ("not sealed", message(REPLY, 512, &[0; 196]), {
            vec![memory_file(SEGMENT_BYTES, SealFlags::empty()), bell()]
        }),
        ("go away", message(REFUSE, 0, b"go away"), vec![]),
        ("too long", vec![1; 900], vec![]),
    ];
    for (expected, answer, files) in answers {
        let address: Address = format!("shm://{}", name()).parse().unwrap();
        let listening = socket();
        let at = SocketAddrUnix::new_abstract_name(address.to_string().as_bytes()).unwrap();
        rustix::net::bind(&listening, &at).unwrap();
        rustix::net::listen(&listening, 1).unwrap();
        let server = std::thread::spawn(move || {
            let socket = rustix::net::accept(&listening).unwrap();
            hear(&socket);
            if !answer.is_empty() {
                let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
                say(&socket, &answer, &files);
            }
        });
        let Err(error) = runtime().block_on(client_of(&address)) else {
            panic!("connected to a server that answered `{expected}`")
        };
        let error = error.to_string();
        assert!(error.contains(expected), "{expected}: {error}");
        assert!(error.contains(&address.to_string()), "{error}");
        server.join().unwrap();
    }
}

/// Runs `act` on a thread with the effective user `nobody`; needs root.
fn as_another_user<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::spawn(|| {
        let nobody = rustix::process::Uid::from_raw(65_534);
        // The system call concerns this thread alone.
        rustix::thread::set_thread_res_uid(rustix::process::getuid(), nobody, nobody).unwrap();
        act()
    })
    .join()
    .unwrap()
}

#[test]
fn peers_of_another_user_are_refused_by_both_sides() {
    if !rustix::process::geteuid().is_root() {
        println!("not run as root: another user cannot be played, so this is not tested");
        return;
    }
    let _watchdog = Watchdog::start("another user");
    let mut victim = victim();
    // The listener refuses a connector that does not care.
    let (answer, files) = while_listening(&mut victim, |address| {
        let address = address.clone();
        as_another_user(move || {
            let socket = dial_to(&address);
            say(&socket, &request(), &[memory_file(SEGMENT_BYTES, SEALS).as_fd(), bell().as_fd()]);
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
    victim.assert_unharmed();
}
