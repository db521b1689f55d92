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
