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
use std::mem::ManuallyDrop;
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
use crate::session::{self, CallId, Deadline, Failure, Outcome, StartCall, StartError};
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
    #[inline]
    fn connection(&self) -> &Arc<Connection> {
        match self {
            Self::Borrowed(connection) => connection,
            Self::Owned(connection) => connection,
        }
    }
}

/// Where a call is. What belongs to a stage lies beside it, so that each is moved once.
#[derive(Debug, Clone, Copy)]
enum State {
    /// Encoded, nothing sent: `body` is there.
    Ready,
    /// Sent; the session knows it.
    InFlight(CallId),
    /// Over before anybody waited: the extras have the answer.
    Answered,
    /// The outcome has been taken.
    Done,
}

/// What few calls have.
#[derive(Default)]
struct Extras {
    metadata: Metadata,
    into: Option<Box<BulkMut>>,
    /// Given before anybody waited; or why nothing can be sent: the arguments could not be encoded,
    /// or the channel is down.
    answer: Option<Answer>,
}

/// A call of a method, made by a generated client. Awaiting it sends the request and waits for the
/// outcome; dropping it cancels the call, and its handler with it.
#[must_use = "a call does nothing until it is awaited or started"]
pub struct Call<'a, O> {
    via: Via<'a>,
    method: &'static MethodDescriptor,
    state: State,
    body: Option<OutBuf>,
    deadline: Option<Instant>,
    // Dropped by `drop`, which finds none at once: the field's own would have to be called for that.
    extras: ManuallyDrop<Option<Box<Extras>>>,
    decode: fn(ReplyParts) -> O,
}

impl<'a, O> Call<'a, O> {
    #[inline]
    pub(crate) fn new(
        connection: &'a Arc<Connection>,
        method: &'static MethodDescriptor,
        body: OutBuf,
        decode: fn(ReplyParts) -> O,
    ) -> Self {
        let via = Via::Borrowed(connection);
        let extras = ManuallyDrop::new(None);
        Self { via, method, state: State::Ready, body: Some(body), deadline: None, extras, decode }
    }

    /// A call that ends with `status`, and sends nothing.
    #[cold]
    pub(crate) fn failed_early(
        connection: &'a Arc<Connection>,
        method: &'static MethodDescriptor,
        status: Status,
        decode: fn(ReplyParts) -> O,
    ) -> Self {
        let mut call = Self {
            via: Via::Borrowed(connection),
            method,
            state: State::Done,
            body: None,
            deadline: None,
            extras: ManuallyDrop::new(None),
            decode,
        };
        call.answered(Err(status));
        call
    }

    /// The call is over, and the first who waits gets the answer.
    #[cold]
    fn answered(&mut self, answer: Answer) {
        self.extras.get_or_insert_default().answer = Some(answer);
        self.state = State::Answered;
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
        let extras = self.extras.get_or_insert_default();
        if let Err(error) = extras.metadata.insert(key, value) {
            let text = format!("{}: {error}", self.method.name);
            self.answered(Err(Status::invalid_argument(text)));
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
            Landing::Buffer(buffer) => {
                self.extras.get_or_insert_default().into = Some(Box::new(buffer));
            }
            Landing::Slot(slot) => {
                if let Some(body) = &mut self.body {
                    slot.offer_with(body, &self.via.connection().bulk);
                }
            }
        }
        self
    }

    /// Sends the request now and detaches from the channel's borrow: a call to spawn, or to wait
    /// for beside others.
    pub fn start(mut self) -> Call<'static, O> {
        if let State::Ready = self.state
            && let Some(outcome) = self.send(false)
        {
            let answer = self.answer(outcome);
            self.answered(answer);
        }
        let connection = Arc::clone(self.via.connection());
        Call {
            via: Via::Owned(connection),
            method: self.method,
            state: std::mem::replace(&mut self.state, State::Done),
            body: None,
            deadline: self.deadline,
            extras: ManuallyDrop::new(self.extras.take()),
            decode: self.decode,
        }
    }

    /// Hands the request to the session. Afterwards the state is not `Ready`. Gives the outcome if
    /// it came at once.
    #[inline]
    fn send(&mut self, may_wait: bool) -> Option<Outcome> {
        let Self { via, method, state, body, deadline, extras, .. } = self;
        *state = State::Done;
        let connection = via.connection();
        let metadata = extras.as_ref().and_then(|extras| encoded(&extras.metadata));
        let call = StartCall {
            method: method.id,
            method_index: method.dense_index(),
            signature: method.signature_hash,
            codec: connection.codec.id(),
            deadline: effective_deadline(*deadline, connection.default_timeout),
            no_cancel: method.no_cancel,
            metadata: metadata.as_deref().unwrap_or_default(),
        };
        let start = |peer: &mut Peer| peer.start(&call, body);
        let mut outcome = None;
        // A call that is alone polls for itself; where others wait too, the driver serves them all.
        let wanted = |peer: &mut Peer, started: &Result<CallId, Refused>| {
            let Ok(call) = started else { return Progress::GiveUp };
            if peer.session.has_outcome(*call) {
                outcome = peer.session.take_outcome(*call);
                Progress::Done(())
            } else if may_wait && peer.session.outgoing_calls() == 1 {
                Progress::Wait
            } else {
                Progress::GiveUp
            }
        };
        match connection.shard.with_progress(connection.key, start, wanted) {
            Some((Ok(call), _)) => match outcome {
                Some(outcome) => return Some(outcome),
                None => *state = State::InFlight(call),
            },
            Some((Err(refused), _)) => self.refused(Some(&refused)),
            None => self.refused(None),
        }
        None
    }

    /// Nothing was sent; without a reason: the connection is gone.
    #[cold]
    fn refused(&mut self, refused: Option<&Refused>) {
        // Of the user's making in part, and so dropped here, outside the lock.
        self.body = None;
        let status = match refused {
            None => self.via.connection().unavailable(),
            Some(Refused::Start(error)) => self.start_failed(error),
            Some(Refused::TooLarge(why)) => {
                Status::resource_exhausted(format!("{}: the request {why}", self.method.name))
            }
        };
        self.answered(Err(status));
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

    #[inline]
    fn answer(&self, outcome: Outcome) -> Answer {
        match outcome {
            Outcome::Reply(session::Reply { kind: session::ReplyKind::Ok, message }) => {
                Ok((ReplyKind::Ok, message))
            }
            other => self.rare_answer(other),
        }
    }

    #[cold]
    fn rare_answer(&self, outcome: Outcome) -> Answer {
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

    #[cold]
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

    #[cold]
    fn take_answer(&mut self) -> Answer {
        let answer = self.extras.as_mut().and_then(|extras| extras.answer.take());
        answer.unwrap_or_else(|| Err(Code::Unknown.into()))
    }

    #[inline]
    fn finish(&mut self, outcome: Answer) -> O {
        self.state = State::Done;
        let codec = self.via.connection().codec;
        let into = self.extras.as_mut().and_then(|extras| extras.into.take());
        (self.decode)(ReplyParts { codec, method: self.method, outcome, into })
    }

    #[inline]
    fn poll_outcome(&self, call: CallId, cx: &Context<'_>) -> Poll<Outcome> {
        let connection = self.via.connection();
        let mut outcome = None;
        let known = connection.shard.look(connection.key, |peer| {
            outcome = peer.session.take_outcome(call);
            outcome.is_none()
                && peer.session.waiter(call).is_some_and(|it| it.will_wake(cx.waker()))
        });
        match (outcome, known) {
            (Some(outcome), _) => Poll::Ready(outcome),
            (None, Some(true)) => Poll::Pending,
            (None, Some(false)) => self.poll_with_waker(call, cx),
            (None, None) => Poll::Ready(CONNECTION_GONE),
        }
    }

    /// Registers a new waker. Wakers are the caller's code: they are cloned and dropped outside
    /// the shard's lock.
    #[cold]
    fn poll_with_waker(&self, call: CallId, cx: &Context<'_>) -> Poll<Outcome> {
        let connection = self.via.connection();
        let waker = cx.waker().clone();
        let polled =
            connection.shard.look(connection.key, |peer| match peer.session.take_outcome(call) {
                None => Ok(peer.session.set_waiter(call, waker)),
                Some(outcome) => Err((outcome, waker)),
            });
        match polled {
            Some(Ok(_earlier_waker)) => Poll::Pending,
            Some(Err((outcome, _waker))) => Poll::Ready(outcome),
            None => Poll::Ready(CONNECTION_GONE),
        }
    }
}

/// How a call ends that the shard has forgotten with its connection.
const CONNECTION_GONE: Outcome = Outcome::Failed { reason: Failure::Closed, never_sent: false };

/// Metadata as it is sent; none costs nothing.
#[cold]
fn encoded(metadata: &Metadata) -> Option<OutBuf> {
    if metadata.is_empty() {
        return None;
    }
    let mut encoded = OutBuf::new();
    metadata.encode(&mut encoded);
    Some(encoded)
}

/// The earliest of the call's own, the channel's and the surrounding handler's deadline.
#[inline(always)]
fn effective_deadline(own: Option<Instant>, default: Option<Duration>) -> Option<Deadline> {
    let inherited = CallContext::current_deadline();
    if own.is_none() && inherited.is_none() && default.is_none() {
        return None;
    }
    let now = Instant::now();
    let default = default.and_then(|timeout| now.checked_add(timeout));
    let at = [own, inherited, default].into_iter().flatten().min()?;
    Some(Deadline { at, now })
}

/// Why a request is not sent.
enum Refused {
    Start(StartError),
    TooLarge(String),
}

impl Peer {
    /// Starts a call; what is refused stays where it is.
    #[inline]
    fn start(
        &mut self,
        call: &StartCall<'_>,
        body: &mut Option<OutBuf>,
    ) -> Result<CallId, Refused> {
        let body_bytes = body.as_ref().map_or(0, OutBuf::total_len);
        if let Some(why) = self.request_too_large(call.metadata.len(), body_bytes) {
            return Err(Refused::TooLarge(why));
        }
        self.session.start_from(call, body, None).map_err(Refused::Start)
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
        let is_new = matches!(this.state, State::Ready);
        if is_new {
            // A loop of calls that are answered at once must not starve its thread.
            let may_wait = std::task::ready!(tokio::task::coop::poll_proceed(cx));
            if let Some(outcome) = this.send(true) {
                may_wait.made_progress();
                let answer = this.answer(outcome);
                return Poll::Ready(this.finish(answer));
            }
        }
        let answer = match this.state {
            // Nobody waits for it yet.
            State::InFlight(call) if is_new => {
                let outcome = std::task::ready!(this.poll_with_waker(call, cx));
                this.answer(outcome)
            }
            State::InFlight(call) => {
                let outcome = std::task::ready!(this.poll_outcome(call, cx));
                this.answer(outcome)
            }
            State::Answered => this.take_answer(),
            State::Ready => return Poll::Pending,
            State::Done => panic!("`Call` polled after completion"),
        };
        Poll::Ready(this.finish(answer))
    }
}

impl<O> Drop for Call<'_, O> {
    #[inline]
    fn drop(&mut self) {
        if let State::InFlight(call) = self.state {
            cancel(self.via.connection(), call);
        }
        if let Some(extras) = self.extras.take() {
            drop_extras(extras);
        }
    }
}

#[cold]
fn drop_extras(extras: Box<Extras>) {
    drop(extras);
}

#[cold]
fn cancel(connection: &Connection, call: CallId) {
    // The waker comes out, to be dropped outside the lock.
    let _waker = connection.shard.with_revoke(connection.key, |peer, revoke| {
        peer.session.cancel(call, &mut |tag| revoked(revoke(tag)))
    });
}

impl<O> fmt::Debug for Call<'_, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Ready => "ready",
            State::InFlight(_) => "in flight",
            State::Answered => "answered",
            State::Done => "done",
        };
        f.debug_struct("Call").field("method", &self.method.name).field("state", &state).finish()
    }
}
