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

#[doc(hidden)]
#[path = "private.rs"]
pub mod __private;
pub mod blocking;
pub mod call;
pub mod client;
pub mod codec;
pub mod context;
mod executor;
pub mod handler;
pub mod metadata;
mod peer;
mod recycled;
pub mod server;
pub mod service;
pub mod session;
#[doc(hidden)]
pub mod shape;
pub mod status;
pub mod wire;

pub use rpc_transport::address::Address;
pub use rpc_transport::config::LinkConfig;
pub use rpc_transport::error::{CloseCause, ConnectError, ListenError};
pub use rpc_transport::provider::PeerIdentity;
pub use rpc_transport::spin::PollMode;

pub use crate::call::{Call, StartedCall};
pub use crate::client::{Channel, ChannelBuilder, Path};
pub use crate::codec::Codec;
pub use crate::context::Context;
pub use crate::metadata::Metadata;
pub use crate::server::{Server, ServerBuilder, ShutdownHandle};
pub use crate::status::{CallError, Code, Status};
#[cfg(feature = "macros")]
pub use rpc_macros::service;
