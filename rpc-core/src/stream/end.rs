//! How a stream that is read has ended.

use crate::status::Code;

/// How a stream ended: [`Streaming::end`](super::Streaming::end).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StreamEnd {
    /// The sender has sent all that there is.
    Finished,
    /// The sender ended it with a status or an error of the method's own, or the call failed: its
    /// deadline passed, say.
    Failed,
    /// The sender gave it up in the midst of it: it was dropped, or its source failed. The code is
    /// the sender's.
    Reset(Code),
    /// This end stopped reading: the stream was dropped, or an item could not be decoded.
    Stopped,
    /// The connection was lost.
    Disconnected,
}
