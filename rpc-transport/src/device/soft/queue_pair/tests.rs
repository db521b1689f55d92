//! The fast paths of small SENDs have the same results as the general ones.

use test_kit::for_seeds;

use super::super::domain::SoftDomain;
use super::super::packet::{Extension, Flags};
use super::super::ring::{MIN_SLOTS, Piece};
use super::super::sink::CqQueues;
use super::*;
use crate::device::SendOp;
use crate::memory::region::BufferPool;

const HANDLE: QpHandle = QpHandle { index: 3, generation: 7 };
const MAX_WR: u32 = 4;
const RUNS: u64 = if cfg!(miri) { 2 } else { 100 };

/// The sender: one half of a queue pair, and the other end of its ring.
struct Sender {
    requester: Requester,
    wire: Wire,
    peer: RingWire,
    used: Slots,
    queues: CqQueues,
}

impl Sender {
    const MAX_INLINE: u32 = 150;

    fn new(number: QpNumber) -> Self {
        let (wire, peer) = RingWire::pair(MIN_SLOTS).unwrap();
        Self {
            requester: Requester::new(HANDLE, number, 1, MAX_WR, Self::MAX_INLINE),
            wire: Wire::Ring(Box::new(wire)),
            peer,
            used: Slots::default(),
            queues: CqQueues::default(),
        }
    }

    /// Posts; also returns whether the fast path took it.
    fn post(&mut self, is_fast: bool, wr_id: u64, signaled: bool, bytes: &[u8]) -> (String, bool) {
        let Self { requester, wire, used, .. } = self;
        if is_fast && requester.post_small(wr_id, signaled, bytes, wire, used) {
            return ("Ok(())".to_owned(), true);
        }
        let source = Source::Inline(bytes);
        let mut wr = SendWr { wr_id, op: SendOp::Send, signaled, source };
        (format!("{:?}", requester.post(&mut wr, wire, used)), false)
    }

    /// The peer takes all waiting packets, and blocked WRs continue. Returns what the peer saw.
    fn go_on(&mut self) -> Vec<(u32, Vec<u8>)> {
        let mut seen = Vec::new();
        while let Some(word) = self.peer.ring.peek() {
            let head = Head::decode(word).unwrap();
            let mut bytes = vec![0; head.payload_bytes()];
            let to = std::ptr::NonNull::from(&mut bytes[..]).cast();
            // SAFETY: `to` has room for the payload.
            unsafe { self.peer.ring.copy_body(head.extension_bytes(), to, head.payload_bytes()) };
            self.peer.ring.consume(usize::from(head.body_bytes));
            seen.push((word, bytes));
        }
        self.peer.ring.publish();
        let Wire::Ring(wire) = &mut self.wire else { unreachable!() };
        let feedback = wire.ring.feedback().unwrap();
        let mut sink = Sink::queued(&mut self.queues);
        self.requester.on_feedback(feedback, &mut sink, &mut self.used).unwrap();
        self.requester.pump(&mut self.wire).unwrap();
        seen
    }

    /// All visible state; completions as a poll would return them.
    fn seen(&mut self) -> String {
        let done = self.queues.completions.drain(..).map(|queued| {
            self.used.free(queued.frees);
            queued.completion
        });
        let done = done.collect::<Vec<_>>();
        format!("{done:?} {:?} {:?}", self.used, self.requester)
    }
}

#[test]
fn fast_path_posts_what_the_general_path_posts() {
    let (mut fast_posts, mut full) = (0, 0);
    for_seeds(0x0905, RUNS, |rng| {
        let number = QpNumber::next();
        let [mut fast, mut slow] = [Sender::new(number), Sender::new(number)];
        for wr_id in 0..60 {
            if rng.chance(30) {
                assert_eq!(fast.go_on(), slow.go_on());
            } else {
                // In one slot, in several, and above the inline limit.
                let most = rng.pick(&[20, 120, Sender::MAX_INLINE as usize + 2]);
                let (len, signaled) = (rng.index(most), rng.chance(50));
                let bytes = rng.bytes(len);
                let (posted, was_fast) = fast.post(true, wr_id, signaled, &bytes);
                assert_eq!(posted, slow.post(false, wr_id, signaled, &bytes).0);
                fast_posts += u32::from(was_fast);
                full += u32::from(posted.contains("QueueFull"));
            }
            assert_eq!(fast.seen(), slow.seen());
        }
    });
    assert!(fast_posts > 0 && full > 0, "{fast_posts} on the fast path, {full} on a full queue");
}

/// The receiver: the other half.
struct Receiver {
    peer: RingWire,
    wire: RingWire,
    requester: Requester,
    responder: Responder,
    used: Slots,
    queues: CqQueues,
    pool: BufferPool,
}

impl Receiver {
    /// Size of a RECV buffer.
    const BUFFER_BYTES: u32 = 64;

    fn new() -> Self {
        Self::with_buffers(Self::BUFFER_BYTES)
    }

    fn with_buffers(buffer_bytes: u32) -> Self {
        let (peer, wire) = RingWire::pair(MIN_SLOTS).unwrap();
        let domain = SoftDomain::allocate();
        let table = SoftDomain::of(&domain).unwrap();
        Self {
            peer,
            wire,
            requester: Requester::new(HANDLE, QpNumber::next(), table.id(), MAX_WR, 0),
            responder: Responder::new(HANDLE, QpNumber::next(), table, MAX_WR, false),
            used: Slots::default(),
            queues: CqQueues::default(),
            pool: BufferPool::allocate(&domain, buffer_bytes, MAX_WR).unwrap(),
        }
    }

    fn post_recv(&mut self, wr_id: u64) {
        if let Some(buffer) = self.pool.take() {
            let posted = self.responder.post(RecvWr { wr_id, buffer }, &mut self.used);
            assert!(posted.is_ok(), "there are as many buffers as places");
        }
    }

    /// Takes the next packet, if there is one; also returns whether the fast path did.
    fn take(&mut self, is_fast: bool) -> (Option<Result<(), Refusal>>, bool) {
        let Some(word) = self.wire.ring.peek() else { return (None, false) };
        let mut sink = Sink::queued(&mut self.queues);
        let Self { requester, responder, used, wire, .. } = self;
        let mut targets = PacketTargets { requester, responder, sink: &mut sink, used };
        if is_fast && take_whole_send(word, wire, &mut targets) {
            return (Some(Ok(())), true);
        }
        (Some(take_packet(word, wire, &mut targets)), false)
    }

    /// All visible state; completions as a poll would return them.
    fn seen(&mut self) -> String {
        let done = self.queues.completions.drain(..).map(|queued| {
            self.used.free(queued.frees);
            let done = queued.completion;
            let bytes =
                done.buffer.as_ref().map(|buffer| buffer[..done.byte_len as usize].to_vec());
            (done.wr_id, done.kind, done.status, done.byte_len, done.imm, bytes)
        });
        let done = done.collect::<Vec<_>>();
        self.wire.ring.publish();
        format!("{done:?} {:?} {:?}", self.used, self.peer.ring.feedback())
    }
}

#[test]
fn fast_path_receives_what_the_general_path_receives() {
    let (mut taken_fast, mut refusals) = (0, Vec::new());
    for_seeds(0x7a4e, RUNS, |rng| {
        let [mut fast, mut slow] = [Receiver::new(), Receiver::new()];
        for wr_id in 0..60 {
            if rng.chance(50) {
                fast.post_recv(wr_id);
                slow.post_recv(wr_id);
            } else {
                let most = if rng.chance(95) { Receiver::BUFFER_BYTES as usize } else { 200 };
                let len = rng.index(most + 1);
                let bytes = rng.bytes(len);
                let whole = Flags::FIRST.with(Flags::LAST);
                let flags =
                    if rng.chance(95) { whole } else { rng.pick(&[Flags::FIRST, Flags::LAST]) };
                let flags = flags.with_if(Flags::ACK, rng.chance(30));
                let push = |end: &mut Receiver| {
                    let pieces = [Piece::from(&bytes[..]), Piece::EMPTY];
                    end.peer.ring.push(Op::Send, flags, Extension::None, pieces)
                };
                assert_eq!(push(&mut fast), push(&mut slow));
            }
            if rng.chance(60) {
                let (outcome, was_fast) = fast.take(true);
                assert_eq!(outcome, slow.take(false).0);
                taken_fast += u32::from(was_fast);
                if let Some(Err(refusal)) = outcome {
                    // A peer that was refused cannot send anything more.
                    assert_eq!(fast.seen(), slow.seen());
                    refusals.push(refusal);
                    return;
                }
            }
            assert_eq!(fast.seen(), slow.seen());
        }
    });
    assert!(taken_fast > 0, "none on the fast path");
    for refusal in [Refusal::NotReady, Refusal::TooLong, Refusal::Protocol] {
        assert!(cfg!(miri) || refusals.contains(&refusal), "no {refusal:?}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "miri knows no pages")]
fn resting_queue_pair_keeps_only_the_arriving_buffer() {
    const PAGES: u32 = 2;
    let mut end = Receiver::with_buffers(4096 * PAGES);
    let mut buffers: Vec<_> = (0..MAX_WR).map(|_| end.pool.take().unwrap()).collect();
    buffers.iter_mut().for_each(|buffer| buffer.fill(7));
    drop(buffers);
    (0..MAX_WR).for_each(|wr_id| end.post_recv(wr_id.into()));
    let resident = |end: &Receiver| u32::try_from(end.pool.resident_pages()).unwrap();
    assert_eq!(resident(&end), PAGES * MAX_WR);
    let push = |end: &mut Receiver, flags, bytes: &[u8]| {
        end.peer
            .ring
            .push(Op::Send, flags, Extension::None, [Piece::from(bytes), Piece::EMPTY])
            .unwrap();
        assert_eq!(end.take(false).0, Some(Ok(())));
    };
    push(&mut end, Flags::FIRST, b"half of it, ");
    end.responder.release_pages();
    assert_eq!(resident(&end), PAGES);
    push(&mut end, Flags::LAST, b"and the rest");
    let done = end.queues.completions.pop_front().unwrap().completion;
    assert_eq!(&done.buffer.unwrap()[..24], b"half of it, and the rest");
    // The next buffer is now at the front; the completed one is no longer the device's.
    end.responder.release_pages();
    assert_eq!(resident(&end), PAGES);
}

/// Such a buffer may belong to a device that pins it.
#[test]
#[cfg_attr(miri, ignore = "miri knows no pages")]
fn resting_queue_pair_ignores_buffers_of_other_domains() {
    let mut end = Receiver::with_buffers(4096);
    let foreign = BufferPool::allocate(&SoftDomain::allocate(), 4096, 1).unwrap();
    end.post_recv(0);
    let mut buffer = foreign.take().unwrap();
    buffer.fill(7);
    assert!(end.responder.post(RecvWr { wr_id: 1, buffer }, &mut end.used).is_ok());
    end.responder.release_pages();
    assert_eq!(foreign.resident_pages(), 1);
}
