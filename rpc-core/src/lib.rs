//! RPC over RDMA: annotate a trait, call it from another process.

pub mod session;
pub mod wire;
