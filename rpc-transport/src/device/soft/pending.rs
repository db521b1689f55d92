//! Handshakes in progress: bounded in number and in time.
//!
//! Owns the tasks that talk to peers which have connected but not yet sent their request. Never
//! lets them keep a listener from accepting: at the limit the oldest is dropped, since an honest
//! peer takes only milliseconds.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tokio::task::{AbortHandle, JoinSet};

use crate::log_limit::LogLimit;

/// Most handshakes at a time.
const MAX_PENDING: usize = 256;
/// Time limit of one handshake.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Handshakes, each of which yields a `T` or fails.
#[derive(Debug)]
pub(super) struct Pending<T> {
    tasks: JoinSet<Option<T>>,
    /// The tasks, oldest first; some may have ended already.
    oldest: VecDeque<AbortHandle>,
    dropped: LogLimit,
}

impl<T: Send + 'static> Pending<T> {
    pub(super) fn new() -> Self {
        let dropped = LogLimit::new("handshakes that gave way to others");
        Self { tasks: JoinSet::new(), oldest: VecDeque::new(), dropped }
    }

    /// Starts a handshake. It is dropped after [`HANDSHAKE_TIMEOUT`].
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

    /// The next handshake that succeeds. Waits forever if there is none. Cancel-safe.
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
