//! What becomes of a member whose calls fail, of one that is new, and of one that is not healthy.

use std::sync::Arc;
use std::time::Instant;

use rpc_transport::log_limit::LogLimit;

use super::Balancer;
use crate::channel::connectivity::SETTLED_AFTER;
use crate::channel::outliers::{Suspicion, is_outlier};
use crate::channel::standing::Standing;
use crate::client::load::{Judge, Load};
use crate::client::members::{id, load_of};
use crate::client::subchannel::Subchannel;
use crate::runtime::random::random;

static EJECTED: LogLimit = LogLimit::new("ejected servers");

impl Judge for Balancer {
    #[cold]
    fn on_suspicion(&self, load: &Load, why: Suspicion, now: Instant) {
        let members = self.members.load();
        if why == Suspicion::Rate {
            let others = members.iter().filter(|other| id(other) != load.end_point);
            let rates: Vec<f64> =
                others.filter_map(|it| load_of(it)?.standing().success_rate(now)).collect();
            let own = load.standing().success_rate(now);
            if !own.is_some_and(|own| is_outlier(own, &rates)) {
                return;
            }
        }
        let found = members.iter().find(|it| id(it) == load.end_point);
        let Some(member) = found else { return };
        let (count, limits) = (members.len(), &self.policy.limits);
        let ejected = self.ejections.lock().eject(load.end_point, count, limits, now, random());
        let Some(until) = ejected else { return };
        load.change(|standing| standing.take_out(until, self.policy.slow_start));
        self.ejected.add_shared(1);
        EJECTED.fault(now, || {
            let why = match why {
                Suspicion::InARow => "its calls fail one after another",
                Suspicion::Rate => "its calls fail more often than those of the others",
            };
            tracing::warn!(
                server = %member.target,
                time = ?until.saturating_duration_since(now),
                "a server gets no calls for a while: {why}"
            );
        });
    }

    fn introduce(&self, end_point: usize, standing: &mut Standing, now: Instant) {
        let slow_start = self.policy.slow_start;
        let until = self.ejections.lock().until(end_point, now);
        if let Some(until) = until {
            standing.take_out(until, slow_start);
            return;
        }
        let is_settled = |member: &Arc<Subchannel>| {
            load_of(member).is_some_and(|load| {
                load.end_point != end_point
                    && now.saturating_duration_since(load.since) >= SETTLED_AFTER
            })
        };
        // Those that come up together share the calls from the start.
        if self.members.load().iter().any(is_settled) {
            standing.warm_up(now, slow_start);
        }
    }

    #[cfg(feature = "macros")]
    fn on_health(&self) {
        self.demand.tell();
    }
}
