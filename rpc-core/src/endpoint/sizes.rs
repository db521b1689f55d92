//! Whether a message fits the peer's limits, and the texts for one that does not.

use super::RpcEndpoint;
use crate::wire;

/// Longest header of a request, bytes: fixed header, deadline, signature, length of the metadata.
const REQUEST_HEADER_BYTES: u64 = wire::HEADER_BYTES as u64 + 8 + 8 + 2;
/// Longest header of a response, bytes: fixed header, lengths of a status's details and of the
/// metadata.
const RESPONSE_HEADER_BYTES: u64 = wire::HEADER_BYTES as u64 + 4 + 2;

impl RpcEndpoint {
    /// Why a request with this many bytes of metadata and arguments is too large for this peer;
    /// `None` if it is not.
    pub(super) fn request_too_large(&self, metadata: usize, body: u64) -> Option<String> {
        if body.saturating_add(REQUEST_HEADER_BYTES + metadata as u64) <= self.max_message_bytes {
            return None;
        }
        let takes = self.max_message_bytes;
        Some(too_large(body, takes, "server"))
    }

    /// Why a reply of `body` bytes is too large for this peer; `None` if it is not. The text is
    /// sent to the client.
    #[cold]
    pub(super) fn reply_too_large(&self, body: u64) -> Option<String> {
        if body.saturating_add(RESPONSE_HEADER_BYTES) <= self.max_message_bytes {
            return None;
        }
        Some(too_large(body, self.max_message_bytes, "client"))
    }

    /// Fast path: whether a reply of `body` bytes can be sent without checking size and queue.
    #[inline]
    pub(super) fn reply_passes(&self, body: u64) -> bool {
        self.quota.passes(body.saturating_add(RESPONSE_HEADER_BYTES))
    }

    /// Fast path: whether a request can be sent without checking size and queue.
    #[inline]
    pub(super) fn request_passes(&self, metadata: usize, body: u64) -> bool {
        self.quota.passes(body.saturating_add(REQUEST_HEADER_BYTES + metadata as u64))
    }

    /// Longest body of a reply to this peer, bytes.
    pub(super) fn reply_room(&self) -> usize {
        let room = self.max_message_bytes.saturating_sub(RESPONSE_HEADER_BYTES);
        usize::try_from(room).unwrap_or(usize::MAX)
    }
}

/// The text for a message that is too large. `end` is the side that would receive it.
#[cold]
fn too_large(body: u64, takes: u64, end: &str) -> String {
    format!(
        "of {body} bytes exceeds the {takes} bytes that the {end} accepts: raise \
         `max_message_bytes` in the `LinkConfig` of the {end}"
    )
}
