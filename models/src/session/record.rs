//! The oracle's knowledge of a call.

use std::time::Instant;

use rpc_core::session::{CallId, Failure};

use super::Number;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Replied {
    Ok,
    UserError,
    Status(u8),
}

#[derive(Debug)]
pub(super) enum Life {
    /// Its caller waits.
    Waiting,
    /// Its caller has given it up.
    Dropped,
    Ended,
}

/// The oracle's knowledge of a call.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) caller: usize,
    pub(super) id: CallId,
    pub(super) no_cancel: bool,
    pub(super) deadline: Option<Instant>,
    pub(super) life: Life,
    pub(super) failed: Option<Failure>,
    pub(super) never_sent: bool,
    /// Times that it reached a handler.
    pub(super) runs: u32,
    /// Number of times that its handler was stopped.
    pub(super) stops: u32,
    /// Its handler's reply, while the callee's session accepted it.
    pub(super) replied: Option<Replied>,
    pub(super) ended_without_reply: bool,
    /// The call whose handler made it, to the handler's own caller.
    pub(super) maker: Option<Number>,
}

impl Record {
    pub(super) fn is_expired(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|at| at <= now)
    }
}
