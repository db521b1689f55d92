//! A CQ of the software device with queue pairs over sockets, for tests.

use std::os::unix::net::UnixStream;
use std::ptr::NonNull;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::device::soft::domain::SoftDomain;
use crate::device::soft::packet::{Extension, Flags, Op};
use crate::device::soft::ring::Piece;
use crate::device::soft::wire::Wire;
use crate::device::soft::wire_tcp::TcpWire;
use crate::device::{Completion, CompletionQueue, QpCapacity, QpHandle, RecvWr, Status};
use crate::memory::region::{BufferPool, ProtectionDomain};

use super::{EVENTS_EVERY, SoftCompletionQueue};

const RECVS: u32 = 16;
const CAPACITY: QpCapacity =
    QpCapacity { max_send_wr: 2, max_recv_wr: RECVS, max_inline_bytes: 64, uses_srq: false };

/// A CQ with queue pairs over sockets, and the other ends of the sockets.
pub(super) struct World {
    pub(super) cq: SoftCompletionQueue,
    domain: ProtectionDomain,
    pool: BufferPool,
    pub(super) peers: Vec<(QpHandle, TcpWire)>,
}

impl World {
    pub(super) fn new(qps: u32) -> Self {
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

    /// A peer sends a message of 64 bytes.
    pub(super) fn send(&mut self, peer: usize) {
        self.send_flagged(peer, Flags::FIRST.with(Flags::LAST));
    }

    /// A peer sends such a message and asks for its acknowledgement.
    pub(super) fn send_signaled(&mut self, peer: usize) {
        self.send_flagged(peer, Flags::FIRST.with(Flags::LAST).with(Flags::ACK));
    }

    fn send_flagged(&mut self, peer: usize, flags: Flags) {
        let bytes = [7; 64];
        let piece = Piece { base: NonNull::from(&bytes).cast(), len: bytes.len() };
        let wire = &mut self.peers[peer].1;
        wire.send_copied(Op::Send, flags, Extension::None, [piece, Piece::EMPTY]).unwrap();
        wire.flush();
    }

    /// Polls once. Returns the number of messages found.
    pub(super) fn poll(&mut self) -> usize {
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
    pub(super) fn stay_awake(&mut self, peers: &[usize]) {
        for _ in 0..3 * EVENTS_EVERY {
            peers.iter().for_each(|peer| self.send(*peer));
            assert_eq!(self.poll(), peers.len());
        }
    }

    /// Goes to sleep, as a driver does. Returns the number of messages found.
    pub(super) fn arm(&mut self) -> usize {
        self.cq.arm().unwrap();
        self.poll()
    }

    pub(super) fn is_woken(&self) -> bool {
        let fd = self.cq.event_fd();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    }
}
