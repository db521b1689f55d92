//! What the link answers: the results and errors of its methods, and what it hands back.

use std::sync::Arc;
use std::time::Duration;

use crate::message::outgoing::OutBuf;
use crate::message::received::Message;
use crate::message::reply_slot::{PeerSlot, SlotOffer};
use crate::protocol::frame::CloseReason;

/// The result of revoking a message. `M` is the message, or `()` for a caller that must not hold
/// it.
#[derive(Debug)]
pub enum Revoked<M = OutBuf> {
    /// Nothing of it was sent; the message is returned.
    Whole(M),
    /// A part was sent and the rest will not be. The peer's link drops that part and never delivers
    /// the message.
    Aborted,
    /// The peer's link delivers it, or already has: there its tail is a stream, which ends early.
    Begun,
    /// All of it was sent, or no such message was submitted.
    TooLate,
}

impl<M> Revoked<M> {
    /// The same result without the message, which is passed to `keep`.
    pub fn without_message(self, keep: impl FnOnce(M)) -> Revoked<()> {
        match self {
            Self::Whole(message) => {
                keep(message);
                Revoked::Whole(())
            }
            Self::Aborted => Revoked::Aborted,
            Self::Begun => Revoked::Begun,
            Self::TooLate => Revoked::TooLate,
        }
    }
}

/// Whether the reader of a large message will copy its tail out, given its head: see
/// [`Link::on_frame_with`](super::Link::on_frame_with).
pub type CopiesTail<'a> = &'a dyn Fn(&[u8]) -> bool;

/// Something the link no longer needs. Drop it outside of any lock: its memory may be the user's.
#[derive(Debug)]
pub enum Freed {
    /// Memory of a reply slot that is free again.
    Slot(SlotOffer),
    /// A message with a tail that was sent, abandoned or refused.
    Message(Arc<OutBuf>),
}

/// The result of a received frame.
#[derive(Debug)]
#[must_use]
#[non_exhaustive]
pub enum Inbound {
    /// Nothing for the session.
    None,
    /// The frame is a whole message.
    Message {
        /// Where it begins in the frame, behind the header.
        payload_at: usize,
        /// Memory that its sender offers for the answer.
        slot: Option<PeerSlot>,
    },
    /// A message put together from segments.
    Assembled(Message),
    /// The peer sent Close; any further frame from it is an error.
    Closed(CloseReason),
}

/// Why a message was not queued. The link itself stays usable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The message is longer than the peer accepts.
    #[error("message of {len} bytes exceeds the peer's max_message_bytes = {max}")]
    TooLarge {
        /// Its length, bytes.
        len: u64,
        /// The peer's limit, bytes.
        max: u64,
    },
    /// The link is closed or closing.
    #[error("the link is closed")]
    Closed,
}

/// Why this end ends the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The peer did not answer a Ping in time.
    #[error("the peer did not answer a ping within {0:?}")]
    PingTimeout(Duration),
}
