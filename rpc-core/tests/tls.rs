//! Connections whose ends prove who they are, over every transport.

#![allow(missing_docs, reason = "tests")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rpc_core::client::resolve::{Dns, Endpoint, Resolve, Resolving, StaticList};
use rpc_core::identity::{FailureReason, Protection};
use rpc_core::security::{Local, Tls};
use rpc_core::server::Allow;
use rpc_core::stats::{ConnectionStats, StatsHandle};
use rpc_core::transport::FaultPlan;
use rpc_core::{
    Channel, ChannelBuilder, Code, ConnectError, Context, LinkConfig, PollMode, Server,
    ServerBuilder, SetUpPhase, Status,
};
use test_kit::Watchdog;
use test_kit::certificates::rcgen::{ExtendedKeyUsagePurpose, KeyPair, date_time_ymd};
use test_kit::certificates::{Authority, Leaf};

const KV: &str = "spiffe://prod.example/ns/shop/sa/kv";
const CART: &str = "spiffe://prod.example/ns/shop/sa/cart";

#[rpc_core::service]
trait Store {
    async fn get(&self) -> u64;
    async fn put(&self, value: Vec<u8>) -> u64;
    async fn who(&self) -> (Option<String>, String);
    async fn call_back(&self) -> Result<(Option<String>, String), Status>;
}

#[derive(Default)]
struct Shelf(Arc<AtomicU32>);

impl Store for Shelf {
    async fn get(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed);
        7
    }

    async fn put(&self, value: Vec<u8>) -> u64 {
        value.len() as u64
    }

    async fn who(&self) -> (Option<String>, String) {
        let context = Context::current();
        let caller = context.identity().expect("somebody calls");
        let id = caller.spiffe().map(ToString::to_string);
        (id, format!("{:?}", caller.protection()))
    }

    async fn call_back(&self) -> Result<(Option<String>, String), Status> {
        let caller = Context::current().connection().expect("a connection").channel();
        StoreClient::new(caller).who().await
    }
}

fn tls(leaf: &Leaf, authority: &Authority) -> Tls {
    Tls::from_pem_bytes(&leaf.cert, &leaf.key, authority.pem()).unwrap()
}

/// Certificates of one authority.
struct World {
    ca: Authority,
    server: Tls,
    client: Tls,
}

impl World {
    fn new() -> Self {
        let ca = Authority::new("ca");
        let server = tls(&ca.issue(&[KV, "localhost", "127.0.0.1"]), &ca);
        let client = tls(&ca.issue(&[CART]), &ca);
        Self { ca, server, client }
    }

    fn server(&self) -> ServerBuilder {
        Server::builder().tls(self.server.clone())
    }

    fn client(&self) -> ChannelBuilder {
        Channel::builder().tls(self.client.clone().expect_peer(KV))
    }
}

fn address(scheme: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    match scheme {
        "tcp" | "auto" => format!("{scheme}://127.0.0.1:0"),
        "mem" => "mem://".to_owned(),
        _ => {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name: PathBuf = format!("rpc-tls-{}-{number}", std::process::id()).into();
            format!("shm://{}", std::env::temp_dir().join(name).display())
        }
    }
}

async fn serve(builder: ServerBuilder, scheme: &str) -> (String, StatsHandle) {
    let server = builder.add_service(StoreServer::new(Shelf::default()));
    let server = server.bind(address(scheme)).await.unwrap();
    let found = (server.local_address().to_string(), server.stats_handle());
    tokio::spawn(server.serve());
    found
}

async fn refusal(channel: ChannelBuilder, at: &str) -> (FailureReason, String) {
    match channel.connect(at).await {
        Err(ConnectError::Handshake { failure, .. }) => (failure.reason, failure.text),
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("{at} takes everybody"),
    }
}

/// Runs a test for each transport.
fn everywhere<F: Future<Output = ()>>(what: &'static str, test: impl Fn(&'static str) -> F) {
    let _watchdog = Watchdog::start(what);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for scheme in ["mem", "shm", "tcp", "auto"] {
        runtime.block_on(test(scheme));
    }
}

#[test]
fn both_ends_know_whom_they_talk_to() {
    everywhere("identities of both ends", async |scheme| {
        let world = World::new();
        let (at, stats) = serve(world.server(), scheme).await;
        let channel = world.client().connect(&at).await.unwrap();
        let path = channel.path().unwrap();
        assert_eq!(path.identity.spiffe().unwrap().as_str(), KV);
        let expected = match path.address.scheme() {
            "tcp" => Protection::Encrypt,
            _ => Protection::Authenticate,
        };
        assert_eq!(path.identity.protection(), Some(expected));
        let shown = format!("{KV} by TLS ({expected:?}, TLS13_AES_128_GCM_SHA256)");
        assert!(path.to_string().ends_with(&shown), "{path}");
        let store = StoreClient::new(channel);
        let (id, protection) = store.who().await.unwrap();
        assert_eq!(id.as_deref(), Some(CART));
        assert_eq!(protection, format!("Some({expected:?})"));
        assert_eq!(store.put(vec![5; 1 << 20]).await.unwrap(), 1 << 20);
        let shown = &stats.stats().connections[0].peer;
        assert!(shown.starts_with(CART), "{shown}");
    });
}

/// A regression: the name of a device with faults was part of what both ends compare, so that a
/// plan at one of them looked like an attacker.
#[test]
fn faults_leave_the_proven_set_up_alone() {
    everywhere("devices with faults", async |scheme| {
        let world = World::new();
        let plan = |on: bool| on.then(|| FaultPlan::new(1).delay_completions(3));
        for (here, there) in [(true, false), (false, true), (true, true)] {
            let server = plan(there).map_or(world.server(), |plan| world.server().faults(plan));
            let (at, _) = serve(server, scheme).await;
            let client = plan(here).map_or(world.client(), |plan| world.client().faults(plan));
            let channel = client.connect(&at).await.unwrap();
            let path = channel.path().unwrap();
            let expected = match path.address.scheme() {
                "tcp" => Protection::Encrypt,
                _ => Protection::Authenticate,
            };
            assert_eq!(path.identity.protection(), Some(expected), "that of the device below");
            assert_eq!(StoreClient::new(channel).put(vec![5; 1 << 16]).await, Ok(1 << 16));
        }
    });
}

#[test]
fn the_host_in_the_address_is_proven() {
    everywhere("names in addresses", async |scheme| {
        let world = World::new();
        let (at, _) = serve(world.server(), scheme).await;
        let connect = |name: &str| {
            let channel = Channel::builder().tls(world.client.clone());
            let at = at.replace("127.0.0.1", name);
            async move { channel.connect(&at).await }
        };
        if matches!(scheme, "mem" | "shm") {
            let error = connect("").await.unwrap_err().to_string();
            assert!(error.contains("`Tls::expect_peer` or `Tls::server_name`"), "{error}");
            return;
        }
        for host in ["127.0.0.1", "localhost"] {
            let store = StoreClient::new(connect(host).await.unwrap());
            assert_eq!(store.get().await.unwrap(), 7);
        }
        match connect("127.0.0.2").await {
            Err(ConnectError::Handshake { failure, .. }) => {
                assert_eq!(failure.reason, FailureReason::WrongName);
                assert!(failure.text.contains("127.0.0.2"), "{failure}");
            }
            // Its listener has one address only.
            Err(ConnectError::Refused { .. }) => {}
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn wrong_servers_are_refused_by_their_clients() {
    everywhere("wrong servers", async |scheme| {
        let world = World::new();
        let ca = &world.ca;
        let with = |change: fn(&mut test_kit::certificates::rcgen::CertificateParams)| {
            tls(&ca.issue_with(&[KV], change), ca)
        };
        let other = Authority::new("other");
        for (server, expected, text) in [
            (tls(&ca.issue(&[CART]), ca), FailureReason::WrongName, CART),
            (tls(&other.issue(&[KV]), ca), FailureReason::UnknownAuthority, "ca.pem"),
            (
                with(|params| params.not_after = date_time_ymd(2020, 1, 1)),
                FailureReason::Expired,
                "2020-01-01",
            ),
        ] {
            let (at, stats) = serve(Server::builder().tls(server), scheme).await;
            let (reason, found) = refusal(world.client(), &at).await;
            assert_eq!(reason, expected, "{found}");
            assert!(found.contains(text), "{found}");
            assert_eq!(stats.stats().accepted, 0);
        }
    });
}

/// Peers would refuse it, which this end says itself.
#[tokio::test]
async fn an_own_certificate_must_be_for_its_role() {
    let ca = Authority::new("ca");
    let only = |usage: ExtendedKeyUsagePurpose| {
        tls(&ca.issue_with(&[KV], |params| params.extended_key_usages = vec![usage]), &ca)
    };
    let (server, client) =
        (only(ExtendedKeyUsagePurpose::ServerAuth), only(ExtendedKeyUsagePurpose::ClientAuth));
    let bound = Server::builder().tls(client.clone()).bind("mem://own-purpose").await;
    let error = bound.unwrap_err().to_string();
    assert!(error.contains("serverAuth"), "{error}");
    let _server = Server::builder().tls(server.clone()).bind("mem://own-purpose").await.unwrap();
    let connected = Channel::builder().tls(server.expect_peer(KV)).connect("mem://own-purpose");
    let error = connected.await.unwrap_err().to_string();
    assert!(error.contains("clientAuth"), "{error}");
}

/// The error says that the handshake took too long, not that nobody answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_handshake_is_named() {
    let world = World::new();
    let (opens, gate) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let late = tls(&world.ca.issue(&[KV]), &world.ca).authorize(move |_| {
        let _opened = gate.lock().unwrap().recv();
        Ok(())
    });
    // The hook blocks a thread, which must not be one of this runtime.
    let servers = tokio::runtime::Runtime::new().unwrap();
    let (at, _) = servers.spawn(serve(Server::builder().tls(late), "tcp")).await.unwrap();
    let client = world.client().connect_timeout(Duration::from_millis(300));
    let error = client.connect(&at).await.map(drop).unwrap_err();
    let ConnectError::TimedOut { phase, .. } = &error else { panic!("{error}") };
    assert_eq!(*phase, SetUpPhase::Handshake);
    assert!(error.to_string().contains("did not finish the TLS handshake within"), "{error}");
    drop(opens);
    servers.shutdown_background();
}

#[test]
fn wrong_clients_are_refused_by_the_server() {
    everywhere("wrong clients", async |scheme| {
        let world = World::new();
        let (at, stats) = serve(world.server(), scheme).await;
        let other = Authority::new("other");
        let expired = world.ca.issue_with(&[CART], |params| {
            params.not_after = date_time_ymd(2020, 1, 1);
        });
        for (leaf, text) in [(other.issue(&[CART]), "UnknownCA"), (expired, "CertificateExpired")] {
            let channel = Channel::builder().tls(tls(&leaf, &world.ca).expect_peer(KV));
            let (reason, found) = refusal(channel, &at).await;
            assert_eq!(reason, FailureReason::CertificateRefusedByPeer, "{found}");
            assert!(found.contains(text), "{found}");
        }
        // Counted once the client has the reason.
        while stats.stats().denied < 2 {
            tokio::task::yield_now().await;
        }
        let stats = stats.stats();
        assert_eq!((stats.accepted, stats.denied), (0, 2));
        // Others are served all the same.
        let store = StoreClient::new(world.client().connect(&at).await.unwrap());
        assert_eq!(store.get().await.unwrap(), 7);
    });
}

#[test]
fn plain_and_secured_ends_do_not_mix() {
    everywhere("plain ends", async |scheme| {
        let world = World::new();
        let (secured, stats) = serve(world.server(), scheme).await;
        let error = Channel::connect(&secured).await.unwrap_err();
        assert!(matches!(error, ConnectError::Rejected { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("this server requires TLS: give the client"), "{text}");
        // Counted once the client has the reason.
        while stats.stats().denied == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(stats.stats().set_ups_failed, 0);
        let (plain, _) = serve(Server::builder(), scheme).await;
        let (reason, text) = refusal(world.client(), &plain).await;
        assert_eq!(reason, FailureReason::NotOffered);
        assert!(text.contains("`Server::builder().tls(..)`"), "{text}");
    });
}

#[test]
fn plain_clients_may_call_what_rules_say() {
    everywhere("optional TLS", async |scheme| {
        let world = World::new();
        let optional = || Server::builder().tls(world.server.clone().optional());
        let error = optional().bind(address(scheme)).await.unwrap_err().to_string();
        assert!(error.contains("`ServerBuilder::allow`"), "{error}");
        let error = Channel::builder().tls(world.client.clone().expect_peer(KV).optional());
        let error = error.connect_lazy("mem://nowhere").unwrap_err().to_string();
        assert!(error.contains("is for servers"), "{error}");
        let who = match scheme {
            "mem" => "self".to_owned(),
            "tcp" => "anonymous".to_owned(),
            _ => format!("uid:{}", rustix::process::getuid().as_raw()),
        };
        let rules = Allow::nobody().rule(&[KV], &["*"]).unwrap().rule(&[&*who], &["Store.put"]);
        let rules = rules.unwrap().rule(&[CART], &["Store.get"]).unwrap();
        let (at, stats) = serve(optional().allow(rules), scheme).await;
        let plain = StoreClient::new(Channel::connect(&at).await.unwrap());
        assert_eq!(plain.put(vec![1]).await, Ok(1));
        assert_eq!(plain.get().await.unwrap_err().code(), Code::PermissionDenied);
        let secured = StoreClient::new(world.client().connect(&at).await.unwrap());
        assert_eq!(secured.get().await, Ok(7));
        let stats = stats.stats();
        assert_eq!((stats.accepted, stats.accepted_plain, stats.calls_denied), (2, 1, 1));
        let own = secured.channel().path().unwrap().identity;
        let level = format!("{:?}", own.protection().unwrap());
        let own = (&*level, own.cipher_suite().unwrap());
        let row = |it: &ConnectionStats| (it.protection.clone(), it.cipher_suite.clone());
        let mut rows: Vec<_> = stats.connections.iter().map(row).collect();
        rows.sort_unstable();
        let rows: Vec<_> = rows.iter().map(|(level, suite)| (&**level, &**suite)).collect();
        assert_eq!(rows, [("", ""), own]);
        let seen = &secured.channel().stats().connections[0];
        assert_eq!((&*seen.protection, &*seen.cipher_suite), own);
        assert!(
            seen.peer.contains(KV) && stats.connections.iter().any(|it| it.peer.contains(CART))
        );
        // A server without TLS is refused as before.
        let (plain, _) = serve(Server::builder(), scheme).await;
        assert_eq!(refusal(world.client(), &plain).await.0, FailureReason::NotOffered);
    });
}

#[test]
fn the_kernel_may_prove_who_calls() {
    everywhere("peer credentials", async |scheme| {
        let world = World::new();
        let local = |tls: &Tls| tls.clone().local(Local::PeerCredentials);
        let uid = format!("uid:{}", rustix::process::getuid().as_raw());
        let rules = Allow::nobody().rule(&[&*uid], &["Store.put"]).unwrap();
        let rules = rules.rule(&[CART], &["Store.get"]).unwrap();
        let server = Server::builder().tls(local(&world.server)).allow(rules);
        let (at, _) = serve(server, scheme).await;
        let channel = Channel::builder().tls(local(&world.client).expect_peer(KV));
        let store = StoreClient::new(channel.connect(&at).await.unwrap());
        let path = store.channel().path().unwrap();
        if scheme != "shm" {
            // Also where `auto://` has chosen shared memory.
            let expected = match scheme {
                "tcp" => Protection::Encrypt,
                _ => Protection::Authenticate,
            };
            assert_eq!(path.identity.protection(), Some(expected));
            assert_eq!(store.get().await, Ok(7));
            return;
        }
        assert_eq!(path.identity.protection(), None);
        assert_eq!(store.put(vec![1]).await, Ok(1));
        assert_eq!(store.get().await.unwrap_err().code(), Code::PermissionDenied);
        // Both ends have to say the same.
        assert_eq!(refusal(world.client(), &at).await.0, FailureReason::NotOffered);
        let (strict, _) = serve(world.server(), scheme).await;
        let error = Channel::builder().tls(local(&world.client)).connect(&strict).await;
        assert!(error.unwrap_err().to_string().contains("requires TLS"));
    });
}

#[test]
fn rules_name_callers_by_their_certificates() {
    everywhere("rules by SPIFFE id", async |scheme| {
        let world = World::new();
        let allow = Allow::nobody().rule(&["spiffe://prod.example/ns/*/sa/cart"], &["Store.get"]);
        let (at, _) = serve(world.server().allow(allow.unwrap()), scheme).await;
        let cart = StoreClient::new(world.client().connect(&at).await.unwrap());
        assert_eq!(cart.get().await.unwrap(), 7);
        let denied = cart.put(Vec::new()).await.unwrap_err();
        assert_eq!(denied.code(), Code::PermissionDenied);
        assert!(denied.message().contains(CART), "{denied}");
        let other = world.ca.issue(&["spiffe://prod.example/ns/a/b/sa/cart"]);
        let other = Channel::builder().tls(tls(&other, &world.ca).expect_peer(KV));
        let other = StoreClient::new(other.connect(&at).await.unwrap());
        assert_eq!(other.get().await.unwrap_err().code(), Code::PermissionDenied);
    });
}

#[test]
fn a_client_that_serves_knows_its_server() {
    everywhere("calls to a client", async |scheme| {
        let world = World::new();
        let (at, _) = serve(world.server(), scheme).await;
        let allow = Allow::nobody().rule(&[KV], &["Store.who"]).unwrap();
        let served = Server::builder().allow(allow).add_service(StoreServer::new(Shelf::default()));
        let channel = world.client().serve_with(served).connect(&at).await.unwrap();
        let (id, _) = StoreClient::new(channel).call_back().await.unwrap();
        assert_eq!(id.as_deref(), Some(KV));
    });
}

#[test]
fn raw_keys_connect_without_any_name() {
    everywhere("raw keys", async |scheme| {
        let [client, server, other] = [(); 3].map(|()| KeyPair::generate().unwrap());
        let tls = |own: &KeyPair, peer: &KeyPair| {
            Tls::raw_keys(own.serialize_pem(), [peer.public_key_pem()]).unwrap()
        };
        let (at, _) = serve(Server::builder().tls(tls(&server, &client)), scheme).await;
        let channel = Channel::builder().tls(tls(&client, &server)).connect(&at).await.unwrap();
        assert_eq!(StoreClient::new(channel).who().await.unwrap().0, None);
        let (reason, _) = refusal(Channel::builder().tls(tls(&client, &other)), &at).await;
        assert_eq!(reason, FailureReason::UnknownAuthority);
    });
}

/// Names servers that its user did not write.
struct Registry(String);

impl Resolve for Registry {
    fn name(&self) -> String {
        "registry".to_owned()
    }

    fn resolve(&self) -> Resolving<'_> {
        let server: Endpoint = self.0.parse().unwrap();
        Box::pin(async move { Ok(vec![server]) })
    }
}

#[tokio::test]
async fn a_resolver_cannot_choose_the_name() {
    let _watchdog = Watchdog::start("names of resolvers");
    let world = World::new();
    let (at, _) = serve(world.server(), "tcp").await;
    let nameless = || Channel::builder().tls(world.client.clone());
    let error = nameless().connect_balanced(Registry(at.clone())).unwrap_err().to_string();
    assert!(error.contains("must not be one that a resolver says"), "{error}");
    let by_dns = Dns::new(at.replace("127.0.0.1", "localhost")).unwrap();
    for channel in [
        world.client().connect_balanced(Registry(at.clone())),
        nameless().connect_balanced(StaticList::new([&at]).unwrap()),
        nameless().connect_balanced(by_dns),
    ] {
        assert_eq!(StoreClient::new(channel.unwrap()).get().await.unwrap(), 7);
    }
    // The name is the host's, whatever address it has.
    let only_ip = tls(&world.ca.issue(&["127.0.0.1"]), &world.ca);
    let (at, _) = serve(Server::builder().tls(only_ip), "tcp").await;
    let by_dns = Dns::new(at.replace("127.0.0.1", "localhost")).unwrap();
    let store = StoreClient::new(nameless().connect_balanced(by_dns).unwrap());
    let status = store.get().timeout(Duration::from_secs(5)).await.unwrap_err();
    assert!(status.message().contains("this channel expects localhost"), "{status}");
}

#[tokio::test]
async fn both_ends_say_the_same_level() {
    let _watchdog = Watchdog::start("levels of protection");
    let world = World::new();
    let (encrypt, authenticate) = (Protection::Encrypt, Protection::Authenticate);
    for scheme in ["tcp", "mem"] {
        for (ours, theirs) in
            [(encrypt, encrypt), (authenticate, authenticate), (authenticate, encrypt)]
        {
            let server = Server::builder().tls(world.server.clone().protection(theirs));
            let (at, _) = serve(server, scheme).await;
            let tls = world.client.clone().protection(ours).expect_peer(KV);
            let channel = Channel::builder().tls(tls);
            if scheme == "tcp" && ours != theirs {
                let (reason, text) = refusal(channel, &at).await;
                assert_eq!(reason, FailureReason::OtherProtection);
                assert!(text.contains("set the same level at both ends"), "{text}");
                continue;
            }
            let channel = channel.connect(&at).await.unwrap();
            let found = channel.path().unwrap().identity.protection();
            assert_eq!(found, Some(if scheme == "mem" { authenticate } else { ours }));
            assert_eq!(StoreClient::new(channel).get().await.unwrap(), 7);
        }
    }
}

/// Within the machine, for processes that may read each other's memory.
#[test]
fn memory_can_be_encrypted_at_both_ends() {
    everywhere("sealed memory", async |scheme| {
        let world = World::new();
        let local = |tls: &Tls| tls.clone().local(Local::Encrypt);
        let (at, _) = serve(Server::builder().tls(local(&world.server)), scheme).await;
        let channel = || Channel::builder().tls(local(&world.client).expect_peer(KV));
        let store = StoreClient::new(channel().credentials("a secret").connect(&at).await.unwrap());
        let path = store.channel().path().unwrap();
        assert_eq!(path.identity.protection(), Some(Protection::Encrypt));
        assert!(path.to_string().contains("by TLS (Encrypt, TLS13_AES_128_GCM_SHA256)"), "{path}");
        assert_eq!(store.who().await.unwrap().1, "Some(Encrypt)");
        for len in [0, 100, 20_000, 3_000_000] {
            assert_eq!(store.put(vec![7; len]).await, Ok(len as u64));
        }
        if scheme == "tcp" {
            return;
        }
        // Both ends have to say so.
        assert_eq!(refusal(world.client(), &at).await.0, FailureReason::OtherProtection);
        let (at, _) = serve(world.server(), scheme).await;
        assert_eq!(refusal(channel(), &at).await.0, FailureReason::OtherProtection);
    });
}

/// Encryption hides them, as a local transport does.
#[tokio::test]
async fn credentials_need_no_permission_where_encrypted() {
    let _watchdog = Watchdog::start("credentials");
    let world = World::new();
    let (at, _) = serve(world.server(), "tcp").await;
    let channel = world.client().credentials("a secret").connect(&at).await.unwrap();
    assert_eq!(StoreClient::new(channel).get().await.unwrap(), 7);
    let clear = |tls: Tls| tls.protection(Protection::Authenticate);
    let server = Server::builder().tls(clear(world.server.clone()));
    let (at, _) = serve(server, "tcp").await;
    let tls = clear(world.client.clone()).expect_peer(KV);
    let error = Channel::builder().tls(tls).credentials("a secret").connect(&at).await;
    assert!(error.unwrap_err().to_string().contains("would be sent unencrypted"));
}

#[tokio::test]
async fn bad_options_are_errors_before_connecting() {
    let _watchdog = Watchdog::start("options of TLS");
    let world = World::new();
    for (tls, text) in [
        (world.client.clone().expect_peer("kv"), "spiffe://"),
        (world.client.clone().server_name("not a name"), "no DNS name"),
    ] {
        let error = Channel::builder().tls(tls).connect_lazy("mem://nowhere").unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
    let link = LinkConfig::default().receive_buffer_bytes(1024);
    let error = world.client().link(link).connect_lazy("mem://nowhere").unwrap_err();
    assert!(error.to_string().contains("receive_buffer_bytes with TLS"), "{error}");
}

/// Heap of `COUNT` connections that are open, both ends, bytes.
fn heap(tls: Option<&World>) -> i64 {
    const COUNT: usize = 32;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (server, channel) = match tls {
        Some(world) => (world.server(), world.client()),
        None => (Server::builder(), Channel::builder()),
    };
    let channel = channel.poll_mode(PollMode::Event);
    let (at, _) = runtime.block_on(serve(server.poll_mode(PollMode::Event), "tcp"));
    let open = || {
        runtime.block_on(async {
            let channel = channel.clone().connect(&at).await.unwrap();
            assert_eq!(StoreClient::new(channel.clone()).get().await.unwrap(), 7);
            channel
        })
    };
    let _first = open();
    let mut all = Vec::with_capacity(COUNT);
    let taken = allocation_counter::measure(|| all.extend((0..COUNT).map(|_| open())));
    taken.bytes_current / COUNT as i64
}

/// Its keys and who the peer is: what the handshake took to send is free again.
#[test]
fn established_connection_keeps_three_kibibytes_an_end() {
    let _watchdog = Watchdog::start("the heap of connections with TLS");
    let (plain, tls) = (heap(None), heap(Some(&World::new())));
    assert!(tls - plain <= 2 * (3 << 10), "{plain} and {tls} bytes of both ends");
}
