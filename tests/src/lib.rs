//! Shared parts of the end-to-end tests: the service under test, the processes it runs in, a
//! hostile peer, and the limits that keep a stuck test from staying.
//!
//! | file | idea |
//! |---|---|
//! | `probe` | the trait that the tests call, and its types |
//! | `service` | its implementation, which tells what became of each handler |
//! | `journal` | gates that handlers wait at, and marks that they leave |
//! | `versions` | two traits of one name with different methods |
//! | `raw` | a service without a macro, for statuses with details |
//! | `limit` | a test's own runtime, with a hard end |
//! | `process` | server and client processes that die with the test |
//! | `scheme` | an address of each scheme that nobody else uses |
//! | `world` | a server at such an address, and clients of it |
//! | `hostile` | a peer that speaks below the link |
//! | `resources` | what a process holds: fds, memory, tasks, CPU time |

pub mod hostile;
pub mod journal;
pub mod limit;
pub mod probe;
pub mod process;
pub mod raw;
pub mod resources;
pub mod scheme;
pub mod service;
pub mod versions;
pub mod world;

use std::sync::atomic::{AtomicU64, Ordering};

use rpc_core::service::Dispatch;
use rpc_core::{Channel, Codec, PollMode, Server};

/// Serves `service` over `mem://` under a name of its own, on the current runtime, and connects.
///
/// # Panics
/// When the server cannot be bound or connected.
pub async fn in_process(service: impl Dispatch, codec: Codec) -> Channel {
    static NAMES: AtomicU64 = AtomicU64::new(0);
    let address = format!("mem://in-process-{}", NAMES.fetch_add(1, Ordering::Relaxed));
    let server = Server::builder()
        .add_service(service)
        .poll_mode(PollMode::Event)
        .bind(&address)
        .await
        .expect("a fresh mem:// name can be bound");
    tokio::spawn(server.serve());
    Channel::builder()
        .codec(codec)
        .poll_mode(PollMode::Event)
        .connect(&address)
        .await
        .expect("a server that has been bound can be connected")
}
