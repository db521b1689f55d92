//! Messages as the link takes and gives them: a head of bytes, and a tail of spans of memory.

pub mod outgoing;
pub mod part;
pub mod payload;
pub mod payload_stream;
pub mod received;
pub mod reply_slot;
mod trusted;
