//! Peers of the software device and of the link that write the bytes themselves.
//!
//! | module | idea |
//! |---|---|
//! | `tcp` | set-up messages and frames on a byte stream |
//! | `shm` | set-up messages with files, and a ring in memory that both sides map |
//! | `frames` | frames of the link and the session, over any wire |
//!
//! The numbers are repeated here on purpose (`docs/wire-format.md`).

pub mod frames;
pub mod shm;
pub mod tcp;

/// Operations and flags of a packet, on either wire.
pub mod op {
    /// Part of a SEND.
    pub const SEND: u8 = 1;
    /// Part of a WRITE through the target's engine.
    pub const WRITE: u8 = 2;
    /// A WRITE_WITH_IMM whose bytes have already been written.
    pub const PLACED: u8 = 3;
    /// Requests bytes.
    pub const READ_REQUEST: u8 = 4;
    /// Carries the requested bytes.
    pub const READ_RESPONSE: u8 = 5;
    /// Requests a region's file.
    pub const MAP_REQUEST: u8 = 6;
    /// Reports that the file has been passed.
    pub const MAP_ANSWER: u8 = 7;
    /// Carries nothing but the acknowledgement.
    pub const ACK: u8 = 8;
    /// Refuses the packet after the acknowledged ones.
    pub const NAK: u8 = 9;
    /// Carries nothing: asks for an acknowledgement.
    pub const PROBE: u8 = 10;
    /// First packet of its message.
    pub const FIRST: u8 = 1;
    /// Last packet of its message.
    pub const LAST: u8 = 2;
    /// Both.
    pub const WHOLE: u8 = FIRST | LAST;
    /// Requests an acknowledgement.
    pub const WANTS_ACK: u8 = 8;
}

/// Kinds of set-up messages, on either wire.
pub mod kind {
    /// Asks for a connection.
    pub const REQUEST: u8 = 1;
    /// Accepts.
    pub const REPLY: u8 = 2;
    /// The device refuses; a text follows.
    pub const REFUSE: u8 = 4;
    /// Asks a question before a connection (tcp).
    pub const PROBE: u8 = 5;
    /// Answers that question.
    pub const ANSWER: u8 = 6;
}

/// The extension that names memory of the target.
#[must_use]
pub fn span(address: u64, rkey: u32, aux: u32, len: u64) -> Vec<u8> {
    let mut bytes = address.to_le_bytes().to_vec();
    bytes.extend(rkey.to_le_bytes());
    bytes.extend(aux.to_le_bytes());
    bytes.extend(len.to_le_bytes());
    bytes
}
