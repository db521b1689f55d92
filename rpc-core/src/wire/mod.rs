//! The session's bytes: a 16-byte header, optional blocks behind flags, then the body.
//!
//! Owns encoding and parsing of every session frame (their contents are in `types`);
//! `docs/wire-format.md` has the tables. The effect of a frame on a call is decided in `session`.
//!
//! Invariants:
//! 1. All integers are little-endian; blocks follow the header in the order of their flag bits.
//! 2. [`parse`] reads no byte outside the message, allocates nothing and cannot panic.
//! 3. Unknown kinds, unknown flags and non-zero reserved fields are refused, each with its own
//!    [`WireError`]: an extension needs a feature bit that both hellos carried. Only a hello may
//!    be longer than in this version.
//! 4. Generation 0 identifies no call.
//! 5. Every frame except a hello has one encoding: encoding the result of [`parse`] yields the same
//!    bytes.

mod error;
mod head;
mod parts;
mod plain;
pub(crate) mod refusal;
mod stream;
mod types;

use rpc_transport::message::outgoing::OutBuf;

pub use self::error::WireError;
use self::head::{Header, SAME_TYPES, answer, header};
pub use self::parts::{Part, Parts, prepend_parts};
pub(crate) use self::plain::Words;
pub use self::plain::{plain_request, plain_response};
pub use self::stream::{credit, half_close, opened, prepend_item, reset, stop};
pub use self::types::{
    Beginning, CallStreams, Frame, Hello, HowRead, ItemHead, Kind, ReplyKind, RequestHead,
    ResponseHead, StreamWindow, WireId,
};

/// Size of the header that every frame starts with, bytes.
pub const HEADER_BYTES: usize = 16;
/// Size of a hello's body without streams, bytes.
pub const HELLO_BODY_BYTES: usize = 16;
/// Size of the stream window that follows in a hello with the feature, bytes.
const STREAM_WINDOW_BYTES: usize = 8;
/// Feature bit of a hello: its sender supports streams, and its stream window follows.
pub const FEATURE_STREAMS: u64 = 1;
/// Feature bit of a hello: its sender supports metadata in responses.
pub const FEATURE_REPLY_METADATA: u64 = 2;
/// Feature bit of a hello: its sender supports metadata in front of the items of results.
pub const FEATURE_INITIAL_METADATA: u64 = 4;
/// Feature bit of a hello: its sender says who it is, in credentials that follow.
pub const FEATURE_CREDENTIALS: u64 = 8;
/// Feature bit of a hello: its sender reads arguments by its peer's schema, if the types of a
/// method differ.
pub const FEATURE_RESOLUTION: u64 = 16;
/// Longest credentials, bytes.
pub const MAX_CREDENTIALS_BYTES: usize = 8192;
/// Longest metadata block, bytes.
pub const MAX_METADATA_BYTES: usize = u16::MAX as usize;
/// Maximum number of parts of a message. Further byte strings stay in the body.
pub const MAX_PARTS: u16 = 4096;
/// The only session version that this code supports.
pub const VERSION: u16 = 1;

/// The status codes that the session itself uses (gRPC's numbers).
pub mod code {
    /// The call was cancelled.
    pub const CANCELLED: u8 = 1;
    /// The deadline passed before the handler replied.
    pub const DEADLINE_EXCEEDED: u8 = 4;
    /// More calls in flight than were announced.
    pub const RESOURCE_EXHAUSTED: u8 = 8;
    /// The signature was not checked: the call carries none, and none was accepted before.
    pub const FAILED_PRECONDITION: u8 = 9;
    pub const UNIMPLEMENTED: u8 = 12;
    /// The handler ended without a reply.
    pub const INTERNAL: u8 = 13;
    /// The highest code of the seventeen.
    pub const MAX: u8 = 16;
}

mod request_flag {
    pub(super) const DEADLINE: u8 = 0x01;
    pub(super) const SIGNATURE: u8 = 0x02;
    pub(super) const METADATA: u8 = 0x04;
    pub(super) const NO_CANCEL: u8 = 0x08;
    pub(super) const PARTS: u8 = 0x10;
    pub(super) const ARGUMENTS: u8 = 0x20;
    pub(super) const RESULTS: u8 = 0x40;
    pub(super) const IDLE: u8 = 0x80;
    /// Flags of calls with streams, which cannot be `no_cancel`.
    pub(super) const STREAMS: u8 = ARGUMENTS | RESULTS | IDLE;
}

mod response_flag {
    pub(super) const USER_ERROR: u8 = 0x01;
    pub(super) const RETRYABLE: u8 = 0x02;
    pub(super) const DETAILS: u8 = 0x04;
    pub(super) const PARTS: u8 = 0x10;
    pub(super) const ITEMS: u8 = 0x20;
    pub(super) const RESET: u8 = 0x40;
    pub(super) const METADATA: u8 = 0x80;
}

/// Requests and responses use the same flag for PARTS.
const PARTS: u8 = request_flag::PARTS;
const _: () = assert!(PARTS == response_flag::PARTS);

mod go_away_flag {
    pub(super) const DRAINED: u8 = 0x01;
}

/// Reads the head of a frame that has no tail: see [`parse_with_tail`].
///
/// # Errors
/// The first rule that the frame breaks.
pub fn parse(bytes: &[u8]) -> Result<(Frame, usize), WireError> {
    parse_with_tail(bytes, 0)
}

/// Reads the head of a frame with a tail of `tail_bytes`. Returns it with its length: after it
/// follow metadata, PARTS block and body of a request, or PARTS block and body of a response.
///
/// # Errors
/// The first rule that the frame breaks.
pub fn parse_with_tail(bytes: &[u8], tail_bytes: u64) -> Result<(Frame, usize), WireError> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Err(WireError::HeaderTruncated(bytes.len()));
    };
    let Some(kind) = Kind::from_byte(header[0]) else {
        return Err(WireError::UnknownKind(header[0]));
    };
    let header = Header::new(kind, header);
    let may_have_tail = matches!(kind, Kind::Request | Kind::Response | Kind::StreamData);
    if tail_bytes != 0 && !(may_have_tail && header.flags & PARTS != 0) {
        return Err(WireError::UnexpectedTail(kind));
    }
    match kind {
        Kind::Request => parse_request(&header, rest, tail_bytes),
        Kind::Response => parse_response(&header, rest, tail_bytes),
        Kind::Cancel => parse_bare(&header, rest).map(|id| (Frame::Cancel(id), HEADER_BYTES)),
        Kind::Cancelled => parse_bare(&header, rest).map(|id| (Frame::Cancelled(id), HEADER_BYTES)),
        Kind::Hello => parse_hello(&header, rest),
        Kind::GoAway => {
            header.check_flags(go_away_flag::DRAINED)?;
            header.check_unused(header.names_nothing())?;
            check_no_body(header.kind, rest)?;
            let drained = header.flags & go_away_flag::DRAINED != 0;
            Ok((Frame::GoAway { drained }, HEADER_BYTES))
        }
        Kind::StreamData => stream::parse_item(&header, rest, tail_bytes),
        Kind::StreamHalfClose
        | Kind::StreamReset
        | Kind::StreamCredit
        | Kind::StreamOpened
        | Kind::StreamStop => stream::parse_control(&header, rest),
    }
}

/// Reads the fixed header of a long frame; only requests, responses and items are ever long.
///
/// # Errors
/// The first rule that it breaks.
pub fn parse_beginning(bytes: &[u8]) -> Result<Beginning, WireError> {
    let Some((header, _)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Err(WireError::HeaderTruncated(bytes.len()));
    };
    let Some(kind) = Kind::from_byte(header[0]) else {
        return Err(WireError::UnknownKind(header[0]));
    };
    let header = Header::new(kind, header);
    let id = header.call()?;
    match kind {
        Kind::Request => Ok(Beginning::Request(RequestHead {
            id,
            method: header.method,
            codec: header.codec_or_status,
            no_cancel: header.flags & request_flag::NO_CANCEL != 0,
            remaining_micros: None,
            signature: None,
            has_parts: header.flags & PARTS != 0,
            streams: header.streams(),
        })),
        Kind::Response => Ok(Beginning::Response(id)),
        Kind::StreamData => Ok(Beginning::Item(stream::item_head(&header, id, header.how_read()?))),
        other => Err(WireError::UnexpectedTail(other)),
    }
}

#[inline]
fn parse_request(
    header: &Header,
    mut rest: &[u8],
    tail_bytes: u64,
) -> Result<(Frame, usize), WireError> {
    header.check_unused(true)?;
    if header.flags & request_flag::STREAMS != 0 {
        stream::check_request(header)?;
    }
    let mut head = RequestHead {
        id: header.call()?,
        method: header.method,
        codec: header.codec_or_status,
        no_cancel: header.flags & request_flag::NO_CANCEL != 0,
        remaining_micros: None,
        signature: None,
        has_parts: header.flags & PARTS != 0,
        streams: header.streams(),
    };
    let mut taken = HEADER_BYTES;
    let mut metadata_bytes = 0;
    if header.flags & request_flag::DEADLINE != 0 {
        let micros = take(&mut rest, &mut taken).ok_or(WireError::DeadlineTruncated)?;
        head.remaining_micros = Some(u64::from_le_bytes(micros));
    }
    if header.flags & request_flag::SIGNATURE != 0 {
        let signature = take(&mut rest, &mut taken).ok_or(WireError::SignatureTruncated)?;
        head.signature = Some(u64::from_le_bytes(signature));
    }
    if header.flags & request_flag::METADATA != 0 {
        let len = take(&mut rest, &mut taken).ok_or(WireError::MetadataTruncated)?;
        metadata_bytes = usize::from(u16::from_le_bytes(len));
        if metadata_bytes > rest.len() {
            return Err(WireError::MetadataTruncated);
        }
        if metadata_bytes == 0 {
            return Err(WireError::EmptyBlock(Kind::Request));
        }
    }
    if head.has_parts {
        parts::check(Kind::Request, &rest[metadata_bytes..], tail_bytes)?;
    }
    Ok((Frame::Request { head, metadata_bytes }, taken))
}

#[inline]
fn parse_response(
    header: &Header,
    mut rest: &[u8],
    tail_bytes: u64,
) -> Result<(Frame, usize), WireError> {
    let (flags, code) = (header.flags, header.codec_or_status);
    // The number of items is in the field of the method, and is present only if it is not 0.
    header.check_unused_in_answer((flags & response_flag::ITEMS != 0) == (header.method != 0))?;
    let id = header.call()?;
    let read = header.how_read()?;
    let conflict = match code {
        0 => flags & (response_flag::RETRYABLE | response_flag::DETAILS | response_flag::RESET),
        1..=code::MAX => flags & (response_flag::USER_ERROR | PARTS),
        _ => return Err(WireError::UnknownStatus(code)),
    };
    if conflict != 0 {
        return Err(WireError::ResponseFlagsConflict { flags, code });
    }
    let mut taken = HEADER_BYTES;
    let kind = match code {
        0 if flags & response_flag::USER_ERROR != 0 => ReplyKind::UserError,
        0 => ReplyKind::Ok,
        _ => parse_status(flags, code, &mut rest, &mut taken)?,
    };
    let mut metadata_bytes = 0;
    if flags & response_flag::METADATA != 0 {
        metadata_bytes = parse_reply_metadata(&mut rest, &mut taken)?;
    }
    let body = &rest[usize::from(metadata_bytes)..];
    if let ReplyKind::Status { details_bytes, .. } = kind {
        check_status(body, details_bytes)?;
    }
    let has_parts = flags & PARTS != 0;
    if has_parts {
        parts::check(Kind::Response, body, tail_bytes)?;
    }
    let (items, is_reset) = (header.method, flags & response_flag::RESET != 0);
    let head = ResponseHead { id, kind, read, has_parts, items, is_reset, metadata_bytes };
    Ok((Frame::Response(head), taken))
}

#[cold]
fn parse_status(
    flags: u8,
    code: u8,
    rest: &mut &[u8],
    taken: &mut usize,
) -> Result<ReplyKind, WireError> {
    let mut details_bytes = 0;
    if flags & response_flag::DETAILS != 0 {
        let len = take(rest, taken).ok_or(WireError::DetailsTruncated)?;
        details_bytes = u32::from_le_bytes(len);
        if details_bytes == 0 {
            return Err(WireError::EmptyBlock(Kind::Response));
        }
    }
    Ok(ReplyKind::Status { code, retryable: flags & response_flag::RETRYABLE != 0, details_bytes })
}

/// Details and text of a status.
#[cold]
fn check_status(body: &[u8], details_bytes: u32) -> Result<(), WireError> {
    let split = usize::try_from(details_bytes).ok();
    let text = split.and_then(|at| body.get(at..)).ok_or(WireError::DetailsTruncated)?;
    std::str::from_utf8(text).map(drop).map_err(|_| WireError::StatusTextNotUtf8)
}

#[cold]
fn parse_reply_metadata(rest: &mut &[u8], taken: &mut usize) -> Result<u16, WireError> {
    let len = u16::from_le_bytes(take(rest, taken).ok_or(WireError::MetadataTruncated)?);
    if usize::from(len) > rest.len() {
        return Err(WireError::MetadataTruncated);
    }
    if len == 0 {
        return Err(WireError::EmptyBlock(Kind::Response));
    }
    Ok(len)
}

/// Cancel and cancelled frames: only a header with the id of a call.
fn parse_bare(header: &Header, rest: &[u8]) -> Result<WireId, WireError> {
    header.check_flags(0)?;
    header.check_unused(header.method == 0 && header.codec_or_status == 0)?;
    check_no_body(header.kind, rest)?;
    header.call()
}

fn parse_hello(header: &Header, rest: &[u8]) -> Result<(Frame, usize), WireError> {
    header.check_flags(0)?;
    header.check_unused(header.names_nothing())?;
    let Some(body) = rest.first_chunk::<HELLO_BODY_BYTES>() else {
        return Err(WireError::HelloTruncated);
    };
    let [a0, a1, b0, b1, c0, c1, c2, c3, f0, f1, f2, f3, f4, f5, f6, f7] = *body;
    let features = u64::from_le_bytes([f0, f1, f2, f3, f4, f5, f6, f7]);
    let hello = Hello {
        min_version: u16::from_le_bytes([a0, a1]),
        max_version: u16::from_le_bytes([b0, b1]),
        max_calls: u32::from_le_bytes([c0, c1, c2, c3]),
        features,
        stream_window: match features & FEATURE_STREAMS {
            0 => None,
            _ => Some(stream::parse_window(&rest[HELLO_BODY_BYTES..])?),
        },
    };
    if hello.min_version > hello.max_version {
        let (min, max) = (hello.min_version, hello.max_version);
        return Err(WireError::HelloVersionRange { min, max });
    }
    // A longer hello comes from a later version: the extra bytes are ignored (invariant 3).
    Ok((Frame::Hello(hello), HEADER_BYTES + rest.len()))
}

/// The credentials of a hello, whose whole frame this is; `None` if it has none.
///
/// # Errors
/// They are cut short, or too long.
pub fn credentials<'a>(hello: &Hello, frame: &'a [u8]) -> Result<Option<&'a [u8]>, WireError> {
    if hello.features & FEATURE_CREDENTIALS == 0 {
        return Ok(None);
    }
    let window = if hello.stream_window.is_some() { STREAM_WINDOW_BYTES } else { 0 };
    let rest = frame.get(HEADER_BYTES + HELLO_BODY_BYTES + window..).unwrap_or_default();
    let (len, rest) = rest.split_first_chunk().ok_or(WireError::HelloTruncated)?;
    let len = usize::from(u16::from_le_bytes(*len));
    if len > MAX_CREDENTIALS_BYTES {
        return Err(WireError::CredentialsTooLong(len));
    }
    rest.get(..len).map(Some).ok_or(WireError::HelloTruncated)
}

/// Appends credentials to a hello that has the bit; those that are too long are cut.
pub fn append_credentials(hello: &mut OutBuf, credentials: &[u8]) {
    let credentials = &credentials[..credentials.len().min(MAX_CREDENTIALS_BYTES)];
    let len = u16::try_from(credentials.len()).unwrap_or(u16::MAX);
    hello.extend_from_slice(&len.to_le_bytes());
    hello.extend_from_slice(credentials);
}

fn check_no_body(kind: Kind, rest: &[u8]) -> Result<(), WireError> {
    match rest.len() {
        0 => Ok(()),
        count => Err(WireError::TrailingBytes { kind, count }),
    }
}

#[inline]
fn take<const N: usize>(rest: &mut &[u8], taken: &mut usize) -> Option<[u8; N]> {
    let (block, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    *taken += N;
    Some(*block)
}

/// Puts the METADATA block in front of a request's PARTS block and body. To be called before
/// [`prepend_request`], with the matching flag there. The caller has checked
/// [`MAX_METADATA_BYTES`]; bytes beyond it are cut off.
pub fn prepend_metadata(body: &mut OutBuf, metadata: &[u8]) {
    let len = u16::try_from(metadata.len()).unwrap_or(u16::MAX);
    body.prepend(&metadata[..usize::from(len)]);
    body.prepend(&len.to_le_bytes());
}

/// Puts a request's header and fixed blocks in front of its metadata block and body.
#[inline]
pub fn prepend_request(body: &mut OutBuf, head: &RequestHead, has_metadata: bool) {
    let mut flags = 0;
    if has_metadata {
        flags |= request_flag::METADATA;
    }
    if head.no_cancel {
        flags |= request_flag::NO_CANCEL;
    }
    if head.has_parts {
        flags |= PARTS;
    }
    if let Some(signature) = head.signature {
        flags |= request_flag::SIGNATURE;
        body.prepend(&signature.to_le_bytes());
    }
    if let Some(micros) = head.remaining_micros {
        flags |= request_flag::DEADLINE;
        body.prepend(&micros.to_le_bytes());
    }
    if head.streams != CallStreams::NONE {
        flags |= stream::request_flags(head.streams);
    }
    body.prepend(&header(Kind::Request, flags, head.codec, head.method, head.id));
}

/// Puts a response's header in front of its metadata, PARTS block and body. For a status with
/// details the body is the details, then the text.
#[inline(always)]
pub fn prepend_response(body: &mut OutBuf, head: &ResponseHead) {
    let mut flags = 0;
    if head.has_parts {
        flags |= PARTS;
    }
    let mut status = 0;
    if head.metadata_bytes != 0 {
        flags |= response_flag::METADATA;
        body.prepend(&head.metadata_bytes.to_le_bytes());
    }
    match head.kind {
        ReplyKind::Ok => {}
        ReplyKind::UserError => flags |= response_flag::USER_ERROR,
        ReplyKind::Status { code, retryable, details_bytes } => {
            status = code;
            if retryable {
                flags |= response_flag::RETRYABLE;
            }
            if details_bytes != 0 {
                flags |= response_flag::DETAILS;
                body.prepend(&details_bytes.to_le_bytes());
            }
        }
    }
    if head.items != 0 {
        flags |= response_flag::ITEMS;
    }
    if head.is_reset {
        flags |= response_flag::RESET;
    }
    body.prepend(&answer(Kind::Response, flags, status, head.items, head.id, head.read));
}

/// A hello frame.
#[must_use]
pub fn hello(hello: &Hello) -> OutBuf {
    let mut frame = OutBuf::new();
    frame.extend_from_slice(&header(Kind::Hello, 0, 0, 0, WireId::NONE));
    frame.extend_from_slice(&hello.min_version.to_le_bytes());
    frame.extend_from_slice(&hello.max_version.to_le_bytes());
    frame.extend_from_slice(&hello.max_calls.to_le_bytes());
    let streams = if hello.stream_window.is_some() { FEATURE_STREAMS } else { 0 };
    frame.extend_from_slice(&(hello.features & !FEATURE_STREAMS | streams).to_le_bytes());
    if let Some(StreamWindow { items, bytes }) = hello.stream_window {
        frame.extend_from_slice(&items.to_le_bytes());
        frame.extend_from_slice(&bytes.to_le_bytes());
    }
    frame
}

/// A cancel frame.
#[must_use]
pub fn cancel(id: WireId) -> OutBuf {
    bare(header(Kind::Cancel, 0, 0, 0, id))
}

/// A cancelled frame.
#[must_use]
pub fn cancelled(id: WireId) -> OutBuf {
    bare(header(Kind::Cancelled, 0, 0, 0, id))
}

/// A go-away frame, or (`drained`) the answer to one.
#[must_use]
pub fn go_away(drained: bool) -> OutBuf {
    let flags = if drained { go_away_flag::DRAINED } else { 0 };
    bare(header(Kind::GoAway, flags, 0, 0, WireId::NONE))
}

fn bare(header: [u8; HEADER_BYTES]) -> OutBuf {
    let mut frame = OutBuf::new();
    frame.prepend(&header);
    frame
}
