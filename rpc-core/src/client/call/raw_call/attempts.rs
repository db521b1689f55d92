//! Waits for a connection, and goes on after an attempt that has failed.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use rpc_transport::message::outgoing::OutBuf;

use super::{RawCall, State};
use crate::channel::retry::Failed;
use crate::client::shared::earliest;
use crate::context::Context as CallContext;
use crate::service::reply::CallOutcome;
use crate::session::{self, Failure, Outcome};
use crate::status::{Code, Status};

impl RawCall<'_> {
    /// There is no connection: waits for one, if the call may.
    #[cold]
    pub(super) fn wait_for_connection(&mut self) {
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
    pub(super) fn send_elsewhere(&mut self, body: OutBuf) {
        if let Some(on) = self.on.take() {
            on.is_lost();
        }
        *self.body = Some(body);
        drop(self.take_load());
        self.wait_for_connection();
    }

    /// Ready when the call waits no longer.
    #[cold]
    pub(super) fn poll_waiting(&mut self, cx: &mut Context<'_>) -> Poll<()> {
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
                let goes_on = self.beside.as_ref().is_some_and(|beside| beside.kept.is_some())
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

    /// How an attempt has failed, if the call may be tried again for that.
    pub(super) fn retryable(&self, outcome: &Outcome) -> Option<Failed> {
        self.kept()?;
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
    pub(super) fn try_again(&mut self, failed: Failed) -> bool {
        let channel = Arc::clone(self.via.channel());
        let Some(retries) = &channel.retry else { return false };
        if self.kept().is_none() {
            return false;
        }
        if let Failed::Refused(Some(wait)) = failed {
            channel.hedging.on_pushback(wait);
        }
        let extras = self.extras.get_or_insert_default();
        let Some(delay) = retries.after(&mut extras.attempts, failed, self.deadline) else {
            return false;
        };
        let may_again = extras.attempts.failed() + 1 < retries.policy.attempts();
        *self.body = self.beside.as_mut().and_then(|beside| match &beside.kept {
            Some(kept) if may_again => Some(kept.copied()),
            _ => beside.kept.take(),
        });
        if let (Failed::Lost(..), Some(on)) = (failed, self.on.take()) {
            on.is_lost();
        }
        self.on = None;
        if let Some(load) = self.take_load() {
            load.refused();
        }
        self.wait(Some(delay));
        true
    }

    #[cold]
    pub(super) fn with_attempts(&self, status: Status) -> Status {
        match self.extras.as_ref().map_or(0, |extras| extras.attempts.failed()) {
            0 | 1 => status,
            failed => status.with_more(format_args!(" (tried {failed} times)")),
        }
    }

    /// An idempotent call has ended.
    #[inline]
    pub(super) fn let_go_of_kept(&self, kept: OutBuf, found: &CallOutcome) {
        drop(kept);
        if let (Some(Ok(_)), Some(retries)) = (found, &self.via.channel().retry) {
            retries.on_success();
        }
    }
}
