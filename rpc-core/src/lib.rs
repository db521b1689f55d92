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
//! Addresses: `auto://host:port` (the best way to that host), `shm://name`, `shm:///path`,
//! `tcp://host:port`, `rdma://host:port` (feature `verbs`), `mem://name` (this process).

// The macro's paths in this crate's own tests.
#[cfg(test)]
extern crate self as rpc_core;

#[doc(hidden)]
pub mod __private;
pub mod bulk;
pub mod client;
pub mod codec;
pub mod context;
mod endpoint;
pub mod metadata;
pub mod server;
pub mod service;
pub mod session;
pub mod status;
pub mod wire;

pub use rpc_transport::connect::address::Address;
pub use rpc_transport::connect::error::{CloseCause, ConnectError, ListenError};
pub use rpc_transport::device::PeerIdentity;
pub use rpc_transport::engine::spin::PollMode;
pub use rpc_transport::memory::mapped::MappedFile;
pub use rpc_transport::message::payload::Payload;
pub use rpc_transport::protocol::arena::ArenaConfig;
pub use rpc_transport::protocol::config::{Isolation, LinkConfig};

pub use crate::bulk::{Bulk, BulkMut, BulkPool, BulkReader, ReplySlot};
pub use crate::client::call::{Call, StartedCall};
pub use crate::client::{Channel, ChannelBuilder, Path};
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
/// What argument and result types implement.
pub use serde;
