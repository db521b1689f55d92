//! A call before its result is decoded.
//!
//! Owns the caller's side of one call, from the encoded arguments to the encoded outcome. It is not
//! generic over the method, so it is compiled once. Never touches a byte below the session.
//!
//! Invariants:
//! 1. The arguments are encoded when the call is made, so it borrows nothing but the channel.
//! 2. A call yields one outcome. A call dropped before that takes the request back if nothing of
//!    it was sent, and cancels its handler otherwise.

pub(crate) mod streaming;

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use arc_swap::Guard;
use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rpc_transport::engine::shard::Progress;
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::received::Message;
use rpc_transport::protocol::config::WhenFull;

use crate::bulk::{BulkMut, BulkPool, Landing, ReplySlot};
use crate::channel::retry::{Attempts, Failed};
use crate::client::Connection;
use crate::client::shared::{Shared, earliest};
use crate::client::subchannel::Loaded;
use crate::context::Context as CallContext;
use crate::endpoint::{RpcEndpoint, revoked};
use crate::metadata::Metadata;
use crate::service::{MethodDescriptor, ReplyKind, ReplyParts};
use crate::session::{self, CallId, Deadline, Failure, Outcome, StartCall, StartError};
use crate::status::{Code, Status};
use crate::wire::refusal::{SIGNATURES_DIFFER, UNKNOWN_METHOD};

/// Longest head of a body, bytes, that is kept for another attempt.
const MAX_KEPT_BYTES: usize = 64 * 1024;

/// The channel that a call goes through: borrowed, until [`RawCall::start`] makes the call
/// independent of it.
enum Via<'a> {
    Borrowed(&'a Arc<Shared>),
    Owned(Arc<Shared>),
}

impl Via<'_> {
    #[inline]
    fn channel(&self) -> &Arc<Shared> {
        match self {
            Self::Borrowed(channel) => channel,
            Self::Owned(channel) => channel,
        }
    }
}

/// The stage of a call. The data of a stage is kept beside it, not in it, so that it is moved only
/// once.
#[derive(Debug, Clone, Copy)]
enum State {
    /// Encoded, nothing sent: `body` is `Some`. If `on` is, it leaves on that connection.
    Ready,
    /// The same, and it waits for something in the extras before it is ready.
    Waiting,
    /// Sent; the session of the connection `on` knows it.
    InFlight(CallId),
    /// Ended before anybody waited: the outcome is in the extras.
    Over,
    /// The outcome has been taken.
    Done,
}

/// What gives a waiting call its connection.
type Wait = BoxFuture<'static, Result<Arc<Connection>, Status>>;

/// State that few calls need.
#[derive(Default)]
struct Extras {
    metadata: Metadata,
    into: Option<Box<BulkMut>>,
    /// Memory for the reply that the server writes itself.
    slot: Option<ReplySlot>,
    /// The outcome of a call in [`State::Over`].
    found: CallOutcome,
    /// Unless the channel's default holds.
    wait_for_ready: Option<bool>,
    /// What a call in [`State::Waiting`] waits for. The mutex is never locked: it makes a future
    /// that only one thread at a time polls fit for a call that several may see.
    attempts: Attempts,
    wait: Option<Mutex<Wait>>,
}

/// How a call ended.
#[derive(Default)]
pub(crate) enum CallOutcome {
    #[default]
    Nothing,
    /// With a result.
    Ok(Message),
    /// With the method's own error.
    UserError(Message),
    Failed(Status),
}

/// A call.
pub(crate) struct RawCall<'a> {
    via: Via<'a>,
    method: &'static MethodDescriptor,
    state: State,
    deadline: Option<Instant>,
    /// Length of the body's head, bytes, without what is put in front of it to be sent.
    head_bytes: usize,
    on: Option<Arc<Connection>>,
    /// Its share of the load, where there are several end points.
    load: Option<Box<Loaded>>,
    // `ManuallyDrop`, because these are mostly `None`: `drop` checks that inline, without a call to
    // drop glue.
    body: ManuallyDrop<Option<OutBuf>>,
    /// The body once more, if the call may be sent again after its handler has begun.
    kept: ManuallyDrop<Option<OutBuf>>,
    extras: ManuallyDrop<Option<Box<Extras>>>,
}

impl<'a> RawCall<'a> {
    #[inline]
    pub(crate) fn new(
        channel: &'a Arc<Shared>,
        method: &'static MethodDescriptor,
        body: Option<OutBuf>,
    ) -> Self {
        Self {
            via: Via::Borrowed(channel),
            method,
            state: State::Ready,
            deadline: None,
            head_bytes: 0,
            on: None,
            load: None,
            body: ManuallyDrop::new(body),
            kept: ManuallyDrop::new(None),
            extras: ManuallyDrop::new(None),
        }
    }

    pub(crate) fn bring_forward(&mut self, deadline: Instant) {
        self.deadline = Some(self.deadline.map_or(deadline, |other| other.min(deadline)));
    }

    pub(crate) fn add_metadata(&mut self, key: &str, value: Bytes) {
        let extras = self.extras.get_or_insert_default();
        if let Err(error) = extras.metadata.insert(key, value) {
            let text = format!("{}: {error}", self.method.name);
            self.fail(Status::invalid_argument(text));
        }
    }

    pub(crate) fn land_in(&mut self, landing: Landing) {
        match landing {
            Landing::Buffer(buffer) => {
                self.extras.get_or_insert_default().into = Some(Box::new(buffer));
            }
            Landing::Slot(slot) => self.extras.get_or_insert_default().slot = Some(slot),
        }
    }

    pub(crate) fn wait_for_ready(&mut self, wait: bool) {
        self.extras.get_or_insert_default().wait_for_ready = Some(wait);
    }

    /// Ends the call with an error; nothing is sent.
    #[cold]
    pub(crate) fn fail(&mut self, status: Status) {
        self.over(CallOutcome::Failed(status.of_call(self.method)));
    }

    /// Ends the call; the first poll gets the outcome.
    #[cold]
    fn over(&mut self, found: CallOutcome) {
        // The body may hold memory of the user's, so it is dropped here, outside the lock.
        *self.body = None;
        self.extras.get_or_insert_default().found = found;
        self.state = State::Over;
    }

    /// Sends the request and moves the call out, detached from the channel borrow.
    pub(crate) fn start(&mut self) -> RawCall<'static> {
        if let State::Ready = self.state {
            let mut found = CallOutcome::Nothing;
            self.send(false, &mut found);
            if !matches!(found, CallOutcome::Nothing) {
                self.over(found);
            }
            if let State::Waiting = self.state {
                self.via.channel().kick();
            }
        }
        RawCall {
            via: Via::Owned(Arc::clone(self.via.channel())),
            method: self.method,
            state: std::mem::replace(&mut self.state, State::Done),
            deadline: self.deadline,
            head_bytes: self.head_bytes,
            on: self.on.take(),
            load: self.load.take(),
            body: ManuallyDrop::new(self.body.take()),
            kept: ManuallyDrop::new(self.kept.take()),
            extras: ManuallyDrop::new(self.extras.take()),
        }
    }

    /// Hands the request to the session. Afterwards the state is not `Ready`: if there is no
    /// connection, it is `Waiting`. Sets `found` if the outcome came at once.
    fn send(&mut self, may_wait: bool, found: &mut CallOutcome) {
        if self.on.is_some() {
            let on = self.on.take();
            return self.send_on(Guard::from_inner(on), may_wait, found);
        }
        let guard = self.via.channel().connection();
        self.send_on(guard, may_wait, found);
    }

    #[inline(always)]
    fn send_on(
        &mut self,
        on: Guard<Option<Arc<Connection>>>,
        may_wait: bool,
        found: &mut CallOutcome,
    ) {
        let Some(connection) = &*on else { return self.wait_for_connection() };
        let Self {
            via,
            method,
            state,
            body,
            kept,
            load: loaded,
            deadline: own,
            extras,
            head_bytes,
            ..
        } = self;
        *state = State::Done;
        let mut metadata = None;
        if let Some(extras) = &mut **extras {
            metadata = encoded(&extras.metadata);
            offer_slot(extras.slot.take(), body, &connection.bulk);
        }
        if let Some(load) = &connection.load {
            *loaded = Some(Box::new(load.begin()));
        }
        let channel = via.channel();
        let inherited = CallContext::current_deadline();
        let deadline = earliest(*own, channel.default_timeout, inherited);
        *own = deadline.map(|(at, _)| at);
        if method.idempotent && channel.retry.is_some() && !method.has_streams() {
            keep(body, kept);
        }
        let mut streams = method.streams;
        streams.idle_deadline &= deadline.is_some();
        let call = StartCall {
            method: method.id,
            method_index: method.dense_index(),
            signature: method.checked_hash(),
            codec: channel.codec.id(),
            deadline: deadline.map(|(at, now)| Deadline { at, now }),
            no_cancel: method.no_cancel,
            streams,
            metadata: metadata.as_deref().unwrap_or_default(),
        };
        *head_bytes = body.as_ref().map_or(0, |body| body.len());
        let start = |peer: &mut RpcEndpoint| peer.start(&call, body);
        let mut other = None;
        // A single outstanding call polls for its own reply. With several, the driver polls.
        let wanted = |peer: &mut RpcEndpoint, started: &Result<CallId, Refused>| {
            let Ok(call) = started else { return Progress::GiveUp };
            if peer.session.has_outcome(*call) {
                take(peer, *call, found, &mut other);
                Progress::Done(())
            } else if may_wait && peer.session.outgoing_calls() == 1 {
                Progress::Wait
            } else {
                Progress::GiveUp
            }
        };
        match connection.shard.with_progress(connection.key, start, wanted) {
            Some((Ok(call), None)) => {
                *state = State::InFlight(call);
                self.on = Guard::into_inner(on);
            }
            Some((Ok(_), Some(()))) => {
                if let Some(other) = other {
                    self.on = Guard::into_inner(on);
                    *found = self.rarely_found(other);
                }
            }
            Some((Err(refused), _)) => {
                self.on = Guard::into_inner(on);
                self.refused(Some(&refused));
            }
            None => {
                self.on = Guard::into_inner(on);
                self.refused(None);
            }
        }
    }

    /// There is no connection: waits for one, if the call may.
    #[cold]
    fn wait_for_connection(&mut self) {
        self.on = None;
        self.wait(None);
    }

    /// Waits for a connection, after a delay if there is to be one.
    #[cold]
    fn wait(&mut self, delay: Option<Duration>) {
        let channel = Arc::clone(self.via.channel());
        // From now on the time runs that attempts have together.
        let inherited = CallContext::current_deadline();
        let deadline = earliest(self.deadline, channel.default_timeout, inherited);
        self.deadline = deadline.map(|(at, _)| at);
        let extras = self.extras.get_or_insert_default();
        let waits = extras.wait_for_ready.unwrap_or(channel.wait_for_ready);
        let name = self.method.name;
        let deadline = self.deadline;
        extras.wait = Some(Mutex::new(Box::pin(async move {
            let found = match delay {
                Some(delay) => channel.acquire_after(delay, waits, deadline).await,
                None => channel.acquire(waits, deadline).await,
            };
            found.map_err(|status| status.with_prefix(format_args!("{name}: ")))
        })));
        self.state = State::Waiting;
    }

    /// Nothing of the request was sent, and its connection takes none: it goes on another one.
    #[cold]
    fn send_elsewhere(&mut self, body: OutBuf) {
        if let Some(on) = self.on.take() {
            on.is_lost();
        }
        *self.body = Some(body);
        self.load = None;
        self.wait_for_connection();
    }

    /// Ends a call of which nothing was sent, or sends it on another connection. `None`: the
    /// connection is gone.
    #[cold]
    fn refused(&mut self, refused: Option<&Refused>) {
        let is_lost = match refused {
            None => true,
            Some(Refused::Start(error)) => matches!(
                error,
                StartError::Closed | StartError::PeerGoingAway | StartError::Stopped
            ),
            Some(_) => false,
        };
        if is_lost && let Some(mut body) = self.body.take() {
            body.rewind(self.head_bytes);
            return self.send_elsewhere(body);
        }
        let status = match refused {
            None => self.unavailable(),
            Some(Refused::Start(error)) => self.start_failed(error),
            Some(Refused::TooLarge(why)) => {
                Status::resource_exhausted(format!("{}: the request {why}", self.method.name))
            }
            Some(Refused::QueueFull) => Status::resource_exhausted(format!(
                "{}: the queue of the connection is full (`queued_bytes` wait to leave, and \
                 `when_full` is to refuse)",
                self.method.name
            ))
            .with_retryable(true),
        };
        self.fail(status);
    }

    /// The status of a call whose connection has ended.
    #[cold]
    fn unavailable(&self) -> Status {
        match &self.on {
            Some(connection) => connection.unavailable(),
            None => Status::from(Code::Unavailable),
        }
    }

    fn start_failed(&self, error: &StartError) -> Status {
        let name = self.method.name;
        match error {
            StartError::Closed => self.unavailable(),
            StartError::TooManyCalls => {
                Status::new(Code::ResourceExhausted, format!("{name}: {error}"))
                    .with_retryable(true)
            }
            StartError::MetadataTooLong(_) => {
                Status::new(Code::InvalidArgument, format!("{name}: {error}"))
            }
            StartError::DeadlineExceeded => {
                Status::new(Code::DeadlineExceeded, format!("{name}: {error}"))
            }
            StartError::PeerGoingAway => self.failed(Failure::PeerGoingAway, true),
            StartError::PeerTakesNoCalls => self.failed(Failure::PeerTakesNoCalls, true),
            StartError::PeerHasNoStreams => self.failed(Failure::PeerHasNoStreams, true),
            _ => Status::new(Code::Unavailable, format!("{name}: {error}")).with_retryable(true),
        }
    }

    /// Slow path: any outcome but a result that was already taken on the fast path. Nothing if the
    /// call goes on: it waits then.
    #[cold]
    fn rarely_found(&mut self, other: Other) -> CallOutcome {
        let Other { outcome, request } = other;
        if let Some(mut body) = request
            && !self.method.has_streams()
        {
            body.rewind(self.head_bytes);
            self.send_elsewhere(body);
            return CallOutcome::Nothing;
        }
        if let Some(failed) = self.retryable(&outcome)
            && self.try_again(failed)
        {
            return CallOutcome::Nothing;
        }
        match self.ended(outcome) {
            CallOutcome::Failed(status) => CallOutcome::Failed(self.with_attempts(status)),
            other => other,
        }
    }

    /// How an attempt has failed, if the call may be tried again for that.
    fn retryable(&self, outcome: &Outcome) -> Option<Failed> {
        if self.kept.is_none() {
            return None;
        }
        match outcome {
            Outcome::Reply(reply) => match reply.kind {
                session::ReplyKind::Status { code, retryable: true, .. } => {
                    Some(Failed::Refused(self.received(reply, code, true).retry_after()))
                }
                _ => None,
            },
            Outcome::Failed { reason: Failure::Closed, .. } => {
                let on = self.on.as_ref()?;
                Some(Failed::Lost(on.end_point(), on.epoch()))
            }
            Outcome::Failed { .. } => None,
        }
    }

    /// Sends the call again, later. False if this attempt was the last.
    #[cold]
    fn try_again(&mut self, failed: Failed) -> bool {
        let channel = Arc::clone(self.via.channel());
        let (Some(retries), Some(kept)) = (&channel.retry, &*self.kept) else { return false };
        let extras = self.extras.get_or_insert_default();
        let Some(delay) = retries.after(&mut extras.attempts, failed, self.deadline) else {
            return false;
        };
        if extras.attempts.failed() + 1 < retries.policy.attempts() {
            *self.body = Some(kept.copied());
        } else {
            *self.body = self.kept.take();
        }
        if let (Failed::Lost(..), Some(on)) = (failed, self.on.take()) {
            on.is_lost();
        }
        self.on = None;
        if let Some(load) = self.load.take() {
            load.refused();
        }
        self.wait(Some(delay));
        true
    }

    #[cold]
    fn with_attempts(&self, status: Status) -> Status {
        match self.extras.as_ref().map_or(0, |extras| extras.attempts.failed()) {
            0 | 1 => status,
            failed => status.with_more(format_args!(" (tried {failed} times)")),
        }
    }

    #[cold]
    fn ended(&self, outcome: Outcome) -> CallOutcome {
        match outcome {
            Outcome::Reply(reply) => match reply.kind {
                session::ReplyKind::Ok => CallOutcome::Ok(reply.message),
                session::ReplyKind::UserError => CallOutcome::UserError(reply.message),
                session::ReplyKind::Status { code, retryable, .. } => {
                    let status = self.received(&reply, code, retryable);
                    CallOutcome::Failed(status.of_call(self.method))
                }
            },
            Outcome::Failed { reason, never_sent } => {
                CallOutcome::Failed(self.failed(reason, never_sent).of_call(self.method))
            }
        }
    }

    #[cold]
    fn received(&self, reply: &session::Reply, code: u8, retryable: bool) -> Status {
        let code = Code::from_number(code).unwrap_or(Code::Unknown);
        if let Some(text) = self.refusal(code, reply) {
            return Status::new(code, text).with_retryable(retryable);
        }
        Status::received(code, reply.text(), reply.details(), retryable)
    }

    /// The error text when the server does not know the method or its signature differs. The server
    /// marks these statuses in their details. Until it has accepted the signature no user code has
    /// run there, so the marks cannot be details that the user made.
    fn refusal(&self, code: Code, reply: &session::Reply) -> Option<String> {
        let text = match (code, reply.details()) {
            (Code::FailedPrecondition, details) if details.starts_with(SIGNATURES_DIFFER) => {
                self.difference(reply.text(), &details[SIGNATURES_DIFFER.len()..])
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
        let connection = self.on.as_ref()?;
        let index = self.method.dense_index();
        let accepted =
            connection.shard.look(connection.key, |peer| peer.session.has_accepted(index));
        (accepted == Some(false)).then_some(text)
    }

    /// What differs: the signature, or else the contents of its types.
    fn difference(&self, text: &str, schema: &[u8]) -> String {
        let MethodDescriptor { name, signature, arguments, .. } = self.method;
        if text.ends_with(&format!("`{signature}`"))
            && let Some(mine) = self.method.schema()
        {
            let theirs = String::from_utf8_lossy(schema.strip_prefix(b"\n").unwrap_or(schema));
            let difference = mine.difference(&theirs, arguments);
            return format!(
                "{name}: its types have another content at the server: {difference}; build both \
                 from the same types, or give the changed ones to a method of another name"
            );
        }
        format!(
            "{text}, this client has `{signature}`; build both from the same version of the trait"
        )
    }

    #[cold]
    fn failed(&self, reason: Failure, never_sent: bool) -> Status {
        let name = self.method.name;
        match reason {
            Failure::DeadlineExceeded => {
                Status::new(Code::DeadlineExceeded, format!("{name}: the deadline passed"))
            }
            Failure::NoMemory(reason) => Status::new(
                Code::ResourceExhausted,
                format!("{name}: no memory for the reply: {reason}"),
            ),
            Failure::PeerHasNoStreams => Status::unimplemented(format!(
                "{name}: the server speaks no streams; bring it up to date"
            )),
            // The handler may have run, also to its end.
            Failure::Closed => {
                self.unavailable().with_retryable(never_sent || self.method.idempotent)
            }
            other => Status::new(Code::Unavailable, format!("{name}: {}", words(other)))
                .with_retryable(never_sent),
        }
    }

    /// Ready when `found` has the outcome.
    ///
    /// # Panics
    /// When polled after that.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, found: &mut CallOutcome) -> Poll<()> {
        loop {
            match self.state {
                State::Ready => {
                    // Tokio's coop budget: a loop of calls that are answered at once must not
                    // starve the other tasks of its thread.
                    let may_wait = std::task::ready!(tokio::task::coop::poll_proceed(cx));
                    self.send(true, found);
                    match self.state {
                        // Just sent, so no waker is registered yet.
                        State::InFlight(call) => {
                            std::task::ready!(self.poll_with_waker(call, cx, found));
                        }
                        State::Done => may_wait.made_progress(),
                        _ => continue,
                    }
                }
                State::InFlight(call) => std::task::ready!(self.poll_outcome(call, cx, found)),
                State::Waiting => {
                    std::task::ready!(self.poll_waiting(cx));
                    continue;
                }
                State::Over => {
                    self.take_found(found);
                    return Poll::Ready(());
                }
                State::Done => panic!("`Call` polled after completion"),
            }
            if let State::Done = self.state {
                return Poll::Ready(());
            }
        }
    }

    /// Ready when the call waits no longer.
    #[cold]
    fn poll_waiting(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(extras) = &mut *self.extras else { return Poll::Ready(()) };
        let waited = match &mut extras.wait {
            Some(wait) => std::task::ready!(wait.get_mut().as_mut().poll(cx)),
            None => Err(Code::Unknown.into()),
        };
        extras.wait = None;
        match waited {
            Ok(connection) => {
                self.on = Some(connection);
                self.state = State::Ready;
            }
            Err(status) => {
                // It was sent before, so this is one more attempt that has failed.
                let goes_on = self.kept.is_some()
                    && status.code() == Code::Unavailable
                    && extras.attempts.failed() > 0;
                if !(goes_on && self.try_again(Failed::Refused(None))) {
                    let status = self.with_attempts(status);
                    self.fail(status);
                }
            }
        }
        Poll::Ready(())
    }

    #[cold]
    fn take_found(&mut self, found: &mut CallOutcome) {
        if let Some(extras) = &mut *self.extras {
            *found = std::mem::take(&mut extras.found);
        }
    }

    #[inline(always)]
    fn poll_outcome(
        &mut self,
        call: CallId,
        cx: &Context<'_>,
        found: &mut CallOutcome,
    ) -> Poll<()> {
        let Some(connection) = &self.on else { return self.found(Some(CONNECTION_GONE), found) };
        let mut other = None;
        let looked = connection.shard.look(connection.key, |peer| {
            if peer.session.has_outcome(call) {
                take(peer, call, found, &mut other);
                return Looked::Over;
            }
            match peer.session.waiter(call) {
                Some(waiter) if waiter.will_wake(cx.waker()) => Looked::Waits,
                _ => Looked::Unknown,
            }
        });
        match looked {
            Some(Looked::Over) => self.found(other, found),
            Some(Looked::Waits) => Poll::Pending,
            Some(Looked::Unknown) => self.poll_with_waker(call, cx, found),
            None => self.found(Some(CONNECTION_GONE), found),
        }
    }

    /// Registers a new waker. Wakers are the caller's code, so they are cloned and dropped outside
    /// the shard's lock.
    fn poll_with_waker(
        &mut self,
        call: CallId,
        cx: &Context<'_>,
        found: &mut CallOutcome,
    ) -> Poll<()> {
        let Some(connection) = &self.on else { return self.found(Some(CONNECTION_GONE), found) };
        let waker = cx.waker().clone();
        let mut other = None;
        let not_needed = connection.shard.look(connection.key, |peer| {
            if peer.session.has_outcome(call) {
                take(peer, call, found, &mut other);
                Err(waker)
            } else {
                Ok(peer.session.set_waiter(call, waker))
            }
        });
        match not_needed {
            Some(Ok(_earlier_waker)) => Poll::Pending,
            Some(Err(_waker)) => self.found(other, found),
            None => self.found(Some(CONNECTION_GONE), found),
        }
    }

    /// Marks the call as one that the session no longer knows.
    #[inline]
    fn found(&mut self, other: Option<Other>, found: &mut CallOutcome) -> Poll<()> {
        self.state = State::Done;
        if let Some(other) = other {
            *found = self.rarely_found(other);
        }
        Poll::Ready(())
    }

    /// The input of the reply's decoder.
    #[inline]
    pub(crate) fn finish(&mut self, found: CallOutcome) -> ReplyParts {
        self.state = State::Done;
        let codec = self.via.channel().codec;
        if let Some(load) = self.load.take() {
            match &found {
                CallOutcome::Failed(status) if status.code() == Code::Unavailable => load.refused(),
                _ => load.answered(),
            }
        }
        if self.kept.is_some() {
            self.let_go_of_kept(&found);
        }
        let into = self.extras.as_mut().and_then(|extras| extras.into.take());
        let outcome = match found {
            CallOutcome::Ok(message) => Ok((ReplyKind::Ok, message)),
            CallOutcome::UserError(message) => Ok((ReplyKind::UserError, message)),
            CallOutcome::Failed(status) => Err(status),
            CallOutcome::Nothing => Err(Code::Unknown.into()),
        };
        ReplyParts { codec, method: self.method, outcome, into }
    }
}

impl RawCall<'_> {
    /// An idempotent call has ended.
    #[inline]
    fn let_go_of_kept(&mut self, found: &CallOutcome) {
        drop(self.kept.take());
        if let (CallOutcome::Ok(_) | CallOutcome::UserError(_), Some(retries)) =
            (found, &self.via.channel().retry)
        {
            retries.on_success();
        }
    }
}

/// Keeps the body for another attempt, if it is not too long and not kept yet.
#[inline]
fn keep(body: &Option<OutBuf>, kept: &mut Option<OutBuf>) {
    if kept.is_none()
        && let Some(body) = body
        && body.len() <= MAX_KEPT_BYTES
    {
        *kept = Some(body.copied());
    }
}

/// The result of checking a call in flight.
enum Looked {
    /// There is an outcome.
    Over,
    /// No outcome yet, and this task's waker is registered already.
    Waits,
    /// No outcome yet, and another waker is registered, or none.
    Unknown,
}

/// An outcome that is no result.
struct Other {
    outcome: Outcome,
    /// The request, if another connection may take it.
    request: Option<OutBuf>,
}

/// Takes an outcome that has arrived: a result goes straight into `found`, any other outcome is
/// returned.
#[inline(always)]
fn take(peer: &mut RpcEndpoint, call: CallId, found: &mut CallOutcome, other: &mut Option<Other>) {
    match peer.session.take_result(call) {
        Some(message) => *found = CallOutcome::Ok(message),
        None => *other = take_other(peer, call),
    }
}

#[cold]
fn take_other(peer: &mut RpcEndpoint, call: CallId) -> Option<Other> {
    let request = peer.session.take_request(call);
    peer.session.take_outcome(call).map(|outcome| Other { outcome, request })
}

/// The outcome of a call whose connection the shard no longer has.
const CONNECTION_GONE: Other = Other {
    outcome: Outcome::Failed { reason: Failure::Closed, never_sent: false },
    request: None,
};

/// Offers memory for the reply to the server of the connection that it belongs to.
#[inline]
fn offer_slot(slot: Option<ReplySlot>, body: &mut Option<OutBuf>, pool: &BulkPool) {
    if let (Some(slot), Some(body)) = (slot, body) {
        slot.offer_with(body, pool);
    }
}

/// Encodes metadata for sending; empty metadata takes no bytes.
#[cold]
fn encoded(metadata: &Metadata) -> Option<OutBuf> {
    if metadata.is_empty() {
        return None;
    }
    let mut encoded = OutBuf::new();
    metadata.encode(&mut encoded);
    Some(encoded)
}

/// Why a request is not sent.
enum Refused {
    Start(StartError),
    TooLarge(String),
    QueueFull,
}

impl RpcEndpoint {
    /// Starts a call. A refused body stays in its place.
    #[inline]
    fn start(
        &mut self,
        call: &StartCall<'_>,
        body: &mut Option<OutBuf>,
    ) -> Result<CallId, Refused> {
        let body_bytes = body.as_ref().map_or(0, OutBuf::total_len);
        if !self.request_passes(call.metadata.len(), body_bytes) {
            self.look_closer(call.metadata.len(), body_bytes)?;
        }
        self.session.start_from(call, body, None).map_err(Refused::Start)
    }

    /// Slow path: a large request, or one that finds the queue full.
    #[cold]
    fn look_closer(&mut self, metadata: usize, body: u64) -> Result<(), Refused> {
        if let Some(why) = self.request_too_large(metadata, body) {
            return Err(Refused::TooLarge(why));
        }
        if !self.room.admit(body) {
            if self.when_full() == WhenFull::Refuse {
                return Err(Refused::QueueFull);
            }
            // Queued all the same: its call waits.
            self.room.count(body);
        }
        Ok(())
    }
}

fn words(failure: Failure) -> &'static str {
    match failure {
        Failure::PeerGoingAway => "the server is shutting down and takes no new calls",
        Failure::PeerTakesNoCalls => "the other side offers no services",
        _ => "the call ended without an answer",
    }
}

impl Drop for RawCall<'_> {
    #[inline]
    fn drop(&mut self) {
        if let (State::InFlight(call), Some(connection)) = (self.state, &self.on) {
            cancel(connection, call);
        }
        if let Some(body) = self.body.take() {
            drop(body);
        }
        if let Some(kept) = self.kept.take() {
            drop(kept);
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
    // The waker is returned, to be dropped outside the lock.
    let _waker = connection.shard.with_revoke(connection.key, |peer, revoke| {
        peer.session.cancel(call, &mut |tag| revoked(revoke(tag)))
    });
}

impl fmt::Debug for RawCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Ready => "ready",
            State::Waiting => "waiting",
            State::InFlight(_) => "in flight",
            State::Over => "over",
            State::Done => "done",
        };
        f.debug_struct("Call").field("method", &self.method.name).field("state", &state).finish()
    }
}
