//! The responder: one QP's receive queue, and the packets that the peer sends to it.
//!
//! Owns posted RECVs, the message that is arriving, and the answers owed. Checks everything that a
//! packet says. Never touches the SQ.
//!
//! Invariants:
//! 1. RECVs are consumed in post order. The RECV of a message that arrives in steps stays at the
//!    front of `recvs` until the message is complete, so a flush finds it.
//! 2. A [`Landing`] is valid for the payload of the packet that it was given for, until the packet
//!    is finished or the responder flushed, whichever comes first.
//! 3. Answers owed are bounded: more than [`MAX_READS`] READs, or two MAPs, violate the protocol.
#![allow(unsafe_code, reason = "names bytes of registered memory")]

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::device::{Completion, CompletionKind, QpHandle, RecvWr, Status};
use crate::memory::pages;

use super::domain::{DomainTable, Memory, QpNumber, Registered};
use super::landing::{Landing, Refusal};
use super::packet::{Extension, Flags, Head, MAX_READS, Op, Span, encode_rights};
use super::posted::{Posted, Recvs};
use super::prefetch;
use super::ring::Piece;
use super::sink::{Sink, Slots};
use super::wire::Wire;

/// The message that is arriving.
#[derive(Debug)]
enum Message {
    None,
    Send { filled: usize },
    Write { target: Option<Registered>, at: usize, left: u64, total: u64, imm: Option<u32> },
}

/// An answer owed to the peer.
#[derive(Debug)]
enum Answer {
    Read { memory: Arc<Memory>, at: usize, left: u64, begun: bool },
    Map { span: Span, region: Option<Registered>, passed: bool },
}

/// The responder of one QP.
#[derive(Debug)]
pub(super) struct Responder {
    handle: QpHandle,
    number: QpNumber,
    domain: Arc<DomainTable>,
    max_wr: u32,
    recvs: Recvs,
    /// RECVs come from the SRQ as messages begin, and `recvs` holds the one of the message that is
    /// arriving.
    uses_srq: bool,
    message: Message,
    answers: VecDeque<Answer>,
}

impl Responder {
    pub(super) fn new(
        handle: QpHandle,
        number: QpNumber,
        domain: Arc<DomainTable>,
        max_wr: u32,
        uses_srq: bool,
    ) -> Self {
        let (recvs, answers) = (Recvs::default(), VecDeque::new());
        Self { handle, number, domain, max_wr, recvs, uses_srq, message: Message::None, answers }
    }

    pub(super) fn uses_srq(&self) -> bool {
        self.uses_srq
    }

    /// Accepts a RECV, or hands it back when the RQ is full.
    #[inline]
    pub(super) fn post(&mut self, wr: RecvWr, used: &mut Slots) -> Result<(), (u32, RecvWr)> {
        if used.recvs >= self.max_wr {
            return Err((self.max_wr, wr));
        }
        used.recvs += 1;
        let domain = self.domain.id();
        self.recvs.push(|| Posted::new(wr, domain));
        Ok(())
    }

    /// Takes RECVs out of a list until that is empty, or the RQ is full: then the error is its
    /// size.
    #[inline]
    pub(super) fn post_all(&mut self, wrs: &mut Vec<RecvWr>, used: &mut Slots) -> Result<(), u32> {
        let room = self.max_wr - used.recvs;
        let count = u32::try_from(wrs.len()).unwrap_or(u32::MAX).min(room);
        used.recvs += count;
        let domain = self.domain.id();
        for wr in wrs.drain(..count as usize) {
            self.recvs.push(|| Posted::new(wr, domain));
        }
        if wrs.is_empty() { Ok(()) } else { Err(self.max_wr) }
    }

    /// Gives the pages behind posted RECVs back to the operating system. A message takes the next
    /// RECV in post order, so even a sequence of short messages would write to all of them over
    /// time.
    pub(super) fn release_pages(&mut self) {
        // The RECV at the front may hold a part of a message (invariant 1), or be the target of a
        // landing (2). A buffer of another domain may belong to a device that pins it.
        let waiting = self.recvs.iter().skip(1).filter(|recv| !recv.foreign);
        let mut spans: Vec<_> = waiting.map(|recv| (recv.at, recv.len)).collect();
        spans.sort_unstable();
        // Adjacent buffers in one system call, including the pages that they share.
        spans.dedup_by(|next, first| {
            let adjoins = first.0.as_ptr().wrapping_add(first.1) == next.0.as_ptr();
            first.1 += if adjoins { next.1 } else { 0 };
            adjoins
        });
        for (at, len) in spans {
            // SAFETY: whole posted buffers, which are owned here (contract rule 14), and none is
            // being written: only the RECV at the front ever is.
            unsafe { pages::discard(at, len) };
        }
    }

    /// The RECV for a single-packet SEND of `len` bytes, if that can be received in one step; then
    /// [`Responder::finish_whole_send`] must follow.
    #[inline]
    pub(super) fn begin_whole_send(&mut self, len: usize) -> Option<Posted> {
        let is_between_messages = matches!(self.message, Message::None);
        self.recvs.take_if(|recv| len <= recv.len && !recv.foreign && is_between_messages)
    }

    /// Completes the RECV that [`Responder::begin_whole_send`] returned.
    #[inline]
    pub(super) fn finish_whole_send(
        &mut self,
        recv: Posted,
        len: usize,
        sink: &mut Sink<'_>,
        used: &mut Slots,
    ) {
        self.complete(recv, CompletionKind::Recv, len as u64, None, sink, used);
        // Prefetch the next buffer: buffers are used in rotation, so it has probably left the
        // cache.
        if let Some(next) = self.recvs.first() {
            prefetch::line(next.at.as_ptr());
            prefetch::line(next.at.as_ptr().wrapping_add(64));
        }
    }

    /// Starts a packet: checks it and says where its payload goes.
    pub(super) fn begin(
        &mut self,
        head: Head,
        extension: Extension,
        sink: &mut Sink<'_>,
    ) -> Result<Landing, Refusal> {
        match (head.op, extension) {
            (Op::Send, _) => self.begin_send(head, sink),
            (Op::Write, Extension::Span(span)) => self.begin_write(head, span, sink),
            (Op::Write, _) => self.land_write(head, sink),
            (Op::Placed, _) if matches!(self.message, Message::None) => {
                self.next_recv(sink).ok_or(Refusal::NotReady)?;
                no_payload(head)
            }
            (Op::Probe, _) if matches!(self.message, Message::None) => no_payload(head),
            (Op::ReadRequest, Extension::Span(span)) => self.begin_read(head, span),
            (Op::MapRequest, Extension::Span(span)) => self.begin_map(head, span),
            _ => Err(Refusal::Protocol),
        }
    }

    /// The RECV at the front, which the next message takes.
    fn next_recv(&mut self, sink: &mut Sink<'_>) -> Option<&Posted> {
        if self.uses_srq && self.recvs.is_empty() {
            let shared = sink.take_shared()?;
            self.recvs.push(|| shared);
        }
        self.recvs.first()
    }

    fn begin_send(&mut self, head: Head, sink: &mut Sink<'_>) -> Result<Landing, Refusal> {
        let first = head.flags.contains(Flags::FIRST);
        let filled = match self.message {
            Message::None if first => 0,
            Message::Send { filled } if !first => filled,
            _ => return Err(Refusal::Protocol),
        };
        let &Posted { at, len, foreign, .. } = self.next_recv(sink).ok_or(Refusal::NotReady)?;
        if foreign {
            return Err(Refusal::BadBuffer);
        }
        if filled + head.payload_bytes() > len {
            return Err(Refusal::TooLong);
        }
        self.message = Message::Send { filled };
        // SAFETY: `filled` is at most the buffer's length (checked).
        Ok(unsafe { at.add(filled) })
    }

    fn begin_write(
        &mut self,
        head: Head,
        span: Span,
        sink: &mut Sink<'_>,
    ) -> Result<Landing, Refusal> {
        if !matches!(self.message, Message::None) {
            return Err(Refusal::Protocol);
        }
        let (target, at) = if span.len == 0 {
            // A zero-length WRITE touches nothing, so its key is not checked (as on InfiniBand).
            (None, 0)
        } else {
            let found = self.resolve(span, true);
            let (region, at) = found.ok_or(Refusal::Access)?;
            (Some(region), at)
        };
        let imm = head.flags.contains(Flags::IMM).then_some(span.aux);
        self.message = Message::Write { target, at, left: span.len, total: span.len, imm };
        self.land_write(head, sink)
    }

    fn land_write(&mut self, head: Head, sink: &mut Sink<'_>) -> Result<Landing, Refusal> {
        let Message::Write { left, imm, .. } = &self.message else {
            return Err(Refusal::Protocol);
        };
        let payload = head.payload_bytes() as u64;
        let last = head.flags.contains(Flags::LAST);
        if payload > *left || last != (payload == *left) {
            return Err(Refusal::Protocol);
        }
        if last && imm.is_some() {
            self.next_recv(sink).ok_or(Refusal::NotReady)?;
        }
        let Message::Write { target, at, .. } = &self.message else {
            return Err(Refusal::Protocol);
        };
        let Some(target) = target else { return Ok(NonNull::dangling()) };
        if !target.is_live() {
            return Err(Refusal::Access);
        }
        // SAFETY: `resolve` checked that at + left lies inside the memory, and payload <= left.
        Ok(unsafe { target.memory.base().add(*at) })
    }

    fn resolve(&self, span: Span, write: bool) -> Option<(Registered, usize)> {
        self.domain.resolve(span.rkey, span.address, span.len, write, self.number)
    }

    fn begin_read(&mut self, head: Head, span: Span) -> Result<Landing, Refusal> {
        if self.answers.len() >= MAX_READS || !matches!(self.message, Message::None) {
            return Err(Refusal::Protocol);
        }
        if span.len > 0 {
            let found = self.resolve(span, false);
            let (region, at) = found.ok_or(Refusal::Access)?;
            let memory = region.memory;
            self.answers.push_back(Answer::Read { memory, at, left: span.len, begun: false });
        }
        no_payload(head)
    }

    /// Handles the request of a peer on this machine to map a region. Refused on the same grounds
    /// as an access would be.
    fn begin_map(&mut self, head: Head, span: Span) -> Result<Landing, Refusal> {
        let maps = self.answers.iter().filter(|answer| matches!(answer, Answer::Map { .. }));
        if maps.count() >= 2 || !matches!(self.message, Message::None) {
            return Err(Refusal::Protocol);
        }
        let found = self.resolve(span, span.aux != 0);
        let (region, _) = found.ok_or(Refusal::Access)?;
        let word = region.window.as_ref().map_or(Some(0), |bound| bound.word);
        let is_mappable = word.is_some() && region.memory.file().is_some();
        let file_bytes = if is_mappable { region.memory.len() as u64 } else { 0 };
        let access = region.access;
        let span = Span {
            address: region.remote_base,
            rkey: span.rkey,
            aux: encode_rights(access.remote_write, access.remote_read, word.unwrap_or(0)),
            len: file_bytes,
        };
        let region = (file_bytes > 0).then_some(region);
        self.answers.push_back(Answer::Map { span, region, passed: false });
        no_payload(head)
    }

    /// Finishes a packet whose payload has arrived.
    pub(super) fn finish(
        &mut self,
        head: Head,
        extension: Extension,
        sink: &mut Sink<'_>,
        used: &mut Slots,
    ) {
        let payload = head.payload_bytes();
        let last = head.flags.contains(Flags::LAST);
        let received = match (&mut self.message, head.op) {
            (Message::Send { filled }, Op::Send) => {
                *filled += payload;
                let imm = match extension {
                    Extension::Word(imm) => Some(imm),
                    _ => None,
                };
                last.then_some((CompletionKind::Recv, *filled as u64, imm))
            }
            (Message::Write { at, left, total, imm, .. }, Op::Write) => {
                *at += payload;
                *left -= payload as u64;
                let (total, imm) = (*total, *imm);
                if last && imm.is_none() {
                    self.message = Message::None;
                }
                (last && imm.is_some()).then_some((CompletionKind::RecvWrite, total, imm))
            }
            (Message::None, Op::Placed) => match extension {
                Extension::Span(span) => {
                    Some((CompletionKind::RecvWrite, span.len, Some(span.aux)))
                }
                _ => None,
            },
            _ => None,
        };
        if let Some((kind, len, imm)) = received {
            self.message = Message::None;
            self.received(kind, len, imm, sink, used);
        }
    }

    /// Completes the RECV at the front.
    fn received(
        &mut self,
        kind: CompletionKind,
        len: u64,
        imm: Option<u32>,
        sink: &mut Sink<'_>,
        used: &mut Slots,
    ) {
        let Some(recv) = self.recvs.take() else { return };
        self.complete(recv, kind, len, imm, sink, used);
    }

    // Always inlined, so that the completion of a message in one packet is built in its final
    // place.
    #[inline(always)]
    fn complete(
        &self,
        Posted { wr: recv, .. }: Posted,
        kind: CompletionKind,
        len: u64,
        imm: Option<u32>,
        sink: &mut Sink<'_>,
        used: &mut Slots,
    ) {
        let qp = self.handle;
        let make = || Completion {
            qp,
            wr_id: recv.wr_id,
            kind,
            status: Status::Success,
            byte_len: u32::try_from(len).unwrap_or(u32::MAX),
            imm,
            buffer: Some(recv.buffer),
        };
        if self.uses_srq {
            sink.push_shared(make());
        } else {
            sink.push(make, Slots::ONE_RECV, used);
        }
    }

    /// Sends the answers owed, until the wire is full.
    pub(super) fn answer(&mut self, wire: &mut Wire) {
        while let Some(answer) = self.answers.front_mut() {
            let done = match answer {
                Answer::Read { memory, at, left, begun } => {
                    send_read(memory, at, left, begun, wire)
                }
                Answer::Map { span, region, passed } => send_map(span, region, passed, wire),
            };
            if !done {
                return;
            }
            // A tcp wire gathers from the region later: it holds the memory until then.
            self.answers.pop_front();
        }
    }

    /// Whether answers wait for room on the wire.
    #[inline]
    pub(super) fn owes_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Flushes all RECVs, those of the SRQ not among them; the first gets status `first` if it is
    /// given (contract rule 8). The wire must no longer hold a landing.
    pub(super) fn flush(&mut self, first: Option<Status>, sink: &mut Sink<'_>, used: &mut Slots) {
        self.message = Message::None;
        self.answers.clear();
        let mut status = first.unwrap_or(Status::FlushError);
        for Posted { wr: recv, .. } in self.recvs.take_all() {
            let make = || Completion {
                qp: self.handle,
                wr_id: recv.wr_id,
                kind: CompletionKind::Recv,
                status,
                byte_len: 0,
                imm: None,
                buffer: Some(recv.buffer),
            };
            if self.uses_srq {
                sink.push_shared(make());
            } else {
                sink.push(make, Slots::ONE_RECV, used);
            }
            status = Status::FlushError;
        }
    }
}

fn no_payload(head: Head) -> Result<Landing, Refusal> {
    if head.payload_bytes() == 0 { Ok(NonNull::dangling()) } else { Err(Refusal::Protocol) }
}

/// Sends packets of a READ's answer. Returns whether it is complete.
fn send_read(
    memory: &Arc<Memory>,
    at: &mut usize,
    left: &mut u64,
    begun: &mut bool,
    wire: &mut Wire,
) -> bool {
    while *left > 0 {
        let len = usize::try_from(*left).unwrap_or(usize::MAX).min(wire.max_payload_bytes());
        let last = len as u64 == *left;
        let flags = Flags::default().with_if(Flags::FIRST, !*begun).with_if(Flags::LAST, last);
        // SAFETY: `resolve` checked that at + left lies inside the memory.
        let base = unsafe { memory.base().add(*at) };
        if wire.send_shared(Op::ReadResponse, flags, Piece { base, len }, memory).is_err() {
            return false;
        }
        *at += len;
        *left -= len as u64;
        *begun = true;
    }
    true
}

/// Passes a region's memory file to the peer on the side channel, then answers on the wire. Returns
/// whether both are done.
fn send_map(
    span: &mut Span,
    region: &Option<Registered>,
    passed: &mut bool,
    wire: &mut Wire,
) -> bool {
    if !*passed {
        let file = region.as_ref().and_then(|region| region.memory.file());
        if let Some((file, _)) = file {
            match wire.pass_file(span.rkey, file) {
                Ok(true) => {}
                Ok(false) => return false,
                // Length 0 makes the peer access the region through the engine.
                Err(_) => span.len = 0,
            }
        }
        *passed = true;
    }
    let whole = Flags::FIRST.with(Flags::LAST);
    let extension = Extension::Span(*span);
    wire.send_copied(Op::MapAnswer, whole, extension, [Piece::EMPTY; 2]).is_ok()
}
