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

/// Converts an error of a layer to the status for the caller.
///
/// A [`Status`], also as a source of other errors, is returned unchanged; for a method with its own
/// error type other than `Status`, use [`call_error`]. A timeout is
/// [`DeadlineExceeded`](rpc_core::Code::DeadlineExceeded); a shed call is
/// [`ResourceExhausted`](rpc_core::Code::ResourceExhausted), and retryable, since it did not run.
/// Every other error is [`Unknown`](rpc_core::Code::Unknown), with its text and those of its
/// sources.
#[must_use]
pub fn status(error: BoxError) -> Status {
    status_of::<Status>(&*error)
}

/// Converts an error of a layer around calls of a method with the error type `E`.
///
/// The call's own error is returned unchanged. All others are converted by [`status`], also a
/// method's own error inside another one, as in `Buffer`: a shared error cannot be moved out.
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
            return Status::deadline_exceeded(
                "the timeout that a layer set for the call has passed",
            );
        }
        if cause.is::<Overloaded>() {
            let text = "a layer rejects calls at the moment (load shedding)";
            return Status::resource_exhausted(text).with_retryable(true);
        }
        // The text of the method's own error follows.
        if !matches!(cause.downcast_ref(), Some(CallError::<E>::User(_))) {
            texts.push(cause.to_string());
        }
        at = cause.source();
    }
    Status::unknown(format!("a layer failed: {}", texts.join(": ")))
}

/// The status in an error, if it is one.
fn known<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a Status> {
    if let Some(CallError::Status(status)) = error.downcast_ref::<CallError<E>>() {
        return Some(status);
    }
    match error.downcast_ref::<CallError<Status>>() {
        Some(CallError::User(status) | CallError::Status(status)) => Some(status),
        None => error.downcast_ref(),
    }
}
