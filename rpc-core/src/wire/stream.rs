//! Frames of streams: items, and the frames that control them.
//!
//! Invariants:
//! 1. The flag RESULTS selects one of a call's two streams, so the frame's sender needs no other
//!    mark.
//! 2. All frames except items are exactly as long as their fields.

use rpc_transport::message::outgoing::OutBuf;

use super::{
    CallStreams, Frame, HEADER_BYTES, Header, HowRead, ItemHead, Kind, MAX_METADATA_BYTES, PARTS,
    SAME_TYPES, STREAM_WINDOW_BYTES, StreamWindow, WireError, WireId, answer, bare, check_no_body,
    code, header, parts, request_flag, take,
};

mod flag {
    /// The frame concerns the stream of results, not that of arguments.
    pub(super) const RESULTS: u8 = 0x01;
    /// In an opened frame: the callee has accepted the call.
    pub(super) const ACCEPTED: u8 = 0x01;
    /// In an item of results: it is the initial metadata.
    pub(super) const METADATA: u8 = 0x04;
}

pub(super) fn item_head(header: &Header, id: WireId, read: HowRead) -> ItemHead {
    ItemHead {
        id,
        results: header.flags & flag::RESULTS != 0,
        number: header.method,
        has_parts: header.flags & PARTS != 0,
        is_metadata: header.flags & flag::METADATA != 0,
        read,
    }
}

#[inline]
pub(super) fn parse_item(
    header: &Header,
    rest: &[u8],
    tail_bytes: u64,
) -> Result<(Frame, usize), WireError> {
    header.check_flags(flag::RESULTS | flag::METADATA | PARTS | SAME_TYPES)?;
    header.check_unused_in_answer(header.codec_or_status == 0)?;
    let head = item_head(header, header.call()?, header.how_read()?);
    if head.read != HowRead::Unsaid && !head.results {
        return Err(WireError::ItemFlagsConflict(header.flags));
    }
    if head.is_metadata {
        check_metadata(&head, header.flags, rest.len())?;
    }
    if head.has_parts {
        parts::check(Kind::StreamData, rest, tail_bytes)?;
    }
    Ok((Frame::Item(head), HEADER_BYTES))
}

#[cold]
fn check_metadata(head: &ItemHead, flags: u8, len: usize) -> Result<(), WireError> {
    if !head.results || head.has_parts {
        return Err(WireError::ItemFlagsConflict(flags));
    }
    match len {
        0 => Err(WireError::EmptyBlock(Kind::StreamData)),
        1..=MAX_METADATA_BYTES => Ok(()),
        _ => Err(WireError::MetadataTooLong(len)),
    }
}

/// Reads every frame about streams except items.
pub(super) fn parse_control(header: &Header, mut rest: &[u8]) -> Result<(Frame, usize), WireError> {
    let (kind, byte, number) = (header.kind, header.codec_or_status, header.method);
    let mut taken = HEADER_BYTES;
    let id = header.call()?;
    let results = header.flags & flag::RESULTS != 0;
    // The allowed flags; whether the byte and the number may be other than 0.
    let (flags, has_code, has_number) = match kind {
        Kind::StreamHalfClose => (0, false, true),
        Kind::StreamReset => (0, true, false),
        Kind::StreamCredit => (flag::RESULTS, false, true),
        Kind::StreamOpened => (flag::ACCEPTED | SAME_TYPES, false, false),
        _ => (flag::RESULTS, true, false),
    };
    header.check_flags(flags)?;
    let unused_is_zero = (has_code || byte == 0) && (has_number || number == 0);
    let mut read = HowRead::Unsaid;
    if kind == Kind::StreamOpened {
        header.check_unused_in_answer(unused_is_zero)?;
        read = header.how_read()?;
    } else {
        header.check_unused(unused_is_zero)?;
    }
    if byte > code::MAX || (kind == Kind::StreamReset && byte == 0) {
        return Err(WireError::UnknownStatus(byte));
    }
    let frame = match kind {
        Kind::StreamHalfClose => Frame::HalfClose { id, items: number },
        Kind::StreamReset => Frame::Reset { id, code: byte },
        Kind::StreamCredit => {
            let bytes = take(&mut rest, &mut taken).ok_or(WireError::StreamFrameTruncated(kind))?;
            let bytes = u64::from_le_bytes(bytes);
            if number == 0 && bytes == 0 {
                return Err(WireError::EmptyGrant);
            }
            Frame::Credit { id, results, items: number, bytes }
        }
        Kind::StreamOpened => {
            Frame::Opened { id, accepted: header.flags & flag::ACCEPTED != 0, read }
        }
        _ => Frame::Stop { id, results, code: byte },
    };
    check_no_body(kind, rest)?;
    Ok((frame, taken))
}

/// Checks a request with flags of streams.
#[cold]
pub(super) fn check_request(header: &Header) -> Result<(), WireError> {
    let flags = header.flags;
    let idle = flags & request_flag::IDLE != 0;
    let has_deadline = flags & request_flag::DEADLINE != 0;
    if (idle && !has_deadline) || flags & request_flag::NO_CANCEL != 0 || !header.streams().any() {
        return Err(WireError::RequestFlagsConflict(flags));
    }
    Ok(())
}

#[cold]
pub(super) fn request_flags(streams: CallStreams) -> u8 {
    let mut flags = 0;
    if streams.arguments {
        flags |= request_flag::ARGUMENTS;
    }
    if streams.results {
        flags |= request_flag::RESULTS;
    }
    if streams.idle_deadline {
        flags |= request_flag::IDLE;
    }
    flags
}

/// Reads the stream window of a hello.
pub(super) fn parse_window(rest: &[u8]) -> Result<StreamWindow, WireError> {
    let fields = rest.first_chunk::<STREAM_WINDOW_BYTES>().ok_or(WireError::HelloTruncated)?;
    let [i0, i1, i2, i3, b0, b1, b2, b3] = *fields;
    Ok(StreamWindow {
        items: u32::from_le_bytes([i0, i1, i2, i3]),
        bytes: u32::from_le_bytes([b0, b1, b2, b3]),
    })
}

/// Puts an item's header in front of its body.
#[inline]
pub fn prepend_item(body: &mut OutBuf, head: &ItemHead) {
    let mut flags = if head.results { flag::RESULTS } else { 0 };
    if head.has_parts {
        flags |= PARTS;
    }
    if head.is_metadata {
        flags |= flag::METADATA;
    }
    body.prepend(&answer(Kind::StreamData, flags, 0, head.number, head.id, head.read));
}

/// The end of a stream of arguments, with its number of items.
#[must_use]
pub fn half_close(id: WireId, items: u32) -> OutBuf {
    bare(header(Kind::StreamHalfClose, 0, 0, items, id))
}

/// The abnormal end of a stream of arguments.
#[must_use]
pub fn reset(id: WireId, code: u8) -> OutBuf {
    bare(header(Kind::StreamReset, 0, code, 0, id))
}

/// A grant of items and bytes.
#[must_use]
pub fn credit(id: WireId, results: bool, items: u32, bytes: u64) -> OutBuf {
    let flags = if results { flag::RESULTS } else { 0 };
    let mut frame = OutBuf::new();
    frame.extend_from_slice(&bytes.to_le_bytes());
    frame.prepend(&header(Kind::StreamCredit, flags, 0, items, id));
    frame
}

/// The request has arrived, or the call is accepted.
#[must_use]
pub fn opened(id: WireId, accepted: bool, read: HowRead) -> OutBuf {
    let flags = if accepted { flag::ACCEPTED } else { 0 };
    bare(answer(Kind::StreamOpened, flags, 0, 0, id, read))
}

/// No more items of the stream are accepted.
#[must_use]
pub fn stop(id: WireId, results: bool, code: u8) -> OutBuf {
    let flags = if results { flag::RESULTS } else { 0 };
    bare(header(Kind::StreamStop, flags, code, 0, id))
}
