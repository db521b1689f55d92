//! Counts the calls of a shard by the routes of its server.

use std::sync::Arc;
use std::time::Instant;

use rpc_transport::engine::clock;
use tracing::Span;

use super::router::Router;
use crate::stats::counts::{End, Lease, Method, Methods};
use crate::trace;

/// Where calls are counted, by route.
pub(super) struct RouteCounts {
    leases: Box<[Lease]>,
    /// For all that have no route: few peers ever ask for what is not there.
    unknown: Option<Lease>,
    methods: Arc<Methods>,
}

impl RouteCounts {
    pub(super) fn new(router: &Router, methods: Arc<Methods>) -> Self {
        let leases = router.methods().map(|method| methods.lease(Some(method))).collect();
        Self { leases, unknown: None, methods }
    }

    /// `None`: there is no route.
    #[inline]
    pub(super) fn of(&mut self, route: Option<usize>) -> &mut Lease {
        match route.and_then(|route| self.leases.get_mut(route)) {
            Some(lease) => lease,
            None => self.unknown.get_or_insert_with(|| self.methods.lease(None)),
        }
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
