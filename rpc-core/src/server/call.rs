//! A call of the peer as the server sees it, and its result.

use rpc_transport::engine::connection_key::ConnectionKey;
use rpc_transport::message::outgoing::OutBuf;
use tokio::task::AbortHandle;

use crate::service::{MethodDescriptor, Reply};
use crate::session::IncomingId;
use crate::status::Status;

/// A call of the peer that is to be answered.
#[derive(Clone, Copy)]
pub(super) struct Call {
    pub(super) key: ConnectionKey,
    pub(super) id: IncomingId,
    /// The method, unless its id is unknown.
    pub(super) method: Option<&'static MethodDescriptor>,
    /// Where it is counted.
    pub(super) route: u32,
}

impl Call {
    #[inline]
    pub(super) fn replied(self, reply: Reply) -> Done {
        match reply {
            Reply::Ok(body) => Done::Result { call: self, body: Some(body) },
            reply => Done::Reply { call: self, reply },
        }
    }

    pub(super) fn attach(self, handle: AbortHandle) -> Done {
        Done::Attach { call: self, handle }
    }

    #[cold]
    pub(super) fn refused(self, status: Status) -> Done {
        Done::Reply { call: self, reply: Reply::Status(status) }
    }
}

/// A result to be handed to the session under the lock.
pub(super) enum Done {
    /// Nothing, once the session has it.
    Result {
        call: Call,
        body: Option<OutBuf>,
    },
    Reply {
        call: Call,
        reply: Reply,
    },
    /// A reply of a call whose end is not counted yet.
    Uncounted {
        call: Call,
        reply: Reply,
    },
    Attach {
        call: Call,
        handle: AbortHandle,
    },
}

impl Done {
    /// Leaves an empty result behind.
    #[cold]
    pub(super) fn take(&mut self) -> Self {
        let (Self::Result { call, .. }
        | Self::Reply { call, .. }
        | Self::Uncounted { call, .. }
        | Self::Attach { call, .. }) = self;
        let nothing = Self::Result { call: *call, body: None };
        std::mem::replace(self, nothing)
    }
}
