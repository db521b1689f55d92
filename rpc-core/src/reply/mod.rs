//! How a call ended: at the handler, and as its client sees it.

pub(crate) mod coding;

use std::fmt;

use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::received::Message;

use self::coding::unreadable_error;
use crate::bulk::BulkMut;
use crate::codec::Codec;
use crate::metadata::Metadata;
use crate::method::MethodDescriptor;
use crate::resolution::Decoding;
use crate::status::{Code, Status};

/// The kind of body that a reply has, which decides how to decode it.
// A word: a byte is moved in one piece, and its padding in others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
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

impl Reply {
    /// Adds metadata, which replaces the reply's own of the same names.
    #[cold]
    pub(crate) fn with_metadata(mut self, metadata: &Metadata) -> Self {
        if metadata.is_empty() {
            return self;
        }
        match &mut self {
            Self::Ok(body) | Self::UserError(body) => mark(body, metadata),
            Self::Status(status) => {
                let mut all = status.own_metadata().clone();
                all.extend(metadata);
                *status = std::mem::replace(status, Code::Unknown.into()).with_metadata(all);
            }
        }
        self
    }
}

/// Puts metadata in front of a body.
fn mark(body: &mut OutBuf, metadata: &Metadata) {
    let (_, before) = body.marks();
    let mut all = Metadata::decode(&body[..usize::from(before)]).unwrap_or_default();
    all.extend(metadata);
    let mut encoded = OutBuf::new();
    all.encode(&mut encoded);
    body.prepend_marked(&encoded);
}

/// How a call ended, before its body is decoded; `None`: it has not.
pub(crate) type CallOutcome = Option<Result<Value, Status>>;

/// A reply that is no status, encoded.
#[derive(Debug)]
pub struct Value {
    pub(crate) kind: ReplyKind,
    pub(crate) decoding: Decoding,
    pub(crate) message: Message,
}

impl Value {
    /// A result of a callee whose types are those of this end.
    #[inline]
    pub(crate) fn of_own_types(message: Message) -> Self {
        Self { kind: ReplyKind::Ok, decoding: Decoding::OwnTypes, message }
    }

    /// What the body is.
    #[must_use]
    pub fn kind(&self) -> ReplyKind {
        self.kind
    }

    /// The message, for a decoder that knows no types but this end's.
    ///
    /// # Errors
    /// [`Internal`](Code::Internal) if the callee's types differ: read by others, its bytes may
    /// give wrong values.
    pub fn by_own_types(self, method: &MethodDescriptor) -> Result<Message, Status> {
        self.decoding.check_own(method)?;
        Ok(self.message)
    }
}

/// A reply as a client sees it.
#[non_exhaustive]
pub struct ReplyParts {
    /// The codec of the body.
    pub codec: Codec,
    /// The method that was called.
    pub method: &'static MethodDescriptor,
    /// The reply, or why there is none.
    pub outcome: Result<Value, Status>,
    /// The buffer to receive the reply's payload in.
    pub(crate) into: Option<Box<BulkMut>>,
}

impl ReplyParts {
    /// The reply is an early refusal of a stream: its error has another type than those that end
    /// the stream.
    #[cold]
    pub(crate) fn of_refusal(mut self) -> Self {
        if let Ok(value) = &mut self.outcome {
            match value.decoding.of_refusal() {
                Ok(decoding) => value.decoding = decoding,
                Err(why) => {
                    let status = unreadable_error(self.method, why);
                    self.outcome = Err(status);
                }
            }
        }
        self
    }

    /// Takes the metadata that came with the reply. What cannot be read takes the reply's place.
    pub fn take_metadata(&mut self) -> Metadata {
        let message = match &mut self.outcome {
            Ok(value) => &mut value.message,
            Err(status) => return status.metadata().clone(),
        };
        let metadata = Metadata::decode(message.marked());
        message.skip_marked();
        metadata.unwrap_or_else(|error| {
            let text = format!("{}: bad reply metadata: {error}", self.method.name);
            self.outcome = Err(Status::internal(text));
            Metadata::new()
        })
    }
}

impl fmt::Debug for ReplyParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplyParts")
            .field("method", &self.method.name)
            .field("outcome", &self.outcome)
            .finish_non_exhaustive()
    }
}
