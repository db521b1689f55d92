//! The kinds of frames.

/// The kind of a frame. The discriminant is the byte on the wire; 0 is never valid, so that zeroed
/// memory is not a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Kind {
    /// A message, or a segment of one. Spends a data credit.
    Data = 1,
    /// A grant and nothing else. Spends an ack credit.
    Ack = 2,
    /// Blocks without a message, such as released chunks, STARVED or an ARENA block. Spends a data
    /// credit.
    Release = 3,
    /// Asks for a Pong. Spends a data credit.
    Ping = 4,
    /// Answers a Ping. Spends a data credit.
    Pong = 5,
    /// The last frame of its direction. Spends no credit: a RECV and an SQ slot are reserved for
    /// it.
    Close = 6,
    /// Bytes of the handshake of a locked connection. Spends no credit.
    Handshake = 7,
    /// The server's answer to a complete handshake. Spends a data credit.
    Unlocked = 8,
}

impl Kind {
    pub(crate) const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Data,
            2 => Self::Ack,
            3 => Self::Release,
            4 => Self::Ping,
            5 => Self::Pong,
            6 => Self::Close,
            7 => Self::Handshake,
            8 => Self::Unlocked,
            _ => return None,
        })
    }
}
