//! The transport of `rpc-over-rdma`: devices, flow control, and the engine that moves bytes.
//!
//! Applications depend on `rpc-over-rdma`, which uses this crate and re-exports what they need. Use
//! this crate directly to add a device: [`device`] has the contract that a device implements, with
//! a complete example, and [`connect`] has addresses and their transports.
//!
//! An RDMA device moves messages between the memory of two processes without their kernel: a
//! program posts send, receive and write requests to a *queue pair*, and polls a *completion queue*
//! for the results. This crate has such a device in software, over shared memory, TCP, or inside
//! one process, so that no RDMA hardware is required. The feature `verbs` adds real devices,
//! through libibverbs and librdmacm.
//!
//! On top of the devices, a link adds flow control by credits, so that a message never arrives
//! without a buffer for it. [`LinkConfig`] and [`ArenaConfig`] configure the link, and [`PollMode`]
//! selects how its driver waits. The crate knows nothing of calls, methods or codecs.

pub mod address;
pub mod connect;
pub mod device;
#[doc(hidden)]
pub mod engine;
#[doc(hidden)]
pub mod error;
pub mod lock;
pub mod log_limit;
pub mod memory;
#[doc(hidden)]
pub mod message;
mod place;
#[doc(hidden)]
pub mod protocol;
#[cfg(feature = "model")]
#[doc(hidden)]
pub mod simulation;
mod sync;
pub mod text;
#[doc(hidden)]
pub mod user_code;
pub mod wait;

pub use crate::engine::spin::PollMode;
pub use crate::protocol::arena::ArenaConfig;
pub use crate::protocol::config::{ConfigError, Isolation, LinkConfig};
