//! One end point of a channel: its connection while there is one, and the task that makes the next.
//!
//! Owns the current connection and the connector. What to do and when is decided by
//! [`Connectivity`]; this file does it.
//!
//! Invariants:
//! 1. Connections are put in place and taken away under the lock of the state, so that they agree
//!    with it; they are dropped, and waiting tasks woken, after that lock is released.
//! 2. A connector that ends, however it ends, is accounted for: another one can be started.
//! 3. A call that is to wait has counted itself before it takes the lock of the state, and a
//!    connector that finds nobody waiting ends under that lock: so each that waits has a connector.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use arc_swap::ArcSwapOption;
use rpc_transport::address::Address;
use rpc_transport::device::connection_error::{CloseCause, ConnectError};
use rpc_transport::engine::clock;
use rpc_transport::lock::Mutex;
use rpc_transport::user_code::holds_lock;
use tokio::runtime::Id;
use tokio::task::AbortHandle;

use super::connection::{ConnectOptions, Connection, Owner, Path, connect, unavailable};
use super::serving_connections::ServingConnections;
use crate::channel::backoff::Backoff;
use crate::channel::connectivity::{Connectivity, ConnectivityState, Loss, Step};
use crate::runtime::home::Home;
use crate::runtime::random::random;
use crate::runtime::watched::{Watch, Watched};
use crate::server::peer_services::PeerServices;
use crate::status::{Code, Status};

/// Runtimes that may drop the task of a waiting call, one after the other, before it is given up:
/// that of the channel, that of a caller, and that of our own thread.
pub(super) const MOST_MOVES: u64 = 3;

/// Shared by the end points of a channel: the waiting calls, and the changes of all end points.
pub(super) struct Demand {
    waiting: AtomicUsize,
    /// Counts changes of state.
    changes: Watched<u64>,
    /// Where connectors and connections run.
    pub(super) home: Home,
    /// The connections on which servers may call.
    pub(super) serving: ServingConnections,
}

impl Demand {
    /// # Panics
    /// Outside a runtime.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            waiting: AtomicUsize::new(0),
            changes: Watched::default(),
            home: Home::here(),
            serving: ServingConnections::default(),
        })
    }

    /// Says that somebody waits for a connection, until the guard is dropped. `None`: as many as
    /// may wait do already.
    pub(super) fn wait(&self, most: u32) -> Option<Waits<'_>> {
        let others = self.waiting.fetch_add(1, Ordering::SeqCst);
        let waits = Waits(self);
        (others < usize::try_from(most).unwrap_or(usize::MAX)).then_some(waits)
    }

    /// To be asked under the lock under which calls learn that somebody brings them news: else one
    /// that comes between the two has been seen by nobody.
    pub(super) fn somebody_waits(&self) -> bool {
        debug_assert!(holds_lock(), "a call that comes right now would be forgotten");
        self.waiting_count() > 0
    }

    pub(super) fn waiting_count(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    pub(super) fn watch(&self) -> Watch<u64> {
        self.changes.watch()
    }

    pub(super) fn tell(&self) {
        self.changes.tell();
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
    /// The connection before, while its server, which is going away, may still wait for calls of
    /// its own.
    retired: Option<Arc<Connection>>,
    /// What became of a connection before it was in its place.
    early: Option<Early>,
}

/// News of a connection that is not in its place yet.
struct Early {
    epoch: u64,
    is_going_away: bool,
    cause: Option<CloseCause>,
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
            early: None,
        };
        let connection = ArcSwapOption::empty();
        Arc::new(Self { target, options, connection, state: Mutex::new(state), demand })
    }

    /// The connection, if it is up as far as is known.
    #[inline]
    pub(super) fn connection(&self) -> arc_swap::Guard<Option<Arc<Connection>>> {
        self.connection.load()
    }

    pub(super) fn served(&self) -> Option<&Arc<PeerServices>> {
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
            let is_failing = match state.machine.state() {
                // Between the look above and the lock.
                ConnectivityState::Ready => {
                    if let Some(connection) = self.connection.load_full() {
                        return Found::Ready(connection);
                    }
                    false
                }
                ConnectivityState::Shutdown => true,
                _ if state.vanished > since.vanished + MOST_MOVES => true,
                _ if wait_for_ready => false,
                _ => state.failures > since.failures || state.machine.is_failing(now),
            };
            if is_failing {
                None
            } else {
                let starts = state.machine.start(now, wait_for_ready);
                debug_assert!(state.machine.runs(), "nobody would wake it: {:?}", state.machine);
                Some(starts)
            }
        };
        match found {
            None => Found::Failing(self.why_not()),
            Some(starts) => {
                if starts {
                    self.start_connector();
                }
                Found::Wait
            }
        }
    }

    /// Connects if that is due, without waiting for it. Else it may give when that will be.
    pub(super) fn kick(self: &Arc<Self>) -> Option<Instant> {
        let (starts, retry_at) = {
            let (now, mut state) = (clock::now(), self.state.lock());
            (state.machine.start(now, false), state.machine.retry_at(now))
        };
        if starts {
            self.start_connector();
        }
        retry_at
    }

    /// The status of a call that cannot wait any longer, or may not; no byte of it was sent.
    pub(super) fn why_not(&self) -> Status {
        let target = &self.target;
        let (error, lost, vanished) = {
            let state = self.state.lock();
            let lost = state.lost.as_ref().map(|lost| (lost.cause.clone(), lost.is_going_away));
            (state.error.clone(), lost, state.vanished)
        };
        let lost = lost.map(|lost| match lost {
            (Some(cause), false) => unavailable(target, cause),
            _ => Status::new(
                Code::Unavailable,
                format!("the server at {target} is shutting down and accepts no new calls"),
            ),
        });
        let status = match (error, lost) {
            (None, None) if vanished > 0 => unavailable(target, CloseCause::DriverGone),
            (None, None) => Status::new(Code::Unavailable, format!("not connected to {target}")),
            (None, Some(lost)) => lost,
            (Some(error), None) => Status::new(Code::Unavailable, error.to_string())
                .with_source(Arc::new(error) as Arc<dyn std::error::Error + Send + Sync>),
            (Some(error), Some(lost)) => {
                lost.with_more(format_args!("; reconnecting failed: {error}"))
            }
        };
        status.with_retryable(true)
    }

    fn start_connector(self: &Arc<Self>) {
        let runtime = self.demand.home.runtime();
        let subchannel = Arc::downgrade(self);
        let connector = Connector { subchannel, runtime: runtime.id(), is_done: false };
        let task = runtime.spawn(connector.run());
        self.state.lock().connector = Some(task.abort_handle());
    }

    /// What a connection has been good for that takes no more calls.
    fn loss(&self, epoch: u64, cause: Option<&CloseCause>) -> Loss {
        let is_orderly = matches!(cause, None | Some(CloseCause::Local));
        match &*self.connection() {
            Some(it) if it.epoch == epoch && is_orderly && it.has_served() => Loss::InOrder,
            _ => Loss::Other,
        }
    }

    fn step(&self) -> Step {
        let now = clock::now();
        let mut state = self.state.lock();
        let waits = self.demand.somebody_waits();
        state.machine.step(now, waits)
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
        let (mut early, mut added) = (None, None);
        {
            let mut state = self.state.lock();
            match outcome {
                Ok(connection) if state.machine.on_connected(epoch, now) => {
                    state.error = None;
                    state.path = connection.path().cloned();
                    early = state.early.take_if(|early| early.epoch == epoch);
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
            if let (Some(health), Some(load)) = (&self.options.health, &connection.load) {
                let (load, home) = (Arc::clone(load), self.demand.home.runtime());
                let task = health.start(Arc::clone(&connection), Arc::clone(&load), &home);
                load.watched_by(task);
                // It may have gone meanwhile.
                if !matches!(&*self.connection(), Some(current) if current.epoch == epoch) {
                    load.on_gone();
                }
            }
        }
        if let Some(Early { is_going_away, cause, .. }) = early {
            if is_going_away {
                self.on_lost(epoch, None);
            }
            if cause.is_some() {
                self.on_lost(epoch, cause);
            }
        }
        self.demand.tell();
    }

    fn on_connector_gone(&self, now: Instant, runtime: Id) {
        self.demand.home.on_ended(runtime);
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
        let is_going_away = cause.is_none();
        let now = clock::now();
        let loss = self.loss(epoch, cause.as_ref());
        let _over;
        let gone = {
            let mut state = self.state.lock();
            let is_over = |retired: &mut Arc<Connection>| !is_going_away && retired.epoch == epoch;
            _over = state.retired.take_if(is_over);
            let was_current = match cause {
                Some(CloseCause::DriverGone) => state.machine.on_driver_gone(epoch),
                _ => state.machine.on_lost(epoch, now, random(), loss),
            };
            if was_current {
                let gone = self.connection.swap(None);
                if let Some(load) = gone.as_ref().and_then(|gone| gone.load.as_ref()) {
                    load.on_gone();
                }
                let cause = cause.or_else(|| gone.as_ref()?.close_cause());
                let is_up = cause.is_none();
                state.lost = Some(Lost { epoch, cause, is_going_away });
                match gone {
                    Some(gone) if is_up && gone.is_two_way => state.retired.replace(gone),
                    gone => gone,
                }
            } else if state.machine.is_connecting(epoch) {
                let known = state.early.take().filter(|known| known.epoch == epoch);
                let mut early = known.unwrap_or(Early { epoch, is_going_away: false, cause: None });
                early.is_going_away |= is_going_away;
                early.cause = early.cause.or(cause);
                state.early = Some(early);
                return;
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

    fn on_runtime_ended(&self, runtime: Id) {
        self.demand.home.on_ended(runtime);
    }
}

impl Drop for Subchannel {
    fn drop(&mut self) {
        if let Some(load) = self.connection().as_ref().and_then(|it| it.load.as_ref()) {
            load.on_gone();
        }
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
    /// Where it runs.
    runtime: Id,
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
            subchannel.on_connector_gone(clock::now(), self.runtime);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Channel;
    use crate::client::shared::Targets;
    use crate::server::Server;

    /// It was in its place later, and looked ready until a call found out.
    #[tokio::test]
    async fn a_late_connection_is_not_ready() {
        let server = Server::builder().bind("mem://subchannel-early").await.unwrap();
        tokio::spawn(server.serve());
        let causes =
            [&[None][..], &[Some(CloseCause::Disconnected)], &[None, Some(CloseCause::Local)]];
        for early in causes {
            let channel = Channel::builder().connect_lazy("mem://subchannel-early").unwrap();
            let Targets::One(subchannel) = &channel.shared.targets else { panic!("it has one") };
            let epoch = {
                let mut state = subchannel.state.lock();
                assert!(state.machine.start(clock::now(), true));
                let Step::Connect(epoch) = state.machine.step(clock::now(), true) else {
                    panic!("{:?}", state.machine)
                };
                epoch
            };
            let (target, owner) = (&subchannel.target, Arc::<Subchannel>::downgrade(subchannel));
            let connection = connect(&subchannel.options, target, epoch, owner).await.unwrap();
            // Of an attempt before: not of this one.
            Owner::on_lost(&**subchannel, epoch - 1, None);
            early.iter().for_each(|cause| Owner::on_lost(&**subchannel, epoch, cause.clone()));
            subchannel.on_outcome(epoch, Ok(connection));
            assert!(subchannel.connection().is_none(), "{early:?}");
            assert_eq!(subchannel.state().0, ConnectivityState::Idle, "{early:?}");
            let cause = subchannel.close_cause();
            assert_eq!(cause.is_some(), early.iter().any(Option::is_some), "{early:?}: {cause:?}");
        }
    }

    /// A call that came between the look and the lock was forgotten.
    #[tokio::test]
    #[cfg(debug_assertions)]
    #[should_panic = "would be forgotten"]
    async fn who_waits_is_asked_under_a_lock() {
        let demand = Demand::new();
        let _waits = demand.wait(1);
        assert!({
            let mutex = Mutex::new(());
            let _lock = mutex.lock();
            demand.somebody_waits()
        });
        demand.somebody_waits();
    }
}
