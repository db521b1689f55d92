//! When a connection must be looked at next, and what happens then.

use std::time::{Duration, Instant};

use super::queue_pair::{ConnectionQp, Phase};
use super::{Connection, Pressing};
use crate::device::CompletionQueue;
use crate::device::connection_error::CloseCause;
use crate::engine::clock;
use crate::engine::upper::UpperLayer;
use crate::protocol::link::{Link, LinkError};

/// Between two checks whether a QP takes no more of the RECVs that connections share.
const DRAIN_CHECK: Duration = Duration::from_millis(20);

impl<P: UpperLayer> Connection<P> {
    fn deadline(&self) -> Option<Instant> {
        let drain = match &self.queue_pair {
            Some(ConnectionQp { phase: Phase::Draining { until }, recv_buffers, .. }) => {
                // The device may say without a sound that no more shared RECVs are taken.
                let check = recv_buffers.share.as_ref().map(|_| clock::now() + DRAIN_CHECK);
                check.into_iter().chain([*until]).min()
            }
            _ => None,
        };
        let close = match self.pressing {
            Pressing::Close { until, .. } if drain.is_none() => Some(until),
            _ => None,
        };
        [drain, close, self.link_deadline(), self.protocol.next_deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether the registered deadline is early enough. A quick check: false means "not sure".
    #[inline]
    pub(crate) fn is_deadline_registered(&self) -> bool {
        if !matches!(self.pressing, Pressing::Nothing) || self.link.is_none() {
            return false;
        }
        match (self.registered_deadline, self.protocol.next_deadline()) {
            (Some(_), None) => true,
            (Some(registered), Some(at)) => registered <= at,
            (None, None) => self.link_deadline().is_none(),
            (None, Some(_)) => false,
        }
    }

    /// The deadline to register, if the registered one is missing or too late, and the one that it
    /// replaces. The link's own deadline only moves later, except when a Ping is answered, and in
    /// `on_timeout`, when nothing is registered.
    #[inline(never)]
    pub(crate) fn deadline_to_register(&mut self) -> Option<(Instant, Option<Instant>)> {
        if self.is_deadline_registered() {
            return None;
        }
        if matches!(self.pressing, Pressing::Ping(at) if self.link_deadline() != Some(at)) {
            self.pressing = Pressing::Nothing;
        }
        let deadline = self.deadline()?;
        if self.registered_deadline.is_some_and(|registered| registered <= deadline) {
            return None;
        }
        Some((deadline, self.registered_deadline.replace(deadline)))
    }

    /// Clears the registered deadline: the shard handles it now, or removes the connection.
    pub(crate) fn take_registered_deadline(&mut self) -> Option<Instant> {
        self.registered_deadline.take()
    }

    /// Whether the link's deadline has passed, which may mean that the peer is dead.
    pub(crate) fn is_keep_alive_judged(&self, now: Instant) -> bool {
        self.link_deadline().is_some_and(|at| at <= now)
    }

    fn link_deadline(&self) -> Option<Instant> {
        self.link.as_ref().and_then(Link::next_deadline)
    }

    pub(crate) fn on_timeout(&mut self, cq: &mut dyn CompletionQueue, now: Instant) {
        if self.protocol.next_deadline().is_some_and(|at| at <= now) {
            self.with_revoke(|protocol, revoke| protocol.on_timeout(now, revoke));
        }
        if matches!(self.pressing, Pressing::Close { until, .. } if until <= now) {
            self.check_close_timeout(cq, now);
        }
        if let Some(queue_pair) = &mut self.queue_pair
            && queue_pair.phase == Phase::Up
            && queue_pair.is_found_quiet(now)
        {
            cq.release_pages(queue_pair.qp);
            queue_pair.recv_buffers.release_pages();
        }
        if !self.is_keep_alive_judged(now) {
            return;
        }
        let (Some(queue_pair), Some(link)) = (&self.queue_pair, &mut self.link) else { return };
        match link.on_timeout(now, cq.traffic(queue_pair.qp)) {
            Ok(()) => {
                self.pressing = link.next_deadline().map_or(Pressing::Nothing, Pressing::Ping)
            }
            Err(LinkError::PingTimeout(after)) => {
                self.fail(cq, &CloseCause::PingTimeout(after));
            }
        }
    }
}
