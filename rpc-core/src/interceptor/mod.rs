//! Interceptors: code of the user's before and after each call, at either end.
//!
//! A [`ServerInterceptor`] sees the calls of a server ([`ServerBuilder::interceptor`]), a
//! [`ClientInterceptor`] those of a channel ([`ChannelBuilder::interceptor`]): who calls, metadata,
//! deadline, how the call ended. They are plain functions and see no payload. What has to wait, or
//! to see replies, is a layer: a [`Dispatch`](crate::service::Dispatch) around a `Dispatch`, see
//! [`ServerBuilder::layer`].
//!
//! * The first that was added is the outermost: its `before` runs first, its `after` last.
//! * They see the calls that reach a service: none that the server refuses before, as it knows no such
//!   method, has no room or drains.
//! * A call that `before` refuses does not run. Those whose `before` has let it pass get an `after`.
//! * Whose `before` has let a call pass gets exactly one `after`, however the call ends: also when
//!   it is cancelled, or its handler panics.
//! * An interceptor that panics costs its own call, which ends with
//!   [`Internal`](crate::Code::Internal).
//! * They run where the call runs, on a thread that drives other calls as well: they must not block.
//!
//! [`ServerBuilder::interceptor`]: crate::ServerBuilder::interceptor
//! [`ServerBuilder::layer`]: crate::ServerBuilder::layer
//! [`ChannelBuilder::interceptor`]: crate::ChannelBuilder::interceptor

pub(crate) mod client;
pub(crate) mod extensions;
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
pub use crate::interceptor::extensions::Extensions;
use crate::metadata::Metadata;
use crate::service::ReplyKind;
use crate::service::method::MethodDescriptor;
use crate::service::reply::{CallOutcome, Reply};
use crate::status::{Code, Status};
use crate::stream::item_counts::ItemCounters;
pub use crate::stream::item_counts::ItemCounts;

/// How a call ended.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Ending<'a> {
    /// With a result; a stream came to its own end.
    Ok,
    /// With the method's own error.
    UserError,
    /// With a status.
    Status(&'a Status),
    /// Nobody waits for its end any more: the caller dropped the call, its deadline passed, or the
    /// connection was lost.
    Cancelled,
}

impl Ending<'_> {
    /// The code: that of the status, [`Cancelled`](Code::Cancelled), and else
    /// [`Ok`](Code::Ok), as a method's own error is an answer.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Ok | Self::UserError => Code::Ok,
            Self::Status(status) => status.code(),
            Self::Cancelled => Code::Cancelled,
        }
    }
}

/// What a call has ended with, looked at when an interceptor asks.
#[derive(Clone, Copy)]
enum Found<'a> {
    Status(&'a Status),
    Cancelled,
    /// That a server is about to send.
    Reply(&'a Reply),
    /// That a client has.
    Outcome(&'a CallOutcome),
}

impl<'a> Found<'a> {
    fn ending(self) -> Ending<'a> {
        match self {
            Self::Reply(Reply::Ok(_)) | Self::Outcome(Some(Ok((ReplyKind::Ok, _)))) => Ending::Ok,
            Self::Reply(Reply::UserError(_))
            | Self::Outcome(Some(Ok((ReplyKind::UserError, _)))) => Ending::UserError,
            Self::Status(status)
            | Self::Reply(Reply::Status(status))
            | Self::Outcome(Some(Err(status))) => Ending::Status(status),
            Self::Cancelled | Self::Outcome(None) => Ending::Cancelled,
        }
    }

    fn body(self) -> Body<'a> {
        match self {
            Self::Reply(Reply::Ok(body) | Reply::UserError(body)) => Body::Sent(body),
            Self::Outcome(Some(Ok((_, message)))) => Body::Received(message),
            _ => Body::None,
        }
    }
}

/// The body of a reply.
#[derive(Clone, Copy)]
enum Body<'a> {
    /// A status has none.
    None,
    /// That is to be sent.
    Sent(&'a OutBuf),
    Received(&'a Message),
}

impl<'a> Body<'a> {
    /// Encoded metadata in front of it.
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

/// What is known of a call when it begins.
struct Begun {
    method: &'static MethodDescriptor,
    at: Instant,
    request_bytes: u64,
    /// Of a call with streams.
    items: Option<Arc<ItemCounters>>,
}

/// A call that has ended, as its interceptors see it.
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

    /// How it ended.
    #[must_use]
    pub fn ending(&self) -> Ending<'_> {
        self.found.ending()
    }

    /// The code that it ended with; see [`Ending::code`].
    #[must_use]
    pub fn code(&self) -> Code {
        self.ending().code()
    }

    /// Time since the first `before`: on a server that of the handler, in a client that of the
    /// whole call with all of its attempts.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        clock::now().saturating_duration_since(self.begun.at)
    }

    /// Length of the encoded arguments, bytes.
    #[must_use]
    pub fn request_bytes(&self) -> u64 {
        self.begun.request_bytes
    }

    /// Length of the encoded result or error of the method's own, bytes; 0 for everything else.
    #[must_use]
    pub fn reply_bytes(&self) -> u64 {
        let body = self.found.body();
        body.total_len() - body.metadata().len() as u64
    }

    /// The metadata that goes with the reply; see
    /// [`Context::set_reply_metadata`](crate::Context::set_reply_metadata).
    #[must_use]
    pub fn reply_metadata(&self) -> Metadata {
        match self.ending() {
            Ending::Status(status) => status.metadata().clone(),
            _ => Metadata::decode(self.found.body().metadata()).unwrap_or_default(),
        }
    }

    /// The metadata that went before the items of its results; see
    /// [`Context::set_initial_metadata`](crate::Context::set_initial_metadata). Of a client's stream it is
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

    /// What an interceptor has put beside the call before.
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

/// Runs what comes before a call.
///
/// # Errors
/// The status that the call ends with instead, also if the interceptor has panicked.
#[inline(always)]
fn before<'a>(
    name: impl FnOnce() -> &'a str,
    method: &'static MethodDescriptor,
    run: impl FnOnce() -> Result<(), Status>,
) -> Result<(), Status> {
    // Put beside what `catch_unwind` gives, so that nothing is moved where all goes well.
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

/// Out of line, so that it is moved only where it is an error.
#[cold]
#[inline(never)]
fn taken(answer: &mut Result<(), Status>) -> Result<(), Status> {
    std::mem::replace(answer, Ok(()))
}

/// Runs what comes after a call. If it panics, `panicked` is the status that the call ends with.
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
        "(its name panics)"
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
    // What was thrown may itself panic when it is dropped.
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(second);
    }
    Status::internal(format!("{}: an interceptor panicked", method.name))
}
