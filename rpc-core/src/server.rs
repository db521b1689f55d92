//! Servers: services bound to addresses.
//!
//! Owns listening, accepting, the spread of connections over shards, and orderly shutdown. Never
//! looks into a message.
//!
//! Invariants:
//! 1. A peer that misbehaves during set-up costs its own connection only.
//! 2. Shutdown ends: calls in flight get a grace period, then their connections are closed.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rpc_transport::address::Address;
use rpc_transport::config::LinkConfig;
use rpc_transport::driver::Driver;
use rpc_transport::error::{ConnectError, ListenError};
use rpc_transport::frame::{CloseCode, CloseReason};
use rpc_transport::handshake::{Reject, RejectCode};
use rpc_transport::provider::{Device, Incoming, Listener};
use rpc_transport::schemes;
use rpc_transport::setup::{AcceptError, completions_per_connection};
use rpc_transport::spin::PollMode;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;

use crate::bulk::BulkPool;
use crate::client::DEFAULT_MIN_PART_BYTES;
use crate::executor::{Handlers, Router};
use crate::peer::{Peer, RpcShard};
use crate::service::Dispatch;
use crate::session::{Role, SessionLimits};

/// Connections that one CQ is made for.
const CONNECTIONS_PER_CQ: u32 = 1024;
/// Set-ups under way at once; more wait in the listener's backlog.
const CONCURRENT_ACCEPTS: usize = 64;
/// Longest time for one set-up.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(15);

/// Configuration of a [`Server`].
pub struct ServerBuilder {
    services: Vec<Arc<dyn Dispatch>>,
    config: Config,
}

#[derive(Debug, Clone)]
struct Config {
    link: LinkConfig,
    limits: SessionLimits,
    poll_mode: PollMode,
    shards: usize,
    max_connections: usize,
    grace: Duration,
    min_part_bytes: usize,
}

impl Default for ServerBuilder {
    fn default() -> Self {
        let config = Config {
            link: LinkConfig::default(),
            limits: SessionLimits::default(),
            poll_mode: PollMode::default(),
            shards: 1,
            max_connections: 16_384,
            grace: Duration::from_secs(10),
            min_part_bytes: DEFAULT_MIN_PART_BYTES,
        };
        Self { services: Vec::new(), config }
    }
}

impl ServerBuilder {
    /// Adds a service: a generated `XServer`, or anything that dispatches.
    #[must_use]
    pub fn add_service(mut self, service: impl Dispatch) -> Self {
        self.services.push(Arc::new(service));
        self
    }

    /// Credits, buffers, message size and keep-alive of this end, per connection.
    #[must_use]
    pub fn link(mut self, link: LinkConfig) -> Self {
        self.config.link = link;
        self
    }

    /// Calls of one connection that run at once. Default 1,024; a client waits with more.
    #[must_use]
    pub fn max_calls_per_connection(mut self, count: u32) -> Self {
        self.config.limits.max_incoming_calls = count;
        self
    }

    /// Connections at once. Default 16,384; more are refused.
    #[must_use]
    pub fn max_connections(mut self, count: usize) -> Self {
        self.config.max_connections = count;
        self
    }

    /// How the drivers wait. Default [`PollMode::Adaptive`].
    #[must_use]
    pub fn poll_mode(mut self, mode: PollMode) -> Self {
        self.config.poll_mode = mode;
        self
    }

    /// Completion queues, each with a driver task of its own, that connections are spread over, per
    /// device. Default 1: handlers that finish at once then run on one core.
    #[must_use]
    pub fn shards(mut self, count: usize) -> Self {
        self.config.shards = count;
        self
    }

    /// Time that calls in flight get when the server shuts down. Default 10 s.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.config.grace = grace;
        self
    }

    /// From how many bytes on a byte string in a result travels beside the reply's body: see
    /// [`ChannelBuilder::min_part_bytes`](crate::ChannelBuilder::min_part_bytes). Default 8,192.
    #[must_use]
    pub fn min_part_bytes(mut self, bytes: usize) -> Self {
        self.config.min_part_bytes = bytes;
        self
    }

    /// Opens an address. Clients may connect from now on; they are served by [`Server::serve`].
    ///
    /// # Errors
    /// [`ListenError`]: bad address, in use, not available here, bad configuration.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time enabled.
    pub async fn bind(self, address: impl AsRef<str>) -> Result<Server, ListenError> {
        self.bind_all([address]).await
    }

    /// Opens several addresses at once.
    ///
    /// # Errors
    /// [`ListenError`] of the first that fails; none is open then.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time enabled.
    pub async fn bind_all<A: AsRef<str>>(
        self,
        addresses: impl IntoIterator<Item = A>,
    ) -> Result<Server, ListenError> {
        self.config.link.validate().map_err(|error| ListenError::Config(error.to_string()))?;
        if self.config.shards == 0 {
            return Err(ListenError::Config("shards is 0, at least 1 is needed".to_owned()));
        }
        let mut router = Router::default();
        for service in self.services {
            router.add(service).map_err(ListenError::Config)?;
        }
        let mut listeners = Vec::new();
        for address in addresses {
            let address: Address = address.as_ref().parse()?;
            listeners.push(schemes::listen(&address).await?);
        }
        let (stop, _) = watch::channel(false);
        let acceptor = Acceptor {
            shards: Mutex::new(Some(Shards::new())),
            router: Arc::new(router),
            settled: Arc::default(),
            config: self.config,
        };
        Ok(Server { listeners, acceptor: Arc::new(acceptor), stop: Arc::new(stop) })
    }
}

impl fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.services.iter().map(|it| it.descriptor().name).collect();
        f.debug_struct("ServerBuilder").field("services", &names).finish_non_exhaustive()
    }
}

/// A server whose addresses are open.
pub struct Server {
    listeners: Vec<Box<dyn Listener>>,
    acceptor: Arc<Acceptor>,
    stop: Arc<watch::Sender<bool>>,
}

/// Shuts a server down, from anywhere.
#[derive(Debug, Clone)]
pub struct ShutdownHandle(Arc<watch::Sender<bool>>);

impl ShutdownHandle {
    /// Starts an orderly shutdown: no new connections and calls, calls in flight finish within the
    /// grace period, then [`Server::serve`] returns.
    pub fn shutdown(&self) {
        self.0.send_replace(true);
    }
}

impl Server {
    /// Configures a server.
    #[must_use]
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// The bound addresses, with real ports, in the order of binding.
    #[must_use]
    pub fn local_addresses(&self) -> Vec<Address> {
        self.listeners.iter().map(|listener| listener.local_address()).collect()
    }

    /// The first bound address.
    ///
    /// # Panics
    /// When the server was bound to no address at all.
    #[must_use]
    pub fn local_address(&self) -> Address {
        self.listeners[0].local_address()
    }

    /// A handle to shut the server down with.
    #[must_use]
    pub fn shutdown_handle(&self) -> ShutdownHandle {
        ShutdownHandle(Arc::clone(&self.stop))
    }

    /// Serves until shut down. Dropping the future ends all connections at once.
    ///
    /// # Errors
    /// [`ListenError`] when a listener dies.
    pub async fn serve(self) -> Result<(), ListenError> {
        let Self { listeners, acceptor, stop } = self;
        let _end = EndShards(Arc::clone(&acceptor));
        let mut stopped = stop.subscribe();
        let mut accepting = JoinSet::new();
        for listener in listeners {
            accepting.spawn(Arc::clone(&acceptor).accept_loop(listener, stop.subscribe()));
        }
        let died = tokio::select! {
            _ = stopped.wait_for(|stop| *stop) => None,
            Some(ended) = accepting.join_next() => ended.unwrap_or_else(|join| {
                let address = Address::Mem("server".to_owned());
                Some(ListenError::Failed { address, reason: join.to_string() })
            }),
        };
        if let Some(error) = died {
            return Err(error);
        }
        // All listeners are closed and no set-up is under way: the connections are all there are.
        while accepting.join_next().await.is_some() {}
        acceptor.drain().await;
        Ok(())
    }

    /// Serves until `signal` completes, then shuts down in order.
    ///
    /// # Errors
    /// [`ListenError`] when a listener dies.
    pub async fn serve_until(self, signal: impl Future<Output = ()>) -> Result<(), ListenError> {
        let handle = self.shutdown_handle();
        let serving = self.serve();
        tokio::pin!(serving);
        tokio::select! {
            outcome = &mut serving => return outcome,
            () = signal => handle.shutdown(),
        }
        serving.await
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("addresses", &self.local_addresses()).finish_non_exhaustive()
    }
}

/// Ends every connection of a server whose `serve` is over.
struct EndShards(Arc<Acceptor>);

impl Drop for EndShards {
    fn drop(&mut self) {
        for shard in self.0.end() {
            shard.shutdown_now();
        }
    }
}

type Shards = HashMap<String, Vec<ServedShard>>;

/// A shard with the buffers that its handlers use, which are registered in its domain.
#[derive(Debug, Clone)]
struct ServedShard {
    shard: Arc<RpcShard>,
    bulk: BulkPool,
}

impl Deref for ServedShard {
    type Target = Arc<RpcShard>;

    fn deref(&self) -> &Arc<RpcShard> {
        &self.shard
    }
}

struct Acceptor {
    /// By device; `None` once the server has ended.
    shards: Mutex<Option<Shards>>,
    router: Arc<Router>,
    settled: Arc<Notify>,
    config: Config,
}

impl Acceptor {
    /// Accepts until the server is stopped; `Some` when the listener dies before.
    async fn accept_loop(
        self: Arc<Self>,
        listener: Box<dyn Listener>,
        mut stopped: watch::Receiver<bool>,
    ) -> Option<ListenError> {
        let mut setups = JoinSet::new();
        let died = tokio::select! {
            error = self.accept_all(listener, &mut setups) => Some(error),
            _ = stopped.wait_for(|stop| *stop) => None,
        };
        setups.shutdown().await;
        died
    }

    async fn accept_all(
        self: &Arc<Self>,
        mut listener: Box<dyn Listener>,
        setups: &mut JoinSet<()>,
    ) -> ListenError {
        let permits = Arc::new(Semaphore::new(CONCURRENT_ACCEPTS));
        loop {
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else {
                return ListenError::Config("the accept semaphore was closed".to_owned());
            };
            let incoming = tokio::select! {
                incoming = listener.incoming() => incoming,
                Some(_) = setups.join_next() => continue,
            };
            match incoming {
                Err(error) => return error,
                Ok(incoming) => {
                    let this = Arc::clone(self);
                    setups.spawn(async move {
                        this.accept(incoming).await;
                        drop(permit);
                    });
                }
            }
        }
    }

    async fn accept(&self, incoming: Box<dyn Incoming>) {
        let from = incoming.peer();
        let shard = match self.shard_for(incoming.device()) {
            Ok(shard) => shard,
            Err(text) => {
                tracing::warn!(peer = ?from, "cannot serve: {text}");
                incoming.reject(&Reject::new(RejectCode::Busy, text.clone()).to_bytes()).await;
                return;
            }
        };
        let Config { limits, min_part_bytes, .. } = self.config;
        let peer = Peer::new(Role::Server, limits, shard.bulk.clone(), min_part_bytes);
        let accepting = shard.accept(incoming, &self.config.link, peer);
        match tokio::time::timeout(ACCEPT_TIMEOUT, accepting).await {
            Ok(Ok(connected)) => tracing::debug!(peer = ?connected.peer, "connected"),
            Ok(Err(AcceptError::Connect(ConnectError::Provider(error)))) => {
                tracing::warn!(peer = ?from, %error, "set-up failed");
            }
            Ok(Err(error)) => tracing::info!(peer = ?from, %error, "set-up failed"),
            Err(_) => tracing::info!(peer = ?from, "set-up took too long"),
        }
    }

    /// A shard with room, on the device that a request came in on.
    fn shard_for(&self, device: &Arc<dyn Device>) -> Result<ServedShard, String> {
        let mut shards = self.shards.lock();
        let Some(shards) = &mut *shards else {
            return Err("the server is shutting down".to_owned());
        };
        let total: usize = shards.values().flatten().map(|shard| shard.connection_count()).sum();
        if total >= self.config.max_connections {
            return Err(format!(
                "the server has its limit of {} connections",
                self.config.max_connections
            ));
        }
        let of_device = shards.entry(device.attributes().name.clone()).or_default();
        of_device.retain(|shard| !shard.is_over());
        let needed = completions_per_connection(&self.config.link);
        let least = of_device
            .iter()
            .filter(|shard| shard.has_room(needed))
            .min_by_key(|shard| shard.connection_count())
            .cloned();
        match least {
            Some(shard) if of_device.len() >= self.config.shards => Ok(shard),
            _ => {
                let shard = self.new_shard(device)?;
                of_device.push(shard.clone());
                Ok(shard)
            }
        }
    }

    fn new_shard(&self, device: &Arc<dyn Device>) -> Result<ServedShard, String> {
        let text = |error: &dyn fmt::Display| error.to_string();
        let domain = device.allocate_pd().map_err(|error| text(&error))?;
        let needed = completions_per_connection(&self.config.link);
        let entries = (needed * CONNECTIONS_PER_CQ).min(device.attributes().max_cqe);
        if entries < needed {
            return Err(format!(
                "a connection needs {needed} completion queue entries, {} has {entries}; lower \
                 data_credits or send_queue_slots",
                device.attributes().name
            ));
        }
        let shard =
            RpcShard::new(Arc::clone(device), domain, entries).map_err(|error| text(&error))?;
        let handlers =
            Handlers::new(Arc::clone(&shard), Arc::clone(&self.router), Arc::clone(&self.settled));
        let driver = Driver::new(Arc::clone(&shard), handlers, self.config.poll_mode)
            .map_err(|error| text(&error))?;
        tokio::spawn(driver);
        let bulk = BulkPool::new(shard.domain().clone());
        Ok(ServedShard { shard, bulk })
    }

    fn all_shards(&self) -> Vec<ServedShard> {
        self.shards.lock().iter().flat_map(HashMap::values).flatten().cloned().collect()
    }

    /// The shards, which there will be no more of.
    fn end(&self) -> Vec<ServedShard> {
        self.shards.lock().take().into_iter().flat_map(HashMap::into_values).flatten().collect()
    }

    /// Lets calls in flight finish, then closes.
    async fn drain(&self) {
        let shards = self.all_shards();
        for shard in &shards {
            shard.for_each(|peer| peer.session.go_away());
        }
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
        if tokio::time::timeout(self.config.grace, drained).await.is_err() {
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
        // Peers that do not read any more are left behind.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, closed).await;
    }
}

/// Longest time for the close frames of a shutdown to leave.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use rpc_transport::soft;

    use super::*;

    /// A set-up that was under way when a server ended opened a shard that nobody would ever end.
    #[tokio::test]
    async fn a_server_that_has_ended_opens_no_shard() {
        let server = Server::builder().bind("mem://ended-server").await.unwrap();
        let acceptor = Arc::clone(&server.acceptor);
        let device = soft::mem_device();
        let shard = acceptor.shard_for(device).unwrap();
        let again = acceptor.shard_for(device).unwrap();
        assert!(Arc::ptr_eq(&shard, &again));
        drop(server.serve());
        assert!(!shard.is_over(), "serve was never polled");
        drop(EndShards(Arc::clone(&acceptor)));
        assert!(shard.is_over());
        assert_eq!(acceptor.shard_for(device).unwrap_err(), "the server is shutting down");
    }

    /// A shard whose driver has gone stayed in the list, and connections were put beside it.
    #[tokio::test]
    async fn a_shard_without_a_driver_is_replaced() {
        let server = Server::builder().bind("mem://replaced-shard").await.unwrap();
        let device = soft::mem_device();
        let shard = server.acceptor.shard_for(device).unwrap();
        shard.shutdown();
        let other = server.acceptor.shard_for(device).unwrap();
        assert!(!Arc::ptr_eq(&shard, &other));
        assert_eq!(server.acceptor.all_shards().len(), 1);
    }
}
