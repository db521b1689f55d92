//! How busy, fast and well a connection to one of several end points is.

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use rpc_transport::engine::clock;
use rpc_transport::lock::Mutex;
use tokio::task::AbortHandle;

use crate::channel::balancing::BalancingPolicy;
use crate::channel::outliers::Suspicion;
use crate::channel::picker::CallEnd;
use crate::channel::quick::Quick;
use crate::channel::standing::{Health, Need, Standing};
use crate::status::Code;

/// What the end points of a channel have in common.
pub(crate) struct Rules {
    pub(super) policy: BalancingPolicy,
    pub(super) judge: OnceLock<Weak<dyn Judge>>,
}

/// Who compares the end points of a channel.
pub(super) trait Judge: Send + Sync {
    /// A call has failed at this end point, one too many.
    fn on_suspicion(&self, load: &Load, why: Suspicion, now: Instant);

    /// A connection to this end point comes up.
    fn introduce(&self, end_point: usize, standing: &mut Standing, now: Instant);

    /// What the health of an end point says has changed.
    #[cfg(feature = "macros")]
    fn on_health(&self);
}

/// The calls on a connection to an end point among several, for the choice between them. A new
/// connection has a new one: what was before it says nothing of the server that answers now.
pub(crate) struct Load {
    standing: Mutex<Standing>,
    /// A copy of what most looks need, written under that lock.
    quick: Quick,
    rules: Arc<Rules>,
    pub(super) end_point: usize,
    pub(super) since: Instant,
    /// The task that watches the health.
    watch: Mutex<Option<AbortHandle>>,
}

impl Load {
    pub(super) fn new(rules: &Arc<Rules>, end_point: usize) -> Arc<Self> {
        let (since, mut standing) = (clock::now(), Standing::default());
        if rules.policy.health_service.is_some() {
            standing.set_health(Health::Unknown);
        }
        let rules = Arc::clone(rules);
        if let Some(judge) = rules.judge() {
            judge.introduce(end_point, &mut standing, since);
        }
        let (standing, quick, watch) = (Mutex::new(standing), Quick::default(), Mutex::default());
        Arc::new(Self { standing, quick, rules, end_point, since, watch })
    }

    /// What one more call costs; `None`: it is to get none.
    #[inline]
    pub(super) fn look(
        &self,
        need: Need,
        now: impl FnOnce() -> Instant,
        random: u64,
        weight: f64,
    ) -> Option<f64> {
        match self.quick.look(weight) {
            Some(cost) => Some(cost),
            None => self.look_fully(need, now(), random, weight),
        }
    }

    #[inline(never)]
    fn look_fully(&self, need: Need, now: Instant, random: u64, weight: f64) -> Option<f64> {
        self.quick.look_fully(&mut self.standing.lock(), need, now, random, weight)
    }

    /// Changes what is known.
    fn with<T>(&self, change: impl FnOnce(&mut Standing) -> T) -> T {
        let mut standing = self.standing.lock();
        let changed = change(&mut standing);
        self.quick.copy(&standing);
        changed
    }

    /// A call begins; it ends when the guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> Loaded {
        let began = clock::now();
        self.with(|standing| standing.on_begin(began));
        Loaded { load: Arc::clone(self), began, end: CallEnd::Unsent }
    }

    pub(super) fn standing(&self) -> Standing {
        *self.standing.lock()
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Standing)) {
        self.with(change);
    }

    /// Records what the health of the end point says.
    #[cfg(feature = "macros")]
    pub(super) fn set_health(&self, health: Health) {
        self.with(|standing| standing.set_health(health));
        if let Some(judge) = self.rules.judge() {
            judge.on_health();
        }
    }

    /// This task watches the health, and ends with the connection.
    pub(super) fn watched_by(&self, task: AbortHandle) {
        *self.watch.lock() = Some(task);
    }

    /// The connection takes no more calls.
    pub(super) fn on_gone(&self) {
        let task = self.watch.lock().take();
        if let Some(task) = task {
            task.abort();
        }
    }
}

impl Rules {
    fn judge(&self) -> Option<Arc<dyn Judge>> {
        self.judge.get()?.upgrade()
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules").field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// A call under way.
pub(crate) struct Loaded {
    load: Arc<Load>,
    began: Instant,
    end: CallEnd,
}

impl Loaded {
    /// It ends like this. Without that word nothing is known of the end point.
    pub(crate) fn end(mut self, end: CallEnd) {
        self.end = end;
    }

    /// A call of this method ends with a status.
    #[cold]
    pub(crate) fn end_with_code(mut self, method: &str, code: Code) {
        self.end = self.load.rules.policy.end(method, code);
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let (now, load) = (clock::now(), &*self.load);
        let took = now.saturating_duration_since(self.began);
        let limits = &load.rules.policy.limits;
        let suspicion = load.with(|standing| standing.on_end(self.end, took, limits, now));
        if let Some(why) = suspicion
            && let Some(judge) = load.rules.judge()
        {
            judge.on_suspicion(load, why, now);
        }
    }
}
