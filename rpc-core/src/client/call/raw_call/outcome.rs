//! Takes the outcome of a call from the session, or waits for it.

use std::task::{Context, Poll};

use rpc_transport::engine::poll::give_way;
use rpc_transport::engine::shard::Waited;

use super::{RawCall, State};
use crate::channel::retry::Failed;
use crate::endpoint::take::{NotResult, Sent, Taken};
use crate::reply::{CallOutcome, Value};
use crate::resolution::Decoding;
use crate::service::ReplyKind;
use crate::session::{self, Outcome};
use crate::stats::counts::Timed;
use crate::status::Code;

impl RawCall<'_> {
    /// The attempt in flight.
    #[inline]
    pub(super) fn sent(&self) -> Sent<'_> {
        Sent { call: self.id, method: self.method, began: self.began() }
    }

    /// When the attempt in flight was sent, if it is timed.
    #[inline]
    pub(super) fn began(&self) -> Option<&Timed> {
        self.extras.as_ref()?.began.as_ref()
    }

    /// Takes the outcome, or waits for it. The caller polls for the driver, if no other caller
    /// does.
    #[inline]
    pub(super) fn poll_outcome(&mut self, cx: &mut Context<'_>) -> Poll<CallOutcome> {
        let Some(connection) = &self.on else { return self.connection_gone() };
        let sent = self.sent();
        let (mut taken, mut is_registered) = (None, false);
        let waited = connection.shard.wait(connection.key, sent.call.as_u64(), |peer| {
            taken = peer.take(sent);
            if taken.is_none() {
                let waiter = peer.session.waiter(sent.call);
                is_registered = waiter.is_some_and(|waiter| waiter.will_wake(cx.waker()));
            }
            taken.is_some()
        });
        if let Some(taken) = taken {
            return Poll::Ready(self.on_taken(taken));
        }
        match waited {
            None | Some(Waited::Done) => self.connection_gone(),
            Some(Waited::Leads) => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Some(Waited::GivesWay) => {
                give_way(cx);
                Poll::Pending
            }
            Some(Waited::Sleeps) if is_registered => Poll::Pending,
            Some(Waited::Sleeps) => self.poll_with_waker(cx),
        }
    }

    /// Registers a new waker. Wakers are the caller's code, so they are cloned and dropped outside
    /// the shard's lock.
    #[inline(never)]
    fn poll_with_waker(&mut self, cx: &Context<'_>) -> Poll<CallOutcome> {
        let Some(connection) = &self.on else { return self.connection_gone() };
        let (sent, waker) = (self.sent(), cx.waker().clone());
        let registered = connection.shard.fall_asleep(connection.key, |peer| {
            // What is not needed, an earlier waker or this one, is dropped outside the lock.
            match peer.take(sent) {
                Some(taken) => (Some(taken), Some(waker)),
                None => (None, peer.session.set_waiter(sent.call, waker)),
            }
        });
        match registered {
            Some((None, _)) => Poll::Pending,
            Some((Some(taken), _)) => Poll::Ready(self.on_taken(taken)),
            None => self.connection_gone(),
        }
    }

    #[cold]
    fn connection_gone(&mut self) -> Poll<CallOutcome> {
        Poll::Ready(self.on_taken(Err(Box::new(NotResult::CONNECTION_GONE))))
    }

    /// The session no longer knows the call. Gives the outcome, unless the call goes on.
    #[inline]
    pub(super) fn on_taken(&mut self, taken: Taken) -> CallOutcome {
        self.state = State::Done;
        match taken {
            Ok(message) => Some(Ok(Value::of_own_types(message))),
            Err(other) => self.on_not_result(*other),
        }
    }

    /// Slow path of [`RawCall::on_taken`]. A call that goes on waits for another connection.
    #[cold]
    pub(super) fn on_not_result(&mut self, other: NotResult) -> CallOutcome {
        if !self.is_here() {
            self.leak_timers();
            return Some(Err(self.forked()));
        }
        let NotResult { outcome, decoding, request } = other;
        if let Some(request) = request {
            self.extras_mut().is_counted = true;
            if let Outcome::Reply(reply) = &outcome {
                return self.on_refused(reply, request);
            }
            if let Some(body) = self.rewound(request) {
                self.send_elsewhere(body);
                return None;
            }
            self.count_unsent(Code::Unavailable);
        }
        if let Some(failed) = self.retryable(&outcome) {
            // Before the next attempt, which has a load of its own.
            if let (Failed::Lost(..), Some(on)) = (failed, &self.on) {
                on.is_lost();
            }
            if let Some(load) = self.take_load() {
                load.end_with_code(self.method.name, code_of(&outcome));
            }
            if self.try_again(failed) {
                return None;
            }
        }
        // A status of the server stays as it is.
        let is_reply = matches!(outcome, Outcome::Reply(_));
        match self.ended(outcome, decoding) {
            Some(Err(status)) if !is_reply => Some(Err(self.with_attempts(status))),
            other => other,
        }
    }

    #[cold]
    fn ended(&self, outcome: Outcome, decoding: Decoding) -> CallOutcome {
        match outcome {
            Outcome::Reply(reply) => match reply.kind {
                session::ReplyKind::Ok => {
                    Some(Ok(Value { kind: ReplyKind::Ok, decoding, message: reply.message }))
                }
                session::ReplyKind::UserError => {
                    Some(Ok(Value { kind: ReplyKind::UserError, decoding, message: reply.message }))
                }
                session::ReplyKind::Status { code, retryable, .. } => {
                    let status = self.received(&reply, code, retryable);
                    Some(Err(status.of_call(self.method)))
                }
            },
            Outcome::Failed { reason, never_sent } => {
                Some(Err(self.failed(reason, never_sent).of_call(self.method)))
            }
        }
    }
}

/// The code with which an attempt ended that may be made again.
#[cold]
fn code_of(outcome: &Outcome) -> Code {
    match outcome {
        Outcome::Reply(reply) => match reply.kind {
            session::ReplyKind::Status { code, .. } => {
                Code::from_number(code).unwrap_or(Code::Unknown)
            }
            _ => Code::Ok,
        },
        Outcome::Failed { .. } => Code::Unavailable,
    }
}
