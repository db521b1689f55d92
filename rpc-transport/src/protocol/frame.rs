//! Frames: writing and reading the bytes of the link protocol.
//!
//! Owns the byte formats of all frames (`docs/wire-format.md` has the table; the tests have golden
//! vectors). Never decides what may be sent, and keeps no state.
//!
//! Every frame starts with the same 8 bytes, little-endian like all numbers here (as are the
//! machines, so that a header is one 64-bit load or store):
//!
//! ```text
//! 0 kind u8 | 1 flags u8 | 2 data credits u16 | 4 ack credits u16 | 6 releases u8 | 7 extents u8
//! ```
//!
//! Invariants:
//! 1. No frame is empty (some clouds drop empty SENDs).
//! 2. [`parse`] reads only what lies inside the frame; each broken rule is its own
//!    [`ProtocolError`]; nothing is allocated except a close text of at most
//!    [`CLOSE_TEXT_MAX_BYTES`].
//! 3. Every frame written here parses to the same values.

mod blocks;
mod tags;
#[cfg(test)]
mod tests;

pub use self::blocks::{Blocks, MaxStreamData, Placed, SlotBlock, Written};
pub(crate) use self::blocks::{DONE_SLOTS, SEGMENT_PREFIX_MAX_BYTES, SLOT_BLOCK_BYTES};
pub(crate) use self::tags::TAGS_MAX_BYTES;
pub use self::tags::{MAX_RECORDS, RECORD_BYTES, TAG_BYTES, Tag, Tags};
use crate::message::outgoing::OutBuf;
use crate::protocol::config::MIN_RECEIVE_BUFFER_BYTES;
use crate::protocol::credit::Grant;
use crate::protocol::error::ProtocolError;
use crate::protocol::handshake::Features;
pub use crate::protocol::kind::Kind;
use crate::protocol::text::truncated;
use crate::text::printable;

/// Length of the header that starts every frame, bytes.
pub const HEADER_BYTES: usize = 8;
/// Length of the SEGMENT block, bytes.
pub const SEGMENT_BLOCK_BYTES: usize = 24;
/// Header and SEGMENT block together, bytes.
pub const SEGMENT_HEADER_BYTES: usize = HEADER_BYTES + SEGMENT_BLOCK_BYTES;
/// Code, text length and reserved byte after the header of a Close frame, bytes.
pub const CLOSE_BLOCK_BYTES: usize = 4;
/// Longest text of a Close frame, bytes.
pub const CLOSE_TEXT_MAX_BYTES: usize = 100;
/// Largest frame that is not Data, bytes: what every receive buffer must hold.
pub const CONTROL_FRAME_MAX_BYTES: usize = HEADER_BYTES + CLOSE_BLOCK_BYTES + CLOSE_TEXT_MAX_BYTES;

const _: () = assert!(SEGMENT_HEADER_BYTES == 32);
const _: () = assert!(CONTROL_FRAME_MAX_BYTES == 112);
const _: () = assert!(2 * CONTROL_FRAME_MAX_BYTES <= MIN_RECEIVE_BUFFER_BYTES as usize);
const _: () = assert!(SEGMENT_HEADER_BYTES < crate::message::outgoing::HEADROOM_BYTES);

/// Flags of a Data frame. Each names an optional block; the blocks follow the header in the order
/// of the table in `docs/wire-format.md`.
pub mod flags {
    /// SEGMENT block: the frame carries a part of a message.
    pub const SEGMENT: u8 = 0x01;
    /// ARENA block: an arena is advertised, asked back or given up.
    pub const ARENA: u8 = 0x02;
    /// SLOT block: a reply slot is advertised.
    pub const SLOT_ADVERTISE: u8 = 0x04;
    /// PLACED block: the message was written into a reply slot.
    pub const SLOT_PLACED: u8 = 0x08;
    /// DONE block: reply slots that the sender will never write again.
    pub const SLOTS_DONE: u8 = 0x10;
    /// No block: the sender is out of arena chunks and asks for releases.
    pub const STARVED: u8 = 0x20;
    /// CRC32C block: over header and blocks.
    pub const CRC32C: u8 = 0x40;
    /// MAX_STREAM_DATA block: how much more of a stream may travel in frames.
    pub const MAX_STREAM_DATA: u8 = 0x80;
}

/// Segment flag: the segment completes its message.
const SEGMENT_LAST: u32 = 1;
/// Segment flag: the sender gives the message up; it is not completed.
const SEGMENT_ABORT: u32 = 2;
/// Segment flag: the head of the message ends with the payload of this frame.
const SEGMENT_HEAD_END: u32 = 4;

/// The SEGMENT block: which bytes of which message a frame carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Segmented messages of one direction count up from 0, modulo 2^32.
    pub number: u32,
    /// Whether the segment completes the message.
    pub last: bool,
    /// Whether the segment gives the message up; it then carries no bytes.
    pub abort: bool,
    /// Whether the head of the message ends with the payload of this frame; all bytes after that
    /// are its tail. A message without a segment with this flag has no tail.
    pub head_end: bool,
    /// Offset of the segment in the message; for an abort, how many bytes were sent.
    pub offset: u64,
    /// Length of the whole message, bytes.
    pub total: u64,
}

/// Why a link is closed by a Close frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CloseCode {
    /// It is no longer needed.
    Normal,
    /// The process or service is shutting down.
    ShuttingDown,
    /// The other side broke the protocol; the text names the rule.
    Protocol,
    /// The application closed it.
    Application,
    /// This side failed.
    Internal,
    /// A code of a later version.
    Other(u16),
}

impl CloseCode {
    /// The number on the wire.
    #[must_use]
    pub const fn to_wire(self) -> u16 {
        match self {
            Self::Normal => 0,
            Self::ShuttingDown => 1,
            Self::Protocol => 2,
            Self::Application => 3,
            Self::Internal => 4,
            Self::Other(code) => code,
        }
    }

    /// Reads a number; every number is a valid code.
    #[must_use]
    pub const fn from_wire(code: u16) -> Self {
        match code {
            0 => Self::Normal,
            1 => Self::ShuttingDown,
            2 => Self::Protocol,
            3 => Self::Application,
            4 => Self::Internal,
            other => Self::Other(other),
        }
    }
}

/// The content of a Close frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloseReason {
    /// The code, for programs.
    pub code: CloseCode,
    /// The text, for people; at most [`CLOSE_TEXT_MAX_BYTES`] bytes of it are sent.
    pub text: String,
}

impl CloseReason {
    /// A reason. Text beyond the limit is cut off when it is written.
    pub fn new(code: CloseCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }
}

impl std::fmt::Display for CloseReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.text.is_empty() {
            write!(f, "{:?}", self.code)
        } else {
            write!(f, "{:?}: {}", self.code, printable(&self.text))
        }
    }
}

/// A frame as received. The payload of Data and Segment starts at the second value that [`parse`]
/// returns.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Frame {
    /// A whole message.
    Data(Grant),
    /// A part of a message.
    Segment(Grant, Segment),
    /// A message or a part of one, with blocks other than SEGMENT.
    Blocks(Grant, Box<Blocks>),
    /// Blocks without a message.
    Release(Grant, Box<Blocks>),
    /// A grant and nothing else.
    Ack(Grant),
    /// Asks for a Pong.
    Ping(Grant),
    /// Answers a Ping.
    Pong(Grant),
    /// The last frame of its direction.
    Close(CloseReason),
}

impl Frame {
    /// The kind on the wire.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Data(_) | Self::Segment(..) | Self::Blocks(..) => Kind::Data,
            Self::Release(..) => Kind::Release,
            Self::Ack(_) => Kind::Ack,
            Self::Ping(_) => Kind::Ping,
            Self::Pong(_) => Kind::Pong,
            Self::Close(_) => Kind::Close,
        }
    }
}

/// The header of a plain Data frame, of an Ack, a Ping or a Pong.
#[inline]
#[must_use]
pub const fn header(kind: Kind, grant: Grant) -> [u8; HEADER_BYTES] {
    header_with(kind, 0, grant)
}

#[inline]
const fn header_with(kind: Kind, flags: u8, grant: Grant) -> [u8; HEADER_BYTES] {
    (kind as u64 | (flags as u64) << 8 | (grant.to_imm() as u64) << 16).to_le_bytes()
}

/// Header and SEGMENT block of a segment.
#[inline]
#[must_use]
pub fn segment_header(grant: Grant, segment: Segment) -> [u8; SEGMENT_HEADER_BYTES] {
    let mut bytes = [0; SEGMENT_HEADER_BYTES];
    bytes[..8].copy_from_slice(&header_with(Kind::Data, flags::SEGMENT, grant));
    bytes[8..].copy_from_slice(&segment_block(segment));
    bytes
}

fn segment_block(segment: Segment) -> [u8; SEGMENT_BLOCK_BYTES] {
    let bits = u32::from(segment.last) * SEGMENT_LAST
        + u32::from(segment.abort) * SEGMENT_ABORT
        + u32::from(segment.head_end) * SEGMENT_HEAD_END;
    let mut bytes = [0; SEGMENT_BLOCK_BYTES];
    bytes[..4].copy_from_slice(&segment.number.to_le_bytes());
    bytes[4..8].copy_from_slice(&bits.to_le_bytes());
    bytes[8..16].copy_from_slice(&segment.offset.to_le_bytes());
    bytes[16..].copy_from_slice(&segment.total.to_le_bytes());
    bytes
}

/// The header of a frame with bytes of a handshake: frames of each level and direction are numbered
/// from 0.
#[must_use]
pub const fn handshake_header(level: u8, number: u16) -> [u8; HEADER_BYTES] {
    (Kind::Handshake as u64 | (level as u64) << 8 | (number as u64) << 16).to_le_bytes()
}

/// The header of the frame that unlocks a connection. It grants nothing, as nothing has arrived.
#[must_use]
pub const fn unlocked_header() -> [u8; HEADER_BYTES] {
    (Kind::Unlocked as u64).to_le_bytes()
}

/// A text as far as a Close frame has room for it.
#[must_use]
pub fn close_text(text: &str) -> &str {
    truncated(text, CLOSE_TEXT_MAX_BYTES)
}

/// A whole Close frame.
#[must_use]
pub fn close_frame(reason: &CloseReason) -> OutBuf {
    let text = close_text(&reason.text);
    let text_len = u8::try_from(text.len()).unwrap_or(u8::MAX);
    let mut frame = OutBuf::new();
    frame.extend_from_slice(&header(Kind::Close, Grant::default()));
    frame.extend_from_slice(&reason.code.to_wire().to_le_bytes());
    frame.extend_from_slice(&[text_len, 0]);
    frame.extend_from_slice(text.as_bytes());
    frame
}

/// Reads a frame. `imm` is the immediate of its completion, `features` are the agreed ones. The
/// returned number is the offset of the payload of a Data frame.
///
/// # Errors
/// A [`ProtocolError`] for each rule that the bytes break. The link checks the values against its
/// state.
#[inline]
pub fn parse(
    bytes: &[u8],
    imm: Option<u32>,
    features: Features,
) -> Result<(Frame, usize), ProtocolError> {
    if let Some(grant) = plain(bytes, imm) {
        return Ok((Frame::Data(grant), HEADER_BYTES));
    }
    let Some((head, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Err(ProtocolError::Truncated { len: bytes.len(), need: HEADER_BYTES });
    };
    parse_other(u64::from_le_bytes(*head), rest, imm, features)
}

/// The grant of a plain Data frame, which most are: kind Data, no flags, no counts. Its payload is
/// what follows the header. `None` for all others.
#[inline]
#[must_use]
pub(crate) fn plain(bytes: &[u8], imm: Option<u32>) -> Option<Grant> {
    let head = u64::from_le_bytes(*bytes.first_chunk::<HEADER_BYTES>()?);
    let is_plain = head & 0xffff_0000_0000_ffff == Kind::Data as u64 && imm.is_none();
    is_plain.then_some(grant_of(head))
}

/// The grant in the middle of a header.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "bits 16 to 47 of the header are the grant")]
const fn grant_of(head: u64) -> Grant {
    Grant::from_imm((head >> 16) as u32)
}

fn parse_other(
    head: u64,
    rest: &[u8],
    imm: Option<u32>,
    features: Features,
) -> Result<(Frame, usize), ProtocolError> {
    let [kind, flags, _, _, _, _, releases, extents] = head.to_le_bytes();
    let kind = Kind::from_byte(kind).ok_or(ProtocolError::UnknownKind(kind))?;
    let grant = grant_of(head);
    if kind != Kind::Ack && imm.is_some() {
        return Err(ProtocolError::UnexpectedImmediate(kind));
    }
    if matches!(kind, Kind::Handshake | Kind::Unlocked) {
        return Err(ProtocolError::LockedOnly(kind));
    }
    if matches!(kind, Kind::Data | Kind::Release) {
        let counts = [releases, extents];
        if kind == Kind::Release && !features.contains(Features::ARENA) {
            return Err(ProtocolError::NotAgreed("Release frame"));
        }
        let (blocks, payload_at) = blocks::parse(kind, flags, counts, rest, features)?;
        // As the simplest variant that can hold it.
        let frame = match blocks.segment {
            _ if kind == Kind::Release => Frame::Release(grant, Box::new(blocks)),
            Some(segment) if blocks == (Blocks { segment: Some(segment), ..Blocks::default() }) => {
                Frame::Segment(grant, segment)
            }
            _ => Frame::Blocks(grant, Box::new(blocks)),
        };
        return Ok((frame, payload_at));
    }
    if flags != 0 {
        return Err(ProtocolError::FlagsOnControl { kind, flags });
    }
    if releases != 0 || extents != 0 {
        return Err(ProtocolError::CountsOnControl(kind));
    }
    if kind == Kind::Close {
        return parse_close(grant, rest);
    }
    if !rest.is_empty() {
        return Err(ProtocolError::TrailingBytes { kind, extra: rest.len() });
    }
    let frame = match kind {
        Kind::Ping => Frame::Ping(grant),
        Kind::Pong => Frame::Pong(grant),
        _ => match imm {
            Some(immediate) if immediate != grant.to_imm() => {
                let payload = grant.to_imm();
                return Err(ProtocolError::ImmediateMismatch { immediate, payload });
            }
            _ => Frame::Ack(grant),
        },
    };
    Ok((frame, HEADER_BYTES))
}

fn parse_segment(block: &[u8; SEGMENT_BLOCK_BYTES]) -> Result<Segment, ProtocolError> {
    let bits = u32::from_le_bytes(bytes_at(block, 4));
    if bits & !(SEGMENT_LAST | SEGMENT_ABORT | SEGMENT_HEAD_END) != 0 {
        return Err(ProtocolError::UnknownSegmentFlags(bits));
    }
    if bits & SEGMENT_ABORT != 0 && bits != SEGMENT_ABORT {
        return Err(ProtocolError::LastAndAbort);
    }
    Ok(Segment {
        number: u32::from_le_bytes(bytes_at(block, 0)),
        last: bits & SEGMENT_LAST != 0,
        abort: bits & SEGMENT_ABORT != 0,
        head_end: bits & SEGMENT_HEAD_END != 0,
        offset: u64::from_le_bytes(bytes_at(block, 8)),
        total: u64::from_le_bytes(bytes_at(block, 16)),
    })
}

fn bytes_at<const N: usize>(block: &[u8; SEGMENT_BLOCK_BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|index| block[at + index])
}

fn parse_close(grant: Grant, rest: &[u8]) -> Result<(Frame, usize), ProtocolError> {
    if grant != Grant::default() {
        return Err(ProtocolError::CloseWithGrant);
    }
    let len = HEADER_BYTES + rest.len();
    let Some(([code0, code1, text_len, reserved], text)) =
        rest.split_first_chunk::<CLOSE_BLOCK_BYTES>()
    else {
        return Err(ProtocolError::Truncated { len, need: HEADER_BYTES + CLOSE_BLOCK_BYTES });
    };
    if *reserved != 0 {
        return Err(ProtocolError::CloseReserved(*reserved));
    }
    let text_len = usize::from(*text_len);
    if text_len > CLOSE_TEXT_MAX_BYTES {
        return Err(ProtocolError::CloseTextTooLong { len: text_len, max: CLOSE_TEXT_MAX_BYTES });
    }
    let Some((text, behind)) = text.split_at_checked(text_len) else {
        let need = HEADER_BYTES + CLOSE_BLOCK_BYTES + text_len;
        return Err(ProtocolError::Truncated { len, need });
    };
    if !behind.is_empty() {
        return Err(ProtocolError::TrailingBytes { kind: Kind::Close, extra: behind.len() });
    }
    let text = std::str::from_utf8(text).map_err(|_| ProtocolError::CloseTextNotUtf8)?;
    let code = CloseCode::from_wire(u16::from_le_bytes([*code0, *code1]));
    Ok((Frame::Close(CloseReason::new(code, text)), len))
}
