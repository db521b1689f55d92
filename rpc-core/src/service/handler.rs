//! A running handler, as a service's dispatch hands it to the server.
//!
//! Owns the rule that the peer sees nothing of a handler except its reply: a panic becomes an
//! `Internal` status, and its text goes to the log only.
//!
//! Invariants:
//! 1. The future is not polled again once it has finished or panicked. It is dropped after its
//!    reply was given to the session.
//! 2. Dropping a handler never panics.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};

use rpc_transport::user_code::assert_may_run;

use crate::context::{Context, Served};
use crate::identity::Identity;
use crate::reply::Reply;
use crate::service::pooled_future::PooledFuture;
use crate::status::Status;

/// A running handler. Dropping it cancels it.
#[must_use = "a handler does nothing unless polled"]
pub struct Handler {
    stage: Stage,
    /// It has given its reply or panicked, and can only be dropped.
    is_over: bool,
}

enum Stage {
    Running(PooledFuture<Reply>),
    Watched(Box<dyn Watched>),
    // Boxed, because it is rare and would make every handler larger.
    Ready(Box<Reply>),
    Gone,
}

/// A handler inside another one, and code that waits for its end.
pub(crate) trait Watched: Send {
    /// [`Handler::poll_to`] of the inner handler. The waiting code sees the reply, and may replace
    /// it.
    fn poll_to(&mut self, cx: &mut task::Context<'_>, reply: &mut Option<Reply>);

    /// The inner handler has panicked.
    fn after_panic(&mut self, reply: &mut Option<Reply>);

    /// The reply is known, and the wait is over. Gives the inner handler, to be dropped.
    fn end(self: Box<Self>) -> Handler;

    /// Drops the inner handler before its reply is known.
    fn cancel(self: Box<Self>);
}

impl Handler {
    /// A handler that runs `future` with `context` current. Values that the future still holds when
    /// it has finished are dropped right after its reply was sent, so the caller may get the reply
    /// first. An `async` block holds none by then.
    #[inline]
    pub fn new<F>(context: Context, future: F) -> Self
    where
        F: Future<Output = Reply> + Send + 'static,
    {
        Self::of(Stage::Running(PooledFuture::new(Served::new(context, future))))
    }

    /// A handler around another one.
    #[inline]
    pub(crate) fn watched(watched: Box<dyn Watched>) -> Self {
        Self::of(Stage::Watched(watched))
    }

    /// A handler that is over.
    #[inline]
    pub(crate) const fn over() -> Self {
        Self { stage: Stage::Gone, is_over: true }
    }

    #[inline]
    fn of(stage: Stage) -> Self {
        Self { stage, is_over: false }
    }

    /// A handler that has its reply from the start.
    pub fn ready(reply: Reply) -> Self {
        Self::of(Stage::Ready(Box::new(reply)))
    }

    /// Polls; a panic of the handler is a reply too: `Internal`, with the panic's own text in the
    /// log only.
    ///
    /// # Panics
    /// When polled after it was ready.
    pub fn poll_caught(&mut self, cx: &mut task::Context<'_>) -> Poll<Reply> {
        self.poll_of(cx, Origin::default)
    }

    /// [`Handler::poll_caught`], with the call's origin for the log.
    pub(crate) fn poll_of(
        &mut self,
        cx: &mut task::Context<'_>,
        origin: impl FnOnce() -> Origin,
    ) -> Poll<Reply> {
        assert!(!self.is_over, "a handler was polled after it had finished");
        let mut reply = None;
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.poll_to(cx, &mut reply))) {
            self.after_panic(panic, &origin(), &mut reply);
        }
        if reply.is_some() {
            self.clear();
        }
        reply.map_or(Poll::Pending, Poll::Ready)
    }

    /// Polls, and lets panics through. Does not drop a future that has finished, so that the reply
    /// does not wait for the drop.
    ///
    /// # Panics
    /// As the handler does, and when polled after it was ready.
    #[inline]
    pub(crate) fn poll_to(&mut self, cx: &mut task::Context<'_>, reply: &mut Option<Reply>) {
        assert!(!self.is_over, "a handler was polled after it had finished");
        if let Stage::Running(future) = &mut self.stage {
            assert_may_run("a handler runs");
            // Set before the poll, so that it holds also if the poll panics.
            self.is_over = true;
            match Pin::new(future).poll(cx) {
                Poll::Ready(given) => *reply = Some(given),
                Poll::Pending => self.is_over = false,
            }
        } else {
            self.poll_other(cx, reply);
        }
    }

    #[cold]
    fn poll_other(&mut self, cx: &mut task::Context<'_>, reply: &mut Option<Reply>) {
        self.is_over = true;
        if let Stage::Watched(watched) = &mut self.stage {
            watched.poll_to(cx, reply);
            self.is_over = reply.is_some();
        }
        if !self.is_over {
            return;
        }
        match std::mem::replace(&mut self.stage, Stage::Gone) {
            Stage::Watched(watched) => {
                *self = watched.end();
                self.is_over = true;
            }
            Stage::Ready(given) => *reply = Some(*given),
            Stage::Running(_) | Stage::Gone => {}
        }
    }

    /// [`Handler::poll_to`] has panicked: logs it, and sets a reply if there is none.
    #[cold]
    pub(crate) fn after_panic(
        &mut self,
        panic: Box<dyn Any + Send>,
        origin: &Origin,
        reply: &mut Option<Reply>,
    ) {
        log_panic(panic, origin);
        self.end_after_panic(reply);
    }

    #[cold]
    pub(crate) fn end_after_panic(&mut self, reply: &mut Option<Reply>) {
        if let Stage::Watched(watched) = &mut self.stage {
            watched.after_panic(reply);
        }
        self.clear();
        reply.get_or_insert_with(|| Reply::Status(Status::internal("the handler panicked")));
    }

    /// Drops the rest of the future (invariants 1 and 2).
    #[inline]
    fn clear(&mut self) {
        if !matches!(self.stage, Stage::Gone) {
            self.drop_stage();
        }
    }

    fn drop_stage(&mut self) {
        self.is_over = true;
        let caught = match std::mem::replace(&mut self.stage, Stage::Gone) {
            Stage::Running(future) => catch_unwind(AssertUnwindSafe(|| drop(future))),
            other => catch_unwind(AssertUnwindSafe(|| other.let_go())),
        };
        if let Err(panic) = caught {
            log_panic(panic, &Origin::default());
        }
    }
}

impl Stage {
    #[cold]
    fn let_go(self) {
        if let Self::Watched(watched) = self {
            watched.cancel();
        }
    }
}

/// The method and peer of a handler, for the log, if they are known.
#[derive(Debug, Default)]
pub(crate) struct Origin {
    pub(crate) method: Option<&'static str>,
    pub(crate) peer: Option<Arc<Identity>>,
}

#[cold]
pub(crate) fn log_panic(panic: Box<dyn Any + Send>, origin: &Origin) {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(not a text)");
    let peer = origin.peer.as_ref().map(tracing::field::display);
    tracing::error!(method = origin.method, peer, panic = text, "a handler panicked");
    // The panic payload may itself panic when dropped.
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(second);
    }
}

/// As [`Handler::poll_caught`]: a layer around a handler sees a panic as the reply that the caller
/// gets.
impl Future for Handler {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Reply> {
        // A layer polls it for the call that is current.
        self.poll_of(cx, || {
            let context = Context::current();
            let method = context.method().map(|method| method.name);
            Origin { method, peer: context.identity().cloned() }
        })
    }
}

impl Drop for Handler {
    #[inline]
    fn drop(&mut self) {
        self.clear();
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.stage {
            _ if self.is_over => "Handler(done)",
            Stage::Ready(_) => "Handler(ready)",
            Stage::Running(_) | Stage::Watched(_) | Stage::Gone => "Handler(running)",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::panic::panic_any;
    use std::task::Waker;

    use rpc_transport::message::outgoing::OutBuf;

    use super::*;
    use crate::status::Code;

    fn poll(handler: &mut Handler) -> Poll<Reply> {
        handler.poll_caught(&mut task::Context::from_waker(Waker::noop()))
    }

    fn ok() -> Reply {
        Reply::Ok(OutBuf::new())
    }

    fn expect_internal(polled: Poll<Reply>) {
        let Poll::Ready(Reply::Status(status)) = polled else {
            panic!("no status");
        };
        assert_eq!(status, Status::internal("the handler panicked"));
    }

    /// Panics when dropped.
    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("dropped on purpose");
        }
    }

    #[test]
    fn a_reply_that_is_there_needs_no_future() {
        let mut handler = Handler::ready(Reply::Status(Status::from(Code::NotFound)));
        let Poll::Ready(reply) = poll(&mut handler) else { panic!("not ready") };
        assert!(matches!(reply, Reply::Status(status) if status.code() == Code::NotFound));
    }

    #[test]
    fn a_panic_becomes_internal_without_its_text() {
        let mut handler = Handler::new(Context::new(), async { panic!("secret") });
        expect_internal(poll(&mut handler));
        let mut handler = Handler::new(Context::new(), async { panic_any(5_u8) });
        expect_internal(poll(&mut handler));
    }

    #[test]
    fn even_what_was_thrown_may_panic() {
        let mut handler = Handler::new(Context::new(), async { panic_any(Bomb) });
        expect_internal(poll(&mut handler));
    }

    #[test]
    fn a_finished_future_is_dropped_before_its_reply() {
        let (held, seen) = {
            let held = std::sync::Arc::new(());
            (held.clone(), held)
        };
        let mut handler = Handler::new(
            Context::new(),
            std::future::poll_fn(move |_| {
                let _held = &held;
                Poll::Ready(ok())
            }),
        );
        let Poll::Ready(_reply) = poll(&mut handler) else { panic!("not ready") };
        assert_eq!(std::sync::Arc::strong_count(&seen), 1);
    }

    #[test]
    fn a_future_that_panicked_is_not_polled_again() {
        let mut handler = Handler::new(Context::new(), async { panic!("on purpose") });
        let mut polled = || {
            let mut reply = None;
            let mut cx = task::Context::from_waker(Waker::noop());
            let poll = AssertUnwindSafe(|| handler.poll_to(&mut cx, &mut reply));
            *catch_unwind(poll).unwrap_err().downcast::<&str>().unwrap()
        };
        assert_eq!(polled(), "on purpose");
        assert_eq!(polled(), "a handler was polled after it had finished");
    }

    /// Regression: a panic unwound through a layer, which then counted the call as cancelled.
    #[test]
    fn a_layer_sees_a_panic_as_a_reply() {
        let seen = std::sync::Arc::new(std::sync::Mutex::new(None));
        let tally = std::sync::Arc::clone(&seen);
        let inner = Handler::new(Context::new(), async { panic!("on purpose") });
        let mut layer = Handler::new(Context::new(), async move {
            let reply = inner.await;
            if let Reply::Status(status) = &reply {
                *tally.lock().unwrap() = Some(status.code());
            }
            reply
        });
        expect_internal(poll(&mut layer));
        assert_eq!(*seen.lock().unwrap(), Some(Code::Internal));
    }

    #[test]
    fn a_drop_that_panics_does_not_get_out() {
        let with_bomb = |wait: bool| {
            let bomb = Bomb;
            Handler::new(
                Context::new(),
                std::future::poll_fn(move |_| {
                    let _bomb = &bomb;
                    if wait { Poll::Pending } else { Poll::Ready(ok()) }
                }),
            )
        };
        let Poll::Ready(reply) = poll(&mut with_bomb(false)) else { panic!("not ready") };
        assert!(matches!(reply, Reply::Ok(_)));
        let mut waiting = with_bomb(true);
        assert!(poll(&mut waiting).is_pending());
        drop(waiting);
    }

    #[test]
    #[should_panic(expected = "after it had finished")]
    fn a_finished_handler_is_not_polled_again() {
        let mut handler = Handler::ready(ok());
        assert!(poll(&mut handler).is_ready());
        let _ = poll(&mut handler);
    }

    #[test]
    fn the_context_is_current_in_the_handler() {
        let deadline = std::time::Instant::now();
        let context = Context::new().with_deadline(Some(deadline));
        let mut handler = Handler::new(context, async move {
            assert_eq!(Context::current().deadline(), Some(deadline));
            ok()
        });
        let Poll::Ready(reply) = poll(&mut handler) else { panic!("not ready") };
        assert!(matches!(reply, Reply::Ok(_)));
        let mut waiting = Handler::new(Context::new(), pending());
        assert!(poll(&mut waiting).is_pending());
    }
}
