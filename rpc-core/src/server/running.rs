//! Handlers that run as tasks, until their replies are accepted.
//!
//! Invariant: each reports its end to the session, however its task ends.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};

use rpc_transport::device::connection_error::CloseCause;

use super::call::{Call, Done};
use super::route_counts::Running;
use crate::endpoint::RpcShard;
use crate::endpoint::reply::Replied;
use crate::service::Reply;
use crate::service::handler::{Handler, Origin};
use crate::stats::counts::End;
use crate::status::{Code, Status};

#[cold]
pub(super) fn spawn(
    shard: &Arc<RpcShard>,
    call: Call,
    handler: Handler,
    running: Running,
    yields: bool,
) -> Done {
    // Made here, not in the task: an abort before the task's first poll must be reported too.
    let ended = HandlerEnded::new(shard, call, Some(running));
    let task = tokio::spawn(Spawned { handler, reply: None, ended, yields });
    call.attach(task.abort_handle())
}

/// A handler as a task. Field order matters: the handler is dropped before `ended` reports to
/// the session, so by then none of its code runs any more.
struct Spawned {
    handler: Handler,
    /// The reply, while it waits for room.
    reply: Option<Reply>,
    ended: HandlerEnded,
    /// Whether to yield once before the first poll. Tokio starts a new task on the worker that
    /// spawned it, here the driver's; a task that has yielded waits in the queue that all workers
    /// take from.
    yields: bool,
}

impl Future for Spawned {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        let this = self.get_mut();
        if std::mem::take(&mut this.yields) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if this.reply.is_none() {
            let HandlerEnded { shard, call: Call { key, method, .. }, running, .. } = &this.ended;
            let origin = || Origin::of(shard, *key, *method);
            let _in_span =
                running.as_ref().and_then(|running| Some(running.span.as_ref()?.enter()));
            this.reply = Some(std::task::ready!(this.handler.poll_of(cx, origin)));
        }
        this.ended.poll_reply(&mut this.reply, cx)
    }
}

/// Reports the end of a spawned handler to the session, also when its task is aborted.
pub(super) struct HandlerEnded {
    shard: Arc<RpcShard>,
    call: Call,
    replied: bool,
    /// Its reply waits for room.
    waits: bool,
    /// Until its end is counted.
    running: Option<Running>,
}

impl HandlerEnded {
    pub(super) fn new(shard: &Arc<RpcShard>, call: Call, running: Option<Running>) -> Self {
        Self { shard: Arc::clone(shard), call, replied: false, waits: false, running }
    }

    fn reply(&mut self, reply: &mut Option<Reply>) -> Replied {
        let mut ended = reply.as_ref().map(End::of);
        let running = self.running.take_if(|_| ended.is_some());
        self.replied = true;
        let waited = std::mem::take(&mut self.waits);
        let Call { key, id, method, .. } = self.call;
        let replied = self.shard.with(key, |peer| {
            let replied = if waited {
                peer.reply_after_wait(id, method, reply)
            } else {
                peer.reply(id, method, reply)
            };
            if replied == Replied::Refused {
                ended = Some((End::Code(Code::ResourceExhausted), 0));
            }
            // Before the caller can know of it.
            if let (Some(running), Some(ended)) = (&running, ended) {
                running.count(ended);
            }
            replied
        });
        if let (Some(running), Some(ended)) = (running, ended) {
            if replied.is_none() {
                running.count(ended);
            }
            running.leave(ended.0);
        }
        let replied = replied.unwrap_or(Replied::Done);
        self.replied = replied != Replied::MustWait;
        replied
    }

    /// Ready when the session has accepted the reply.
    fn poll_reply(&mut self, reply: &mut Option<Reply>, cx: &TaskContext<'_>) -> Poll<()> {
        match self.reply(reply) {
            Replied::Done | Replied::Refused => Poll::Ready(()),
            Replied::MustWait => self.wait(reply, cx.waker().clone()),
        }
    }

    /// Tries once more and, under the same lock, registers `waker` if there is still no room.
    #[cold]
    fn wait(&mut self, reply: &mut Option<Reply>, waker: Waker) -> Poll<()> {
        let mut waker = Some(waker);
        let Call { key, id, method, .. } = self.call;
        let replied = self.shard.with(key, |peer| {
            let replied = peer.reply(id, method, reply);
            if replied == Replied::MustWait
                && let Some(waker) = waker.take()
            {
                peer.wait_for_room(id, reply.as_ref(), waker);
            }
            replied
        });
        match replied {
            Some(Replied::MustWait) => {
                self.waits = true;
                Poll::Pending
            }
            Some(Replied::Done | Replied::Refused) | None => {
                self.replied = true;
                Poll::Ready(())
            }
        }
    }
}

/// A task that sends the reply of a finished handler when its connection's queue has room.
pub(super) struct WaitingReply {
    pub(super) reply: Option<Reply>,
    pub(super) ended: HandlerEnded,
}

impl Future for WaitingReply {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        let this = self.get_mut();
        this.ended.poll_reply(&mut this.reply, cx)
    }
}

impl Drop for HandlerEnded {
    fn drop(&mut self) {
        if self.replied {
            return;
        }
        // A panic is turned into a reply, and a handler that is stopped was not wanted any more. So
        // one that is dropped for no such reason means that the runtime shuts down.
        let status = Status::unavailable("the handler was dropped: its runtime has shut down");
        let mut reply = Some(Reply::Status(status));
        let running = self.running.take();
        let Call { key, id, method, .. } = self.call;
        let (mut code, mut is_stopped) = (Code::Cancelled, true);
        let answered = self.shard.with(key, |peer| {
            is_stopped = peer.session.is_stopping(id);
            // Until the call is answered, the session knows why its handler was stopped.
            if peer.session.is_expired(id) {
                code = Code::DeadlineExceeded;
            }
            // Counted before the caller can know of it.
            if let Some(running) = &running {
                running.count((End::Code(code), 0));
            }
            // A status never has to wait for room.
            if is_stopped {
                peer.reply(id, method, &mut reply);
            }
        });
        if !is_stopped {
            // The driver is about to go the same way. A peer whose connection ends tries all its
            // idempotent calls again, elsewhere, and counts one failure; statuses would be one
            // each.
            self.shard.fail(key, &CloseCause::DriverGone);
        }
        if let Some(running) = running {
            if answered.is_none() {
                running.count((End::Code(code), 0));
            }
            running.leave(End::Code(code));
        }
    }
}
