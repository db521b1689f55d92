//! Counts the calls of a shard by the routes of its server.

use std::sync::Arc;
use std::time::Instant;

use rpc_transport::engine::clock;
use tracing::Span;

use super::router::Router;
use crate::observability::stats::counts::{End, Lease, Method, Methods};
use crate::observability::trace;

/// Where calls are counted, by route; the last is for all that have none.
pub(super) struct RouteCounts {
    leases: Box<[Lease]>,
}

impl RouteCounts {
    pub(super) fn new(router: &Router, methods: &Methods) -> Self {
        let mut leases = Vec::new();
        router.for_each_method(|method| leases.push(methods.lease(method)));
        Self { leases: leases.into() }
    }

    /// `None`: there is no route.
    #[inline]
    pub(super) fn of(&mut self, route: Option<usize>) -> &mut Lease {
        let last = self.leases.len() - 1;
        &mut self.leases[route.unwrap_or(last).min(last)]
    }
}

/// A handler that runs as a task, until its end is counted.
pub(super) struct Running {
    pub(super) method: Arc<Method>,
    pub(super) began: Instant,
    pub(super) span: Option<Span>,
}

impl Running {
    /// Counts the end. Runs nothing of the user's, so it may be done under a lock.
    pub(super) fn count(&self, (end, reply_bytes): (End, u64)) {
        self.method.shared.on_shared_end(end, reply_bytes);
        self.method.took.record(clock::now().saturating_duration_since(self.began), 1);
    }

    /// Ends the span, which is the user's to see.
    pub(super) fn leave(self, end: End) {
        if let Some(span) = self.span {
            trace::end(span, end);
        }
    }
}
