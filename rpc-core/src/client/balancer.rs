//! Several end points behind a name: who they are, and when to ask for them.
//!
//! Owns the members, and the tasks that ask the resolver and listen to it. Members come and go with
//! its answers; those that stay keep their connections. Which of its words is done, and when, is
//! decided by [`Membership`].
//!
//! Invariants:
//! 1. At most one task asks the resolver at a time, and no sooner than [`AT_LEAST`] after the last
//!    answer. When to ask is decided by [`Resolution`].
//! 2. A resolver that fails, panics, or knows nobody, changes no members.
//! 3. A call that is to wait is woken by a member's connector, or by the task that asks. It has
//!    counted itself before it takes the lock of the resolution, under which that task ends.
//! 4. The tasks hold nothing of the channel while they wait.
//! 5. A member that leaves gets no new calls. It is kept, with its connection, while calls are in
//!    flight there: if it comes back meanwhile, it is the same.

mod in_use;
mod judging;
mod reports;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use rpc_transport::address::Address;
use rpc_transport::engine::clock;
use rpc_transport::lock::Mutex;
use rpc_transport::log_limit::LogLimit;
use rpc_transport::wait::after;
use tokio::runtime::Id;
use tokio::task::AbortHandle;

use super::ask::{Told, ask};
use super::connection::{ConnectOptions, Connection};
use super::load::Judge;
use super::members::{Members, ill, load_of, not_serving};
use super::resolve::Resolve;
use super::subchannel::{Demand, Found, MOST_MOVES, Since, Subchannel};
use crate::channel::backoff::{Backoff, unit};
use crate::channel::balancing::BalancingPolicy;
use crate::channel::endpoint::Endpoint;
use crate::channel::membership::{MAX_MEMBERS, Membership};
use crate::channel::outliers::Ejections;
use crate::channel::resolution::{Question, Resolution};
use crate::channel::standing::Health;
use crate::runtime::random::random;
use crate::runtime::watched::Watch;
use crate::server::peer_services::PeerServices;
use crate::stats::counts::Counter;

/// Shortest time between two questions to the resolver.
const AT_LEAST: Duration = Duration::from_secs(1);
/// How often members that have left are looked at, while there are any.
const LOOK_AT_FORMER: Duration = Duration::from_secs(1);
/// Waits after the end of what a resolver reports by itself.
const LISTEN_AGAIN: Backoff =
    Backoff::new().initial(Duration::from_secs(1)).max(Duration::from_secs(60));

static BAD_SETS: LogLimit = LogLimit::new("names that were not resolved");

/// The end points of a channel.
pub(super) struct Balancer {
    /// What the resolver says of itself, which is user code.
    name: String,
    resolver: Arc<dyn Resolve>,
    members: ArcSwap<Members>,
    ejections: Mutex<Ejections>,
    ejected: Counter,
    resolution: Mutex<State>,
    options: Arc<ConnectOptions>,
    reconnect: Option<Backoff>,
    demand: Arc<Demand>,
    policy: BalancingPolicy,
    /// A call has begun since it was last looked whether the channel is in use.
    is_marked: AtomicBool,
}

struct State {
    machine: Resolution,
    membership: Membership,
    /// Those that have left while calls were in flight there.
    former: Vec<Arc<Subchannel>>,
    /// When the resolver is to be asked without a need.
    refresh_at: Option<Instant>,
    /// The task that listens, and whether it runs.
    listener: Option<AbortHandle>,
    listens: bool,
    /// When to look whether the channel is still in use; `None`: it is not.
    look_at: Option<Instant>,
    /// Why the last answer was of no use, if it was not.
    error: Option<String>,
    /// When it last named servers, and how many.
    heard: Option<(Instant, usize)>,
    /// Askers that were dropped in the midst of their work.
    vanished: u64,
    asker: Option<AbortHandle>,
}

/// What a waiting call knew when it began to wait.
#[derive(Default)]
pub(super) struct SinceAll {
    failed: u64,
    answers: u64,
    vanished: u64,
    members: HashMap<Address, Since>,
}

impl Balancer {
    pub(super) fn new(
        resolver: Arc<dyn Resolve>,
        options: Arc<ConnectOptions>,
        reconnect: Option<Backoff>,
        demand: Arc<Demand>,
    ) -> Arc<Self> {
        let (members, ejections, ejected, is_marked) = Default::default();
        let name = resolver.name();
        let rules = options.rules.clone();
        let policy = rules.as_ref().map_or_else(BalancingPolicy::new, |it| it.policy.clone());
        let resolution = Mutex::new(State {
            machine: Resolution::default(),
            membership: Membership::new(policy.subset, random()),
            former: Vec::new(),
            refresh_at: None,
            listener: None,
            listens: false,
            look_at: None,
            error: None,
            heard: None,
            vanished: 0,
            asker: None,
        });
        let balancer = Arc::new(Self {
            name,
            resolver,
            members,
            ejections,
            ejected,
            resolution,
            options,
            reconnect,
            demand,
            policy,
            is_marked,
        });
        let judge: Arc<dyn Judge> = Arc::<Self>::clone(&balancer);
        if let Some(rules) = &rules {
            let _ = rules.judge.set(Arc::downgrade(&judge));
        }
        balancer
    }

    pub(super) fn name(&self) -> String {
        self.name.clone()
    }

    /// What all members serve, also those to come.
    pub(super) fn served(&self) -> Option<&Arc<PeerServices>> {
        self.options.served.as_ref()
    }

    pub(super) fn members(&self) -> Arc<Members> {
        self.members.load_full()
    }

    /// The connection for a call, if any is up. `key`: calls of one key go to one end point.
    pub(super) fn pick(self: &Arc<Self>, key: Option<u64>) -> Option<Arc<Connection>> {
        self.mark();
        if let Some(key) = key
            && let Some(found) = self.members.load().pick_for(key)
        {
            return Some(found);
        }
        self.members.load().pick(&[])
    }

    /// A connection, but not to one of these end points.
    pub(super) fn pick_but(&self, others: &[usize]) -> Option<Arc<Connection>> {
        self.members.load().pick(others)
    }

    /// What a call that begins to wait must remember.
    pub(super) fn since(&self) -> SinceAll {
        let members = self.members.load();
        let since = members.iter().map(|member| (member.target.clone(), member.state().1));
        let members = since.collect();
        let resolution = self.resolution.lock();
        let (failed, answers) = (resolution.machine.failed(), resolution.machine.answers());
        SinceAll { failed, answers, vanished: resolution.vanished, members }
    }

    /// Looks for a connection on behalf of a waiting call.
    pub(super) fn find(self: &Arc<Self>, wait_for_ready: bool, since: &mut SinceAll) -> Found {
        if let Some(connection) = self.pick(None) {
            return Found::Ready(connection);
        }
        self.refresh();
        let members = self.members();
        let (mut may_come, mut failing) = (false, Vec::new());
        for member in members.iter() {
            let known = since.members.entry(member.target.clone());
            let known = *known.or_insert_with(|| member.state().1);
            if let Some(health) = ill(member) {
                // The one who watches the health wakes the call.
                may_come |= wait_for_ready || health == Health::Unknown;
                failing.push(not_serving(member));
                continue;
            }
            match member.find(wait_for_ready, known) {
                Found::Ready(connection) => return Found::Ready(connection),
                Found::Wait => may_come = true,
                Found::Failing(status) => failing.push(status),
            }
        }
        if may_come || self.waits_for_names(members.is_empty(), wait_for_ready, since) {
            return Found::Wait;
        }
        if members.is_empty() && !self.members.load().is_empty() {
            // The answer came meanwhile, so nobody asks any more.
            return self.find(wait_for_ready, since);
        }
        Found::Failing(self.failing(&failing))
    }

    /// Whether a call is to wait for the resolver's answer. Then there is a task that asks.
    fn waits_for_names(
        self: &Arc<Self>,
        has_nobody: bool,
        wait_for_ready: bool,
        since: &SinceAll,
    ) -> bool {
        let starts = {
            let (now, mut resolution) = (clock::now(), self.resolution.lock());
            let State { machine, vanished, .. } = &mut *resolution;
            let is_asked = machine.runs() || *vanished > since.vanished;
            let waits = match (has_nobody, wait_for_ready) {
                _ if *vanished > since.vanished + MOST_MOVES => false,
                (true, true) => true,
                (true, false) => is_asked && machine.failed() == since.failed,
                // All that are known have shut down for good. There may be others.
                (false, true) => is_asked && machine.answers() == since.answers,
                (false, false) => false,
            };
            if !waits {
                return false;
            }
            let starts = machine.start(now, true);
            debug_assert!(machine.runs(), "nobody would wake it: {machine:?}");
            starts
        };
        if starts {
            self.start_asker();
        }
        true
    }

    /// Asks the resolver, if that is due.
    fn refresh(self: &Arc<Self>) {
        let now = clock::now();
        let starts = self.resolution.lock().machine.start(now, false);
        if starts {
            self.start_asker();
        }
    }

    fn start_asker(self: &Arc<Self>) {
        let runtime = self.demand.home.runtime();
        let balancer = Arc::downgrade(self);
        let asker = Asker { balancer, runtime: runtime.id(), is_done: false };
        let task = runtime.spawn(asker.run());
        self.resolution.lock().asker = Some(task.abort_handle());
        self.listen();
    }

    /// Starts the task that listens, unless it runs.
    fn listen(self: &Arc<Self>) {
        if !std::mem::replace(&mut self.resolution.lock().listens, true) {
            let (balancer, runtime) = (Arc::downgrade(self), self.demand.home.runtime());
            let (resolver, news) = (Arc::clone(&self.resolver), self.demand.watch());
            let listener = Listener { balancer, name: self.name() };
            let task = runtime.spawn(listener.run(resolver, news));
            self.resolution.lock().listener = Some(task.abort_handle());
        }
    }

    fn next_question(&self) -> Question {
        let now = clock::now();
        let mut resolution = self.resolution.lock();
        // Where somebody is known, calls wait for a connection, or for the one answer that is owed.
        let waits = self.members.load().is_empty() && self.demand.somebody_waits();
        resolution.machine.step(now, waits)
    }

    /// The resolver was asked.
    pub(super) fn on_answer(&self, answer: Result<Vec<Endpoint>, String>) {
        let (now, random) = (clock::now(), random());
        let (error, beyond) = {
            let mut resolution = self.resolution.lock();
            let (error, beyond) = self.heed(&mut resolution, answer, now);
            match &error {
                None => resolution.machine.on_resolved(after(now, AT_LEAST)),
                Some(_) => {
                    let backoff = self.reconnect.unwrap_or_default();
                    resolution.machine.on_failed(now, |failures| backoff.delay(failures, random));
                }
            }
            (error, beyond)
        };
        self.after_set(now, error, beyond);
    }

    /// The resolver has told by itself.
    fn on_told(&self, told: Result<Vec<Endpoint>, String>) {
        let now = clock::now();
        let (error, beyond) = self.heed(&mut self.resolution.lock(), told, now);
        self.after_set(now, error, beyond);
    }

    /// Records what the resolver says. Gives what is wrong with it, and how many are too many.
    fn heed(
        &self,
        resolution: &mut State,
        set: Result<Vec<Endpoint>, String>,
        now: Instant,
    ) -> (Option<String>, usize) {
        let beyond = match set {
            Ok(set) => {
                let is_empty = set.is_empty();
                resolution.heard = Some((now, set.len()));
                let beyond = resolution.membership.on_set(set, now);
                resolution.error = is_empty.then(|| {
                    format!(
                        "{} resolves to no address: no server is registered under it",
                        self.name
                    )
                });
                beyond
            }
            Err(error) => {
                resolution.error = Some(error);
                0
            }
        };
        // Not in step with other channels.
        let every = self.policy.resolve_every.map(|every| every.max(AT_LEAST));
        resolution.refresh_at = every.map(|every| {
            let early = every.as_secs_f64() * unit(random()) / 10.0;
            after(now, every - Duration::try_from_secs_f64(early).unwrap_or_default())
        });
        (resolution.error.clone(), beyond)
    }

    fn after_set(&self, now: Instant, error: Option<String>, beyond: usize) {
        if let Some(error) = error {
            BAD_SETS.fault(now, || tracing::warn!(%error, "a name was not resolved"));
        } else if beyond > 0 {
            BAD_SETS.fault(now, || {
                tracing::warn!(
                    name = self.name,
                    most = MAX_MEMBERS,
                    "the name resolves to too many addresses, the rest are ignored"
                );
            });
        }
        self.apply(now);
        self.demand.tell();
    }

    /// Puts in place what is due of what the resolver has said.
    fn apply(&self, now: Instant) {
        let _gone;
        let mut resolution = self.resolution.lock();
        let members = self.members.load();
        let answers = |address: &Address| {
            let is_up = |it: &&Arc<Subchannel>| it.target == *address && it.connection().is_some();
            members.iter().find(is_up).is_some()
        };
        if resolution.membership.step(now, answers) {
            _gone = self.replace(&mut resolution);
        }
    }

    /// Does what is due, and gives when there is more to do.
    pub(super) fn keep_up(self: &Arc<Self>, is_told: bool) -> Instant {
        let now = clock::now();
        self.apply(now);
        let bring_back_at = self.bring_back(now);
        let is_used = self.members.load().iter().any(|it| it.connection().is_some());
        let _gone: Vec<_>;
        let (starts, next) = {
            let mut resolution = self.resolution.lock();
            let State { machine, membership, former, refresh_at, .. } = &mut *resolution;
            _gone = former.extract_if(.., |it| !is_busy(it)).collect();
            let look_at = (!former.is_empty()).then(|| after(now, LOOK_AT_FORMER));
            let mut starts = false;
            if refresh_at.is_some_and(|at| at <= now) {
                // Nobody is asked on behalf of a channel that nobody uses: its next call asks.
                starts = is_used && !is_told && machine.start(now, false);
                let every = self.policy.resolve_every.map(|every| every.max(AT_LEAST));
                *refresh_at = every.map(|every| after(now, every));
            }
            let next = membership.next_at().into_iter().chain(look_at).chain(*refresh_at);
            let next = next.chain(bring_back_at).min();
            (starts, next.unwrap_or_else(|| after(now, Duration::MAX)))
        };
        if starts {
            self.start_asker();
        }
        next
    }

    fn on_asker_gone(&self, runtime: Id) {
        self.demand.home.on_ended(runtime);
        {
            let mut resolution = self.resolution.lock();
            resolution.machine.on_asker_gone();
            resolution.vanished += 1;
        }
        self.demand.tell();
    }

    /// Puts the members in place; gives what is to be dropped outside of locks.
    fn replace(&self, resolution: &mut State) -> impl Sized + use<> {
        let old = self.members.load_full();
        let former = std::mem::take(&mut resolution.former);
        let mut known: HashMap<_, _> =
            old.iter().chain(&former).map(|member| (&member.target, member)).collect();
        let end_points = resolution.membership.members().cloned().collect();
        let members =
            Members::new(end_points, self.policy.zone.as_deref(), |end_point| {
                match known.remove(end_point.address()) {
                    Some(member) => Arc::clone(member),
                    None => {
                        let (options, demand) =
                            (Arc::clone(&self.options), Arc::clone(&self.demand));
                        let address = end_point.address().clone();
                        Subchannel::new(address, options, self.reconnect, demand)
                    }
                }
            });
        let left = known.into_values().filter(|member| is_busy(member));
        resolution.former = left.take(MAX_MEMBERS).cloned().collect();
        let ids = members.ids();
        self.ejections.lock().retain(|end_point| ids.contains(&end_point));
        (self.members.swap(Arc::new(members)), old, former)
    }
}

/// Whether calls are in flight there.
fn is_busy(member: &Arc<Subchannel>) -> bool {
    load_of(member).is_some_and(|load| load.standing().load().0 > 0)
}

impl Drop for Balancer {
    fn drop(&mut self) {
        let State { asker, listener, .. } = self.resolution.get_mut();
        asker.take().into_iter().chain(listener.take()).for_each(|task| task.abort());
    }
}

/// The task that asks the resolver. However it ends, another one may follow.
struct Asker {
    balancer: Weak<Balancer>,
    /// Where it runs.
    runtime: Id,
    is_done: bool,
}

impl Asker {
    async fn run(mut self) {
        while let Some(balancer) = self.balancer.upgrade() {
            match balancer.next_question() {
                Question::Stop => {
                    // Calls that have found it running wait for an answer.
                    balancer.demand.tell();
                    break;
                }
                Question::Sleep(until) => {
                    drop(balancer);
                    tokio::time::sleep_until(until.into()).await;
                }
                Question::Ask => {
                    let (resolver, name) = (Arc::clone(&balancer.resolver), balancer.name());
                    let limit = balancer.options.connect_timeout;
                    drop(balancer);
                    let answer = match tokio::time::timeout(limit, ask(&*resolver, &name)).await {
                        Ok(answer) => answer,
                        Err(_) => Err(format!("{name} was not resolved within {limit:?}")),
                    };
                    if let Some(balancer) = self.balancer.upgrade() {
                        balancer.on_answer(answer);
                    }
                }
            }
        }
        self.is_done = true;
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        if !self.is_done
            && let Some(balancer) = self.balancer.upgrade()
        {
            balancer.on_asker_gone(self.runtime);
        }
    }
}

/// The task that listens to the resolver, and does what is due at some time. Runs as long as the
/// channel, from its first call on.
struct Listener {
    balancer: Weak<Balancer>,
    name: String,
}

impl Listener {
    async fn run(self, resolver: Arc<dyn Resolve>, mut news: Watch<u64>) {
        let (mut told, mut again_at, mut ends) = (Told::by(&*resolver), None, 0);
        while let Some(balancer) = self.balancer.upgrade() {
            news.look();
            let mut next = balancer.keep_up(told.is_some());
            drop(balancer);
            if let Some(at) = again_at {
                next = next.min(at);
            }
            let word = async {
                match &mut told {
                    Some(told) => told.next(&self.name).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                word = word => match word {
                    Some(word) => {
                        ends = 0;
                        if let Some(balancer) = self.balancer.upgrade() {
                            balancer.on_told(word);
                        }
                    }
                    None => {
                        ends += 1;
                        told = None;
                        again_at = Some(after(clock::now(), LISTEN_AGAIN.delay(ends, random())));
                    }
                },
                () = tokio::time::sleep_until(next.into()) => {}
                changed = news.changed() => if changed.is_err() { break },
            }
            if again_at.is_some_and(|at| at <= clock::now()) {
                (told, again_at) = (Told::by(&*resolver), None);
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Of a runtime that has ended: the next call or question starts another one.
        if let Some(balancer) = self.balancer.upgrade() {
            balancer.resolution.lock().listens = false;
            balancer.is_marked.store(false, Ordering::Relaxed);
        }
    }
}
