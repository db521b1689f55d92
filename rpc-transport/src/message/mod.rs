//! Messages as the link sends and delivers them: a head of bytes, and a tail of memory spans.

pub(crate) mod early;
pub mod outgoing;
pub mod part;
pub mod payload;
pub mod payload_stream;
pub mod read_error;
pub mod received;
pub mod record;
pub mod reply_slot;
pub(crate) mod sealed;
mod trusted;
