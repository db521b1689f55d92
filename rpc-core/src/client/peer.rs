//! The peer of a connection that it has made itself, as the target of a channel.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rpc_transport::connect::error::CloseCause;

use super::connection::{Connection, unavailable};
use crate::channel::connectivity::ConnectivityState;
use crate::endpoint::connection_context::ConnectionContext;
use crate::status::{Code, Status};

/// Where a channel to a peer leads.
pub(super) struct Peer {
    /// Until it has ended.
    pub(super) connection: ArcSwapOption<Connection>,
    pub(super) context: Arc<ConnectionContext>,
}

impl Peer {
    pub(super) fn name(&self) -> String {
        format!("the peer {:?}", self.context.identity)
    }

    pub(super) fn close_cause(&self) -> Option<CloseCause> {
        self.context.close_cause()
    }

    pub(super) fn state(&self) -> ConnectivityState {
        match self.close_cause() {
            None => ConnectivityState::Ready,
            Some(_) => ConnectivityState::Shutdown,
        }
    }

    /// The status of a call that the connection does not take: there is no other.
    pub(super) fn why_not(&self) -> Status {
        let status = match self.close_cause() {
            Some(cause) => unavailable(&self.name(), cause),
            None => Status::new(
                Code::Unavailable,
                format!("{} is shutting down and takes no new calls", self.name()),
            ),
        };
        status.with_retryable(true)
    }
}
