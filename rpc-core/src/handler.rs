//! A running handler: what a service's dispatch hands to the server.
//!
//! Owns the rule that nothing a handler does reaches the peer but its reply: a panic becomes an
//! `Internal` status, its text goes to the log.
//!
//! Invariants:
//! 1. The future is dropped as soon as it has finished or panicked, so that what it holds (the
//!    request's message above all) is free when the reply goes out.
//! 2. Dropping a handler never panics.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{self, Poll};

use crate::context::Context;
use crate::recycled::Recycled;
use crate::service::Reply;
use crate::status::Status;

/// A handler at work. Dropping it cancels it.
#[must_use = "a handler does nothing unless polled"]
pub struct Handler(Stage);

enum Stage {
    Running(Recycled<Reply>),
    Ready(Reply),
    Done,
}

impl Handler {
    /// A handler that runs `future` with `context` current.
    pub fn new<F>(context: Context, future: F) -> Self
    where
        F: Future<Output = Reply> + Send + 'static,
    {
        Self(Stage::Running(Recycled::new(context.scope(future))))
    }

    /// A handler that has its reply already.
    pub fn ready(reply: Reply) -> Self {
        Self(Stage::Ready(reply))
    }

    /// Polls; a panic of the handler is a reply too: `Internal`, with the panic's own text in the
    /// log only.
    ///
    /// # Panics
    /// When polled after it was ready.
    pub fn poll_caught(&mut self, cx: &mut task::Context<'_>) -> Poll<Reply> {
        let polled = match &mut self.0 {
            Stage::Running(future) => catch_unwind(AssertUnwindSafe(|| Pin::new(future).poll(cx))),
            Stage::Ready(_) | Stage::Done => Ok(Pin::new(&mut *self).poll(cx)),
        };
        match polled {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(reply)) => {
                self.finish();
                Poll::Ready(reply)
            }
            Err(panic) => {
                log_panic(panic);
                self.finish();
                Poll::Ready(Reply::status(&Status::internal("the handler panicked")))
            }
        }
    }

    /// Drops what is left of the future (invariants 1 and 2).
    fn finish(&mut self) {
        let stage = std::mem::replace(&mut self.0, Stage::Done);
        if let Stage::Running(future) = stage
            && let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(future)))
        {
            log_panic(panic);
        }
    }
}

#[cold]
fn log_panic(panic: Box<dyn Any + Send>) {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(not a text)");
    tracing::error!(panic = text, "a handler panicked");
    // What was thrown may itself panic when dropped; it is of no further use.
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(second);
    }
}

/// Like [`Handler::poll_caught`], but lets panics through.
impl Future for Handler {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Reply> {
        match std::mem::replace(&mut self.0, Stage::Done) {
            Stage::Running(mut future) => {
                let polled = Pin::new(&mut future).poll(cx);
                if polled.is_pending() {
                    self.0 = Stage::Running(future);
                }
                polled
            }
            Stage::Ready(reply) => Poll::Ready(reply),
            Stage::Done => panic!("a handler was polled after it had finished"),
        }
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        self.finish();
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Stage::Running(_) => "Handler(running)",
            Stage::Ready(_) => "Handler(ready)",
            Stage::Done => "Handler(done)",
        })
    }
}
