//! Handshakes under way: bounded in number and in time.
//!
//! Owns the tasks that talk to peers which have connected and not yet asked for anything. Never
//! lets them keep a listener from accepting: when there are too many, the oldest gives way, as an
//! honest peer takes milliseconds.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tokio::task::{AbortHandle, JoinSet};

use crate::log_limit::LogLimit;

/// Most handshakes at a time.
const MAX_PENDING: usize = 256;
/// How long one may take.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Handshakes that end in a `T`, or in nothing.
#[derive(Debug)]
pub(super) struct Pending<T> {
    tasks: JoinSet<Option<T>>,
    /// The tasks by age; some have ended.
    oldest: VecDeque<AbortHandle>,
    dropped: LogLimit,
}

impl<T: Send + 'static> Pending<T> {
    pub(super) fn new() -> Self {
        let dropped = LogLimit::new("handshakes that gave way to others");
        Self { tasks: JoinSet::new(), oldest: VecDeque::new(), dropped }
    }

    /// Starts a handshake; it is dropped after [`HANDSHAKE_TIMEOUT`].
    pub(super) fn start(&mut self, handshake: impl Future<Output = Option<T>> + Send + 'static) {
        self.oldest.retain(|task| !task.is_finished());
        if self.oldest.len() >= MAX_PENDING
            && let Some(oldest) = self.oldest.pop_front()
        {
            self.dropped.fault(Instant::now(), || {
                tracing::warn!("too many handshakes under way: the oldest is dropped");
            });
            oldest.abort();
        }
        let bounded = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake);
        let task = self.tasks.spawn(async { bounded.await.ok().flatten() });
        self.oldest.push_back(task);
    }

    /// The next handshake that ends well. Waits for ever when there is none. Cancel-safe.
    pub(super) async fn next(&mut self) -> T {
        loop {
            match self.tasks.join_next().await {
                Some(Ok(Some(done))) => return done,
                Some(_) => {}
                None => std::future::pending().await,
            }
        }
    }
}
