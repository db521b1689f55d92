//! Channels: client connections.
//!
//! A [`Channel`] outlives its connections. Generated clients wrap one.
//!
//! | file | idea |
//! |---|---|
//! | `builder` | the options |
//! | `call` | a call: a future, sent when first polled |
//! | `shared` | what clones of a channel share; how a call gets a connection |
//! | `balancer` | several end points behind a name, and when to ask for them |
//! | `members` | which of them gets a call |
//! | `resolve` | who knows the servers behind a name |
//! | `resolve_file` | a file that names servers |
//! | `ask` | the answers of a resolver, which is user code |
//! | `subchannel` | one end point: its connection, and the task that makes the next |
//! | `load` | how busy, fast and well an end point is, for the choice |
//! | `health_watch` | what an end point says of its own health |
//! | `connection` | one connection, and how it is made |
//! | `serving_connections` | the connections on which servers may call |
//! | `peer` | the way from a connection back to its peer |
//! | `stats` | the numbers of a channel |
//! | `blocking` | calls that block, for programs without a runtime |
//!
//! When to do what is decided in [`channel`](crate::channel), which is pure.

mod ask;
mod balancer;
pub mod blocking;
mod builder;
pub mod call;
pub(crate) mod connection;
mod connection_handle;
mod counts;
#[cfg(feature = "macros")]
mod health_watch;
pub(crate) mod load;
mod members;
mod peer;
mod presented;
pub mod resolve;
mod resolve_file;
mod serving_connections;
pub(crate) mod shared;
mod stats;
mod stop_serving;
pub(crate) mod subchannel;

use std::fmt;
use std::sync::Arc;

use rpc_transport::device::connection_error::{CloseCause, ConnectError};
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::protocol::link::LinkMetrics;
use serde::Serialize;

use self::call::Call;
pub use self::call::StartedCall;
use self::call::raw_call::RawCall;
use self::call::stream_call::StreamDecoders;
pub use self::call::stream_call::{StreamCall, UploadCall};
pub(crate) use self::connection::Connection;
use self::shared::Shared;
use crate::bulk::BulkPool;
use crate::reply::coding::unencodable_arguments;
use crate::service::{MethodDescriptor, ReplyParts};
use crate::stats::ChannelStats;

pub use self::builder::ChannelBuilder;
pub use self::connection::Path;
pub use self::connection_handle::ConnectionHandle;
pub use crate::channel::backoff::Backoff;
pub use crate::channel::balancing::BalancingPolicy;
pub use crate::channel::connectivity::ConnectivityState;
pub use crate::channel::hedging::HedgingPolicy;
pub use crate::channel::retry::RetryPolicy;

/// A channel to a server. Cheap to clone; clones share the connection, and calls of all clones are
/// in flight together.
///
/// A channel outlives its connections. When one is lost, the next call connects again, with a
/// backoff after failed attempts. Calls of which nothing was sent are retried automatically on the
/// new connection. Calls whose handler may have begun fail with a status that is not
/// [retryable](crate::Status::is_retryable). While the server cannot be reached, calls fail at once
/// or wait, as [`ChannelBuilder::wait_for_ready`] and [`Call::wait_for_ready`] choose.
///
/// # Runtimes
/// A channel lives in the runtime in which it was made: tasks there drive its connections and its
/// timers. Calls may be made and awaited anywhere, but that runtime must be running. A
/// current-thread runtime runs only inside of `block_on`; otherwise calls from elsewhere may wait,
/// even beyond their deadlines.
///
/// A channel may outlive its runtime. Calls in flight then end as if the connection was lost. The
/// next call connects at once, and moves the channel to the runtime of that call if it has worker
/// threads, or else to a new thread named `rpc-channels`.
///
/// # Fork
/// A channel belongs to the process that made it. In a child of `fork(2)`, its calls fail at once
/// with [`FailedPrecondition`](crate::Code::FailedPrecondition), and dropping it does nothing; the
/// parent's channel keeps working. Make a new runtime and a new channel in the child.
///
/// # Example
/// ```
/// # #[rpc_core::service] pub trait Greeter { async fn greet(&self) -> String; }
/// # struct Polite;
/// # impl Greeter for Polite {
/// #     async fn greet(&self) -> String { "Good day".into() }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = rpc_core::Server::builder().add_service(GreeterServer::new(Polite))
/// #     .bind("mem://channel").await?;
/// # tokio::spawn(server.serve());
/// use rpc_core::Channel;
///
/// let channel = Channel::connect("mem://channel").await?;
/// println!("{}", channel.path().expect("connected")); // which device, and why
/// let greeter = GreeterClient::from(channel.clone());
/// assert_eq!(greeter.greet().await?, "Good day");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Channel {
    shared: Arc<Shared>,
}

impl Drop for Channel {
    fn drop(&mut self) {
        // A child of `fork(2)` leaks what it has inherited: to end it would take locks, and reach
        // into the parent's runtime.
        if !self.shared.process.is_current() {
            std::mem::forget(Arc::clone(&self.shared));
        }
    }
}

impl Channel {
    /// Connects to an address (`auto://host:port`, `shm://name`, `tcp://host:port`, ...) with the
    /// defaults. The connection is driven by a task on the current runtime. To connect with the
    /// first call, see [`ChannelBuilder::connect_lazy`].
    ///
    /// # Errors
    /// [`ConnectError`]: bad address, nothing listening, refused, no answer.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time enabled.
    pub async fn connect(address: impl AsRef<str>) -> Result<Self, ConnectError> {
        Self::builder().connect(address).await
    }

    /// A channel to a new server in this process, for tests. It uses the same engine as every other
    /// channel. The server ends with the channel's last clone.
    ///
    /// ```
    /// # #[rpc_core::service] pub trait Greeter { async fn greet(&self) -> String; }
    /// # struct Polite;
    /// # impl Greeter for Polite {
    /// #     async fn greet(&self) -> String { "Good day".into() }
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let channel = rpc_core::Channel::to(GreeterServer::new(Polite)).await?;
    /// assert_eq!(GreeterClient::new(channel).greet().await?, "Good day");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ConnectError`]: the system has no memory or threads left.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time enabled.
    pub async fn to(service: impl crate::service::Dispatch) -> Result<Self, ConnectError> {
        Self::builder().to(service).await
    }

    /// Configures a channel before connecting.
    #[must_use]
    pub fn builder() -> ChannelBuilder {
        ChannelBuilder::default()
    }

    /// The state of the channel's connection.
    #[must_use]
    pub fn state(&self) -> ConnectivityState {
        self.shared.state()
    }

    /// Waits until the state differs from `from`, and returns it. States that came and went
    /// meanwhile are skipped.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = rpc_core::Server::builder().bind("mem://states").await?;
    /// # tokio::spawn(server.serve());
    /// use rpc_core::Channel;
    /// use rpc_core::client::ConnectivityState;
    ///
    /// let channel = Channel::builder().connect_lazy("mem://states")?;
    /// let mut state = channel.state();
    /// assert_eq!(state, ConnectivityState::Idle);
    /// channel.kick();
    /// while state != ConnectivityState::Ready {
    ///     state = channel.state_changed(state).await;
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn state_changed(&self, from: ConnectivityState) -> ConnectivityState {
        self.shared.state_changed(from).await
    }

    /// Starts to connect if there is no connection, without waiting for the result.
    pub fn kick(&self) {
        self.shared.kick();
    }

    /// Waits until the connection ends, and returns the cause. Returns at once if the last
    /// connection has ended and there is no other. The channel can still be used.
    pub async fn closed(&self) -> CloseCause {
        self.shared.closed().await
    }

    /// The transport that the connection uses, and why it was chosen. Between two connections: that
    /// of the last one; `None` before the first.
    #[must_use]
    pub fn path(&self) -> Option<Path> {
        self.shared.path()
    }

    /// A pool of buffers that are registered for the connection: a [`Bulk`](crate::Bulk) that was
    /// filled in one of them is sent without a copy. After the connection is lost, its buffers can
    /// still be sent, but are copied. While there is no connection, the buffers are plain memory.
    #[must_use]
    pub fn bulk_pool(&self) -> BulkPool {
        self.shared.bulk_pool()
    }

    /// Credits, queue depths and send slots of the connection; `None` while there is none.
    #[must_use]
    pub fn link_metrics(&self) -> Option<LinkMetrics> {
        let connection = self.shared.connection(|| None);
        let connection = connection.as_ref()?;
        connection.shard.link_metrics(connection.key)
    }

    /// A snapshot of the channel's counts.
    #[must_use]
    pub fn stats(&self) -> ChannelStats {
        self.shared.stats()
    }

    /// Why the last connection ended; `None` while there is one, and before the first.
    #[must_use]
    pub fn close_cause(&self) -> Option<CloseCause> {
        self.shared.close_cause()
    }

    /// Makes a call, for generated clients. The arguments are encoded at once, but nothing is sent
    /// until the call is awaited or started.
    #[inline]
    pub fn call<O>(
        &self,
        method: &'static MethodDescriptor,
        args: &impl Serialize,
        decode: fn(ReplyParts) -> O,
    ) -> Call<'_, O> {
        let mut body = OutBuf::new();
        let codec = self.shared.codec.of_calls(method);
        match codec.encode_body(args, &mut body, self.shared.placement(), method) {
            Ok(()) => Call::new(&self.shared, method, body, decode),
            Err(error) => {
                let status = unencodable_arguments(method, error);
                Call::failed_early(&self.shared, method, status, decode)
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
        let mut body = OutBuf::new();
        let codec = self.shared.codec.of_calls(method);
        match codec.encode_body(args, &mut body, self.shared.placement(), method) {
            Ok(()) => RawCall::new(&self.shared, method, Some(body)),
            Err(error) => {
                let mut call = RawCall::new(&self.shared, method, None);
                call.fail(unencodable_arguments(method, error));
                call
            }
        }
    }
}

/// Channels are equal if one is a clone of the other.
impl PartialEq for Channel {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl Eq for Channel {}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (target, state) = (self.shared.targets.name(), self.state());
        f.debug_struct("Channel").field("target", &target).field("state", &state).finish()
    }
}
