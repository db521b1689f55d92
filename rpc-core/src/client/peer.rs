//! One connection as the target of a channel: to a peer that has made it, or to one of several end
//! points.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rpc_transport::device::connection_error::CloseCause;

use super::connection::{Connection, unavailable};
use crate::channel::connectivity::ConnectivityState;
use crate::endpoint::connection_context::ConnectionContext;
use crate::status::{Code, Status};

/// Where a channel leads that has one connection, and no other after it.
pub(super) struct Peer {
    /// Until it has ended.
    pub(super) connection: ArcSwapOption<Connection>,
    pub(super) whom: Whom,
}

/// The other end.
pub(super) enum Whom {
    /// It has made the connection.
    Peer(Arc<ConnectionContext>),
    /// One of the end points of a channel, over this connection.
    #[cfg(feature = "macros")]
    EndPoint(Arc<Connection>),
}

impl Peer {
    pub(super) fn name(&self) -> String {
        match &self.whom {
            Whom::Peer(context) => format!("the peer {}", context.identity),
            #[cfg(feature = "macros")]
            Whom::EndPoint(connection) => match connection.path() {
                Some(path) => path.target.to_string(),
                None => "an end point".to_owned(),
            },
        }
    }

    pub(super) fn close_cause(&self) -> Option<CloseCause> {
        match &self.whom {
            Whom::Peer(context) => context.close_cause(),
            #[cfg(feature = "macros")]
            Whom::EndPoint(connection) => connection.close_cause(),
        }
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
                format!("{} is shutting down and accepts no new calls", self.name()),
            ),
        };
        status.with_retryable(true)
    }
}
