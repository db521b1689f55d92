//! Waits for a connection, and goes on after an attempt that has failed.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rpc_transport::lock::Mutex;
use rpc_transport::message::outgoing::OutBuf;

use super::extras::CallExtras;
use super::{RawCall, State};
use crate::channel::retry::Failed;
use crate::context::Context as CallContext;
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
        let waits_until = self.weigh_deadlines(CallContext::current_deadline());
        let deadline = waits_until.map(|deadline| self.last_moment(deadline));
        let extras = self.extras.get_or_insert_with(CallExtras::take);
        let waits = extras.wait_for_ready.unwrap_or(channel.wait_for_ready);
        let name = self.method.name;
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
        self.forget_schema();
        if self.is_refused() {
            return self.stay_elsewhere(body);
        }
        self.body = Some(body);
        drop(self.take_load());
        self.wait_for_connection();
    }

    /// Ready when the call waits no longer.
    #[cold]
    pub(super) fn poll_waiting(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.is_here() {
            self.refuse_in_child();
            return Poll::Ready(());
        }
        let Some(extras) = &mut self.extras else { return Poll::Ready(()) };
        let waited = match &mut extras.wait {
            Some(wait) => std::task::ready!(wait.get_mut().as_mut().poll(cx)),
            None => Err(Code::Unknown.into()),
        };
        extras.wait = None;
        match waited {
            Ok(connection) => {
                // A key has its own.
                self.on = Some(connection).filter(|_| extras.affinity.is_none());
                self.state = State::Ready;
            }
            Err(status) => {
                // It was sent before, so this is one more attempt that has failed.
                let goes_on = extras.kept.is_some()
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
        self.extras.as_ref()?.kept.as_ref()?;
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
        let Some(extras) = self.extras.as_mut().filter(|extras| extras.kept.is_some()) else {
            return false;
        };
        if let Failed::Refused(Some(wait)) = failed {
            channel.hedging.on_pushback(wait);
        }
        let next = retries.after(&mut extras.attempts, failed, self.deadline);
        if next.has_engaged {
            channel.log_throttled();
        }
        let Some(delay) = next.delay else { return false };
        let may_again = extras.attempts.failed() + 1 < retries.policy.attempts();
        self.body = match &extras.kept {
            Some(kept) if may_again => Some(kept.copied()),
            _ => extras.kept.take(),
        };
        self.on = None;
        self.forget_schema();
        // It has been answered since then, and may go anywhere.
        self.extras_mut().refusals = None;
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
}
