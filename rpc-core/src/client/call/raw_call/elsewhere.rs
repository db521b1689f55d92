//! A call of a balanced channel that one of its servers has refused before any handler ran: because
//! it lacks the method, or because its types cannot be converted.
//!
//! The call goes to the next server, as in a fleet that is being updated some have the method. No
//! handler ran, so this is no retry: budgets, counts and interceptors see one call, and it keeps
//! its deadline.
//!
//! Invariants:
//! 1. A server refuses a call at most once, and few servers do.
//! 2. If all of them refuse, the call ends with what the first one said.

use std::sync::Arc;

use rpc_transport::message::outgoing::OutBuf;

use super::{RawCall, State};
use crate::channel::throttle::Throttle;
use crate::client::Connection;
use crate::client::shared::{Retries, Shared};
use crate::reply::CallOutcome;
use crate::status::Status;

/// Most servers that a call is sent to.
const MAX_SERVERS: usize = 16;

/// The refusals of a call.
pub(super) struct Refusals {
    first: Status,
    /// The end points.
    by: Vec<usize>,
}

impl Refusals {
    /// A connection to a server that has not refused the call, and is not that of the connection
    /// `than`.
    #[cold]
    pub(super) fn elsewhere(
        &self,
        channel: &Shared,
        than: &Arc<Connection>,
    ) -> Option<Arc<Connection>> {
        let but: Vec<usize> = self.by.iter().copied().chain([than.end_point()]).collect();
        channel.elsewhere(&but)
    }
}

impl RawCall<'_> {
    /// Whether a server has refused the call and none has answered it since.
    pub(super) fn is_refused(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.refusals.is_some())
    }

    /// The server has refused the call with `status`. Gives the outcome, unless it goes to another
    /// one. `body`: what was sent, unless it cannot be sent again.
    #[cold]
    pub(super) fn try_elsewhere(&mut self, status: Status, body: Option<OutBuf>) -> CallOutcome {
        let status = status.of_call(self.method);
        // A refusal says nothing about how the server fares.
        drop(self.take_load());
        let by = self.on.as_ref().map(|on| on.end_point());
        let extras = self.extras_mut();
        let new = || Box::new(Refusals { first: status, by: Vec::new() });
        extras.refusals.get_or_insert_with(new).by.extend(by);
        self.forget_schema();
        match (self.next_server(), body) {
            (Some(next), Some(body)) => {
                self.on = Some(next);
                self.send_again(body)
            }
            _ => {
                let first = self.first_refusal();
                self.count_unsent(first.code());
                Some(Err(first))
            }
        }
    }

    /// The next server has taken nothing of a call that others have refused.
    #[cold]
    pub(super) fn stay_elsewhere(&mut self, body: OutBuf) {
        match self.next_server() {
            Some(next) => {
                drop(self.take_load());
                (self.on, self.body, self.state) = (Some(next), Some(body), State::Ready);
            }
            None => {
                let first = self.first_refusal();
                self.fail(first);
            }
        }
    }

    /// A second attempt stays where it is: the first one goes on.
    fn next_server(&self) -> Option<Arc<Connection>> {
        let (channel, extras) = (self.via.channel(), self.extras.as_deref()?);
        let refusals = extras.refusals.as_deref()?;
        let is_open = |retries: &Retries| Throttle::allows(&retries.throttle());
        let is_allowed = channel.retry.as_ref().is_none_or(is_open);
        if extras.is_second || refusals.by.len() >= MAX_SERVERS || !is_allowed {
            return None;
        }
        let second = extras.hedge.as_ref().and_then(|hedge| hedge.second_on());
        match second {
            Some(second) => refusals.elsewhere(channel, second),
            None => channel.elsewhere(&refusals.by),
        }
    }

    fn first_refusal(&self) -> Status {
        let refusals = self.extras.as_deref().and_then(|extras| extras.refusals.as_deref());
        refusals.map_or_else(|| Status::unimplemented(""), |refusals| refusals.first.clone())
    }
}
