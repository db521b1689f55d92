//! Servers: services bound to addresses.
//!
//! Owns the configuration, the listeners, and the order of a shutdown. Connection requests are
//! handled in `acceptor.rs`.
//!
//! Invariants:
//! 1. Shutdown always ends: first handlers are told and everything is served as before for the lead
//!    time; then nothing new is taken and calls in flight get a grace period; then their connections
//!    are closed.
//! 2. If a listener dies, the server shuts down in the same order, and the error names its address.

mod acceptor;
mod answering;
mod around;
mod asked;
mod available_memory;
mod call;
mod config;
pub(crate) mod executor;
mod poll_watch;
mod route_counts;
mod router;
mod running;
pub(crate) mod served;
mod set_ups;
pub(crate) mod stats;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use rpc_transport::connect::address::{Address, AddressError};
use rpc_transport::connect::error::ListenError;
use rpc_transport::connect::schemes;
use rpc_transport::device::Listener;
use rpc_transport::device::fault::{self, FaultPlan};
use rpc_transport::engine::locked_need::{registered_bytes, server_bytes};
use rpc_transport::engine::spin::PollMode;
use rpc_transport::protocol::config::LinkConfig;
use tokio::runtime::Handle;
use tokio::task::{self, JoinError, JoinSet};

use self::acceptor::Acceptor;
use self::around::Arounds;
use self::config::Config;
#[cfg(feature = "macros")]
use crate::builtin::{Builtins, health::HealthReporter};
use crate::interceptor::ServerInterceptor;
use crate::observability::stats::handle::ReadStats;
use crate::observability::stats::{ServerStats, StatsHandle};
use crate::runtime::phase::{Phase, Phases};
use crate::server::router::Router;
#[cfg(feature = "macros")]
use crate::server::stats::WeakStatsHandle;
use crate::service::Dispatch;

/// Configuration of a [`Server`].
///
/// # Example
/// ```
/// # #[rpc_core::service] pub trait Greeter { async fn greet(&self) -> String; }
/// # struct Polite; impl Greeter for Polite { async fn greet(&self) -> String { "Good day".into() } }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), rpc_core::ListenError> {
/// use std::time::Duration;
///
/// let server = rpc_core::Server::builder()
///     .add_service(GreeterServer::new(Polite))
///     .max_connections(1_000)
///     .grace(Duration::from_secs(10))
///     .bind_all(["mem://builder", "tcp://127.0.0.1:0"])
///     .await?;
/// println!("{:?}", server.local_addresses());
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct ServerBuilder {
    services: Vec<Arc<dyn Dispatch>>,
    #[cfg(feature = "macros")]
    builtins: Builtins,
    arounds: Arounds,
    config: Config,
}

impl ServerBuilder {
    /// Adds a service: a generated `XServer`, or anything that dispatches.
    #[must_use]
    pub fn add_service(mut self, service: impl Dispatch) -> Self {
        self.services.push(Arc::new(service));
        self
    }

    /// Adds the service `rpc.Health`, by which balancers ask whether the server, and each of its
    /// services, are to be sent calls; `reporter` says so. See [`health`](crate::health).
    #[cfg(feature = "macros")]
    #[must_use]
    pub fn health(mut self, reporter: &HealthReporter) -> Self {
        self.builtins.health = Some(reporter.clone());
        self
    }

    /// Adds the services `rpc.Reflect` and `rpc.Stats`, by which tools such as `rpcctl` list, describe
    /// and call what there is, and see what the server does. Whoever may call the server may ask them
    /// too. See [`reflect`](crate::reflect).
    #[cfg(feature = "macros")]
    #[must_use]
    pub fn reflection(mut self) -> Self {
        self.builtins.reflection = true;
        self
    }

    /// Adds an interceptor: what is done before and after each call of every service, also of those
    /// that are added later. The first that was added is the outermost. See
    /// [`interceptor`](crate::interceptor), also for an example.
    #[must_use]
    pub fn interceptor(mut self, interceptor: impl ServerInterceptor) -> Self {
        self.arounds.intercept(Arc::new(interceptor));
        self
    }

    /// Adds a layer: a [`Dispatch`] that stands around each service, for what has to wait or to see
    /// replies. It stands inside of the interceptors and layers that were added before it.
    ///
    /// ```
    /// # #[rpc_core::service] pub trait Greeter { async fn greet(&self) -> String; }
    /// # struct Polite; impl Greeter for Polite { async fn greet(&self) -> String { "Good day".into() } }
    /// use rpc_core::service::{Dispatch, Handler, Request, ServiceDescriptor};
    /// use std::sync::Arc;
    /// use tokio::sync::Semaphore;
    ///
    /// /// No more than so many calls at once; others wait.
    /// struct AtMost(Arc<dyn Dispatch>, Arc<Semaphore>);
    ///
    /// impl Dispatch for AtMost {
    ///     fn descriptor(&self) -> &'static ServiceDescriptor {
    ///         self.0.descriptor()
    ///     }
    ///
    ///     fn dispatch(&self, method: usize, request: Request) -> Handler {
    ///         let (inner, places) = (Arc::clone(&self.0), Arc::clone(&self.1));
    ///         Handler::new(request.context.clone(), async move {
    ///             let _place = places.acquire().await;
    ///             inner.dispatch(method, request).await // a panic of the handler is a reply, too
    ///         })
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let places = Arc::new(Semaphore::new(8));
    /// let server = rpc_core::Server::builder()
    ///     .layer(move |inner| Arc::new(AtMost(inner, Arc::clone(&places))))
    ///     .add_service(GreeterServer::new(Polite))
    ///     .bind("mem://at-most")
    ///     .await?;
    /// # tokio::spawn(server.serve());
    /// # assert_eq!(GreeterClient::connect("mem://at-most").await?.greet().await?, "Good day");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn layer<L>(mut self, layer: L) -> Self
    where
        L: Fn(Arc<dyn Dispatch>) -> Arc<dyn Dispatch> + Send + Sync + 'static,
    {
        self.arounds.layer(layer);
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

    /// Connections at once, those that are being set up included. Default 16,384; more are refused.
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

    /// Completion queues per device, over which connections are spread; each has its own driver
    /// task. Default 1: handlers that finish at once then run on one core. 0: as many as the runtime that
    /// calls `bind` has workers. They are made as connections come, one for each, up to that number, and
    /// fewer where the device refuses more: on a NIC each locks a MiB for its completion queue.
    #[must_use]
    pub fn shards(mut self, count: usize) -> Self {
        self.config.shards = count;
        self
    }

    /// Time from the begin of a shutdown until clients are told to go away. Default 0.
    ///
    /// Meanwhile everything is served as before, new connections included; but handlers may ask
    /// ([`Context::is_draining`](crate::Context::is_draining)), so that a health check can send the
    /// balancers elsewhere first. Where balancers ask every few seconds, give them twice as long.
    #[must_use]
    pub fn drain_lead(mut self, lead: Duration) -> Self {
        self.config.drain_lead = lead;
        self
    }

    /// Time that calls in flight get when the server shuts down, after the
    /// [lead](Self::drain_lead). Default 10 s. Handlers that run on after it are dropped, and their
    /// calls end with [`Code::Unavailable`](crate::Code::Unavailable).
    ///
    /// Only calls hold a server up: clients that are connected and idle do not.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.config.grace = grace;
        self
    }

    /// Byte strings in a result of at least this many bytes are sent beside the reply's body: see
    /// [`ChannelBuilder::min_part_bytes`](crate::ChannelBuilder::min_part_bytes). Default 8,192.
    #[must_use]
    pub fn min_part_bytes(mut self, bytes: usize) -> Self {
        self.config.min_part_bytes = bytes;
        self
    }

    /// Longest metadata of a call that is taken, bytes. Default 8,192, at most 65,535; calls with more
    /// fail with [`Code::ResourceExhausted`](crate::Code::ResourceExhausted), and do not run.
    #[must_use]
    pub fn max_metadata_bytes(mut self, bytes: usize) -> Self {
        self.config.max_metadata_bytes = bytes;
        self
    }

    /// Memory for large messages of all connections, bytes. It covers requests until their handlers
    /// are done, replies until they have been sent, arenas (at most half of it), and streams that
    /// are not read. One connection uses at most half of it, unless a single message needs more.
    /// When it is used up, large calls fail with
    /// [`Code::ResourceExhausted`](crate::Code::ResourceExhausted), large requests before their
    /// handlers run; small calls go on.
    ///
    /// It counts messages, not the values decoded from them, which may take as much memory again.
    /// Default: a quarter of what is available to this process when the server is bound, by the
    /// machine, its control group and its address space limit.
    #[must_use]
    pub fn memory_budget(mut self, bytes: u64) -> Self {
        self.config.memory_budget = Some(bytes);
        self
    }

    /// As [`ChannelBuilder::faults`](crate::ChannelBuilder::faults), for the server's end.
    #[must_use]
    pub fn faults(mut self, plan: FaultPlan) -> Self {
        self.config.faults = Some(plan);
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

    /// Opens several addresses at once. Those at `rdma://` are left out, with a warning, where this
    /// process may not lock the memory for one connection, if there are others.
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
        let addresses = addresses.into_iter().map(|address| address.as_ref().parse()).collect();
        self.bind_parsed(addresses).await
    }

    /// Boxed, so that programs do not compile it again.
    fn bind_parsed(
        self,
        addresses: Result<Vec<Address>, AddressError>,
    ) -> BoxFuture<'static, Result<Server, ListenError>> {
        Box::pin(self.open(addresses))
    }

    async fn open(
        mut self,
        addresses: Result<Vec<Address>, AddressError>,
    ) -> Result<Server, ListenError> {
        self.config.link.validate().map_err(|error| ListenError::Config(error.to_string()))?;
        if self.config.shards == 0 {
            self.config.shards = Handle::current().metrics().num_workers();
        }
        #[cfg(feature = "macros")]
        let own_stats = self.builtins.add_to(&mut self.services);
        let router = router(&self.arounds, self.services).map_err(ListenError::Config)?;
        let link = &self.config.link;
        let registered = registered_bytes(link);
        let shards = self.config.shards;
        let in_all = |limits| server_bytes(link, 1, shards, limits);
        let lack = |address: &_| schemes::lacks_locked_memory(address, registered, &in_all);
        let mut opened = Vec::new();
        for address in addresses? {
            let listener = schemes::listen_locking(&address, registered, &in_all).await?;
            let listener = match &self.config.faults {
                Some(plan) => fault::listener(listener, plan.clone()),
                None => listener,
            };
            opened.push((address, listener));
        }
        // Where there is no device, or no such port, that is said: memory is the smaller matter.
        let listeners = with_memory(opened, lack)?;
        let phases = Arc::new(Phases::new());
        let acceptor = Arc::new(Acceptor::new(router, self.config, phases.watch()));
        #[cfg(feature = "macros")]
        let _ = own_stats.set(WeakStatsHandle(Arc::downgrade(&acceptor)));
        for listener in &listeners {
            tracing::info!(address = %listener.local_address(), "listening");
        }
        Ok(Server { listeners, acceptor, phases })
    }
}

/// What is opened at addresses for which this process may lock the memory: nothing is said to `lack`. The
/// others are closed again, with a warning.
///
/// # Errors
/// [`ListenError::Unavailable`]: there is no such address, but others.
fn with_memory<T>(
    opened: Vec<(Address, T)>,
    lack: impl Fn(&Address) -> Option<String>,
) -> Result<Vec<T>, ListenError> {
    let (mut served, mut left_out) = (Vec::new(), Vec::new());
    for (address, listener) in opened {
        match lack(&address) {
            None => served.push(listener),
            Some(reason) => left_out.push((address, reason)),
        }
    }
    match left_out.pop() {
        Some((_, reason)) if served.is_empty() => {
            Err(ListenError::Unavailable { scheme: "rdma", reason })
        }
        last => {
            for (address, reason) in left_out.into_iter().chain(last) {
                tracing::warn!(%address, "this address is left out, the others are served: {reason}");
            }
            Ok(served)
        }
    }
}

/// The methods of all services, with what stands around them.
fn router(arounds: &Arounds, services: Vec<Arc<dyn Dispatch>>) -> Result<Router, String> {
    let mut router = Router::default();
    let interceptors = arounds.outermost();
    for service in arounds.around(services)? {
        router.add(service, interceptors.as_ref())?;
    }
    Ok(router)
}

impl fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.services.iter().map(|it| it.descriptor().name).collect();
        f.debug_struct("ServerBuilder")
            .field("services", &names)
            .field("interceptors_and_layers", &self.arounds)
            .finish_non_exhaustive()
    }
}

/// A server whose addresses are open.
///
/// # Example
/// ```
/// # #[rpc_core::service] pub trait Greeter { async fn greet(&self) -> String; }
/// # struct Polite; impl Greeter for Polite { async fn greet(&self) -> String { "Good day".into() } }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use rpc_core::Server;
///
/// let server = Server::builder().add_service(GreeterServer::new(Polite)).bind("mem://server").await?;
/// let serving = tokio::spawn(server.serve_until(async { /* a signal */ }));
/// serving.await??; // calls in flight have had their grace
/// # Ok(()) }
/// ```
pub struct Server {
    listeners: Vec<Box<dyn Listener>>,
    acceptor: Arc<Acceptor>,
    phases: Arc<Phases>,
}

/// Shuts a server down, from anywhere.
///
/// # Example
/// ```
/// # #[rpc_core::service] pub trait Greeter { async fn greet(&self) -> String; }
/// # struct Polite; impl Greeter for Polite { async fn greet(&self) -> String { "Good day".into() } }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = rpc_core::Server::builder().add_service(GreeterServer::new(Polite)).bind("mem://handle").await?;
/// let handle = server.shutdown_handle();
/// let serving = tokio::spawn(server.serve());
/// handle.shutdown();
/// serving.await??;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct ShutdownHandle(Arc<Phases>);

impl ShutdownHandle {
    /// Starts an orderly shutdown. Handlers are told
    /// ([`Context::draining`](crate::Context::draining)); after
    /// [`drain_lead`](ServerBuilder::drain_lead) no new connections and calls are taken; calls in
    /// flight finish within [`grace`](ServerBuilder::grace), and their answers are delivered; then
    /// [`Server::serve`] returns. A client whose call came too late knows that it was not started,
    /// and can make it elsewhere.
    pub fn shutdown(&self) {
        self.0.advance(Phase::Draining);
    }
}

impl Server {
    /// Configures a server.
    #[must_use]
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// The bound addresses, with real ports, in the order of binding, without those that were
    /// [left out](ServerBuilder::bind_all).
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
        ShutdownHandle(Arc::clone(&self.phases))
    }

    /// What the server has done so far, and what it does now: a snapshot of its counts.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        self.acceptor.read_stats()
    }

    /// A handle to read the [`stats`](Self::stats) with while the server serves, and after that.
    #[must_use]
    pub fn stats_handle(&self) -> StatsHandle {
        StatsHandle(Arc::clone(&self.acceptor) as _)
    }

    /// Serves until shut down. Dropping the future ends all connections at once.
    ///
    /// # Errors
    /// [`ListenError`] when a listener dies: the others are then closed, and the connections get
    /// the end of a shutdown.
    pub async fn serve(self) -> Result<(), ListenError> {
        self.serving().await
    }

    /// Boxed, so that programs do not compile it again.
    fn serving(self) -> BoxFuture<'static, Result<(), ListenError>> {
        Box::pin(self.serve_all())
    }

    async fn serve_all(self) -> Result<(), ListenError> {
        let Self { listeners, acceptor, phases } = self;
        let _end = EndShards(Arc::clone(&acceptor));
        // The task ends with this future.
        let mut house = JoinSet::new();
        house.spawn(Arc::clone(&acceptor).keep_house());
        let mut accepting = JoinSet::new();
        let mut addresses = HashMap::new();
        for listener in listeners {
            let address = listener.local_address();
            let looping = Arc::clone(&acceptor).accept_loop(listener);
            addresses.insert(accepting.spawn(looping).id(), address);
        }
        // Without a listener, only the shutdown handle can end this.
        let mut died = tokio::select! {
            () = phases.watch().reached(Phase::Draining) => None,
            Some(ended) = accepting.join_next_with_id() => death(ended, &addresses),
        };
        phases.advance(Phase::Draining);
        let lead = acceptor.drain_lead();
        if !lead.is_zero() {
            tracing::info!(?lead, "draining: still serving");
            tokio::time::sleep(lead).await;
        }
        phases.advance(Phase::Closing);
        while let Some(ended) = accepting.join_next_with_id().await {
            died = died.or_else(|| death(ended, &addresses));
        }
        // All listeners are closed and no set-up is in progress, so no connection can be added.
        acceptor.drain().await;
        tracing::info!("shut down");
        died.map_or(Ok(()), Err)
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

/// Why an accept loop ended without having been stopped, with its address.
fn death(
    ended: Result<(task::Id, Option<ListenError>), JoinError>,
    addresses: &HashMap<task::Id, Address>,
) -> Option<ListenError> {
    let (id, reason) = match ended {
        Ok((_, None)) => return None,
        Ok((_, Some(error @ (ListenError::Failed { .. } | ListenError::InUse { .. })))) => {
            return Some(error);
        }
        Ok((id, Some(error))) => (id, error.to_string()),
        Err(error) => (error.id(), error.to_string()),
    };
    let address = addresses.get(&id)?.clone();
    Some(ListenError::Failed { address, reason })
}

/// Drop guard: ends every connection when the future of `serve` ends.
struct EndShards(Arc<Acceptor>);

impl Drop for EndShards {
    fn drop(&mut self) {
        for shard in self.0.end() {
            shard.shutdown_now();
        }
    }
}
