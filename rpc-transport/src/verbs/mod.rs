//! Real RDMA devices (cargo feature `verbs`): RC queue pairs of libibverbs, connected by rdma_cm.
mod cm;
mod ffi;
mod send_ring;
mod sockaddr;
mod status;
mod wr_key;
