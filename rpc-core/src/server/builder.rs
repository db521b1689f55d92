//! The configuration of a server, from which its addresses are opened.

mod callers;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use rpc_transport::address::{Address, AddressError};
use rpc_transport::connect::schemes;
use rpc_transport::device::connection_error::ListenError;
use rpc_transport::device::fault::{self, FaultPlan};
use rpc_transport::engine::locked_need::{registered_bytes, server_bytes};
use rpc_transport::engine::spin::PollMode;
use rpc_transport::memory::process::OfProcess;
use rpc_transport::protocol::config::LinkConfig;
use tokio::runtime::Handle;

use super::Server;
use super::acceptor::Acceptor;
use super::adaptive_limit::{AdaptiveLimit, Overload, Shedding};
use super::config::Config;
use super::interceptor_stack::InterceptorStack;
use super::registration::Register;
use super::router::Router;
#[cfg(feature = "macros")]
use crate::builtin::{Builtins, health::HealthReporter};
use crate::interceptor::ServerInterceptor;
use crate::runtime::phase::Phases;
use crate::service::Dispatch;
#[cfg(feature = "macros")]
use crate::stats::handle::WeakStatsHandle;

/// Configuration of a [`Server`].
///
/// # Example
/// ```
/// # #[rpc_core::service] pub trait Greeter { async fn greet(&self) -> String; }
/// # struct Polite;
/// # impl Greeter for Polite {
/// #     async fn greet(&self) -> String { "Good day".into() }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), rpc_core::ListenError> {
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
    pub(super) services: Vec<Arc<dyn Dispatch>>,
    /// Names of services and methods whose calls are tasks from the start.
    pub(super) spawned: Vec<String>,
    #[cfg(feature = "macros")]
    pub(super) builtins: Builtins,
    pub(super) interceptors: InterceptorStack,
    pub(super) config: Config,
    /// Where the server announces itself.
    pub(super) registries: Vec<Arc<dyn Register>>,
}

impl ServerBuilder {
    /// Adds a service: a generated `XServer`, or anything that dispatches.
    #[must_use]
    pub fn add_service(mut self, service: impl Dispatch) -> Self {
        self.services.push(Arc::new(service));
        self
    }

    /// Runs each call of a service, or of one of its methods, as its own task from the start, as
    /// `#[rpc(spawn)]` does for a method of a trait. Use it for an implementation that computes for
    /// long between two awaits, or blocks in [`block_in_place`](tokio::task::block_in_place), if
    /// other implementations of the trait do not. Without it, all connections of its driver wait
    /// meanwhile. `name` is the name of the service, or `Service.method`, as on the wire. An
    /// unknown name is an error of [`bind`](Self::bind).
    ///
    /// ```
    /// # #[rpc_core::service] pub trait Catalog { async fn get(&self, id: u64) -> Option<String>; }
    /// # struct Stored;
    /// # impl Catalog for Stored {
    /// #     async fn get(&self, _: u64) -> Option<String> { None }
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), rpc_core::ListenError> {
    /// let server = rpc_core::Server::builder()
    ///     .add_service(CatalogServer::new(Stored))
    ///     .spawn_calls_to("Catalog") // or "Catalog.get"
    ///     .bind("mem://catalog")
    ///     .await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn spawn_calls_to(mut self, name: impl Into<String>) -> Self {
        self.spawned.push(name.into());
        self
    }

    /// Adds the service `rpc.Health`: balancers ask it whether to send calls to the server and to
    /// each of its services. `reporter` sets the answers. See [`health`](crate::health).
    #[cfg(feature = "macros")]
    #[must_use]
    pub fn health(mut self, reporter: &HealthReporter) -> Self {
        self.builtins.health = Some(reporter.clone());
        self
    }

    /// Like [`health`](Self::health), but outside of all interceptors and layers, so that an
    /// orchestrator's probes and balancers need no token. Everyone who can reach the server can
    /// then query and watch the health of each service whose name they know.
    #[cfg(feature = "macros")]
    #[must_use]
    pub fn open_health(mut self, reporter: &HealthReporter) -> Self {
        self.builtins.is_health_open = true;
        self.health(reporter)
    }

    /// Adds the services `rpc.Reflect` and `rpc.Stats`. Tools such as `rpcctl` use them to list,
    /// describe and call the server's methods, and to show its statistics. Every client that may
    /// call the server may call them, too. See [`reflect`](crate::reflect).
    #[cfg(feature = "macros")]
    #[must_use]
    pub fn reflection(mut self) -> Self {
        self.builtins.reflection = true;
        self
    }

    /// Adds an interceptor, which runs before and after each call of every service, including
    /// services that are added later. The first one that was added is the outermost. The module
    /// [`interceptor`](crate::interceptor) has an example.
    #[must_use]
    pub fn interceptor(mut self, interceptor: impl ServerInterceptor) -> Self {
        self.interceptors.intercept(Arc::new(interceptor));
        self
    }

    /// Adds a layer: a [`Dispatch`] around each service, for middleware that awaits something or
    /// sees replies. It runs inside of the interceptors and layers that were added before it.
    ///
    /// ```
    /// # #[rpc_core::service] pub trait Greeter { async fn greet(&self) -> String; }
    /// # struct Polite;
    /// # impl Greeter for Polite {
    /// #     async fn greet(&self) -> String { "Good day".into() }
    /// # }
    /// use rpc_core::service::{Dispatch, Handler, Request, ServiceDescriptor};
    /// use std::sync::Arc;
    /// use tokio::sync::Semaphore;
    ///
    /// /// Limits the number of calls at once; others wait.
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
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
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
        self.interceptors.layer(layer);
        self
    }

    /// Limits the calls in flight of the whole server to what it can work on, and refuses the
    /// others at once. Default: no limit.
    ///
    /// An overloaded server without a limit answers ever later, until no answer comes in time. With
    /// it, the time of a call stays near that of an idle server: at twice the load that the server
    /// can carry, it still does nine tenths of what it can.
    ///
    /// The limit needs no number: it follows the times of the calls. It rises while calls reach it
    /// and take hardly longer than the fastest of the last seconds, and falls when they wait for
    /// each other. [`AdaptiveLimit`] bounds it.
    ///
    /// * A refused call ends with [`ResourceExhausted`](crate::Code::ResourceExhausted), is
    ///   retryable, and says after how long. Balanced channels send it to another server.
    /// * Under load, calls of [`Priority::Sheddable`](super::Priority::Sheddable) are refused
    ///   first, those of [`Priority::Critical`](super::Priority::Critical) last.
    /// * Methods with streams and the framework's own services (`rpc.*`) do not count.
    /// * [`ServerStats::overload`](crate::stats::ServerStats::overload) shows the limit.
    ///
    /// ```
    /// # #[rpc_core::service] pub trait Greeter { async fn greet(&self) -> String; }
    /// # struct Polite;
    /// # impl Greeter for Polite { async fn greet(&self) -> String { "Good day".into() } }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use rpc_core::Server;
    /// use rpc_core::server::{AdaptiveLimit, Priority};
    ///
    /// let server = Server::builder()
    ///     .adaptive_limit(AdaptiveLimit::default().at_least(8))
    ///     .add_service(GreeterServer::new(Polite))
    ///     .bind("mem://adaptive")
    ///     .await?;
    /// # tokio::spawn(server.serve());
    /// let greeter = GreeterClient::connect("mem://adaptive").await?;
    /// greeter.greet().metadata(Priority::KEY, Priority::Critical.as_str()).await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn adaptive_limit(mut self, limit: AdaptiveLimit) -> Self {
        self.config.adaptive_limit = Some(limit);
        self
    }

    /// Credits, buffers, message size and keep-alive of this end, per connection.
    #[must_use]
    pub fn link(mut self, link: LinkConfig) -> Self {
        self.config.link = link;
        self
    }

    /// Calls of one connection that run at once. Default 1,024, at most 16,777,216; further calls
    /// wait at the client.
    #[must_use]
    pub fn max_calls_per_connection(mut self, count: u32) -> Self {
        self.config.limits.max_incoming_calls = count;
        self
    }

    /// Calls from this server to one of its clients
    /// ([`ConnectionHandle::channel`](crate::client::ConnectionHandle::channel)) that may be in
    /// flight at once; as many again may wait. Default 65,536; further calls fail at once with a
    /// retryable [`ResourceExhausted`](crate::Code::ResourceExhausted). Each call takes about 600
    /// bytes until it has ended, so set a lower limit if clients decide how often the server calls
    /// them back. If the limit is lower than the number of calls that the client runs at once
    /// (1,024 by default), calls that a handler makes to its own caller fail instead of waiting.
    #[must_use]
    pub fn max_calls_to_client(mut self, count: u32) -> Self {
        self.config.limits.max_outgoing_calls = count;
        self.config.limits.max_waiting_calls = count;
        self
    }

    /// Connections at once, those that are being set up included. Default 16,384; more are refused.
    #[must_use]
    pub fn max_connections(mut self, count: usize) -> Self {
        self.config.max_connections = count;
        self
    }

    /// Time without calls and streams of either end after which a connection is closed. That frees
    /// the memory of idle clients: receive buffers that grew under load, and on a NIC all memory
    /// that the connection has locked. Default `None`: never. At least 1 ms; a connection is closed
    /// up to a quarter of the limit late.
    ///
    /// No call is lost. The client receives a go-away first, finishes its calls, and connects again
    /// with its next call. A channel without [`reconnect`](crate::ChannelBuilder::reconnect) ends
    /// instead. Until a client has reconnected, the server cannot call it.
    #[must_use]
    pub fn max_connection_idle(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.config.max_connection_idle = limit.into();
        self
    }

    /// Time after which a connection ends, a tenth more or less at random. Default `None`: never.
    /// At least 1 ms; hours or minutes suit most.
    ///
    /// No call is lost by it, however short it is. The client gets a go-away, finishes what it has
    /// begun, however long that takes, and connects again with its next call: perhaps to another
    /// server, so that load spreads to servers that are new also where clients know one name only.
    /// One without [`reconnect`](crate::ChannelBuilder::reconnect) has ended.
    #[must_use]
    pub fn max_connection_age(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.config.max_connection_age = limit.into();
        self
    }

    /// How the drivers wait. Default [`PollMode::Adaptive`].
    #[must_use]
    pub fn poll_mode(mut self, mode: PollMode) -> Self {
        self.config.poll_mode = mode;
        self
    }

    /// Number of shards per device. A shard has one completion queue and one driver task, and
    /// connections are spread over the shards. Default 1: handlers that finish at once then run on
    /// one core. 0: as many as the runtime that calls `bind` has workers. Each new connection makes
    /// a new shard until there are that many, or until the device refuses: on a NIC each locks a
    /// MiB for its completion queue.
    #[must_use]
    pub fn shards(mut self, count: usize) -> Self {
        self.config.shards = count;
        self
    }

    /// Time from the start of a shutdown until go-away is sent to clients. Default 0.
    ///
    /// During this time the server works as before and accepts new connections, but handlers can
    /// see that it is shutting down ([`Context::is_draining`](crate::Context::is_draining)), so
    /// that a health check can divert balancers first. Use twice the interval in which balancers
    /// check.
    #[must_use]
    pub fn drain_lead(mut self, lead: Duration) -> Self {
        self.config.drain_lead = lead;
        self
    }

    /// Time that calls in flight have to finish when the server shuts down, after the
    /// [lead](Self::drain_lead). Default 10 s. Handlers that run longer are dropped, and their
    /// calls end with [`Code::Unavailable`](crate::Code::Unavailable).
    ///
    /// Only calls delay a shutdown; idle clients do not.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.config.grace = grace;
        self
    }

    /// Minimum length of a byte string in a result that is sent apart from the reply's body, bytes:
    /// see [`ChannelBuilder::min_part_bytes`](crate::ChannelBuilder::min_part_bytes). Default
    /// 8,192.
    #[must_use]
    pub fn min_part_bytes(mut self, bytes: usize) -> Self {
        self.config.min_part_bytes = bytes;
        self
    }

    /// Limit on the metadata of a call, bytes. Default 8,192, at most 65,535; calls with more fail
    /// with [`Code::ResourceExhausted`](crate::Code::ResourceExhausted), and do not run.
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

    /// Announces the server in a registry while it serves, so that channels find it: see
    /// [`Register`]. When the server shuts down, it is announced as draining first; after
    /// [`drain_lead`](Self::drain_lead) it is removed, and then its clients get go-away. Several
    /// calls add several registries.
    #[must_use]
    pub fn register(mut self, registry: impl Register) -> Self {
        self.registries.push(Arc::new(registry));
        self
    }

    /// Like [`ChannelBuilder::faults`](crate::ChannelBuilder::faults), for the server's end.
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

    /// Opens several addresses at once. If this process may not lock the memory of even one
    /// connection, `rdma://` addresses are left out with a warning, unless there are no others.
    ///
    /// # Errors
    /// [`ListenError`] of the first address that fails; then none is open.
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
        let checked = self.config.link.validate().and_then(|()| self.config.validate());
        checked.map_err(|error| ListenError::Config(error.to_string()))?;
        let addresses = addresses?;
        self.config.check_secured(&addresses).map_err(ListenError::Config)?;
        if self.config.shards == 0 {
            self.config.shards = Handle::current().metrics().num_workers();
        }
        #[cfg_attr(not(feature = "macros"), expect(unused_mut, reason = "nothing is added"))]
        let mut open = Vec::new();
        #[cfg(feature = "macros")]
        let own_stats = self.builtins.add_to(&mut self.services, &mut open);
        let overload = self.config.adaptive_limit.map(Overload::new);
        if let Some(overload) = &overload {
            self.interceptors.put_first(Arc::new(Shedding(Arc::clone(overload))));
        }
        let router = router(&self.interceptors, self.services, open, &self.spawned)
            .map_err(ListenError::Config)?
            .with_rules(self.config.allow.as_ref());
        let link = &self.config.link;
        let registered = registered_bytes(link);
        let shards = self.config.shards;
        let in_all = |limits| server_bytes(link, 1, shards, limits);
        let lack = |address: &_| schemes::lacks_locked_memory(address, registered, &in_all);
        let mut opened = Vec::new();
        for address in addresses {
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
        let acceptor = Arc::new(Acceptor::new(router, self.config, overload, phases.watch()));
        #[cfg(feature = "macros")]
        let _ = own_stats.set(WeakStatsHandle(Arc::downgrade(&acceptor) as _));
        let addresses: Vec<_> = listeners.iter().map(|it| it.local_address()).collect();
        for registry in &self.registries {
            let refused = |reason| ListenError::Config(format!("{}: {reason}", registry.name()));
            registry.check(&addresses).map_err(refused)?;
        }
        for listener in &listeners {
            tracing::info!(address = %listener.local_address(), "listening");
        }
        let listeners = OfProcess::new(listeners);
        let (acceptor, phases) = (OfProcess::new(acceptor), OfProcess::new(phases));
        Ok(Server { listeners, acceptor, phases, registries: self.registries })
    }
}

/// What is opened at addresses for which this process may lock the memory: nothing is said to
/// `lack`. The others are closed again, with a warning.
///
/// # Errors
/// [`ListenError::Unavailable`]: there is no such address, but others.
pub(super) fn with_memory<T>(
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
                tracing::warn!(%address, "cannot listen at this address, serving the others: \
                                          {reason}");
            }
            Ok(served)
        }
    }
}

/// The methods of all services. Those in `open` have no interceptors and layers.
pub(super) fn router(
    stack: &InterceptorStack,
    services: Vec<Arc<dyn Dispatch>>,
    open: Vec<Arc<dyn Dispatch>>,
    spawned: &[String],
) -> Result<Router, String> {
    let mut router = Router::default();
    let interceptors = stack.outermost();
    for service in stack.wrap(services)? {
        router.add(service, interceptors.as_ref())?;
    }
    for service in open {
        router.add(service, None)?;
    }
    for name in spawned {
        router.spawn_calls_to(name)?;
    }
    Ok(router)
}

impl fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.services.iter().map(|it| it.descriptor().name).collect();
        f.debug_struct("ServerBuilder")
            .field("services", &names)
            .field("interceptors_and_layers", &self.interceptors)
            .finish_non_exhaustive()
    }
}
