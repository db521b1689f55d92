//! What is known of all members together: their state, their numbers, and why no call can be made.

use std::sync::Arc;

use rpc_transport::engine::clock;

use super::Balancer;
use crate::channel::connectivity::ConnectivityState;
use crate::client::members::{ill, not_serving};
use crate::client::subchannel::Subchannel;
use crate::stats::{MemberStats, ResolverStats};
use crate::status::{Code, Status};

impl Balancer {
    /// The status of a call that no end point takes.
    pub(super) fn failing(&self, failing: &[Status]) -> Status {
        let (error, has_vanished) = {
            let resolution = self.resolution.lock();
            (resolution.error.clone(), resolution.vanished > 0)
        };
        let mut reasons: Vec<String> =
            failing.iter().take(4).map(|status| status.message().to_owned()).collect();
        if failing.len() > reasons.len() {
            reasons.push(format!("and {} more", failing.len() - reasons.len()));
        }
        reasons.extend(error);
        let text = match reasons.as_slice() {
            [] if has_vanished => format!(
                "{}: no server is known yet, and the runtime that was resolving the name has shut \
                 down",
                self.name
            ),
            [] => format!("{}: no server is known yet", self.name()),
            reasons => reasons.join("; "),
        };
        Status::new(Code::Unavailable, text).with_retryable(true)
    }

    /// The status of a call that cannot wait any longer.
    pub(in crate::client) fn why_not(&self) -> Status {
        let why = |member: &Arc<Subchannel>| match ill(member) {
            Some(_) => not_serving(member),
            None => member.why_not(),
        };
        let failing: Vec<_> = self.members().iter().map(why).collect();
        self.failing(&failing)
    }

    /// The members as they are now, and how often one was ejected.
    pub(in crate::client) fn stats(&self) -> (Vec<MemberStats>, u64) {
        (self.members().stats(), self.ejected.get())
    }

    /// What the resolver says.
    pub(in crate::client) fn resolver_stats(&self) -> ResolverStats {
        let resolution = self.resolution.lock();
        let age = |(at, _)| clock::now().saturating_duration_since(at);
        ResolverStats {
            name: self.name(),
            age: resolution.heard.map(age),
            servers: resolution.heard.map_or(0, |(_, servers)| servers as u64),
            error: resolution.error.clone(),
        }
    }

    /// The state of all together, as gRPC's balancers count it.
    pub(in crate::client) fn state(&self) -> ConnectivityState {
        use ConnectivityState::{Connecting, Idle, Ready, Shutdown, TransientFailure};
        let states: Vec<_> = self.members().iter().map(|member| member.state().0).collect();
        let best = [Ready, Connecting, Idle, TransientFailure, Shutdown];
        let found = best.into_iter().find(|state| states.contains(state));
        let resolution = self.resolution.lock();
        found.unwrap_or(match (resolution.machine.runs(), &resolution.error) {
            (_, Some(_)) => TransientFailure,
            (true, None) => Connecting,
            (false, None) => Idle,
        })
    }
}
