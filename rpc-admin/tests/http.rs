//! The page's answers, over its own HTTP.
#![allow(missing_docs, unreachable_pub, reason = "the service here is an example")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rpc_admin::{Admin, Recent};
use rpc_core::{Channel, Context, Server, StatsHandle, Status};
use serde_json::Value;
use test_kit::Watchdog;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

#[rpc_core::service]
trait Shop {
    async fn good(&self) -> u64;
    async fn bad(&self, text: &str) -> Result<u64, Status>;
    async fn refuse(&self) -> Result<u64, String>;
    async fn wait(&self);
}

#[derive(Default)]
struct Counter {
    go: Arc<Notify>,
}

impl Shop for Counter {
    async fn good(&self) -> u64 {
        7
    }

    async fn bad(&self, text: &str) -> Result<u64, Status> {
        Err(Status::internal(text.to_owned()))
    }

    async fn refuse(&self) -> Result<u64, String> {
        Err("sold out".to_owned())
    }

    async fn wait(&self) {
        self.go.notified().await;
    }
}

fn watchdog() -> Watchdog {
    Watchdog::within(Duration::from_secs(60))
}

/// A server at `address`, and a channel to it.
async fn shop(address: &str, recent: &Recent) -> (StatsHandle, Channel, Arc<Notify>) {
    let counter = Counter::default();
    let go = Arc::clone(&counter.go);
    let server = Server::builder()
        .interceptor(recent.clone())
        .add_service(ShopServer::new(counter))
        .bind(address)
        .await
        .unwrap();
    let (stats, address) = (server.stats_handle(), server.local_address().to_string());
    tokio::spawn(server.serve());
    (stats, Channel::builder().connect(&address).await.unwrap(), go)
}

async fn served(admin: Admin) -> (SocketAddr, JoinHandle<std::io::Result<()>>) {
    let admin = admin.bind(([127, 0, 0, 1], 0)).await.unwrap();
    let address = admin.local_address();
    assert_eq!(admin.url(), format!("http://{address}/"));
    (address, tokio::spawn(admin.serve()))
}

async fn send(address: SocketAddr, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

async fn get(address: SocketAddr, path: &str) -> (String, String) {
    get_as(address, path, &format!("Host: {address}\r\n")).await
}

async fn get_as(address: SocketAddr, path: &str, host: &str) -> (String, String) {
    let mut stream = send(address, &format!("GET {path} HTTP/1.1\r\n{host}\r\n")).await;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

async fn stats(address: SocketAddr) -> Value {
    serde_json::from_str(&get(address, "/api/stats").await.1).unwrap()
}

/// Asks until the answer is as it shall be.
async fn until(address: SocketAddr, shall: impl Fn(&Value) -> bool) -> Value {
    loop {
        let report = stats(address).await;
        if shall(&report) {
            return report;
        }
        tokio::task::yield_now().await;
    }
}

#[rpc_core::service]
trait Desk {
    async fn order(&self) -> u64;
}

/// Asks its caller.
struct Back;

impl Desk for Back {
    async fn order(&self) -> u64 {
        let caller = Context::current().connection().unwrap();
        ShopClient::new(caller.channel()).good().await.unwrap()
    }
}

#[tokio::test]
async fn what_a_channel_serves_is_shown() {
    let _watchdog = watchdog();
    let server = Server::builder().add_service(DeskServer::new(Back));
    let server = server.bind("mem://admin-both-ways").await.unwrap();
    let stats = server.stats_handle();
    tokio::spawn(server.serve());
    let channel = Channel::builder().serve(ShopServer::new(Counter::default()));
    let channel = channel.connect("mem://admin-both-ways").await.unwrap();
    let (page, _serving) = served(Admin::new(stats).channel("desk", &channel)).await;
    let desk = DeskClient::new(channel);
    for _ in 0..3 {
        assert_eq!(desk.order().await.unwrap(), 7);
    }
    let started = |report: &Value, source: usize, method: &str| {
        let methods = report["sources"][source]["methods"].as_array()?;
        methods.iter().find(|it| it["name"] == method)?["started"].as_u64()
    };
    let report = until(page, |report| started(report, 2, "Shop.good") == Some(3)).await;
    assert_eq!(report["sources"][1]["name"], "desk");
    assert_eq!(report["sources"][2]["name"], "desk serves");
    assert_eq!(started(&report, 1, "Desk.order"), Some(3));
    assert_eq!(started(&report, 1, "Shop.good"), None, "that is another's call");
    assert_eq!(report["sources"][2]["connections"].as_array().unwrap().len(), 1);
    let (_, text) = get(page, "/metrics").await;
    let counts = text.lines().filter(|line| {
        line.starts_with("rpc_server_call_started_total{") && line.contains("Shop.good")
    });
    assert_eq!(counts.count(), 1, "{text}");
}

async fn calls_are_shown(address: &str) {
    let recent = Recent::new().slower_than(Duration::from_secs(1000));
    let (stats, channel, _) = shop(address, &recent).await;
    let shop = ShopClient::new(channel.clone());
    let admin =
        Admin::new(stats).title("corner shop").channel("to itself", &channel).recent(recent);
    let (page, _serving) = served(admin).await;
    until(page, |report| report["sources"][0]["methods"].is_array()).await;
    for _ in 0..3 {
        assert_eq!(shop.good().await, Ok(7));
    }
    shop.bad("it <b>broke</b>").await.unwrap_err();
    shop.refuse().await.unwrap_err();
    let report = until(page, |report| {
        let methods = report["sources"][0]["methods"].as_array();
        let of = |name: &str| methods?.iter().find(|it| it["name"] == name).cloned();
        of("Shop.refuse").is_some_and(|it| it["ended"]["UserError"] == 1)
    })
    .await;
    assert_eq!(report["title"], "corner shop");
    assert_eq!(report["public"], Value::Null);
    let methods = report["sources"][0]["methods"].as_array().unwrap();
    let of = |name: &str| methods.iter().find(|it| it["name"] == name).unwrap();
    assert_eq!((&of("Shop.good")["started"], &of("Shop.good")["errors"]), (&3.into(), &0.into()));
    assert_eq!(of("Shop.bad")["ended"]["Internal"], 1);
    assert_eq!(of("Shop.refuse")["errors"], 0, "the method's own error is an answer");
    assert_eq!(report["sources"][0]["connections"].as_array().unwrap().len(), 1);
    assert_eq!(report["sources"][1]["name"], "to itself");
    assert_eq!(report["sources"][1]["kind"], "channel");
    let failed = report["recent"]["failed"].as_array().unwrap();
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(failed[0]["method"], "Shop.bad");
    assert_eq!(failed[0]["text"], "it <b>broke</b>");
    assert_eq!(report["recent"]["slow"].as_array().unwrap().len(), 0);
    // What is asked for once more is not told again.
    let report = until(page, |report| report["points"].as_array().unwrap().len() > 1).await;
    let newest = report["points"].as_array().unwrap().last().unwrap()["sequence"].as_u64().unwrap();
    let (_, body) = get(page, &format!("/api/stats?after={}", newest - 1)).await;
    let later: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(later["points"][0]["sequence"], newest);
}

#[tokio::test]
async fn calls_are_shown_over_shm() {
    let _watchdog = watchdog();
    calls_are_shown(&format!("shm://admin-{}", std::process::id())).await;
}

#[tokio::test]
async fn calls_are_shown_over_tcp() {
    let _watchdog = watchdog();
    calls_are_shown("tcp://127.0.0.1:0").await;
}

/// They were among the calls that failed, though the errors per second left them out.
#[tokio::test]
async fn of_the_calls_that_are_stopped_those_that_were_late_have_failed() {
    let _watchdog = watchdog();
    let recent = Recent::new().slower_than(Duration::from_secs(1000));
    let (stats, channel, _) = shop("mem://admin-stopped", &recent).await;
    let both = Channel::builder()
        .interceptor(recent.clone())
        .connect("mem://admin-stopped")
        .await
        .unwrap();
    let shop = ShopClient::new(channel);
    let all_ended = |stats: &StatsHandle, begun: u64| {
        let stats = stats.stats();
        let wait = stats.methods.iter().find(|method| method.name == "Shop.wait").unwrap();
        (wait.started, wait.in_flight()) == (begun, 0)
    };
    let started = |stats: &StatsHandle| {
        let stats = stats.stats();
        stats.methods.iter().find(|method| method.name == "Shop.wait").unwrap().started
    };
    let left = shop.wait().start();
    while started(&stats) < 1 {
        tokio::task::yield_now().await;
    }
    drop(left);
    while !all_ended(&stats, 1) {
        tokio::task::yield_now().await;
    }
    assert_eq!(recent_failed(&stats, &recent).await, Vec::<String>::new());
    let shop = ShopClient::new(both);
    let late = shop.wait().timeout(Duration::from_millis(100)).await.unwrap_err();
    assert_eq!(late.code(), rpc_core::Code::DeadlineExceeded);
    while !all_ended(&stats, 2) {
        tokio::task::yield_now().await;
    }
    // One of the client, and one of the server if its clock was first.
    let failed = recent_failed(&stats, &recent).await;
    assert!(!failed.is_empty() && failed.iter().all(|it| it == "DeadlineExceeded"), "{failed:?}");
}

/// The codes of the calls that the page tells as failed.
async fn recent_failed(stats: &StatsHandle, recent: &Recent) -> Vec<String> {
    let (page, serving) = served(Admin::new(stats.clone()).recent(recent.clone())).await;
    let report = self::stats(page).await;
    drop(serving);
    let failed = report["recent"]["failed"].as_array().unwrap();
    failed.iter().map(|it| it["code"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn slow_calls_are_kept_by_both_ends_and_only_the_last() {
    let _watchdog = watchdog();
    let recent = Recent::new().slower_than(Duration::ZERO);
    let (stats, channel, go) = shop("mem://admin-slow", &recent).await;
    let both =
        Channel::builder().interceptor(recent.clone()).connect("mem://admin-slow").await.unwrap();
    let (page, _serving) = served(Admin::new(stats).recent(recent)).await;
    let wait = ShopClient::new(both).wait().start();
    go.notify_one();
    wait.await.unwrap();
    let report = self::stats(page).await;
    let slow = report["recent"]["slow"].as_array().unwrap();
    let mut ends: Vec<_> = slow.iter().map(|it| it["end"].as_str().unwrap()).collect();
    ends.sort_unstable();
    assert_eq!(ends, ["client", "server"]);
    let shop = ShopClient::new(channel);
    for at in 0..100 {
        shop.bad(&format!("{at} {}", "é".repeat(1000))).await.unwrap_err();
    }
    let report = self::stats(page).await;
    for kind in ["slow", "failed"] {
        let kept = report["recent"][kind].as_array().unwrap();
        assert_eq!(kept.len(), 64, "{kind}");
        let text = kept[0]["text"].as_str().unwrap();
        assert!(text.starts_with("99 ") && text.ends_with('…'), "{text}");
        assert!(text.chars().count() <= 241, "{text}");
    }
}

#[tokio::test]
async fn prometheus_gets_the_numbers_of_every_source() {
    let _watchdog = watchdog();
    let recent = Recent::new();
    let (stats, channel, _) = shop("mem://admin-metrics", &recent).await;
    ShopClient::new(channel.clone()).good().await.unwrap();
    let (page, _serving) = served(Admin::new(stats).channel("c", &channel)).await;
    let (head, body) = get(page, "/metrics").await;
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    let started = "rpc_server_call_started_total{source=\"server\",method=\"Shop.good\"} 1\n";
    assert!(body.contains(started), "{body}");
    assert!(body.contains("rpc_client_connections{source=\"c\"} 1\n"), "{body}");
    let helps: Vec<_> = body.lines().filter(|line| line.starts_with("# HELP ")).collect();
    let once: std::collections::HashSet<_> = helps.iter().collect();
    assert_eq!(once.len(), helps.len(), "a name is explained once: {helps:#?}");
}

/// Sums over the sources counted such a source twice.
#[tokio::test]
async fn a_source_that_is_added_twice_is_counted_once() {
    let _watchdog = watchdog();
    let (stats, channel, _) = shop("mem://admin-twice", &Recent::new()).await;
    let (other, other_channel, _) = shop("mem://admin-other", &Recent::new()).await;
    let admin = Admin::new(stats.clone()).server("again", stats).server("other", other);
    let admin = admin.channel("c", &channel).channel("d", &channel.clone());
    let (page, _serving) = served(admin.channel("e", &other_channel)).await;
    let (_, body) = get(page, "/metrics").await;
    let of = |name: &str| -> Vec<String> {
        let lines =
            body.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix("{source="));
        lines.map(|line| line.split(['}', ',']).next().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(of("rpc_server_connections"), ["\"server\"", "\"other\""]);
    assert_eq!(of("rpc_client_connections"), ["\"c\"", "\"e\""]);
    let now = until(page, |now| now["sources"].as_array().is_some_and(|all| !all.is_empty())).await;
    let names = now["sources"].as_array().expect("sources").iter().map(|it| &it["name"]);
    assert_eq!(names.collect::<Vec<_>>(), ["server", "other", "c", "e"]);
}

#[tokio::test]
async fn what_is_asked_wrongly_is_answered_with_what_would_be_right() {
    let _watchdog = watchdog();
    let (stats, ..) = shop("mem://admin-wrong", &Recent::new()).await;
    let (page, _serving) = served(Admin::new(stats)).await;
    let (head, body) = get(page, "/nothing").await;
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
    assert_eq!(body, "there are /, /api/stats and /metrics\n");
    let (head, body) = get(page, "/api/stats?after=soon").await;
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    assert!(body.starts_with("after=N takes "), "{body}");
    let (head, body) = get(page, "/").await;
    assert!(head.contains("content-security-policy: default-src 'none'"), "{head}");
    assert!(!body.contains("http://") || body.matches("http://").count() == 1, "no assets");
    let mut stream =
        send(page, "POST /api/stats HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
            .await;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    assert!(answer.ends_with("the page is only read: GET\n"), "{answer}");
    assert!(answer.contains("connection: close"), "{answer}");
}

/// A web site whose name leads to 127.0.0.1 had a browser on this machine read the page to it.
#[tokio::test]
async fn a_page_of_this_machine_answers_to_no_name_of_another() {
    let _watchdog = watchdog();
    let (stats, ..) = shop("mem://admin-hosts", &Recent::new()).await;
    let (page, _serving) = served(Admin::new(stats.clone()).host("Admin.Example")).await;
    let port = page.port();
    for host in ["localhost", "127.0.0.1", "[::1]", "admin.example"] {
        let (head, _) = get_as(page, "/", &format!("Host: {host}:{port}\r\n")).await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{host}: {head}");
    }
    for path in ["/", "/api/stats", "/metrics", "/nothing"] {
        for hosts in [
            format!("Host: evil.example:{port}\r\n"),
            "Host: 127.0.0.1.evil.example\r\n".to_owned(),
            format!("Host: localhost:{port}\r\nHost: evil.example\r\n"),
        ] {
            let (head, body) = get_as(page, path, &hosts).await;
            assert!(head.starts_with("HTTP/1.1 421 "), "{path} {hosts}: {head}");
            assert!(body.contains(&format!("open http://{page}/, or")), "{body}");
            assert!(body.contains("evil.example"), "{body}");
        }
    }
    let (head, _) = get_as(page, "http://evil.example/", "Host: localhost\r\n").await;
    assert!(head.starts_with("HTTP/1.1 421 "), "{head}");
    let long = "x".repeat(5000);
    let (_, body) = get_as(page, "/", &format!("Host: {long}\r\n")).await;
    assert!(body.len() < 500, "{body}");

    // Who binds it to an address of others has been told, and is asked for by whatever name that has.
    let admin = Admin::new(stats).bind(([0, 0, 0, 0], 0)).await.unwrap();
    let page = ([127, 0, 0, 1], admin.local_address().port()).into();
    tokio::spawn(admin.serve());
    let (head, _) = get_as(page, "/", "Host: host.example\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
}

#[tokio::test]
async fn an_address_that_others_can_reach_is_said() {
    let _watchdog = watchdog();
    let (stats, ..) = shop("mem://admin-public", &Recent::new()).await;
    let admin = Admin::new(stats.clone()).bind(([0, 0, 0, 0], 0)).await.unwrap();
    let port = admin.local_address().port();
    assert_eq!(admin.url(), format!("http://127.0.0.1:{port}/"));
    tokio::spawn(admin.serve());
    let report = self::stats(([127, 0, 0, 1], port).into()).await;
    assert_eq!(report["public"], format!("0.0.0.0:{port}"));
    let error = Admin::new(stats).serve(([127, 0, 0, 1], port)).await.unwrap_err();
    let said = format!("admin page on 127.0.0.1:{port}: cannot listen there: ");
    assert!(error.to_string().starts_with(&said), "{error}");
}

/// More than are held at once, and none says a word. Time passes only while all wait.
#[tokio::test(start_paused = true)]
async fn who_connects_and_says_nothing_keeps_nobody_out() {
    let _watchdog = watchdog();
    let (stats, ..) = shop("mem://admin-silent", &Recent::new()).await;
    let (page, _serving) = served(Admin::new(stats)).await;
    let mut silent = Vec::new();
    for at in 0..100 {
        let request = if at % 2 == 0 { "" } else { "GET / HTTP/1.1\r\nHo" };
        silent.push(send(page, request).await);
    }
    let (head, _) = get(page, "/").await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    for mut stream in silent {
        // Its end, or that it was cut: it is not held any more.
        let _ = stream.read_to_end(&mut Vec::new()).await;
    }
}

#[tokio::test]
async fn a_page_that_is_dropped_leaves_nobody_connected() {
    let _watchdog = watchdog();
    let (stats, ..) = shop("mem://admin-dropped", &Recent::new()).await;
    let (page, serving) = served(Admin::new(stats)).await;
    // It is known to be held when another one that came later is answered.
    let mut held = send(page, "").await;
    get(page, "/").await;
    serving.abort();
    assert!(serving.await.unwrap_err().is_cancelled());
    let _ = held.read_to_end(&mut Vec::new()).await;
    TcpStream::connect(page).await.unwrap_err();
}
