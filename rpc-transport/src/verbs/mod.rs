//! Real RDMA devices (cargo feature `verbs`): RC queue pairs of libibverbs, connected by rdma_cm.
mod cm;
mod ffi;
