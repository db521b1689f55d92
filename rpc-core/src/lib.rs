//! Asynchronous RPC over RDMA, shared memory and TCP: annotate a trait, call it from another
//! process.
//!
//! The entry points of this crate are the attribute [`macro@service`], which generates a server and
//! clients from a trait, [`Server::builder`], which serves them, and [`Channel`], which connects
//! the clients. Handlers read a call's deadline, metadata and peer from [`Context`]. A call returns
//! a result or a [`Status`].
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
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
//! let server = Server::builder().add_service(GreeterServer::new(Polite));
//! let server = server.bind("mem://docs").await?;
//! tokio::spawn(server.serve());
//! let greeter = GreeterClient::connect("mem://docs").await?;
//! assert_eq!(greeter.greet("Ada").await?, "Good day, Ada");
//! # Ok(()) }
//! ```
//!
//! # About RDMA
//!
//! RDMA (remote direct memory access) is a feature of network cards for InfiniBand, RoCE and iWARP.
//! A program hands send and receive buffers to the card, and the card moves the data without the
//! kernel of either machine. With one-sided operations, a card even writes into the memory of the
//! other machine without involving its CPU. Both save system calls and copies, so that calls
//! between machines take microseconds.
//!
//! Programs use such cards through an interface called *verbs*, which is behind the feature `verbs`
//! of this crate. You do not need a card or the feature. Without them, the same engine runs on a
//! software device that implements these operations over shared memory, TCP, or inside one process.
//!
//! # Addresses
//!
//! The scheme of an address selects the transport; a program works the same with each.
//!
//! | address | transport |
//! |---|---|
//! | `auto://host:port` | the best one to that host; [`Channel::path`] says which, and why |
//! | `shm://name`, `shm:///path` | shared memory between processes of one user |
//! | `tcp://host:port` | TCP |
//! | `rdma://host:port` | an RDMA device (feature `verbs`) |
//! | `mem://name` | inside this process |
//!
//! # Generated types
//!
//! From a trait `Greeter`, [`macro@service`] generates `GreeterServer` (`new`, `from_arc`),
//! `GreeterClient` (`connect`, `new` and `From<Channel>`, `channel`, and the methods of the trait),
//! and `GreeterBlockingClient` for programs without an async runtime. A method of the client
//! returns a [`Call`]: a future with options such as [`Call::timeout`], [`Call::metadata`],
//! [`Call::into`] and [`Call::start`].
//!
//! # Errors
//!
//! A method `-> T` gives its caller `Result<T, Status>`. A method `-> Result<T, E>` gives
//! `Result<T, CallError<E>>`, which is either the method's own error or a [`Status`]. A status has
//! one of gRPC's codes, a text that says what to do, and says whether the call may be retried
//! ([`Status::is_retryable`]). A handler of a method `-> Result<T, CallError<E>>` may return either
//! kind of error, so that `?` works through whole chains of services; see [`CallError`]. If a
//! handler panics, the caller gets `Internal`, and the connection stays open.
//!
//! # Deadlines and cancellation
//!
//! A deadline travels as the remaining time. Both ends enforce it, and calls made inside a handler
//! inherit it. Dropping a call cancels its handler, which is dropped with everything it holds.
//!
//! ```
//! # #[rpc_core::service] pub trait Slow { async fn never(&self); }
//! # struct S; impl Slow for S { async fn never(&self) { std::future::pending().await } }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = rpc_core::Server::builder().add_service(SlowServer::new(S));
//! # let server = server.bind("mem://deadlines").await?;
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
//! A method `-> impl Stream<Item = T>` streams its results. An argument `Streaming<T>` is a stream
//! from the caller. A method may have both. Streams have back-pressure: a slow reader only blocks
//! its own sender. The module [`stream`] describes the shapes, the ends and the options.
//!
//! # Reconnecting and retries
//!
//! A [`Channel`] outlives its connections. Unsent calls are retried automatically. Calls that may
//! have reached the server are retried only if the method is marked `#[rpc(idempotent)]`; all other
//! methods run at most once. [`ChannelBuilder`] has the options: lazy or eager connections, wait
//! for the server or fail fast, retries, and several servers.
//!
//! # Large payloads
//!
//! Byte strings of 8 KiB and more ([`Bulk`], [`bytes::Bytes`], `Vec<u8>`, `&[u8]`) are not copied
//! into the message, but transferred by RDMA WRITE into memory that the receiver has advertised.
//! [`BulkReader`](bulk::BulkReader) reads a payload while it arrives. [`BulkPool`] provides memory
//! that is sent without a copy.
//!
//! # Interceptors and middleware
//!
//! The module [`interceptor`] has functions that run before and after each call. Middleware that
//! awaits something or sees responses is a layer: a server takes anything that implements
//! [`service::Dispatch`], and a layer is a `Dispatch` that wraps another one.
//!
//! # Testing
//!
//! [`Channel::to`] connects to a service inside this process, over the same engine; `mem://name`
//! does so by name. Tokio's paused clock is supported, so that timeouts take no real time. To test
//! a handler without a connection, use [`Context::scope`] with the deadline, metadata and peer of
//! your choice.
//!
//! A fake is another implementation of the trait. The client in front of it is the real one, so the
//! code under test meets real deadlines, cancellation and errors:
//!
//! ```
//! # #[rpc_core::service]
//! # pub trait Weather { async fn degrees(&self, city: &str) -> Result<f64, Status>; }
//! use std::collections::VecDeque;
//! use std::sync::{Arc, Mutex};
//! use std::time::Duration;
//!
//! use rpc_core::{Channel, Code, Status};
//!
//! /// Returns the answers that a test has queued, then never answers, and records each city.
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
//! To replace the client itself, or to write code that is generic over clients,
//! `#[service(client_trait = WeatherCalls)]` generates a trait that the client implements:
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
//! # Features
//!
//! | feature | default | content |
//! |---|---|---|
//! | `macros` | yes | [`macro@service`], and the built-in services [`health`] and [`reflect`] |
//! | `bincode` | yes | the default codec |
//! | `postcard` | yes | a second, more compact codec |
//! | `msgpack` | no | a codec with names, for methods that ask for it |
//! | `metrics` | no | `stats::MetricsPublisher`: statistics through the crate `metrics` |
//! | `rules` | no | rules of who may call what, from a file: `server::Allow::from_file` |
//! | `tls` | no | certificates for connections: `security::Tls` |
//! | `verbs` | no | RDMA devices; needs libibverbs, librdmacm, libclang, pkg-config |
//!
//! # Limits
//!
//! The crate runs on Linux only. A message has at most 64 MiB unless
//! [`LinkConfig::max_message_bytes`] says otherwise, and must fit into `assembly_bytes` unless it
//! is read as a [`BulkReader`](bulk::BulkReader). Types must be equal at both ends; a difference is
//! an error that names the field, and `docs/changing-types.md` explains how to change a type in a
//! running system. No sequence of safe calls, and no peer, causes undefined behaviour.
//! `SECURITY.md` lists what is promised to whom, and what a hostile process of the same user can do
//! over shared memory.

// Generated code names `rpc_core`; this makes it resolve in this crate's own tests.
#[cfg(test)]
extern crate self as rpc_core;

/// The examples of the documents.
#[cfg(all(doctest, feature = "tls"))]
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
pub mod identity;
pub mod interceptor;
mod layout;
mod learnt;
pub mod metadata;
mod method;
mod reply;
mod resolution;
mod runtime;
#[cfg(feature = "macros")]
pub mod schema;
mod secured;
#[cfg(feature = "tls")]
pub mod security;
pub mod server;
pub mod service;
#[doc(hidden)]
pub mod session;
pub mod signal;
pub mod stats;
pub mod status;
pub mod stream;
pub mod trace;
pub mod transport;
#[doc(hidden)]
pub mod wire;

pub use rpc_transport::address::Address;
pub use rpc_transport::device::connection_error::{ConnectError, ListenError, SetUpPhase};
pub use rpc_transport::engine::spin::PollMode;
pub use rpc_transport::protocol::config::LinkConfig;
#[doc(hidden)]
pub use rpc_transport::text;

#[cfg(feature = "macros")]
pub use crate::builtin::{health, reflect};
pub use crate::bulk::{Bulk, BulkPool};
pub use crate::client::call::Call;
pub use crate::client::{Channel, ChannelBuilder};
pub use crate::codec::Codec;
pub use crate::context::Context;
pub use crate::metadata::Metadata;
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
