//! Shared parts of the end-to-end tests: the service under test, its processes, a hostile peer, and
//! the limits that end a test that hangs.
//!
//! | file | idea |
//! |---|---|
//! | `probe` | the trait that the tests call, and its types |
//! | `service` | its implementation, which reports how each handler ended |
//! | `journal` | gates that handlers wait at, and marks that they leave |
//! | `chain` | three services that call each other |
//! | `flow` | a service with streams |
//! | `changed` | two traits of one name whose types differ in their content |
//! | `versions` | two traits of one name with different methods |
//! | `ledger` | a service with effects in a file that outlives it |
//! | `load` | callers of ledgers that count their certain results |
//! | `raw` | a service without a macro, for statuses with details |
//! | `limit` | a test's own runtime, with a hard time limit |
//! | `process` | server and client processes that die with the test |
//! | `agent` | programs of the tests on another machine |
//! | `scheme` | an unused address of each scheme |
//! | `socket_file` | the file that a killed server leaves, and its removal |
//! | `device` | the kind of device at both ends of a test |
//! | `world` | a server at such an address, and clients of it |
//! | `hostile` | a peer that speaks below the link |
//! | `resources` | what a process holds: fds, memory, tasks, CPU time |
//! | `workspace` | the files of the workspace, for tests that read them |
//! | `house` | numbers of its style and structure, with their goals |

pub mod agent;
pub mod chain;
pub mod changed;
pub mod depot;
pub mod device;
pub mod flow;
pub mod hostile;
pub mod house;
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
pub mod workspace;
pub mod world;

pub mod example;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use rpc_core::service::Dispatch;
use rpc_core::{Channel, Codec, PollMode, Server};

/// The codecs; every behaviour has to be equal with each.
pub const CODECS: [Codec; 2] = [Codec::Bincode, Codec::Postcard];

/// An unused `mem://` address.
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

/// Serves `service` over `mem://` under a unique name, on the current runtime, and connects.
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

/// Serves `service` on a thread and a runtime of its own, until the process ends; returns the
/// address. For tests without a runtime.
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
