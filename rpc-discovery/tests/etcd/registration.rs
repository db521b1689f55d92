//! Servers that register themselves in a real etcd.

use std::time::Duration;

use rpc_core::client::resolve::{Endpoint, Resolve};
use rpc_core::{Channel, Server, ShutdownHandle};
use rpc_discovery::Etcd;
use test_kit::Watchdog;
use tokio::task::JoinHandle;

use super::process;
use super::watched::{Watched, quick};

#[rpc_core::service]
trait Greeter {
    #[rpc(idempotent)]
    async fn greet(&self) -> String;
}

struct Polite;

impl Greeter for Polite {
    async fn greet(&self) -> String {
        "Good day".into()
    }
}

struct Serving {
    address: String,
    handle: ShutdownHandle,
    task: JoinHandle<()>,
}

async fn serve(etcd: Etcd, drain_lead: Duration) -> Serving {
    let server = Server::builder()
        .add_service(GreeterServer::new(Polite))
        .register(etcd)
        .drain_lead(drain_lead)
        .bind("tcp://127.0.0.1:0")
        .await
        .unwrap();
    let (address, handle) = (server.local_address().to_string(), server.shutdown_handle());
    let task = tokio::spawn(async move { server.serve().await.unwrap() });
    Serving { address, handle, task }
}

#[tokio::test]
async fn a_registered_server_is_found_until_it_leaves() {
    let _watchdog = Watchdog::start("a registered server");
    let etcd = process::Etcd::start();
    let resolver = quick(&etcd.name("rpc/kv"));
    let server = serve(resolver.clone().weight(7).zone("a"), Duration::from_secs(1)).await;
    let mut watched = Watched::new(&resolver);
    watched.until(&[&server.address]).await;
    let found = &watched.set[0];
    assert_eq!((found.weight(), found.zone(), found.is_draining()), (7, Some("a"), false));
    let channel = Channel::builder().wait_for_ready(true).connect_balanced(resolver.clone());
    let greeter = GreeterClient::new(channel.unwrap());
    assert_eq!(greeter.greet().await.unwrap(), "Good day");
    server.handle.shutdown();
    // First clients go elsewhere. The set of before may be confirmed meanwhile.
    while !watched.set.first().is_some_and(Endpoint::is_draining) {
        watched.next().await;
        assert_eq!(watched.addresses(), [server.address.clone()].into());
    }
    assert_eq!(greeter.greet().await.unwrap(), "Good day", "it serves on");
    watched.until(&[]).await;
    server.task.await.unwrap();
    assert_eq!(etcd.ctl(&["lease", "list"]).lines().next(), Some("found 0 leases"));
}

#[tokio::test]
async fn a_killed_server_is_gone_with_its_lease() {
    let _watchdog = Watchdog::start("a server that is killed");
    let etcd = process::Etcd::start();
    let resolver = quick(&etcd.name("rpc/kv"));
    let server = serve(resolver.clone().lease(Duration::from_secs(2)), Duration::ZERO).await;
    let mut watched = Watched::new(&resolver);
    watched.until(&[&server.address]).await;
    server.task.abort();
    watched.until(&[]).await;
    assert_eq!(watched.errors, Vec::<String>::new());
}

#[tokio::test]
async fn a_revoked_lease_is_replaced() {
    let _watchdog = Watchdog::start("a lease that is revoked");
    let etcd = process::Etcd::start();
    let resolver = quick(&etcd.name("rpc/kv"));
    let server = serve(resolver.clone().lease(Duration::from_secs(2)), Duration::ZERO).await;
    let mut watched = Watched::new(&resolver);
    watched.until(&[&server.address]).await;
    let leases = etcd.ctl(&["lease", "list"]);
    etcd.ctl(&["lease", "revoke", leases.lines().nth(1).unwrap()]);
    watched.until(&[]).await;
    watched.until(&[&server.address]).await;
}

/// Its keep-alives get no answer for longer than the lease lasts.
#[tokio::test]
async fn a_stopped_etcd_gets_the_key_again() {
    let _watchdog = Watchdog::start("a lease while etcd is stopped");
    let etcd = process::Etcd::start();
    let resolver = quick(&etcd.name("rpc/kv"));
    let server = serve(resolver.clone().lease(Duration::from_secs(2)), Duration::ZERO).await;
    let mut watched = Watched::new(&resolver);
    watched.until(&[&server.address]).await;
    let before = etcd.ctl(&["lease", "list"]);
    etcd.stop();
    for _ in 0..4 {
        // A second each.
        resolver.resolve().await.unwrap_err();
    }
    etcd.resume();
    let is_new = || {
        let now = etcd.ctl(&["lease", "list"]);
        before.lines().skip(1).all(|lease| !now.contains(lease))
    };
    while !is_new() || watched.set.is_empty() {
        watched.next().await;
    }
}

#[tokio::test]
async fn a_wiped_etcd_gets_the_key_again() {
    let _watchdog = Watchdog::start("a registration in a wiped etcd");
    let mut etcd = process::Etcd::start();
    let resolver = quick(&etcd.name("rpc/kv"));
    let server = serve(resolver.clone().lease(Duration::from_secs(2)), Duration::ZERO).await;
    let mut watched = Watched::new(&resolver);
    watched.until(&[&server.address]).await;
    etcd.kill();
    etcd.wipe();
    etcd.restart();
    watched.until(&[&server.address]).await;
}

#[tokio::test]
async fn a_server_serves_without_its_registry() {
    let _watchdog = Watchdog::start("a server without its registry");
    let mut etcd = process::Etcd::start();
    let resolver = quick(&etcd.name("rpc/kv"));
    etcd.kill();
    let server = serve(resolver.clone(), Duration::ZERO).await;
    let greeter = GreeterClient::connect(&server.address).await.unwrap();
    assert_eq!(greeter.greet().await.unwrap(), "Good day");
    etcd.restart();
    Watched::new(&resolver).until(&[&server.address]).await;
    etcd.kill();
    // It ends, though it cannot be removed.
    server.handle.shutdown();
    server.task.await.unwrap();
}

#[tokio::test]
async fn a_wildcard_server_is_refused() {
    let etcd: Etcd = "etcd://127.0.0.1:1/rpc/kv".parse().unwrap();
    let bind = |etcd: Etcd| Server::builder().register(etcd).bind("tcp://0.0.0.0:0");
    let error = bind(etcd.clone()).await.unwrap_err().to_string();
    assert!(error.contains("wildcard address") && error.contains("advertise"), "{error}");
    bind(etcd.advertise("tcp://localhost:0".parse().unwrap())).await.unwrap();
}
