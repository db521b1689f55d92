//! An answer as the kind and the body of a response.

use rpc_transport::message::outgoing::OutBuf;

use super::call::Answer;
use crate::wire::{ReplyKind, code};

/// What the response of a call with streams says of its results.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StreamTail {
    /// Items that were sent, modulo 2^32.
    pub(super) items: u32,
    /// The call has a stream of results.
    pub(super) has_results: bool,
}

#[inline]
pub(super) fn answer_body(answer: Answer<'_>) -> (ReplyKind, OutBuf) {
    match answer {
        Answer::Ok(body) => (ReplyKind::Ok, body),
        Answer::UserError(body) => (ReplyKind::UserError, body),
        Answer::Status { code, retryable, text, details } => {
            status_body(code, retryable, text, details)
        }
    }
}

#[cold]
pub(crate) fn status_body(
    code: u8,
    retryable: bool,
    text: &str,
    details: &[u8],
) -> (ReplyKind, OutBuf) {
    const UNKNOWN: u8 = 2;
    let code = if (1..=code::MAX).contains(&code) { code } else { UNKNOWN };
    let details_bytes = u32::try_from(details.len()).unwrap_or(0);
    let mut body = OutBuf::new();
    if details_bytes != 0 {
        body.extend_from_slice(details);
    }
    body.extend_from_slice(text.as_bytes());
    (ReplyKind::Status { code, retryable, details_bytes }, body)
}
