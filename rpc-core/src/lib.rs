//! RPC over RDMA: annotate a trait, call it from another process.
