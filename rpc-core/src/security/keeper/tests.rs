//! Peers with a proven identity and without a session of this crate: they ignore what they are
//! asked to do.

use std::sync::OnceLock;
use std::time::SystemTime;

use rpc_transport::address::Address;
use rpc_transport::connect::schemes;
use rpc_transport::device::connection_error::CloseCause;
use rpc_transport::engine::connection_key::ConnectionKey;
use rpc_transport::engine::driver::Driver;
use rpc_transport::engine::establish::completions_per_connection;
use rpc_transport::engine::executor::Executor;
use rpc_transport::engine::security::Security;
use rpc_transport::engine::shard::{Shard, State};
use rpc_transport::engine::spin::PollMode;
use rpc_transport::engine::upper::{Outside, Revoke, Submission, UpperLayer};
use rpc_transport::message::received::Message;
use rpc_transport::protocol::config::LinkConfig;
use rpc_transport::protocol::link::SubmitError;
use test_kit::Watchdog;
use test_kit::certificates::{Authority, Leaf};
use tokio::time::Instant as Paused;

use super::*;
use crate::server::Server;
use crate::stats::StatsHandle;

const KV: &str = "spiffe://prod.example/ns/shop/sa/kv";
const CART: &str = "spiffe://prod.example/ns/shop/sa/cart";
const SECOND: Duration = Duration::from_secs(1);

/// Takes every message, and answers none.
struct Deaf(Arc<OnceLock<String>>);

impl UpperLayer for Deaf {
    type Action = ();

    fn on_established(&mut self, _: ConnectionKey, _: &PeerIdentity, _: u64) {}

    fn on_message(&mut self, _: Message, _: Revoke<'_>) -> Result<(), Arc<str>> {
        Ok(())
    }

    fn on_refused(&mut self, _: u64, _: &SubmitError) {}

    fn poll_transmit(&mut self) -> Option<Submission> {
        None
    }

    fn drain_actions(&mut self, _: &mut Outside<'_, ()>) {}

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn on_timeout(&mut self, _: Instant, _: Revoke<'_>) {}

    fn on_closed(&mut self, cause: &CloseCause, _: Revoke<'_>) {
        self.0.set(cause.to_string()).unwrap();
    }

    fn on_released(&mut self) {}

    fn is_idle(&self) -> bool {
        true
    }
}

struct Idle;

impl Executor<Deaf> for Idle {
    fn execute(&mut self, _: ConnectionKey, (): ()) -> bool {
        false
    }

    fn discard(&mut self, (): ()) {}

    fn apply(&mut self, _: &mut State<Deaf>) {}

    fn has_results(&self) -> bool {
        false
    }
}

/// A server, and the end of a deaf client's connection to it, once there is one.
async fn deaf(name: &str, server: &Tls, client: &Tls) -> (StatsHandle, Arc<OnceLock<String>>) {
    let address = format!("mem://{name}");
    let server = Server::builder().tls(server.clone()).bind(&*address).await.unwrap();
    let stats = server.stats_handle();
    tokio::spawn(server.serve());
    let address: Address = address.parse().unwrap();
    let outgoing = schemes::resolve(&address).await.unwrap().outgoing;
    let (device, config) = (Arc::clone(outgoing.device()), LinkConfig::default());
    let domain = device.allocate_pd().unwrap();
    let shard = Shard::new(device, domain, completions_per_connection(&config)).unwrap();
    tokio::spawn(Driver::new(Arc::clone(&shard), Idle, PollMode::Event).unwrap());
    let cause = Arc::<OnceLock<String>>::default();
    let security = Security::new(Arc::new(Factory::client(client).unwrap()));
    let (protocol, limit) = (Deaf(Arc::clone(&cause)), 60 * SECOND);
    let connect = shard.connect_with(outgoing, &address, &config, limit, protocol, Some(&security));
    connect.await.unwrap();
    while stats.stats().connections.is_empty() {
        tokio::task::yield_now().await;
    }
    (stats, cause)
}

fn tls(leaf: &Leaf, authorities: &str) -> Tls {
    Tls::from_pem_bytes(&leaf.cert, &leaf.key, authorities).unwrap()
}

/// Waits for the end of the connection, and returns its cause and when that was.
async fn end(stats: &StatsHandle, cause: &OnceLock<String>, began: Paused) -> (String, Duration) {
    while !stats.stats().connections.is_empty() || cause.get().is_none() {
        tokio::time::sleep(SECOND / 10).await;
    }
    (cause.get().unwrap().clone(), began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_deaf_client_is_closed_all_the_same() {
    let _watchdog = Watchdog::start("a deaf client");
    let ca = Authority::new("ca");
    let (begin, began) = (SystemTime::now(), Paused::now());
    let leaf = ca.issue_with(&[CART], |params| params.not_after = (begin + 100 * SECOND).into());
    let server = tls(&ca.issue(&[KV]), &ca.pem()).rotation_grace(30 * SECOND);
    let server = server.with_clock(move || begin + began.elapsed());
    let client = tls(&leaf, &ca.pem()).expect_peer(KV);
    let (stats, cause) = deaf("deaf-grace", &server, &client).await;
    let (cause, lasted) = end(&stats, &cause, began).await;
    // It has no call that could end first.
    assert!(cause.contains("the peer closed the connection"), "{cause}");
    assert!(lasted >= 99 * SECOND && lasted < 132 * SECOND, "{lasted:?}");
}

#[tokio::test(start_paused = true)]
async fn who_is_revoked_is_closed_whatever_it_does() {
    let _watchdog = Watchdog::start("a deaf client that is revoked");
    let [ca, other] = ["ca", "other"].map(Authority::new);
    let file = std::env::temp_dir().join(format!("rpc-deaf-{}.pem", std::process::id()));
    let files = ["cert", "key", "ca"].map(|what| file.with_extension(what));
    let own = ca.issue(&[KV]);
    for (file, text) in files.iter().zip([&own.cert, &own.key, &(ca.pem() + &other.pem())]) {
        std::fs::write(file, text).unwrap();
    }
    let [cert, key, authorities] = &files;
    let server = Tls::from_pem(cert, key, authorities).unwrap();
    let client = tls(&other.issue(&[CART]), &ca.pem()).expect_peer(KV);
    let (stats, cause) = deaf("deaf-revoked", &server, &client).await;
    std::fs::write(authorities, ca.pem()).unwrap();
    assert_eq!(server.reload(), Ok(true));
    let (cause, lasted) = end(&stats, &cause, Paused::now()).await;
    assert!(cause.contains("no longer trusted"), "{cause}");
    assert!(lasted < SECOND, "{lasted:?}");
    for file in files {
        std::fs::remove_file(file).unwrap();
    }
}
