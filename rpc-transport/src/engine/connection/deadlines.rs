//! When a connection must be looked at next, and what happens then.

use std::time::Instant;

use super::queue_pair::Phase;
use super::{Connection, Pressing};
use crate::connect::error::CloseCause;
use crate::device::CompletionQueue;
use crate::engine::upper::Protocol;
use crate::protocol::link::{Link, LinkError};

impl<P: Protocol> Connection<P> {
    fn deadline(&self) -> Option<Instant> {
        let drain = match self.queue_pair.as_ref().map(|queue_pair| queue_pair.phase) {
            Some(Phase::Draining { until }) => Some(until),
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
            && let Some(is_quiet) = queue_pair.look(now)
        {
            queue_pair.recv_buffers.give_up();
            if is_quiet {
                cq.rest(queue_pair.qp);
                queue_pair.recv_buffers.rest();
            }
            if let Some(link) = &mut self.link {
                link.look_at_window();
            }
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
