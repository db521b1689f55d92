//! Transport of an RPC framework over RDMA: devices behind one seam, links with credit flow
//! control on top of them, and the engine that moves bytes between the two.
//!
//! Knows nothing of calls, methods or codecs: those live in `rpc-core`, the crate to depend on.

pub mod connect;
pub mod device;
#[doc(hidden)]
pub mod engine;
pub mod log_limit;
pub mod memory;
#[doc(hidden)]
pub mod message;
#[doc(hidden)]
pub mod protocol;
mod sync;
#[doc(hidden)]
pub mod user_code;

pub use crate::engine::spin::PollMode;
pub use crate::protocol::arena::ArenaConfig;
pub use crate::protocol::config::{ConfigError, Isolation, LinkConfig};
