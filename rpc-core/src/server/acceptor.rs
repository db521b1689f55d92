//! The acceptor: turns connection requests into connections on shards, and drains them at shutdown.
//!
//! Owns the shards of a server and the choice of a shard for each connection. Never reads a
//! message.
//!
//! Invariants:
//! 1. A peer that misbehaves during set-up costs its own connection only.
//! 2. There are never more than `max_connections`: each holds a permit from before its set-up until
//!    its QP has been destroyed.
//! 3. A shard is given no more set-ups at once than its CQ has room for.
//! 4. No shard is opened after the server has ended.

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rpc_transport::connect::error::{ConnectError, ListenError};
use rpc_transport::device::{Capabilities, Device, Incoming, Listener};
use rpc_transport::engine::driver::Driver;
use rpc_transport::engine::establish::{AcceptError, server_completions};
use rpc_transport::engine::locked_need;
use rpc_transport::log_limit::LogLimit;
use rpc_transport::memory::allocator::return_freed_memory;
use rpc_transport::memory::budget::MemoryBudget;
use rpc_transport::protocol::frame::{CloseCode, CloseReason};
use rpc_transport::protocol::handshake::{Reject, RejectCode};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::Instant;

use super::set_ups::SetUps;
use super::{Config, available_memory};
use crate::bulk::BulkPool;
use crate::endpoint::{RpcEndpoint, RpcShard};
use crate::observability::stats::counts::{Counter, Methods};
use crate::runtime::phase::{Phase, Watch};
use crate::server::executor::Handlers;
use crate::server::router::Router;
use crate::session::Role;

/// Number of connections that a CQ is sized for, at most.
pub(super) const CONNECTIONS_PER_CQ: u32 = locked_need::CONNECTIONS_PER_CQ;
/// Longest time for one set-up, while there is room for others; see `set_ups` when there is none.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(15);
/// Set-ups that a shard may count at once: more than its CQ can ever have room for.
const MOST_SET_UPS: usize = 1 << 20;
/// Time without any connection after which memory is given back to the system.
const QUIET_TIME: Duration = Duration::from_secs(2);
/// Time in which a peer that has no call in flight answers when it is told to go away.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest time to wait in a shutdown until the close frames have been sent.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// What happens at most once per connection; written from any thread.
#[derive(Debug, Default)]
pub(super) struct Admissions {
    pub(super) accepted: Counter,
    pub(super) refused: Counter,
    pub(super) failed: Counter,
}

/// What a server has until it ends.
struct Open {
    /// By the device's name, which a device keeps when another object takes its place.
    shards: HashMap<String, Vec<ServedShard>>,
    /// The services are the user's, and go when the server has ended, whoever still reads its stats.
    router: Arc<Router>,
}

/// A shard with the buffer pool for its handlers, registered in the shard's protection domain.
#[derive(Debug, Clone)]
pub(super) struct ServedShard {
    shard: Arc<RpcShard>,
    bulk: BulkPool,
    /// Each connection that is being set up here holds one permit.
    set_ups: Arc<Semaphore>,
}

impl ServedShard {
    /// Whether the CQ has room for another connection of `entries` entries. Connections that are
    /// being set up count in full, as they may not have taken their entries yet.
    fn has_room(&self, entries: u32, config: &Config) -> bool {
        let under_way = MOST_SET_UPS - self.set_ups.available_permits();
        let count = u32::try_from(under_way + 1).unwrap_or(u32::MAX);
        self.shard.has_room_for(count, entries, &config.link)
    }

    pub(super) fn set_ups_under_way(&self) -> u64 {
        (MOST_SET_UPS - self.set_ups.available_permits()) as u64
    }

    /// Reserves a place; it counts as a set-up until it is dropped.
    fn place(self, permit: OwnedSemaphorePermit) -> Result<Place, String> {
        let under_way = Arc::clone(&self.set_ups).try_acquire_owned();
        let under_way =
            under_way.map_err(|_| format!("{MOST_SET_UPS} connections are being set up"))?;
        Ok(Place { shard: self, permit, under_way })
    }
}

impl Deref for ServedShard {
    type Target = Arc<RpcShard>;

    fn deref(&self) -> &Arc<RpcShard> {
        &self.shard
    }
}

/// The shard for a new connection.
pub(super) struct Place {
    pub(super) shard: ServedShard,
    pub(super) permit: OwnedSemaphorePermit,
    /// Held until the connection is up and is counted by the CQ.
    pub(super) under_way: OwnedSemaphorePermit,
}

/// What the listeners of a server share.
pub(super) struct Acceptor {
    /// `None` once the server has ended.
    open: Mutex<Option<Open>>,
    /// One permit for each further connection that is allowed.
    places: Arc<Semaphore>,
    settled: Arc<Notify>,
    /// The budget for large messages of all connections.
    pub(super) memory: MemoryBudget,
    phase: Watch,
    config: Config,
    /// What was counted of the methods, over all shards.
    pub(super) methods: Arc<Methods>,
    pub(super) admissions: Admissions,
}

impl Acceptor {
    pub(super) fn new(router: Router, config: Config, phase: Watch) -> Self {
        let places = config.max_connections.min(Semaphore::MAX_PERMITS);
        let methods = Arc::<Methods>::default();
        methods.know(router.methods());
        Self {
            open: Mutex::new(Some(Open { shards: HashMap::new(), router: Arc::new(router) })),
            places: Arc::new(Semaphore::new(places)),
            settled: Arc::default(),
            memory: MemoryBudget::new(
                config.memory_budget.unwrap_or_else(available_memory::default_budget),
            ),
            phase,
            config,
            methods,
            admissions: Admissions::default(),
        }
    }

    pub(super) fn is_draining(&self) -> bool {
        self.phase.has_reached(Phase::Draining)
    }

    /// Accepts until the server is stopped; returns `Some` if the listener dies before that.
    pub(super) async fn accept_loop(
        self: Arc<Self>,
        listener: Box<dyn Listener>,
    ) -> Option<ListenError> {
        let mut setups = JoinSet::new();
        let died = tokio::select! {
            error = self.accept_all(listener, &mut setups) => Some(error),
            () = self.phase.clone().reached(Phase::Closing) => None,
        };
        setups.shutdown().await;
        died
    }

    async fn accept_all(
        self: &Arc<Self>,
        mut listener: Box<dyn Listener>,
        setups: &mut JoinSet<()>,
    ) -> ListenError {
        let faults = Arc::new(LogLimit::new("connections that were not set up"));
        let mut under_way = SetUps::new();
        loop {
            if under_way.is_full() {
                make_room(&mut under_way, setups).await;
                continue;
            }
            let incoming = tokio::select! {
                incoming = listener.incoming() => incoming,
                Some(ended) = setups.join_next_with_id() => {
                    forget(&mut under_way, &ended);
                    continue;
                }
            };
            match incoming {
                Err(error) => return error,
                Ok(incoming) => {
                    let (this, faults) = (SetUp::begin(self), Arc::clone(&faults));
                    let peer = incoming.peer();
                    let task = setups.spawn(async move { this.accept(incoming, &faults).await });
                    under_way.begin(task, &peer, Instant::now());
                }
            }
        }
    }

    async fn accept(&self, incoming: Box<dyn Incoming>, faults: &LogLimit, is_counted: &mut bool) {
        let from = incoming.peer();
        let fault = |log: &dyn Fn()| faults.fault(std::time::Instant::now(), log);
        let place = match self.place(incoming.device()) {
            Ok(place) => place,
            Err(text) => {
                self.admissions.refused.add_shared(1);
                *is_counted = true;
                fault(&|| tracing::warn!(peer = ?from, "cannot serve: {text}"));
                incoming.reject(&Reject::new(RejectCode::Busy, text.clone()).to_bytes()).await;
                return;
            }
        };
        let Config { limits, min_part_bytes, .. } = self.config;
        let Place { shard, permit, under_way: _under_way } = place;
        let bulk = shard.bulk.clone();
        let (queue, memory) = (self.config.link.queue_limit(), self.memory.share());
        let peer = RpcEndpoint::new(Role::Server, limits, bulk, min_part_bytes, queue, memory);
        let peer = peer
            .holding(permit)
            .placed_on(&shard)
            .watching(self.phase.clone())
            .taking_metadata(self.config.max_metadata_bytes);
        let accepting = shard.accept(incoming, &self.config.link, peer);
        let accepted = tokio::time::timeout(ACCEPT_TIMEOUT, accepting).await;
        match accepted {
            Ok(Ok(connected)) => {
                self.admissions.accepted.add_shared(1);
                *is_counted = true;
                tracing::debug!(peer = ?connected.peer, "connected");
            }
            Ok(Err(AcceptError::Connect(ConnectError::Provider(error)))) => {
                fault(&|| tracing::warn!(peer = ?from, %error, "set-up failed"));
            }
            Ok(Err(error)) => fault(&|| tracing::info!(peer = ?from, %error, "set-up failed")),
            Err(_) => fault(&|| tracing::info!(peer = ?from, "set-up took too long")),
        }
    }

    /// A shard with room, on the device that a request came in on.
    pub(super) fn place(&self, device: &Arc<dyn Device>) -> Result<Place, String> {
        let mut open = self.open.lock();
        let Some(Open { shards, router }) = &mut *open else {
            return Err("the server is shutting down".to_owned());
        };
        let permit = Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            format!(
                "the server has its limit of {} connections (its `max_connections`)",
                self.config.max_connections
            )
        })?;
        let of_device = shards.entry(device.attributes().name.clone()).or_default();
        of_device.retain(|shard| !shard.is_over());
        // Nothing of another device object can be used with this one, whatever its name.
        let same: Vec<_> = of_device.iter().filter(|it| Arc::ptr_eq(it.device(), device)).collect();
        let needed = server_completions(&self.config.link, &**device);
        let least = same
            .iter()
            .filter(|shard| shard.has_room(needed, &self.config))
            .min_by_key(|shard| shard.connection_count());
        match least {
            Some(shard) if same.len() >= self.config.shards => {
                ServedShard::clone(shard).place(permit)
            }
            None if self.has_shards_enough(&same, needed) => {
                Err("connections that have ended are still leaving".to_owned())
            }
            _ => match (self.new_shard(device, &same, router), least) {
                (Ok(shard), _) => {
                    of_device.push(shard.clone());
                    shard.place(permit)
                }
                // No memory to lock for another completion queue, say: there is room in those there are.
                (Err(why), Some(shard)) => {
                    tracing::debug!(why, "no further shard");
                    ServedShard::clone(shard).place(permit)
                }
                (Err(why), None) => Err(why),
            },
        }
    }

    /// Whether these could hold twice the connections that are allowed, so that a further one, which
    /// stays, would only be for what is about to leave: peers that come and go as fast as they can have
    /// much of that.
    fn has_shards_enough(&self, shards: &[&ServedShard], entries: u32) -> bool {
        let places: u64 = shards.iter().map(|shard| u64::from(shard.places_of(entries))).sum();
        shards.len() >= self.config.shards && places / 2 >= self.config.max_connections as u64
    }

    /// A further shard of a device object that has these.
    fn new_shard(
        &self,
        device: &Arc<dyn Device>,
        others: &[&ServedShard],
        router: &Arc<Router>,
    ) -> Result<ServedShard, String> {
        let text = |error: &dyn fmt::Display| error.to_string();
        let locks_memory =
            !device.attributes().capabilities.contains(Capabilities::FREE_REGISTRATION);
        // What is registered for one shard is then sent on all without a copy. Where registering is
        // free there is none anyway, and a domain of its own is nothing that shards wait for.
        let domain = match others.first().filter(|_| locks_memory) {
            Some(other) => other.domain().clone(),
            None => device.allocate_pd().map_err(|error| text(&error))?,
        };
        let needed = server_completions(&self.config.link, &**device);
        let connections = connections_of_cq(locks_memory, others.len(), self.config.shards);
        let entries = (needed * connections).min(device.attributes().max_cqe);
        if entries < needed {
            return Err(format!(
                "a connection needs {needed} completion queue entries, {} has {entries}; lower \
                 data_credits or send_queue_slots",
                device.attributes().name
            ));
        }
        let shard = RpcShard::of_server(Arc::clone(device), domain, entries, &self.config.link)
            .map_err(|error| text(&error))?;
        let (methods, settled) = (Arc::clone(&self.methods), Arc::clone(&self.settled));
        let handlers = Handlers::new(Arc::clone(&shard), Arc::clone(router), methods, settled);
        let driver = Driver::new(Arc::clone(&shard), handlers, self.config.poll_mode)
            .map_err(|error| text(&error))?;
        tokio::spawn(driver);
        let bulk = BulkPool::new(shard.domain().clone());
        let set_ups = Arc::new(Semaphore::new(MOST_SET_UPS));
        Ok(ServedShard { shard, bulk, set_ups })
    }

    pub(super) fn all_shards(&self) -> Vec<ServedShard> {
        self.open.lock().iter().flat_map(|open| open.shards.values()).flatten().cloned().collect()
    }

    /// Gives memory back to the system (idle buffers of the pools, and freed memory of the
    /// allocator) when there has been no connection for [`QUIET_TIME`]. Never ends.
    pub(super) async fn keep_house(self: Arc<Self>) {
        let mut is_tidy = true;
        loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            let is_empty = self.all_shards().iter().all(|shard| shard.connection_count() == 0);
            if is_tidy || !is_empty {
                settled.await;
                is_tidy = false;
            } else if tokio::time::timeout(QUIET_TIME, settled).await.is_err() {
                self.all_shards().iter().for_each(|shard| shard.bulk.trim());
                // Blocking, because it takes long if there is much freed memory.
                let _ = tokio::task::spawn_blocking(return_freed_memory).await;
                is_tidy = true;
            }
        }
    }

    /// Takes all shards, and lets go of the services; from now on no shard is opened.
    pub(super) fn end(&self) -> Vec<ServedShard> {
        // Services are dropped, and with them what the user has put into them, when the lock has been
        // let go.
        let open = self.open.lock().take();
        open.into_iter().flat_map(|open| open.shards.into_values()).flatten().collect()
    }

    /// [`ServerBuilder::drain_lead`](super::ServerBuilder::drain_lead).
    pub(super) fn drain_lead(&self) -> Duration {
        self.config.drain_lead
    }

    /// Lets calls in flight finish, then closes.
    pub(super) async fn drain(&self) {
        let shards = self.all_shards();
        let (mut connections, mut calls) = (0_u64, 0);
        for shard in &shards {
            shard.for_each(|peer| {
                connections += 1;
                calls += u64::from(peer.session.incoming_calls());
                peer.session.go_away();
            });
        }
        tracing::info!(connections, calls, grace = ?self.config.grace, "shutting down");
        let drained = async {
            loop {
                let settled = self.settled.notified();
                tokio::pin!(settled);
                settled.as_mut().enable();
                if shards.iter().all(|shard| shard.is_quiet()) {
                    break;
                }
                settled.await;
            }
        };
        let served = async {
            tokio::select! {
                () = drained => {}
                () = no_calls(&shards) => {}
            }
        };
        if tokio::time::timeout(self.config.grace, served).await.is_err() {
            tracing::warn!(grace = ?self.config.grace, "calls were still in flight at shutdown");
        }
        let reason = CloseReason::new(CloseCode::ShuttingDown, "the server has shut down");
        for shard in &shards {
            shard.close_all(&reason);
        }
        let closed = async {
            loop {
                let settled = self.settled.notified();
                tokio::pin!(settled);
                settled.as_mut().enable();
                if shards.iter().all(|shard| shard.connection_count() == 0) {
                    break;
                }
                settled.await;
            }
        };
        // Do not wait for peers that no longer read.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, closed).await;
    }
}

/// Counts a set-up as failed if it ends as nothing else, also when it gives way or the server ends.
struct SetUp {
    acceptor: Arc<Acceptor>,
    is_counted: bool,
}

impl SetUp {
    fn begin(acceptor: &Arc<Acceptor>) -> Self {
        Self { acceptor: Arc::clone(acceptor), is_counted: false }
    }

    async fn accept(mut self, incoming: Box<dyn Incoming>, faults: &LogLimit) {
        self.acceptor.accept(incoming, faults, &mut self.is_counted).await;
    }
}

impl Drop for SetUp {
    fn drop(&mut self) {
        if !self.is_counted {
            self.acceptor.admissions.failed.add_shared(1);
        }
    }
}

/// Waits until no call is in flight and every answer has left, [`ANSWER_TIMEOUT`] after all were told
/// to go away: a peer that has not said by then that it will not call any more is stopped or dead.
async fn no_calls(shards: &[ServedShard]) {
    tokio::time::sleep(ANSWER_TIMEOUT).await;
    let is_served = |peer: &RpcEndpoint| peer.session.is_served();
    while !shards.iter().all(|shard| shard.is_at_rest(is_served)) {
        tokio::time::sleep(ANSWER_TIMEOUT / 20).await;
    }
}

/// Number of connections for the CQ of a further shard, where there are `count` shards and the server
/// is to have `shards`.
pub(super) fn connections_of_cq(locks_queues: bool, count: usize, shards: usize) -> u32 {
    if locks_queues { locked_need::connections_of_cq(count, shards) } else { CONNECTIONS_PER_CQ }
}

/// Waits until a set-up has ended, and evicts one if necessary.
async fn make_room(under_way: &mut SetUps<AbortHandle>, setups: &mut JoinSet<()>) {
    let later = match under_way.to_give_way(Instant::now()) {
        Ok(set_up) => {
            set_up.abort();
            None
        }
        Err(later) => Some(later),
    };
    let ended = async {
        match later {
            None => setups.join_next_with_id().await,
            Some(later) => {
                let ended = setups.join_next_with_id();
                tokio::time::timeout_at(later, ended).await.unwrap_or_default()
            }
        }
    };
    if let Some(ended) = ended.await {
        forget(under_way, &ended);
    }
}

/// Removes the set-up of a task that has ended.
fn forget(under_way: &mut SetUps<AbortHandle>, ended: &Result<(Id, ()), JoinError>) {
    let id = match ended {
        Ok((id, ())) => *id,
        Err(error) => error.id(),
    };
    under_way.end(|set_up| set_up.id() == id);
}
