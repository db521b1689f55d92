//! RPC over RDMA: annotate a trait, call it from another process.

#[doc(hidden)]
#[path = "private.rs"]
pub mod __private;
mod blob;
pub mod blocking;
pub mod client;
pub mod codec;
pub mod context;
pub mod handler;
pub mod metadata;
mod recycled;
pub mod service;
mod shape;
pub mod status;

pub use crate::client::{Call, Channel, ConnectError};
pub use crate::codec::Codec;
pub use crate::context::Context;
pub use crate::metadata::Metadata;
pub use crate::status::{CallError, Code, Status};
#[cfg(feature = "macros")]
pub use rpc_macros::service;

/// Byte strings that are cheap to clone, as arguments and results.
pub use bytes;
/// What argument and result types implement.
pub use serde;
