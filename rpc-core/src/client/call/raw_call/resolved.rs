//! A call whose types differ at the server: it is sent again with this end's schema.
//!
//! The server has refused it before any handler ran, so this is no retry: limits, budgets, counts
//! and interceptors see one call, and it keeps its deadline.

use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::received::Note;

use super::{RawCall, State};
use crate::metadata::SCHEMA;
use crate::reply::CallOutcome;
use crate::resolution::Resolution;
use crate::schema::version;
use crate::session;
use crate::status::{Code, Status};
use crate::wire::refusal::SCHEMA_FOLLOWS;

impl RawCall<'_> {
    /// The server has refused the call because its types differ, and `request` is what was sent.
    /// Gives the outcome, unless the call is to be sent again on its connection.
    #[cold]
    pub(super) fn on_types_differ(
        &mut self,
        reply: &session::Reply,
        request: OutBuf,
    ) -> CallOutcome {
        let status = match self.resolve(reply) {
            Ok(()) => {
                if let Some(body) = self.rewound(request) {
                    // The next attempt has a load of its own.
                    drop(self.take_load());
                    self.body = Some(body);
                    self.state = State::Ready;
                    if self.method.has_streams() {
                        // Its caller sees another id, and has its arguments leave.
                        self.send_unawaited();
                    }
                    return None;
                }
                let text = "the request is too long to be sent again with its schema";
                Status::failed_precondition(format!("{}: {text}", self.method.name))
            }
            Err(status) => status,
        };
        self.count_unsent(status.code());
        Some(Err(status.of_call(self.method)))
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
        let index = self.method.dense_index();
        let note: Note = resolution;
        // What is returned is dropped outside the lock.
        let _before = on.shard.look(on.key, |peer| peer.session.resolve(index, note));
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
