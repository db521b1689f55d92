//! The tcp wire: packets as frames on a byte stream, acknowledged cumulatively.
//!
//! Owns acknowledgements and partial reads and writes. The payload of a large frame is read
//! straight to its destination. Never waits, never completes a WR.
//!
//! An acknowledgement is the number of packets that the sender of a frame has accepted; frames of
//! [`Op::Ack`] and [`Op::Nak`] are not counted. The bytes of a frame: [`frame`].
//!
//! Invariants:
//! 1. As far as memory of WRs is concerned, an acknowledgement is accepted only up to what has been
//!    fully written to the socket: see `outbox`, invariant 2.
//! 2. After a refusal, a protocol error or [`TcpWire::close`] input is discarded, so no landing is
//!    used after its memory may be gone.
//! 3. Unprocessed input is held only when a visit ends early: the CQ's owner takes no more
//!    completions, or the visit has reached its limit of frames. It is at most one scratch buffer
//!    full. A wire that holds input has work, so the next visit continues with it.
#![allow(unsafe_code, reason = "reads from a socket into registered memory")]

mod acks;
mod frame;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::device::Traffic;
use crate::memory::copy;
use crate::memory::process::Process;

use self::acks::Acks;
pub(super) use self::frame::MAX_BODY_BYTES;
use self::frame::{HEAD_BYTES, Inbound, decode_head, fill_head};
use super::domain::Memory;
use super::landing::{Refusal, TakePackets};
use super::outbox::Outbox;
use super::packet::{Extension, Flags, Nak, Op};
use super::ring::{BadFeedback, Feedback, Piece, Unsent};

/// Payload of at least this size, bytes, is gathered from its own memory instead of copied.
const GATHER_FROM_BYTES: usize = 4096;
/// A body of which at least this many bytes are missing is read straight to its destination.
const DIRECT_FROM_BYTES: usize = 2048;
/// Most bytes of one read while no body is being received.
pub(super) const SCRATCH_BYTES: usize = 64 * 1024;
/// Most bytes that one read takes beyond a body: the head of the next frame, and little of its
/// body, since that would have to be copied from the scratch buffer.
const BEHIND_BODY_BYTES: usize = 2048;
thread_local! {
    /// Receives bytes whose frames are not known yet. Nothing stays in it between visits, so a
    /// thread shares one among all of its wires: most channels have a CQ to themselves, and are
    /// idle.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Most reads of one visit, so that one QP cannot keep the others waiting.
const VISIT_READS: usize = 8;
/// Most frames that one visit processes, for the same reason.
const VISIT_FRAMES: usize = 64;

/// From this many bytes on, posts do not wait for the next poll.
const WAIT_BYTES: u64 = 16 * 1024;

/// The result of receiving in one visit.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Taken {
    /// Packets or acknowledgements arrived.
    pub(super) any: bool,
    /// Nothing is left to be read for now.
    pub(super) drained: bool,
    /// Frames begun.
    frames: usize,
}

impl Taken {
    /// Whether the visit may begin another frame.
    fn has_room(&self, targets: &impl TakePackets) -> bool {
        self.frames < VISIT_FRAMES && targets.has_room()
    }
}

enum Read {
    /// Bytes read into the landing, bytes read into the scratch buffer, and whether both were
    /// filled.
    Bytes {
        landed: usize,
        staged: usize,
        full: bool,
    },
    Nothing,
    End,
}

/// One side of a connection over tcp.
#[derive(Debug)]
pub(super) struct TcpWire {
    socket: OwnedFd,
    outbox: Outbox,
    /// Packets sent.
    position: u64,
    /// Packets that the socket has taken.
    written: u64,
    /// Packets that the peer has accepted.
    peer_accepted: u64,
    nak: Option<Nak>,
    acks: Acks,
    /// Bytes read.
    received: u64,
    inbound: Inbound,
    /// Bytes read but not processed (invariant 3).
    leftover: Vec<u8>,
    /// Bytes of it that are already processed.
    leftover_start: usize,
    /// The last read found nothing more.
    drained: bool,
    /// The peer has closed, or the connection is lost.
    ended: bool,
    /// Shut the sending side down once everything is written.
    closing: bool,
    /// The socket took less than there was to write; an event will report when it has room.
    stuck: bool,
    /// A child of this process must not write to the socket.
    maker: Process,
}

// SAFETY: a landing points into memory that the QP owning this wire keeps (invariant 2), and moves
// between threads with it.
unsafe impl Send for TcpWire {}

impl TcpWire {
    /// Takes over a connected, non-blocking socket after set-up.
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            outbox: Outbox::default(),
            position: 0,
            written: 0,
            peer_accepted: 0,
            nak: None,
            acks: Acks::default(),
            received: 0,
            inbound: Inbound::START,
            leftover: Vec::new(),
            leftover_start: 0,
            drained: false,
            ended: false,
            closing: false,
            stuck: false,
            maker: Process::current(),
        }
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    // ---- sending ----

    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Adds head and extension of a packet to the outbox, if there is room for it and its payload.
    fn begin(
        &mut self,
        op: Op,
        flags: Flags,
        extension: Extension,
        len: usize,
    ) -> Result<(), Unsent> {
        let (_, extension_bytes) = extension.encode();
        if extension_bytes + len > MAX_BODY_BYTES {
            return Err(Unsent::TooLong);
        }
        if self.outbox.is_full() {
            return Err(Unsent::Full);
        }
        self.frame(op, flags, extension, len);
        Ok(())
    }

    /// Adds head and extension of a frame to the outbox. The caller has checked the length of the
    /// body.
    fn frame(&mut self, op: Op, flags: Flags, extension: Extension, payload: usize) {
        let (bytes, len) = frame::encode_head(self.acks.report(), op, flags, extension, payload);
        self.outbox.copy(&bytes[..len]);
    }

    /// Sends a packet, copying its payload.
    pub(super) fn send_copied(
        &mut self,
        op: Op,
        flags: Flags,
        extension: Extension,
        pieces: [Piece; 2],
    ) -> Result<u64, Unsent> {
        self.begin(op, flags, extension, pieces[0].len + pieces[1].len)?;
        for piece in pieces {
            if piece.len > 0 {
                self.outbox.copy_piece(piece);
            }
        }
        self.position += 1;
        Ok(self.position)
    }

    /// Sends a packet whose payload is not copied and stays in place until it is acknowledged.
    pub(super) fn send_kept(
        &mut self,
        op: Op,
        flags: Flags,
        extension: Extension,
        piece: Piece,
    ) -> Result<u64, Unsent> {
        if piece.len < GATHER_FROM_BYTES {
            return self.send_copied(op, flags, extension, [piece, Piece::EMPTY]);
        }
        self.begin(op, flags, extension, piece.len)?;
        self.position += 1;
        self.outbox.keep(piece, self.position);
        Ok(self.position)
    }

    /// Sends a packet whose payload lies in a region.
    pub(super) fn send_shared(
        &mut self,
        op: Op,
        flags: Flags,
        piece: Piece,
        memory: &Arc<Memory>,
    ) -> Result<u64, Unsent> {
        self.begin(op, flags, Extension::None, piece.len)?;
        self.outbox.share(piece, Arc::clone(memory));
        self.position += 1;
        Ok(self.position)
    }

    /// Writes all pending bytes, including an explicit acknowledgement if one is due. While the
    /// socket is stuck the acknowledgement is only marked as due, so that none pile up for a peer
    /// that never reads: a later one covers the earlier ones.
    pub(super) fn flush(&mut self) {
        if !self.stuck {
            self.acknowledge();
        }
        let was_stuck = self.stuck;
        self.write();
        if was_stuck && !self.stuck {
            self.acknowledge();
            self.write();
        }
    }

    /// Whether few bytes are pending, and the peer has not accepted everything that was written
    /// before (Nagle's rule, with a bound).
    #[inline]
    pub(super) fn may_wait(&self) -> bool {
        self.peer_accepted < self.written && self.outbox.len() < WAIT_BYTES
    }

    fn acknowledge(&mut self) {
        if self.acks.are_due() && !self.closing {
            self.frame(Op::Ack, Flags::FIRST.with(Flags::LAST), Extension::None, 0);
        }
    }

    fn write(&mut self) {
        if self.outbox.is_empty() {
            return;
        }
        match self.outbox.write_to(self.socket.as_fd()) {
            Ok(all) => {
                self.stuck = !all;
                if all {
                    self.written = self.position;
                }
                if all && self.closing {
                    self.shut_down();
                }
            }
            // The next read will return the peer's last bytes, then report that the connection is
            // lost. Usually the connection is lost already. Where the system refuses for another
            // reason it is ended here, since the following bytes would be mistaken for the missing
            // ones.
            Err(_) => {
                let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
                self.outbox.clear();
                self.stuck = false;
            }
        }
    }

    fn shut_down(&self) {
        // If the connection is already lost this fails, and is not needed.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Write);
    }

    /// Reports to the peer at once that its next packet is refused.
    pub(super) fn refuse(&mut self, nak: Nak) {
        let whole = Flags::FIRST.with(Flags::LAST);
        self.frame(Op::Nak, whole, Extension::Word(nak as u32), 0);
        self.inbound = Inbound::Closed;
        self.flush();
    }

    /// Reports to the peer that nothing more will be sent, and stops using the memory of WRs.
    pub(super) fn close(&mut self) {
        if self.closing {
            return;
        }
        self.inbound = Inbound::Closed;
        (self.leftover, self.leftover_start) = (Vec::new(), 0);
        self.flush();
        self.closing = true;
        if self.outbox.is_empty() {
            self.shut_down();
        } else {
            self.outbox.detach();
        }
    }

    /// Frees memory of what was sent.
    pub(super) fn release_buffers(&mut self) {
        self.outbox.release_buffer();
    }

    /// Bytes read; bytes written that the peer's kernel has acknowledged; bytes that it has not.
    pub(super) fn traffic(&self) -> Traffic {
        let (written, waiting) = (self.outbox.written_bytes(), self.outbox.len());
        let under_way = self.unacknowledged_bytes().min(written);
        let pending = under_way + waiting;
        Traffic { received: self.received, accepted: written - under_way, pending }
    }

    /// Bytes that this kernel has taken and the peer's kernel has not acknowledged.
    fn unacknowledged_bytes(&self) -> u64 {
        let mut bytes: libc::c_int = 0;
        // SAFETY: this call (tcp(7), SIOCOUTQ) stores an int where the last argument points.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::TIOCOUTQ, &mut bytes) };
        if result == 0 { u64::try_from(bytes).unwrap_or(0) } else { 0 }
    }

    // ---- receiving ----

    /// The peer's report about the packets sent.
    pub(super) fn feedback(&self) -> Result<Feedback, BadFeedback> {
        Ok(Feedback { accepted: self.peer_accepted, nak: self.nak })
    }

    /// Whether the stream has ended and everything before its end has been processed.
    pub(super) fn has_ended(&self) -> bool {
        self.ended && self.leftover.is_empty()
    }

    /// Whether a visit would find something.
    pub(super) fn has_work(&self) -> bool {
        !self.leftover.is_empty() || (!self.drained && !self.ended)
    }

    /// Whether the peer must receive an acknowledgement.
    pub(super) fn owes_ack(&self) -> bool {
        self.acks.are_due()
    }

    /// Whether nothing is left to write except, at most, an acknowledgement that the next packet
    /// can carry.
    pub(super) fn may_wait_for_next(&self) -> bool {
        self.acks.may_wait() && self.outbox.is_empty()
    }

    /// Reads and processes waiting input, as long as the CQ's owner accepts completions.
    ///
    /// # Errors
    /// The reason to refuse a packet.
    pub(super) fn receive(&mut self, targets: &mut impl TakePackets) -> Result<Taken, Refusal> {
        with_scratch(|scratch| self.receive_into(scratch, targets))
    }

    fn receive_into(
        &mut self,
        scratch: &mut Vec<u8>,
        targets: &mut impl TakePackets,
    ) -> Result<Taken, Refusal> {
        let mut taken = Taken::default();
        if !self.leftover.is_empty() {
            let bytes = std::mem::take(&mut self.leftover);
            let start = std::mem::take(&mut self.leftover_start);
            let used = self.consume(&bytes[start..], targets, &mut taken)?;
            if start + used < bytes.len() {
                (self.leftover, self.leftover_start) = (bytes, start + used);
            }
        }
        for _ in 0..VISIT_READS {
            if !self.leftover.is_empty() || !taken.has_room(targets) {
                return Ok(taken);
            }
            match self.read(scratch) {
                Read::Bytes { landed, staged, full } => {
                    taken.any = true;
                    if landed > 0 {
                        self.on_landed(landed, targets)?;
                    }
                    let used = self.consume(&scratch[..staged], targets, &mut taken)?;
                    self.leftover.extend_from_slice(&scratch[used..staged]);
                    self.drained = !full;
                }
                Read::Nothing => self.drained = true,
                Read::End => self.ended = true,
            }
            if self.drained || self.ended {
                taken.drained = self.leftover.is_empty();
                return Ok(taken);
            }
        }
        Ok(taken)
    }

    /// After the QP has failed: reads and discards input, and writes the remaining output.
    pub(super) fn linger(&mut self) {
        self.flush();
        self.inbound = Inbound::Closed;
        self.drained = false;
        for _ in 0..VISIT_READS {
            match with_scratch(|scratch| self.read(scratch)) {
                Read::Bytes { full: true, .. } => {}
                Read::Bytes { .. } | Read::Nothing => {
                    self.drained = true;
                    return;
                }
                Read::End => {
                    self.ended = true;
                    return;
                }
            }
        }
    }

    /// One system call: first into the landing of a large body, the rest into the scratch buffer.
    fn read(&mut self, scratch: &mut Vec<u8>) -> Read {
        if self.ended {
            return Read::End;
        }
        scratch.resize(SCRATCH_BYTES, 0);
        let (direct, landing) = match &self.inbound {
            Inbound::Body { landing, left, .. } if *left >= DIRECT_FROM_BYTES => (*left, *landing),
            _ => (0, NonNull::dangling()),
        };
        let besides = if direct > 0 { BEHIND_BODY_BYTES } else { SCRATCH_BYTES };
        let staging = libc::iovec { iov_base: scratch.as_mut_ptr().cast(), iov_len: besides };
        let body = libc::iovec { iov_base: landing.as_ptr().cast(), iov_len: direct };
        let pieces = [body, staging];
        let socket = self.socket.as_raw_fd();
        let read = if direct == 0 {
            // Small messages, and polls that find nothing: a call with fewer arguments is cheaper.
            // SAFETY: the scratch is `SCRATCH_BYTES` long.
            unsafe { libc::recv(socket, staging.iov_base, besides, 0) }
        } else {
            // SAFETY: as above; a landing is valid for the rest of the payload
            // (`TakePackets::begin`), and is no longer used once its memory may be gone (invariant
            // 2).
            unsafe { libc::readv(socket, pieces.as_ptr(), 2) }
        };
        match usize::try_from(read) {
            Ok(0) => Read::End,
            Ok(count) => {
                self.received += count as u64;
                let landed = count.min(direct);
                let staged = count - landed;
                Read::Bytes { landed, staged, full: staged == besides }
            }
            Err(_) => match io::Error::last_os_error().kind() {
                io::ErrorKind::WouldBlock => Read::Nothing,
                // Interrupted before any byte was read: more may be waiting.
                io::ErrorKind::Interrupted => Read::Bytes { landed: 0, staged: 0, full: true },
                _ => Read::End,
            },
        }
    }

    /// Processes bytes until the visit reaches its limits. Returns how many bytes it used.
    fn consume(
        &mut self,
        bytes: &[u8],
        targets: &mut impl TakePackets,
        taken: &mut Taken,
    ) -> Result<usize, Refusal> {
        let mut start = 0;
        while start < bytes.len() {
            let bytes = &bytes[start..];
            start += match &mut self.inbound {
                Inbound::Closed => bytes.len(),
                Inbound::Head { have: 0, .. } if !taken.has_room(targets) => break,
                Inbound::Head { bytes: head, have } => {
                    taken.frames += usize::from(*have == 0);
                    let used = fill_head(head, have, bytes)?;
                    self.begin_if_complete(targets)?;
                    used
                }
                Inbound::Body { landing, left, .. } => {
                    let len = bytes.len().min(*left);
                    // SAFETY: the landing is valid for the rest of the payload (invariant 2); if it
                    // lies in a region, this process may be reading it.
                    unsafe { copy::to_shared(bytes.as_ptr(), landing.as_ptr(), len) };
                    self.on_landed(len, targets)?;
                    len
                }
            };
            taken.any = true;
        }
        Ok(start)
    }

    /// Starts the frame if its head and extension are complete.
    fn begin_if_complete(&mut self, targets: &mut impl TakePackets) -> Result<(), Refusal> {
        let Inbound::Head { bytes, have } = &self.inbound else { return Ok(()) };
        if *have < HEAD_BYTES {
            return Ok(());
        }
        let (ack, head) = decode_head(bytes)?;
        let end = HEAD_BYTES + head.extension_bytes();
        if *have < end {
            return Ok(());
        }
        let extension = Extension::decode(&bytes[HEAD_BYTES..end]);
        self.inbound = Inbound::START;
        self.on_ack(ack)?;
        match head.op {
            Op::Ack | Op::Nak if head.payload_bytes() > 0 => Err(Refusal::Protocol),
            Op::Ack => Ok(()),
            Op::Nak => {
                let Extension::Word(code) = extension else { return Err(Refusal::Protocol) };
                self.nak = Some(Nak::decode(code).ok_or(Refusal::Protocol)?);
                Ok(())
            }
            _ => {
                let landing = targets.begin(head, extension)?;
                let left = head.payload_bytes();
                self.inbound = Inbound::Body { head, extension, landing, left };
                self.on_landed(0, targets)
            }
        }
    }

    /// Counts `len` bytes of payload as arrived; finishes the frame if they were the last.
    fn on_landed(&mut self, len: usize, targets: &mut impl TakePackets) -> Result<(), Refusal> {
        let Inbound::Body { head, extension, landing, left } = &mut self.inbound else {
            return Ok(());
        };
        // SAFETY: `len` is at most the rest of the payload.
        *landing = unsafe { landing.add(len) };
        *left -= len;
        if *left > 0 {
            return Ok(());
        }
        let (head, extension) = (*head, *extension);
        self.inbound = Inbound::START;
        let is_large = head.payload_bytes() >= GATHER_FROM_BYTES;
        targets.finish(head, extension)?;
        self.acks.on_accepted(head.flags.contains(Flags::ACK), is_large);
        Ok(())
    }

    /// Handles the number of packets that the peer reports as accepted.
    fn on_ack(&mut self, ack: u32) -> Result<(), Refusal> {
        #[allow(clippy::cast_possible_truncation, reason = "modulo 2^32")]
        let more = ack.wrapping_sub(self.peer_accepted as u32);
        let accepted = self.peer_accepted + u64::from(more);
        // A frame cannot have been accepted before it was written (invariant 1).
        let possible = self.outbox.first_kept().map_or(self.position, |frame| frame - 1);
        if more > 0 && accepted > possible {
            return Err(Refusal::Protocol);
        }
        self.peer_accepted = accepted;
        Ok(())
    }
}

/// A thread that is ending has no scratch buffer left, and makes one for each call.
fn with_scratch<R>(read: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    let mut scratch = SCRATCH.try_with(Cell::take).unwrap_or_default();
    let result = read(&mut scratch);
    let _ = SCRATCH.try_with(|kept| kept.set(scratch));
    result
}

impl Drop for TcpWire {
    fn drop(&mut self) {
        if self.maker.is_current() {
            self.flush();
        }
    }
}
