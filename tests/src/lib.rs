//! Shared parts of the end-to-end tests: the service under test, the processes it runs in, a
//! hostile peer, and the limits that keep a stuck test from staying.
//!
//! | file | idea |
//! |---|---|
//! | `probe` | the trait that the tests call, and its types |
//! | `service` | its implementation, which tells what became of each handler |
//! | `journal` | gates that handlers wait at, and marks that they leave |
//! | `chain` | three services that call each other |
//! | `flow` | a service with streams |
//! | `changed` | two traits of one name whose types differ in their content |
//! | `versions` | two traits of one name with different methods |
//! | `ledger` | a service whose deeds are in a file, so that they outlive it |
//! | `load` | callers of ledgers that count what they know |
//! | `raw` | a service without a macro, for statuses with details |
//! | `limit` | a test's own runtime, with a hard end |
//! | `process` | server and client processes that die with the test |
//! | `agent` | programs of the tests on another machine |
//! | `scheme` | an address of each scheme that nobody else uses |
//! | `socket_file` | what a killed server leaves, and who removes it |
//! | `device` | the kind of device that both ends of a test have |
//! | `world` | a server at such an address, and clients of it |
//! | `hostile` | a peer that speaks below the link |
//! | `resources` | what a process holds: fds, memory, tasks, CPU time |

pub mod agent;
pub mod chain;
pub mod changed;
pub mod device;
pub mod flow;
pub mod hostile;
pub mod journal;
pub mod ledger;
pub mod limit;
pub mod load;
pub mod probe;
pub mod process;
pub mod raw;
pub mod resources;
pub mod scheme;
pub mod service;
mod socket_file;
pub mod versions;
pub mod world;

pub mod example;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use rpc_core::service::Dispatch;
use rpc_core::{Channel, Codec, PollMode, Server};

/// The codecs, each of which every behaviour has to be the same with.
pub const CODECS: [Codec; 2] = [Codec::Bincode, Codec::Postcard];

/// A `mem://` address that nobody has.
fn fresh_address() -> String {
    static NAMES: AtomicU64 = AtomicU64::new(0);
    format!("mem://in-process-{}", NAMES.fetch_add(1, Ordering::Relaxed))
}

/// A server of `service` at `address`, with its listener open.
async fn bound(service: impl Dispatch, address: &str) -> Server {
    Server::builder()
        .add_service(service)
        .poll_mode(PollMode::Event)
        .bind(address)
        .await
        .expect("a fresh mem:// name can be bound")
}

/// Serves `service` over `mem://` under a name of its own, on the current runtime, and connects.
///
/// # Panics
/// When the server cannot be bound or connected.
pub async fn in_process(service: impl Dispatch, codec: Codec) -> Channel {
    let address = fresh_address();
    tokio::spawn(bound(service, &address).await.serve());
    connect(&address, codec).await
}

/// Connects to a server of this process.
///
/// # Panics
/// When it cannot be connected.
pub async fn connect(address: &str, codec: Codec) -> Channel {
    Channel::builder()
        .codec(codec)
        .poll_mode(PollMode::Event)
        .connect(address)
        .await
        .expect("a server that has been bound can be connected")
}

/// Serves `service` on a thread and a runtime of its own, until the process ends; gives the
/// address. For tests that have no runtime themselves.
///
/// # Panics
/// When the server cannot be bound.
#[must_use]
pub fn serve_elsewhere(service: impl Dispatch) -> String {
    let address = fresh_address();
    let (ready, wait) = mpsc::channel();
    let name = address.clone();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime can be built");
        runtime.block_on(async move {
            let server = bound(service, &name).await;
            ready.send(()).expect("the test waits");
            server.serve().await.expect("the server serves");
        });
    });
    wait.recv().expect("the server is bound");
    address
}
