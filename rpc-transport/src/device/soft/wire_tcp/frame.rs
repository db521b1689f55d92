//! The bytes of a frame on a tcp wire, as far as they have arrived.
//!
//! ```text
//! frame: ack u32 | head u32 (op, flags, body length u16) | extension | payload
//! ```
//! `ack` is modulo 2^32.

use crate::device::soft::landing::{Landing, Refusal};
use crate::device::soft::packet::{Extension, Flags, Head, MAX_EXTENSION_BYTES, Op};

/// Longest body of a frame, bytes.
pub(in crate::device::soft) const MAX_BODY_BYTES: usize = 60 * 1024 + MAX_EXTENSION_BYTES;
/// Acknowledgement and head.
pub(super) const HEAD_BYTES: usize = 8;
// A body's length is 16 bits.
const _: () = assert!(MAX_BODY_BYTES <= u16::MAX as usize);

/// The input that is being received.
#[derive(Debug)]
pub(super) enum Inbound {
    /// A frame's head and extension, as far as they have arrived.
    Head { bytes: [u8; HEAD_BYTES + MAX_EXTENSION_BYTES], have: usize },
    /// A frame's payload.
    Body { head: Head, extension: Extension, landing: Landing, left: usize },
    /// Nothing: input is discarded.
    Closed,
}

impl Inbound {
    pub(super) const START: Self =
        Self::Head { bytes: [0; HEAD_BYTES + MAX_EXTENSION_BYTES], have: 0 };
}

/// Acknowledgement, head and extension of a frame, and their length. The caller has checked the
/// length of the body.
pub(super) fn encode_head(
    accepted: u64,
    op: Op,
    flags: Flags,
    extension: Extension,
    payload: usize,
) -> ([u8; HEAD_BYTES + MAX_EXTENSION_BYTES], usize) {
    let (extension, extension_bytes) = extension.encode();
    let body_bytes = u16::try_from(extension_bytes + payload).unwrap_or(u16::MAX);
    #[allow(clippy::cast_possible_truncation, reason = "modulo 2^32")]
    let ack = (accepted as u32).to_le_bytes();
    let head = Head { op, flags, body_bytes }.encode().to_le_bytes();
    let mut bytes = [0; HEAD_BYTES + MAX_EXTENSION_BYTES];
    bytes[..4].copy_from_slice(&ack);
    bytes[4..8].copy_from_slice(&head);
    bytes[8..].copy_from_slice(&extension);
    (bytes, HEAD_BYTES + extension_bytes)
}

/// Copies the missing part of a frame's head and extension. Returns how many bytes it used.
pub(super) fn fill_head(
    head: &mut [u8; HEAD_BYTES + MAX_EXTENSION_BYTES],
    have: &mut usize,
    bytes: &[u8],
) -> Result<usize, Refusal> {
    let end = match *have {
        0..HEAD_BYTES => HEAD_BYTES,
        _ => HEAD_BYTES + decode_head(head)?.1.extension_bytes(),
    };
    let used = bytes.len().min(end - *have);
    head[*have..*have + used].copy_from_slice(&bytes[..used]);
    *have += used;
    Ok(used)
}

/// Acknowledgement and head of a frame.
pub(super) fn decode_head(
    bytes: &[u8; HEAD_BYTES + MAX_EXTENSION_BYTES],
) -> Result<(u32, Head), Refusal> {
    let ack = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let word = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    match Head::decode(word) {
        Some(head) if usize::from(head.body_bytes) <= MAX_BODY_BYTES => Ok((ack, head)),
        _ => Err(Refusal::Protocol),
    }
}
