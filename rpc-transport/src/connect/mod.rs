//! From an address to a connection's first byte: what users name, and which device serves it.
//!
//! **Owns** addresses, the choice of a device and of a path, and the errors of connecting and
//! listening. **Never** touches a queue pair: that is the engine's.

pub mod address;
pub mod error;
mod negotiate;
mod rdma;
mod resolved;
pub mod schemes;
