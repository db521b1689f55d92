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

mod accept;

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use rpc_transport::device::connection_error::ListenError;
use rpc_transport::device::{Capabilities, Device, Listener};
use rpc_transport::engine::driver::Driver;
use rpc_transport::engine::establish::server_completions;
use rpc_transport::engine::locked_need;
use rpc_transport::engine::tenant::Tenant;
use rpc_transport::lock::Mutex;
use rpc_transport::log_limit::LogLimit;
use rpc_transport::memory::allocator::return_freed_memory;
use rpc_transport::memory::budget::MemoryBudget;
use rpc_transport::memory::process::Process;
use rpc_transport::protocol::frame::{CloseCode, CloseReason};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::Instant;

use self::accept::SetUp;
use super::adaptive_limit::Overload;
use super::set_ups::SetUps;
use super::{available_memory, config::Config};
use crate::bulk::BulkPool;
use crate::endpoint::{RpcEndpoint, RpcShard};
use crate::runtime::phase::{Phase, Watch};
use crate::runtime::watched::Watched;
use crate::server::executor::Handlers;
use crate::server::router::Router;
use crate::stats::counts::{Counter, Methods};

/// Number of connections that a CQ is sized for, at most.
pub(super) const CONNECTIONS_PER_CQ: u32 = locked_need::CONNECTIONS_PER_CQ;
/// Set-ups that a shard may count at once: more than its CQ can ever have room for.
const MOST_SET_UPS: usize = 1 << 20;
/// Time without any connection after which memory is given back to the system.
const QUIET_TIME: Duration = Duration::from_secs(2);
/// Time in which a peer that has no call in flight answers a go-away.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest time to wait in a shutdown until the close frames have been sent.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// What happens at most once per connection; written from any thread.
#[derive(Debug, Default)]
pub(super) struct Admissions {
    pub(super) accepted: Counter,
    pub(super) refused: Counter,
    pub(super) denied: Counter,
    /// Of those accepted.
    pub(super) plain: Counter,
    pub(super) failed: Counter,
}

/// What a server has until it ends.
struct Open {
    /// By the device's name, which a device keeps when another object takes its place.
    shards: HashMap<String, Vec<ServerShard>>,
    /// The services are the user's. They are dropped when the server has ended, even if its stats
    /// are still read.
    router: Arc<Router>,
}

/// A shard with the buffer pool for its handlers, registered in the shard's protection domain.
#[derive(Debug, Clone)]
pub(super) struct ServerShard {
    shard: Arc<RpcShard>,
    bulk: BulkPool,
    /// Each connection that is being set up here holds one permit.
    set_ups: Arc<Semaphore>,
}

impl ServerShard {
    /// Whether the CQ has room for another connection of `entries` entries. Connections that are
    /// being set up count in full, as they may not have taken their entries yet.
    fn has_room(&self, entries: u32) -> bool {
        let under_way = MOST_SET_UPS - self.set_ups.available_permits();
        let count = u32::try_from(under_way + 1).unwrap_or(u32::MAX);
        self.shard.has_room_for(count, entries)
    }

    pub(super) fn set_ups_under_way(&self) -> u64 {
        (MOST_SET_UPS - self.set_ups.available_permits()) as u64
    }

    /// Reserves a place, which counts as a set-up until it is dropped.
    fn reserve(&self) -> Result<Reserved, String> {
        let under_way = Arc::clone(&self.set_ups).try_acquire_owned();
        let under_way = under_way
            .map_err(|_| format!("{MOST_SET_UPS} connections are being set up already"))?;
        Ok(Reserved { shard: self.clone(), under_way })
    }
}

impl Deref for ServerShard {
    type Target = Arc<RpcShard>;

    fn deref(&self) -> &Arc<RpcShard> {
        &self.shard
    }
}

/// A place in a shard.
struct Reserved {
    shard: ServerShard,
    under_way: OwnedSemaphorePermit,
}

/// The shard for a new connection.
pub(super) struct Place {
    pub(super) shard: ServerShard,
    pub(super) permit: OwnedSemaphorePermit,
    /// Held until the connection is up and is counted by the CQ.
    pub(super) under_way: OwnedSemaphorePermit,
}

const ENDED: &str = "the server is shutting down";

/// Where a further connection goes.
enum Found {
    Place(Reserved),
    /// Another shard is to be opened.
    Wanted {
        /// Where the connection goes if there can be no other.
        least: Option<Reserved>,
        /// The shards of the same device.
        others: Vec<ServerShard>,
        router: Arc<Router>,
    },
}

/// What the listeners of a server share.
pub(super) struct Acceptor {
    /// `None` once the server has ended.
    open: Mutex<Option<Open>>,
    /// Held while a shard is opened.
    opens: tokio::sync::Mutex<()>,
    /// One permit for each further connection that is allowed.
    places: Arc<Semaphore>,
    settled: Watched<u64>,
    /// The budget for large messages of all connections.
    pub(super) memory: MemoryBudget,
    phase: Watch,
    pub(super) config: Config,
    /// What was counted of the methods, over all shards.
    pub(super) methods: Arc<Methods>,
    pub(super) admissions: Admissions,
    pub(super) overload: Option<Arc<Overload>>,
    process: Process,
}

impl Acceptor {
    pub(super) fn new(
        router: Router,
        config: Config,
        overload: Option<Arc<Overload>>,
        phase: Watch,
    ) -> Self {
        let places = config.max_connections.min(Semaphore::MAX_PERMITS);
        let methods = Arc::<Methods>::default();
        methods.know(router.methods());
        Self {
            open: Mutex::new(Some(Open { shards: HashMap::new(), router: Arc::new(router) })),
            opens: tokio::sync::Mutex::new(()),
            places: Arc::new(Semaphore::new(places)),
            settled: Watched::default(),
            memory: MemoryBudget::new(
                config.memory_budget.unwrap_or_else(available_memory::default_budget),
            ),
            phase,
            config,
            methods,
            admissions: Admissions::default(),
            overload,
            process: Process::current(),
        }
    }

    /// Whether this process has made it. Else it is not to be touched: its locks may be held for
    /// ever.
    pub(super) fn is_here(&self) -> bool {
        self.process.is_current()
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
        let tenant = Arc::<Tenant>::default();
        let mut under_way = SetUps::new();
        let exchange = listener.exchange();
        if let Some(keeper) = self.config.keeper() {
            Arc::clone(keeper).begin();
        }
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
                    let tenant = Arc::clone(&tenant);
                    let peer = incoming.peer();
                    let security = match self.config.security(&*incoming, exchange.clone()) {
                        Ok(security) => security,
                        Err(why) => {
                            tracing::error!(%why, "a connection is refused");
                            continue;
                        }
                    };
                    let task = setups.spawn(async move {
                        this.accept(incoming, &tenant, security.as_ref(), &faults).await;
                    });
                    under_way.begin(task, &peer, Instant::now());
                }
            }
        }
    }

    /// A shard with room, on the device that a request came in on.
    pub(super) async fn place(&self, device: &Arc<dyn Device>) -> Result<Place, String> {
        if self.open.lock().is_none() {
            return Err(ENDED.to_owned());
        }
        let permit = Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            format!(
                "the server is at its limit of {} connections (`max_connections`)",
                self.config.max_connections
            )
        })?;
        let Reserved { shard, under_way } = match self.find(device)? {
            Found::Place(reserved) => reserved,
            Found::Wanted { .. } => self.open_shard(device).await?,
        };
        Ok(Place { shard, permit, under_way })
    }

    /// A place for one more connection, or what is needed to open a shard.
    fn find(&self, device: &Arc<dyn Device>) -> Result<Found, String> {
        let name = device.attributes().name.clone();
        let needed = server_completions(&self.config.link, &**device);
        // What was in them is dropped when the lock has been released.
        let _over: Vec<ServerShard>;
        let mut open = self.open.lock();
        let Some(Open { shards, router }) = &mut *open else { return Err(ENDED.to_owned()) };
        let of_device = shards.entry(name).or_default();
        _over = of_device.extract_if(.., |shard| shard.is_over()).collect();
        // Nothing of another device object can be used with this one, whatever its name.
        let same: Vec<_> = of_device.iter().filter(|it| Arc::ptr_eq(it.device(), device)).collect();
        let least = same
            .iter()
            .filter(|shard| shard.has_room(needed))
            .min_by_key(|shard| shard.connection_count());
        let places = || same.iter().map(|shard| u64::from(shard.places_of(needed))).sum::<u64>();
        match least {
            Some(shard) if same.len() >= self.config.shards => Ok(Found::Place(shard.reserve()?)),
            // They could hold twice the connections that are allowed. A further shard, which stays,
            // would only be for connections that are about to leave.
            None if same.len() >= self.config.shards
                && places() / 2 >= self.config.max_connections as u64 =>
            {
                Err("closed connections are still being torn down".to_owned())
            }
            least => Ok(Found::Wanted {
                least: least.map(|shard| shard.reserve()).transpose()?,
                others: same.into_iter().cloned().collect(),
                router: Arc::clone(router),
            }),
        }
    }

    /// Opens a further shard, unless that has been done meanwhile: one after the other, and without
    /// the lock of all shards, as devices may log.
    async fn open_shard(&self, device: &Arc<dyn Device>) -> Result<Reserved, String> {
        let _opens = self.opens.lock().await;
        let (least, others, router) = match self.find(device)? {
            Found::Place(reserved) => return Ok(reserved),
            Found::Wanted { least, others, router } => (least, others, router),
        };
        let others: Vec<&ServerShard> = others.iter().collect();
        let shard = match (self.new_shard(device, &others, &router), least) {
            (Ok(shard), _) => shard,
            // No memory to lock for another completion queue, say: there is room in those there
            // are.
            (Err(why), Some(reserved)) => {
                tracing::debug!(why, "cannot open another shard, sharing an existing one");
                return Ok(reserved);
            }
            (Err(why), None) => return Err(why),
        };
        let (name, reserved) = (device.attributes().name.clone(), shard.reserve()?);
        let is_open = {
            let mut open = self.open.lock();
            let shards = open.as_mut().map(|open| open.shards.entry(name).or_default());
            shards.map(|shards| shards.push(shard.clone())).is_some()
        };
        if !is_open {
            shard.shutdown_now();
            return Err(ENDED.to_owned());
        }
        Ok(reserved)
    }

    /// A further shard of a device object that has these.
    fn new_shard(
        &self,
        device: &Arc<dyn Device>,
        others: &[&ServerShard],
        router: &Arc<Router>,
    ) -> Result<ServerShard, String> {
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
        let (methods, settled) = (Arc::clone(&self.methods), self.settled.clone());
        let handlers = Handlers::new(Arc::clone(&shard), Arc::clone(router), methods, settled);
        let driver = Driver::new(Arc::clone(&shard), handlers, self.config.poll_mode)
            .map_err(|error| text(&error))?;
        tokio::spawn(driver);
        let bulk = BulkPool::new(shard.domain().clone());
        let set_ups = Arc::new(Semaphore::new(MOST_SET_UPS));
        Ok(ServerShard { shard, bulk, set_ups })
    }

    pub(super) fn all_shards(&self) -> Vec<ServerShard> {
        self.open.lock().iter().flat_map(|open| open.shards.values()).flatten().cloned().collect()
    }

    /// Gives memory back to the system (idle buffers of the pools, and freed memory of the
    /// allocator) when there has been no connection for [`QUIET_TIME`]. Never ends.
    pub(super) async fn keep_house(self: Arc<Self>) {
        let mut is_tidy = true;
        loop {
            let mut settled = self.settled.watch();
            let is_empty = self.all_shards().iter().all(|shard| shard.connection_count() == 0);
            if is_tidy || !is_empty {
                let _ = settled.changed().await;
                is_tidy = false;
            } else if tokio::time::timeout(QUIET_TIME, settled.changed()).await.is_err() {
                self.all_shards().iter().for_each(|shard| shard.bulk.trim());
                // Blocking, because it takes long if there is much freed memory.
                let _ = crate::runtime::blocking(return_freed_memory).await;
                is_tidy = true;
            }
        }
    }

    /// Takes all shards, and lets go of the services; from now on no shard is opened.
    pub(super) fn end(&self) -> Vec<ServerShard> {
        if !self.is_here() {
            return Vec::new();
        }
        // Services are dropped, and with them what the user has put into them, when the lock has
        // been let go.
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
                let mut settled = self.settled.watch();
                if shards.iter().all(|shard| shard.is_quiet()) {
                    break;
                }
                let _ = settled.changed().await;
            }
        };
        // A peer that has not answered the go-away by then is stopped or dead: it suffices that no
        // call is in flight and that every answer has left.
        let without_answers = async {
            tokio::time::sleep(ANSWER_TIMEOUT).await;
            let is_served = |peer: &RpcEndpoint| peer.session.is_served();
            while !shards.iter().all(|shard| shard.is_at_rest(is_served)) {
                tokio::time::sleep(ANSWER_TIMEOUT / 20).await;
            }
        };
        let served = async {
            tokio::select! {
                () = drained => {}
                () = without_answers => {}
            }
        };
        if tokio::time::timeout(self.config.grace, served).await.is_err() {
            tracing::warn!(grace = ?self.config.grace, "calls in flight were cut off at shutdown");
        }
        let reason = CloseReason::new(CloseCode::ShuttingDown, "the server has shut down");
        for shard in &shards {
            shard.close_all(&reason);
        }
        let closed = async {
            loop {
                let mut settled = self.settled.watch();
                if shards.iter().all(|shard| shard.connection_count() == 0) {
                    break;
                }
                let _ = settled.changed().await;
            }
        };
        // Do not wait for peers that no longer read.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, closed).await;
    }
}

/// Number of connections for the CQ of a further shard, where there are `count` shards and the
/// server is to have `shards`.
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
