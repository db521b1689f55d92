//! Real RDMA devices (cargo feature `verbs`): RC queue pairs of libibverbs, connected by rdma_cm.
//!
//! Owns everything that touches libibverbs and librdmacm. Never knows messages or credits.
//!
//! | file | idea |
//! |---|---|
//! | `ffi` | the only user of the bindings crate: names, constants, layouts |
//! | `cm` | the connection manager's conversation, a pure state table |
//! | `id_link` | which of its ids is meant, and when it is closed |
//! | `service`, `dispatcher`, `conversation`, `cm_id` | its one thread, and all calls of librdmacm |
//! | `connect`, `errands`, `listen`, `setup_qp`, `options`, `failure` | connecting and listening |
//! | `local_end` | which devices and addresses of this machine `dev` and `src` leave |
//! | `context`, `device`, `async_events` | devices, their limits, their asynchronous errors |
//! | `memory`, `pages`, `limits` | protection domains, registration, memory for it, the limit on locked memory |
//! | `queue`, `qp_table`, `completion_channel`, `mailbox` | the CQ, its events, messages from other threads |
//! | `queue_pair`, `work_queues`, `send_ring`, `srq`, `shared_queue`, `recv_post`, `wr_key`, `batch`, `status` | QPs, SRQs and what is posted |
//! | `reaper` | the thread that destroys objects |
//! | `preflight` | what is missing on this machine, and what to do |
//!
//! Two threads serve the process: `rdma-cm` sets connections up and learns of their end,
//! `rdma-reaper` destroys objects. Both sleep while there is nothing to do. Posting and polling
//! happen on the CQ owner's thread, without a lock.

mod async_events;
mod batch;
mod cm;
mod cm_id;
mod completion_channel;
mod connect;
mod context;
mod conversation;
mod device;
mod dispatcher;
mod errands;
mod failure;
mod ffi;
mod id_link;
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
mod shared_queue;
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
