//! Fast path for plain frames: headers without flags.
//!
//! Owns no rule: a frame read here gives the same as [`parse`](super::parse), and every other frame
//! is left to it.

use super::{CallStreams, Kind, ReplyKind, RequestHead, ResponseHead, WireId};

/// Reads a response that carries a result and no flags, as nearly all do. Gives the same as
/// [`parse`](super::parse) at less cost. The body starts behind the header.
#[inline]
#[must_use]
pub fn plain_response(bytes: &[u8]) -> Option<ResponseHead> {
    let (low, id) = words(bytes)?;
    let plain = low == Kind::Response as u64 && id.generation != 0;
    plain.then_some(ResponseHead {
        id,
        kind: ReplyKind::Ok,
        signature_accepted: false,
        has_parts: false,
        items: 0,
        is_reset: false,
        metadata_bytes: 0,
    })
}

/// Reads a request without flags, and so without blocks. Gives the same as
/// [`parse`](super::parse) at less cost. The body starts behind the header.
#[inline]
#[must_use]
pub fn plain_request(bytes: &[u8]) -> Option<RequestHead> {
    let (low, id) = words(bytes)?;
    let [kind, flags, codec, reserved, m0, m1, m2, m3] = low.to_le_bytes();
    let plain = kind == Kind::Request as u8 && flags | reserved == 0 && id.generation != 0;
    plain.then_some(RequestHead {
        id,
        method: u32::from_le_bytes([m0, m1, m2, m3]),
        codec,
        no_cancel: false,
        remaining_micros: None,
        signature: None,
        has_parts: false,
        streams: CallStreams::NONE,
    })
}

/// Splits the header into its first eight bytes and the id.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the id's halves are 32 bits each")]
fn words(bytes: &[u8]) -> Option<(u64, WireId)> {
    let (low, rest) = bytes.split_first_chunk::<8>()?;
    let id = u64::from_le_bytes(*rest.first_chunk::<8>()?);
    let id = WireId { slot: id as u32, generation: (id >> 32) as u32 };
    Some((u64::from_le_bytes(*low), id))
}
