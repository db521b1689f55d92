//! A call before its result is decoded.
//!
//! Owns the caller's side of one call, from the encoded arguments to the encoded outcome. It is not
//! generic over the method, so it is compiled once. Never touches a byte below the session.
//!
//! Invariants:
//! 1. The arguments are encoded when the call is made, so it borrows nothing but the channel.
//! 2. A call yields one outcome. A call dropped before that takes the request back if nothing of
//!    it was sent, and cancels its handler otherwise.

mod around;
mod attempts;
mod beside;
mod failure;
mod hedge;
mod outcome;
mod start;
pub(crate) mod streaming;

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::protocol::config::WhenFull;
use tokio::task::coop::RestoreOnPending;
use tracing::Span;

use self::beside::Beside;
use self::hedge::Hedge;
use crate::bulk::{BulkMut, Landing, ReplySlot};
use crate::channel::hedging::HedgingPolicy;
use crate::channel::retry::Attempts;
use crate::client::Connection;
use crate::client::shared::Shared;
use crate::endpoint::revoked;
use crate::metadata::Metadata;
use crate::observability::stats::counts::{End, Timed};
use crate::observability::trace;
use crate::service::reply::CallOutcome;
use crate::service::{MethodDescriptor, ReplyParts};
use crate::session::CallId;
use crate::status::{Code, Status};

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

/// An attempt that the session knows.
#[derive(Debug, Clone, Copy)]
struct Sent<'a> {
    call: CallId,
    method: &'static MethodDescriptor,
    /// When it was sent, if it is one that is timed.
    began: Option<&'a Timed>,
}

/// What gives a waiting call its connection.
type Wait = BoxFuture<'static, Result<Arc<Connection>, Status>>;

/// State that few calls need: their options, and how far they are. What has to be let go of when the call ends
/// is in [`Beside`].
#[derive(Default)]
pub(crate) struct Extras {
    metadata: Metadata,
    into: Option<Box<BulkMut>>,
    /// Memory for the reply that the server writes itself.
    slot: Option<ReplySlot>,
    /// The outcome of a call in [`State::Over`].
    found: CallOutcome,
    /// Unless the channel's default holds.
    wait_for_ready: Option<bool>,
    /// The same.
    when_full: Option<WhenFull>,
    /// The same.
    hedging: Option<Option<HedgingPolicy>>,
    /// It is the second attempt of another call.
    is_second: bool,
    hedge: Option<Hedge>,
    /// It has its place in a trace.
    is_traced: bool,
    /// Until its end is told.
    span: Option<Span>,
    attempts: Attempts,
    /// What a call in [`State::Waiting`] waits for. The mutex is never locked: it makes a future
    /// that only one thread at a time polls fit for a call that several may see.
    wait: Option<Mutex<Wait>>,
}

/// A call.
pub(crate) struct RawCall<'a> {
    via: Via<'a>,
    method: &'static MethodDescriptor,
    state: State,
    deadline: Option<Instant>,
    /// Length of the body's head, bytes, without what is put in front of it to be sent. `u32::MAX`: longer
    /// than can be sent again.
    head_bytes: u32,
    on: Option<Arc<Connection>>,
    // `ManuallyDrop`, because these are mostly `None`: `drop` checks that inline, all at once.
    body: ManuallyDrop<Option<OutBuf>>,
    extras: ManuallyDrop<Option<Box<Extras>>>,
    beside: ManuallyDrop<Option<Box<Beside>>>,
}

// With the decoder, a call is moved without a call of `memcpy`.
const _: () = assert!(size_of::<RawCall<'_>>() <= 96, "a call is moved several times");

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
            body: ManuallyDrop::new(body),
            extras: ManuallyDrop::new(None),
            beside: ManuallyDrop::new(None),
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

    pub(crate) fn when_full(&mut self, when_full: WhenFull) {
        self.extras.get_or_insert_default().when_full = Some(when_full);
    }

    pub(crate) fn hedging(&mut self, policy: Option<HedgingPolicy>) {
        self.extras.get_or_insert_default().hedging = Some(policy);
    }

    /// Ends the call with an error; nothing is sent.
    #[cold]
    pub(crate) fn fail(&mut self, status: Status) {
        if !matches!(self.state, State::Over) {
            self.via.channel().counts.on_unsent(self.method, status.code());
        }
        self.over(Some(Err(status.of_call(self.method))));
    }

    /// Ends the call; the first poll gets the outcome.
    #[cold]
    fn over(&mut self, found: CallOutcome) {
        // The body may hold memory of the user's, so it is dropped here, outside the lock.
        *self.body = None;
        self.extras.get_or_insert_default().found = found;
        self.state = State::Over;
    }

    /// Sends the request, if that was not done before.
    pub(crate) fn start(&mut self) {
        if let State::Ready = self.state {
            let mut found = None;
            self.send(false, &mut found);
            if found.is_some() {
                self.over(found);
            }
            if let State::Waiting = self.state {
                self.via.channel().kick();
            }
        }
    }

    /// The call, detached from the channel borrow.
    #[inline]
    pub(crate) fn into_detached(self) -> RawCall<'static> {
        let mut this = ManuallyDrop::new(self);
        let detached = this.detached();
        // Nothing else is left in it.
        if let Via::Owned(_) = this.via {
            drop(ManuallyDrop::into_inner(this));
        }
        detached
    }

    /// Moves the call out, detached from the channel borrow.
    #[inline]
    pub(crate) fn detached(&mut self) -> RawCall<'static> {
        RawCall {
            via: Via::Owned(Arc::clone(self.via.channel())),
            method: self.method,
            state: std::mem::replace(&mut self.state, State::Done),
            deadline: self.deadline,
            head_bytes: self.head_bytes,
            on: self.on.take(),
            body: ManuallyDrop::new(self.body.take()),
            extras: ManuallyDrop::new(self.extras.take()),
            beside: ManuallyDrop::new(self.beside.take()),
        }
    }

    /// Ready when `found` has the outcome.
    ///
    /// # Panics
    /// When polled after that.
    #[inline]
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, found: &mut CallOutcome) -> Poll<()> {
        let polled = self.poll_attempt(cx, found);
        match &*self.extras {
            Some(extras) if extras.hedge.is_some() => self.poll_race(polled.is_ready(), cx, found),
            _ => polled,
        }
    }

    fn poll_attempt(&mut self, cx: &mut Context<'_>, found: &mut CallOutcome) -> Poll<()> {
        let mut turn = None;
        loop {
            match self.state {
                State::InFlight(call) => std::task::ready!(self.poll_outcome(call, cx, found)),
                // A turn that was not used is given back first: its drop sets the budget to what was there before.
                State::Over => {
                    drop(turn.take());
                    return self.poll_over(cx, found);
                }
                _ => {
                    drop(turn.take());
                    turn = std::task::ready!(self.poll_unsent(cx, found));
                }
            }
            if let State::Done = self.state {
                // An outcome that was waited for needs none: its task has slept, or led.
                if let Some(turn) = turn {
                    turn.made_progress();
                }
                return Poll::Ready(());
            }
        }
    }

    /// The next step of a call of which nothing is sent. Gives what it has of tokio's coop budget if it
    /// is sent: a loop of calls that are answered at once must not starve the other tasks of its thread.
    fn poll_unsent(
        &mut self,
        cx: &mut Context<'_>,
        found: &mut CallOutcome,
    ) -> Poll<Option<RestoreOnPending>> {
        match self.state {
            State::Ready => {
                let Poll::Ready(turn) = tokio::task::coop::poll_proceed(cx) else {
                    return self.send_and_yield(found);
                };
                self.send(true, found);
                Poll::Ready(Some(turn))
            }
            State::Waiting => self.poll_waiting(cx).map(|()| None),
            _ => panic!("`Call` polled after completion"),
        }
    }

    #[cold]
    fn poll_over(&mut self, cx: &mut Context<'_>, found: &mut CallOutcome) -> Poll<()> {
        // Calls that fail at once take part of the budget as well. One that has a second attempt was on its
        // way, and may not end with this one.
        if self.extras.as_ref().is_none_or(|extras| extras.hedge.is_none()) {
            std::task::ready!(tokio::task::coop::poll_proceed(cx)).made_progress();
        }
        self.take_found(found);
        Poll::Ready(())
    }

    /// The task has had its turn, and is woken to have the next one. The request leaves all the same: the
    /// others get theirs while it is on its way, and find that they are not alone.
    #[cold]
    fn send_and_yield<T>(&mut self, found: &mut CallOutcome) -> Poll<T> {
        let own = self.extras.as_ref().and_then(|extras| extras.when_full);
        // Calls that would rather be refused than wait leave in turns, which others may answer meanwhile.
        if own.unwrap_or(self.via.channel().when_full) == WhenFull::Refuse {
            return Poll::Pending;
        }
        self.send(false, found);
        if let State::Done = self.state {
            self.over(std::mem::take(found));
        }
        Poll::Pending
    }

    #[cold]
    fn take_found(&mut self, found: &mut CallOutcome) {
        if let Some(extras) = &mut *self.extras {
            *found = std::mem::take(&mut extras.found);
        }
    }

    /// The input of the reply's decoder.
    #[inline(always)]
    pub(crate) fn finish(&mut self, mut found: CallOutcome) -> ReplyParts {
        self.state = State::Done;
        let mut into = None;
        if self.extras.is_some() {
            into = self.finish_extras(&mut found);
        }
        if let Some(beside) = self.beside.take() {
            self.end_beside(beside, &mut found);
        }
        let (codec, method) = (self.via.channel().codec, self.method);
        // By its parts, as what lies between these would be moved, too.
        let outcome = match found {
            Some(Ok((kind, message))) => Ok((kind, message)),
            Some(Err(status)) => Err(status),
            None => Err(Code::Unknown.into()),
        };
        ReplyParts { codec, method, outcome, into }
    }

    /// Gives the memory for the reply.
    #[inline(never)]
    fn finish_extras(&mut self, found: &mut CallOutcome) -> Option<Box<BulkMut>> {
        let extras = (*self.extras).as_mut()?;
        let (into, span) = (extras.into.take(), extras.span.take());
        // Before the interceptors: what they take is none of the call's time.
        if let Some(hedge) = extras.hedge.take() {
            hedge.end(self.via.channel(), self.method, found);
        }
        if let Some(beside) = self.beside.take() {
            self.end_beside(beside, found);
        }
        if let Some(span) = span {
            Self::end_trace(span, found);
        }
        into
    }
}

impl Drop for RawCall<'_> {
    // Nearly all have ended, and have nothing left.
    #[inline]
    fn drop(&mut self) {
        let is_in_flight = matches!(self.state, State::InFlight(_));
        if is_in_flight || self.body.is_some() || self.extras.is_some() || self.beside.is_some() {
            self.drop_rest();
        }
    }
}

impl RawCall<'_> {
    #[cold]
    fn drop_rest(&mut self) {
        if let (State::InFlight(call), Some(connection)) = (self.state, &self.on) {
            cancel(connection, call, self.method);
        }
        drop(self.body.take());
        if let Some(extras) = self.extras.take() {
            drop_extras(extras);
        }
        if let Some(beside) = self.beside.take() {
            self.drop_beside(beside);
        }
    }

    /// The source of its stream has failed: so that is the outcome, whatever the server answered.
    #[cold]
    pub(crate) fn end_by_source(&mut self, found: &mut CallOutcome, status: Status) {
        if let Some(load) = self.take_load() {
            load.let_go(found);
        }
        *found = Some(Err(status));
    }
}

#[cold]
fn drop_extras(mut extras: Box<Extras>) {
    if let Some(span) = extras.span.take() {
        trace::end(span, End::Code(Code::Cancelled));
    }
    drop(extras);
}

#[cold]
fn cancel(connection: &Connection, call: CallId, method: &'static MethodDescriptor) {
    let method_index = method.dense_index();
    // The waker is returned, to be dropped outside the lock.
    let _waker = connection.shard.with_revoke(connection.key, |peer, revoke| {
        if peer.session.knows(call) {
            peer.counts.on_end(method_index, End::Code(Code::Cancelled), 0);
        }
        peer.session.cancel(call, &mut |tag| revoked(revoke(tag)))
    });
    connection.shard.stop_waiting(connection.key, call.as_u64());
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
