//! Connecting and listening: addresses, and the choice of the device that serves one.
//!
//! **Owns** addresses, the choice of a device and of a path, and the errors of connecting and
//! listening. **Never** touches a queue pair: the engine does.

mod negotiate;
mod rdma;
mod resolved;
pub mod schemes;
