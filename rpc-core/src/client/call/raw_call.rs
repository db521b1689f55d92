//! A call before its result is decoded.
//!
//! Owns the caller's side of one call, from the encoded arguments to the encoded outcome. It is not
//! generic over the method, so it is compiled once. Never touches a byte below the session.
//!
//! Invariants:
//! 1. The arguments are encoded when the call is made, so it borrows nothing but the channel.
//! 2. A call yields one outcome. A call that is dropped before that takes the request back if
//!    nothing of it was sent, and cancels its handler otherwise.

mod alone;
mod attempts;
mod due;
mod elsewhere;
mod extras;
mod failure;
mod forked;
mod hedge;
mod interceptors;
mod outcome;
mod resolved;
mod start;
pub(crate) mod streaming;

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use futures::future::BoxFuture;
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::protocol::config::WhenFull;
use tokio::task::coop::poll_proceed;

use self::due::Whose;
use self::extras::CallExtras;
use crate::bulk::Landing;
use crate::channel::hedging::HedgingPolicy;
use crate::channel::picker::CallEnd;
use crate::client::Connection;
use crate::client::shared::Shared;
use crate::endpoint::revoked;
use crate::reply::{CallOutcome, Value};
use crate::service::{MethodDescriptor, ReplyParts};
use crate::session::CallId;
use crate::stats::counts::End;
use crate::status::{Code, Status};
use crate::trace;

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

/// The stage of a call. Its data is in fields of the call, so that it is moved only once.
#[derive(Debug, Clone, Copy)]
enum State {
    /// Encoded, nothing sent: `body` is `Some`. It leaves on the connection `on`, if there is one.
    Ready,
    /// Encoded, nothing sent: it waits for `wait` of its extras before it is ready.
    Waiting,
    /// Sent; the session of the connection `on` knows it by its id.
    InFlight,
    /// Ended before a task waited: the outcome is in the extras.
    Over,
    /// The outcome has been taken.
    Done,
}

/// Gives a waiting call its connection.
type Wait = BoxFuture<'static, Result<Arc<Connection>, Status>>;

/// A call.
pub(crate) struct RawCall<'a> {
    via: Via<'a>,
    method: &'static MethodDescriptor,
    state: State,
    whose: Whose,
    /// While it is in flight.
    id: CallId,
    deadline: Option<Instant>,
    /// Length of the body's head, bytes, without the headers that are put in front of it.
    /// `u32::MAX`: longer than can be sent again.
    head_bytes: u32,
    on: Option<Arc<Connection>>,
    body: Option<OutBuf>,
    extras: Option<Box<CallExtras>>,
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
            whose: Whose::Unasked,
            id: CallId::NONE,
            deadline: None,
            head_bytes: 0,
            on: None,
            body,
            extras: None,
        }
    }

    pub(crate) fn add_metadata(&mut self, key: &str, value: Bytes) {
        if let Err(error) = self.extras_mut().metadata.insert(key, value) {
            let text = format!("{}: {error}", self.method.name);
            self.fail(Status::invalid_argument(text));
        }
    }

    pub(crate) fn land_in(&mut self, landing: Landing) {
        match landing {
            Landing::Buffer(buffer) => self.extras_mut().into = Some(Box::new(buffer)),
            Landing::Slot(slot) => self.extras_mut().slot = Some(slot),
        }
    }

    pub(crate) fn wait_for_ready(&mut self, wait: bool) {
        self.extras_mut().wait_for_ready = Some(wait);
    }

    pub(crate) fn when_full(&mut self, when_full: WhenFull) {
        self.extras_mut().when_full = Some(when_full);
    }

    pub(crate) fn hedging(&mut self, policy: Option<HedgingPolicy>) {
        self.extras_mut().hedging = Some(policy);
    }

    pub(crate) fn affinity(&mut self, key: u64) {
        self.extras_mut().affinity = Some(key);
    }

    /// Ends the call with an error; nothing is sent.
    #[cold]
    pub(crate) fn fail(&mut self, status: Status) {
        if !matches!(self.state, State::Over) && self.is_here() {
            self.count_unsent(status.code());
        }
        self.over(Some(Err(status.of_call(self.method))));
    }

    /// Counts a call that ends without a connection.
    #[cold]
    fn count_unsent(&mut self, code: Code) {
        let counts = &self.via.channel().counts;
        let extras = self.extras.as_mut();
        // A second attempt that was not sent is not counted.
        let is_second = extras.as_ref().is_some_and(|extras| extras.is_second);
        match extras.is_some_and(|extras| std::mem::take(&mut extras.is_counted)) {
            true => counts.on_end(self.method, code),
            false if is_second => {}
            false => counts.on_unsent(self.method, code),
        }
    }

    /// Ends the call; the first poll gets the outcome.
    #[cold]
    fn over(&mut self, found: CallOutcome) {
        // The body may hold memory of the user's, so it is dropped here, outside the lock.
        self.body = None;
        self.extras_mut().found = found;
        self.state = State::Over;
    }

    /// Sends the request, if that was not done before.
    pub(crate) fn start(&mut self) {
        if let State::Ready = self.state {
            self.send_unawaited();
            if let State::Waiting = self.state {
                self.via.channel().kick();
            }
        }
    }

    /// Sends the request of a call that no task awaits yet.
    #[inline(always)]
    fn send_unawaited(&mut self) {
        let found = self.send(false);
        if let State::Done = self.state {
            self.over(found);
        }
    }

    /// The call, detached from the channel borrow.
    #[inline]
    pub(crate) fn into_detached(self) -> RawCall<'static> {
        let mut rest = ManuallyDrop::new(self);
        let detached = rest.detached();
        if let Via::Owned(_) = rest.via {
            // Only a borrow needs no drop.
            drop(ManuallyDrop::into_inner(rest));
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
            whose: self.whose,
            id: self.id,
            deadline: self.deadline,
            head_bytes: self.head_bytes,
            on: self.on.take(),
            body: self.body.take(),
            extras: self.extras.take(),
        }
    }

    /// Ready with the outcome.
    ///
    /// # Panics
    /// When polled after that.
    #[inline]
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<CallOutcome> {
        let polled = self.poll_attempt(cx);
        match &self.extras {
            Some(extras) if extras.hedge.is_some() => self.poll_race(polled, cx),
            _ => polled,
        }
    }

    /// A call that is answered at once takes part of tokio's budget for a task's turn: a loop of
    /// such calls must not starve the other tasks of its thread.
    fn poll_attempt(&mut self, cx: &mut Context<'_>) -> Poll<CallOutcome> {
        let mut turn = None;
        loop {
            if !matches!(self.state, State::InFlight) {
                // A turn that was not used is given back before the next one: its drop restores the
                // budget of before.
                drop(turn.take());
            }
            let found = match self.state {
                State::InFlight => std::task::ready!(self.poll_outcome(cx)),
                State::Ready => {
                    let Poll::Ready(taken) = poll_proceed(cx) else {
                        self.send_and_yield();
                        return Poll::Pending;
                    };
                    turn = Some(taken);
                    self.send(true)
                }
                State::Waiting => {
                    std::task::ready!(self.poll_waiting(cx));
                    None
                }
                State::Over => return self.poll_over(cx),
                State::Done => panic!("`Call` polled after completion"),
            };
            if let State::Done = self.state {
                // An outcome that was waited for needs no turn: its task has slept, or led.
                if let Some(turn) = turn {
                    turn.made_progress();
                }
                return Poll::Ready(found);
            }
        }
    }

    #[cold]
    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<CallOutcome> {
        // Calls that fail at once take part of the budget as well. A call with a second attempt was
        // on its way, and may not end with this one.
        if self.extras.as_ref().is_none_or(|extras| extras.hedge.is_none()) {
            std::task::ready!(poll_proceed(cx)).made_progress();
        }
        Poll::Ready(self.take_found())
    }

    /// The task has used its turn, and is woken to have the next one. The request leaves all the
    /// same: other tasks have their turns while it is on its way, and find a call in flight.
    #[cold]
    fn send_and_yield(&mut self) {
        let own = self.extras.as_ref().and_then(|extras| extras.when_full);
        // Calls that are rather refused than wait leave in turns. Others may be answered meanwhile.
        if own.unwrap_or(self.via.channel().when_full) != WhenFull::Refuse {
            self.send_unawaited();
        }
    }

    /// The outcome of a call in [`State::Over`].
    #[cold]
    fn take_found(&mut self) -> CallOutcome {
        self.extras.as_mut()?.found.take()
    }

    /// The input of the reply's decoder.
    #[inline(always)]
    pub(crate) fn finish(&mut self, found: CallOutcome) -> ReplyParts {
        self.state = State::Done;
        let (found, into) = match self.extras.take() {
            None => (found, None),
            Some(extras) => self.end_extras(extras, found),
        };
        let outcome = match found {
            Some(outcome) => outcome,
            None => no_outcome(),
        };
        let codec = self.via.channel().codec.of_calls(self.method);
        ReplyParts { codec, method: self.method, outcome, into }
    }

    /// The source of the call's stream has failed. That is the outcome, whatever the server
    /// answered.
    #[cold]
    pub(crate) fn end_by_source(&mut self, found: &CallOutcome, status: Status) -> CallOutcome {
        if let Some(load) = self.take_load() {
            load.end_with(found, self.method);
        }
        Some(Err(status))
    }

    #[cold]
    fn drop_slow(&mut self) {
        if !self.is_here() {
            self.leak_timers();
        }
        if self.is_here() && self.go_on_alone() {
            return;
        }
        if let (State::InFlight, Some(connection)) = (self.state, &self.on) {
            cancel(connection, self.id, self.method);
        }
        self.body = None;
        let Some(mut extras) = self.extras.take() else { return };
        if extras.is_counted && self.is_here() {
            self.via.channel().counts.on_end(self.method, Code::Cancelled);
        }
        if let Some(span) = extras.span.take() {
            trace::end(span, End::Code(Code::Cancelled));
        }
        (extras.wait, extras.hedge) = (None, None);
        if let Some(load) = extras.load.take() {
            load.end(CallEnd::GivenUp);
        }
        self.end_extras(extras, None);
    }
}

#[cold]
fn no_outcome() -> Result<Value, Status> {
    Err(Code::Unknown.into())
}

impl Drop for RawCall<'_> {
    // Nearly all calls have ended, and have nothing left.
    #[inline]
    fn drop(&mut self) {
        let is_in_flight = matches!(self.state, State::InFlight);
        if is_in_flight || self.body.is_some() || self.extras.is_some() {
            self.drop_slow();
        }
    }
}

#[cold]
fn cancel(connection: &Connection, call: CallId, method: &'static MethodDescriptor) {
    let method_index = method.dense_index();
    // The waker is returned, to be dropped outside the lock.
    let caller = call.as_u64();
    let _waker = connection.shard.stop_waiting(connection.key, caller, |peer, revoke| {
        if peer.session.knows(call) {
            peer.counts.on_end(method_index, End::Code(Code::Cancelled), 0);
        }
        peer.session.cancel(call, &mut |tag| revoked(revoke(tag)))
    });
}

impl fmt::Debug for RawCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Ready => "ready",
            State::Waiting => "waiting",
            State::InFlight => "in flight",
            State::Over => "over",
            State::Done => "done",
        };
        f.debug_struct("Call").field("method", &self.method.name).field("state", &state).finish()
    }
}
