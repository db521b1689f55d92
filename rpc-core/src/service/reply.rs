//! How a call ended: at the handler, and as its client sees it.

use std::fmt;

use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::received::Message;

use super::method::MethodDescriptor;
use crate::bulk::BulkMut;
use crate::codec::Codec;
use crate::status::Status;

/// The kind of body that a reply has, which decides how to decode it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyKind {
    /// The body is the result.
    Ok,
    /// The body is the method's own error.
    UserError,
}

/// The outcome of a handler.
#[derive(Debug)]
#[non_exhaustive]
pub enum Reply {
    /// The encoded result.
    Ok(OutBuf),
    /// The method's own error, encoded.
    UserError(OutBuf),
    /// The call failed.
    Status(Status),
}

/// A reply as a client sees it.
#[non_exhaustive]
pub struct ReplyParts {
    /// The codec of the body.
    pub codec: Codec,
    /// The method that was called.
    pub method: &'static MethodDescriptor,
    /// The reply, or why there is none.
    pub outcome: Result<(ReplyKind, Message), Status>,
    /// The buffer to receive the reply's payload in.
    pub(crate) into: Option<Box<BulkMut>>,
}

impl fmt::Debug for ReplyParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplyParts")
            .field("method", &self.method.name)
            .field("outcome", &self.outcome)
            .finish_non_exhaustive()
    }
}
