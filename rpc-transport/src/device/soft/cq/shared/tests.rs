//! RECVs of an SRQ are never lost, whatever the peers of its queue pairs do.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use test_kit::{Rng, for_seeds};

use crate::device::soft::domain::SoftDomain;
use crate::device::soft::packet::{Extension, Flags, Op};
use crate::device::soft::ring::{MIN_SLOTS, Piece};
use crate::device::soft::wire::Wire;
use crate::device::soft::wire_ring::RingWire;
use crate::device::{Completion, CompletionKind, CompletionQueue, QpHandle, Status};
use crate::memory::region::{BufferPool, ProtectionDomain};

use super::*;

const RECVS: u32 = 4;
const BUFFER_BYTES: u32 = 200;
const CAPACITY: QpCapacity =
    QpCapacity { max_send_wr: 2, max_recv_wr: 0, max_inline_bytes: 0, uses_srq: true };

/// A CQ with an SRQ, and the other ends of its queue pairs.
struct World {
    cq: SoftCompletionQueue,
    domain: ProtectionDomain,
    pool: BufferPool,
    peers: Vec<(QpHandle, RingWire)>,
}

impl World {
    fn new() -> Self {
        let domain = SoftDomain::allocate();
        let mut cq = SoftCompletionQueue::create(100).unwrap();
        cq.create_srq(&domain, RECVS).unwrap();
        let pool = BufferPool::allocate(&domain, BUFFER_BYTES, RECVS + 1).unwrap();
        let mut world = Self { cq, domain, pool, peers: Vec::new() };
        (0..RECVS).for_each(|_| assert!(world.post()));
        world
    }

    /// Whether there was a slot.
    fn post(&mut self) -> bool {
        let buffer = self.pool.take().expect("more buffers than slots");
        match self.cq.post_srq_recv(RecvWr { wr_id: 0, buffer }) {
            Ok(()) => true,
            Err((error, _)) => {
                assert_eq!(error.kind, PostErrorKind::QueueFull(RECVS));
                false
            }
        }
    }

    fn connect(&mut self) -> QpHandle {
        let (wire, peer) = RingWire::pair(MIN_SLOTS).unwrap();
        let qp = self.cq.create_qp(&self.domain, CAPACITY).unwrap();
        self.cq.attach(qp, Wire::Ring(Box::new(wire))).unwrap();
        self.peers.push((qp, peer));
        qp
    }

    fn push(&mut self, peer: usize, flags: Flags, bytes: &[u8]) {
        let pieces = [Piece::from(bytes), Piece::EMPTY];
        // Nobody may be taking packets any more.
        let _ = self.peers[peer].1.ring.push(Op::Send, flags, Extension::None, pieces);
    }

    fn poll(&mut self, max: usize) -> Vec<Completion> {
        let mut polled = Vec::new();
        self.cq.poll(&mut polled, max).unwrap();
        while self.cq.poll_event().is_some() {}
        polled
    }

    fn is_woken(&self) -> bool {
        let fd = self.cq.event_fd();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    }

    fn end(mut self) {
        for (qp, _) in std::mem::take(&mut self.peers) {
            self.cq.destroy_qp(qp).unwrap();
        }
        self.cq.create_srq(&self.domain, 1).unwrap();
        assert_eq!(self.pool.free_count(), self.pool.count() as usize);
    }
}

#[test]
#[cfg_attr(miri, ignore = "miri knows no epoll of this kind")]
fn recv_of_a_cut_off_message_comes_back() {
    let mut world = World::new();
    let [ends, stays] = [world.connect(), world.connect()];
    world.push(0, Flags::FIRST, b"the first half");
    assert!(world.poll(9).is_empty());
    assert!(!world.post(), "it is taken, and keeps its slot");
    world.cq.clear_events().unwrap();
    world.cq.arm().unwrap();
    assert!(!world.is_woken());
    world.cq.modify_to_error(ends).unwrap();
    assert!(world.is_woken(), "the owner learns of it");
    assert!(!world.post() && !world.cq.has_drained(ends), "also while its completion waits");
    let polled = world.poll(9);
    let [flushed] = &polled[..] else { panic!("{polled:?}") };
    assert_eq!((flushed.qp, flushed.status), (ends, Status::FlushError));
    assert_eq!(flushed.kind, CompletionKind::Recv);
    drop(polled);
    assert!(world.cq.has_drained(ends) && world.post());
    let whole = Flags::FIRST.with(Flags::LAST);
    (0..RECVS).for_each(|_| world.push(1, whole, b"whole"));
    let mut polled = Vec::new();
    while polled.len() < RECVS as usize {
        polled.extend(world.poll(9));
    }
    assert!(polled.iter().all(|done| (done.qp, done.status) == (stays, Status::Success)));
    drop(polled);
    world.end();
}

#[test]
#[cfg_attr(miri, ignore = "miri knows no epoll of this kind")]
fn srq_loses_no_recv_whatever_peers_do() {
    let mut seen = [0; 3];
    for_seeds(0x5e22, 300, |rng| {
        let mut world = World::new();
        let mut posted = RECVS as usize;
        for _ in 0..80 {
            if world.peers.len() < 3 {
                world.connect();
            }
            step(&mut world, rng);
            let most = rng.pick(&[0, 1, 9]);
            for done in world.poll(most) {
                assert!(done.buffer.is_some(), "{done:?}");
                posted -= 1;
                seen[match done.status {
                    Status::Success => 0,
                    Status::FlushError => 1,
                    _ => 2,
                }] += 1;
            }
            if rng.chance(70) && world.post() {
                posted += 1;
            }
            let mine = world.pool.count() as usize - world.pool.free_count();
            assert_eq!(mine, posted, "posted and not polled");
            assert_eq!(world.cq.queues.srq.as_ref().unwrap().is_full(), posted == RECVS as usize);
        }
        world.end();
    });
    assert!(seen.iter().all(|count| *count > 0), "{seen:?} received, flushed, failed");
}

fn step(world: &mut World, rng: &mut Rng) {
    let peer = rng.index(world.peers.len());
    let qp = world.peers[peer].0;
    match rng.below(20) {
        0 | 1 => world.cq.modify_to_error(qp).unwrap(),
        2 => {
            // The peer goes.
            let (wire, _) = RingWire::pair(MIN_SLOTS).unwrap();
            world.peers[peer].1 = wire;
        }
        _ => {
            let whole = Flags::FIRST.with(Flags::LAST);
            let flags = rng.pick(&[whole, whole, Flags::FIRST, Flags::LAST, Flags::default()]);
            // Seldom more than a buffer holds.
            let most = if rng.chance(95) { 80 } else { 400 };
            let len = rng.index(most);
            let bytes = rng.bytes(len);
            world.push(peer, flags, &bytes);
        }
    }
    if world.cq.has_drained(qp) && rng.chance(20) {
        world.cq.destroy_qp(qp).unwrap();
        world.peers.remove(peer);
    }
}
