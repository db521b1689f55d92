//! A `no_cancel` call that is dropped before the server has accepted its types.
//!
//! The server may still refuse it, and expect it again with its schema. Its handler is to run all
//! the same, so the call goes on in a task of its own until it has an answer.
//!
//! Invariant: a call goes on alone once at most, so a runtime that has ended ends it.

use std::future::poll_fn;

use super::{RawCall, State};

impl RawCall<'_> {
    /// Has a task go on with the call, if its handler might not run otherwise. Returns false if
    /// nothing needs to be done.
    #[cold]
    pub(super) fn go_on_alone(&mut self) -> bool {
        let (State::InFlight, true, Some(on)) = (self.state, self.method.no_cancel, &self.on)
        else {
            return false;
        };
        let is_alone = self.extras.as_ref().is_some_and(|extras| extras.is_alone);
        let id = self.id;
        let may_be_refused = on.shard.look(on.key, |peer| peer.session.may_be_refused(id));
        if is_alone || may_be_refused != Some(true) {
            return false;
        }
        let runtime = self.via.channel().demand.home.runtime();
        let mut call = self.detached();
        call.extras_mut().is_alone = true;
        runtime.spawn(async move {
            let found = poll_fn(|cx| call.poll(cx)).await;
            drop(call.finish(found));
        });
        true
    }
}
