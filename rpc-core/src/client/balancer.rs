//! Several end points behind a name: who they are, and which one gets a call.
//!
//! Owns the members, and the task that asks the resolver for them. Members come and go with its
//! answers; those that stay keep their connections.
//!
//! Invariants:
//! 1. At most one task asks the resolver at a time, and no sooner than [`AT_LEAST`] after the last
//!    answer.
//! 2. A resolver that fails, or knows nobody, changes no members.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rpc_transport::connect::address::Address;
use rpc_transport::engine::clock;

use super::connection::{ConnectOptions, Connection};
use super::resolve::Resolve;
use super::subchannel::{Demand, Found, Since, Subchannel};
use crate::channel::backoff::Backoff;
use crate::channel::connectivity::ConnectivityState;
use crate::channel::picker::pick;
use crate::runtime::random::random;
use crate::server::served::Served;
use crate::status::{Code, Status};

/// Shortest time between two questions to the resolver.
const AT_LEAST: Duration = Duration::from_secs(1);
/// Most end points that are used of those that a resolver names.
const MAX_MEMBERS: usize = 1024;

/// The end points of a channel.
pub(super) struct Balancer {
    resolver: Box<dyn Resolve>,
    members: ArcSwap<Vec<Arc<Subchannel>>>,
    resolution: Mutex<Resolution>,
    options: Arc<ConnectOptions>,
    reconnect: Option<Backoff>,
    demand: Arc<Demand>,
}

#[derive(Default)]
struct Resolution {
    runs: bool,
    /// When to ask again at the earliest.
    next_at: Option<Instant>,
    /// Answers in a row that were of no use.
    failures: u32,
    /// All such answers.
    failed: u64,
    error: Option<String>,
}

/// What a waiting call knew when it began to wait.
#[derive(Default)]
pub(super) struct SinceAll {
    failed: u64,
    members: HashMap<Address, Since>,
}

impl Balancer {
    pub(super) fn new(
        resolver: Box<dyn Resolve>,
        options: Arc<ConnectOptions>,
        reconnect: Option<Backoff>,
        demand: Arc<Demand>,
    ) -> Arc<Self> {
        let (members, resolution) = Default::default();
        Arc::new(Self { resolver, members, resolution, options, reconnect, demand })
    }

    pub(super) fn name(&self) -> String {
        self.resolver.name()
    }

    /// What all members serve, also those to come.
    pub(super) fn served(&self) -> Option<&Arc<Served>> {
        self.options.served.as_ref()
    }

    pub(super) fn members(&self) -> Arc<Vec<Arc<Subchannel>>> {
        self.members.load_full()
    }

    /// The connection for a call, if any is up.
    pub(super) fn pick(self: &Arc<Self>) -> Option<Arc<Connection>> {
        self.pick_but(None)
    }

    /// The same, but for one end point.
    pub(super) fn pick_but(self: &Arc<Self>, other: Option<usize>) -> Option<Arc<Connection>> {
        let members = self.members.load();
        let is_other = |at: usize| other == Some(Arc::as_ptr(&members[at]).addr());
        let cost = |at: usize| {
            let subchannel = &members[at];
            let is_up = subchannel.connection().is_some() && !is_other(at);
            is_up.then(|| subchannel.load.cost())
        };
        let drawn_dead = |at: usize| {
            if !is_other(at) {
                members[at].kick();
                self.refresh();
            }
        };
        let at = pick(members.len(), random(), cost, drawn_dead)?;
        // Lost a moment ago: the caller waits for another.
        members[at].connection.load_full()
    }

    /// Starts whatever could bring a connection.
    pub(super) fn kick(self: &Arc<Self>) {
        self.refresh();
        self.members.load().iter().for_each(|member| member.kick());
    }

    /// What a call that begins to wait must remember.
    pub(super) fn since(&self) -> SinceAll {
        let members = self.members.load();
        let since = members.iter().map(|member| (member.target.clone(), member.state().1));
        SinceAll { failed: self.resolution.lock().failed, members: since.collect() }
    }

    /// Looks for a connection on behalf of a waiting call.
    pub(super) fn find(self: &Arc<Self>, wait_for_ready: bool, since: &mut SinceAll) -> Found {
        if let Some(connection) = self.pick() {
            return Found::Ready(connection);
        }
        self.refresh();
        let members = self.members();
        let (mut may_come, mut failing) = (wait_for_ready, Vec::new());
        for member in &*members {
            let known = since.members.entry(member.target.clone());
            let known = *known.or_insert_with(|| member.state().1);
            match member.find(wait_for_ready, known) {
                Found::Ready(connection) => return Found::Ready(connection),
                Found::Wait => may_come = true,
                Found::Failing(status) => failing.push(status),
            }
        }
        if may_come {
            return Found::Wait;
        }
        let resolution = self.resolution.lock();
        if members.is_empty() && resolution.failed == since.failed && resolution.runs {
            return Found::Wait;
        }
        Found::Failing(self.failing(&resolution, &failing))
    }

    /// The status of a call that no end point takes.
    fn failing(&self, resolution: &Resolution, failing: &[Status]) -> Status {
        let mut reasons: Vec<String> =
            failing.iter().take(4).map(|status| status.message().to_owned()).collect();
        if failing.len() > reasons.len() {
            reasons.push(format!("and {} more", failing.len() - reasons.len()));
        }
        reasons.extend(resolution.error.clone());
        let text = match reasons.as_slice() {
            [] => format!("{}: no server is known yet", self.name()),
            reasons => reasons.join("; "),
        };
        Status::new(Code::Unavailable, text).with_retryable(true)
    }

    /// The status of a call that cannot wait any longer.
    pub(super) fn why_not(&self) -> Status {
        let failing: Vec<_> = self.members().iter().map(|member| member.why_not()).collect();
        self.failing(&self.resolution.lock(), &failing)
    }

    /// The state of all together, as gRPC's balancers count it.
    pub(super) fn state(&self) -> ConnectivityState {
        use ConnectivityState::{Connecting, Idle, Ready, Shutdown, TransientFailure};
        let states: Vec<_> = self.members().iter().map(|member| member.state().0).collect();
        let best = [Ready, Connecting, Idle, TransientFailure, Shutdown];
        let found = best.into_iter().find(|state| states.contains(state));
        let resolution = self.resolution.lock();
        found.unwrap_or(match (resolution.runs, &resolution.error) {
            (_, Some(_)) => TransientFailure,
            (true, None) => Connecting,
            (false, None) => Idle,
        })
    }

    /// Asks the resolver, if that is due.
    fn refresh(self: &Arc<Self>) {
        {
            let mut resolution = self.resolution.lock();
            let is_due = resolution.next_at.is_none_or(|at| at <= clock::now());
            if resolution.runs || !is_due {
                return;
            }
            resolution.runs = true;
        }
        let asking = Asking { balancer: Arc::downgrade(self) };
        self.demand.runtime().spawn(asking.run());
    }

    pub(super) fn on_answer(&self, answer: Result<Vec<Address>, String>) {
        let answer = answer.and_then(|addresses| match addresses.is_empty() {
            true => Err(format!(
                "{} resolves to no address: no server is registered there",
                self.name()
            )),
            false => Ok(addresses),
        });
        let mut gone = None;
        {
            let mut resolution = self.resolution.lock();
            let wait = match answer {
                Ok(addresses) => {
                    (resolution.failures, resolution.error) = (0, None);
                    gone = Some(self.replace(addresses));
                    AT_LEAST
                }
                Err(error) => {
                    tracing::warn!(%error, "a name leads nowhere");
                    resolution.failures = resolution.failures.saturating_add(1);
                    resolution.failed += 1;
                    resolution.error = Some(error);
                    let backoff = self.reconnect.unwrap_or_default();
                    backoff.delay(resolution.failures, random())
                }
            };
            resolution.next_at = clock::now().checked_add(wait);
        }
        drop(gone);
        self.demand.tell();
    }

    /// Puts the members in place; gives what is to be dropped outside of locks.
    fn replace(&self, addresses: Vec<Address>) -> Arc<Vec<Arc<Subchannel>>> {
        let old = self.members.load_full();
        let mut known: HashMap<_, _> = old.iter().map(|member| (&member.target, member)).collect();
        let mut members: Vec<Arc<Subchannel>> = Vec::new();
        for address in addresses {
            if members.len() == MAX_MEMBERS {
                tracing::warn!(name = self.name(), most = MAX_MEMBERS, "too many addresses");
                break;
            }
            if members.iter().any(|member| member.target == address) {
                continue;
            }
            members.push(match known.remove(&address) {
                Some(member) => Arc::clone(member),
                None => {
                    let (options, demand) = (Arc::clone(&self.options), Arc::clone(&self.demand));
                    Subchannel::new(address, options, self.reconnect, demand)
                }
            });
        }
        self.members.swap(Arc::new(members))
    }
}

/// The task that asks the resolver. However it ends, another one may follow.
struct Asking {
    balancer: Weak<Balancer>,
}

impl Asking {
    async fn run(self) {
        while let Some(balancer) = self.balancer.upgrade() {
            let (name, limit) = (balancer.name(), balancer.options.connect_timeout);
            let answer = match tokio::time::timeout(limit, balancer.resolver.resolve()).await {
                Ok(answer) => answer.map_err(|error| error.to_string()),
                Err(_) => Err(format!("{name} was not resolved within {limit:?}")),
            };
            balancer.on_answer(answer);
            balancer.kick_new();
            // Nobody else would ask again for those who wait until somebody is there.
            let wait = match balancer.resolution.lock().next_at {
                Some(at) if balancer.has_nobody() && balancer.demand.somebody_waits() => at,
                _ => break,
            };
            drop(balancer);
            tokio::time::sleep_until(wait.into()).await;
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if let Some(balancer) = self.balancer.upgrade() {
            balancer.resolution.lock().runs = false;
            balancer.demand.tell();
        }
    }
}

impl Balancer {
    fn has_nobody(&self) -> bool {
        self.members.load().is_empty()
    }

    /// Connects to members that were not tried before.
    fn kick_new(&self) {
        for member in &*self.members() {
            if member.state().0 == ConnectivityState::Idle {
                member.kick();
            }
        }
    }
}
