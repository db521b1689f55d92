//! How a task that polls lets other tasks run.

use std::future::Future;
use std::pin::pin;
use std::task::Context;

/// Has the task polled again after other tasks of its thread have run. To be followed by
/// [`Poll::Pending`](std::task::Poll::Pending).
///
/// On a tokio runtime of one thread this is [`tokio::task::yield_now`]: all other tasks run first,
/// the main future and `LocalSet`s among them, and I/O is polled, which the task may wait for.
/// Elsewhere the waker is called directly. Other threads of a runtime poll I/O, and can steal the
/// task from one that blocks its thread; a task deferred by `yield_now` cannot be stolen.
pub fn give_way(cx: &mut Context<'_>) {
    let runtime = tokio::runtime::Handle::try_current();
    if runtime.is_ok_and(|it| it.metrics().num_workers() == 1) {
        let _ = pin!(tokio::task::yield_now()).poll(cx);
    } else {
        cx.waker().wake_by_ref();
    }
}
