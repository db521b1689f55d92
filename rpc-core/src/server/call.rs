//! A call of the peer as the server sees it, and what has become of it.

use rpc_transport::engine::connection_key::ConnectionKey;
use rpc_transport::message::outgoing::OutBuf;

use crate::service::{MethodDescriptor, Reply};
use crate::session::IncomingId;
use crate::status::Status;

/// What is needed to answer a call of the peer.
#[derive(Clone, Copy)]
pub(super) struct Call {
    pub(super) key: ConnectionKey,
    pub(super) id: IncomingId,
    /// The call carried a signature, and it matches the method's.
    pub(super) accepted: bool,
    /// The method, unless its id is unknown.
    pub(super) method: Option<&'static MethodDescriptor>,
    /// Where it is counted.
    pub(super) route: u32,
}

impl Call {
    #[inline]
    pub(super) fn replied(self, reply: Reply) -> Done {
        match reply {
            Reply::Ok(body) if !self.accepted => Done::Result { call: self, body: Some(body) },
            reply => Done::Reply { call: self, reply },
        }
    }

    pub(super) fn attach(self, handle: tokio::task::AbortHandle) -> Done {
        Done::Attach { call: self, handle }
    }

    #[cold]
    pub(super) fn refused(self, status: Status) -> Done {
        Done::Reply { call: Self { accepted: false, ..self }, reply: Reply::Status(status) }
    }
}

/// A result to be handed to the session under the lock.
pub(super) enum Done {
    /// Of a method whose signature was accepted before; nothing, once the session has it.
    Result {
        call: Call,
        body: Option<OutBuf>,
    },
    Reply {
        call: Call,
        reply: Reply,
    },
    /// The same; its end is not counted yet.
    Uncounted {
        call: Call,
        reply: Reply,
    },
    Attach {
        call: Call,
        handle: tokio::task::AbortHandle,
    },
}

impl Done {
    /// Leaves one that is done with in its place.
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

/// Whether the session has accepted a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replied {
    /// Queued to be sent, or dropped because the caller has gone.
    Done,
    /// The call was answered with `ResourceExhausted` in its place.
    Refused,
    /// Not accepted: it must wait until the connection's queue has room.
    MustWait,
}
