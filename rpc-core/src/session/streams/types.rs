//! The types of the streams' interface.

use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::received::Message;

use crate::session::{CallId, IncomingId};

/// Bounds of the streams that an end receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamLimits {
    /// Items of a new stream that may come before any was read. Default 16.
    pub items: u32,
    /// Bytes that may be unread; an item of any length may come while one byte is left. Default 64
    /// KiB.
    pub bytes: u32,
    /// The most that one stream's window grows to, bytes; items grow along. Default 1 MiB.
    pub max_window_bytes: u32,
    /// While the windows of a connection are above this together, bytes, none of them grows.
    /// Default 16 MiB.
    pub max_stream_bytes: u64,
}

impl Default for StreamLimits {
    fn default() -> Self {
        Self { items: 16, bytes: 64 << 10, max_window_bytes: 1 << 20, max_stream_bytes: 16 << 20 }
    }
}

/// Names the streams of a call, from either end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StreamId {
    /// Of a call of this end, which writes the arguments and reads the results.
    Call(CallId),
    /// Of a call of the peer: this end reads the arguments and writes the results.
    Incoming(IncomingId),
}

impl From<CallId> for StreamId {
    fn from(id: CallId) -> Self {
        Self::Call(id)
    }
}

impl From<IncomingId> for StreamId {
    fn from(id: IncomingId) -> Self {
        Self::Incoming(id)
    }
}

/// Why an item was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// An item waits for the receiver to read: try again when the waiter is woken.
    #[error("the receiver has not read enough yet")]
    Full,
    /// The receiver takes no more items, for the reason of this status code (0: none given).
    #[error("the receiver stopped the stream")]
    Stopped(u8),
    /// The call has its outcome, or its caller is gone.
    #[error("the call has ended")]
    Ended,
    /// The call has no such stream, or this end has ended it.
    #[error("the stream is not open")]
    NotOpen,
}

/// An item that was not taken.
#[derive(Debug)]
pub struct NotSent {
    /// Why.
    pub error: SendError,
    /// The item, as it was handed in.
    pub item: OutBuf,
}

/// What there is to read.
#[derive(Debug)]
pub enum ReadItem {
    /// The next item: its encoded value; with a tail, behind the PARTS block.
    Item(Message),
    /// Nothing yet.
    Pending,
    /// There will be no more.
    End(StreamEnd),
}

/// Why there are no more items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamEnd {
    /// The caller has sent all of its arguments.
    Clean,
    /// The caller has given its stream up, with this status code.
    Reset(u8),
    /// The call has its outcome, which says how its results have ended.
    Response,
    /// The caller has cancelled, or the deadline has passed.
    Gone,
    /// The connection was lost.
    ConnectionLost,
    /// There was no memory for an item.
    NoMemory,
    /// The call has no such stream, or this end has stopped it.
    NotOpen,
}
