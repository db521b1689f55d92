//! A fleet under load, whose servers and whose etcd come and go: no call fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rpc_core::client::BalancingPolicy;
use rpc_core::{Channel, Server, ShutdownHandle};
use rpc_discovery::Etcd;
use test_kit::Watchdog;
use tokio::task::{JoinHandle, JoinSet};

use super::process;
use super::watched::{Watched, quick};

const SERVERS: usize = 5;
const CLIENTS: usize = 3;

#[rpc_core::service]
trait Counter {
    async fn count(&self) -> u64;
}

struct Calls(Arc<AtomicU64>);

impl Counter for Calls {
    async fn count(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

struct Member {
    calls: Arc<AtomicU64>,
    address: String,
    handle: ShutdownHandle,
    task: JoinHandle<()>,
}

impl Member {
    async fn start(etcd: &Etcd) -> Self {
        let calls = Arc::<AtomicU64>::default();
        let server = Server::builder()
            .add_service(CounterServer::new(Calls(Arc::clone(&calls))))
            .register(etcd.clone().lease(Duration::from_secs(2)))
            .drain_lead(Duration::from_millis(300))
            .bind("tcp://127.0.0.1:0")
            .await
            .unwrap();
        let (address, handle) = (server.local_address().to_string(), server.shutdown_handle());
        let task = tokio::spawn(async move { server.serve().await.unwrap() });
        Self { calls, address, handle, task }
    }

    /// Waits until it has got some more calls.
    async fn works(&self) {
        let before = self.calls.load(Ordering::SeqCst);
        while self.calls.load(Ordering::SeqCst) < before + 10 {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_fails_whatever_the_registry_does() {
    let _watchdog = Watchdog::start("a fleet and its registry");
    let mut etcd = process::Etcd::start();
    let name = quick(&etcd.name("rpc/kv"));
    let mut servers = Vec::new();
    for _ in 0..SERVERS {
        servers.push(Member::start(&name).await);
    }
    let addresses = |servers: &[Member]| -> Vec<String> {
        servers.iter().map(|it| it.address.clone()).collect()
    };
    let mut watched = Watched::new(&name);
    let all = addresses(&servers);
    watched.until(&all.iter().map(String::as_str).collect::<Vec<_>>()).await;

    let ends = Arc::<AtomicBool>::default();
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (name, ends) = (name.clone(), Arc::clone(&ends));
        clients.spawn(async move {
            let policy = BalancingPolicy::new().subset(2 * SERVERS);
            let channel = Channel::builder().balancing(policy).connect_balanced(name).unwrap();
            let (client, mut calls) = (CounterClient::new(channel), 0_u64);
            while !ends.load(Ordering::SeqCst) {
                client.count().await.unwrap_or_else(|error| panic!("call {calls}: {error}"));
                calls += 1;
            }
            calls
        });
    }
    for server in &servers {
        server.works().await;
    }
    // A rolling restart.
    for server in &mut servers {
        let new = Member::start(&name).await;
        new.works().await;
        let old = std::mem::replace(server, new);
        old.handle.shutdown();
        old.task.await.unwrap();
    }
    // Without its registry.
    etcd.kill();
    for server in &servers {
        server.works().await;
    }
    // With one that has forgotten everything.
    etcd.wipe();
    etcd.restart();
    let new = Member::start(&name).await;
    new.works().await;
    servers.push(new);
    let all = addresses(&servers);
    watched.until(&all.iter().map(String::as_str).collect::<Vec<_>>()).await;
    for server in &servers {
        server.works().await;
    }
    ends.store(true, Ordering::SeqCst);
    while let Some(calls) = clients.join_next().await {
        assert!(calls.unwrap() > 0);
    }
}
