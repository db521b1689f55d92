//! Connections with TLS, from their handshake to their end: certificates end, are renewed and are
//! revoked, and nobody loses a call who is still trusted.

#![allow(missing_docs, reason = "tests")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use rpc_core::identity::FailureReason;
use rpc_core::security::Tls;
use rpc_core::stats::StatsHandle;
use rpc_core::{Channel, Code, ConnectError, Context, Server, Status};
use test_kit::Watchdog;
use test_kit::certificates::rcgen::KeyPair;
use test_kit::certificates::{Authority, Leaf};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::Instant;

const KV: &str = "spiffe://prod.example/ns/shop/sa/kv";
const CART: &str = "spiffe://prod.example/ns/shop/sa/cart";
const OTHER: &str = "spiffe://prod.example/ns/shop/sa/other";
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

#[rpc_core::service]
trait Store {
    async fn get(&self) -> u64;
    async fn last(&self, seconds: u64) -> u64;
    async fn bound(&self) -> Vec<u8>;
}

struct Shelf;

impl Store for Shelf {
    async fn get(&self) -> u64 {
        7
    }

    async fn last(&self, seconds: u64) -> u64 {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        seconds
    }

    async fn bound(&self) -> Vec<u8> {
        Context::current().channel_binding().expect("TLS").to_vec()
    }
}

/// The wall clock, which goes on with that of the runtime.
#[derive(Clone, Copy)]
struct Wall {
    begin: SystemTime,
    since: Instant,
}

impl Wall {
    fn new() -> Self {
        Self { begin: SystemTime::now(), since: Instant::now() }
    }

    fn now(self) -> SystemTime {
        self.begin + self.since.elapsed()
    }
}

/// An authority, and a directory with what it has issued.
struct World {
    ca: Authority,
    wall: Wall,
    dir: PathBuf,
    /// A paused clock goes on while a handshake waits for those of other tests in the process.
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());

impl World {
    fn new() -> Self {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("rpc-life-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let world = Self { ca: Authority::new("ca"), wall: Wall::new(), dir, _alone };
        world.write("ca.pem", &world.ca.pem());
        world
    }

    fn at(&self, file: &str) -> PathBuf {
        self.dir.join(file)
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.at(file), text).unwrap();
    }

    /// A certificate that is valid for so long from now on.
    fn leaf(&self, id: &str, serial: u64, lasts: Duration) -> Leaf {
        let now = self.wall.now();
        self.ca.issue_with(&[id], |params| {
            params.not_before = (now - HOUR).into();
            params.not_after = (now + lasts).into();
            params.serial_number = Some(serial.into());
        })
    }

    fn renew(&self, who: &str, id: &str, serial: u64, lasts: Duration) {
        let Leaf { cert, key } = self.leaf(id, serial, lasts);
        self.write(&format!("{who}.pem"), &cert);
        self.write(&format!("{who}-key.pem"), &key);
    }

    fn tls(&self, who: &str) -> Tls {
        let files = [format!("{who}.pem"), format!("{who}-key.pem"), "ca.pem".to_owned()];
        let [cert, key, ca] = files.map(|file| self.at(&file));
        let wall = self.wall;
        Tls::from_pem(cert, key, ca).unwrap().with_clock(move || wall.now())
    }

    fn client(&self, who: &str) -> Tls {
        self.tls(who).expect_peer(KV)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

async fn serve(tls: Tls, name: &'static str) -> StatsHandle {
    let server = Server::builder().tls(tls).add_service(StoreServer::new(Shelf));
    let server = server.bind(format!("mem://life-{name}")).await.unwrap();
    let stats = server.stats_handle();
    tokio::spawn(server.serve());
    stats
}

async fn connect(tls: Tls, name: &'static str) -> Result<StoreClient, ConnectError> {
    let channel = Channel::builder().tls(tls).connect(format!("mem://life-{name}")).await?;
    Ok(StoreClient::new(channel))
}

/// Calls every second, and a long call at any time, until it is to end. No call may fail.
fn caller(store: &StoreClient) -> impl AsyncFnOnce() -> u32 {
    let (store, ends) = (store.clone(), Arc::new(AtomicBool::new(false)));
    let until = Arc::clone(&ends);
    let running: JoinHandle<u32> = tokio::spawn(async move {
        let mut count = 0;
        while !until.load(Ordering::Relaxed) {
            let ((), long) = tokio::join!(
                async {
                    for _ in 0..20 {
                        tokio::time::sleep(SECOND).await;
                        assert_eq!(store.get().await, Ok(7));
                    }
                },
                store.last(20).timeout(HOUR),
            );
            assert_eq!(long, Ok(20));
            count += 21;
        }
        count
    });
    async move || {
        ends.store(true, Ordering::Relaxed);
        running.await.unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn a_fleet_rotates_without_a_lost_call() {
    let _watchdog = Watchdog::start("rotation");
    let world = World::new();
    let every = 10 * SECOND;
    world.renew("server", KV, 1, 300 * SECOND);
    world.renew("client", CART, 2, 200 * SECOND);
    let stats = serve(world.tls("server").reload_every(every), "rotation").await;
    let client = world.client("client").reload_every(every);
    let stores = [connect(client.clone(), "rotation").await, connect(client, "rotation").await];
    let stores = stores.map(Result::unwrap);
    let callers = stores.each_ref().map(caller);
    for serial in 0..10 {
        tokio::time::sleep(100 * SECOND).await;
        world.renew("client", CART, 10 + serial, 200 * SECOND);
        if serial % 2 == 0 {
            world.renew("server", KV, 30 + serial, 300 * SECOND);
        }
    }
    for end in callers {
        assert!(end().await > 800);
    }
    let stats = stats.stats();
    assert!(stats.accepted >= 10, "{} connections", stats.accepted);
    assert_eq!(stats.denied, 0);
    assert!(stats.connections.len() <= 4, "{:?}", stats.connections);
}

#[tokio::test(start_paused = true)]
async fn who_stays_after_its_end_is_closed() {
    let _watchdog = Watchdog::start("the grace of rotation");
    // The second one ends before the server would look at its connections by itself.
    for (name, life) in [("grace", 100 * SECOND), ("short-grace", 10 * SECOND)] {
        let world = World::new();
        world.renew("server", KV, 1, 9_000 * HOUR);
        world.renew("client", CART, 2, life);
        let stats = serve(world.tls("server"), name).await;
        let store = connect(world.client("client"), name).await.unwrap();
        let began = Instant::now();
        // Its call runs on, whatever the server says.
        let status = store.last(9_000).timeout(9 * HOUR).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert!(status.message().contains("has not been replaced in time"), "{status}");
        let grace = began.elapsed() - life;
        assert!(grace >= 59 * SECOND && grace <= 62 * SECOND, "{grace:?}");
        assert_eq!(stats.stats().connections.len(), 0);
        // Nor does it come in again.
        match connect(world.client("client"), name).await {
            Err(ConnectError::Handshake { failure, .. }) => {
                assert!(failure.text.contains("CertificateExpired"), "{failure}");
            }
            other => panic!("{:?}", other.map(|_| ())),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_is_left() {
    let _watchdog = Watchdog::start("the end of a server's certificate");
    let world = World::new();
    world.renew("server", KV, 1, 100 * SECOND);
    world.renew("client", CART, 2, HOUR);
    let server = world.tls("server");
    let stats = serve(server.clone(), "left").await;
    let store = connect(world.client("client"), "left").await.unwrap();
    let end = caller(&store);
    tokio::time::sleep(90 * SECOND).await;
    world.renew("server", KV, 3, HOUR);
    assert_eq!(server.reload(), Ok(true));
    tokio::time::sleep(90 * SECOND).await;
    assert!(end().await > 100);
    let stats = stats.stats();
    assert_eq!((stats.accepted, stats.connections.len()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn old_connections_are_made_anew() {
    let _watchdog = Watchdog::start("the age of connections");
    let world = World::new();
    world.renew("server", KV, 1, 90 * HOUR);
    world.renew("client", CART, 2, 90 * HOUR);
    let stats = serve(world.tls("server").max_session_age(HOUR), "age").await;
    let store = connect(world.client("client"), "age").await.unwrap();
    let end = caller(&store);
    tokio::time::sleep(4 * HOUR + HOUR / 2).await;
    end().await;
    assert_eq!(stats.stats().accepted, 5);
}

async fn closed(store: &StoreClient, text: &str) {
    let status = store.last(9_000).timeout(9 * HOUR).await.unwrap_err();
    assert!(status.message().contains(text), "{status}");
}

#[tokio::test(start_paused = true)]
async fn the_revoked_are_closed_at_once() {
    let _watchdog = Watchdog::start("revocation");
    let world = World::new();
    for (who, id, serial) in [("server", KV, 1), ("client", CART, 2), ("other", CART, 3)] {
        world.renew(who, id, serial, 90 * HOUR);
    }
    let revoke = |serials: &[u64]| {
        let now = world.wall.now();
        world.write("crl.pem", &world.ca.revoke(serials, now - SECOND, now + 10 * HOUR));
    };
    revoke(&[]);
    let server = world.tls("server").revocations(world.at("crl.pem")).unwrap();
    let stats = serve(server.clone(), "revoked").await;
    let client = world.client("client").revocations(world.at("crl.pem")).unwrap();
    let (revoked, other) =
        (connect(client.clone(), "revoked").await, connect(world.client("other"), "revoked").await);
    let (revoked, other) = (revoked.unwrap(), other.unwrap());
    let end = caller(&other);
    // Nothing changes by what cannot be read.
    world.write("crl.pem", "nothing");
    assert!(server.reload().unwrap_err().to_string().contains("-----BEGIN X509 CRL-----"));
    assert_eq!(revoked.get().await, Ok(7));
    revoke(&[2]);
    let began = Instant::now();
    let (_, reloaded) = tokio::join!(closed(&revoked, "was revoked"), async {
        tokio::time::sleep(SECOND).await;
        server.reload()
    });
    assert_eq!(reloaded, Ok(true));
    assert!(began.elapsed() < 2 * SECOND);
    assert!(end().await > 0);
    match connect(world.client("client"), "revoked").await {
        Err(ConnectError::Handshake { failure, .. }) => {
            assert!(failure.text.contains("CertificateRevoked"), "{failure}");
        }
        other => panic!("{:?}", other.map(|_| ())),
    }
    assert_eq!(stats.stats().connections.len(), 1);
    // A client looks as well.
    world.write("crl.pem", &world.ca.revoke(&[1], world.wall.now(), world.wall.now() + HOUR));
    world.renew("client", CART, 4, 90 * HOUR);
    let client = world.client("client").revocations(world.at("crl.pem")).unwrap();
    match connect(client, "revoked").await {
        Err(ConnectError::Handshake { failure, .. }) => {
            assert_eq!(failure.reason, FailureReason::Revoked, "{failure}");
        }
        other => panic!("{:?}", other.map(|_| ())),
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_that_has_ended_refuses() {
    let _watchdog = Watchdog::start("old lists");
    let world = World::new();
    world.renew("server", KV, 1, 90 * HOUR);
    world.renew("client", CART, 2, 90 * HOUR);
    let now = world.wall.now();
    world.write("crl.pem", &world.ca.revoke(&[], now - SECOND, now + HOUR));
    let server = world.tls("server").revocations(world.at("crl.pem")).unwrap();
    serve(server, "list").await;
    assert!(connect(world.client("client"), "list").await.is_ok());
    tokio::time::sleep(2 * HOUR).await;
    match connect(world.client("client"), "list").await {
        Err(ConnectError::Handshake { failure, .. }) => {
            assert!(failure.text.contains("CertificateRevoked"), "{failure}");
        }
        other => panic!("{:?}", other.map(|_| ())),
    }
    let late = world.tls("server").revocations(world.at("crl.pem")).unwrap_err();
    assert!(late.to_string().contains("it ended on"), "{late}");
}

#[tokio::test(start_paused = true)]
async fn an_authority_that_goes_takes_its_peers() {
    let _watchdog = Watchdog::start("authorities");
    let world = World::new();
    world.renew("server", KV, 1, 90 * HOUR);
    world.renew("client", CART, 2, 90 * HOUR);
    let other = Authority::new("other");
    let Leaf { cert, key } = other.issue(&[CART]);
    let trusting = Tls::from_pem_bytes(cert, key, world.ca.pem()).unwrap().expect_peer(KV);
    world.write("ca.pem", &format!("{}{}", world.ca.pem(), other.pem()));
    let server = world.tls("server");
    serve(server.clone(), "authority").await;
    let (stays, goes) = (connect(world.client("client"), "authority").await, {
        connect(trusting.clone(), "authority").await
    });
    let (stays, goes) = (stays.unwrap(), goes.unwrap());
    assert_eq!(server.reload(), Ok(false));
    for broken in ["", "nothing", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
    {
        world.write("ca.pem", broken);
        assert!(server.reload().is_err());
        assert_eq!((stays.get().await, goes.get().await), (Ok(7), Ok(7)));
    }
    world.write("ca.pem", &world.ca.pem());
    assert_eq!(server.reload(), Ok(true));
    closed(&goes, "an authority that is unknown").await;
    assert_eq!(stays.get().await, Ok(7));
    assert!(connect(trusting, "authority").await.is_err());
}

/// The files change while the user is asked about a client that was verified by the old ones: it is
/// verified again as soon as its connection is up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_in_a_handshake_is_not_missed() {
    let _watchdog = Watchdog::start("a reload in the midst of a handshake");
    let world = World::new();
    world.renew("server", KV, 1, 90 * HOUR);
    world.renew("client", CART, 2, 90 * HOUR);
    let other = Authority::new("other");
    let Leaf { cert, key } = other.issue(&[OTHER]);
    let goes = Tls::from_pem_bytes(cert, key, world.ca.pem()).unwrap().expect_peer(KV);
    world.write("ca.pem", &format!("{}{}", world.ca.pem(), other.pem()));
    let (only, file) = (world.ca.pem(), world.at("ca.pem"));
    let reload = world.tls("server");
    let (again, asked_again) = std::sync::mpsc::channel();
    let (asked_again, was_asked) = (Mutex::new(asked_again), AtomicBool::new(false));
    let server = reload.clone().authorize(move |peer| {
        if peer.spiffe().is_some_and(|id| id.to_string() == CART) {
            if was_asked.swap(true, Ordering::SeqCst) {
                let _ = again.send(());
            }
        } else if std::fs::read_to_string(&file).unwrap() != only {
            std::fs::write(&file, &only).unwrap();
            assert_eq!(reload.reload(), Ok(true));
            // Those that are up are being verified: this one is not among them.
            tokio::task::block_in_place(|| asked_again.lock().unwrap().recv().unwrap());
        }
        Ok(())
    });
    serve(server, "midst").await;
    let stays = connect(world.client("client"), "midst").await.unwrap();
    let text = match connect(goes, "midst").await {
        Ok(store) => store.last(9_000).timeout(9 * HOUR).await.unwrap_err().to_string(),
        Err(error) => error.to_string(),
    };
    assert!(text.contains("an authority that is unknown"), "{text}");
    assert_eq!(stays.get().await, Ok(7));
}

#[tokio::test(start_paused = true)]
async fn a_pin_that_goes_takes_its_peer() {
    let _watchdog = Watchdog::start("pins");
    let world = World::new();
    let [server, client, other] = [(); 3].map(|()| KeyPair::generate().unwrap());
    world.write("key.pem", &server.serialize_pem());
    world.write("peer.pem", &client.public_key_pem());
    let pinned = Tls::raw_key_files(world.at("key.pem"), [world.at("peer.pem")]).unwrap();
    serve(pinned.clone(), "pins").await;
    let client = Tls::raw_keys(client.serialize_pem(), [server.public_key_pem()]).unwrap();
    let store = connect(client.clone(), "pins").await.unwrap();
    assert_eq!(store.get().await, Ok(7));
    world.write("peer.pem", &server.public_key_pem());
    assert!(pinned.reload().unwrap_err().to_string().contains("own key"));
    world.write("peer.pem", &other.public_key_pem());
    assert_eq!(pinned.reload(), Ok(true));
    closed(&store, "the peer's key").await;
    assert!(connect(client, "pins").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn the_user_is_asked_again_after_reload() {
    let _watchdog = Watchdog::start("authorize");
    let world = World::new();
    world.renew("server", KV, 1, 90 * HOUR);
    world.renew("client", CART, 2, 90 * HOUR);
    let (asked, refuses) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicBool::new(false)));
    let (count, is_over) = (Arc::clone(&asked), Arc::clone(&refuses));
    let server = world.tls("server").authorize(move |peer| {
        count.add_permits(1);
        assert_eq!(peer.spiffe().unwrap().as_str(), CART);
        match is_over.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(Status::permission_denied("the shop is closed")),
        }
    });
    let stats = serve(server.clone(), "asked").await;
    let store = connect(world.client("client"), "asked").await.unwrap();
    for _ in 0..10 {
        assert_eq!(store.get().await, Ok(7));
    }
    assert_eq!(asked.available_permits(), 1, "once a connection");
    refuses.store(true, Ordering::Relaxed);
    world.renew("server", KV, 3, 90 * HOUR);
    assert_eq!(server.reload(), Ok(true));
    closed(&store, "the shop is closed").await;
    match connect(world.client("client"), "asked").await {
        Err(ConnectError::Handshake { failure, .. }) => {
            assert_eq!(failure.reason, FailureReason::DeniedByPeer);
            assert!(failure.text.contains("the shop is closed"), "{failure}");
        }
        other => panic!("{:?}", other.map(|_| ())),
    }
    // The client may know before the server has counted it.
    while stats.stats().denied == 0 {
        tokio::task::yield_now().await;
    }
    // A client may refuse its server, too.
    refuses.store(false, Ordering::Relaxed);
    let strict = world.client("client").authorize(|_| Err(Status::permission_denied("not you")));
    match connect(strict, "asked").await {
        Err(ConnectError::Handshake { failure, .. }) => {
            assert_eq!(failure.reason, FailureReason::Denied, "{failure}");
        }
        other => panic!("{:?}", other.map(|_| ())),
    }
}

#[tokio::test(start_paused = true)]
async fn both_ends_have_the_same_binding() {
    let _watchdog = Watchdog::start("channel binding");
    let world = World::new();
    world.renew("server", KV, 1, 90 * HOUR);
    world.renew("client", CART, 2, 90 * HOUR);
    serve(world.tls("server"), "binding").await;
    let mut all = Vec::new();
    for _ in 0..2 {
        let channel = Channel::builder().tls(world.client("client"));
        let channel = channel.connect("mem://life-binding").await.unwrap();
        let here = *channel.path().unwrap().identity.channel_binding().unwrap();
        assert_eq!(StoreClient::new(channel).bound().await.unwrap(), here);
        all.push(here);
    }
    assert_ne!(all[0], all[1]);
}

#[tokio::test(start_paused = true)]
async fn ended_connections_are_forgotten() {
    let _watchdog = Watchdog::start("members of a keeper");
    let world = World::new();
    world.renew("server", KV, 1, 90 * HOUR);
    world.renew("client", CART, 2, 90 * HOUR);
    serve(world.tls("server"), "forgotten").await;
    let builder = Channel::builder().tls(world.client("client"));
    let count = || {
        let shown = format!("{builder:?}");
        let members = shown.split("members: ").nth(1).unwrap().split(',').next().unwrap();
        members.parse::<u32>().unwrap()
    };
    let connect = || builder.clone().connect("mem://life-forgotten");
    let stays = connect().await.unwrap();
    for _ in 0..50 {
        drop(connect().await.unwrap());
    }
    // A vector of so few has room for 4 or 8.
    assert!(count() <= 8, "{}", count());
    // The keeper looks at least once a minute.
    tokio::time::sleep(61 * SECOND).await;
    assert_eq!(count(), 1);
    drop(stays);
}
