//! How a stream that is read has ended.

use crate::status::Code;

/// How a stream ended: [`Streaming::end`](super::Streaming::end).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StreamEnd {
    /// The sender has sent all items.
    Finished,
    /// The sender ended it with a status or the method's own error, or the call failed, for example
    /// because its deadline passed.
    Failed,
    /// The sender aborted it: the stream was dropped, or its source failed. The sender chooses the
    /// code.
    Reset(Code),
    /// This end stopped reading: the stream was dropped, or an item could not be decoded.
    Stopped,
    /// The connection was lost.
    Disconnected,
}
