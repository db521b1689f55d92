//! The SQ and RQ of one QP as the provider records them: what may be posted, and what a completion
//! returns to the user.
//!
//! Owns the memory of every posted WR from the post to its completion, and the checks before a
//! post. Never calls the device: a WR to be posted goes to a [`Batch`] or to the caller, a
//! completion for the user to a list.
//!
//! Invariants:
//! 1. A WR's memory is held here from before the device learns of it until its completion was
//!    polled or the QP was destroyed.
//! 2. Every WR completes once the QP is in ERR. The device flushes the WRs that it had not
//!    finished. For unsignaled WRs that it had finished, the completion of the drain WR, which the
//!    provider posts after the last one, shows that they are done. RECVs posted in ERR are flushed
//!    here, without the device, because some devices never flush them.
//! 3. No receive completion is delivered before the owner knows of the connection: the peer may
//!    send as soon as its own end is established.

use std::collections::VecDeque;

use rustix::io::Errno;
use slab::Slab;

use crate::device::{
    Capabilities, Completion, CompletionKind, PostErrorKind, QpCapacity, QpHandle, QpState, RecvWr,
    SendOp, SendWr, Source, Status,
};
use crate::memory::region::{Buffer, MemoryRegion, MemoryWindow};

use super::batch::{Batch, Bytes};
use super::memory::{BoundWindows, VerbsWindow};
use super::quirks::{IN_PLACE_BYTES, Quirks};
use super::recv_post::address;
use super::send_ring::{Posted, SendRing};
use super::wr_key::{Queue, WrKey};

/// The memory of a posted WR.
#[derive(Debug)]
pub(super) enum Held {
    /// None: the bytes were copied.
    Nothing,
    /// A buffer that the WR owns.
    Buffer(Buffer),
    /// Shared memory of a region.
    Region {
        /// Keeps the registration.
        _region: MemoryRegion,
    },
    /// A window that is being bound.
    Window {
        /// Keeps the window.
        _window: MemoryWindow,
    },
}

impl Held {
    fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::Buffer(buffer) => Some(buffer),
            Self::Nothing | Self::Region { .. } | Self::Window { .. } => None,
        }
    }
}

/// What the device reports about a WR.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outcome {
    pub(super) status: Status,
    pub(super) byte_len: u32,
    pub(super) imm: Option<u32>,
    /// The RECV was consumed by a WRITE_WITH_IMM.
    pub(super) is_write: bool,
}

impl Outcome {
    const FLUSHED: Self =
        Self { status: Status::FlushError, byte_len: 0, imm: None, is_write: false };
}

/// A QP's queues.
#[derive(Debug)]
pub(super) struct WorkQueues {
    handle: QpHandle,
    state: QpState,
    send: SendRing<Held>,
    recv: Slab<RecvWr>,
    recv_limit: usize,
    /// RECVs posted in ERR; never passed to the device.
    late: VecDeque<RecvWr>,
    /// Received before the owner knew of the connection (invariant 3).
    early: Vec<Completion>,
    max_inline_bytes: u32,
    max_message_bytes: u64,
    capabilities: Capabilities,
    quirks: Quirks,
    /// The device refused WRs after their post was reported as successful: nothing more is posted
    /// to it.
    broken: bool,
    /// To end before the QP does.
    windows: BoundWindows,
}

impl WorkQueues {
    /// Empty queues of a QP in INIT.
    pub(super) fn new(
        handle: QpHandle,
        capacity: QpCapacity,
        max_inline_bytes: u32,
        max_message_bytes: u64,
        capabilities: Capabilities,
        quirks: Quirks,
    ) -> Self {
        Self {
            handle,
            state: QpState::Init,
            send: SendRing::new(capacity.max_send_wr),
            recv: Slab::new(),
            recv_limit: capacity.max_recv_wr as usize,
            late: VecDeque::new(),
            early: Vec::new(),
            max_inline_bytes,
            max_message_bytes,
            capabilities,
            quirks,
            broken: false,
            windows: BoundWindows::default(),
        }
    }

    /// The state, as far as this record knows it.
    pub(super) fn state(&self) -> QpState {
        self.state
    }

    /// Inline bytes granted.
    pub(super) fn max_inline_bytes(&self) -> u32 {
        self.max_inline_bytes
    }

    /// Whether nothing is posted.
    pub(super) fn is_empty(&self) -> bool {
        self.send.len() == 0 && self.recv.is_empty()
    }

    /// Records that the QP is in RTS, and that its owner knows.
    pub(super) fn establish(&mut self, out: &mut VecDeque<Completion>) {
        if self.state == QpState::Init {
            self.state = QpState::ReadyToSend;
        }
        self.deliver_early(out);
    }

    /// Delivers completions received before the owner knew of the connection.
    pub(super) fn deliver_early(&mut self, out: &mut VecDeque<Completion>) {
        out.extend(self.early.drain(..));
    }

    /// Checks one send WR and moves it to the batch. A refused one keeps its memory.
    pub(super) fn post_send(
        &mut self,
        wr: &mut SendWr<'_>,
        batch: &mut Batch,
    ) -> Result<(), PostErrorKind> {
        self.check(wr)?;
        let (op, source) = wr.take_work();
        if let Source::Window(window) = &source {
            self.windows.add(window);
        }
        let (bytes, held) = hold_source(source);
        let position = self.send.push(Posted { wr_id: wr.wr_id, signaled: wr.signaled, held });
        if self.broken {
            self.send.strand(1);
        } else {
            let (queue, signaled) = self.completion_mode(wr.signaled, &bytes);
            batch.push(self.handle.index, self.key(queue, position), op, signaled, bytes);
        }
        Ok(())
    }

    /// The kind of completion that the device gives for a WR. A WR that it would send from its
    /// memory in place is signaled to the device, and its success is hidden from the user.
    fn completion_mode(&self, signaled: bool, bytes: &Bytes<'_>) -> (Queue, bool) {
        match bytes {
            Bytes::Memory { len, .. }
                if self.quirks.sends_in_place && !signaled && *len >= IN_PLACE_BYTES =>
            {
                (Queue::Silent, true)
            }
            _ => (Queue::Send, signaled),
        }
    }

    /// Fast path: records an inline SEND of `len` bytes that is posted without a batch, and returns
    /// its key for the device. If it returns `None`, [`WorkQueues::post_send`] must be called.
    #[inline]
    pub(super) fn hold_small(&mut self, wr_id: u64, signaled: bool, len: usize) -> Option<u64> {
        let is_plain = self.state == QpState::ReadyToSend
            && !self.broken
            && !self.send.is_full()
            && (1..=self.max_inline_bytes as usize).contains(&len);
        if !is_plain {
            return None;
        }
        let position = self.send.push(Posted { wr_id, signaled, held: Held::Nothing });
        Some(self.key(Queue::Send, position))
    }

    fn check(&self, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        if !matches!(self.state, QpState::ReadyToSend | QpState::Error) {
            return Err(PostErrorKind::InvalidState(self.state));
        }
        if self.send.is_full() {
            return Err(PostErrorKind::QueueFull(self.send.limit()));
        }
        let needed = match wr.op {
            SendOp::Send | SendOp::Write(_) => Capabilities::NONE,
            SendOp::SendWithImm(_) => Capabilities::IMMEDIATE,
            SendOp::WriteWithImm(..) => Capabilities::WRITE_WITH_IMM,
            SendOp::Read { .. } => Capabilities::READ,
            SendOp::Bind => Capabilities::WINDOWS,
        };
        if !self.capabilities.contains(needed) {
            return Err(PostErrorKind::Unsupported);
        }
        match (&wr.op, &wr.source) {
            (SendOp::Read { into, len, .. }, Source::Empty) => {
                return self.check_span(0, u64::from(*len), into.len());
            }
            (SendOp::Read { .. }, _) => return Err(PostErrorKind::Unsupported),
            (SendOp::Bind, Source::Window(window)) => {
                let bind = VerbsWindow::bind(window);
                return bind.map(drop).ok_or(PostErrorKind::Unsupported);
            }
            (SendOp::Bind, _) | (_, Source::Window(_)) => return Err(PostErrorKind::Unsupported),
            _ => {}
        }
        match &wr.source {
            Source::Empty | Source::Window(_) => Ok(()),
            Source::Inline(bytes) => self.check_inline(bytes.len()),
            Source::InlineGather(a, b) => self.check_inline(a.len() + b.len()),
            Source::Buffer { buffer, start, len } => {
                self.check_span(u64::from(*start), u64::from(*len), buffer.len())
            }
            Source::Region { region, start, len } => self.check_span(*start, *len, region.len()),
        }
    }

    fn check_inline(&self, len: usize) -> Result<(), PostErrorKind> {
        if len > self.max_inline_bytes as usize {
            return Err(PostErrorKind::InlineTooLong { len, max: self.max_inline_bytes });
        }
        Ok(())
    }

    fn check_span(&self, start: u64, len: u64, size: usize) -> Result<(), PostErrorKind> {
        let size = size as u64;
        if start.checked_add(len).is_none_or(|end| end > size) {
            return Err(PostErrorKind::OutOfBounds { start, len, size });
        }
        if len > self.max_message_bytes {
            return Err(PostErrorKind::Os(Errno::MSGSIZE.raw_os_error()));
        }
        Ok(())
    }

    fn key(&self, queue: Queue, position: u32) -> u64 {
        let QpHandle { index: qp, generation } = self.handle;
        WrKey { queue, qp, generation, position }.encode()
    }

    /// Whether a RECV may be posted.
    pub(super) fn check_recv(&self) -> Result<(), PostErrorKind> {
        if self.recv.len() + self.late.len() >= self.recv_limit {
            let limit = u32::try_from(self.recv_limit).unwrap_or(u32::MAX);
            return Err(PostErrorKind::QueueFull(limit));
        }
        Ok(())
    }

    /// Records a RECV that is about to be posted. Returns its key for the device.
    pub(super) fn hold_recv(&mut self, wr: RecvWr) -> u64 {
        let position = self.recv.insert(wr);
        // At most the RQ's limit, so it fits.
        self.key(Queue::Recv, u32::try_from(position).unwrap_or(0))
    }

    /// Returns a RECV that the device refused.
    pub(super) fn unhold_recv(&mut self, key: u64) -> Option<RecvWr> {
        let position = WrKey::decode(key)?.position as usize;
        self.recv.try_remove(position)
    }

    /// Records a RECV that is posted in ERR; it is flushed after those that the device has.
    pub(super) fn hold_late_recv(&mut self, wr: RecvWr, out: &mut VecDeque<Completion>) {
        self.late.push_back(wr);
        self.flush_late(out);
    }

    fn flush_late(&mut self, out: &mut VecDeque<Completion>) {
        if self.recv.is_empty() {
            let flushed = self.late.drain(..);
            out.extend(flushed.map(|wr| received(self.handle, wr, Outcome::FLUSHED)));
        }
    }

    /// Records that the QP is in ERR. Returns the key of a drain WR if one must be posted after
    /// everything else.
    pub(super) fn enter_error(&mut self) -> Option<u64> {
        if self.state == QpState::Error {
            return None;
        }
        self.state = QpState::Error;
        let last = self.send.silent_tail()?;
        Some(self.key(Queue::DrainWr, last))
    }

    /// The device refused the last `count` WRs of a batch, after their posts were reported as
    /// successful.
    pub(super) fn strand(&mut self, count: usize) {
        self.broken = true;
        self.send.strand(count);
    }

    /// Delivers completions for WRs that never reached the device, once everything posted before
    /// them is done.
    pub(super) fn deliver_stranded(&mut self, out: &mut VecDeque<Completion>) {
        let handle = self.handle;
        let mut status = Status::LocalQpOperation;
        for wr in self.send.take_stranded() {
            let status = std::mem::replace(&mut status, Status::FlushError);
            out.push_back(sent(handle, wr, status));
        }
    }

    /// Whether nothing else has to be checked before a successful completion is delivered.
    #[inline]
    pub(super) fn delivers_directly(&self) -> bool {
        self.state == QpState::ReadyToSend && self.early.is_empty()
    }

    /// Fast path: the successful completion of a RECV or a send WR on a QP in RTS, which gives
    /// exactly one completion for the user.
    #[inline]
    pub(super) fn complete_one(&mut self, key: WrKey, outcome: Outcome) -> Option<Completion> {
        if !self.delivers_directly() {
            return None;
        }
        match key.queue {
            Queue::Recv => {
                let posted = self.recv.try_remove(key.position as usize);
                posted.map(|wr| received(self.handle, wr, outcome))
            }
            Queue::Send => {
                let posted = self.send.retire(key.position);
                posted.map(|wr| sent(self.handle, wr, outcome.status))
            }
            Queue::Silent | Queue::DrainWr | Queue::Shared => None,
        }
    }

    /// Handles a completion of the device, and adds the resulting completions to `out`. Returns
    /// false if it belongs to nothing that is posted.
    pub(super) fn complete(
        &mut self,
        key: WrKey,
        outcome: Outcome,
        out: &mut VecDeque<Completion>,
    ) -> bool {
        let handle = self.handle;
        let is_early = self.state == QpState::Init && outcome.status == Status::Success;
        if !is_early {
            self.deliver_early(out);
        }
        let known = match key.queue {
            Queue::Silent if outcome.status == Status::Success => {
                self.send.retire(key.position).is_some()
            }
            Queue::Send | Queue::Silent => {
                let posted = self.send.retire(key.position);
                posted.map(|wr| out.push_back(sent(handle, wr, outcome.status))).is_some()
            }
            Queue::DrainWr => {
                let silent = self.send.retire_all(key.position);
                out.extend(silent.map(|wr| sent(handle, wr, Status::FlushError)));
                true
            }
            // Comes by `add_received`.
            Queue::Shared => false,
            Queue::Recv => {
                let posted = self.recv.try_remove(key.position as usize);
                let received = posted.map(|wr| received(handle, wr, outcome));
                let known = received.is_some();
                if is_early {
                    self.early.extend(received);
                } else {
                    out.extend(received);
                }
                known
            }
        };
        if self.state == QpState::Error {
            self.deliver_stranded(out);
            self.flush_late(out);
        }
        known
    }

    /// Delivers the completion of a RECV that was not of this QP's RQ.
    pub(super) fn add_received(&mut self, completion: Completion, out: &mut VecDeque<Completion>) {
        if self.state == QpState::Init && completion.status == Status::Success {
            self.early.push(completion);
        } else {
            self.deliver_early(out);
            out.push_back(completion);
        }
    }

    /// Returns all memory that the device may still use, when the QP is destroyed.
    pub(super) fn take_all(&mut self) -> Vec<Box<dyn std::any::Any + Send>> {
        self.windows.end();
        let sends = self.send.take_all().map(|wr| Box::new(wr.held) as _);
        let recvs = self.recv.drain().map(|wr| Box::new(wr.buffer) as _);
        sends.chain(recvs).collect()
    }
}

/// Splits a source into the part that the device needs and the part to keep until completion.
fn hold_source(source: Source<'_>) -> (Bytes<'_>, Held) {
    match source {
        Source::Empty => (Bytes::None, Held::Nothing),
        Source::Inline(bytes) => (inline(bytes, &[]), Held::Nothing),
        Source::InlineGather(first, second) => (inline(first, second), Held::Nothing),
        Source::Buffer { buffer, start, len } => {
            let address = address(buffer.as_ptr()) + u64::from(start);
            let lkey = buffer.region().lkey();
            (memory(address, u64::from(len), lkey), Held::Buffer(buffer))
        }
        Source::Region { region, start, len } => {
            let bytes = memory(address(region.base()) + start, len, region.lkey());
            (bytes, Held::Region { _region: region })
        }
        Source::Window(_window) => {
            // It was there at the check.
            let bytes = VerbsWindow::bind(&_window).map_or(Bytes::None, Bytes::Window);
            (bytes, Held::Window { _window })
        }
    }
}

fn inline<'a>(first: &'a [u8], second: &'a [u8]) -> Bytes<'a> {
    if first.is_empty() && second.is_empty() { Bytes::None } else { Bytes::Inline(first, second) }
}

/// No bytes give no SGE, because to some devices an SGE of length 0 means 2 GiB.
fn memory(address: u64, len: u64, lkey: u32) -> Bytes<'static> {
    match u32::try_from(len) {
        // `check_span` rejects anything longer than the device's longest message.
        Ok(0) | Err(_) => Bytes::None,
        Ok(len) => Bytes::Memory { address, len, lkey },
    }
}

fn sent(qp: QpHandle, wr: Posted<Held>, status: Status) -> Completion {
    Completion {
        qp,
        wr_id: wr.wr_id,
        kind: CompletionKind::Send,
        status,
        byte_len: 0,
        imm: None,
        buffer: wr.held.into_buffer(),
    }
}

/// The completion of a RECV.
pub(super) fn received(qp: QpHandle, wr: RecvWr, outcome: Outcome) -> Completion {
    let kind = if outcome.is_write { CompletionKind::RecvWrite } else { CompletionKind::Recv };
    Completion {
        qp,
        wr_id: wr.wr_id,
        kind,
        status: outcome.status,
        byte_len: outcome.byte_len,
        imm: outcome.imm,
        buffer: Some(wr.buffer),
    }
}

#[cfg(test)]
mod inline_tests;
#[cfg(test)]
mod tests;
