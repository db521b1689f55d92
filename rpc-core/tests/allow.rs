//! Who may call which methods, over every transport.

#![allow(missing_docs, reason = "tests")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rpc_core::health::{HealthClient, HealthReporter};
use rpc_core::identity::Verified;
use rpc_core::reflect::{ReflectClient, StatsClient};
use rpc_core::server::Allow;
use rpc_core::{Channel, ChannelBuilder, Code, Context, Server, ServerBuilder, Status};
use tokio::sync::Notify;

#[rpc_core::service]
trait Store {
    async fn get(&self) -> u64;
    async fn put(&self, value: u64) -> u64;
    async fn wait(&self);
    async fn call_back(&self) -> Result<u64, Status>;
}

/// Of the same names, with other types and methods.
mod newer {
    #[rpc_core::service]
    pub(super) trait Store {
        async fn put(&self, value: String) -> String;
        async fn remove(&self) -> u64;
    }
}

#[derive(Default)]
struct Shelf(Arc<Notify>);

impl Store for Shelf {
    async fn get(&self) -> u64 {
        7
    }

    async fn put(&self, value: u64) -> u64 {
        value
    }

    async fn wait(&self) {
        self.0.notify_one();
        std::future::pending().await
    }

    async fn call_back(&self) -> Result<u64, Status> {
        let caller = Context::current().connection().expect("a connection").channel();
        StoreClient::new(caller).get().await
    }
}

fn unique(what: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("rpc-allow-{what}-{}-{number}", std::process::id()))
}

async fn serve(builder: ServerBuilder, scheme: &str) -> String {
    serve_shelf(builder, scheme, Shelf::default()).await
}

async fn serve_shelf(builder: ServerBuilder, scheme: &str, shelf: Shelf) -> String {
    let address = match scheme {
        "tcp" => "tcp://127.0.0.1:0".to_owned(),
        "mem" => "mem://".to_owned(),
        _ => format!("shm://{}", unique("socket").display()),
    };
    let server = builder.add_service(StoreServer::new(shelf)).bind(address).await.unwrap();
    let at = server.local_address().to_string();
    tokio::spawn(server.serve());
    at
}

fn named() -> ServerBuilder {
    Server::builder().authenticate(|credentials, _| async move {
        credentials.as_text().map(Verified::named).ok_or("no text")
    })
}

fn channel(name: &str) -> ChannelBuilder {
    Channel::builder().credentials(name).allow_clear_credentials()
}

async fn client(name: &str, at: &str) -> StoreClient {
    StoreClient::new(channel(name).connect(at).await.unwrap())
}

/// Denied, and nothing else is said.
fn assert_denied<T: std::fmt::Debug>(outcome: Result<T, Status>) {
    let status = outcome.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    assert!(status.message().contains("the rules of this server do not allow this to"), "{status}");
    assert!(!status.message().contains("Store") && status.details().is_empty(), "{status:?}");
}

#[tokio::test]
async fn callers_may_call_what_rules_name() {
    for scheme in ["mem", "shm", "tcp"] {
        let allow = Allow::nobody().rule(&["name:reader", "name:writer"], &["Store.get"]);
        let allow = allow.unwrap().rule(&["name:writer"], &["Store.put"]).unwrap();
        let at = serve(named().allow(allow), scheme).await;
        let (reader, writer) = (client("reader", &at).await, client("writer", &at).await);
        let stranger = client("stranger", &at).await;
        for _ in 0..3 {
            assert_eq!((reader.get().await, writer.get().await), (Ok(7), Ok(7)));
            assert_eq!(writer.put(5).await, Ok(5));
            assert_denied(reader.put(5).await);
            assert_denied(stranger.get().await);
            assert_denied(stranger.put(5).await);
            assert_denied(writer.wait().await);
        }
    }
}

#[tokio::test]
async fn users_of_this_machine_have_rights() {
    let uid = rustix::process::getuid().as_raw();
    for (scheme, who, is_allowed) in [
        ("shm", format!("uid:{uid}"), true),
        ("shm", format!("uid:{}", uid + 1), false),
        ("shm", "self".to_owned(), false),
        ("mem", "self".to_owned(), true),
        ("tcp", format!("uid:{uid}"), false),
        ("tcp", "anyone".to_owned(), true),
    ] {
        let allow = Allow::nobody().rule(&[&*who], &["*"]).unwrap();
        let at = serve(Server::builder().allow(allow), scheme).await;
        let got = StoreClient::connect(&at).await.unwrap().get().await;
        if is_allowed { assert_eq!(got, Ok(7)) } else { assert_denied(got) }
    }
}

#[tokio::test]
async fn denied_callers_learn_nothing_of_methods() {
    let allow = Allow::nobody().rule(&["name:writer"], &["Store.*"]).unwrap();
    let allow = allow.rule(&["name:operator"], &["*"]).unwrap();
    let at = serve(named().allow(allow), "mem").await;
    let newer = async |name| newer::StoreClient::new(channel(name).connect(&at).await.unwrap());
    let stranger = newer("stranger").await;
    assert_denied(stranger.put("text".to_owned()).await);
    assert_denied(stranger.remove().await);
    let writer = newer("writer").await;
    let differs = writer.put("text".to_owned()).await.unwrap_err();
    assert_eq!(differs.code(), Code::FailedPrecondition, "{differs}");
    assert_denied(writer.remove().await);
    let unknown = newer("operator").await.remove().await.unwrap_err();
    assert_eq!(unknown.code(), Code::Unimplemented, "{unknown}");
}

/// Who may call a built-in method learns that this server lacks it, for the sake of old servers.
#[tokio::test]
async fn built_in_methods_may_be_missing() {
    let allow = Allow::nobody().rule(&["name:operator"], &["rpc.Reflect.*"]).unwrap();
    let at = serve(named().allow(allow), "mem").await;
    for (name, may_reflect) in [("stranger", false), ("operator", true)] {
        let channel = channel(name).connect(&at).await.unwrap();
        let health = HealthClient::new(channel.clone()).check("").await;
        let health = Status::from(health.unwrap_err());
        assert_eq!(health.code(), Code::Unimplemented, "{health}");
        let services = ReflectClient::new(channel.clone()).services().await.map(drop);
        match may_reflect {
            true => assert_eq!(services.unwrap_err().code(), Code::Unimplemented),
            false => assert_denied(services),
        }
        let stats = StatsClient::new(channel).server(1).await.map(drop);
        assert_denied(stats.map_err(Status::from));
    }
}

#[tokio::test]
async fn built_in_services_have_to_be_named() {
    let allow = Allow::nobody().rule(&["anyone"], &["*"]).unwrap();
    let allow = allow.rule(&["name:operator"], &["rpc.Reflect.*", "rpc.Stats.server"]).unwrap();
    let builder = named().allow(allow).reflection().health(&HealthReporter::new());
    let at = serve(builder, "mem").await;
    for (name, is_allowed) in [("stranger", false), ("operator", true)] {
        let channel = channel(name).connect(&at).await.unwrap();
        let services = ReflectClient::new(channel.clone()).services().await.map(drop);
        let stats = StatsClient::new(channel.clone()).server(1).await;
        let stats = stats.map(drop).map_err(Status::from);
        for outcome in [services, stats] {
            if is_allowed { assert_eq!(outcome, Ok(())) } else { assert_denied(outcome) }
        }
        assert!(HealthClient::new(channel).check("").await.is_ok());
    }
}

#[tokio::test]
async fn replaced_rules_reach_open_connections() {
    for scheme in ["mem", "shm", "tcp"] {
        let path = unique("rules");
        let rules = |who: &str| format!("[[allow]]\nwho = [{who}]\ncall = [\"*\"]\n");
        std::fs::write(&path, rules("\"name:a\", \"name:b\"")).unwrap();
        let allow = Allow::from_file(&path).unwrap();
        let waits = Arc::<Notify>::default();
        let shelf = Shelf(Arc::clone(&waits));
        let at = serve_shelf(named().allow(allow.clone()), scheme, shelf).await;
        let (a, b) = (client("a", &at).await, client("b", &at).await);
        assert_eq!((a.get().await, b.get().await), (Ok(7), Ok(7)));
        let running = a.wait().start();
        waits.notified().await;
        assert_eq!(allow.reload(), Ok(false));
        std::fs::write(&path, rules("\"name:b\"")).unwrap();
        assert_eq!(allow.reload(), Ok(true));
        let cut = running.await.unwrap_err();
        assert_eq!(cut.code(), Code::Unavailable, "{cut}");
        assert!(cut.message().contains("less than before"), "{cut}");
        assert_denied(a.get().await);
        assert!(b.channel().close_cause().is_none());
        assert_eq!(b.get().await, Ok(7));
        // What is granted later needs no new connection.
        std::fs::write(&path, rules("\"anyone\"")).unwrap();
        assert_eq!(allow.reload(), Ok(true));
        assert_eq!((a.get().await, b.get().await), (Ok(7), Ok(7)));
        std::fs::remove_file(path).unwrap();
    }
}

#[tokio::test]
async fn broken_files_leave_the_rules() {
    let path = unique("broken");
    let missing = Allow::from_file(&path).unwrap_err().to_string();
    assert!(missing.contains("rpc-allow-broken") && missing.contains("No such file"), "{missing}");
    std::fs::write(&path, "[[allow]]\nwho = [\"anyone\"]\ncall = [\"*\"]\n").unwrap();
    let allow = Allow::from_file(&path).unwrap();
    assert!(allow.clone().rule(&["self"], &["*"]).is_err(), "the file would replace it");
    let at = serve(Server::builder().allow(allow.clone()), "mem").await;
    let store = StoreClient::connect(&at).await.unwrap();
    for (text, says) in [
        ("[[allow]]\nwho = [\"anyone\"]\n", "missing field `call`"),
        ("[[allow]]\nwho = []\ncall = []\nmay = []\n", "unknown field `may`"),
        ("[[deny]]\n", "unknown field `deny`"),
        ("[[allow]]\nwho = [\"user:1\"]\ncall = []\n", "rule 1: \"user:1\" names no caller"),
        ("allow = 7", "invalid type"),
        ("\0", "rpc-allow-broken"),
    ] {
        std::fs::write(&path, text).unwrap();
        let error = allow.reload().unwrap_err().to_string();
        assert!(error.contains(says) && error.contains("rpc-allow-broken"), "{error}");
        assert_eq!(store.get().await, Ok(7));
    }
    std::fs::write(&path, "").unwrap();
    assert_eq!(allow.reload(), Ok(true));
    // One call may be cut off with the connection.
    let is_cut = |got: Result<u64, Status>| got.is_err_and(|it| it.code() == Code::Unavailable);
    while is_cut(store.get().await) {}
    assert_denied(store.get().await);
    std::fs::remove_file(path).unwrap();
}

#[tokio::test]
async fn files_are_reloaded_now_and_then() {
    let path = unique("watched");
    std::fs::write(&path, "[[allow]]\nwho = [\"anyone\"]\ncall = [\"*\"]\n").unwrap();
    let allow = Allow::from_file(&path).unwrap().reload_every(Duration::from_millis(1));
    let at = serve(Server::builder().allow(allow), "mem").await;
    let store = StoreClient::connect(&at).await.unwrap();
    assert_eq!(store.get().await, Ok(7));
    std::fs::write(&path, "").unwrap();
    loop {
        match store.get().await {
            Err(status) if status.code() == Code::PermissionDenied => break,
            _ => tokio::task::yield_now().await,
        }
    }
    std::fs::remove_file(path).unwrap();
}

#[tokio::test]
async fn a_channel_that_serves_has_rules() {
    let at = serve(Server::builder(), "mem").await;
    for (who, is_allowed) in [("self", true), ("name:somebody", false)] {
        let allow = Allow::nobody().rule(&[who], &["Store.get"]).unwrap();
        let services = Server::builder().allow(allow);
        let services = services.add_service(StoreServer::new(Shelf::default()));
        let channel = Channel::builder().serve_with(services).connect(&at).await.unwrap();
        let got = StoreClient::new(channel).call_back().await.map_err(Status::from);
        let expected = if is_allowed { Ok(7) } else { Err(Code::PermissionDenied) };
        assert_eq!(got.map_err(|status| status.code()), expected);
    }
}
