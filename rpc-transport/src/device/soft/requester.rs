//! The requester: one QP's send queue.
//!
//! Owns the WRs from post to completion: which are on the wire, which wait for room, which the
//! target has accepted. Never touches the RQ.
//!
//! Invariants:
//! 1. WRs start in post order; a waiting WR keeps all later ones waiting (contract rule 1).
//! 2. `holds` has the memory of the WRs in flight that have any, in their order.
//! 3. Bytes on the wire may point into `holds` and `waiting` (a tcp wire gathers from there), so
//!    their memory is released only on completion, or after the wire has stopped using it.
#![allow(unsafe_code, reason = "gathers from registered memory")]

use std::collections::VecDeque;
use std::ptr::NonNull;

use crate::device::{
    Completion, CompletionKind, Opcode, PostErrorKind, QpHandle, RemoteSlice, SendOp, SendWr,
    Source, Status,
};
use crate::memory::region::{Buffer, MemoryRegion, MemoryWindow};

use super::domain::{QpNumber, SoftWindow};
use super::in_flight::{InFlight, InFlightWr};
use super::packet::{Extension, Flags, MAX_READS, Nak, Op, Span};
use super::ring::{Feedback, Piece, Unsent};
use super::sink::{Sink, Slots};
use super::wire::Wire;
use super::wire_ring::Placement;

/// Upper bound of what a packet takes besides its payload, bytes.
const WAITING_BYTES: u64 = 64;

/// The source bytes of a posted WR.
#[derive(Debug)]
pub(super) enum Held {
    Nothing,
    Inline(Vec<u8>),
    Buffer { buffer: Buffer, start: u32, len: u32 },
    Region { region: MemoryRegion, start: u64, len: u64 },
    Window(MemoryWindow),
}

impl Held {
    fn len(&self) -> u64 {
        match self {
            Self::Nothing | Self::Window(_) => 0,
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Buffer { len, .. } => u64::from(*len),
            Self::Region { len, .. } => *len,
        }
    }

    /// Protection domain of the memory; `None` for inline bytes.
    fn domain(&self) -> Option<u64> {
        match self {
            Self::Nothing | Self::Inline(_) => None,
            Self::Buffer { buffer, .. } => Some(buffer.region().domain()),
            Self::Region { region, .. } => Some(region.domain()),
            Self::Window(window) => Some(window.region().domain()),
        }
    }

    /// `len` bytes starting at `offset`; the caller stays within [`Held::len`].
    fn piece(&self, offset: u64, len: usize) -> Piece {
        let (base, start) = match self {
            Self::Nothing | Self::Window(_) => return Piece::EMPTY,
            Self::Inline(bytes) => (NonNull::from(&bytes[..]).cast(), 0),
            Self::Buffer { buffer, start, .. } => (buffer.as_ptr(), u64::from(*start)),
            Self::Region { region, start, .. } => (region.base(), *start),
        };
        debug_assert!(offset + len as u64 <= self.len());
        let offset = usize::try_from(start + offset).unwrap_or(0);
        // SAFETY: start + offset + len lies inside the memory: `SendWr::check` checked it at post.
        Piece { base: unsafe { base.add(offset) }, len }
    }

    fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::Buffer { buffer, .. } => Some(buffer),
            _ => None,
        }
    }
}

/// The memory of a WR on the wire. Separate from [`InFlightWr`], which stays small, since most WRs
/// have none.
#[derive(Debug)]
struct Holding {
    held: Held,
    /// Bytes that have arrived so far, for a READ whose answer is incomplete.
    reading: Option<u64>,
}

/// A WR that has not been sent completely.
#[derive(Debug)]
struct Waiting {
    wr_id: u64,
    op: Opcode,
    signaled: bool,
    held: Held,
    /// Bytes sent so far.
    sent: u64,
    /// Whether the first packet has been sent.
    begun: bool,
    /// Whether the bytes of a WRITE or READ have been copied already, through the mapped region,
    /// or the window is bound.
    placed: bool,
}

/// How far a WR could be started.
enum Start {
    /// All of it is on the wire, or done.
    Gone { end: u64, reading: bool },
    /// The wire is full, or an answer must come first.
    Blocked,
    /// It failed locally, before any of it was sent.
    Failed(Status),
}

impl From<Unsent> for Start {
    fn from(unsent: Unsent) -> Self {
        match unsent {
            Unsent::Full => Self::Blocked,
            Unsent::TooLong => Self::Failed(Status::LocalLength),
        }
    }
}

/// The requester of one QP.
#[derive(Debug)]
pub(super) struct Requester {
    handle: QpHandle,
    number: QpNumber,
    domain: u64,
    max_wr: u32,
    max_inline_bytes: u32,
    in_flight: InFlight,
    /// Invariant 2.
    holds: VecDeque<Holding>,
    waiting: VecDeque<Waiting>,
    /// Unsignaled WRs that are done but keep their slots (contract rule 4).
    unreported: u32,
    /// Signaled WRs in flight.
    signaled: u32,
    /// READs in flight whose answers are incomplete.
    reads: usize,
}

impl Requester {
    pub(super) fn new(
        handle: QpHandle,
        number: QpNumber,
        domain: u64,
        max_wr: u32,
        max_inline_bytes: u32,
    ) -> Self {
        Self {
            handle,
            number,
            domain,
            max_wr,
            max_inline_bytes,
            in_flight: InFlight::default(),
            holds: VecDeque::new(),
            waiting: VecDeque::new(),
            unreported: 0,
            signaled: 0,
            reads: 0,
        }
    }

    pub(super) fn max_inline_bytes(&self) -> u32 {
        self.max_inline_bytes
    }

    /// Whether anything depends on the peer: an acknowledgement that completes a WR, or room on the
    /// wire.
    #[inline]
    pub(super) fn awaits_peer(&self) -> bool {
        self.signaled > 0 || !self.waiting.is_empty()
    }

    /// Whether WRs wait for room on the wire or for an answer.
    #[inline]
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Number of WRs not completed.
    pub(super) fn outstanding(&self) -> usize {
        self.in_flight.len() + self.waiting.len()
    }

    /// Upper bound of the bytes, or slots, that the waiting WRs will put on the wire.
    pub(super) fn waiting_bytes(&self) -> u64 {
        let bytes = |wr: &Waiting| wr.held.len() - wr.sent;
        self.waiting.iter().map(|wr| 2 * bytes(wr) + WAITING_BYTES).sum()
    }

    /// Whether nothing is outstanding.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.waiting.is_empty()
    }

    /// Fastest path, taken by nearly every WR: a small inline SEND over rings, with no WR waiting
    /// ahead of it. Returns whether it was sent; if not, [`Requester::post`] must be called.
    #[inline]
    pub(super) fn post_small(
        &mut self,
        wr_id: u64,
        signaled: bool,
        bytes: &[u8],
        wire: &mut Wire,
        used: &mut Slots,
    ) -> bool {
        let Wire::Ring(wire) = wire else { return false };
        let fits = used.sends < self.max_wr && bytes.len() <= self.max_inline_bytes as usize;
        if !fits || !self.waiting.is_empty() {
            return false;
        }
        let Some(end) = wire.ring.push_send(bytes, signaled) else { return false };
        used.sends += 1;
        self.fly(wr_id, end, signaled);
        true
    }

    /// Accepts one WR: sends it at once if possible, else appends it to the waiting ones.
    #[inline]
    pub(super) fn post(
        &mut self,
        wr: &mut SendWr<'_>,
        wire: &mut Wire,
        used: &mut Slots,
    ) -> Result<(), PostErrorKind> {
        if used.sends >= self.max_wr {
            return Err(PostErrorKind::QueueFull(self.max_wr));
        }
        wr.check(self.max_inline_bytes, super::MAX_MESSAGE_BYTES)?;
        used.sends += 1;
        if self.waiting.is_empty() && self.send_inline(wr, wire) {
            return Ok(());
        }
        self.enqueue(wr);
        Ok(())
    }

    /// Fast path: inline bytes that fit one packet are copied straight to the wire.
    #[inline]
    fn send_inline(&mut self, wr: &SendWr<'_>, wire: &mut Wire) -> bool {
        let pieces = match &wr.source {
            Source::Empty => [Piece::EMPTY; 2],
            Source::Inline(bytes) => [Piece::from(*bytes), Piece::EMPTY],
            Source::InlineGather(a, b) => [Piece::from(*a), Piece::from(*b)],
            _ => return false,
        };
        let whole = Flags::FIRST.with(Flags::LAST).with_if(Flags::ACK, wr.signaled);
        let (flags, extension) = match wr.op {
            SendOp::Send => (whole, Extension::None),
            SendOp::SendWithImm(imm) => (whole.with(Flags::IMM), Extension::Word(imm)),
            SendOp::Write(to) if !wr.signaled => {
                return self.write_inline(wr.wr_id, to, pieces, wire);
            }
            _ => return false,
        };
        if pieces[0].len + pieces[1].len > wire.max_payload_bytes() {
            return false;
        }
        let Ok(end) = wire.send_copied(Op::Send, flags, extension, pieces) else { return false };
        self.fly(wr.wr_id, end, wr.signaled);
        true
    }

    /// Copies inline bytes straight into the peer's region, if it is mapped.
    fn write_inline(
        &mut self,
        wr_id: u64,
        to: RemoteSlice,
        pieces: [Piece; 2],
        wire: &mut Wire,
    ) -> bool {
        let behind = RemoteSlice { address: to.address.wrapping_add(pieces[0].len as u64), ..to };
        for (to, piece) in [(to, pieces[0]), (behind, pieces[1])] {
            if piece.len > 0 && wire.place(to, piece) != Placement::Done {
                return false;
            }
        }
        self.fly(wr_id, wire.position(), false);
        true
    }

    /// Records a WR without memory that is now on the wire.
    #[inline]
    fn fly(&mut self, wr_id: u64, end: u64, signaled: bool) {
        self.signaled += u32::from(signaled);
        self.in_flight.push(InFlightWr { wr_id, end, signaled, holds: false });
    }

    /// The memory of the WR that is, or has just been, the first in flight.
    #[inline]
    fn take_held(&mut self, wr: &InFlightWr) -> Held {
        if !wr.holds {
            return Held::Nothing;
        }
        self.holds.pop_front().map_or(Held::Nothing, |holding| holding.held)
    }

    #[cold]
    fn enqueue(&mut self, wr: &mut SendWr<'_>) {
        let (op, source) = wr.take_work();
        let held = match source {
            Source::Empty => Held::Nothing,
            Source::Inline(bytes) => Held::Inline(bytes.to_vec()),
            Source::InlineGather(a, b) => Held::Inline([a, b].concat()),
            Source::Buffer { buffer, start, len } => Held::Buffer { buffer, start, len },
            Source::Region { region, start, len } => Held::Region { region, start, len },
            Source::Window(window) => Held::Window(window),
        };
        let (wr_id, signaled) = (wr.wr_id, wr.signaled);
        let waiting = Waiting { wr_id, op, signaled, held, sent: 0, begun: false, placed: false };
        self.waiting.push_back(waiting);
    }

    /// Starts waiting WRs until the wire is full.
    ///
    /// # Errors
    /// The status of the first waiting WR, if it failed: the QP goes to ERR.
    #[inline]
    pub(super) fn pump(&mut self, wire: &mut Wire) -> Result<(), Status> {
        while !self.waiting.is_empty() {
            match self.start_front(wire) {
                Start::Blocked => break,
                // WRs posted earlier complete first.
                Start::Failed(_) if !self.in_flight.is_empty() => break,
                Start::Failed(status) => return Err(status),
                Start::Gone { end, reading } => {
                    let Some(gone) = self.waiting.pop_front() else { break };
                    self.signaled += u32::from(gone.signaled);
                    self.reads += usize::from(reading);
                    let (wr_id, signaled) = (gone.wr_id, gone.signaled);
                    self.in_flight.push(InFlightWr { wr_id, end, signaled, holds: true });
                    let reading = reading.then_some(0);
                    self.holds.push_back(Holding { held: gone.held, reading });
                }
            }
        }
        Ok(())
    }

    fn start_front(&mut self, wire: &mut Wire) -> Start {
        let (domain, number, reads) = (self.domain, self.number, self.reads);
        let Some(wr) = self.waiting.front_mut() else { return Start::Blocked };
        if wr.held.domain().is_some_and(|held| held != domain) {
            return Start::Failed(Status::LocalProtection);
        }
        match wr.op {
            Opcode::Send => wr.send_packets(Op::Send, None, None, wire),
            Opcode::SendWithImm(imm) => wr.send_packets(Op::Send, None, Some(imm), wire),
            Opcode::Write(remote) => wr.write(remote, None, wire),
            Opcode::WriteWithImm(remote, imm) => wr.write(remote, Some(imm), wire),
            Opcode::Read(_) if reads >= MAX_READS => Start::Blocked,
            Opcode::Read(remote) => wr.read(remote, wire),
            Opcode::Bind => wr.bind(number, wire),
        }
    }

    /// Completes what the peer has accepted. The error is the status of the WR that it refused.
    #[inline]
    pub(super) fn on_feedback(
        &mut self,
        feedback: Feedback,
        sink: &mut Sink<'_>,
        used: &mut Slots,
    ) -> Result<(), Status> {
        loop {
            let is_reading = self.holds.front().is_some_and(|holding| holding.reading.is_some());
            let must_stay = |wr: &InFlightWr| wr.holds && is_reading;
            let (silent, done) = self.in_flight.take_accepted(feedback.accepted, must_stay);
            self.unreported += silent;
            let Some(done) = done else { break };
            let held = self.take_held(&done);
            if done.signaled {
                self.signaled -= 1;
                self.complete(done.wr_id, Status::Success, held, sink, used);
            } else {
                self.unreported += 1;
            }
        }
        match feedback.nak {
            None => Ok(()),
            Some(Nak::NotReady) => Err(Status::RnrRetryExceeded),
            Some(Nak::Access) => Err(Status::RemoteAccess),
            Some(Nak::Invalid) => Err(Status::RemoteInvalidRequest),
            Some(Nak::Operation) => Err(Status::RemoteOperation),
        }
    }

    fn complete(
        &mut self,
        wr_id: u64,
        status: Status,
        held: Held,
        sink: &mut Sink<'_>,
        used: &mut Slots,
    ) {
        let frees = Slots::sends(self.unreported + 1);
        self.unreported = 0;
        let make = || Completion {
            qp: self.handle,
            wr_id,
            kind: CompletionKind::Send,
            status,
            byte_len: 0,
            imm: None,
            buffer: held.into_buffer(),
        };
        sink.push(make, frees, used);
    }

    /// Flushes everything; the first WR gets status `first` if it is given (contract rule 8). The
    /// wire must no longer use the memory.
    pub(super) fn flush(&mut self, first: Option<Status>, sink: &mut Sink<'_>, used: &mut Slots) {
        let mut status = first.unwrap_or(Status::FlushError);
        (self.signaled, self.reads) = (0, 0);
        while let Some(wr) = self.in_flight.take_first() {
            let held = self.take_held(&wr);
            self.complete(wr.wr_id, status, held, sink, used);
            status = Status::FlushError;
        }
        for wr in std::mem::take(&mut self.waiting) {
            self.complete(wr.wr_id, status, wr.held, sink, used);
            status = Status::FlushError;
        }
    }

    /// Flushes a WR posted in ERR.
    pub(super) fn flush_posted(
        &mut self,
        wr: &mut SendWr<'_>,
        sink: &mut Sink<'_>,
        used: &mut Slots,
    ) -> Result<(), PostErrorKind> {
        if used.sends >= self.max_wr {
            return Err(PostErrorKind::QueueFull(self.max_wr));
        }
        wr.check(self.max_inline_bytes, super::MAX_MESSAGE_BYTES)?;
        used.sends += 1;
        self.enqueue(wr);
        self.flush(None, sink, used);
        Ok(())
    }

    /// Where the next `len` bytes of the oldest incomplete READ go; `None` if no READ expects them.
    pub(super) fn read_target(&self, len: usize) -> Option<NonNull<u8>> {
        let read = self.holds.iter().find(|holding| holding.reading.is_some())?;
        let got = read.reading?;
        if got.checked_add(len as u64)? > read.held.len() {
            return None;
        }
        Some(read.held.piece(got, len).base)
    }

    /// Counts `len` bytes of the oldest incomplete READ as arrived. Returns `false` if the end of
    /// the answer is not the end of the READ.
    pub(super) fn read_arrived(&mut self, len: usize, last: bool) -> bool {
        let Some(read) = self.holds.iter_mut().find(|holding| holding.reading.is_some()) else {
            return false;
        };
        let got = read.reading.unwrap_or(0) + len as u64;
        let complete = got == read.held.len();
        read.reading = (!complete).then_some(got);
        self.reads -= usize::from(complete);
        complete == last
    }
}

impl Waiting {
    /// Sends the rest of a message as packets.
    fn send_packets(
        &mut self,
        op: Op,
        span: Option<Span>,
        imm: Option<u32>,
        wire: &mut Wire,
    ) -> Start {
        let total = self.held.len();
        loop {
            let left = total - self.sent;
            let len = usize::try_from(left).unwrap_or(usize::MAX).min(wire.max_payload_bytes());
            let last = len as u64 == left;
            let flags = Flags::default()
                .with_if(Flags::FIRST, !self.begun)
                .with_if(Flags::LAST, last)
                .with_if(Flags::IMM, imm.is_some())
                .with_if(Flags::ACK, last && self.signaled);
            let extension = match (span, imm) {
                (Some(span), _) if !self.begun => Extension::Span(span),
                (None, Some(imm)) if last => Extension::Word(imm),
                _ => Extension::None,
            };
            let pieces = [self.held.piece(self.sent, len), Piece::EMPTY];
            let sent = match self.held {
                // The memory stays in place until the WR completes.
                Held::Buffer { .. } | Held::Region { .. } => {
                    wire.send_kept(op, flags, extension, pieces[0])
                }
                _ => wire.send_copied(op, flags, extension, pieces),
            };
            let end = match sent {
                Ok(end) => end,
                Err(unsent) => return unsent.into(),
            };
            self.sent += len as u64;
            self.begun = true;
            if last {
                return Start::Gone { end, reading: false };
            }
        }
    }

    fn write(&mut self, remote: RemoteSlice, imm: Option<u32>, wire: &mut Wire) -> Start {
        let len = self.held.len();
        let RemoteSlice { address, rkey } = remote;
        if !self.begun && !self.placed && len > 0 {
            let bytes = self.held.piece(0, usize::try_from(len).unwrap_or(0));
            match wire.place(remote, bytes) {
                Placement::Done => self.placed = true,
                Placement::Asked => return Start::Blocked,
                Placement::ThroughEngine => {}
            }
        }
        if !self.placed {
            let span = Span { address, rkey, aux: imm.unwrap_or(0), len };
            return self.send_packets(Op::Write, Some(span), imm, wire);
        }
        let Some(imm) = imm else { return self.gone_when_all_is_accepted(wire) };
        let whole = Flags::FIRST.with(Flags::LAST).with_if(Flags::ACK, self.signaled);
        let span = Extension::Span(Span { address, rkey, aux: imm, len });
        match wire.send_copied(Op::Placed, whole, span, [Piece::EMPTY; 2]) {
            Ok(end) => Start::Gone { end, reading: false },
            Err(unsent) => unsent.into(),
        }
    }

    /// Binds a window, once. It has nothing to do on the wire but to complete in its turn.
    fn bind(&mut self, qp: QpNumber, wire: &mut Wire) -> Start {
        let Held::Window(window) = &self.held else {
            return Start::Failed(Status::LocalQpOperation);
        };
        if !self.placed && !SoftWindow::bind(window, qp) {
            return Start::Failed(Status::LocalQpOperation);
        }
        self.placed = true;
        self.gone_when_all_is_accepted(wire)
    }

    /// Finishes a WR whose bytes have already been copied. It completes in post order: once
    /// everything before it is accepted.
    fn gone_when_all_is_accepted(&self, wire: &mut Wire) -> Start {
        let end = if self.signaled { wire.await_all() } else { Some(wire.position()) };
        end.map_or(Start::Blocked, |end| Start::Gone { end, reading: false })
    }

    fn read(&mut self, remote: RemoteSlice, wire: &mut Wire) -> Start {
        let len = self.held.len();
        let RemoteSlice { address, rkey } = remote;
        if len > 0 && !self.placed {
            let to = self.held.piece(0, usize::try_from(len).unwrap_or(0));
            match wire.fetch(remote, to) {
                Placement::Done => self.placed = true,
                Placement::Asked => return Start::Blocked,
                Placement::ThroughEngine => {}
            }
        }
        if self.placed {
            return self.gone_when_all_is_accepted(wire);
        }
        let whole = Flags::FIRST.with(Flags::LAST).with_if(Flags::ACK, self.signaled);
        let span = Extension::Span(Span { address, rkey, aux: 0, len });
        match wire.send_copied(Op::ReadRequest, whole, span, [Piece::EMPTY; 2]) {
            Ok(end) => Start::Gone { end, reading: len > 0 },
            Err(unsent) => unsent.into(),
        }
    }
}
