//! Takes the outcome of a call from the session, or waits for it.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll};

use rpc_transport::engine::shard::Waited;
use rpc_transport::message::outgoing::OutBuf;

use super::{RawCall, Sent, State};
use crate::endpoint::RpcEndpoint;
use crate::endpoint::counts::{body_bytes, end_of};
use crate::observability::stats::counts::{End, Timed};
use crate::service::reply::CallOutcome;
use crate::service::{MethodDescriptor, ReplyKind};
use crate::session::{self, CallId, Failure, NoResult, Outcome};

impl RawCall<'_> {
    /// The attempt in flight.
    #[inline]
    pub(super) fn sent(&self, call: CallId) -> Sent<'_> {
        Sent {
            call,
            method: self.method,
            began: self.beside.as_ref().and_then(|beside| beside.began.as_ref()),
        }
    }

    /// Takes the outcome; or waits for it, if need be by polling in place of the driver.
    #[inline]
    pub(super) fn poll_outcome(
        &mut self,
        call: CallId,
        cx: &mut Context<'_>,
        found: &mut CallOutcome,
    ) -> Poll<()> {
        let Some(connection) = &self.on else { return self.found(Some(CONNECTION_GONE), found) };
        let mut other = None;
        let mut is_registered = false;
        let waited = connection.shard.wait(connection.key, call.as_u64(), |peer| {
            if peer.take(self.sent(call), found, &mut other) {
                return Some(());
            }
            let waiter = peer.session.waiter(call);
            is_registered = waiter.is_some_and(|waiter| waiter.will_wake(cx.waker()));
            None
        });
        match waited {
            Some(Waited::Done(())) => self.found(other, found),
            Some(Waited::Leads) => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Some(Waited::GivesWay) => {
                give_way(cx);
                Poll::Pending
            }
            Some(Waited::Sleeps) if is_registered => Poll::Pending,
            Some(Waited::Sleeps) => self.poll_with_waker(call, cx, found),
            None => self.found(Some(CONNECTION_GONE), found),
        }
    }

    /// Registers a new waker. Wakers are the caller's code, so they are cloned and dropped outside
    /// the shard's lock.
    #[inline(never)]
    fn poll_with_waker(
        &mut self,
        call: CallId,
        cx: &Context<'_>,
        found: &mut CallOutcome,
    ) -> Poll<()> {
        let Some(connection) = &self.on else { return self.found(Some(CONNECTION_GONE), found) };
        let waker = cx.waker().clone();
        let mut other = None;
        let sent = self.sent(call);
        let not_needed = connection.shard.fall_asleep(connection.key, |peer| {
            if peer.take(sent, found, &mut other) {
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

    /// Slow path: any outcome but a result that was already taken on the fast path. Nothing if the
    /// call goes on: it waits then.
    #[cold]
    pub(super) fn rarely_found(&mut self, other: Other) -> CallOutcome {
        let Other { outcome, request } = other;
        if !self.method.has_streams()
            && let Some(body) = request.and_then(|body| self.rewound(body))
        {
            self.send_elsewhere(body);
            return None;
        }
        if let Some(failed) = self.retryable(&outcome)
            && self.try_again(failed)
        {
            return None;
        }
        // The server's own word stays as it is.
        let is_reply = matches!(outcome, Outcome::Reply(_));
        match self.ended(outcome) {
            Some(Err(status)) if !is_reply => Some(Err(self.with_attempts(status))),
            other => other,
        }
    }

    #[cold]
    fn ended(&self, outcome: Outcome) -> CallOutcome {
        match outcome {
            Outcome::Reply(reply) => match reply.kind {
                session::ReplyKind::Ok => Some(Ok((ReplyKind::Ok, reply.message))),
                session::ReplyKind::UserError => Some(Ok((ReplyKind::UserError, reply.message))),
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

/// Has the task polled again once others have run. Where one thread runs them all, I/O is polled first: what the
/// caller waits for may come from a task that sleeps there until then. Where there are several, others do that.
fn give_way(cx: &mut Context<'_>) {
    let runtime = tokio::runtime::Handle::try_current();
    if runtime.is_ok_and(|it| it.metrics().num_workers() == 1) {
        let _ = pin!(tokio::task::yield_now()).poll(cx);
    } else {
        cx.waker().wake_by_ref();
    }
}

/// An outcome that is no result.
pub(super) struct Other {
    pub(super) outcome: Outcome,
    /// The request, if another connection may take it.
    pub(super) request: Option<OutBuf>,
}

impl RpcEndpoint {
    /// Takes the outcome of a call, if it has arrived: a result goes straight into `found`, any other
    /// outcome is returned in `other`. Whether it has arrived.
    #[inline]
    pub(super) fn take(
        &mut self,
        Sent { call, method, began }: Sent<'_>,
        found: &mut CallOutcome,
        other: &mut Option<Other>,
    ) -> bool {
        self.take_apart(call, method, began, found, other)
    }

    // Apart, so that all of it is passed in registers.
    fn take_apart(
        &mut self,
        call: CallId,
        method: &'static MethodDescriptor,
        began: Option<&Timed>,
        found: &mut CallOutcome,
        other: &mut Option<Other>,
    ) -> bool {
        match self.session.take_result(call) {
            Ok((message, method_index)) => {
                self.counts.on_end(method_index, End::OK, body_bytes(&message));
                if let Some(began) = began {
                    self.counts.on_timed(method_index, *began);
                }
                debug_assert!(found.is_none(), "a call has one outcome");
                // There is nothing to drop.
                std::mem::forget(found.replace(Ok((ReplyKind::Ok, message))));
                true
            }
            Err(NoResult::Pending) => false,
            Err(NoResult::Other) => {
                *other = take_other(self, Sent { call, method, began });
                true
            }
        }
    }
}

#[cold]
fn take_other(peer: &mut RpcEndpoint, sent: Sent<'_>) -> Option<Other> {
    let request = peer.session.take_request(sent.call);
    let outcome = peer.session.take_outcome(sent.call)?;
    count(peer, sent, &outcome);
    Some(Other { outcome, request })
}

/// Counts the outcome of a call.
pub(super) fn count(peer: &mut RpcEndpoint, sent: Sent<'_>, outcome: &Outcome) {
    let ((end, bytes), method_index) = (end_of(outcome), sent.method.dense_index());
    peer.counts.on_end(method_index, end, bytes);
    if let Some(began) = sent.began {
        peer.counts.on_timed(method_index, *began);
    }
}

/// The outcome of a call whose connection the shard no longer has.
pub(super) const CONNECTION_GONE: Other = Other {
    outcome: Outcome::Failed { reason: Failure::Closed, never_sent: false },
    request: None,
};
