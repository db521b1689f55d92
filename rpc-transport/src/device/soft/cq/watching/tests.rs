//! Of whose arrivals the event fd tells, and when.

use std::os::unix::net::UnixStream;
use std::ptr::NonNull;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::device::soft::domain::SoftDomain;
use crate::device::soft::packet::{Extension, Flags, Op};
use crate::device::soft::ring::Piece;
use crate::device::soft::wire::Wire;
use crate::device::soft::wire_tcp::TcpWire;
use crate::device::{Completion, CompletionQueue, QpCapacity, RecvWr, Status};
use crate::memory::region::{BufferPool, ProtectionDomain};

use super::super::{EVENTS_EVERY, QUIET_VISITS};
use super::*;

const RECVS: u32 = 16;
const CAPACITY: QpCapacity =
    QpCapacity { max_send_wr: 2, max_recv_wr: RECVS, max_inline_bytes: 0, uses_srq: false };

/// A CQ whose queue pairs have sockets, and the other ends of these.
struct World {
    cq: SoftCompletionQueue,
    domain: ProtectionDomain,
    pool: BufferPool,
    peers: Vec<(QpHandle, TcpWire)>,
}

impl World {
    fn new(qps: u32) -> Self {
        let domain = SoftDomain::allocate();
        let cq = SoftCompletionQueue::create(200).unwrap();
        let pool = BufferPool::allocate(&domain, 200, qps * RECVS).unwrap();
        let mut world = Self { cq, domain, pool, peers: Vec::new() };
        (0..qps).for_each(|_| world.connect());
        world
    }

    fn connect(&mut self) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        let qp = self.cq.create_qp(&self.domain, CAPACITY).unwrap();
        (0..RECVS).for_each(|_| self.post_recv(qp));
        self.cq.attach(qp, Wire::Tcp(Box::new(TcpWire::new(ours.into())))).unwrap();
        self.peers.push((qp, TcpWire::new(theirs.into())));
    }

    fn post_recv(&mut self, qp: QpHandle) {
        let buffer = self.pool.take().unwrap();
        assert!(self.cq.post_recv(qp, RecvWr { wr_id: 0, buffer }).is_ok());
    }

    fn send(&mut self, peer: usize) {
        let bytes = [7; 64];
        let piece = Piece { base: NonNull::from(&bytes).cast(), len: bytes.len() };
        let wire = &mut self.peers[peer].1;
        let whole = Flags::FIRST.with(Flags::LAST);
        wire.send_copied(Op::Send, whole, Extension::None, [piece, Piece::EMPTY]).unwrap();
        wire.flush();
    }

    /// Polls once. Returns of how many messages it has found.
    fn poll(&mut self) -> usize {
        let mut polled: Vec<Completion> = Vec::new();
        self.cq.poll(&mut polled, 64).unwrap();
        for done in &mut polled {
            assert_eq!(done.status, Status::Success);
            drop(done.buffer.take());
            self.post_recv(done.qp);
        }
        polled.len()
    }

    /// Polls for long while the peers send now and then.
    fn stay_awake(&mut self, peers: &[usize]) {
        for _ in 0..3 * EVENTS_EVERY {
            peers.iter().for_each(|peer| self.send(*peer));
            assert_eq!(self.poll(), peers.len());
        }
    }

    /// Goes to sleep, as a driver does. Returns how many messages that has found.
    fn arm(&mut self) -> usize {
        self.cq.arm().unwrap();
        self.poll()
    }

    fn is_woken(&self) -> bool {
        let fd = self.cq.event_fd();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    }
}

#[test]
#[cfg_attr(miri, ignore = "miri knows no epoll of this kind")]
fn arrivals_wake_nobody_while_they_are_polled_for() {
    let mut world = World::new(1);
    world.stay_awake(&[0]);
    // What the set had found as it was last told.
    world.cq.clear_events().unwrap();
    world.send(0);
    assert!(!world.is_woken());
    assert_eq!(world.poll(), 1);
}

#[test]
#[cfg_attr(miri, ignore = "miri knows no epoll of this kind")]
fn who_goes_to_sleep_finds_what_has_come_and_is_woken_by_what_comes() {
    let mut world = World::new(2);
    for round in 0..3 {
        world.stay_awake(&[0, 1]);
        if round > 0 {
            world.send(1);
        }
        assert_eq!(world.arm(), usize::from(round > 0));
        assert!(!world.is_woken(), "neither by that nor by room to write");
        assert_eq!(world.arm(), 0);
        world.send(0);
        assert!(world.is_woken());
        world.cq.clear_events().unwrap();
        assert_eq!(world.poll(), 1);
    }
}

#[test]
#[cfg_attr(miri, ignore = "miri knows no epoll of this kind")]
fn who_sleeps_now_and_then_has_no_queue_pair_muted() {
    let mut world = World::new(1);
    for round in 0..4 * EVENTS_EVERY {
        world.send(0);
        assert_eq!(world.poll(), 1);
        if round % (EVENTS_EVERY / 2) == 0 {
            assert_eq!(world.arm(), 0);
        }
        assert_eq!(world.cq.muted, 0);
    }
}

#[test]
#[cfg_attr(miri, ignore = "miri knows no epoll of this kind")]
fn a_muted_queue_pair_that_nobody_visits_any_more_is_told_of_again() {
    let mut world = World::new(2);
    world.stay_awake(&[0, 1]);
    assert_eq!(world.cq.muted, 2);
    // The other one goes on.
    for _ in 0..QUIET_VISITS {
        world.send(0);
        assert_eq!(world.poll(), 1);
        if world.cq.hot.len() == 1 {
            break;
        }
    }
    assert_eq!((world.cq.hot.len(), world.cq.muted), (1, 1));
    world.send(1);
    assert!((0..=EVENTS_EVERY).any(|_| world.poll() == 1));
    world.stay_awake(&[0, 1]);
    assert_eq!(world.cq.muted, 2);
    // Muted or not, they end.
    for (qp, _) in std::mem::take(&mut world.peers) {
        world.cq.destroy_qp(qp).unwrap();
    }
    assert_eq!(world.cq.muted, 0);
}
