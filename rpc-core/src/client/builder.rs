//! The options of a channel.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use rpc_transport::connect::address::Address;
use rpc_transport::connect::error::{ConnectError, ListenError};
use rpc_transport::device::fault::FaultPlan;
use rpc_transport::engine::spin::PollMode;
use rpc_transport::protocol::config::{LinkConfig, WhenFull};

use super::Channel;
use super::balancer::Balancer;
use super::connection::ConnectOptions;
use super::counts::ChannelCounts;
use super::resolve::Resolve;
use super::shared::{Hedges, Retries, ServerTask, Shared, Targets};
use super::subchannel::{Demand, Subchannel};
use crate::channel::backoff::Backoff;
use crate::channel::hedging::HedgingPolicy;
use crate::channel::retry::RetryPolicy;
use crate::codec::{Codec, DEFAULT_MIN_PART_BYTES};
use crate::interceptor::ClientInterceptor;
use crate::interceptor::client::Around;
use crate::metadata::DEFAULT_MAX_BYTES;
use crate::server::served::Served;
use crate::server::{Server, ServerBuilder};
use crate::service::Dispatch;
use crate::session::SessionLimits;

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
    retry: Option<RetryPolicy>,
    faults: Option<FaultPlan>,
    hedging: Option<HedgingPolicy>,
    around: Around,
    max_metadata_bytes: usize,
    bad_metadata: Option<String>,
    served: Option<ServerBuilder>,
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
            retry: Some(RetryPolicy::new()),
            faults: None,
            hedging: None,
            around: Around::default(),
            max_metadata_bytes: DEFAULT_MAX_BYTES,
            bad_metadata: None,
            served: None,
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

    /// Calls that may be in flight at once on a connection of the channel. Default 65,536; the
    /// server may allow fewer
    /// ([`ServerBuilder::max_calls_per_connection`](crate::ServerBuilder::max_calls_per_connection)).
    /// Further ones wait or fail: [`ChannelBuilder::when_full`].
    #[must_use]
    pub fn max_calls(mut self, count: u32) -> Self {
        self.limits.max_outgoing_calls = count;
        self
    }

    /// Calls beyond [`max_calls`](ChannelBuilder::max_calls) that a connection may have, which wait
    /// until others have ended. Default 65,536; more fail at once with a retryable
    /// [`ResourceExhausted`](crate::Code::ResourceExhausted). Where the server allows fewer in flight
    /// than `max_calls`, the difference may wait as well. For a connection may wait as many as both
    /// limits together allow.
    #[must_use]
    pub fn max_waiting_calls(mut self, count: u32) -> Self {
        self.limits.max_waiting_calls = count;
        self
    }

    /// What a call does that finds its connection full: as many calls in flight as may be, or
    /// [`LinkConfig::queued_bytes`] waiting to leave. [`WhenFull::Wait`]: it waits, first come first
    /// served, until its deadline; what is dropped waits no more, and what a lost connection leaves
    /// waiting goes to the next one, but for calls with streams. [`WhenFull::Refuse`]: it fails with a retryable
    /// [`ResourceExhausted`](crate::Code::ResourceExhausted). Default: what the channel's
    /// [`LinkConfig::when_full`] says, which is to wait. [`Call::when_full`](crate::Call::when_full)
    /// chooses for one call.
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

    /// Longest time for the whole of connecting. Default 10 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Deadline of calls that set none themselves. Default none.
    #[must_use]
    pub fn default_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.default_timeout = timeout;
        self
    }

    /// Byte strings in an argument ([`Bulk`](crate::Bulk), `Vec<u8>`, `&[u8]`,
    /// [`Bytes`](bytes::Bytes)) of at least this many bytes are not copied into the request's body,
    /// but written beside it, into memory that the server has announced. Default 8,192: below that,
    /// a copy is cheaper than the bookkeeping. The server gets the same value either way.
    #[must_use]
    pub fn min_part_bytes(mut self, bytes: usize) -> Self {
        self.min_part_bytes = bytes;
        self
    }

    /// Whether calls wait for a connection when there is none, until their deadline. Default
    /// false: they fail with a [retryable](crate::Status::is_retryable)
    /// [`Unavailable`](crate::Code::Unavailable) when an attempt to connect has failed, at once
    /// while the next one is not due. An attempt that is under way is waited for either way.
    /// [`Call::wait_for_ready`](crate::Call::wait_for_ready) chooses for one call.
    #[must_use]
    pub fn wait_for_ready(mut self, wait: bool) -> Self {
        self.wait_for_ready = wait;
        self
    }

    /// How calls of idempotent methods are tried again that failed after they had been sent.
    /// Default [`RetryPolicy::new`]; `None`: they are not.
    #[must_use]
    pub fn retry(mut self, policy: impl Into<Option<RetryPolicy>>) -> Self {
        self.retry = policy.into();
        self
    }

    /// When a call of an idempotent method gets a second attempt while its first one runs. Default
    /// `None`: never. [`Call::hedging`](crate::Call::hedging) chooses for one call.
    #[must_use]
    pub fn hedging(mut self, policy: impl Into<Option<HedgingPolicy>>) -> Self {
        self.hedging = policy.into();
        self
    }

    /// How long to wait after an attempt to connect that failed. Default [`Backoff::new`]. `None`:
    /// the channel ends with its first connection, or with the first attempt.
    #[must_use]
    pub fn reconnect(mut self, backoff: impl Into<Option<Backoff>>) -> Self {
        self.reconnect = backoff.into();
        self
    }

    /// Adds an interceptor: what is done before and after each call of the channel. The first that
    /// was added is the outermost. See [`interceptor`](crate::interceptor).
    #[must_use]
    pub fn interceptor(mut self, interceptor: impl ClientInterceptor) -> Self {
        self.around.intercept(Arc::new(interceptor));
        self
    }

    /// Adds metadata to each call of the channel that has none of that name. What cannot be sent is
    /// told when the channel connects.
    ///
    /// ```
    /// # async fn connect() -> Result<(), rpc_core::ConnectError> {
    /// # use rpc_core::Channel;
    /// let channel = Channel::builder().metadata("token", "s3cret").connect("auto://10.0.0.7:7471").await?;
    /// # drop(channel); Ok(()) }
    /// ```
    #[must_use]
    pub fn metadata(mut self, name: &str, value: impl Into<Bytes>) -> Self {
        if let Err(error) = self.around.metadata.insert(name, value) {
            self.bad_metadata = Some(format!("metadata {name:?} of the channel: {error}"));
        }
        self
    }

    /// Longest metadata of a call of the channel, bytes. Default 8,192, at most 65,535; a call with
    /// more fails with [`InvalidArgument`](crate::Code::InvalidArgument), and is not sent. Servers
    /// have a limit of their own
    /// ([`ServerBuilder::max_metadata_bytes`](crate::ServerBuilder::max_metadata_bytes)).
    #[must_use]
    pub fn max_metadata_bytes(mut self, bytes: usize) -> Self {
        self.max_metadata_bytes = bytes;
        self
    }

    /// Serves a service on the channel's own connections, each anew: the server's handlers may call it
    /// ([`ConnectionHandle::channel`](crate::ConnectionHandle::channel)). Several calls add several
    /// services. The service must not hold the channel, which would keep both alive; a handler of it
    /// calls back through its [`Context::connection`](crate::Context::connection).
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
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = Server::builder().add_service(WorkServer::new(Worker)).bind("mem://both-ways").await?;
    /// # tokio::spawn(server.serve());
    /// let channel = Channel::builder().serve(ProgressServer::new(Shown)).connect("mem://both-ways").await?;
    /// assert_eq!(WorkClient::new(channel).convert("a.png").await?, 100);
    /// # Ok(()) }
    /// ```
    ///
    /// Without it the channel takes no calls, and those of a server fail with
    /// [`Unimplemented`](crate::Code::Unimplemented).
    #[must_use]
    pub fn serve(self, service: impl Dispatch) -> Self {
        let served = self.served.clone().unwrap_or_default();
        self.serve_with(served.add_service(service))
    }

    /// Serves what a server of this configuration would, in place of what the channel was to serve
    /// before: with its services, interceptors, layers,
    /// [`max_calls_per_connection`](ServerBuilder::max_calls_per_connection),
    /// [`max_metadata_bytes`](ServerBuilder::max_metadata_bytes) and
    /// [`memory_budget`](ServerBuilder::memory_budget), which then also covers what the channel itself is
    /// answered. The rest of the configuration is the channel's own.
    #[must_use]
    pub fn serve_with(mut self, services: ServerBuilder) -> Self {
        self.served = Some(services);
        self
    }

    /// For tests: this end's device has the faults of the plan, late completions or queue pairs that
    /// fail, whatever the scheme; each further connection to an end point
    /// by another seed. Default none.
    #[must_use]
    pub fn faults(mut self, plan: FaultPlan) -> Self {
        self.faults = Some(plan);
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// [`ConnectError`]: of the first attempt; there is no other.
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
    /// call goes to the better of two of them that are connected, by calls in flight and the
    /// latency of late; a server that is lost costs only the calls that may not go elsewhere.
    ///
    /// ```
    /// # #[rpc_core::service] pub trait Greeter { async fn greet(&self) -> String; }
    /// # struct Polite; impl Greeter for Polite { async fn greet(&self) -> String { "Good day".into() } }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = rpc_core::Server::builder().add_service(GreeterServer::new(Polite)).bind("mem://balanced-b").await?;
    /// # tokio::spawn(server.serve());
    /// use rpc_core::Channel;
    /// use rpc_core::client::resolve::{Dns, StaticList};
    ///
    /// let servers = StaticList::new(["mem://balanced-a", "mem://balanced-b"])?;
    /// let greeter = GreeterClient::new(Channel::builder().connect_balanced(servers)?);
    /// assert_eq!(greeter.greet().await?, "Good day"); // there is no server at the first
    ///
    /// let by_name = Channel::builder().connect_balanced(Dns::new("auto://greeters.example:7471")?)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ConnectError::Config`].
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time enabled.
    pub fn connect_balanced(self, resolver: impl Resolve) -> Result<Channel, ConnectError> {
        self.channel(true, |options, reconnect, demand| {
            Targets::Several(Balancer::new(Box::new(resolver), options, reconnect, demand))
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
    /// # struct Polite; impl Greeter for Polite { async fn greet(&self) -> String { "Good day".into() } }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use rpc_core::{Channel, Server};
    ///
    /// let channel = Channel::builder().wait_for_ready(true).connect_lazy("mem://lazy")?;
    /// let greeter = GreeterClient::new(channel);
    /// let greeting = greeter.greet().start(); // waits for a server
    /// let server = Server::builder().add_service(GreeterServer::new(Polite)).bind("mem://lazy").await?;
    /// tokio::spawn(server.serve());
    /// assert_eq!(greeting.await?, "Good day");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ConnectError::Address`] and [`ConnectError::Config`]: what can be seen without connecting.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time enabled.
    pub fn connect_lazy(self, address: impl AsRef<str>) -> Result<Channel, ConnectError> {
        self.lazy(address.as_ref().parse()?)
    }

    fn lazy(self, target: Address) -> Result<Channel, ConnectError> {
        self.channel(false, |options, reconnect, demand| {
            Targets::One(Subchannel::new(target, options, reconnect, demand))
        })
    }

    fn channel(
        self,
        is_one_of_several: bool,
        targets: impl FnOnce(Arc<ConnectOptions>, Option<Backoff>, Arc<Demand>) -> Targets,
    ) -> Result<Channel, ConnectError> {
        self.link.validate().map_err(|error| ConnectError::Config(error.to_string()))?;
        if !self.codec.is_compiled_in() {
            let text = format!("codec {} is not compiled in", self.codec.name());
            return Err(ConnectError::Config(text));
        }
        if let Some(text) = self.bad_metadata {
            return Err(ConnectError::Config(text));
        }
        let when_full = self.when_full.unwrap_or(self.link.queue_limit().when_full);
        let served = self.served.as_ref().map(Served::new).transpose();
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
            min_part_bytes: self.min_part_bytes,
            faults: self.faults,
            is_one_of_several,
            counts: Arc::clone(&counts),
            served,
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
        };
        Ok(Channel { shared: Arc::new(shared) })
    }
}
