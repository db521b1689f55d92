//! The queue pair: requester, responder and wire under one state.
//!
//! Owns the QP state, what happens when a packet comes in, and how a QP fails. Never decides when
//! it is visited: the CQ does.
//!
//! Invariants:
//! 1. Packets are processed only in RTS, and not after one was refused.
//! 2. On the way to ERR the wire is closed first, so that it releases the memory of WRs; then
//!    everything is flushed, once.
//! 3. A peer's last packets and refusals are processed before its departure counts: `closed` is
//!    read before the ring is drained.
#![allow(unsafe_code, reason = "copies payload from shared rings")]

use std::collections::VecDeque;
use std::sync::Arc;

use crate::device::{
    PostError, PostErrorKind, QpCapacity, QpEvent, QpHandle, QpState, RecvWr, SendWr, Source,
    Status, Traffic,
};

use super::domain::{DomainTable, QpNumber};
use super::landing::{Refusal, TakePackets};
use super::packet::{Head, Op};
use super::requester::Requester;
use super::responder::Responder;
use super::ring::SLOT_BODY_BYTES;
use super::sink::{Sink, Slots};
use super::targets::PacketTargets;
use super::wire::Wire;
use super::wire_ring::RingWire;

/// Most packets that one visit processes, so that one QP cannot keep the others waiting.
const VISIT_PACKETS: usize = 64;

/// The result of a visit.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Visit {
    /// Something was received or completed.
    pub(super) active: bool,
    /// The peer may be waiting for the results of this visit: check its doorbell when the batch
    /// ends.
    pub(super) bell: bool,
}

/// A queue pair.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct QueuePair {
    // Declared first, so that it is dropped before the memory that it may point into.
    wire: Wire,
    handle: QpHandle,
    /// CQ entries reserved for this QP.
    reserved: u32,
    state: QpState,
    used: Slots,
    requester: Requester,
    responder: Responder,
    /// A packet was refused: no more are processed.
    stopped: bool,
    /// The peer has closed; its last packets may still be on the wire.
    closing: bool,
    /// The peer is gone, and everything it sent has been processed.
    gone: bool,
    /// An event reported more to check than the next packet.
    attention: bool,
    /// Packets that the next visit processes. It is 1 while packets come singly: checking the next
    /// slot would stall on a cache line that the peer may be about to write. Once a visit has found
    /// that many, the next one takes all waiting packets, since each batch costs turns of drivers
    /// and callers.
    burst: usize,
    /// The peer has been asked to ring a doorbell.
    armed: bool,
    /// The QP is on the hot list: every poll visits it.
    pub(super) hot: bool,
    /// The CQ's epoll set does not report arrivals.
    pub(super) muted: bool,
    /// The CQ will check the peer's doorbell when the batch ends.
    pub(super) notify_listed: bool,
    /// The CQ's clock at the last activity here.
    pub(super) last_active: u64,
}

impl QueuePair {
    pub(super) fn new(handle: QpHandle, domain: Arc<DomainTable>, capacity: QpCapacity) -> Self {
        let inline = capacity.max_inline_bytes.min(super::MAX_INLINE_BYTES);
        let number = QpNumber::next();
        Self {
            wire: Wire::None,
            handle,
            reserved: capacity.max_send_wr + capacity.max_recv_wr,
            state: QpState::Init,
            used: Slots::default(),
            requester: Requester::new(handle, number, domain.id(), capacity.max_send_wr, inline),
            responder: Responder::new(
                handle,
                number,
                domain,
                capacity.max_recv_wr,
                capacity.uses_srq,
            ),
            stopped: false,
            closing: false,
            gone: false,
            attention: true,
            burst: 1,
            armed: false,
            hot: false,
            muted: false,
            notify_listed: false,
            last_active: 0,
        }
    }

    pub(super) fn handle(&self) -> QpHandle {
        self.handle
    }

    pub(super) fn reserved(&self) -> u32 {
        self.reserved
    }

    pub(super) fn uses_srq(&self) -> bool {
        self.responder.uses_srq()
    }

    pub(super) fn state(&self) -> QpState {
        self.state
    }

    pub(super) fn max_inline_bytes(&self) -> u32 {
        self.requester.max_inline_bytes()
    }

    pub(super) fn wire(&self) -> &Wire {
        &self.wire
    }

    /// Connects: INIT to RTS. If the QP has failed in the meantime the wire is dropped, which
    /// notifies the peer.
    pub(super) fn attach(&mut self, wire: Wire) {
        if self.state == QpState::Init {
            self.wire = wire;
            self.state = QpState::ReadyToSend;
        }
    }

    /// How far the bytes of this QP have got (contract rule 21).
    pub(super) fn traffic(&mut self) -> Traffic {
        let traffic = self.wire.traffic();
        Traffic { pending: traffic.pending + self.requester.waiting_bytes(), ..traffic }
    }

    /// Frees memory of what was sent.
    pub(super) fn release_buffers(&mut self) {
        self.wire.release_buffers();
    }

    /// Gives the memory behind RECVs that wait back to the operating system, until it is written.
    pub(super) fn release_pages(&mut self) {
        self.responder.release_pages();
    }

    /// Frees the slots of a polled completion.
    pub(super) fn free(&mut self, slots: Slots) {
        self.used.free(slots);
    }

    /// Whether what was posted may wait for the poll that its send_path has promised.
    #[inline]
    pub(super) fn may_wait(&self) -> bool {
        matches!(&self.wire, Wire::Tcp(wire) if wire.may_wait())
    }

    /// Whether every notification due at the end of a batch can wait until a poll finds nothing.
    #[inline]
    pub(super) fn may_hold_bell(&self) -> bool {
        matches!(&self.wire, Wire::Tcp(wire) if wire.may_wait_for_next())
            && !self.requester.has_waiting()
    }

    /// Makes the next visit check more than the next packet.
    pub(super) fn attend(&mut self) {
        self.attention = true;
    }

    // ---- posting ----

    /// Posts a small inline SEND on the fast path. If that is not possible,
    /// [`QueuePair::post_send`] must be called.
    #[inline]
    pub(super) fn post_small(&mut self, wr_id: u64, signaled: bool, bytes: &[u8]) -> bool {
        self.state == QpState::ReadyToSend
            && !self.gone
            && self.requester.post_small(wr_id, signaled, bytes, &mut self.wire, &mut self.used)
    }

    /// Posts a list of send WRs.
    #[inline]
    pub(super) fn post_send(
        &mut self,
        wrs: &mut [SendWr<'_>],
        sink: &mut Sink<'_>,
    ) -> Result<(), PostError> {
        let mut result = Ok(());
        for (posted, wr) in wrs.iter_mut().enumerate() {
            if let Err(kind) = self.post_one(wr, sink) {
                result = Err(PostError { posted, kind });
                break;
            }
            wr.source = Source::Empty;
        }
        if self.requester.has_waiting() {
            self.pump(sink);
        }
        result
    }

    fn post_one(&mut self, wr: &mut SendWr<'_>, sink: &mut Sink<'_>) -> Result<(), PostErrorKind> {
        match self.state {
            QpState::ReadyToSend => self.requester.post(wr, &mut self.wire, &mut self.used)?,
            QpState::Error => return self.requester.flush_posted(wr, sink, &mut self.used),
            other => return Err(PostErrorKind::InvalidState(other)),
        }
        if self.gone {
            self.fail(Some(Status::RetryExceeded), None, sink);
        }
        Ok(())
    }

    /// Posts a RECV.
    #[inline]
    #[allow(clippy::result_large_err, reason = "the WR goes home with the error")]
    pub(super) fn post_recv(&mut self, wr: RecvWr) -> Result<(), (PostErrorKind, RecvWr)> {
        self.responder
            .post(wr, &mut self.used)
            .map_err(|(max, wr)| (PostErrorKind::QueueFull(max), wr))
    }

    /// Posts a list of RECVs, as far as the RQ has room.
    #[inline]
    pub(super) fn post_recvs(&mut self, wrs: &mut Vec<RecvWr>) -> Result<(), PostErrorKind> {
        self.responder.post_all(wrs, &mut self.used).map_err(PostErrorKind::QueueFull)
    }

    /// Flushes RECVs posted in ERR.
    #[cold]
    pub(super) fn flush_recvs(&mut self, sink: &mut Sink<'_>) {
        self.responder.flush(None, sink, &mut self.used);
    }

    fn pump(&mut self, sink: &mut Sink<'_>) {
        if let Err(status) = self.requester.pump(&mut self.wire) {
            self.fail(Some(status), None, sink);
        }
    }

    // ---- failing ----

    /// Moves to ERR at the owner's request.
    pub(super) fn modify_to_error(&mut self, sink: &mut Sink<'_>) {
        if self.state == QpState::ReadyToSend {
            self.collect(sink);
        }
        self.fail(None, None, sink);
    }

    /// Moves to ERR and flushes (invariant 2). The first send WR and the first RECV get the given
    /// statuses.
    fn fail(&mut self, send: Option<Status>, recv: Option<Status>, sink: &mut Sink<'_>) {
        if self.state == QpState::Error {
            return;
        }
        self.state = QpState::Error;
        self.wire.close();
        self.requester.flush(send, sink, &mut self.used);
        self.responder.flush(recv, sink, &mut self.used);
    }

    /// Refuses the peer's next packet, with the consequences for this QP.
    #[cold]
    fn refuse(&mut self, refusal: Refusal, sink: &mut Sink<'_>) {
        self.stopped = true;
        self.wire.refuse(refusal.nak());
        if refusal != Refusal::NotReady {
            self.fail(None, refusal.recv_status(), sink);
        }
    }

    /// Fails the QP because the peer is gone and everything it sent was processed: outstanding WRs
    /// can no longer complete.
    #[cold]
    fn lost(&mut self, sink: &mut Sink<'_>, events: &mut VecDeque<QpEvent>) {
        if std::mem::replace(&mut self.gone, true) {
            return;
        }
        events.push_back(QpEvent::Disconnected(self.handle));
        if self.state == QpState::ReadyToSend && !self.requester.is_idle() {
            self.fail(Some(Status::RetryExceeded), None, sink);
        }
    }

    // ---- progress ----

    /// Whether a visit would find nothing. True for most visits, which end here.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        let Wire::Ring(wire) = &self.wire else { return false };
        let restless = self.attention | self.closing | self.stopped | (self.burst != 1);
        self.state == QpState::ReadyToSend
            && !restless
            && !self.requester.awaits_peer()
            && !self.responder.owes_answers()
            && !wire.ring.has_packet()
    }

    /// Processes the peer's packets, completes what it accepted, sends what waits.
    #[inline]
    pub(super) fn visit(&mut self, sink: &mut Sink<'_>, events: &mut VecDeque<QpEvent>) -> Visit {
        let attention = std::mem::take(&mut self.attention);
        if attention && !self.closing {
            self.closing = self.wire.peer_gone();
        }
        let mut visit = Visit::default();
        if self.state != QpState::ReadyToSend {
            self.visit_failed(sink, events);
            return visit;
        }
        let drained = match &mut self.wire {
            Wire::Ring(_) => self.receive_ring(sink, &mut visit),
            Wire::Tcp(_) => self.receive_tcp(attention, sink, &mut visit),
            Wire::None => true,
        };
        if self.state == QpState::ReadyToSend {
            if self.requester.awaits_peer() || attention || self.closing {
                visit.active |= self.collect(sink);
            }
            if self.responder.owes_answers() {
                self.responder.answer(&mut self.wire);
                visit.bell = true;
            }
            if self.requester.has_waiting() {
                self.pump(sink);
                visit.bell = true;
            }
        }
        if self.closing && drained {
            self.lost(sink, events);
        }
        if visit.active && self.armed {
            self.disarm();
        }
        visit
    }

    /// A visit in ERR: only checks whether the peer has closed.
    #[cold]
    fn visit_failed(&mut self, sink: &mut Sink<'_>, events: &mut VecDeque<QpEvent>) {
        if let Wire::Tcp(wire) = &mut self.wire {
            wire.linger();
            self.closing |= wire.has_ended();
        }
        if self.closing {
            self.lost(sink, events);
        }
    }

    /// Completes the WRs that the peer has accepted. Returns whether there were any.
    fn collect(&mut self, sink: &mut Sink<'_>) -> bool {
        let before = self.requester.outstanding();
        let settled = match self.wire.feedback() {
            Ok(feedback) => self.requester.on_feedback(feedback, sink, &mut self.used),
            Err(_) => Err(Status::BadResponse),
        };
        if let Err(status) = settled {
            self.fail(Some(status), None, sink);
        }
        before != self.requester.outstanding()
    }

    /// Processes packets from the ring. Returns whether it is empty.
    #[inline]
    fn receive_ring(&mut self, sink: &mut Sink<'_>, visit: &mut Visit) -> bool {
        let Self { wire: Wire::Ring(wire), requester, responder, used, burst, .. } = self else {
            return true;
        };
        if self.stopped {
            return true;
        }
        let mut targets = PacketTargets { requester, responder, sink, used };
        let (mut count, mut ack) = (0, false);
        let outcome = loop {
            if count == *burst || !targets.has_room() {
                break Ok(false);
            }
            let Some(word) = wire.ring.peek() else { break Ok(true) };
            if !take_whole_send(word, wire, &mut targets)
                && let Err(refusal) = take_packet(word, wire, &mut targets)
            {
                break Err(refusal);
            }
            ack |= Head::wants_ack(word);
            count += 1;
        };
        *burst = if count == *burst { VISIT_PACKETS } else { 1 };
        if count > 0 {
            visit.active = true;
            if ack || wire.ring.owes_much() {
                wire.ring.publish();
                visit.bell = true;
            }
        }
        outcome.unwrap_or_else(|refusal| {
            self.refuse(refusal, sink);
            true
        })
    }

    /// Processes frames from the stream. Returns whether nothing is left to be read.
    fn receive_tcp(&mut self, attention: bool, sink: &mut Sink<'_>, visit: &mut Visit) -> bool {
        let Self { wire: Wire::Tcp(wire), requester, responder, used, .. } = self else {
            return true;
        };
        let received = wire.receive(&mut PacketTargets { requester, responder, sink, used });
        // The event may mean that the socket has room to write.
        visit.bell |= attention || wire.owes_ack();
        self.closing |= wire.has_ended();
        match received {
            Ok(taken) => {
                visit.active |= taken.any;
                taken.drained
            }
            Err(refusal) => {
                visit.active = true;
                self.refuse(refusal, sink);
                true
            }
        }
    }

    // ---- arming ----

    /// Asks the peer for a doorbell. Must be followed by a fence and [`QueuePair::has_work`].
    pub(super) fn arm(&mut self) {
        if self.armed {
            return;
        }
        self.armed = true;
        if let Wire::Ring(wire) = &mut self.wire {
            if wire.ring.owes() && !self.stopped {
                wire.ring.publish();
            }
            wire.arm();
        }
    }

    /// Handles an event of the CQ's epoll set. A doorbell uses up the arming: the peer will not
    /// ring for it again.
    pub(super) fn on_event(&mut self, hung_up: bool) {
        if hung_up {
            self.wire.on_hangup();
        }
        if self.armed {
            self.disarm();
        }
    }

    #[cold]
    fn disarm(&mut self) {
        self.armed = false;
        if let Wire::Ring(wire) = &self.wire {
            wire.ring.disarm();
        }
    }

    /// Whether a visit would find something.
    pub(super) fn has_work(&mut self) -> bool {
        if self.attention {
            return true;
        }
        if self.state != QpState::ReadyToSend || self.gone {
            return false;
        }
        match &mut self.wire {
            Wire::Ring(wire) => {
                (!self.stopped && wire.ring.has_packet())
                    || (self.requester.awaits_peer() && wire.ring.has_news())
            }
            Wire::Tcp(wire) => wire.has_work(),
            Wire::None => false,
        }
    }

    /// Whether a visit costs a system call. Such a QP leaves the hot list sooner.
    pub(super) fn is_costly(&self) -> bool {
        matches!(self.wire, Wire::Tcp(_))
    }

    /// Ends a batch on the wire, after its fence: rings the peer's doorbell if it has armed, or
    /// writes what waits. Returns whether WRs wait that no event of the peer will restart.
    #[inline]
    pub(super) fn notify(&mut self) -> bool {
        match &mut self.wire {
            Wire::None => false,
            Wire::Ring(wire) => {
                wire.notify();
                false
            }
            Wire::Tcp(_) => self.write_out(),
        }
    }

    #[inline(never)]
    fn write_out(&mut self) -> bool {
        if let Wire::Tcp(wire) = &mut self.wire {
            wire.flush();
        }
        self.requester.has_waiting()
    }
}

/// Fast path for by far the most common packet: a single-packet SEND that fits its RECV.
#[inline]
fn take_whole_send(word: u32, wire: &mut RingWire, targets: &mut PacketTargets<'_, '_>) -> bool {
    let Some(len) = Head::whole_send_bytes(word) else { return false };
    // A packet of a single slot is never too long.
    if len > SLOT_BODY_BYTES && len > wire.ring.max_body_bytes() {
        return false;
    }
    let Some(recv) = targets.responder.begin_whole_send(len) else { return false };
    // SAFETY: the RECV has room for `len` bytes, in registered memory that it owns.
    unsafe { wire.ring.take_body(recv.at, len) };
    targets.responder.finish_whole_send(recv, len, targets.sink, targets.used);
    true
}

/// Takes one packet off the ring and carries it out.
// Never inlined, so that the loop around it keeps what the fast path needs in registers.
#[inline(never)]
fn take_packet(
    word: u32,
    wire: &mut RingWire,
    targets: &mut PacketTargets<'_, '_>,
) -> Result<(), Refusal> {
    let head = Head::decode(word).ok_or(Refusal::Protocol)?;
    let body_bytes = usize::from(head.body_bytes);
    if body_bytes > wire.ring.max_body_bytes() {
        return Err(Refusal::Protocol);
    }
    let extension = wire.ring.extension(head);
    let landing = match head.op {
        Op::MapAnswer if head.payload_bytes() == 0 => {
            wire.on_map_answer(extension).ok_or(Refusal::Protocol)?
        }
        _ => targets.begin(head, extension)?,
    };
    // SAFETY: a landing is valid for the packet's payload (`PacketTargets::begin`; a map answer has
    // none), and lies in registered memory, never in the peer's segment.
    unsafe { wire.ring.copy_body(head.extension_bytes(), landing, head.payload_bytes()) };
    wire.ring.consume(body_bytes);
    match head.op {
        Op::MapAnswer => Ok(()),
        _ => targets.finish(head, extension),
    }
}

#[cfg(test)]
mod tests;
