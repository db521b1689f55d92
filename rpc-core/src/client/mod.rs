//! Channels: client connections.
//!
//! Owns connecting, and the one connection behind a [`Channel`]. Generated clients wrap a channel.
//!
//! Invariant: a channel's connection is released when the last clone and the last call on it are
//! gone; its driver ends by itself after that.

pub mod blocking;
pub mod call;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rpc_transport::connect::address::Address;
use rpc_transport::connect::error::{CloseCause, ConnectError};
use rpc_transport::connect::schemes::{self, Resolved};
use rpc_transport::device::PeerIdentity;
use rpc_transport::engine::driver::Driver;
use rpc_transport::engine::establish::completions_per_connection;
use rpc_transport::engine::shard::ConnectionKey;
use rpc_transport::engine::spin::PollMode;
use rpc_transport::memory::budget::MemoryBudget;
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::protocol::config::LinkConfig;
use rpc_transport::protocol::link::LinkMetrics;
use serde::Serialize;

use crate::bulk::BulkPool;
use crate::client::call::Call;
use crate::client::call::raw_call::RawCall;
use crate::client::call::stream_call::{StreamCall, StreamDecoders, UploadCall};
use crate::codec::{Codec, Placement, Pool};
use crate::endpoint::{RpcEndpoint, RpcShard};
use crate::server::executor::Handlers;
use crate::service::{MethodDescriptor, ReplyParts};
use crate::session::{Role, SessionLimits};
use crate::status::{Code, Status};

/// Default length, bytes, from which on byte strings are sent beside the body.
pub(crate) const DEFAULT_MIN_PART_BYTES: usize = 8 * 1024;

/// One connection, as calls see it.
pub(crate) struct Connection {
    pub(crate) shard: Arc<RpcShard>,
    pub(crate) key: ConnectionKey,
    pub(crate) codec: Codec,
    pub(crate) default_timeout: Option<Duration>,
    pub(crate) bulk: BulkPool,
    min_part_bytes: usize,
    path: Path,
}

impl Connection {
    /// The status of calls on a connection that has ended.
    #[cold]
    pub(crate) fn unavailable(&self) -> Status {
        let cause = self.shard.close_cause(self.key).unwrap_or(CloseCause::DriverGone);
        Status::new(Code::Unavailable, format!("connection to {}: {cause}", self.path.address))
            .with_source(Arc::new(cause) as Arc<dyn std::error::Error + Send + Sync>)
    }
}

impl Connection {
    /// Where the large byte strings of a message go.
    #[inline]
    pub(crate) fn placement(&self) -> Placement<'_> {
        Placement { min_part_bytes: self.min_part_bytes, pool: Pool::Of(&self.bulk) }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shard.release(self.key);
        self.shard.shutdown();
    }
}

/// The transport that a channel uses to reach its peer, and why it was chosen.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Path {
    /// The address that was connected; for `auto://` the one that was chosen.
    pub address: Address,
    /// The device, for instance `soft-shm`.
    pub device: String,
    /// Why this transport was chosen.
    pub reason: String,
    /// The peer that answered.
    pub peer: PeerIdentity,
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {} ({})", self.address, self.device, self.reason)
    }
}

/// A connection to a server. Cheap to clone; clones share the connection, and calls of all clones
/// are in flight together.
///
/// # Example
/// ```
/// # #[rpc_core::service] pub trait Greeter { async fn greet(&self) -> String; }
/// # struct Polite; impl Greeter for Polite { async fn greet(&self) -> String { "Good day".into() } }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = rpc_core::Server::builder().add_service(GreeterServer::new(Polite)).bind("mem://channel").await?;
/// # tokio::spawn(server.serve());
/// use rpc_core::Channel;
///
/// let channel = Channel::connect("mem://channel").await?;
/// println!("{}", channel.path()); // which device, and why
/// let greeter = GreeterClient::from(channel.clone());
/// assert_eq!(greeter.greet().await?, "Good day");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Channel {
    connection: Arc<Connection>,
}

impl Channel {
    /// Connects to an address (`auto://host:port`, `shm://name`, `tcp://host:port`, ...) with the
    /// defaults. The connection is driven by a task on the current runtime.
    ///
    /// # Errors
    /// [`ConnectError`]: bad address, nothing listening, refused, no answer.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time enabled.
    pub async fn connect(address: impl AsRef<str>) -> Result<Self, ConnectError> {
        Self::builder().connect(address).await
    }

    /// Configures a channel before connecting.
    #[must_use]
    pub fn builder() -> ChannelBuilder {
        ChannelBuilder::default()
    }

    /// The transport that the connection uses, and why.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.connection.path
    }

    /// Registered buffers of the connection: a [`Bulk`](crate::Bulk) that was filled in one of them
    /// is sent without a copy.
    #[must_use]
    pub fn bulk_pool(&self) -> &BulkPool {
        &self.connection.bulk
    }

    /// Credits, queue depths and send slots of the connection; `None` once it has ended.
    #[must_use]
    pub fn link_metrics(&self) -> Option<LinkMetrics> {
        self.connection.shard.link_metrics(self.connection.key)
    }

    /// Why the connection ended, once it has.
    #[must_use]
    pub fn close_cause(&self) -> Option<CloseCause> {
        self.connection.shard.close_cause(self.connection.key)
    }

    /// Makes a call; generated clients do. The arguments are encoded at once, nothing is sent
    /// until the call is awaited or started.
    #[inline]
    pub fn call<O>(
        &self,
        method: &'static MethodDescriptor,
        args: &impl Serialize,
        decode: fn(ReplyParts) -> O,
    ) -> Call<'_, O> {
        let mut body = OutBuf::new();
        match self.connection.codec.encode_body(args, &mut body, self.connection.placement()) {
            Ok(()) => Call::new(&self.connection, method, body, decode),
            Err(error) => {
                let status = crate::__private::unencodable_arguments(method, error);
                Call::failed_early(&self.connection, method, status, decode)
            }
        }
    }
}

/// Calls of methods with streams; generated clients make them.
impl Channel {
    /// Calls a method that gives a stream.
    pub fn call_stream<T, R, E, X, U>(
        &self,
        method: &'static MethodDescriptor,
        args: &impl Serialize,
        upload: U,
        decoders: StreamDecoders<T, R, E, X>,
    ) -> StreamCall<'_, T, R, E, X, U> {
        StreamCall::new(self.raw_call(method, args), upload, decoders)
    }

    /// Calls a method that takes a stream and gives one result.
    pub fn call_upload<O, U>(
        &self,
        method: &'static MethodDescriptor,
        args: &impl Serialize,
        upload: U,
        decode: fn(ReplyParts) -> O,
    ) -> UploadCall<'_, O, U> {
        UploadCall::new(self.raw_call(method, args), upload, decode)
    }

    fn raw_call(&self, method: &'static MethodDescriptor, args: &impl Serialize) -> RawCall<'_> {
        let Connection { codec, .. } = &*self.connection;
        let mut body = OutBuf::new();
        match codec.encode_body(args, &mut body, self.connection.placement()) {
            Ok(()) => RawCall::new(&self.connection, method, Some(body)),
            Err(error) => {
                let mut call = RawCall::new(&self.connection, method, None);
                call.fail(crate::__private::unencodable_arguments(method, error));
                call
            }
        }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("path", &self.connection.path).finish()
    }
}

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

    /// Calls that may exist at once on the channel. Default 65,536; more fail at once with
    /// [`Code::ResourceExhausted`].
    #[must_use]
    pub fn max_calls(mut self, count: u32) -> Self {
        self.limits.max_outgoing_calls = count;
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

    /// Connects.
    ///
    /// # Errors
    /// [`ConnectError`].
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time enabled.
    pub async fn connect(self, address: impl AsRef<str>) -> Result<Channel, ConnectError> {
        let address: Address = address.as_ref().parse()?;
        self.link.validate().map_err(|error| ConnectError::Config(error.to_string()))?;
        if !self.codec.is_compiled_in() {
            let text = format!("codec {} is not compiled in", self.codec.name());
            return Err(ConnectError::Config(text));
        }
        let timeout = self.connect_timeout;
        let connecting = self.connect_to(&address);
        match tokio::time::timeout(timeout, connecting).await {
            Ok(outcome) => outcome,
            Err(_) => Err(ConnectError::TimedOut { address, after: timeout }),
        }
    }

    async fn connect_to(&self, address: &Address) -> Result<Channel, ConnectError> {
        let Resolved { outgoing, address, reason } = schemes::resolve(address).await?;
        let device = Arc::clone(outgoing.device());
        let domain = device.allocate_pd()?;
        let entries = completions_per_connection(&self.link);
        let shard = RpcShard::new(Arc::clone(&device), domain, entries)?;
        let handlers = Handlers::without_services(Arc::clone(&shard));
        let driver = Driver::new(Arc::clone(&shard), handlers, self.poll_mode)
            .map_err(|error| ConnectError::Config(format!("no driver: {error}")))?;
        tokio::spawn(driver);
        let guard = ShutdownOnDrop(Some(Arc::clone(&shard)));
        let bulk = BulkPool::new(shard.domain().clone());
        let (queue, memory) = (self.link.queue_limit(), MemoryBudget::unlimited());
        let peer =
            RpcEndpoint::new(Role::Client, self.limits, bulk, self.min_part_bytes, queue, memory);
        let timeout = self.connect_timeout;
        let connected = shard.connect(outgoing, &address, &self.link, timeout, peer).await?;
        guard.disarm();
        let domain = shard.domain_of(connected.key).unwrap_or_else(|| shard.domain().clone());
        let device = device.attributes().name.clone();
        let path = Path { address, device, reason, peer: connected.peer };
        tracing::info!(%path, "connected");
        let connection = Connection {
            shard,
            key: connected.key,
            codec: self.codec,
            default_timeout: self.default_timeout,
            bulk: BulkPool::new(domain),
            min_part_bytes: self.min_part_bytes,
            path,
        };
        Ok(Channel { connection: Arc::new(connection) })
    }
}

/// Ends the driver of a shard whose connection never came up.
struct ShutdownOnDrop(Option<Arc<RpcShard>>);

impl ShutdownOnDrop {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for ShutdownOnDrop {
    fn drop(&mut self) {
        if let Some(shard) = &self.0 {
            shard.shutdown();
        }
    }
}
