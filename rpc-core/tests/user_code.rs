//! User code runs and user values are dropped where they can do no harm.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use rpc_core::service::{Dispatch, Handler, MethodDescriptor, Request, ServiceDescriptor};
use rpc_core::{Channel, Code, Server, Status};

#[rpc_core::service]
trait Failing {
    async fn at_once(&self) -> Result<(), Status>;
    async fn later(&self) -> Result<(), Status>;
    async fn dropped(&self) -> bool;
}

/// An error whose drop needs the server: a connection can be made only while no shard is locked.
#[derive(Debug)]
struct Demanding {
    address: &'static str,
    got_it: Arc<AtomicBool>,
}

impl std::fmt::Display for Demanding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("demanding")
    }
}

impl std::error::Error for Demanding {}

impl Drop for Demanding {
    fn drop(&mut self) {
        let (done, is_done) = mpsc::channel();
        let address = self.address;
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            done.send(runtime.block_on(Channel::connect(address)).is_ok())
        });
        // Reached only by a hanging test.
        let connected = is_done.recv_timeout(Duration::from_secs(8)) == Ok(true);
        self.got_it.fetch_and(connected, Ordering::SeqCst);
    }
}

struct Service {
    address: &'static str,
    got_it: Arc<AtomicBool>,
}

impl Service {
    fn fail(&self) -> Result<(), Status> {
        let (address, got_it) = (self.address, Arc::clone(&self.got_it));
        let source = Arc::new(Demanding { address, got_it });
        Err(Status::aborted("on purpose")
            .with_source(source as Arc<dyn std::error::Error + Send + Sync>))
    }
}

impl Failing for Service {
    async fn at_once(&self) -> Result<(), Status> {
        self.fail()
    }

    async fn later(&self) -> Result<(), Status> {
        tokio::task::yield_now().await;
        self.fail()
    }

    async fn dropped(&self) -> bool {
        self.got_it.load(Ordering::SeqCst)
    }
}

/// Regression: the status of a handler was dropped under the lock of its shard, and with it its
/// user-defined source.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_status_is_dropped_outside_the_lock() {
    let address = "mem://user-code-status";
    let service = Service { address, got_it: Arc::new(AtomicBool::new(true)) };
    let server = Server::builder().add_service(FailingServer::new(service)).bind(address);
    tokio::spawn(server.await.unwrap().serve());
    let client = FailingClient::connect(address).await.unwrap();
    for call in [client.at_once(), client.later()] {
        let code = match call.await.unwrap_err() {
            rpc_core::CallError::User(status) | rpc_core::CallError::Status(status) => {
                status.code()
            }
        };
        assert_eq!(code, Code::Aborted);
        assert_eq!(client.dropped().await, Ok(true));
    }
}

struct Bomb(&'static ServiceDescriptor);

impl Dispatch for Bomb {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        self.0
    }

    fn dispatch(&self, _: usize, _: Request) -> Handler {
        panic!("on purpose")
    }
}

/// Regression: a panic of a dispatcher ended its shard's driver and every connection.
#[tokio::test]
async fn a_dispatcher_that_panics_costs_its_call() {
    static METHOD: MethodDescriptor = MethodDescriptor::new("Bomb.call", "() -> ()", &[]);
    static SERVICE: ServiceDescriptor = ServiceDescriptor::new("Bomb", &[&METHOD]);
    let server = Server::builder().add_service(Bomb(&SERVICE)).bind("mem://user-code-bomb");
    tokio::spawn(server.await.unwrap().serve());
    let client = Channel::connect("mem://user-code-bomb").await.unwrap();
    for _ in 0..3 {
        let status = client.call(&METHOD, &(), |parts| parts.outcome.map(drop)).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::Internal, "the dispatcher panicked"));
    }
    assert!(client.close_cause().is_none());
}
