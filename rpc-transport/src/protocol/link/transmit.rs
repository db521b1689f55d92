//! [`Transmit`]: one frame that the link wants posted, with the flags of its WR.
//!
//! Owns the forms in which a frame's bytes are handed out. Never copies a payload.

use crate::device::RemoteSlice;
use crate::message::outgoing::OutBuf;
use crate::message::part::OutPart;
use crate::protocol::credit::Stamp;
use crate::protocol::frame::{HEADER_BYTES, SEGMENT_HEADER_BYTES};

/// A WRITE into the peer's memory.
#[derive(Debug)]
pub struct RemoteWrite {
    /// The bytes; they must not change until the WR has completed.
    pub part: OutPart,
    /// Where to write them.
    pub to: RemoteSlice,
}

impl RemoteWrite {
    /// If it has more than `bytes` bytes, cuts it there and returns the rest.
    pub(super) fn split_off(&mut self, bytes: u64) -> Option<Self> {
        let len = self.part.len();
        if len <= bytes {
            return None;
        }
        let RemoteSlice { address, rkey } = self.to;
        let to = RemoteSlice { address: address.wrapping_add(bytes), rkey };
        let rest = Self { part: self.part.slice(bytes..len), to };
        self.part = self.part.slice(0..bytes);
        Some(rest)
    }
}

/// A frame to post as one SEND, before anything else is polled from the link.
#[derive(Debug)]
#[must_use = "its credit and its slot are spent, so the frame has to be posted"]
pub struct Transmit<'a> {
    /// WRITEs to post before the SEND, in the same list, unsignaled. Each takes one SQ slot. If
    /// there is no SEND ([`FrameBytes::Later`]), `signaled` and `token` apply to the last WRITE.
    pub writes: Vec<RemoteWrite>,
    /// The bytes of the frame.
    pub frame: FrameBytes<'a>,
    /// `Some`: post as SEND_WITH_IMM with this immediate. `None`: post as SEND.
    pub imm: Option<u32>,
    /// Whether the WR must be signaled. Signaling more is harmless.
    pub signaled: bool,
    /// For [`Link::on_send_completion`](super::Link::on_send_completion); below 2^33.
    pub token: u64,
}

impl<'a> Transmit<'a> {
    #[inline]
    pub(super) fn data(frame: FrameBytes<'a>, stamp: Stamp) -> Self {
        let Stamp { signaled, mark, .. } = stamp;
        Self { writes: Vec::new(), frame, imm: None, signaled, token: u64::from(mark.to_bits()) }
    }
}

/// The bytes of a frame.
#[derive(Debug)]
pub enum FrameBytes<'a> {
    /// A whole message with its header in front, or a Close frame.
    Message(OutBuf),
    /// The blocks of a frame that names what is written with it, and the bytes behind them. On a
    /// sealed connection the TAGS block stands between the two.
    Written(Box<(OutBuf, Vec<u8>)>),
    /// A part of a message that stays queued.
    Segment {
        /// First bytes of the frame.
        header: [u8; SEGMENT_HEADER_BYTES],
        /// Bytes after the header; empty for an abort.
        payload: &'a [u8],
    },
    /// An Ack, Ping or Pong.
    Control([u8; HEADER_BYTES]),
    /// No frame yet: a later frame announces what these WRITEs have written.
    Later,
}

impl FrameBytes<'_> {
    /// The bytes as two slices to gather. The second may be empty; the first is empty only for
    /// [`FrameBytes::Later`].
    #[inline]
    #[must_use]
    pub fn parts(&self) -> (&[u8], &[u8]) {
        match self {
            Self::Message(message) => (message, &[]),
            Self::Written(written) => (&written.0, &written.1),
            Self::Segment { header, payload } => (header, payload),
            Self::Control(header) => (header, &[]),
            Self::Later => (&[], &[]),
        }
    }

    /// Length of the frame, bytes.
    // A frame is never empty.
    #[allow(clippy::len_without_is_empty)]
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        let (first, second) = self.parts();
        first.len() + second.len()
    }
}
