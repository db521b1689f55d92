//! What all clones of a channel share: its end point, its options, and how a call gets a
//! connection.
//!
//! Invariant: a call that waits here ends by its deadline, with the reason for which there is no
//! connection; dropping it leaves nothing behind.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rpc_transport::device::connection_error::CloseCause;
use rpc_transport::engine::clock;
use rpc_transport::lock::{Mutex, MutexGuard};
use rpc_transport::log_limit::LogLimit;
use rpc_transport::memory::process::Process;
use rpc_transport::protocol::config::WhenFull;
use rpc_transport::wait::after;

use super::balancer::{Balancer, SinceAll};
use super::connection::{Connection, Path};
use super::counts::ChannelCounts;
use super::peer::Peer;
use super::subchannel::{Demand, Found, Since, Subchannel};
use crate::bulk::{Bulk, BulkPool, Copies};
use crate::channel::connectivity::ConnectivityState;
use crate::channel::hedging::{Hedging, HedgingPolicy};
use crate::channel::retry::{Attempts, Failed, LONGEST_PUSHBACK, RetryPolicy};
use crate::channel::throttle::Throttle;
use crate::codec::{Codec, DEFAULT_MIN_PART_BYTES, Placement, Pool};
use crate::interceptor::client::Around;
use crate::metadata::DEFAULT_MAX_BYTES;
use crate::runtime::random::random;
use crate::runtime::timer::Timer;
use crate::stats::counts::Counter;
use crate::status::{Code, Status};

static THROTTLED: LogLimit = LogLimit::new("channels whose calls are not retried");

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
    /// A child of it refuses calls, and takes none of the channel's locks.
    pub(crate) process: Process,
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
    /// Of a channel over the connection to this peer alone, with the defaults of a channel but for
    /// retries, of which it has none.
    pub(super) fn to_peer(peer: Peer, demand: Arc<Demand>, codec: Codec) -> Self {
        Self {
            targets: Targets::Peer(peer),
            demand,
            codec,
            default_timeout: None,
            wait_for_ready: false,
            min_part_bytes: DEFAULT_MIN_PART_BYTES,
            when_full: WhenFull::default(),
            max_waiting: u32::MAX,
            retry: None,
            max_metadata_bytes: DEFAULT_MAX_BYTES,
            around: None,
            hedging: Hedges::new(None),
            server: None,
            counts: Arc::default(),
            spare_pool: OnceLock::new(),
            process: Process::current(),
        }
    }

    /// The connection that a call leaves on at once, if there is one. `key`: that of the call, if
    /// calls of one key are to go to one end point.
    #[inline]
    pub(crate) fn connection(
        &self,
        key: impl FnOnce() -> Option<u64>,
    ) -> arc_swap::Guard<Option<Arc<Connection>>> {
        match &self.targets {
            Targets::One(subchannel) => subchannel.connection(),
            Targets::Several(balancer) => arc_swap::Guard::from_inner(balancer.pick(key())),
            Targets::Peer(peer) => peer.connection.load(),
        }
    }

    /// The connection for another attempt of a call that is on this one: to another end point, if
    /// one is connected.
    pub(crate) fn another(&self, than: &Arc<Connection>) -> Arc<Connection> {
        let found = match &self.targets {
            Targets::One(subchannel) => subchannel.connection().clone(),
            Targets::Several(balancer) => balancer.pick_but(&[than.end_point()]),
            Targets::Peer(peer) => peer.connection.load_full(),
        };
        found.unwrap_or_else(|| Arc::clone(than))
    }

    /// A connection of a balanced channel to an end point that is none of these, if one is
    /// connected.
    pub(crate) fn elsewhere(&self, others: &[usize]) -> Option<Arc<Connection>> {
        match &self.targets {
            Targets::Several(balancer) => balancer.pick_but(others),
            Targets::One(_) | Targets::Peer(_) => None,
        }
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
        if !self.process.is_current() {
            return ConnectivityState::Shutdown;
        }
        match &self.targets {
            Targets::One(subchannel) => subchannel.state().0,
            Targets::Several(balancer) => balancer.state(),
            Targets::Peer(peer) => peer.state(),
        }
    }

    pub(super) fn path(&self) -> Option<Path> {
        if !self.process.is_current() {
            return None;
        }
        self.targets.first(Subchannel::path)
    }

    pub(super) fn close_cause(&self) -> Option<CloseCause> {
        if !self.process.is_current() {
            return Some(CloseCause::Forked);
        }
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
        if !self.process.is_current() {
            return;
        }
        match &self.targets {
            Targets::One(subchannel) => drop(subchannel.kick()),
            Targets::Several(balancer) => balancer.kick(),
            Targets::Peer(_) => {}
        }
    }

    /// Waits for a connection on behalf of a call.
    ///
    /// # Errors
    /// Why there is none: at once or after the attempt under way, unless the call waits until
    /// there is one; at its last moment in any case.
    pub(crate) async fn acquire(
        self: Arc<Self>,
        wait_for_ready: bool,
        last_moment: Option<LastMoment>,
    ) -> Result<Arc<Connection>, Status> {
        let finding = self.find(wait_for_ready);
        let Some(last_moment) = last_moment else { return finding.await };
        tokio::select! {
            biased;
            found = finding => found,
            () = self.sleep_until(last_moment.at) => {
                let why = match &self.targets {
                    Targets::One(subchannel) => subchannel.why_not(),
                    Targets::Several(balancer) => balancer.why_not(),
                    Targets::Peer(peer) => peer.why_not(),
                };
                let text = format!("{} while waiting for a connection: {why}", last_moment.text);
                Err(Status::new(Code::DeadlineExceeded, text))
            }
        }
    }

    /// As [`Shared::acquire`], after a wait.
    pub(crate) async fn acquire_after(
        self: Arc<Self>,
        delay: Duration,
        wait_for_ready: bool,
        last_moment: Option<LastMoment>,
    ) -> Result<Arc<Connection>, Status> {
        self.sleep_until(after(clock::now(), delay)).await;
        self.acquire(wait_for_ready, last_moment).await
    }

    /// Calls may be awaited outside of any runtime, and that of the channel may end meanwhile.
    pub(super) async fn sleep_until(&self, at: Instant) {
        let mut timer = Timer::at(at);
        poll_fn(|cx| timer.poll(cx, &self.demand.home)).await;
    }

    async fn find(&self, wait_for_ready: bool) -> Result<Arc<Connection>, Status> {
        let Some(_waits) = self.demand.wait(self.max_waiting) else {
            let text = format!(
                "{} calls are already waiting for a connection to {} (the limit, `max_calls` + \
                 `max_waiting_calls`)",
                self.max_waiting,
                self.targets.name()
            );
            return Err(Status::resource_exhausted(text).with_retryable(true));
        };
        let mut changes = self.demand.watch();
        let mut since = Since::default();
        let mut since_all = SinceAll::default();
        match &self.targets {
            Targets::One(subchannel) => since = subchannel.state().1,
            Targets::Several(balancer) => since_all = balancer.since(),
            Targets::Peer(_) => {}
        }
        loop {
            changes.look();
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

    /// Says that no call is tried again for now.
    #[cold]
    pub(crate) fn log_throttled(&self) {
        THROTTLED.fault(clock::now(), || {
            tracing::warn!(
                address = self.targets.name(),
                "too many calls fail: retries stop until enough calls have succeeded (the throttle \
                 of the channel's `RetryPolicy`)"
            );
        });
    }

    /// Waits until the state is another than `from`.
    pub(super) async fn state_changed(&self, from: ConnectivityState) -> ConnectivityState {
        if !self.process.is_current() {
            return self.state();
        }
        self.until(|| Some(self.state()).filter(|state| *state != from)).await
    }

    /// Waits until there is no connection any more; gives the cause of its end.
    pub(super) async fn closed(&self) -> CloseCause {
        if !self.process.is_current() {
            return CloseCause::Forked;
        }
        self.until(|| self.close_cause()).await
    }

    async fn until<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        let mut changes = self.demand.watch();
        loop {
            changes.look();
            if let Some(found) = look() {
                return found;
            }
            let _ = changes.changed().await;
        }
    }
}

/// When a call gives up waiting for a connection.
pub(crate) struct LastMoment {
    pub(crate) at: Instant,
    /// That its deadline has passed, and whose that was.
    pub(crate) text: String,
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
    /// It was said that the throttle keeps calls from being tried again.
    is_engaged: AtomicBool,
    /// Calls that were not tried again for that.
    throttled: Counter,
}

/// What becomes of a call whose attempt has failed.
pub(crate) struct Next {
    /// After this time comes another attempt, if there is to be one.
    pub(crate) delay: Option<Duration>,
    /// The throttle keeps calls from being tried again from now on.
    pub(crate) has_engaged: bool,
}

impl Retries {
    pub(super) fn new(policy: RetryPolicy) -> Self {
        let throttle = Mutex::new(policy.new_throttle());
        let (is_full, is_engaged) = (AtomicBool::new(true), AtomicBool::new(false));
        Self { policy, throttle, is_full, is_engaged, throttled: Counter::default() }
    }

    /// An attempt has failed.
    #[cold]
    pub(crate) fn after(
        &self,
        attempts: &mut Attempts,
        failed: Failed,
        deadline: Option<Instant>,
    ) -> Next {
        let mut throttle = self.throttle.lock();
        let (now, random) = (clock::now(), random());
        let delay = attempts.after(failed, &self.policy, &mut throttle, now, deadline, random);
        self.on_throttle(&throttle);
        let is_throttled =
            delay.is_none() && attempts.failed() < self.policy.attempts() && !throttle.allows();
        if is_throttled {
            self.throttled.add_shared(1);
        }
        Next { delay, has_engaged: is_throttled && !self.is_engaged.swap(true, Ordering::Relaxed) }
    }

    /// Calls that were not tried again because of the throttle.
    pub(super) fn throttled(&self) -> u64 {
        self.throttled.get()
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
        if throttle.allows() {
            self.is_engaged.store(false, Ordering::Relaxed);
        }
    }

    pub(crate) fn throttle(&self) -> MutexGuard<'_, Throttle> {
        self.throttle.lock()
    }

    /// It was changed.
    pub(crate) fn on_throttle(&self, throttle: &Throttle) {
        self.is_full.store(throttle.is_full(), Ordering::Relaxed);
    }
}

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
        let until = after(clock::now(), wait.min(LONGEST_PUSHBACK));
        self.state.lock().on_pushback(until);
    }
}

impl Copies for Shared {
    fn copy_of(&self, bytes: &[u8]) -> Option<Bulk> {
        self.only_connection().as_ref()?.bulk.copy_of(bytes)
    }
}
