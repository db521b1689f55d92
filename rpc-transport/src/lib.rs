//! Transport of an RPC framework over RDMA: devices behind one seam, links with credit flow
//! control on top of them, and the driver that moves bytes between the two.
//!
//! Knows nothing of calls, methods or codecs: those live in `rpc-core`, the crate to depend on.

pub mod address;
pub mod arena;
mod auto;
pub mod config;
mod connection;
pub mod credit;
mod doorbell;
pub mod driver;
pub mod error;
pub mod fault;
pub mod frame;
pub mod handshake;
pub mod link;
pub mod mapped;
pub mod memory;
mod memory_payload;
pub mod memory_registered;
pub mod memory_shared;
pub mod message;
pub mod out_part;
pub mod outbound;
pub mod payload;
pub mod payload_stream;
pub mod protocol;
pub mod protocol_error;
pub mod provider;
pub mod reply_slot;
pub mod schemes;
pub mod setup;
pub mod shard;
pub mod soft;
pub mod spin;
#[cfg(feature = "verbs")]
pub mod verbs;
