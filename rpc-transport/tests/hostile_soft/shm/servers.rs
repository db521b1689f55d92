//! Hostile servers of the shm wire, and the reactions of an honest client.

use std::os::fd::{AsFd, OwnedFd};

use rpc_transport::address::Address;
use rpc_transport::device::connection_error::ConnectError;
use rpc_transport::device::{Connector, RemoteSlice, SendOp, SendWr, soft};
use rustix::fs::SealFlags;
use rustix::mm::ProtFlags;
use test_kit::hostile::kind::{REFUSE, REPLY};
use test_kit::hostile::op::{MAP_ANSWER, WHOLE, WRITE};
use test_kit::hostile::shm::{
    self, SEALS, SEGMENT_BYTES, SLOTS, Wire as Intruder, hear, memory_file, message, say,
    segment_bytes,
};
use test_kit::hostile::span;

use super::name;
use crate::fixture::*;

/// A region without a file is written through the engine, where the hostile server may refuse it.
#[test]
fn unmappable_region_is_written_by_packets() {
    let mut pair = Client::of_a_hostile_server();
    let to = RemoteSlice { address: 0x1000, rkey: 0x42 };
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
    assert_eq!(pair.server.theirs.word(at + 4) & 0xff, u32::from(WRITE));
}

/// An honest client of a hostile server.
pub(super) struct Client {
    pub(super) end: End,
    pub(super) server: Intruder,
}

impl Client {
    pub(super) fn of_a_hostile_server() -> Self {
        let address: Address = format!("shm://{}", name()).parse().unwrap();
        let listening = shm::listen(&address.to_string());
        let server = std::thread::spawn(move || {
            let socket = rustix::net::accept(&listening).unwrap();
            let (_, files) = hear(&socket);
            let own_file = memory_file(SEGMENT_BYTES, SEALS);
            let reply = message(REPLY, SLOTS as u32, &[0; 196]);
            say(&socket, &reply, &[own_file.as_fd()]);
            (socket, own_file, files)
        });
        let end = runtime().block_on(client_of(&address)).unwrap();
        let (socket, own_file, files) = server.join().unwrap();
        Self { end, server: Intruder::with(socket, own_file, files) }
    }

    pub(super) fn wait(&mut self, until: impl Fn(&End) -> bool) {
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

pub(super) async fn client_of(address: &Address) -> Result<End, ConnectError> {
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
    let good = || vec![memory_file(SEGMENT_BYTES, SEALS)];
    let answers: Vec<(&str, Vec<u8>, Vec<OwnedFd>)> = vec![
        ("dropped", vec![], vec![]),
        ("versions 7", bad_version, good()),
        ("kind 42", message(42, 512, b""), vec![]),
        ("another size", message(REPLY, 256, &[0; 196]), {
            vec![memory_file(segment_bytes(256), SEALS)]
        }),
        ("one file", message(REPLY, 512, &[0; 196]), vec![]),
        ("not sealed", message(REPLY, 512, &[0; 196]), {
            vec![memory_file(SEGMENT_BYTES, SealFlags::empty())]
        }),
        ("go away", message(REFUSE, 0, b"go away"), vec![]),
        ("too long", vec![1; 900], vec![]),
    ];
    for (expected, answer, files) in answers {
        let address: Address = format!("shm://{}", name()).parse().unwrap();
        let listening = shm::listen(&address.to_string());
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

/// An endless stream of doorbells is read in batches; an announced file is found among them.
#[test]
fn flood_of_doorbells_grows_nothing_hides_nothing() {
    let _watchdog = Watchdog::start("a flood of doorbells");
    let mut pair = Client::of_a_hostile_server();
    let (rkey, len) = (0x42, 4096);
    let to = RemoteSlice { address: 0x1000, rkey };
    let source = pair.end.filled(b"placed");
    let mut wr = [SendWr { wr_id: 1, op: SendOp::Write(to), signaled: true, source }];
    pair.end.post(&mut wr).unwrap();
    (0..100).for_each(|_| pair.server.ring());
    let file = memory_file(8192, SEALS);
    say(&pair.server.socket, &u32::to_le_bytes(rkey), &[file.as_fd()]);
    (0..10_000).for_each(|_| pair.server.ring());
    pair.server.send(MAP_ANSWER, WHOLE, &span(0x1000, rkey, 3, len));
    let placed = shm::Map::of(&file, 8192, ProtFlags::READ);
    pair.wait(|_| placed.word(0) == u32::from_le_bytes(*b"plac"));
}

/// A peer cannot spend the address space of this process: regions too long to be mapped are written
/// by packets.
#[test]
fn a_peer_cannot_make_us_map_a_terabyte() {
    let _watchdog = Watchdog::start("a terabyte");
    let mut pair = Client::of_a_hostile_server();
    let rkey = 0x42;
    let to = RemoteSlice { address: 0x1000, rkey };
    let source = pair.end.filled(b"through the engine");
    let mut wr = [SendWr { wr_id: 1, op: SendOp::Write(to), signaled: true, source }];
    pair.end.post(&mut wr).unwrap();
    let terabyte = 1 << 40;
    let file = memory_file(terabyte + 4096, SEALS);
    say(&pair.server.socket, &u32::to_le_bytes(rkey), &[file.as_fd()]);
    pair.server.send(MAP_ANSWER, WHOLE, &span(0x1000, rkey, 3, terabyte as u64));
    // The second packet of the client: the first was the question.
    let at = Intruder::slot(1);
    let server = &pair.server;
    let start = std::time::Instant::now();
    while server.theirs.word(at) != 1 | 1 << 31 {
        pair.end.pump();
        assert!(start.elapsed() < PATIENCE, "no packet came");
    }
    assert_eq!(server.theirs.word(at + 4) & 0xff, u32::from(WRITE));
    let maps = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = maps.split(' ').next().unwrap().parse().unwrap();
    assert!(pages * 4096 < terabyte as u64, "{pages} pages are mapped");
}
