//! The write queue of a tcp wire: small frames are coalesced in one buffer, large payloads are
//! gathered from their own memory (`sendmsg`).
//!
//! Owns the order of bytes, and their memory until the kernel has taken them. Never frames.
//!
//! Invariants:
//! 1. Bytes go out in the order in which they were added; a partial write continues where it
//!    stopped.
//! 2. Memory of a [`Segment::Kept`] is read only while its WR is outstanding: the wire accepts no
//!    acknowledgement of a frame that is not fully written ([`Outbox::first_kept`]), and copies the
//!    unwritten bytes before WRs are flushed ([`Outbox::detach`]).
#![allow(unsafe_code, reason = "gathers from registered memory in a system call")]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use crate::memory::copy;

use super::domain::Memory;
use super::ring::Piece;
use super::socket::is_forbidden;

/// The wire counts as full when more copied bytes than this wait.
const FULL_COPIED_BYTES: usize = 256 * 1024;
/// The wire counts as full when more bytes in memory of WRs and regions than this wait.
const FULL_KEPT_BYTES: usize = 4 * 1024 * 1024;
/// Most pieces in one system call.
const GATHER: usize = 64;
/// A buffer larger than this is freed when it becomes empty.
const KEEP_BYTES: usize = 64 * 1024;

/// Neither waits nor raises a signal.
const FLAGS: libc::c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

/// Sends one piece; returns how much of it was taken.
///
/// # Safety
/// `base..base+len` is valid for reads.
#[inline]
unsafe fn send(socket: BorrowedFd<'_>, base: *const u8, len: usize) -> io::Result<usize> {
    // SAFETY: promised by the caller.
    let written = unsafe { libc::send(socket.as_raw_fd(), base.cast(), len, FLAGS) };
    usize::try_from(written).map_err(|_| io::Error::last_os_error())
}

#[derive(Debug)]
enum Segment {
    /// The next bytes of the buffer; their number.
    Copied(usize),
    /// Memory of a WR, and the number of the frame that ends with it.
    Kept(Piece, u64),
    /// Memory of a region.
    Shared(Piece, #[allow(dead_code, reason = "keeps the memory")] Arc<Memory>),
}

// SAFETY: the pieces point into memory that outlives them (invariant 2, or the `Arc`), and are
// only read.
unsafe impl Send for Segment {}

impl Segment {
    fn len(&self) -> usize {
        match self {
            Self::Copied(len) => *len,
            Self::Kept(piece, _) | Self::Shared(piece, _) => piece.len,
        }
    }
}

/// Bytes on their way to a socket.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    buffer: Vec<u8>,
    /// Bytes of `buffer` that are already written.
    start: usize,
    segments: VecDeque<Segment>,
    /// Bytes of all segments that lie outside `buffer`.
    kept_bytes: usize,
    written_bytes: u64,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Bytes waiting to be written.
    pub(super) fn len(&self) -> u64 {
        (self.buffer.len() - self.start + self.kept_bytes) as u64
    }

    /// Bytes that the kernel has taken so far.
    pub(super) fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Whether the wire should accept nothing more for now.
    pub(super) fn is_full(&self) -> bool {
        self.buffer.len() - self.start >= FULL_COPIED_BYTES || self.kept_bytes >= FULL_KEPT_BYTES
    }

    /// Adds bytes, copying them.
    pub(super) fn copy(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
        self.copied(bytes.len());
    }

    /// Adds a piece, copying it.
    pub(super) fn copy_piece(&mut self, piece: Piece) {
        self.buffer.reserve(piece.len);
        let end = self.buffer.len();
        // SAFETY: `reserve` made room for `len` bytes behind the end.
        let to = unsafe { self.buffer.as_mut_ptr().add(end) };
        // SAFETY: the piece is valid for `len` bytes (it belongs to a WR, a region that peers may
        // be writing, or a borrow of the caller), and the buffer does not overlap it.
        unsafe { copy::from_shared(piece.base.as_ptr(), to, piece.len) };
        // SAFETY: the bytes up to the new length were just written.
        unsafe { self.buffer.set_len(end + piece.len) };
        self.copied(piece.len);
    }

    fn copied(&mut self, len: usize) {
        match self.segments.back_mut() {
            Some(Segment::Copied(last)) => *last += len,
            _ => self.segments.push_back(Segment::Copied(len)),
        }
    }

    /// Adds a piece that is not copied; its memory stays valid until frame number `frame` is
    /// acknowledged.
    pub(super) fn keep(&mut self, piece: Piece, frame: u64) {
        self.kept_bytes += piece.len;
        self.segments.push_back(Segment::Kept(piece, frame));
    }

    /// Adds a piece of a region, not copied; `memory` keeps it valid.
    pub(super) fn share(&mut self, piece: Piece, memory: Arc<Memory>) {
        self.kept_bytes += piece.len;
        self.segments.push_back(Segment::Shared(piece, memory));
    }

    /// Number of the first frame whose kept memory is not fully written.
    pub(super) fn first_kept(&self) -> Option<u64> {
        self.segments.iter().find_map(|segment| match segment {
            Segment::Kept(_, frame) => Some(*frame),
            _ => None,
        })
    }

    /// Copies everything that still lies outside the buffer, so that its owners may reuse that
    /// memory.
    pub(super) fn detach(&mut self) {
        let mut rest = Vec::with_capacity(self.buffer.len() - self.start + self.kept_bytes);
        let mut at = self.start;
        for segment in self.segments.drain(..) {
            let len = segment.len();
            match segment {
                Segment::Copied(_) => {
                    rest.extend_from_slice(&self.buffer[at..at + len]);
                    at += len;
                }
                Segment::Kept(piece, _) | Segment::Shared(piece, _) => {
                    let end = rest.len();
                    rest.resize(end + len, 0);
                    let to = rest[end..].as_mut_ptr();
                    // SAFETY: the piece is still valid (invariant 2), `to` has `len` bytes.
                    unsafe { copy::from_shared(piece.base.as_ptr(), to, len) };
                }
            }
        }
        (self.buffer, self.start, self.kept_bytes) = (rest, 0, 0);
        if !self.buffer.is_empty() {
            self.segments.push_back(Segment::Copied(self.buffer.len()));
        }
    }

    /// Frees the buffer, unless something waits in it.
    pub(super) fn release_buffer(&mut self) {
        if self.is_empty() {
            (self.buffer, self.start) = (Vec::new(), 0);
        }
    }

    /// Drops everything.
    pub(super) fn clear(&mut self) {
        *self = Self { written_bytes: self.written_bytes, ..Self::default() };
    }

    /// Writes as much as the socket takes. Returns whether that was everything.
    ///
    /// # Errors
    /// Those of `send(2)`: the connection is lost.
    pub(super) fn write_to(&mut self, socket: BorrowedFd<'_>) -> io::Result<bool> {
        while !self.segments.is_empty() {
            match self.write_some(socket) {
                Ok(written) => self.written(written),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(false),
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
        Ok(true)
    }

    fn write_some(&self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        if let [Segment::Copied(len)] = self.segments.as_slices().0
            && self.segments.len() == 1
        {
            // Small messages: a call with fewer arguments is cheaper.
            let bytes = &self.buffer[self.start..self.start + len];
            // SAFETY: `bytes` is valid for reads of its length.
            return unsafe { send(socket, bytes.as_ptr(), bytes.len()) };
        }
        let mut gather =
            [const { libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 } }; GATHER];
        let (mut count, mut at) = (0, self.start);
        for segment in self.segments.iter().take(GATHER) {
            let base = match segment {
                Segment::Copied(len) => {
                    let base = self.buffer[at..at + len].as_ptr();
                    at += len;
                    base
                }
                Segment::Kept(piece, _) | Segment::Shared(piece, _) => piece.base.as_ptr(),
            };
            gather[count] =
                libc::iovec { iov_base: base.cast_mut().cast(), iov_len: segment.len() };
            count += 1;
        }
        // SAFETY: all fields of a msghdr may be zero.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = gather.as_mut_ptr();
        // The field's type differs in musl.
        message.msg_iovlen = count as _;
        // SAFETY: `message` names `count` pieces, each valid for reads (see `Segment`).
        let written = unsafe { libc::sendmsg(socket.as_raw_fd(), &message, FLAGS) };
        usize::try_from(written).map_err(|_| io::Error::last_os_error()).or_else(|error| {
            if !is_forbidden(&error) {
                return Err(error);
            }
            // A sandbox may refuse the call: then send one piece at a time.
            let first = gather[0];
            // SAFETY: the first of the pieces above.
            unsafe { send(socket, first.iov_base.cast(), first.iov_len) }
        })
    }

    /// Removes `count` written bytes from the front.
    fn written(&mut self, mut count: usize) {
        self.written_bytes += count as u64;
        while let Some(front) = self.segments.front_mut() {
            let len = front.len().min(count);
            count -= len;
            let done = len == front.len();
            match front {
                Segment::Copied(left) => {
                    *left -= len;
                    self.start += len;
                }
                Segment::Kept(piece, _) | Segment::Shared(piece, _) => {
                    // SAFETY: `len` is at most the piece's length.
                    piece.base = unsafe { piece.base.add(len) };
                    piece.len -= len;
                    self.kept_bytes -= len;
                }
            }
            if !done {
                break;
            }
            self.segments.pop_front();
        }
        // Keeps the buffer from growing: drops written bytes when that is cheap.
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
            if self.buffer.capacity() > KEEP_BYTES {
                self.buffer = Vec::new();
            }
        } else if self.start > self.buffer.len() / 2 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The memory that a failed connection leaves behind may be long gone when the socket takes the
    /// bytes.
    #[test]
    fn released_bytes_were_copied_in_order() {
        let mut outbox = Outbox::default();
        let lasting = b"lasting".to_vec();
        {
            let kept = b"kept".to_vec();
            outbox.copy(b"copied ");
            outbox.keep(Piece::from(&kept[..]), 1);
            outbox.copy_piece(Piece::from(&b" and "[..]));
            outbox.keep(Piece::from(&lasting[..]), 2);
            assert_eq!(outbox.first_kept(), Some(1));
            outbox.written(9);
            outbox.detach();
        }
        assert_eq!(outbox.first_kept(), None);
        assert_eq!(&outbox.buffer[outbox.start..], b"pt and lasting");
        outbox.written(14);
        assert!(outbox.is_empty() && outbox.buffer.is_empty());
    }

    #[test]
    fn only_empty_buffer_is_released() {
        let mut outbox = Outbox::default();
        outbox.copy(b"long");
        outbox.release_buffer();
        assert_eq!(outbox.buffer, b"long");
        outbox.written(4);
        outbox.release_buffer();
        assert_eq!(outbox.buffer.capacity(), 0);
    }
}
