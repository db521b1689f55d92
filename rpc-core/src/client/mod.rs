//! Channels: client connections.
//!
//! A [`Channel`] outlives its connections. Generated clients wrap one.
//!
//! | file | idea |
//! |---|---|
//! | `builder` | the options |
//! | `call` | a call: a future, sent when first polled |
//! | `shared` | what clones of a channel share; how a call gets a connection |
//! | `balancer` | several end points behind a name, and which one gets a call |
//! | `resolve` | who knows the addresses behind a name |
//! | `subchannel` | one end point: its connection, and the task that makes the next |
//! | `connection` | one connection, and how it is made |
//! | `serving` | the connections on which servers may call |
//! | `peer` | the way from a connection back to its peer |
//! | `stats` | the numbers of a channel |
//! | `blocking` | calls that block, for programs without a runtime |
//!
//! When to do what is decided in [`channel`](crate::channel), which is pure.

mod balancer;
pub mod blocking;
mod builder;
pub mod call;
pub(crate) mod connection;
mod connection_handle;
mod counts;
pub(crate) mod load;
mod peer;
pub mod resolve;
mod serving;
pub(crate) mod shared;
mod stats;
mod stop_serving;
pub(crate) mod subchannel;

use std::fmt;
use std::sync::Arc;

use rpc_transport::connect::error::{CloseCause, ConnectError};
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::protocol::link::LinkMetrics;
use serde::Serialize;

use self::call::Call;
use self::call::raw_call::RawCall;
use self::call::stream_call::{StreamCall, StreamDecoders, UploadCall};
pub(crate) use self::connection::Connection;
use self::shared::Shared;
use crate::bulk::BulkPool;
use crate::channel::connectivity::ConnectivityState;
use crate::observability::stats::ChannelStats;
use crate::service::coding::unencodable_arguments;
use crate::service::{MethodDescriptor, ReplyParts};

pub use self::builder::ChannelBuilder;
pub use self::connection::Path;
pub use self::connection_handle::ConnectionHandle;

/// A channel to a server. Cheap to clone; clones share the connection, and calls of all clones are
/// in flight together.
///
/// A channel outlives its connections. When one is lost, the next call connects again, after a
/// backoff where attempts fail. Calls of which nothing was sent go again by themselves, on the new
/// connection; those whose handler may have begun fail, and their status is not
/// [retryable](crate::Status::is_retryable). While a server cannot be reached, calls fail at once,
/// or wait for it: [`ChannelBuilder::wait_for_ready`], [`Call::wait_for_ready`].
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
/// println!("{}", channel.path().expect("connected")); // which device, and why
/// let greeter = GreeterClient::from(channel.clone());
/// assert_eq!(greeter.greet().await?, "Good day");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Channel {
    shared: Arc<Shared>,
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

    /// A channel to a server of its own in this process, for tests: over the same engine as every
    /// other channel, and gone with its last clone.
    ///
    /// ```
    /// # #[rpc_core::service] pub trait Greeter { async fn greet(&self) -> String; }
    /// # struct Polite; impl Greeter for Polite { async fn greet(&self) -> String { "Good day".into() } }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
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

    /// What the channel does about its connection.
    #[must_use]
    pub fn state(&self) -> ConnectivityState {
        self.shared.state()
    }

    /// Waits until the state is another than `from`, and gives it. States that came and went
    /// meanwhile are not told.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = rpc_core::Server::builder().bind("mem://states").await?;
    /// # tokio::spawn(server.serve());
    /// use rpc_core::{Channel, ConnectivityState};
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

    /// Connects now, if the next call would have to, without waiting for it.
    pub fn kick(&self) {
        self.shared.kick();
    }

    /// Waits for the end of the connection, and says why it ended: at once if the last one has
    /// ended and there is no other. The channel lives on.
    pub async fn closed(&self) -> CloseCause {
        self.shared.closed().await
    }

    /// The transport that the connection uses, and why; between two connections that of the one
    /// before, `None` before the first.
    #[must_use]
    pub fn path(&self) -> Option<Path> {
        self.shared.path()
    }

    /// Registered buffers of the connection: a [`Bulk`](crate::Bulk) that was filled in one of them
    /// is sent without a copy. Once the connection is lost, its buffers are still good to send
    /// from, but are copied for it. While there is no connection, the buffers are plain memory.
    #[must_use]
    pub fn bulk_pool(&self) -> BulkPool {
        self.shared.bulk_pool()
    }

    /// Credits, queue depths and send slots of the connection; `None` while there is none.
    #[must_use]
    pub fn link_metrics(&self) -> Option<LinkMetrics> {
        let connection = self.shared.connection();
        let connection = connection.as_ref()?;
        connection.shard.link_metrics(connection.key)
    }

    /// What the channel has done so far, and what it does now: a snapshot of its counts.
    #[must_use]
    pub fn stats(&self) -> ChannelStats {
        self.shared.stats()
    }

    /// Why the last connection ended; `None` while there is one, and before the first.
    #[must_use]
    pub fn close_cause(&self) -> Option<CloseCause> {
        self.shared.close_cause()
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
        match self.shared.codec.encode_body(args, &mut body, self.shared.placement()) {
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
        match self.shared.codec.encode_body(args, &mut body, self.shared.placement()) {
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
