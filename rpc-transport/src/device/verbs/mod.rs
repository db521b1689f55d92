//! Real RDMA devices (cargo feature `verbs`): RC queue pairs of libibverbs, connected by rdma_cm.
//!
//! Owns everything that touches libibverbs and librdmacm. Never knows messages or credits.
//!
//! | file | idea |
//! |---|---|
//! | `ffi` | the only user of the bindings crate: names, constants, layouts |
//! | `cm` | the connection manager's conversation, a pure state table |
//! | `id_link` | which of its ids is meant, and when it is closed |
//! | `service`, `dispatcher`, `conversation`, `due`, `cm_id` | its thread, all calls of librdmacm |
//! | `connect`, `listen`, `setup_qp`, `options`, `failure` | connecting and listening |
//! | `blocking_pool` | threads for calls that block |
//! | `local_end` | which devices and addresses of this machine `dev` and `src` leave |
//! | `context`, `device`, `async_events` | devices, their limits, their asynchronous errors |
//! | `memory`, `pages`, `limits` | protection domains, registration, windows, locked memory |
//! | `queue`, `qp_table`, `completion_channel` | the CQ and its events |
//! | `mailbox` | messages from other threads |
//! | `queue_pair`, `work_queues`, `send_ring`, `srq` | QPs and SRQs |
//! | `recv_post`, `wr_key`, `batch`, `status` | work requests and completions |
//! | `reaper` | the thread that destroys objects |
//! | `inherited` | a child of a process that uses RDMA |
//! | `preflight` | what is missing on this machine, and what to do |
//!
//! Two threads serve the process: `rdma-cm` sets connections up and learns of their end,
//! `rdma-reaper` destroys objects. Both sleep while there is nothing to do. Posting and polling
//! happen on the CQ owner's thread, without a lock.

mod async_events;
mod batch;
mod blocking_pool;
mod cm;
mod cm_id;
mod completion_channel;
mod connect;
mod context;
mod conversation;
mod device;
mod dispatcher;
mod due;
mod failure;
mod ffi;
mod id_link;
mod inherited;
mod limits;
mod listen;
mod local_end;
mod mailbox;
mod memory;
mod options;
mod pages;
mod ports;
mod preflight;
mod qp_table;
mod queue;
mod queue_pair;
mod quirks;
mod reaper;
mod recv_post;
mod send_ring;
mod service;
mod setup_qp;
mod sockaddr;
mod srq;
mod status;
mod tcp_port;
mod work_queues;
mod workers;
mod wr_key;

pub use connect::VerbsConnector;
pub(crate) use connect::look_up;
pub use device::devices;
pub(crate) use limits::too_little as lacks_locked_memory;
pub use listen::listen;
pub use options::{ACK_TIMEOUT_VARIABLE, SetupOptions, TRAFFIC_CLASS_VARIABLE};
pub use preflight::{
    DeviceReport, Finding, Gid, NumaNode, Overlap, Port, PortCounters, Report, Severity, preflight,
};
pub use reaper::wait_for_teardown;
