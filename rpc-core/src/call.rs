//! A call: a future that is sent when first polled, and cancelled when dropped.
//!
//! Owns the caller's side of one call, from the encoded arguments to the decoded outcome. Never
//! touches a byte below the session.
//!
//! Invariants:
//! 1. The arguments are encoded when the call is made, so it borrows nothing but the channel.
//! 2. A call yields one outcome. A call dropped before that takes the request back if nothing of
//!    it was sent, and cancels its handler otherwise.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rpc_transport::message::Message;
use rpc_transport::outbound::OutBuf;
use rpc_transport::shard::Progress;

use crate::bulk::{BulkMut, Landing};
use crate::client::Connection;
use crate::context::Context as CallContext;
use crate::metadata::Metadata;
use crate::peer::{Peer, revoked};
use crate::service::{MethodDescriptor, ReplyKind, ReplyParts};
use crate::session::{self, CallId, Deadline, Failure, NotStarted, Outcome, StartCall, StartError};
use crate::status::{Code, Status};

/// What a reply brought: its kind and body, or how the call failed.
type Answer = Result<(ReplyKind, Message), Status>;

/// A call that has been started on its own ([`Call::start`]).
pub type StartedCall<O> = Call<'static, O>;

/// The channel that a call goes through: borrowed until the call is started on its own.
enum Via<'a> {
    Borrowed(&'a Arc<Connection>),
    Owned(Arc<Connection>),
}

impl Via<'_> {
    fn connection(&self) -> &Arc<Connection> {
        match self {
            Self::Borrowed(connection) => connection,
            Self::Owned(connection) => connection,
        }
    }
}

enum State {
    /// Encoded, nothing sent.
    Ready(OutBuf),
    /// Sent; the session knows it.
    InFlight(CallId),
    /// Answered before anybody waited.
    Answered(Box<Answer>),
    /// Over before it began: the arguments could not be encoded, or the channel is down.
    Failed(Status),
    /// The outcome has been taken.
    Done,
}

/// A call of a method, made by a generated client. Awaiting it sends the request and waits for the
/// outcome; dropping it cancels the call, and its handler with it.
#[must_use = "a call does nothing until it is awaited or started"]
pub struct Call<'a, O> {
    via: Via<'a>,
    method: &'static MethodDescriptor,
    state: State,
    deadline: Option<Instant>,
    metadata: Metadata,
    into: Option<Box<BulkMut>>,
    decode: fn(ReplyParts) -> O,
}

impl<'a, O> Call<'a, O> {
    pub(crate) fn new(
        connection: &'a Arc<Connection>,
        method: &'static MethodDescriptor,
        body: Result<OutBuf, Status>,
        decode: fn(ReplyParts) -> O,
    ) -> Self {
        let state = match body {
            Ok(body) => State::Ready(body),
            Err(status) => State::Failed(status),
        };
        let via = Via::Borrowed(connection);
        Self { via, method, state, deadline: None, metadata: Metadata::new(), into: None, decode }
    }

    /// Ends the call with [`Code::DeadlineExceeded`] after `timeout`, at both ends. Counted from
    /// now. An earlier deadline (of the channel, or inherited from the handler that makes this
    /// call) stays.
    pub fn timeout(self, timeout: Duration) -> Self {
        match Instant::now().checked_add(timeout) {
            Some(deadline) => self.deadline(deadline),
            None => self,
        }
    }

    /// Ends the call with [`Code::DeadlineExceeded`] at `deadline`, at both ends. The earliest of
    /// several deadlines counts.
    pub fn deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(self.deadline.map_or(deadline, |other| other.min(deadline)));
        self
    }

    /// Adds a key and a value that the handler reads from
    /// [`Context::current`](crate::context::Context::current).
    ///
    /// What cannot be sent (a bad key, too much in all) fails the call with
    /// [`Code::InvalidArgument`].
    pub fn metadata(mut self, key: &str, value: impl Into<Bytes>) -> Self {
        if let Err(error) = self.metadata.insert(key, value) {
            let text = format!("{}: {error}", self.method.name);
            self.state = State::Failed(Status::invalid_argument(text));
        }
        self
    }

    /// Has the large part of the reply land in memory of the caller's choice: the
    /// [`Bulk`](crate::Bulk)s of the result that travel beside its body then lie there, in the
    /// reply's order. A reply that needs more room, or has nothing large, arrives as without this.
    ///
    /// Into a [`BulkMut`] it is copied once. It is private there, and
    /// [`Bulk::try_into_mut`](crate::Bulk::try_into_mut) gives the buffer back for the next call.
    /// Into a [`ReplySlot`](crate::ReplySlot) of this channel's pool the server writes it itself:
    /// no copy is made, and the result is remote.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use rpc_core::{Bulk, Channel, Server};
    /// # #[rpc_core::service] trait Source { async fn give(&self, len: u32) -> Bulk; }
    /// # struct Zeros;
    /// # impl Source for Zeros {
    /// #     async fn give(&self, len: u32) -> Bulk { Bulk::from(vec![0; len as usize]) }
    /// # }
    /// # let server = Server::builder().add_service(SourceServer::new(Zeros)).bind("mem://into").await?;
    /// # tokio::spawn(server.serve());
    /// let source = SourceClient::connect("mem://into").await?;
    /// let mut buffer = source.channel().bulk_pool().take(1 << 20)?;
    /// for _ in 0..3 {
    ///     let bulk = source.give(1 << 20).into(buffer).await?;
    ///     assert_eq!(bulk.as_slice().map(<[u8]>::len), Some(1 << 20));
    ///     buffer = bulk.try_into_mut().expect("nobody else has it");
    /// }
    /// let slot = source.channel().bulk_pool().slot(1 << 20)?;
    /// let bulk = source.give(1 << 20).into(slot).await?;
    /// assert_eq!((bulk.is_remote(), bulk.to_vec()), (true, vec![0; 1 << 20]));
    /// # Ok(()) }
    /// ```
    pub fn into(mut self, landing: impl Into<Landing>) -> Self {
        match landing.into() {
            Landing::Buffer(buffer) => self.into = Some(Box::new(buffer)),
            Landing::Slot(slot) => {
                if let State::Ready(body) = &mut self.state {
                    slot.offer_with(body, &self.via.connection().bulk);
                }
            }
        }
        self
    }

    /// Sends the request now and detaches from the channel's borrow: a call to spawn, or to wait
    /// for beside others.
    pub fn start(mut self) -> Call<'static, O> {
        if let Some(answer) = self.send(false) {
            self.state = State::Answered(Box::new(answer));
        }
        let connection = Arc::clone(self.via.connection());
        Call {
            via: Via::Owned(connection),
            method: self.method,
            state: std::mem::replace(&mut self.state, State::Done),
            deadline: self.deadline,
            metadata: Metadata::new(),
            into: self.into.take(),
            decode: self.decode,
        }
    }

    /// Hands the request to the session. Afterwards the state is not `Ready`. Gives the answer if it
    /// came at once.
    fn send(&mut self, may_wait: bool) -> Option<Answer> {
        let State::Ready(body) = std::mem::replace(&mut self.state, State::Done) else {
            return None;
        };
        match self.try_send(body, may_wait) {
            Ok((call, None)) => self.state = State::InFlight(call),
            Ok((_, Some(outcome))) => return Some(self.answer(outcome)),
            Err(status) => self.state = State::Failed(status),
        }
        None
    }

    fn try_send(&self, body: OutBuf, may_wait: bool) -> Result<(CallId, Option<Outcome>), Status> {
        let connection = self.via.connection();
        let metadata = self.encoded_metadata();
        let call = StartCall {
            method: self.method.id,
            method_index: self.method.dense_index(),
            signature: self.method.signature_hash,
            codec: connection.codec.id(),
            deadline: self.effective_deadline(),
            no_cancel: self.method.no_cancel,
            metadata: metadata.as_deref().unwrap_or_default(),
        };
        let start = |peer: &mut Peer| {
            if let Some(why) = peer.request_too_large(call.metadata.len(), body.total_len()) {
                return Err(Err(why));
            }
            peer.session.start(call, body, None).map_err(Ok)
        };
        // A call that is alone polls for itself; where others wait too, the driver serves them all.
        let wanted = |peer: &mut Peer, started: &Result<CallId, _>| match started {
            Ok(call) if !peer.session.has_outcome(*call) => {
                let alone = may_wait && peer.session.outgoing_calls() == 1;
                if alone { Progress::Wait } else { Progress::GiveUp }
            }
            Ok(call) => peer.session.take_outcome(*call).map_or(Progress::GiveUp, Progress::Done),
            Err(_) => Progress::GiveUp,
        };
        match connection.shard.with_progress(connection.key, start, wanted) {
            Some((Ok(call), outcome)) => Ok((call, outcome)),
            Some((Err(Ok(NotStarted { error, .. })), _)) => Err(self.start_failed(&error)),
            Some((Err(Err(why)), _)) => {
                let text = format!("{}: the request {why}", self.method.name);
                Err(Status::resource_exhausted(text))
            }
            None => Err(connection.unavailable()),
        }
    }

    fn encoded_metadata(&self) -> Option<OutBuf> {
        if self.metadata.is_empty() {
            return None;
        }
        let mut encoded = OutBuf::new();
        self.metadata.encode(&mut encoded);
        Some(encoded)
    }

    /// The earliest of the call's own, the channel's and the surrounding handler's deadline.
    fn effective_deadline(&self) -> Option<Deadline> {
        let inherited = CallContext::current_deadline();
        let default = self.via.connection().default_timeout;
        if self.deadline.is_none() && inherited.is_none() && default.is_none() {
            return None;
        }
        let now = Instant::now();
        let default = default.and_then(|timeout| now.checked_add(timeout));
        let at = [self.deadline, inherited, default].into_iter().flatten().min()?;
        Some(Deadline { at, now })
    }

    fn start_failed(&self, error: &StartError) -> Status {
        let name = self.method.name;
        match error {
            StartError::Closed => self.via.connection().unavailable(),
            StartError::TooManyCalls => {
                Status::new(Code::ResourceExhausted, format!("{name}: {error}"))
            }
            StartError::MetadataTooLong(_) => {
                Status::new(Code::InvalidArgument, format!("{name}: {error}"))
            }
            StartError::DeadlineExceeded => {
                Status::new(Code::DeadlineExceeded, format!("{name}: {error}"))
            }
            StartError::PeerGoingAway => self.failed(Failure::PeerGoingAway, true),
            StartError::PeerTakesNoCalls => self.failed(Failure::PeerTakesNoCalls, true),
            _ => Status::new(Code::Unavailable, format!("{name}: {error}")).with_retryable(true),
        }
    }

    fn answer(&self, outcome: Outcome) -> Answer {
        match outcome {
            Outcome::Reply(reply) => match reply.kind {
                session::ReplyKind::Ok => Ok((ReplyKind::Ok, reply.message)),
                session::ReplyKind::UserError => Ok((ReplyKind::UserError, reply.message)),
                session::ReplyKind::Status { code, retryable, .. } => {
                    Err(self.received(&reply, code, retryable))
                }
            },
            Outcome::Failed { reason, never_sent } => Err(self.failed(reason, never_sent)),
        }
    }

    #[cold]
    fn received(&self, reply: &session::Reply, code: u8, retryable: bool) -> Status {
        let code = Code::from_number(code).unwrap_or(Code::Unknown);
        if let Some(text) = self.refusal(code, reply) {
            return Status::new(code, text).with_retryable(retryable);
        }
        Status::new(code, reply.text().to_owned())
            .with_details(Bytes::copy_from_slice(reply.details()))
            .with_retryable(retryable)
    }

    /// What to say when the server refused the method as such. Until it has accepted the signature,
    /// nothing of the user's has run there, so the marks cannot be details of the user's own.
    fn refusal(&self, code: Code, reply: &session::Reply) -> Option<String> {
        let text = match (code, reply.details()) {
            (Code::FailedPrecondition, SIGNATURES_DIFFER) => {
                format!(
                    "{}, this client has `{}`; build both from the same version of the trait",
                    reply.text(),
                    self.method.signature
                )
            }
            (Code::Unimplemented, UNKNOWN_METHOD) => {
                format!(
                    "{}: {}; add the service to the server, or bring the server up to date",
                    self.method.name,
                    reply.text()
                )
            }
            _ => return None,
        };
        let connection = self.via.connection();
        let index = self.method.dense_index();
        let accepted =
            connection.shard.look(connection.key, |peer| peer.session.has_accepted(index));
        (accepted == Some(false)).then_some(text)
    }

    fn failed(&self, reason: Failure, never_sent: bool) -> Status {
        let name = self.method.name;
        match reason {
            Failure::DeadlineExceeded => {
                Status::new(Code::DeadlineExceeded, format!("{name}: the deadline passed"))
            }
            Failure::Closed => self.via.connection().unavailable().with_retryable(never_sent),
            other => Status::new(Code::Unavailable, format!("{name}: {}", words(other)))
                .with_retryable(never_sent),
        }
    }

    fn finish(&mut self, outcome: Answer) -> O {
        self.state = State::Done;
        let codec = self.via.connection().codec;
        let into = self.into.take();
        (self.decode)(ReplyParts { codec, method: self.method, outcome, into })
    }

    fn poll_outcome(&self, call: CallId, cx: &Context<'_>) -> Poll<Answer> {
        let connection = self.via.connection();
        let polled = connection.shard.look(connection.key, |peer| {
            if peer.session.has_outcome(call) {
                return (peer.session.take_outcome(call), false);
            }
            let known = peer.session.waiter(call).is_some_and(|it| it.will_wake(cx.waker()));
            (None, known)
        });
        match polled {
            Some((Some(outcome), _)) => Poll::Ready(self.answer(outcome)),
            Some((None, true)) => Poll::Pending,
            Some((None, false)) => self.poll_with_waker(call, cx),
            None => Poll::Ready(Err(connection.unavailable())),
        }
    }

    /// Registers a new waker. Wakers are the caller's code: they are cloned and dropped outside
    /// the shard's lock.
    #[cold]
    fn poll_with_waker(&self, call: CallId, cx: &Context<'_>) -> Poll<Answer> {
        let connection = self.via.connection();
        let waker = cx.waker().clone();
        let polled =
            connection.shard.with(connection.key, |peer| match peer.session.take_outcome(call) {
                None => Ok(peer.session.set_waiter(call, waker)),
                Some(outcome) => Err((outcome, waker)),
            });
        match polled {
            Some(Ok(_earlier_waker)) => Poll::Pending,
            Some(Err((outcome, _waker))) => Poll::Ready(self.answer(outcome)),
            None => Poll::Ready(Err(connection.unavailable())),
        }
    }
}

/// Marks the status of a signature mismatch, so that the caller's side adds its own. The marks mean
/// something only from a server that has not accepted the method's signature.
pub(crate) const SIGNATURES_DIFFER: &[u8] = b"signature";
/// Marks the status of an unknown method, which only the caller's side can name.
pub(crate) const UNKNOWN_METHOD: &[u8] = b"method";

fn words(failure: Failure) -> &'static str {
    match failure {
        Failure::PeerGoingAway => "the server is shutting down and takes no new calls",
        Failure::PeerTakesNoCalls => "the other side offers no services",
        _ => "the call ended without an answer",
    }
}

impl<O> Future for Call<'_, O> {
    type Output = O;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<O> {
        let this = self.get_mut();
        if matches!(this.state, State::Ready(_)) {
            // A loop of calls that are answered at once must not starve its thread.
            let may_wait = std::task::ready!(tokio::task::coop::poll_proceed(cx));
            if let Some(answer) = this.send(true) {
                may_wait.made_progress();
                return Poll::Ready(this.finish(answer));
            }
        }
        let outcome = match &mut this.state {
            State::InFlight(call) => {
                let call = *call;
                std::task::ready!(this.poll_outcome(call, cx))
            }
            State::Failed(status) => Err(status.clone()),
            State::Answered(answer) => std::mem::replace(&mut **answer, Err(Code::Unknown.into())),
            State::Ready(_) => return Poll::Pending,
            State::Done => panic!("`Call` polled after completion"),
        };
        Poll::Ready(this.finish(outcome))
    }
}

impl<O> Drop for Call<'_, O> {
    fn drop(&mut self) {
        let State::InFlight(call) = self.state else { return };
        let connection = self.via.connection();
        // The waker comes out, to be dropped outside the lock.
        let _waker = connection.shard.with_revoke(connection.key, |peer, revoke| {
            peer.session.cancel(call, &mut |tag| revoked(revoke(tag)))
        });
    }
}

impl<O> fmt::Debug for Call<'_, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Ready(_) => "ready",
            State::InFlight(_) => "in flight",
            State::Failed(_) => "failed",
            State::Answered(_) => "answered",
            State::Done => "done",
        };
        f.debug_struct("Call").field("method", &self.method.name).field("state", &state).finish()
    }
}
