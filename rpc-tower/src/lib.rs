#![doc = include_str!("../README.md")]

mod client;
mod server;

use std::error::Error;

use rpc_core::{CallError, Status};
use tower::BoxError;
use tower::load_shed::error::Overloaded;
use tower::timeout::error::Elapsed;

pub use self::client::CallService;
pub use self::server::{DispatchService, Layered, ServerCall, ServerFuture, layer};

/// What an error of a layer is to a caller.
///
/// A [`Status`], also behind other errors, stays what it is; of a method with an error type of its own,
/// other than `Status`, take [`call_error`]. The end of a timeout is
/// [`DeadlineExceeded`](rpc_core::Code::DeadlineExceeded); a call that was shed is
/// [`ResourceExhausted`](rpc_core::Code::ResourceExhausted), and retryable, since it did not run.
/// Everything else is [`Unknown`](rpc_core::Code::Unknown), with the texts of the error and its causes.
#[must_use]
pub fn status(error: BoxError) -> Status {
    status_of::<Status>(&*error)
}

/// What an error of a layer around a call is, of a method whose own error is an `E`.
///
/// The call's error stays what it is. Everything else is as [`status`] says, also a method's own error
/// behind another one, as those of `Buffer` are: an error that is shared cannot be given away.
#[must_use]
pub fn call_error<E: Error + 'static>(error: BoxError) -> CallError<E> {
    match error.downcast::<CallError<E>>() {
        Ok(error) => *error,
        Err(other) => CallError::Status(status_of::<E>(&*other)),
    }
}

fn status_of<E: Error + 'static>(error: &(dyn Error + 'static)) -> Status {
    let mut at = Some(error);
    let mut texts: Vec<String> = Vec::new();
    while let Some(cause) = at {
        if let Some(status) = known::<E>(cause) {
            return status.clone();
        }
        if cause.is::<Elapsed>() {
            return Status::deadline_exceeded("the time that a layer gives a call has passed");
        }
        if cause.is::<Overloaded>() {
            let text = "a layer takes no more calls now (load shedding)";
            return Status::resource_exhausted(text).with_retryable(true);
        }
        texts.push(cause.to_string());
        at = cause.source();
    }
    Status::unknown(format!("a layer has failed: {}", texts.join(": ")))
}

/// The status that an error is.
fn known<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a Status> {
    if let Some(CallError::Status(status)) = error.downcast_ref::<CallError<E>>() {
        return Some(status);
    }
    match error.downcast_ref::<CallError<Status>>() {
        Some(CallError::User(status) | CallError::Status(status)) => Some(status),
        None => error.downcast_ref(),
    }
}
