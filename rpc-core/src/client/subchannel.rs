//! One end point of a channel: its connection while there is one, and the task that makes the next.
//!
//! Owns the current connection and the connector. What to do and when is decided by
//! [`Connectivity`]; this file does it.
//!
//! Invariants:
//! 1. Connections are put in place and taken away under the lock of the state, so that they agree
//!    with it; they are dropped, and waiting tasks woken, after that lock is released.
//! 2. A connector that ends, however it ends, is accounted for: another one can be started.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use rpc_transport::connect::address::Address;
use rpc_transport::connect::error::{CloseCause, ConnectError};
use rpc_transport::engine::clock;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::connection::{ConnectOptions, Connection, Owner, Path, connect, unavailable};
use super::load::Load;
use super::serving::Serving;
use crate::channel::backoff::Backoff;
use crate::channel::connectivity::{Connectivity, ConnectivityState, Step};
use crate::runtime::random::random;
use crate::server::served::Served;
use crate::status::{Code, Status};

/// What the end points of a channel share: who waits for them, and the news of all.
pub(super) struct Demand {
    waiting: AtomicUsize,
    /// Counts changes of state.
    changes: watch::Sender<u64>,
    /// Where connectors and connections run.
    runtime: Mutex<Handle>,
    /// The connections on which servers may call.
    pub(super) serving: Serving,
}

impl Demand {
    /// # Panics
    /// Outside a runtime.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            waiting: AtomicUsize::new(0),
            changes: watch::Sender::new(0),
            runtime: Mutex::new(Handle::current()),
            serving: Serving::default(),
        })
    }

    /// Says that somebody waits for a connection, until the guard is dropped. `None`: as many as
    /// may wait do already.
    pub(super) fn wait(&self, most: u32) -> Option<Waits<'_>> {
        let others = self.waiting.fetch_add(1, Ordering::SeqCst);
        let waits = Waits(self);
        (others < usize::try_from(most).unwrap_or(usize::MAX)).then_some(waits)
    }

    pub(super) fn somebody_waits(&self) -> bool {
        self.waiting_count() > 0
    }

    pub(super) fn waiting_count(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(super) fn tell(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// The runtime of the channel.
    pub(super) fn runtime(&self) -> Handle {
        self.runtime.lock().clone()
    }

    /// The channel's runtime has shut down: goes on in this thread's.
    fn move_here(&self) {
        if let Ok(here) = Handle::try_current() {
            *self.runtime.lock() = here;
        }
    }
}

/// Somebody waits for a connection.
pub(super) struct Waits<'a>(&'a Demand);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// One end point.
pub(super) struct Subchannel {
    pub(super) target: Address,
    pub(super) options: Arc<ConnectOptions>,
    pub(super) connection: ArcSwapOption<Connection>,
    state: Mutex<State>,
    demand: Arc<Demand>,
    pub(super) load: Arc<Load>,
}

struct State {
    machine: Connectivity,
    /// Attempts that failed.
    failures: u64,
    /// Connectors that were dropped in the midst of their work.
    vanished: u64,
    /// Why the last attempt failed, unless one has succeeded since.
    error: Option<ConnectError>,
    /// Of the last connection.
    path: Option<Path>,
    /// The last connection that was lost.
    lost: Option<Lost>,
    connector: Option<AbortHandle>,
    /// The connection before, while its server, which is going away, may still wait for calls of its own.
    retired: Option<Arc<Connection>>,
}

/// A connection that was lost.
struct Lost {
    epoch: u64,
    /// Why it ended; `None` while its last calls finish, as its server goes away.
    cause: Option<CloseCause>,
    /// Its server said that it shuts down: that says more than how the connection ended then.
    is_going_away: bool,
}

/// What a waiting call knew when it began to wait.
#[derive(Clone, Copy, Default)]
pub(super) struct Since {
    failures: u64,
    vanished: u64,
}

/// An end point, as a call finds it.
pub(super) enum Found {
    Ready(Arc<Connection>),
    /// There will be news.
    Wait,
    /// Nothing to wait for.
    Failing(Status),
}

impl Subchannel {
    pub(super) fn new(
        target: Address,
        options: Arc<ConnectOptions>,
        backoff: Option<Backoff>,
        demand: Arc<Demand>,
    ) -> Arc<Self> {
        let state = State {
            machine: Connectivity::new(backoff),
            failures: 0,
            vanished: 0,
            error: None,
            path: None,
            lost: None,
            connector: None,
            retired: None,
        };
        let connection = ArcSwapOption::empty();
        let (state, load) = (Mutex::new(state), Arc::default());
        Arc::new(Self { target, options, connection, state, demand, load })
    }

    /// The connection, if it is up as far as is known.
    #[inline]
    pub(super) fn connection(&self) -> arc_swap::Guard<Option<Arc<Connection>>> {
        self.connection.load()
    }

    pub(super) fn served(&self) -> Option<&Arc<Served>> {
        self.options.served.as_ref()
    }

    /// The state, and what a call that begins to wait must remember.
    pub(super) fn state(&self) -> (ConnectivityState, Since) {
        let state = self.state.lock();
        let since = Since { failures: state.failures, vanished: state.vanished };
        (state.machine.state(), since)
    }

    /// Why the last connection ended; `None` while one is up that has not ended.
    pub(super) fn close_cause(&self) -> Option<CloseCause> {
        match &*self.connection() {
            Some(connection) => connection.close_cause(),
            None => self.state.lock().lost.as_ref()?.cause.clone(),
        }
    }

    /// The path of the connection, or of the last one.
    pub(super) fn path(&self) -> Option<Path> {
        self.state.lock().path.clone()
    }

    /// Connects in the caller's task: the first attempt of an eager channel.
    ///
    /// # Errors
    /// Why it failed.
    pub(super) async fn connect_now(self: &Arc<Self>) -> Result<(), ConnectError> {
        let epoch = {
            let (now, mut state) = (clock::now(), self.state.lock());
            let starts = state.machine.start(now, true);
            match state.machine.step(now, true) {
                Step::Connect(epoch) if starts => epoch,
                // Nobody else has it yet.
                _ => return Err(ConnectError::Config("connecting already".to_owned())),
            }
        };
        let connection =
            connect(&self.options, &self.target, epoch, Arc::<Self>::downgrade(self)).await?;
        self.on_outcome(epoch, Ok(connection));
        self.step();
        Ok(())
    }

    /// Looks for a connection on behalf of a call, and starts a connector if one is needed.
    pub(super) fn find(self: &Arc<Self>, wait_for_ready: bool, since: Since) -> Found {
        if let Some(connection) = self.connection.load_full() {
            return Found::Ready(connection);
        }
        let found = {
            let (now, mut state) = (clock::now(), self.state.lock());
            if state.vanished > since.vanished {
                // One more than when it began: there may be another runtime. Two: there is none.
                if state.vanished > since.vanished + 1 {
                    return Found::Failing(self.failing(&state));
                }
                self.demand.move_here();
            }
            match state.machine.state() {
                ConnectivityState::Shutdown => return Found::Failing(self.failing(&state)),
                // Between the look above and the lock.
                ConnectivityState::Ready => self.connection.load_full().map(Found::Ready),
                _ if wait_for_ready => None,
                _ if state.failures > since.failures || state.machine.is_failing(now) => {
                    Some(Found::Failing(self.failing(&state)))
                }
                _ => None,
            }
            .map_or_else(|| Err(state.machine.start(now, wait_for_ready)), Ok)
        };
        match found {
            Ok(found) => found,
            Err(starts) => {
                if starts {
                    self.start_connector();
                }
                Found::Wait
            }
        }
    }

    /// Connects if that is due, without waiting for it.
    pub(super) fn kick(self: &Arc<Self>) {
        let starts = self.state.lock().machine.start(clock::now(), false);
        if starts {
            self.start_connector();
        }
    }

    /// The status of a call that no byte of was sent.
    fn failing(&self, state: &State) -> Status {
        let target = &self.target;
        let lost = state.lost.as_ref().map(|lost| match &lost.cause {
            Some(cause) if !lost.is_going_away => unavailable(target, cause.clone()),
            _ => Status::new(
                Code::Unavailable,
                format!("the server at {target} is shutting down and takes no new calls"),
            ),
        });
        let status = match (&state.error, lost) {
            (None, None) if state.vanished > 0 => unavailable(target, CloseCause::DriverGone),
            (None, None) => Status::new(Code::Unavailable, format!("not connected to {target}")),
            (None, Some(lost)) => lost,
            (Some(error), None) => Status::new(Code::Unavailable, error.to_string())
                .with_source(Arc::new(error.clone()) as Arc<dyn std::error::Error + Send + Sync>),
            (Some(error), Some(lost)) => {
                lost.with_more(format_args!("; connecting again failed: {error}"))
            }
        };
        status.with_retryable(true)
    }

    /// The status of a call that cannot wait any longer.
    pub(super) fn why_not(&self) -> Status {
        self.failing(&self.state.lock())
    }

    fn start_connector(self: &Arc<Self>) {
        let connector = Connector { subchannel: Arc::downgrade(self), is_done: false };
        let task = self.demand.runtime().spawn(connector.run());
        self.state.lock().connector = Some(task.abort_handle());
    }

    fn step(&self) -> Step {
        let waits = self.demand.somebody_waits();
        self.state.lock().machine.step(clock::now(), waits)
    }

    fn on_outcome(&self, epoch: u64, outcome: Result<Connection, ConnectError>) {
        let (now, mut unwanted) = (clock::now(), None);
        match &outcome {
            Ok(_) => self.options.counts.connected.add_shared(1),
            Err(error) => {
                self.options.counts.connect_failures.add_shared(1);
                tracing::debug!(target = %self.target, %error, "cannot connect");
            }
        }
        let (mut ended, mut added) = (None, None);
        {
            let mut state = self.state.lock();
            match outcome {
                Ok(connection) if state.machine.on_connected(epoch, now) => {
                    state.error = None;
                    state.path = connection.path().cloned();
                    // Its end was told before it was in place, if it came so soon.
                    ended = connection.close_cause();
                    let connection = Arc::new(connection);
                    if connection.is_two_way {
                        self.demand.serving.add(&connection);
                    }
                    added = Some(Arc::clone(&connection));
                    self.connection.store(Some(connection));
                }
                Ok(connection) => unwanted = Some(connection),
                Err(error) => {
                    state.machine.on_failed(epoch, now, random());
                    state.failures += 1;
                    state.error = Some(error);
                }
            }
        }
        drop(unwanted);
        if let Some(connection) = added {
            self.stop_serving_late(&connection);
        }
        if ended.is_some() {
            self.on_lost(epoch, ended);
        }
        self.demand.tell();
    }

    fn on_connector_gone(&self, now: Instant) {
        {
            let mut state = self.state.lock();
            state.machine.on_connector_gone(now);
            state.vanished += 1;
        }
        self.demand.tell();
    }
}

impl Owner for Subchannel {
    #[cold]
    fn on_lost(&self, epoch: u64, cause: Option<CloseCause>) {
        if matches!(cause, Some(CloseCause::DriverGone)) {
            // With its runtime, which keeps no timers any more either.
            self.demand.move_here();
        }
        let is_going_away = cause.is_none();
        let _over;
        let gone = {
            let mut state = self.state.lock();
            let is_over = |retired: &mut Arc<Connection>| !is_going_away && retired.epoch == epoch;
            _over = state.retired.take_if(is_over);
            if state.machine.on_lost(epoch, clock::now(), random()) {
                let gone = self.connection.swap(None);
                let cause = cause.or_else(|| gone.as_ref()?.close_cause());
                let is_up = cause.is_none();
                state.lost = Some(Lost { epoch, cause, is_going_away });
                match gone {
                    Some(gone) if is_up && gone.is_two_way => state.retired.replace(gone),
                    gone => gone,
                }
            } else {
                match &mut state.lost {
                    Some(lost) if lost.epoch == epoch => {
                        lost.is_going_away |= is_going_away;
                        lost.cause = lost.cause.take().or(cause);
                    }
                    _ => return,
                }
                None
            }
        };
        drop(gone);
        self.demand.tell();
    }

    fn load(&self) -> Arc<Load> {
        Arc::clone(&self.load)
    }
}

impl Drop for Subchannel {
    fn drop(&mut self) {
        if let Some(connector) = self.state.get_mut().connector.take() {
            connector.abort();
        }
    }
}

impl fmt::Debug for Subchannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subchannel")
            .field("target", &self.target.to_string())
            .field("state", &self.state().0)
            .finish()
    }
}

/// The task that connects.
struct Connector {
    subchannel: Weak<Subchannel>,
    is_done: bool,
}

impl Connector {
    async fn run(mut self) {
        // Held while a step is decided, not while one is done: the channel may go at any time.
        while let Some(subchannel) = self.subchannel.upgrade() {
            match subchannel.step() {
                Step::Stop => break,
                Step::Sleep(until) => {
                    drop(subchannel);
                    tokio::time::sleep_until(until.into()).await;
                }
                Step::Connect(epoch) => {
                    let (options, target) =
                        (Arc::clone(&subchannel.options), subchannel.target.clone());
                    subchannel.demand.tell();
                    drop(subchannel);
                    let owner = Weak::clone(&self.subchannel);
                    let outcome = connect(&options, &target, epoch, owner).await;
                    if let Some(subchannel) = self.subchannel.upgrade() {
                        subchannel.on_outcome(epoch, outcome);
                    }
                }
            }
        }
        self.is_done = true;
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        if !self.is_done
            && let Some(subchannel) = self.subchannel.upgrade()
        {
            subchannel.on_connector_gone(clock::now());
        }
    }
}
