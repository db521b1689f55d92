//! Reconnects missing members while the channel is in use.
//!
//! Owns whether the channel is in use: a call has begun in the last [`LOOK`] or two, is in flight,
//! or waits. Between two looks a call leaves a mark, and no more.
//!
//! Invariants:
//! 1. While the channel is in use, each member without a connection is tried again by the end of
//!    its own backoff, and the resolver is asked, too. Neither depends on the members that are
//!    chosen for calls: a missing one is not chosen.
//! 2. While the channel is not in use, no member is tried.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rpc_transport::wait::after;

use super::{Balancer, is_busy};
use crate::client::members::Members;

/// How often it is looked whether a channel is still in use: at most, and at least.
const LOOK: Duration = Duration::from_secs(10);
const SHORTEST_LOOK: Duration = Duration::from_millis(100);

impl Balancer {
    /// A call begins.
    #[inline]
    pub(super) fn mark(self: &Arc<Self>) {
        if !self.is_marked.load(Ordering::Relaxed) {
            self.on_mark();
        }
    }

    #[cold]
    fn on_mark(self: &Arc<Self>) {
        self.is_marked.store(true, Ordering::Relaxed);
        // Where nobody is known, the first question starts it.
        if !self.members.load().is_empty() {
            self.listen();
        }
        self.demand.tell();
    }

    /// Tries the missing members again. Returns when there is more to do.
    pub(super) fn bring_back(self: &Arc<Self>, now: Instant) -> Option<Instant> {
        let members = self.members.load();
        let look_at = self.look(&members, now)?;
        let missing = members.iter().filter(|member| member.connection().is_none());
        let (mut is_complete, mut next) = (true, look_at);
        for member in missing {
            is_complete = false;
            next = member.kick().map_or(next, |at| at.min(next));
        }
        if !is_complete {
            self.refresh();
        }
        Some(next)
    }

    /// When to look again whether the channel is in use; `None`: it is not.
    fn look(&self, members: &Members, now: Instant) -> Option<Instant> {
        let mut resolution = self.resolution.lock();
        if resolution.look_at.is_none_or(|at| at <= now) {
            let is_used = self.is_marked.swap(false, Ordering::Relaxed)
                || self.demand.waiting_count() > 0
                || members.iter().any(is_busy);
            // Before its connections are found idle: else they would be made again.
            let idle = self.options.max_connection_idle;
            let every = idle.map_or(LOOK, |idle| (idle / 2).clamp(SHORTEST_LOOK, LOOK));
            resolution.look_at = is_used.then(|| after(now, every));
        }
        resolution.look_at
    }

    /// Connects as a call would: [`Channel::kick`](crate::Channel::kick).
    pub(in crate::client) fn kick(self: &Arc<Self>) {
        self.mark();
        self.refresh();
    }
}
