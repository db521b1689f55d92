//! RPC over RDMA: annotate a trait, call it from another process.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use rpc_core::Server;
//!
//! #[rpc_core::service]
//! pub trait Greeter {
//!     async fn greet(&self, name: &str) -> String;
//! }
//!
//! struct Polite;
//! impl Greeter for Polite {
//!     async fn greet(&self, name: &str) -> String {
//!         format!("Good day, {name}")
//!     }
//! }
//!
//! let server = Server::builder().add_service(GreeterServer::new(Polite)).bind("mem://docs").await?;
//! tokio::spawn(server.serve());
//! let greeter = GreeterClient::connect("mem://docs").await?;
//! assert_eq!(greeter.greet("Ada").await?, "Good day, Ada");
//! # Ok(()) }
//! ```
//!
//! # Addresses
//!
//! `auto://host:port` (the best transport to that host), `shm://name`, `shm:///path`,
//! `tcp://host:port`, `rdma://host:port` (feature `verbs`), `mem://name` (this process). A program
//! works the same on all of them; [`Channel::path`] says which one `auto://` chose, and why.
//!
//! # What the macro makes
//!
//! From a trait `Greeter`, [`macro@service`] makes `GreeterServer` (`new`, `from_arc`),
//! `GreeterClient` (`connect`, `new` and `From<Channel>`, `channel`, and the methods) and
//! `GreeterBlockingClient` for programs without a runtime. A method's call is a future with a
//! builder: [`Call::timeout`], [`Call::metadata`], [`Call::into`], [`Call::start`].
//!
//! # Errors
//!
//! A method `-> T` gives its caller `Result<T, Status>`; `-> Result<T, E>` gives
//! `Result<T, CallError<E>>`, which is the user's own error or a [`Status`]. A status has one of
//! gRPC's codes, a text that says what to do, and says whether the call may be tried again
//! ([`Status::is_retryable`]). A method `-> Result<T, CallError<E>>` may end with either, so that `?`
//! works through whole chains of services: see [`CallError`]. A handler that panics answers
//! `Internal`, and the connection lives.
//!
//! # Deadlines and cancellation
//!
//! A deadline travels as the time that remains, is enforced at both ends, and calls made inside a
//! handler inherit it. Dropping a call cancels its handler; what the handler holds is dropped.
//!
//! ```
//! # #[rpc_core::service] pub trait Slow { async fn never(&self); }
//! # struct S; impl Slow for S { async fn never(&self) { std::future::pending().await } }
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = rpc_core::Server::builder().add_service(SlowServer::new(S)).bind("mem://deadlines").await?;
//! # tokio::spawn(server.serve());
//! # let slow = SlowClient::connect("mem://deadlines").await?;
//! use rpc_core::Code;
//! use std::time::Duration;
//!
//! let status = slow.never().timeout(Duration::from_millis(5)).await.unwrap_err();
//! assert_eq!(status.code(), Code::DeadlineExceeded);
//! # Ok(()) }
//! ```
//!
//! # Streams
//!
//! A method `-> impl Stream<Item = T>` streams its results, an argument `Streaming<T>` is a stream of
//! the caller's, and a method may have both. A reader that stops holds up its sender and nobody
//! else. The module `stream` teaches the shapes, the ends and the options.
//!
//! # Outages
//!
//! A [`Channel`] outlives its connections. A call of which nothing was sent goes again by itself; one
//! that may have begun only where its method is marked `#[rpc(idempotent)]`. The builder of a channel
//! has the choices: lazy or eager, wait for the server or fail fast, retries, several servers.
//!
//! # Large payloads
//!
//! Byte strings of 8 KiB and more ([`Bulk`], [`bytes::Bytes`], `Vec<u8>`, `&[u8]`) are sent beside
//! the message, by RDMA WRITE into memory that the receiver has announced. [`BulkReader`] reads a
//! payload of any length while it arrives. [`BulkPool`] gives memory that is sent without a copy.
//!
//! # Layers
//!
//! A server takes anything that implements [`service::Dispatch`], so a layer is a `Dispatch` around
//! another: it reads the request's [`Context`], and replies itself or calls the inner one. An
//! example is at [`service::Dispatch`].
//!
//! # Testing
//!
//! [`Channel::to`] connects to a service inside this process, over the same engine; `mem://name` does
//! so by name. Tokio's paused clock is followed: timeouts take virtual time. To test a handler
//! without a connection, use [`Context::scope`], which gives it the deadline, metadata and peer of
//! your choice.
//!
//! A fake is one more implementation of the trait. The client before it is the real one, so the code
//! that is tested meets deadlines, cancellation and errors as they are. Where a fake shall stand in for the
//! client itself, or a wrapper be generic over clients, `#[service(client_trait = WeatherCalls)]` writes a
//! trait that the client implements:
//!
//! ```
//! # use rpc_core::{Channel, Status};
//! #[rpc_core::service(client_trait = WeatherCalls)]
//! pub trait Weather {
//!     async fn degrees(&self, city: &str) -> f64;
//! }
//!
//! struct Stormy;
//!
//! impl WeatherCalls for Stormy {
//!     async fn degrees(&self, _city: &str) -> Result<f64, Status> {
//!         Err(Status::unavailable("the mast is down"))
//!     }
//! }
//!
//! async fn report(weather: &impl WeatherCalls) -> String {
//!     match weather.degrees("Oslo").await {
//!         Ok(degrees) => format!("{degrees} degrees"),
//!         Err(status) => format!("no report: {}", status.message()),
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! # struct Mild; impl Weather for Mild { async fn degrees(&self, _: &str) -> f64 { 12.0 } }
//! # let channel = Channel::to(WeatherServer::new(Mild)).await.unwrap();
//! assert_eq!(report(&Stormy).await, "no report: the mast is down");
//! assert_eq!(report(&WeatherClient::new(channel)).await, "12 degrees");
//! # }
//! ```
//!
//! A whole service is faked like this:
//!
//! ```
//! # #[rpc_core::service] pub trait Weather { async fn degrees(&self, city: &str) -> Result<f64, Status>; }
//! use std::collections::VecDeque;
//! use std::sync::{Arc, Mutex};
//! use std::time::Duration;
//!
//! use rpc_core::{Channel, Code, Status};
//!
//! /// Gives the answers that a test has put in, then none at all, and keeps what it was asked.
//! #[derive(Default)]
//! struct Fake {
//!     answers: Mutex<VecDeque<Result<f64, Status>>>,
//!     asked: Mutex<Vec<String>>,
//! }
//!
//! impl Weather for Fake {
//!     async fn degrees(&self, city: &str) -> Result<f64, Status> {
//!         self.asked.lock().unwrap().push(city.to_owned());
//!         let answer = self.answers.lock().unwrap().pop_front();
//!         match answer {
//!             Some(answer) => answer,
//!             None => std::future::pending().await,
//!         }
//!     }
//! }
//!
//! # /*
//! #[tokio::test(start_paused = true)]
//! # */
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() { an_hour_passes_at_once().await }
//! async fn an_hour_passes_at_once() {
//!     let fake = Arc::new(Fake::default());
//!     let channel = Channel::to(WeatherServer::from_arc(Arc::clone(&fake))).await.unwrap();
//!     let weather = WeatherClient::new(channel);
//!     fake.answers.lock().unwrap().push_back(Err(Status::not_found("Oslo")));
//!     let status = Status::from(weather.degrees("Oslo").await.unwrap_err());
//!     assert_eq!(status.code(), Code::NotFound);
//!     let late = weather.degrees("Bergen").timeout(Duration::from_secs(3600)).await;
//!     assert_eq!(Status::from(late.unwrap_err()).code(), Code::DeadlineExceeded);
//!     assert_eq!(*fake.asked.lock().unwrap(), ["Oslo", "Bergen"]);
//! }
//! ```
//!
//! # Features
//!
//! | feature | default | what it brings |
//! |---|---|---|
//! | `macros` | yes | [`macro@service`], and the services that a server has of its own: [`health`], [`reflect`] |
//! | `bincode` | yes | the default codec |
//! | `postcard` | yes | a second, more compact codec |
//! | `metrics` | no | `stats::MetricsPublisher`: the numbers through the facade of the crate `metrics` |
//! | `verbs` | no | real RDMA devices; needs libibverbs-dev, librdmacm-dev, libclang-dev and pkg-config |
//!
//! # Limits
//!
//! Linux only. A message has at most 64 MiB unless [`LinkConfig::max_message_bytes`] says
//! otherwise, and needs room in `assembly_bytes` unless it is read as a [`BulkReader`]. Types must have
//! the same content at both ends; a difference is an error that names the place, and
//! `docs/changing-types.md` says how to change a struct in a running system. No sequence of safe calls,
//! and no peer, causes undefined behaviour; `docs/design.md`, section 8, says what a hostile process of the same user can do over shared memory.

// Generated code names `rpc_core`; this makes it resolve in this crate's own tests.
#[cfg(test)]
extern crate self as rpc_core;

/// The examples of the documents.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
mod readme {}

#[cfg(doctest)]
#[doc = include_str!("../../docs/changing-types.md")]
mod changing_types {}

#[doc(hidden)]
pub mod __private;
#[cfg(feature = "macros")]
mod builtin;
pub mod bulk;
#[doc(hidden)]
pub mod channel;
pub mod client;
pub mod codec;
pub mod context;
mod endpoint;
pub mod interceptor;
pub mod metadata;
mod observability;
mod runtime;
pub mod server;
pub mod service;
#[doc(hidden)]
pub mod session;
pub mod status;
pub mod stream;
#[doc(hidden)]
pub mod wire;

pub use rpc_transport::connect::address::{Address, AddressError, HostPort, LocalEnd};
pub use rpc_transport::connect::error::{CloseCause, ConnectError, ListenError};
pub use rpc_transport::device::fault::FaultPlan;
pub use rpc_transport::device::{PeerIdentity, ProviderError, Status as CompletionStatus};
pub use rpc_transport::engine::spin::PollMode;
pub use rpc_transport::memory::mapped::MappedFile;
pub use rpc_transport::message::outgoing::OutBuf;
pub use rpc_transport::message::payload::Payload;
pub use rpc_transport::message::received::Message;
pub use rpc_transport::protocol::arena::ArenaConfig;
pub use rpc_transport::protocol::config::{ConfigError, Isolation, LinkConfig, WhenFull};
pub use rpc_transport::protocol::link::LinkMetrics;

#[cfg(feature = "macros")]
pub use crate::builtin::{health, reflect};
pub use crate::bulk::{Bulk, BulkMut, BulkPool, BulkReader, ReplySlot};
pub use crate::channel::backoff::Backoff;
pub use crate::channel::connectivity::ConnectivityState;
pub use crate::channel::hedging::HedgingPolicy;
pub use crate::channel::retry::RetryPolicy;
pub use crate::client::call::stream_call::{StreamCall, UploadCall};
pub use crate::client::call::{Call, StartedCall};
pub use crate::client::{Channel, ChannelBuilder, ConnectionHandle, Path};
pub use crate::codec::Codec;
pub use crate::context::Context;
pub use crate::metadata::Metadata;
pub use crate::observability::stats::{ChannelStats, ServerStats, StatsHandle};
pub use crate::observability::{stats, trace};
pub use crate::server::{Server, ServerBuilder, ShutdownHandle};
pub use crate::status::{CallError, Code, Status};
/// # Example
/// ```
/// use rpc_core::serde::{Deserialize, Serialize};
///
/// #[derive(Debug, Serialize, Deserialize)]
/// #[serde(crate = "rpc_core::serde")]
/// pub enum KvError {
///     Full,
/// }
///
/// #[rpc_core::service]
/// pub trait Kv {
///     /// Looks a key up.
///     #[rpc(idempotent)]
///     async fn get(&self, key: &str) -> Option<Vec<u8>>;
///     /// Stores a value and gives its version.
///     async fn put(&self, key: &str, value: &[u8]) -> Result<u64, KvError>;
/// }
///
/// struct Store;
///
/// impl Kv for Store {
///     async fn get(&self, _key: &str) -> Option<Vec<u8>> {
///         None
///     }
///     async fn put(&self, _key: &str, _value: &[u8]) -> Result<u64, KvError> {
///         Err(KvError::Full)
///     }
/// }
///
/// let server = KvServer::new(Store); // for a server to serve
/// async fn call(kv: KvClient) -> Result<u64, rpc_core::CallError<KvError>> {
///     let known = kv.get("key").await?;
///     kv.put("key", known.as_deref().unwrap_or_default()).await
/// }
/// ```
#[cfg(feature = "macros")]
pub use rpc_macros::service;

/// Byte strings that are cheap to clone, as arguments and results.
pub use bytes;
/// The traits that argument and result types implement.
pub use serde;
