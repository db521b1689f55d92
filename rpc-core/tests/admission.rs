//! Who may connect: checks of the peer, over every transport.

#![allow(missing_docs, reason = "tests")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rpc_core::identity::Verified;
use rpc_core::stats::StatsHandle;
use rpc_core::transport::PeerIdentity;
use rpc_core::{Bulk, Channel, ChannelBuilder, Code, ConnectError, Context, Server, ServerBuilder};
use tokio::sync::Notify;

#[rpc_core::service]
trait Greeter {
    async fn greet(&self, name: &str) -> String;
    async fn who(&self) -> (Option<(u32, u32, u32)>, Option<String>, String);
    async fn name(&self) -> Option<String>;
    async fn weigh(&self, data: Bulk) -> u64;
}

struct Polite;

impl Greeter for Polite {
    async fn greet(&self, name: &str) -> String {
        format!("Good day, {name}")
    }

    async fn who(&self) -> (Option<(u32, u32, u32)>, Option<String>, String) {
        let context = Context::current();
        let caller = context.identity().expect("somebody calls");
        let user = caller.unix().map(|user| (user.uid, user.gid, user.pid));
        (user, caller.address().map(|at| at.ip().to_string()), caller.to_string())
    }

    async fn name(&self) -> Option<String> {
        Context::current().identity()?.name().map(str::to_owned)
    }

    async fn weigh(&self, data: Bulk) -> u64 {
        data.len()
    }
}

fn address(scheme: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    match scheme {
        "tcp" => "tcp://127.0.0.1:0".to_owned(),
        "mem" => "mem://".to_owned(),
        _ => {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("rpc-admission-{}-{number}", std::process::id());
            format!("shm://{}", std::env::temp_dir().join(name).display())
        }
    }
}

/// Serves over `scheme`, and returns the address.
async fn serve(builder: ServerBuilder, scheme: &str) -> (String, StatsHandle) {
    let server = builder.add_service(GreeterServer::new(Polite)).bind(address(scheme));
    let server = server.await.unwrap();
    let found = (server.local_address().to_string(), server.stats_handle());
    tokio::spawn(server.serve());
    found
}

async fn refusal(at: &str) -> String {
    match GreeterClient::connect(at).await {
        Err(error @ ConnectError::Rejected { .. }) => error.to_string(),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("{at} takes everybody"),
    }
}

#[tokio::test]
async fn a_peer_is_refused_with_the_reason() {
    for scheme in ["mem", "shm", "tcp"] {
        let is_open = Arc::new(AtomicBool::new(false));
        let opened = Arc::clone(&is_open);
        let builder = Server::builder().admit(move |peer| {
            let is_told = match peer {
                PeerIdentity::SameProcess => scheme == "mem",
                PeerIdentity::Process { pid, .. } => scheme == "shm" && *pid == std::process::id(),
                PeerIdentity::Network(address) => scheme == "tcp" && address.ip().is_loopback(),
                _ => false,
            };
            assert!(is_told, "{scheme}: {peer}");
            opened.load(Ordering::Relaxed).then_some(()).ok_or("only friends of the house")
        });
        let (at, stats) = serve(builder, scheme).await;
        for _ in 0..2 {
            let text = refusal(&at).await;
            let reason = "refused the connection: refused by the application: only friends";
            assert!(text.contains(reason) && text.contains(&at), "{text}");
        }
        let counted = stats.stats();
        assert_eq!((counted.denied, counted.accepted, counted.cq_entries), (2, 0, 0));
        assert_eq!((counted.refused, counted.set_ups_failed), (0, 0));
        is_open.store(true, Ordering::Relaxed);
        let greeter = GreeterClient::connect(&at).await.unwrap();
        assert_eq!(greeter.greet("Ada").await.unwrap(), "Good day, Ada");
        assert_eq!((stats.stats().denied, stats.stats().accepted), (2, 1));
    }
}

#[tokio::test]
async fn a_peer_has_to_pass_all_checks() {
    let passed = |_: &PeerIdentity| Ok::<(), String>(());
    let builder = Server::builder().admit(passed).admit(|_| Err("the second")).admit(passed);
    let (at, _) = serve(builder, "mem").await;
    assert!(refusal(&at).await.contains("the second"));
}

#[tokio::test]
async fn a_check_that_panics_refuses() {
    let builder = Server::builder().admit(|peer| -> Result<(), String> { panic!("{peer}") });
    let (at, stats) = serve(builder, "mem").await;
    assert!(refusal(&at).await.contains("the server failed to check its caller"));
    assert_eq!(stats.stats().denied, 1);
}

#[tokio::test]
async fn handlers_learn_who_calls() {
    for scheme in ["mem", "shm", "tcp"] {
        let (at, _) = serve(Server::builder(), scheme).await;
        let (user, address, shown) =
            GreeterClient::connect(&at).await.unwrap().who().await.unwrap();
        let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
        let own = (uid.as_raw(), gid.as_raw(), std::process::id());
        assert_eq!(user, (scheme == "shm").then_some(own));
        assert_eq!(address.as_deref(), (scheme == "tcp").then_some("127.0.0.1"));
        let begins = match scheme {
            "mem" => "this process".to_owned(),
            "shm" => format!("pid {} uid {}", own.2, own.0),
            _ => "127.0.0.1:".to_owned(),
        };
        assert!(shown.starts_with(&begins), "{shown}");
    }
    assert!(Context::current().identity().is_none(), "outside of a handler");
}

/// A server that knows one token.
fn knowing(token: &'static str, name: &'static str) -> ServerBuilder {
    Server::builder().authenticate(move |credentials, _| async move {
        match credentials.as_text() {
            Some(text) if text == token => Ok(Verified::named(name)),
            _ => Err("this token is not known here"),
        }
    })
}

fn showing(token: &str) -> ChannelBuilder {
    Channel::builder().credentials(token).allow_clear_credentials()
}

async fn refused(channel: ChannelBuilder, at: &str) -> String {
    match channel.connect(at).await {
        Err(error @ ConnectError::Rejected { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn credentials_name_the_caller() {
    for scheme in ["mem", "shm", "tcp"] {
        let (at, stats) = serve(knowing("tok", "Ada"), scheme).await;
        let greeter = GreeterClient::new(showing("tok").connect(&at).await.unwrap());
        assert_eq!(greeter.name().await.unwrap().as_deref(), Some("Ada"), "{scheme}");
        assert!(greeter.who().await.unwrap().2.starts_with("Ada at "), "{scheme}");
        let data = Bulk::from(vec![7; 4 << 20]);
        assert_eq!(greeter.weigh(data).await, Ok(4 << 20), "memory is there again");
        for _ in 0..2 {
            let text = refused(showing("guess"), &at).await;
            assert!(text.contains(&at) && text.contains("not known here"), "{text}");
        }
        assert_eq!((stats.stats().denied, stats.stats().accepted), (2, 1), "{scheme}");
        assert_eq!(greeter.name().await.unwrap().as_deref(), Some("Ada"), "{scheme}");
    }
}

#[tokio::test]
async fn a_client_without_credentials_learns_why() {
    for scheme in ["mem", "shm", "tcp"] {
        let (at, stats) = serve(knowing("tok", "Ada"), scheme).await;
        let channel = Channel::builder().reconnect(None).connect(&at).await.unwrap();
        let data = Bulk::from(vec![7; 4 << 20]);
        let error = GreeterClient::new(channel).weigh(data).await.unwrap_err();
        assert_eq!(error.code(), Code::Unavailable, "{error}");
        assert!(error.message().contains("Channel::builder().credentials(..)"), "{error}");
        let stats = stats.stats();
        let started: u64 = stats.methods.iter().map(|method| method.started).sum();
        assert_eq!((started, stats.accepted, stats.memory_used_bytes), (0, 0, 0));
    }
}

#[tokio::test]
async fn credentials_stay_out_of_the_clear() {
    let (at, stats) = serve(knowing("tok", "Ada"), "tcp").await;
    let error = Channel::builder().credentials("tok").connect(&at).await.unwrap_err();
    let ConnectError::Config(text) = &error else { panic!("{error:?}") };
    assert!(text.contains(&at) && text.contains("allow_clear_credentials()"), "{text}");
    assert_eq!((stats.stats().denied, stats.stats().accepted), (0, 0));
    let shown = format!("{:?}", showing("s3cret").credentials("s3cret"));
    assert!(!shown.contains("s3cret") && !shown.contains("115, 51"), "{shown}");
}

#[tokio::test]
async fn other_servers_ignore_credentials() {
    for scheme in ["mem", "shm", "tcp"] {
        let (at, _) = serve(Server::builder(), scheme).await;
        let greeter = GreeterClient::new(showing("tok").connect(&at).await.unwrap());
        assert_eq!(greeter.name().await, Ok(None));
    }
}

#[tokio::test]
async fn connecting_waits_until_credentials_are_verified() {
    let (asked, answer) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (told, wait) = (Arc::clone(&asked), Arc::clone(&answer));
    let builder = Server::builder().authenticate(move |_, peer| {
        let (told, wait) = (Arc::clone(&told), Arc::clone(&wait));
        async move {
            assert_eq!(peer, PeerIdentity::SameProcess);
            told.notify_one();
            wait.notified().await;
            Ok::<_, String>(Verified::named("late"))
        }
    });
    let (at, stats) = serve(builder, "mem").await;
    let connecting = tokio::spawn(async move { showing("tok").connect(&at).await });
    asked.notified().await;
    assert!(!connecting.is_finished() && stats.stats().accepted == 0);
    answer.notify_one();
    let greeter = GreeterClient::new(connecting.await.unwrap().unwrap());
    assert_eq!(greeter.name().await.unwrap().as_deref(), Some("late"));
}

#[tokio::test]
async fn a_verification_that_panics_refuses() {
    let at_once = |_, _| -> std::future::Ready<Result<Verified, String>> { panic!("at once") };
    let builder = Server::builder().authenticate(at_once);
    let later = Server::builder().authenticate(|_, _| async {
        tokio::task::yield_now().await;
        assert!(Context::try_current().is_some(), "outside of a handler");
        Ok::<_, String>(Verified::named("nobody"))
    });
    for builder in [builder, later] {
        let (at, stats) = serve(builder, "mem").await;
        let text = refused(showing("tok"), &at).await;
        assert!(text.contains("the server failed to check its caller"), "{text}");
        assert_eq!(stats.stats().denied, 1);
    }
}

#[tokio::test]
async fn each_connection_shows_fresh_credentials() {
    let count = Arc::new(AtomicU32::new(0));
    let next = Arc::clone(&count);
    let builder = Server::builder().authenticate(|credentials, _| async move {
        credentials.as_text().map(Verified::named).ok_or("no text")
    });
    let (at, _) = serve(builder, "mem").await;
    let channel = Channel::builder()
        .credentials_from(move || next.fetch_add(1, Ordering::Relaxed).to_string().into());
    for expected in ["0", "1"] {
        let greeter = GreeterClient::new(channel.clone().connect(&at).await.unwrap());
        assert_eq!(greeter.name().await.unwrap().as_deref(), Some(expected));
    }
    let error = Channel::builder().credentials(vec![7; 8193]).connect(&at).await.unwrap_err();
    assert!(error.to_string().contains("8192 are the most"), "{error}");
    let longest = Channel::builder().credentials(vec![b'7'; 8192]).connect(&at).await.unwrap();
    assert_eq!(
        GreeterClient::new(longest).name().await.unwrap().map(|name| name.len()),
        Some(8192)
    );
}

#[tokio::test]
async fn a_channel_that_serves_admits_nobody() {
    let (at, _) = serve(Server::builder(), "mem").await;
    let admitting = Server::builder().admit(|_| Err("nobody"));
    for services in [admitting, knowing("tok", "Ada")] {
        let error = Channel::builder().serve_with(services).connect(&at).await.unwrap_err();
        assert!(
            matches!(&error, ConnectError::Config(text) if text.contains("`admit`")),
            "{error}"
        );
    }
}
