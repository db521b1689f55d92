//! Posts and completions, without a device.
#![allow(unsafe_code, reason = "makes regions that no device knows")]

use std::any::Any;
use std::sync::Arc;

use super::*;
use crate::device::{ProviderError, RemoteSlice};
use crate::memory::owned::{OwnedMemory, OwnedParts};
use crate::memory::region::{Access, BufferPool, DomainOps, ProtectionDomain, RegionParts};

/// A domain whose regions are not registered with any device.
#[derive(Debug)]
struct Unregistered;

impl DomainOps for Unregistered {
    fn allocate(&self, len: usize, access: Access) -> Result<MemoryRegion, ProviderError> {
        self.register(vec![0; len].into(), access)
    }

    fn register(&self, memory: OwnedMemory, access: Access) -> Result<MemoryRegion, ProviderError> {
        let OwnedParts { base, len, owner, .. } = memory.into_parts(access.remote_write)?;
        let parts = RegionParts { base, len, lkey: 7, rkey: 7, access, remote_base: 0, domain: 1 };
        // SAFETY: the memory belongs to the owner, which the region keeps; there is no device.
        Ok(unsafe { MemoryRegion::from_parts(parts, Box::new(()), owner) })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn pool(count: u32) -> BufferPool {
    BufferPool::allocate(&ProtectionDomain::new(Arc::new(Unregistered)), 64, count).unwrap()
}

const HANDLE: QpHandle = QpHandle { index: 3, generation: 5 };

fn queues(max_send_wr: u32, max_recv_wr: u32) -> WorkQueues {
    let capacity = QpCapacity { max_send_wr, max_recv_wr, max_inline_bytes: 16, uses_srq: false };
    let all = Capabilities::IMMEDIATE.with(Capabilities::READ);
    let mut queues = WorkQueues::new(HANDLE, capacity, 16, 1 << 20, all, Quirks::default());
    queues.establish(&mut VecDeque::new());
    queues
}

fn send(wr_id: u64, signaled: bool, source: Source<'_>) -> SendWr<'_> {
    SendWr { wr_id, op: SendOp::Send, signaled, source }
}

fn done(status: Status) -> Outcome {
    Outcome { status, byte_len: 4, imm: None, is_write: false }
}

fn key(queue: Queue, position: u32) -> WrKey {
    WrKey { queue, qp: HANDLE.index, generation: HANDLE.generation, position }
}

fn reported(out: &mut VecDeque<Completion>) -> Vec<(u64, Status)> {
    out.drain(..).map(|completion| (completion.wr_id, completion.status)).collect()
}

#[test]
fn memory_is_kept_from_post_to_completion() {
    let pool = pool(2);
    let (mut queues, mut batch, mut out) = (queues(4, 4), Batch::default(), VecDeque::new());
    for (wr_id, signaled) in [(1, false), (2, true)] {
        let source = Source::Buffer { buffer: pool.take().unwrap(), start: 8, len: 8 };
        let mut wr = send(wr_id, signaled, source);
        queues.post_send(&mut wr, &mut batch).unwrap();
        assert!(matches!(wr.source, Source::Empty));
    }
    assert_eq!(pool.free_count(), 0);
    assert!(queues.complete(key(Queue::Send, 1), done(Status::Success), &mut out));
    // The unsignaled WR's buffer is back in the pool, the signaled one's is in its completion.
    assert_eq!(pool.free_count(), 1);
    assert!(out[0].buffer.is_some());
    assert_eq!(reported(&mut out), [(2, Status::Success)]);
    assert!(!queues.complete(key(Queue::Send, 1), done(Status::Success), &mut out), "twice");
    assert!(queues.is_empty() && out.is_empty());
}

#[test]
fn drain_wr_reports_unsignaled_work_requests() {
    let (mut queues, mut batch, mut out) = (queues(8, 4), Batch::default(), VecDeque::new());
    for (wr_id, signaled) in [(1, true), (2, false), (3, false)] {
        queues.post_send(&mut send(wr_id, signaled, Source::Inline(b"x")), &mut batch).unwrap();
    }
    let drain_wr = WrKey::decode(queues.enter_error().unwrap()).unwrap();
    assert_eq!((drain_wr.queue, drain_wr.position), (Queue::DrainWr, 2));
    assert_eq!(queues.enter_error(), None, "one drain_wr");
    queues.complete(key(Queue::Send, 0), done(Status::Success), &mut out);
    queues.complete(drain_wr, done(Status::FlushError), &mut out);
    let flushed = Status::FlushError;
    assert_eq!(reported(&mut out), [(1, Status::Success), (2, flushed), (3, flushed)]);
    assert!(queues.is_empty());
}

#[test]
fn no_drain_wr_if_a_completion_is_due() {
    let (mut queues, mut batch) = (queues(8, 4), Batch::default());
    queues.post_send(&mut send(1, false, Source::Empty), &mut batch).unwrap();
    queues.post_send(&mut send(2, true, Source::Empty), &mut batch).unwrap();
    assert_eq!(queues.enter_error(), None);
}

#[test]
fn refused_posts_complete_behind_what_was_posted() {
    let (mut queues, mut batch, mut out) = (queues(8, 4), Batch::default(), VecDeque::new());
    for wr_id in 1..=4 {
        queues.post_send(&mut send(wr_id, wr_id == 2, Source::Empty), &mut batch).unwrap();
    }
    queues.strand(2);
    assert_eq!(queues.enter_error(), None, "the last that was posted is signaled");
    queues.deliver_stranded(&mut out);
    assert!(out.is_empty());
    // WRs posted afterwards do not reach the device either.
    let before = format!("{batch:?}");
    queues.post_send(&mut send(5, true, Source::Empty), &mut batch).unwrap();
    assert_eq!(format!("{batch:?}"), before);
    queues.complete(key(Queue::Send, 1), done(Status::Success), &mut out);
    let flushed = Status::FlushError;
    let expected =
        [(2, Status::Success), (3, Status::LocalQpOperation), (4, flushed), (5, flushed)];
    assert_eq!(reported(&mut out), expected);
}

#[test]
fn late_recvs_flush_behind_those_of_the_device() {
    let pool = pool(3);
    let (mut queues, mut out) = (queues(4, 3), VecDeque::new());
    let recv = |wr_id| RecvWr { wr_id, buffer: pool.take().unwrap() };
    let first = WrKey::decode(queues.hold_recv(recv(1))).unwrap();
    assert_eq!(queues.enter_error(), None);
    queues.hold_late_recv(recv(2), &mut out);
    assert!(out.is_empty());
    queues.complete(first, done(Status::FlushError), &mut out);
    queues.hold_late_recv(recv(3), &mut out);
    let flushed = Status::FlushError;
    assert!(out.iter().all(|completion| completion.buffer.is_some()));
    assert_eq!(reported(&mut out), [(1, flushed), (2, flushed), (3, flushed)]);
    assert_eq!(pool.free_count(), 3);
}

#[test]
fn early_completions_are_reported_in_order_once_settled() {
    for fails in [false, true] {
        let capacity =
            QpCapacity { max_send_wr: 1, max_recv_wr: 3, max_inline_bytes: 0, uses_srq: false };
        let mut queues =
            WorkQueues::new(HANDLE, capacity, 0, 1, Capabilities::NONE, Quirks::default());
        let (pool, mut out) = (pool(3), VecDeque::new());
        let recv = |wr_id| RecvWr { wr_id, buffer: pool.take().unwrap() };
        let keys = [1, 2, 3].map(|wr_id| WrKey::decode(queues.hold_recv(recv(wr_id))).unwrap());
        assert!(queues.complete(keys[0], done(Status::Success), &mut out));
        assert!(queues.complete(keys[1], done(Status::Success), &mut out));
        assert!(!queues.complete(keys[1], done(Status::Success), &mut out), "once only");
        assert!(out.is_empty());
        if !fails {
            queues.establish(&mut out);
            assert_eq!(out.len(), 2);
        }
        let last = if fails { Status::LocalLength } else { Status::Success };
        assert!(queues.complete(keys[2], done(last), &mut out));
        let reported: Vec<_> =
            out.drain(..).map(|reported| (reported.wr_id, reported.status)).collect();
        assert_eq!(reported, [(1, Status::Success), (2, Status::Success), (3, last)]);
        assert_eq!(pool.free_count(), 3);
    }
}

#[test]
fn recvs_are_counted_wherever_they_are() {
    let pool = pool(4);
    let (mut queues, mut out) = (queues(4, 2), VecDeque::new());
    let recv = |wr_id| RecvWr { wr_id, buffer: pool.take().unwrap() };
    let key = queues.hold_recv(recv(1));
    queues.enter_error();
    queues.hold_late_recv(recv(2), &mut out);
    assert_eq!(queues.check_recv(), Err(PostErrorKind::QueueFull(2)));
    // A RECV that the device refuses is returned.
    assert_eq!(queues.unhold_recv(key).unwrap().wr_id, 1);
    assert!(queues.unhold_recv(key).is_none());
}

#[test]
fn a_bad_post_is_refused_before_anything_moves() {
    let pool = pool(1);
    let (mut queues, mut batch) = (queues(1, 1), Batch::default());
    let to = RemoteSlice { address: 0, rkey: 0 };
    let long = [0; 17];
    let mut refused = |op, source: Source<'_>| {
        let mut wr = SendWr { wr_id: 1, op, signaled: true, source };
        queues.post_send(&mut wr, &mut batch).unwrap_err()
    };
    let too_long = PostErrorKind::InlineTooLong { len: 17, max: 16 };
    assert_eq!(refused(SendOp::Send, Source::Inline(&long)), too_long);
    assert_eq!(refused(SendOp::Send, Source::InlineGather(&long[..8], &long[..9])), too_long);
    let read = |len| SendOp::Read { from: to, into: pool.take().unwrap(), len };
    assert_eq!(refused(read(1), Source::Inline(b"x")), PostErrorKind::Unsupported);
    assert!(matches!(refused(read(65), Source::Empty), PostErrorKind::OutOfBounds { .. }));
    let op = SendOp::WriteWithImm(to, 1);
    assert_eq!(refused(op, Source::Empty), PostErrorKind::Unsupported);
    let source = Source::Buffer { buffer: pool.take().unwrap(), start: u32::MAX, len: u32::MAX };
    assert!(matches!(refused(SendOp::Send, source), PostErrorKind::OutOfBounds { .. }));
    assert_eq!(pool.free_count(), 1);
    // A message longer than the device can send.
    let domain = ProtectionDomain::new(Arc::new(Unregistered));
    let region = domain.allocate((1 << 20) + 1, Access::LOCAL).unwrap();
    let source = Source::Region { region, start: 0, len: (1 << 20) + 1 };
    assert_eq!(refused(SendOp::Send, source), PostErrorKind::Os(90));
    assert!(queues.is_empty() && batch.qp().is_none());
}

#[test]
fn s73_sends_wait_for_rts() {
    let capacity =
        QpCapacity { max_send_wr: 1, max_recv_wr: 1, max_inline_bytes: 0, uses_srq: false };
    let mut queues = WorkQueues::new(HANDLE, capacity, 0, 1, Capabilities::NONE, Quirks::default());
    let mut batch = Batch::default();
    let error = queues.post_send(&mut send(1, true, Source::Empty), &mut batch).unwrap_err();
    assert_eq!(error, PostErrorKind::InvalidState(QpState::Init));
    assert!(queues.check_recv().is_ok());
    queues.enter_error();
    // A late `establish` does not leave ERR.
    queues.establish(&mut VecDeque::new());
    assert_eq!(queues.state(), QpState::Error);
    assert!(queues.post_send(&mut send(1, true, Source::Empty), &mut batch).is_ok());
}

/// A device that sends large unsignaled WRs from their memory, after the completions of later ones:
/// its user wrote new bytes there, and the peer received those.
#[test]
fn direct_send_is_signaled_only_to_the_device() {
    let page = IN_PLACE_BYTES;
    let domain = ProtectionDomain::new(Arc::new(Unregistered));
    let pool = BufferPool::allocate(&domain, page, 3).unwrap();
    let (mut queues, mut batch, mut out) = (queues(4, 4), Batch::default(), VecDeque::new());
    queues.quirks = Quirks { sends_in_place: true, ..Quirks::default() };
    let bytes = |len| Bytes::Memory { address: 0, len, lkey: 0 };
    assert_eq!(queues.completion_mode(false, &bytes(page)), (Queue::Silent, true));
    assert_eq!(queues.completion_mode(false, &bytes(page - 1)), (Queue::Send, false));
    assert_eq!(queues.completion_mode(true, &bytes(page)), (Queue::Send, true));
    for (wr_id, signaled) in [(1, false), (2, false), (3, true)] {
        let source = Source::Buffer { buffer: pool.take().unwrap(), start: 0, len: page };
        queues.post_send(&mut send(wr_id, signaled, source), &mut batch).unwrap();
    }
    // The success is consumed and not reported; the fast path leaves it to the general one.
    assert!(queues.complete_one(key(Queue::Silent, 0), done(Status::Success)).is_none());
    assert!(queues.complete(key(Queue::Silent, 0), done(Status::Success), &mut out));
    assert_eq!(pool.free_count(), 1);
    assert!(out.is_empty());
    // A failure is reported, as for any WR.
    assert!(queues.complete(key(Queue::Silent, 1), done(Status::LocalProtection), &mut out));
    assert!(queues.complete(key(Queue::Send, 2), done(Status::FlushError), &mut out));
    assert_eq!(reported(&mut out), [(2, Status::LocalProtection), (3, Status::FlushError)]);
}
