#![doc = include_str!("../README.md")]

mod client;
mod server;

use std::error::Error;

use rpc_core::Status;
use tower::BoxError;
use tower::load_shed::error::Overloaded;
use tower::timeout::error::Elapsed;

pub use self::client::CallService;
pub use self::server::{DispatchService, Layered, ServerCall, ServerFuture, layer};

/// What an error of a layer is to a caller.
///
/// A [`Status`], also behind other errors, stays what it is. The end of a timeout is
/// [`DeadlineExceeded`](rpc_core::Code::DeadlineExceeded); a call that was shed is
/// [`ResourceExhausted`](rpc_core::Code::ResourceExhausted), and retryable, since it did not run.
/// Everything else is [`Unknown`](rpc_core::Code::Unknown), with the texts of the error and its causes.
#[must_use]
pub fn status(error: BoxError) -> Status {
    let mut at: Option<&(dyn Error + 'static)> = Some(&*error);
    let mut texts: Vec<String> = Vec::new();
    while let Some(cause) = at {
        if let Some(status) = cause.downcast_ref::<Status>() {
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
