//! Interceptors: user code that runs before and after each call, at either end.
//!
//! A [`ServerInterceptor`] sees the calls of a server ([`ServerBuilder::interceptor`]), a
//! [`ClientInterceptor`] those of a channel ([`ChannelBuilder::interceptor`]): the caller,
//! metadata, deadline, how the call ended. They are plain functions and see no payload. Use a layer
//! to await something or to inspect replies: a [`Dispatch`](crate::service::Dispatch) around a
//! `Dispatch`, see [`ServerBuilder::layer`].
//!
//! * The interceptor added first is the outermost: its `before` runs first, its `after` last.
//! * They see the calls that reach a service, not those that the server refuses before because the
//!   method is unknown, a limit is reached or the server drains.
//! * A call that a `before` refuses does not run. The interceptors whose `before` accepted it get
//!   an `after`.
//! * An interceptor whose `before` accepted a call gets exactly one `after`, however the call ends:
//!   also if it is cancelled or its handler panics.
//! * If an interceptor panics, its call ends with [`Internal`](crate::Code::Internal).
//! * They run where the call runs, on a thread that also drives other calls, and must not block.
//!
//! [`ServerBuilder::interceptor`]: crate::ServerBuilder::interceptor
//! [`ServerBuilder::layer`]: crate::ServerBuilder::layer
//! [`ChannelBuilder::interceptor`]: crate::ChannelBuilder::interceptor

pub(crate) mod client;
pub(crate) mod server;

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rpc_transport::engine::clock;
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::received::Message;

pub use self::client::{ClientInterceptor, Outbound};
pub use self::server::{Inbound, ServerInterceptor};
pub use crate::context::extensions::Extensions;
use crate::metadata::Metadata;
use crate::method::MethodDescriptor;
use crate::reply::{CallOutcome, Reply, Value};
use crate::service::ReplyKind;
use crate::status::{Code, Status};
use crate::stream::item_counts::ItemCounters;
pub use crate::stream::item_counts::ItemCounts;

/// How a call ended.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Ending<'a> {
    /// With a result; for a stream: with its regular end.
    Ok,
    /// With the method's own error.
    UserError,
    /// With a status.
    Status(&'a Status),
    /// Cancelled: the caller dropped the call, its deadline passed, or the connection was lost.
    Cancelled,
}

impl Ending<'_> {
    /// The code: that of the status, [`Cancelled`](Code::Cancelled), or otherwise [`Ok`](Code::Ok),
    /// since a method's own error is an answer.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Ok | Self::UserError => Code::Ok,
            Self::Status(status) => status.code(),
            Self::Cancelled => Code::Cancelled,
        }
    }
}

/// The outcome of a call, inspected when an interceptor asks.
#[derive(Clone, Copy)]
enum Found<'a> {
    Status(&'a Status),
    Cancelled,
    /// A reply that a server is about to send.
    Reply(&'a Reply),
    /// The outcome of a call at the client.
    Outcome(&'a CallOutcome),
}

impl<'a> Found<'a> {
    fn ending(self) -> Ending<'a> {
        match self {
            Self::Reply(Reply::Ok(_))
            | Self::Outcome(Some(Ok(Value { kind: ReplyKind::Ok, .. }))) => Ending::Ok,
            Self::Reply(Reply::UserError(_))
            | Self::Outcome(Some(Ok(Value { kind: ReplyKind::UserError, .. }))) => {
                Ending::UserError
            }
            Self::Status(status)
            | Self::Reply(Reply::Status(status))
            | Self::Outcome(Some(Err(status))) => Ending::Status(status),
            Self::Cancelled | Self::Outcome(None) => Ending::Cancelled,
        }
    }

    fn body(self) -> Body<'a> {
        match self {
            Self::Reply(Reply::Ok(body) | Reply::UserError(body)) => Body::Sent(body),
            Self::Outcome(Some(Ok(value))) => Body::Received(&value.message),
            _ => Body::None,
        }
    }
}

/// The body of a reply.
#[derive(Clone, Copy)]
enum Body<'a> {
    /// A status has no body.
    None,
    /// To be sent.
    Sent(&'a OutBuf),
    Received(&'a Message),
}

impl<'a> Body<'a> {
    /// The encoded metadata in front of it.
    fn metadata(self) -> &'a [u8] {
        match self {
            Self::None => &[],
            Self::Sent(body) => &body[..usize::from(body.marks().1)],
            Self::Received(message) => message.marked(),
        }
    }

    fn total_len(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Sent(body) => body.total_len(),
            Self::Received(message) => message.len() as u64 + message.tail_bytes(),
        }
    }
}

/// The facts known at the start of a call.
struct Begun {
    method: &'static MethodDescriptor,
    at: Instant,
    request_bytes: u64,
    /// Only for a call with streams.
    items: Option<Arc<ItemCounters>>,
}

/// A finished call, as seen by its interceptors.
pub struct Ended<'a> {
    begun: &'a Begun,
    found: Found<'a>,
    extensions: &'a Extensions,
}

impl Ended<'_> {
    /// The method.
    #[must_use]
    pub fn method(&self) -> &'static MethodDescriptor {
        self.begun.method
    }

    /// How the call ended.
    #[must_use]
    pub fn ending(&self) -> Ending<'_> {
        self.found.ending()
    }

    /// The code of the outcome; see [`Ending::code`].
    #[must_use]
    pub fn code(&self) -> Code {
        self.ending().code()
    }

    /// Time since the first `before`: on a server the time of the handler, in a client that of the
    /// whole call with all its attempts.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        clock::now().saturating_duration_since(self.begun.at)
    }

    /// Length of the encoded arguments, bytes.
    #[must_use]
    pub fn request_bytes(&self) -> u64 {
        self.begun.request_bytes
    }

    /// Length of the encoded result, or of the method's own error, bytes; 0 otherwise.
    #[must_use]
    pub fn reply_bytes(&self) -> u64 {
        let body = self.found.body();
        body.total_len() - body.metadata().len() as u64
    }

    /// The metadata of the reply; see
    /// [`Context::set_reply_metadata`](crate::Context::set_reply_metadata).
    #[must_use]
    pub fn reply_metadata(&self) -> Metadata {
        match self.ending() {
            Ending::Status(status) => status.metadata().clone(),
            _ => Metadata::decode(self.found.body().metadata()).unwrap_or_default(),
        }
    }

    /// The initial metadata, sent before the items of the results; see
    /// [`Context::set_initial_metadata`](crate::Context::set_initial_metadata). At a client it is
    /// empty if the stream was dropped before any of it was read.
    #[must_use]
    pub fn initial_metadata(&self) -> Metadata {
        self.item_counters().and_then(|items| items.initial()).cloned().unwrap_or_default()
    }

    fn item_counters(&self) -> Option<&ItemCounters> {
        self.begun.items.as_deref()
    }

    /// The items of its streams.
    #[must_use]
    pub fn items(&self) -> ItemCounts {
        self.item_counters().map(ItemCounters::counts).unwrap_or_default()
    }

    /// A value that an interceptor attached to the call.
    #[must_use]
    pub fn extension<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.extensions.get()
    }
}

impl fmt::Debug for Ended<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ended")
            .field("method", &self.begun.method.name)
            .field("ending", &self.ending())
            .finish_non_exhaustive()
    }
}

/// Runs `before` of an interceptor.
///
/// # Errors
/// The status with which the call ends instead, also if the interceptor panicked.
#[inline(always)]
fn before<'a>(
    name: impl FnOnce() -> &'a str,
    method: &'static MethodDescriptor,
    run: impl FnOnce() -> Result<(), Status>,
) -> Result<(), Status> {
    // Stored separately from the result of `catch_unwind`, so that success moves nothing.
    let mut refused = Ok(());
    let run = || {
        let answer = run();
        let passes = answer.is_ok();
        if !passes {
            refused = answer;
        }
        passes
    };
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(true) => Ok(()),
        Ok(false) => taken(&mut refused),
        Err(panic) => Err(panicked(name, method, panic)),
    }
}

/// Out of line, so that only an error is moved.
#[cold]
#[inline(never)]
fn taken(answer: &mut Result<(), Status>) -> Result<(), Status> {
    std::mem::replace(answer, Ok(()))
}

/// Runs `after` of an interceptor. If it panics, `panicked` is set to the status with which the
/// call ends.
#[inline(always)]
fn after<'a>(
    name: impl FnOnce() -> &'a str,
    method: &'static MethodDescriptor,
    run: impl FnOnce(),
    panicked: &mut Option<Status>,
) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
        after_panic(name, method, panic, panicked);
    }
}

#[cold]
#[inline(never)]
fn after_panic<'a>(
    name: impl FnOnce() -> &'a str,
    method: &'static MethodDescriptor,
    panic: Box<dyn Any + Send>,
    status: &mut Option<Status>,
) {
    *status = Some(panicked(name, method, panic));
}

#[cold]
fn panicked<'a>(
    name: impl FnOnce() -> &'a str,
    method: &'static MethodDescriptor,
    panic: Box<dyn Any + Send>,
) -> Status {
    let name = catch_unwind(AssertUnwindSafe(name)).unwrap_or_else(|second| {
        std::mem::forget(second);
        "(its `name` panics)"
    });
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(not a text)");
    tracing::error!(
        method = method.name,
        interceptor = name,
        panic = text,
        "an interceptor panicked"
    );
    // Dropping the payload of the panic may itself panic.
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(second);
    }
    Status::internal(format!("{}: an interceptor panicked", method.name))
}
