//! Fast path for plain frames: headers without flags.
//!
//! Owns no rule: for the frames that it reads, the result is that of [`parse`](super::parse), to
//! which all other frames are left.

use super::{
    CallStreams, HEADER_BYTES, HowRead, Kind, ReplyKind, RequestHead, ResponseHead, WireId,
};

/// The first words of a frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Words {
    low: u64,
    id: WireId,
}

impl Words {
    /// Splits the header of a frame into its first eight bytes and the id.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the id's halves are 32 bits each")]
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        let &[l0, l1, l2, l3, l4, l5, l6, l7, h0, h1, h2, h3, h4, h5, h6, h7] =
            bytes.first_chunk::<HEADER_BYTES>()?;
        let low = u64::from_le_bytes([l0, l1, l2, l3, l4, l5, l6, l7]);
        let id = u64::from_le_bytes([h0, h1, h2, h3, h4, h5, h6, h7]);
        Some(Self { low, id: WireId { slot: id as u32, generation: (id >> 32) as u32 } })
    }

    /// The head of a plain response; `None` for others.
    #[inline]
    pub(crate) fn response(self) -> Option<ResponseHead> {
        let plain = self.low == Kind::Response as u64 && self.id.generation != 0;
        plain.then_some(ResponseHead {
            id: self.id,
            kind: ReplyKind::Ok,
            read: HowRead::Unsaid,
            has_parts: false,
            items: 0,
            is_reset: false,
            metadata_bytes: 0,
        })
    }

    /// The head of a plain request; `None` for others.
    #[inline]
    pub(crate) fn request(self) -> Option<RequestHead> {
        /// Kind, flags and reserved bits.
        const FIXED: u64 = u64::from_le_bytes([0xff, 0xff, 0, 0xff, 0, 0, 0, 0]);
        let [_, _, codec, _, m0, m1, m2, m3] = self.low.to_le_bytes();
        let plain = self.low & FIXED == Kind::Request as u64 && self.id.generation != 0;
        plain.then_some(RequestHead {
            id: self.id,
            method: u32::from_le_bytes([m0, m1, m2, m3]),
            codec,
            no_cancel: false,
            remaining_micros: None,
            signature: None,
            has_parts: false,
            streams: CallStreams::NONE,
        })
    }
}

/// Reads a response with a result and no flags, the common case. Returns the same as
/// [`parse`](super::parse) at less cost. The body follows the header.
#[inline]
#[must_use]
pub fn plain_response(bytes: &[u8]) -> Option<ResponseHead> {
    Words::of(bytes)?.response()
}

/// Reads a request without flags, and so without blocks. Returns the same as
/// [`parse`](super::parse) at less cost. The body follows the header.
#[inline]
#[must_use]
pub fn plain_request(bytes: &[u8]) -> Option<RequestHead> {
    Words::of(bytes)?.request()
}
