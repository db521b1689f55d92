//! What all clones of a channel share: its end point, its options, and how a call gets a
//! connection.
//!
//! Invariant: a call that waits here ends by its deadline, with the reason for which there is no
//! connection; dropping it leaves nothing behind.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rpc_transport::connect::error::CloseCause;
use rpc_transport::engine::clock;
use rpc_transport::protocol::config::WhenFull;

use super::balancer::{Balancer, SinceAll};
use super::connection::{Connection, Path};
use super::counts::ChannelCounts;
use super::peer::Peer;
use super::subchannel::{Demand, Found, Since, Subchannel};
use crate::bulk::{Bulk, BulkPool, Copies};
use crate::channel::connectivity::ConnectivityState;
use crate::channel::hedging::{Hedging, HedgingPolicy};
use crate::channel::retry::{Attempts, Failed, RetryPolicy};
use crate::channel::throttle::Throttle;
use crate::codec::{Codec, Placement, Pool};
use crate::interceptor::client::Around;
use crate::runtime::random::random;
use crate::status::{Code, Status};

/// What calls of a channel have in common.
pub(crate) struct Shared {
    pub(super) targets: Targets,
    pub(super) demand: Arc<Demand>,
    pub(crate) codec: Codec,
    pub(crate) default_timeout: Option<Duration>,
    pub(crate) wait_for_ready: bool,
    pub(super) min_part_bytes: usize,
    /// What a call does that finds its connection full.
    pub(crate) when_full: WhenFull,
    /// Calls that may wait for a connection at once.
    pub(super) max_waiting: u32,
    /// `None`: a call whose handler may have begun is never tried again.
    pub(crate) retry: Option<Retries>,
    /// Longest metadata of a call, bytes.
    pub(crate) max_metadata_bytes: usize,
    /// Interceptors, and metadata of all calls.
    pub(crate) around: Option<Arc<Around>>,
    /// Second attempts while the first one runs.
    pub(crate) hedging: Hedges,
    /// The server of [`Channel::to`](super::Channel::to), which ends with the channel.
    pub(super) server: Option<ServerTask>,
    pub(crate) counts: Arc<ChannelCounts>,
    /// Buffers for the time without a connection.
    pub(super) spare_pool: OnceLock<BulkPool>,
}

/// Where a channel leads.
pub(super) enum Targets {
    One(Arc<Subchannel>),
    Several(Arc<Balancer>),
    Peer(Peer),
}

impl Targets {
    pub(super) fn name(&self) -> String {
        match self {
            Self::One(subchannel) => subchannel.target.to_string(),
            Self::Several(balancer) => balancer.name(),
            Self::Peer(peer) => peer.name(),
        }
    }

    /// The first of the end points for which there is something to say.
    fn first<T>(&self, look: impl Fn(&Subchannel) -> Option<T>) -> Option<T> {
        match self {
            Self::One(subchannel) => look(subchannel),
            Self::Several(balancer) => balancer.members().iter().find_map(|member| look(member)),
            Self::Peer(_) => None,
        }
    }
}

impl Shared {
    /// The connection that a call leaves on at once, if there is one.
    #[inline]
    pub(crate) fn connection(&self) -> arc_swap::Guard<Option<Arc<Connection>>> {
        match &self.targets {
            Targets::One(subchannel) => subchannel.connection(),
            Targets::Several(balancer) => arc_swap::Guard::from_inner(balancer.pick()),
            Targets::Peer(peer) => peer.connection.load(),
        }
    }

    /// The connection for another attempt of a call that is on this one: to another end point, if
    /// one is connected.
    pub(crate) fn another(&self, than: &Arc<Connection>) -> Arc<Connection> {
        let found = match &self.targets {
            Targets::One(subchannel) => subchannel.connection().clone(),
            Targets::Several(balancer) => balancer.pick_but(Some(than.end_point())),
            Targets::Peer(peer) => peer.connection.load_full(),
        };
        found.unwrap_or_else(|| Arc::clone(than))
    }

    /// The connection, if there can be no more than one.
    fn only_connection(&self) -> arc_swap::Guard<Option<Arc<Connection>>> {
        match &self.targets {
            Targets::One(subchannel) => subchannel.connection(),
            Targets::Several(_) => arc_swap::Guard::from_inner(None),
            Targets::Peer(peer) => peer.connection.load(),
        }
    }

    /// Where the large byte strings of a message go.
    #[inline]
    pub(super) fn placement(&self) -> Placement<'_> {
        Placement { min_part_bytes: self.min_part_bytes, pool: Pool::Of(self) }
    }

    pub(super) fn state(&self) -> ConnectivityState {
        match &self.targets {
            Targets::One(subchannel) => subchannel.state().0,
            Targets::Several(balancer) => balancer.state(),
            Targets::Peer(peer) => peer.state(),
        }
    }

    pub(super) fn path(&self) -> Option<Path> {
        self.targets.first(Subchannel::path)
    }

    pub(super) fn close_cause(&self) -> Option<CloseCause> {
        // While there is a connection, nothing has ended for good.
        match self.state() {
            ConnectivityState::Ready if matches!(self.targets, Targets::Several(_)) => None,
            _ => match &self.targets {
                Targets::Peer(peer) => peer.close_cause(),
                _ => self.targets.first(Subchannel::close_cause),
            },
        }
    }

    /// Registered buffers of the connection; others while there is none.
    pub(super) fn bulk_pool(&self) -> BulkPool {
        match &*self.only_connection() {
            Some(connection) => connection.bulk.clone(),
            None => self.spare_pool.get_or_init(BulkPool::of_no_connection).clone(),
        }
    }

    /// Connects, if a call would, without waiting for it.
    #[cold]
    pub(crate) fn kick(&self) {
        match &self.targets {
            Targets::One(subchannel) => subchannel.kick(),
            Targets::Several(balancer) => balancer.kick(),
            Targets::Peer(_) => {}
        }
    }

    /// Waits for a connection on behalf of a call.
    ///
    /// # Errors
    /// Why there is none: at once or after the attempt under way, unless the call waits until
    /// there is one; at the deadline in any case.
    pub(crate) async fn acquire(
        self: Arc<Self>,
        wait_for_ready: bool,
        deadline: Option<Instant>,
    ) -> Result<Arc<Connection>, Status> {
        let finding = self.find(wait_for_ready);
        let Some(deadline) = deadline else { return finding.await };
        let expired = async {
            // Calls may be awaited outside of any runtime. `find` is polled first: it moves the
            // channel to another runtime if its own has ended.
            let sleep = {
                let _here = self.demand.runtime().enter();
                tokio::time::sleep_until(deadline.into())
            };
            sleep.await;
        };
        tokio::select! {
            biased;
            found = finding => found,
            () = expired => Err(self.expired()),
        }
    }

    /// The same, after a wait.
    pub(crate) async fn acquire_after(
        self: Arc<Self>,
        delay: Duration,
        wait_for_ready: bool,
        deadline: Option<Instant>,
    ) -> Result<Arc<Connection>, Status> {
        let waited = {
            let _here = self.demand.runtime().enter();
            tokio::time::sleep(delay)
        };
        waited.await;
        self.acquire(wait_for_ready, deadline).await
    }

    async fn find(&self, wait_for_ready: bool) -> Result<Arc<Connection>, Status> {
        let Some(_waits) = self.demand.wait(self.max_waiting) else {
            let text = format!(
                "{} calls wait for a connection to {} already (`max_calls` and \
                 `max_waiting_calls`)",
                self.max_waiting,
                self.targets.name()
            );
            return Err(Status::resource_exhausted(text).with_retryable(true));
        };
        let mut changes = self.demand.subscribe();
        let mut since = Since::default();
        let mut since_all = SinceAll::default();
        match &self.targets {
            Targets::One(subchannel) => since = subchannel.state().1,
            Targets::Several(balancer) => since_all = balancer.since(),
            Targets::Peer(_) => {}
        }
        loop {
            changes.borrow_and_update();
            let found = match &self.targets {
                Targets::One(subchannel) => subchannel.find(wait_for_ready, since),
                Targets::Several(balancer) => balancer.find(wait_for_ready, &mut since_all),
                Targets::Peer(peer) => Found::Failing(peer.why_not()),
            };
            match found {
                Found::Ready(connection) => return Ok(connection),
                Found::Failing(status) => return Err(status),
                Found::Wait => {}
            }
            // The sender lives as long as `self`.
            let _ = changes.changed().await;
        }
    }

    /// The status of a call whose deadline passes while it waits for a connection.
    fn expired(&self) -> Status {
        let why = match &self.targets {
            Targets::One(subchannel) => subchannel.why_not(),
            Targets::Several(balancer) => balancer.why_not(),
            Targets::Peer(peer) => peer.why_not(),
        };
        let text = format!("the deadline passed while waiting for a connection: {why}");
        Status::new(Code::DeadlineExceeded, text)
    }

    /// Waits until the state is another than `from`.
    pub(super) async fn state_changed(&self, from: ConnectivityState) -> ConnectivityState {
        self.until(|| Some(self.state()).filter(|state| *state != from)).await
    }

    /// Waits until there is no connection any more; gives the cause of its end.
    pub(super) async fn closed(&self) -> CloseCause {
        self.until(|| self.close_cause()).await
    }

    async fn until<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        let mut changes = self.demand.subscribe();
        loop {
            changes.borrow_and_update();
            if let Some(found) = look() {
                return found;
            }
            let _ = changes.changed().await;
        }
    }
}

/// A server that ends with this.
pub(super) struct ServerTask(pub(super) tokio::task::AbortHandle);

impl Drop for ServerTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Second attempts of a channel's calls.
pub(crate) struct Retries {
    pub(crate) policy: RetryPolicy,
    throttle: Mutex<Throttle>,
    /// Spares successes the lock.
    is_full: AtomicBool,
}

impl Retries {
    pub(super) fn new(policy: RetryPolicy) -> Self {
        let throttle = Mutex::new(policy.new_throttle());
        Self { policy, throttle, is_full: AtomicBool::new(true) }
    }

    /// An attempt has failed: how long to wait for the next, if there is to be one.
    #[cold]
    pub(crate) fn after(
        &self,
        attempts: &mut Attempts,
        failed: Failed,
        deadline: Option<Instant>,
    ) -> Option<Duration> {
        let mut throttle = self.throttle.lock();
        let (now, random) = (clock::now(), random());
        let delay = attempts.after(failed, &self.policy, &mut throttle, now, deadline, random);
        self.on_throttle(&throttle);
        delay
    }

    /// A call that could have been tried again was answered.
    #[inline]
    pub(crate) fn on_success(&self) {
        if !self.is_full.load(Ordering::Relaxed) {
            self.refill();
        }
    }

    #[cold]
    fn refill(&self) {
        let mut throttle = self.throttle.lock();
        throttle.on_success();
        self.on_throttle(&throttle);
    }

    pub(crate) fn throttle(&self) -> MutexGuard<'_, Throttle> {
        self.throttle.lock()
    }

    /// It was changed.
    pub(crate) fn on_throttle(&self, throttle: &Throttle) {
        self.is_full.store(throttle.is_full(), Ordering::Relaxed);
    }
}

/// Longest time for which a server can keep a channel from second attempts.
const MOST_QUIET: Duration = Duration::from_secs(60);

/// What a channel needs for second attempts of calls whose first one runs.
pub(crate) struct Hedges {
    /// `None`: only calls that ask for it are hedged.
    pub(crate) policy: Option<HedgingPolicy>,
    pub(crate) state: Mutex<Hedging>,
}

impl Hedges {
    pub(super) fn new(policy: Option<HedgingPolicy>) -> Self {
        Self { policy, state: Mutex::default() }
    }

    /// A server wants no further attempt for so long.
    #[cold]
    pub(crate) fn on_pushback(&self, wait: Duration) {
        // One server among many does not end second attempts for good.
        if let Some(until) = clock::now().checked_add(wait.min(MOST_QUIET)) {
            self.state.lock().on_pushback(until);
        }
    }
}

impl Copies for Shared {
    fn copy_of(&self, bytes: &[u8]) -> Option<Bulk> {
        self.only_connection().as_ref()?.bulk.copy_of(bytes)
    }
}

/// The earliest of three deadlines: the call's own, the channel's and the surrounding handler's.
#[inline]
pub(crate) fn earliest(
    own: Option<Instant>,
    default: Option<Duration>,
    inherited: Option<Instant>,
) -> Option<(Instant, Instant)> {
    if own.is_none() && inherited.is_none() && default.is_none() {
        return None;
    }
    let now = clock::now();
    let default = default.and_then(|timeout| now.checked_add(timeout));
    let at = [own, inherited, default].into_iter().flatten().min()?;
    Some((at, now))
}
