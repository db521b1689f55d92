//! The types of a session's interface: calls started, their outcomes, calls that arrived, their
//! answers, and events.
//!
//! Owns plain data only; the rules are in the session's other files.

use std::fmt;
use std::time::Instant;

use rpc_transport::memory::budget::BudgetExhausted;
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::received::Message;
use rpc_transport::protocol::config::WhenFull;

use crate::wire::{self, CallStreams, HowRead, ReplyKind};

/// Which end of the connection this is. Both may call; the client says hello first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Connected.
    Client,
    /// Accepted: sends nothing before the client's hello has arrived.
    Server,
}

/// A point in time by which a call must have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    /// When.
    pub at: Instant,
    /// The time at which the call is started.
    pub now: Instant,
}

/// Everything about a call except its body.
#[derive(Debug, Clone, Copy)]
pub struct StartCall<'a> {
    /// Stable id of the method: hash of "Service.method".
    pub method: u32,
    /// This process's dense index of the method, from 0: remembers per connection whether the
    /// signature must still be sent. Two methods never share one.
    pub method_index: u32,
    /// Signature hash of the method.
    pub signature: u64,
    /// Codec of the body.
    pub codec: u8,
    /// When the call fails if it has no answer yet; `None`: never.
    pub deadline: Option<Deadline>,
    /// Dropping the call neither takes the request back nor cancels its handler.
    pub no_cancel: bool,
    /// What becomes of the call if it had to wait for others to end.
    pub when_full: WhenFull,
    /// A handler that serves the peer makes it: the peer's call does not end before this one has.
    /// The number of such calls that may wait is limited so that one more handler can still run.
    pub is_nested: bool,
    /// Encoded metadata, at most 65,535 bytes; empty costs nothing on the wire.
    pub metadata: &'a [u8],
    /// Its streams.
    pub streams: CallStreams,
}

/// Which messages of a method have tails that their readers copy out: those whose types own their
/// byte strings (`Bytes`, `Vec<u8>`), and none of which reads a payload in place (`Bulk`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct CopiedTails {
    /// Requests.
    pub(crate) arguments: bool,
    /// Items of the stream of arguments.
    pub(crate) sent_items: bool,
    /// Responses.
    pub(crate) results: bool,
    /// Items of the stream of results.
    pub(crate) items: bool,
}

impl CopiedTails {
    /// None, or nothing is known.
    pub(crate) const NONE: Self =
        Self { arguments: false, sent_items: false, results: false, items: false };
    pub(crate) const ALL: Self =
        Self { arguments: true, sent_items: true, results: true, items: true };
}

/// The fields that all calls of a method have in common: of the request's header, and those needed
/// when the reply arrives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallHead {
    pub(crate) method: u32,
    pub(crate) method_index: u32,
    pub(crate) signature: u64,
    pub(crate) no_cancel: bool,
    pub(crate) streams: CallStreams,
    pub(crate) copied_tails: CopiedTails,
}

impl CallHead {
    /// The head of a call without an idle deadline.
    #[cold]
    pub(crate) fn without_idle_deadline(&self) -> Self {
        let streams = CallStreams { idle_deadline: false, ..self.streams };
        Self { streams, ..*self }
    }
}

/// What each call has of its own.
#[derive(Debug)]
pub(crate) struct CallOptions {
    pub(crate) codec: u8,
    pub(crate) deadline: Option<Deadline>,
    /// The deadline counts until the callee has taken the call, and does not travel: only for
    /// streams.
    pub(crate) until_taken: bool,
    /// Another connection, which gave it back unsent, has counted it as started.
    pub(crate) is_counted: bool,
    pub(crate) when_full: WhenFull,
    pub(crate) is_nested: bool,
    /// Encoded; `None` is empty.
    pub(crate) metadata: Option<OutBuf>,
}

impl CallOptions {
    /// Length of the metadata, bytes.
    #[inline]
    pub(crate) fn metadata_bytes(&self) -> usize {
        self.metadata.as_ref().map_or(0, |metadata| metadata.len())
    }
}

impl StartCall<'_> {
    /// The call as its method's head and its options.
    pub(super) fn apart(&self) -> (CallHead, CallOptions) {
        let &Self { method, method_index, signature, codec, no_cancel, streams, .. } = self;
        let &Self { deadline, when_full, is_nested, .. } = self;
        let metadata = (!self.metadata.is_empty()).then(|| {
            let mut metadata = OutBuf::new();
            metadata.extend_from_slice(self.metadata);
            metadata
        });
        let copied_tails = CopiedTails::NONE;
        let head = CallHead { method, method_index, signature, no_cancel, streams, copied_tails };
        let (until_taken, is_counted) = (false, false);
        let options = CallOptions {
            codec,
            deadline,
            until_taken,
            is_counted,
            when_full,
            is_nested,
            metadata,
        };
        (head, options)
    }
}

/// Names a call of this end, from `start` until its outcome was taken or it was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl CallId {
    /// Names no call: generations begin with 1.
    pub(crate) const NONE: Self = Self { index: 0, generation: 0 };

    /// A number that no other call of the session has at the same time.
    #[must_use]
    pub fn as_u64(self) -> u64 {
        u64::from(self.index) << 32 | u64::from(self.generation)
    }
}

/// Why a call was not started. The session keeps nothing of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The connection is closed.
    #[error("the connection is closed")]
    Closed,
    /// The peer has said go-away: another connection may serve the call.
    #[error("the peer is shutting down and accepts no new calls")]
    PeerGoingAway,
    /// This end has stopped calling.
    #[error("this end is shutting down")]
    Stopped,
    /// The peer's hello says that it takes no calls.
    #[error("the peer does not accept calls")]
    PeerTakesNoCalls,
    /// [`max_outgoing_calls`](super::SessionLimits::max_outgoing_calls) calls exist, and as many as
    /// may wait wait.
    #[error(
        "too many calls on one connection: the limits on calls in flight and on waiting calls are \
             both reached (`max_calls` and `max_waiting_calls`)"
    )]
    TooManyCalls,
    /// As many calls are in flight as may be, and this one was not to wait.
    #[error(
        "{0} calls are in flight on the connection, which is its limit, and `when_full` is set to \
             refuse: let calls wait, or raise the lower one of this end's `max_calls` and the \
             server's `max_calls_per_connection`"
    )]
    Full(u32),
    /// It is nested and would have to wait, and so do as many as may already.
    #[error(
        "the peer is at its limit of calls in flight, and {0} calls from handlers to their own \
             callers are already waiting: one more could deadlock the handlers of both ends; retry \
             later, or raise both ends' limits on calls in flight"
    )]
    HandlersWait(usize),
    /// The metadata is longer than its block can be.
    #[error("metadata of {0} bytes exceeds the limit of {max} bytes", max = wire::MAX_METADATA_BYTES)]
    MetadataTooLong(usize),
    /// The peer is of a version without streams, or offers none.
    #[error(
        "the peer does not support streams: it runs an older version; update it, or call a method \
             without streams"
    )]
    PeerHasNoStreams,
    /// This end offers no streams.
    #[error("streams are switched off at this end")]
    NoStreams,
    /// A call that cannot be cancelled has streams.
    #[error("a call with streams cannot be marked `no_cancel`")]
    NoCancelWithStreams,
    /// A deadline that starts anew with each item, but no deadline, or no stream.
    #[error("an idle deadline needs a stream and a deadline")]
    IdleWithoutDeadline,
    /// The deadline had passed already.
    #[error("the deadline passed before the call was started")]
    DeadlineExceeded,
}

/// A call that was not started, with its body for another try.
#[derive(Debug)]
pub struct NotStarted {
    /// Why.
    pub error: StartError,
    /// The body, as it was handed in.
    pub body: OutBuf,
}

/// How a call ended. Every call has exactly one, unless it was cancelled by this end.
#[derive(Debug)]
pub enum Outcome {
    /// The peer answered.
    Reply(Reply),
    /// It ended without an answer.
    Failed {
        /// Why.
        reason: Failure,
        /// The peer never saw the request: trying again cannot run it twice.
        never_sent: bool,
    },
}

/// Why a call ended without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// The deadline passed.
    DeadlineExceeded,
    /// The connection closed; `Session::close_cause` says why.
    Closed,
    /// The peer said go-away while the call was waiting.
    PeerGoingAway,
    /// The peer's hello said that it takes no calls while the call was waiting.
    PeerTakesNoCalls,
    /// The peer's hello said that it speaks no streams while the call was waiting.
    PeerHasNoStreams,
    /// The id names no call: its outcome was taken or it was cancelled before.
    NoSuchCall,
    /// There was no memory for the answer, which has been dropped.
    NoMemory(BudgetExhausted),
    /// The answer says that the callee has read the arguments otherwise than the request was
    /// written, or it does not say how.
    TypesDisagree,
}

/// The number of a plan by which the layer above reads what a peer writes whose types differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlanId(pub(crate) u32);

/// How this end means to read what the callee writes of a call. Chosen when the request is written,
/// and compared with what the answer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reads {
    /// By its own types: the callee has said on this connection that they are the same.
    Same,
    /// By its own types, if the answer says that they are the same: the request asks.
    Asked,
    /// By a plan, if the answer says that the callee has read the arguments by this end's schema:
    /// the request asks.
    By(PlanId),
}

/// How an answer is read, once it has been compared with its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadBy {
    /// It is a status, and no handler has run.
    Nobody,
    OwnTypes,
    Plan(PlanId),
}

impl Reads {
    /// Compares this with what an answer says. `None`: the two ends disagree, so no value can be
    /// read.
    #[inline]
    pub(super) fn compare(self, said: HowRead) -> Option<ReadBy> {
        match (self, said) {
            (Self::Same, HowRead::Unsaid | HowRead::Same) | (Self::Asked, HowRead::Same) => {
                Some(ReadBy::OwnTypes)
            }
            (Self::By(plan), HowRead::BySchema) => Some(ReadBy::Plan(plan)),
            _ => None,
        }
    }

    /// How the answers are read that agree with this.
    pub(super) fn agreed(self) -> ReadBy {
        match self {
            Self::Same | Self::Asked => ReadBy::OwnTypes,
            Self::By(plan) => ReadBy::Plan(plan),
        }
    }
}

/// Why a call gives no result now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoResult {
    /// It has no outcome yet.
    Pending,
    /// Its outcome is none, or there are streams, which go with it: see `Session::take_outcome`.
    Other,
}

/// A peer's answer.
#[derive(Debug)]
pub struct Reply {
    /// What the body is.
    pub kind: ReplyKind,
    /// The metadata, which is marked, and then the body: of a status, its details and then its
    /// text; of others with a tail, the PARTS block and then the encoded value.
    pub message: Message,
    /// The stream of results did not come to its own end: the status takes the place of what was
    /// not sent.
    pub is_reset: bool,
    /// How the value is read.
    pub(crate) read_by: ReadBy,
}

impl Reply {
    /// Encoded metadata of the response; empty if it has none.
    #[must_use]
    pub fn metadata(&self) -> &[u8] {
        self.message.marked()
    }

    fn body(&self) -> &[u8] {
        &self.message[self.metadata().len()..]
    }

    /// Details of a status; empty for others.
    #[must_use]
    pub fn details(&self) -> &[u8] {
        &self.body()[..self.details_bytes()]
    }

    /// Text of a status; empty for others.
    #[must_use]
    pub fn text(&self) -> &str {
        match self.kind {
            ReplyKind::Status { .. } => {
                // Checked when it was parsed.
                std::str::from_utf8(&self.body()[self.details_bytes()..]).unwrap_or_default()
            }
            ReplyKind::Ok | ReplyKind::UserError => "",
        }
    }

    fn details_bytes(&self) -> usize {
        match self.kind {
            ReplyKind::Status { details_bytes, .. } => {
                usize::try_from(details_bytes).unwrap_or(usize::MAX).min(self.body().len())
            }
            ReplyKind::Ok | ReplyKind::UserError => 0,
        }
    }
}

/// Names a call of the peer while it is in flight here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IncomingId(pub(super) wire::WireId);

#[cfg(test)]
impl IncomingId {
    pub(crate) fn of(slot: u32, generation: u32) -> Self {
        Self(wire::WireId { slot, generation })
    }
}

/// A call that arrived.
#[derive(Debug)]
pub struct Incoming {
    /// Names the call in everything that is reported about it later.
    pub id: IncomingId,
    /// Hash of "Service.method".
    pub method: u32,
    /// Codec of the body.
    pub codec: u8,
    /// To be compared with the method's own; `None`: accepted earlier on this connection.
    pub signature: Option<u64>,
    /// When the caller stops waiting.
    pub deadline: Option<Instant>,
    /// Its streams, to be compared with the method's own. An idle deadline has no point in time.
    pub streams: CallStreams,
    pub(crate) metadata_bytes: usize,
    pub(crate) message: Message,
}

impl Incoming {
    /// The caller's encoded metadata; empty if there is none.
    #[must_use]
    pub fn metadata(&self) -> &[u8] {
        &self.message[..self.metadata_bytes]
    }

    /// The encoded arguments; in front of them the PARTS block, if the message has a tail.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.message[self.metadata_bytes..]
    }

    /// The message, positioned at what [`Incoming::body`] gives.
    #[must_use]
    pub fn into_body(mut self) -> Message {
        self.message.advance(self.metadata_bytes);
        self.message
    }
}

/// A handler's answer.
#[derive(Debug)]
pub enum Answer<'a> {
    /// The encoded result; with a tail, behind its PARTS block.
    Ok(OutBuf),
    /// The encoded error of the method's own type, likewise.
    UserError(OutBuf),
    /// A status.
    Status {
        /// 1 to 16; others are sent as 2, unknown.
        code: u8,
        /// Trying again can help.
        retryable: bool,
        /// Text for people.
        text: &'a str,
        /// Details for programs; empty ones take no bytes on the wire.
        details: &'a [u8],
    },
}

/// The caller is no longer there: it cancelled, its deadline passed, or the connection closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the caller is gone")]
pub struct Gone;

/// The result of an attempt to take a message back from the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Revoked {
    /// All of it was still queued: nothing was sent.
    Whole,
    /// Parts were sent; the peer's link drops them, so its session never sees the message.
    Aborted,
    /// The peer's session sees the message, or has seen it: only the end of a tail that it reads as
    /// a stream was taken back.
    Begun,
    /// The message is on the wire, or the tag is unknown.
    TooLate,
}

impl Revoked {
    /// Whether it is certain that the peer's session never sees the message.
    #[must_use]
    pub fn is_unsent(self) -> bool {
        matches!(self, Self::Whole | Self::Aborted)
    }
}

/// A frame for the link.
#[derive(Debug)]
pub struct Transmit {
    /// Overtakes frames that wait for room.
    pub urgent: bool,
    /// Names the frame if it is to be taken back; 0: it never is.
    pub tag: u64,
    /// The frame, with room in front for the link's header.
    pub frame: OutBuf,
}

/// Work to be done outside the session, and never under its lock.
pub enum Event<W, H> {
    /// A call has its outcome: wake its waiter.
    Wake(W),
    /// Run a handler.
    Request(Incoming),
    /// Stop a handler, then report `handler_ended`.
    CancelHandler(H),
    /// Drop a body that is not going to be sent: its memory may be the user's.
    Discard(Box<OutBuf>),
    /// The peer takes no new calls; those in flight go on.
    PeerGoingAway,
    /// After `go_away`: nothing is in flight in either direction, and the peer starts nothing.
    Drained,
    /// The hello for which `Session::hold_hello` or `Session::present` waits, with the peer's
    /// credentials.
    Hello(Option<Box<[u8]>>),
}

impl<W, H> fmt::Debug for Event<W, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wake(_) => f.write_str("Wake"),
            Self::Request(incoming) => f.debug_tuple("Request").field(incoming).finish(),
            Self::CancelHandler(_) => f.write_str("CancelHandler"),
            Self::Discard(body) => f.debug_tuple("Discard").field(body).finish(),
            Self::PeerGoingAway => f.write_str("PeerGoingAway"),
            Self::Drained => f.write_str("Drained"),
            Self::Hello(_) => f.write_str("Hello"),
        }
    }
}
