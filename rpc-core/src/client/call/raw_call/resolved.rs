//! A call that a server has refused before any handler ran. If its types differ there, it is sent
//! again with this end's schema.
//!
//! This is no retry: limits, budgets, counts
//! and interceptors see one call, and it keeps its deadline.

use rpc_transport::message::outgoing::OutBuf;

use super::{RawCall, State};
use crate::layout::version;
use crate::metadata::SCHEMA;
use crate::reply::CallOutcome;
use crate::resolution::{Planned, Resolution};
use crate::session;
use crate::status::{Code, Status};
use crate::wire::refusal::SCHEMA_FOLLOWS;

impl RawCall<'_> {
    /// The server has refused the call before any handler ran, and `request` is what was sent.
    /// Gives the outcome, unless the call is to be sent again: on its connection, if its types
    /// differ, or to another server.
    #[cold]
    pub(super) fn on_refused(&mut self, reply: &session::Reply, request: OutBuf) -> CallOutcome {
        let body = self.rewound(request);
        let unimplemented = Code::Unimplemented.number();
        let status = match (reply.kind, body.is_some()) {
            (session::ReplyKind::Status { code, .. }, _) if code == unimplemented => {
                self.received(reply, code, false)
            }
            (_, false) => Status::failed_precondition(format!(
                "{}: the request is too long to be sent again with its schema",
                self.method.name
            )),
            (_, true) => match self.resolve(reply) {
                Ok(()) => return body.and_then(|body| self.send_again(body)),
                Err(status) => status,
            },
        };
        self.try_elsewhere(status, body)
    }

    /// Sends the call once more. Gives the outcome if it came at once.
    #[cold]
    pub(super) fn send_again(&mut self, body: OutBuf) -> CallOutcome {
        // The next attempt has a load of its own.
        drop(self.take_load());
        self.body = Some(body);
        self.state = State::Ready;
        if self.method.has_streams() {
            // Its caller sees another attempt, and has its arguments leave.
            self.send_unawaited();
            if let State::Over = self.state {
                self.state = State::Done;
                return self.take_found();
            }
        }
        None
    }

    /// Makes the call and its connection ready for a server whose types differ.
    fn resolve(&mut self, reply: &session::Reply) -> Result<(), Status> {
        let code = Code::FailedPrecondition.number();
        let refused = |this: &Self| this.received(reply, code, false);
        let name = self.method.name;
        let schema = reply.details().splitn(2, |byte| *byte == SCHEMA_FOLLOWS).nth(1);
        let has_sent = self.extras_mut().metadata.bytes(SCHEMA).is_some();
        let (Some(theirs), Some(own), false) = (schema, self.method.own_types(), has_sent) else {
            return Err(refused(self));
        };
        let theirs = std::str::from_utf8(theirs).map_err(|_| refused(self))?;
        if version(theirs).0 != version(&own.text).0 {
            return Err(refused(self));
        }
        let resolution = Resolution::at_caller(self.method, theirs).map_err(|why| {
            Status::failed_precondition(format!(
                "{name}: its types differ on the server, and cannot be converted: {why}; change \
                 the types so that each end can read what the other one writes, or use the changed \
                 types in a method with a new name"
            ))
        })?;
        let metadata = &mut self.extras_mut().metadata;
        metadata.set_schema(&own.text).map_err(|error| {
            Status::invalid_argument(format!(
                "{name}: its types differ on the server, and there is no room for their schema of \
                 {} bytes in the metadata: {error}",
                own.text.len()
            ))
        })?;
        let Some(on) = &self.on else { return Err(self.unavailable()) };
        let (method, plan) = (self.method, Planned(resolution));
        // What is returned is dropped outside the lock.
        let _before = on.shard.look(on.key, |peer| peer.resolve(method, plan));
        Ok(())
    }

    /// The call goes to another server, perhaps, of which nothing is known yet.
    #[cold]
    pub(super) fn forget_schema(&mut self) {
        if let Some(extras) = &mut self.extras {
            extras.metadata.remove(SCHEMA);
        }
    }
}
