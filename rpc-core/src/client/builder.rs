//! The options of a channel.

mod identity;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use rpc_transport::address::Address;
use rpc_transport::device::connection_error::{ConnectError, ListenError};
use rpc_transport::device::fault::FaultPlan;
use rpc_transport::engine::spin::PollMode;
use rpc_transport::memory::process::Process;
use rpc_transport::protocol::config::{LinkConfig, WhenFull};

use super::Channel;
use super::balancer::Balancer;
use super::connection::{ConnectOptions, WatchHealth};
use super::counts::ChannelCounts;
#[cfg(feature = "macros")]
use super::health_watch::HealthWatch;
use super::load::Rules;
use super::presented::Presented;
use super::resolve::Resolve;
use super::shared::{Hedges, Retries, ServerTask, Shared, Targets};
use super::subchannel::{Demand, Subchannel};
use crate::channel::backoff::Backoff;
use crate::channel::balancing::BalancingPolicy;
use crate::channel::hedging::HedgingPolicy;
use crate::channel::retry::RetryPolicy;
use crate::codec::{Codec, DEFAULT_MIN_PART_BYTES};
use crate::interceptor::ClientInterceptor;
use crate::interceptor::client::Around;
use crate::metadata::{DEFAULT_MAX_BYTES, check_limit};
use crate::secured::Secured;
use crate::server::peer_services::PeerServices;
use crate::server::{Server, ServerBuilder};
use crate::service::Dispatch;
use crate::session::{SessionLimits, check_least};

/// Configuration of a [`Channel`].
///
/// # Example
/// ```no_run
/// # async fn connect() -> Result<(), rpc_core::ConnectError> {
/// use rpc_core::{Channel, LinkConfig};
/// use std::time::Duration;
///
/// let channel = Channel::builder()
///     .default_timeout(Some(Duration::from_secs(2)))
///     .connect_timeout(Duration::from_secs(5))
///     .link(LinkConfig::default().max_message_bytes(256 << 20))
///     .connect("auto://10.0.0.7:7471")
///     .await?;
/// # drop(channel); Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct ChannelBuilder {
    codec: Codec,
    link: LinkConfig,
    limits: SessionLimits,
    poll_mode: PollMode,
    connect_timeout: Duration,
    default_timeout: Option<Duration>,
    min_part_bytes: usize,
    wait_for_ready: bool,
    when_full: Option<WhenFull>,
    reconnect: Option<Backoff>,
    max_connection_idle: Option<Duration>,
    retry: Option<RetryPolicy>,
    faults: Option<FaultPlan>,
    hedging: Option<HedgingPolicy>,
    balancing: BalancingPolicy,
    around: Around,
    max_metadata_bytes: usize,
    bad_metadata: Option<String>,
    served: Option<ServerBuilder>,
    presented: Option<Presented>,
    allows_clear_credentials: bool,
    /// Or what is wrong with the options of TLS.
    secured: Option<Result<Secured, String>>,
}

impl Default for ChannelBuilder {
    fn default() -> Self {
        Self {
            codec: Codec::default(),
            link: LinkConfig::default(),
            limits: SessionLimits { max_incoming_calls: 0, ..SessionLimits::default() },
            poll_mode: PollMode::default(),
            connect_timeout: Duration::from_secs(10),
            default_timeout: None,
            min_part_bytes: DEFAULT_MIN_PART_BYTES,
            wait_for_ready: false,
            when_full: None,
            reconnect: Some(Backoff::new()),
            max_connection_idle: None,
            retry: Some(RetryPolicy::new()),
            faults: None,
            hedging: None,
            balancing: BalancingPolicy::new(),
            around: Around::default(),
            max_metadata_bytes: DEFAULT_MAX_BYTES,
            bad_metadata: None,
            served: None,
            presented: None,
            allows_clear_credentials: false,
            secured: None,
        }
    }
}

impl ChannelBuilder {
    /// Codec of arguments and results. Default [`Codec::Bincode`]; a server accepts every codec
    /// that it was compiled with.
    #[must_use]
    pub fn codec(mut self, codec: Codec) -> Self {
        self.codec = codec;
        self
    }

    /// Credits, buffers, message size and keep-alive of this end.
    #[must_use]
    pub fn link(mut self, link: LinkConfig) -> Self {
        self.link = link;
        self
    }

    /// Calls that may be in flight at once on a connection of the channel. Default 65,536, at most
    /// 16,777,216; the server may allow [fewer]. Further ones wait or fail:
    /// [`ChannelBuilder::when_full`].
    ///
    /// [fewer]: crate::ServerBuilder::max_calls_per_connection
    #[must_use]
    pub fn max_calls(mut self, count: u32) -> Self {
        self.limits.max_outgoing_calls = count;
        self
    }

    /// Calls beyond [`max_calls`](ChannelBuilder::max_calls) that may wait on a connection until
    /// others have ended. Default 65,536, at most 16,777,216; further calls fail at once with a
    /// retryable [`ResourceExhausted`](crate::Code::ResourceExhausted). If the server allows fewer
    /// calls in flight than `max_calls`, the difference may wait as well. While the channel
    /// connects, as many calls may wait as both limits together allow.
    #[must_use]
    pub fn max_waiting_calls(mut self, count: u32) -> Self {
        self.limits.max_waiting_calls = count;
        self
    }

    /// What a call does if its connection is full: the limit on calls in flight is reached, or
    /// [`LinkConfig::queued_bytes`] wait to be sent. With [`WhenFull::Wait`] the call waits for its
    /// turn, in order of arrival, until its deadline. If the connection is lost, waiting calls move
    /// to the next one, except calls with streams. With [`WhenFull::Refuse`] the call fails with a
    /// retryable [`ResourceExhausted`](crate::Code::ResourceExhausted). Default: the channel's
    /// [`LinkConfig::when_full`], which is to wait. [`Call::when_full`](crate::Call::when_full)
    /// overrides it for one call.
    #[must_use]
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = Some(when_full);
        self
    }

    /// How the connection's driver waits. Default [`PollMode::Adaptive`].
    #[must_use]
    pub fn poll_mode(mut self, mode: PollMode) -> Self {
        self.poll_mode = mode;
        self
    }

    /// Limit on the time of an attempt to connect, all steps included. Default 10 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Timeout of calls that set none. [`Call::timeout`](crate::Call::timeout) and
    /// [`Call::no_timeout`](crate::Call::no_timeout) override it for one call. Default `None`: no
    /// limit. The deadline that a call inherits from a handler always holds.
    ///
    /// For a call with streams, this limits only the time until the server has taken the call:
    /// until it has accepted a call that returns a stream, or received the request of a call that
    /// only sends one. After that the call may take any time. If such a call inherits a deadline,
    /// that deadline alone holds, for the whole call.
    #[must_use]
    pub fn default_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.default_timeout = timeout;
        self
    }

    /// Minimum length of a byte string that is sent apart from the request, bytes. A longer
    /// [`Bulk`](crate::Bulk), `Vec<u8>`, `&[u8]` or [`Bytes`](bytes::Bytes) in an argument is not
    /// copied into the request's body, but written into memory that the server has advertised.
    /// Default 8,192: below that, a copy is cheaper than the bookkeeping. The server gets the same
    /// value either way.
    #[must_use]
    pub fn min_part_bytes(mut self, bytes: usize) -> Self {
        self.min_part_bytes = bytes;
        self
    }

    /// Whether calls wait until their deadline while there is no connection. Default false: when an
    /// attempt to connect fails, they fail with a [retryable](crate::Status::is_retryable)
    /// [`Unavailable`](crate::Code::Unavailable), and so do calls made before the next attempt is
    /// due. Either way calls wait for an attempt that is in progress.
    /// [`Call::wait_for_ready`](crate::Call::wait_for_ready) overrides it for one call.
    #[must_use]
    pub fn wait_for_ready(mut self, wait: bool) -> Self {
        self.wait_for_ready = wait;
        self
    }

    /// How calls of idempotent methods are retried if they fail after they were sent. Default
    /// [`RetryPolicy::new`]; `None`: they are not retried.
    #[must_use]
    pub fn retry(mut self, policy: impl Into<Option<RetryPolicy>>) -> Self {
        self.retry = policy.into();
        self
    }

    /// When a call of an idempotent method gets a second attempt while its first one runs. Default
    /// `None`: never. [`Call::hedging`](crate::Call::hedging) overrides it for one call.
    #[must_use]
    pub fn hedging(mut self, policy: impl Into<Option<HedgingPolicy>>) -> Self {
        self.hedging = policy.into();
        self
    }

    /// How a channel to several servers judges them by the outcomes of its calls. Default
    /// [`BalancingPolicy::new`]. Without effect on a channel to one.
    #[must_use]
    pub fn balancing(mut self, policy: BalancingPolicy) -> Self {
        self.balancing = policy;
        self
    }

    /// How long to wait after a failed attempt to connect. Default [`Backoff::new`]. `None`: the
    /// channel ends with its first connection, or with the first attempt if that fails.
    #[must_use]
    pub fn reconnect(mut self, backoff: impl Into<Option<Backoff>>) -> Self {
        self.reconnect = backoff.into();
        self
    }

    /// Time without calls and streams of either end after which the channel closes its connection,
    /// so that both ends free its memory. The next call connects again. Default `None`: never. At
    /// least 1 ms; a connection is closed up to a quarter of the limit late. This has no effect on
    /// a channel that does not [`reconnect`](ChannelBuilder::reconnect).
    ///
    /// A channel to several servers keeps a connection to each while it is in use: one that nobody
    /// needed is closed and made again, and all are let go once there are no calls.
    ///
    /// While it has no connection, a server cannot call what the channel
    /// [serves](ChannelBuilder::serve).
    #[must_use]
    pub fn max_connection_idle(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.max_connection_idle = limit.into();
        self
    }

    /// Adds an interceptor, which runs before and after each call of the channel. The first one
    /// that was added is the outermost. See [`interceptor`](crate::interceptor).
    #[must_use]
    pub fn interceptor(mut self, interceptor: impl ClientInterceptor) -> Self {
        self.around.intercept(Arc::new(interceptor));
        self
    }

    /// Adds metadata to each call of the channel that has none of that name. Invalid metadata is an
    /// error when the channel connects.
    ///
    /// ```
    /// # async fn connect() -> Result<(), rpc_core::ConnectError> {
    /// # use rpc_core::Channel;
    /// let channel = Channel::builder().metadata("token", "s3cret")
    ///     .connect("auto://10.0.0.7:7471").await?;
    /// # drop(channel); Ok(()) }
    /// ```
    #[must_use]
    pub fn metadata(mut self, name: &str, value: impl Into<Bytes>) -> Self {
        if let Err(error) = self.around.metadata.insert(name, value) {
            self.bad_metadata = Some(format!("metadata {name:?} of the channel: {error}"));
        }
        self
    }

    /// Limit on the metadata of a call, bytes. Default 8,192, at most 65,535; a call with more
    /// fails with [`InvalidArgument`](crate::Code::InvalidArgument), and is not sent. Servers have
    /// their own limit
    /// ([`ServerBuilder::max_metadata_bytes`](crate::ServerBuilder::max_metadata_bytes)).
    #[must_use]
    pub fn max_metadata_bytes(mut self, bytes: usize) -> Self {
        self.max_metadata_bytes = bytes;
        self
    }

    /// Serves a service on all connections of the channel, so that the server's handlers can call
    /// it ([`ConnectionHandle::channel`](crate::client::ConnectionHandle::channel)). Several calls
    /// add several services. The service must not hold the channel, or neither is ever dropped; its
    /// handlers call back through [`Context::connection`](crate::Context::connection).
    ///
    /// ```
    /// use rpc_core::{Channel, Context, Server};
    ///
    /// #[rpc_core::service]
    /// pub trait Work { async fn convert(&self, file: &str) -> u32; }
    /// #[rpc_core::service]
    /// pub trait Progress { async fn percent(&self, done: u32) -> bool; }
    ///
    /// struct Worker;
    /// impl Work for Worker {
    ///     async fn convert(&self, _file: &str) -> u32 {
    ///         let caller = Context::current().connection().expect("in a handler");
    ///         let progress = ProgressClient::new(caller.channel());
    ///         let goes_on = progress.percent(50).await.unwrap_or(false);
    ///         if goes_on { 100 } else { 50 }
    ///     }
    /// }
    /// struct Shown;
    /// impl Progress for Shown {
    ///     async fn percent(&self, done: u32) -> bool { done < 100 }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = Server::builder().add_service(WorkServer::new(Worker))
    /// #     .bind("mem://both-ways").await?;
    /// # tokio::spawn(server.serve());
    /// let channel = Channel::builder().serve(ProgressServer::new(Shown))
    ///     .connect("mem://both-ways").await?;
    /// assert_eq!(WorkClient::new(channel).convert("a.png").await?, 100);
    /// # Ok(()) }
    /// ```
    ///
    /// A channel without services takes no calls: calls from its server fail with
    /// [`Unimplemented`](crate::Code::Unimplemented).
    #[must_use]
    pub fn serve(self, service: impl Dispatch) -> Self {
        let served = self.served.clone().unwrap_or_default();
        self.serve_with(served.add_service(service))
    }

    /// Serves what a server with this configuration would serve, and nothing that was set before.
    /// From the configuration, the channel takes the services, interceptors, layers,
    /// [`max_calls_per_connection`](ServerBuilder::max_calls_per_connection),
    /// [`max_metadata_bytes`](ServerBuilder::max_metadata_bytes) and
    /// [`memory_budget`](ServerBuilder::memory_budget), which then also covers the replies to the
    /// channel's own calls. It ignores the rest.
    #[must_use]
    pub fn serve_with(mut self, services: ServerBuilder) -> Self {
        self.served = Some(services);
        self
    }

    /// For tests: injects the faults of the plan into this end's device, such as late completions
    /// or failing queue pairs, for any scheme. Each further connection to an end point uses another
    /// seed. Default: none.
    #[must_use]
    pub fn faults(mut self, plan: FaultPlan) -> Self {
        self.faults = Some(plan);
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// [`ConnectError`] of the first attempt, which is the only one.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time enabled.
    pub async fn connect(self, address: impl AsRef<str>) -> Result<Channel, ConnectError> {
        self.connect_to(address.as_ref().parse()?).await
    }

    /// Boxed, so that programs do not compile it again.
    fn connect_to(self, target: Address) -> BoxFuture<'static, Result<Channel, ConnectError>> {
        Box::pin(async move {
            let channel = self.lazy(target)?;
            if let Targets::One(subchannel) = &channel.shared.targets {
                subchannel.connect_now().await?;
            }
            Ok(channel)
        })
    }

    /// A channel to all servers that `resolver` names, which connects with its first call. Each
    /// call picks two connected servers and goes to the better one, by calls in flight and recent
    /// latency. If a server is lost, only the calls that cannot be repeated elsewhere fail.
    ///
    /// ```
    /// # #[rpc_core::service] pub trait Greeter { async fn greet(&self) -> String; }
    /// # struct Polite;
    /// # impl Greeter for Polite {
    /// #     async fn greet(&self) -> String { "Good day".into() }
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = rpc_core::Server::builder().add_service(GreeterServer::new(Polite))
    /// #     .bind("mem://balanced-b").await?;
    /// # tokio::spawn(server.serve());
    /// use rpc_core::Channel;
    /// use rpc_core::client::resolve::{Dns, StaticList};
    ///
    /// let servers = StaticList::new(["mem://balanced-a", "mem://balanced-b"])?;
    /// let greeter = GreeterClient::new(Channel::builder().connect_balanced(servers)?);
    /// assert_eq!(greeter.greet().await?, "Good day"); // there is no server at the first
    ///
    /// let by_name = Channel::builder()
    ///     .connect_balanced(Dns::new("auto://greeters.example:7471")?)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ConnectError::Config`].
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time enabled.
    pub fn connect_balanced(mut self, resolver: impl Resolve) -> Result<Channel, ConnectError> {
        self.expect_names_of(&resolver)?;
        self.channel(true, |options, reconnect, demand| {
            Targets::Several(Balancer::new(Arc::new(resolver), options, reconnect, demand))
        })
    }

    /// A channel to a server of its own, in this process: see [`Channel::to`].
    ///
    /// # Errors
    /// [`ConnectError::Config`].
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time enabled.
    pub async fn to(self, service: impl Dispatch) -> Result<Channel, ConnectError> {
        self.connect_to_services(Server::builder().add_service(service)).await
    }

    /// Boxed, so that programs do not compile it again.
    fn connect_to_services(
        self,
        services: ServerBuilder,
    ) -> BoxFuture<'static, Result<Channel, ConnectError>> {
        Box::pin(async move {
            let server = services
                .poll_mode(self.poll_mode)
                .max_metadata_bytes(self.max_metadata_bytes)
                .link(self.link.clone());
            let config = |error: ListenError| ConnectError::Config(error.to_string());
            let server = server.bind("mem://").await.map_err(config)?;
            let address = server.local_address().to_string();
            let task = ServerTask(tokio::spawn(server.serve()).abort_handle());
            let mut channel = self.connect(address).await?;
            if let Some(shared) = Arc::get_mut(&mut channel.shared) {
                shared.server = Some(task);
            }
            Ok(channel)
        })
    }

    /// A channel that connects with its first call. The server may come up later:
    ///
    /// ```
    /// # #[rpc_core::service] pub trait Greeter { async fn greet(&self) -> String; }
    /// # struct Polite;
    /// # impl Greeter for Polite {
    /// #     async fn greet(&self) -> String { "Good day".into() }
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use rpc_core::{Channel, Server};
    ///
    /// let channel = Channel::builder().wait_for_ready(true).connect_lazy("mem://lazy")?;
    /// let greeter = GreeterClient::new(channel);
    /// let greeting = greeter.greet().start(); // waits for a server
    /// let server = Server::builder().add_service(GreeterServer::new(Polite))
    ///     .bind("mem://lazy").await?;
    /// tokio::spawn(server.serve());
    /// assert_eq!(greeting.await?, "Good day");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ConnectError::Address`] and [`ConnectError::Config`], which are found without connecting.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time enabled.
    pub fn connect_lazy(self, address: impl AsRef<str>) -> Result<Channel, ConnectError> {
        self.lazy(address.as_ref().parse()?)
    }

    fn lazy(self, target: Address) -> Result<Channel, ConnectError> {
        if let Some(Ok(secured)) = &self.secured {
            secured.check(&target).map_err(ConnectError::Config)?;
        }
        self.channel(false, |options, reconnect, demand| {
            Targets::One(Subchannel::new(target, options, reconnect, demand))
        })
    }

    fn channel(
        self,
        is_one_of_several: bool,
        targets: impl FnOnce(Arc<ConnectOptions>, Option<Backoff>, Arc<Demand>) -> Targets,
    ) -> Result<Channel, ConnectError> {
        let checked = self.link.validate().and_then(|()| self.limits.validate());
        let checked = checked.and_then(|()| check_limit(self.max_metadata_bytes));
        let checked =
            checked.and_then(|()| check_least("max_connection_idle", self.max_connection_idle));
        checked.map_err(|error| ConnectError::Config(error.to_string()))?;
        if self.codec == Codec::MsgPack {
            let text = "msgpack is for the services and methods that ask for it: \
                        `#[service(codec = \"msgpack\")]`";
            return Err(ConnectError::Config(text.to_owned()));
        }
        if !self.codec.is_compiled_in() {
            let text = format!("codec {} is not compiled in", self.codec.name());
            return Err(ConnectError::Config(text));
        }
        if let Some(text) = self.bad_metadata {
            return Err(ConnectError::Config(text));
        }
        let secured = self.secured.transpose().map_err(ConnectError::Config)?;
        let checked = secured.as_ref().map_or(Ok(()), |secured| secured.check_link(&self.link));
        checked.map_err(|error| ConnectError::Config(error.to_string()))?;
        let when_full = self.when_full.unwrap_or(self.link.queue_limit().when_full);
        let served = self.served.as_ref().map(PeerServices::new).transpose();
        let served = served.map_err(ConnectError::Config)?.map(Arc::new);
        let counts = Arc::new(ChannelCounts {
            served: served.as_ref().map(|served| Arc::clone(&served.methods)),
            ..ChannelCounts::default()
        });
        let max_incoming_calls = served.as_ref().map_or(0, |served| served.max_calls);
        let options = Arc::new(ConnectOptions {
            codec: self.codec,
            link: self.link,
            limits: SessionLimits { max_incoming_calls, ..self.limits },
            poll_mode: self.poll_mode,
            connect_timeout: self.connect_timeout,
            max_connection_idle: self.max_connection_idle.filter(|_| self.reconnect.is_some()),
            min_part_bytes: self.min_part_bytes,
            faults: self.faults,
            health: is_one_of_several.then(|| health_of(&self.balancing)).flatten(),
            rules: is_one_of_several
                .then(|| Arc::new(Rules { policy: self.balancing, judge: OnceLock::new() })),
            counts: Arc::clone(&counts),
            served,
            presented: self.presented,
            allows_clear_credentials: self.allows_clear_credentials,
            secured,
        });
        let demand = Demand::new();
        let shared = Shared {
            targets: targets(options, self.reconnect, Arc::clone(&demand)),
            demand,
            codec: self.codec,
            default_timeout: self.default_timeout,
            wait_for_ready: self.wait_for_ready,
            min_part_bytes: self.min_part_bytes,
            when_full,
            max_waiting: self
                .limits
                .max_outgoing_calls
                .saturating_add(self.limits.max_waiting_calls),
            retry: self.retry.filter(RetryPolicy::may_retry).map(Retries::new),
            hedging: Hedges::new(self.hedging),
            max_metadata_bytes: self.max_metadata_bytes,
            around: Some(self.around).filter(|around| !around.is_empty()).map(Arc::new),
            server: None,
            counts,
            spare_pool: OnceLock::new(),
            process: Process::current(),
        };
        Ok(Channel { shared: Arc::new(shared) })
    }
}

/// Who watches the health of the servers, if somebody is to.
fn health_of(policy: &BalancingPolicy) -> Option<Arc<dyn WatchHealth>> {
    #[cfg(feature = "macros")]
    if let Some(service) = &policy.health_service {
        return Some(Arc::new(HealthWatch::new(service.clone())));
    }
    let _ = policy;
    None
}
