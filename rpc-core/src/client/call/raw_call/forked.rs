//! A call on a channel that belongs to the parent of this process.
//!
//! Such a call fails at once. Timers of the parent's runtime and the counts of calls have locks
//! that one of the parent's threads may have held at the fork. None is taken here.

use rpc_transport::device::connection_error::CloseCause;

use super::{RawCall, State};
use crate::status::{Code, Status};

impl RawCall<'_> {
    /// Whether the channel was made by this process.
    #[inline]
    pub(super) fn is_here(&self) -> bool {
        self.via.channel().process.is_current()
    }

    /// Ends a call that would have to be sent, or waits for a connection.
    #[cold]
    pub(super) fn refuse_in_child(&mut self) {
        let status = self.forked();
        self.leak_timers();
        self.state = State::Done;
        self.over(Some(Err(status)));
    }

    /// The status of all calls in a child.
    #[cold]
    pub(super) fn forked(&self) -> Status {
        let text = format!("{}: {}", self.method.name, CloseCause::Forked);
        Status::new(Code::FailedPrecondition, text).of_call(self.method)
    }

    /// Leaves alone what must not be dropped here.
    #[cold]
    pub(super) fn leak_timers(&mut self) {
        std::mem::forget(self.take_load());
        if let Some(extras) = &mut self.extras {
            std::mem::forget((extras.wait.take(), extras.hedge.take()));
        }
    }
}
