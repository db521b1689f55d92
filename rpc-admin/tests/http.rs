//! The HTTP responses of the page.
#![allow(missing_docs, unreachable_pub, reason = "the service here is an example")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rpc_admin::{Admin, Metrics, Recent};
use rpc_core::client::resolve::StaticList;
use rpc_core::health::{HealthReporter, ServingStatus};
use rpc_core::stats::StatsHandle;
use rpc_core::{Channel, Context, Server, Status};
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

/// Requests until the response is as expected.
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

/// Calls its caller back.
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
    // A repeated request does not return the same points again.
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

/// Regression: they were listed among the failed calls, although the errors per second did not
/// count them.
#[tokio::test]
async fn stopped_calls_failed_only_if_late() {
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
    // One at the client, and one at the server if its clock was first.
    let failed = recent_failed(&stats, &recent).await;
    assert!(!failed.is_empty() && failed.iter().all(|it| it == "DeadlineExceeded"), "{failed:?}");
}

/// The codes of the failed calls on the page.
async fn recent_failed(stats: &StatsHandle, recent: &Recent) -> Vec<String> {
    let (page, serving) = served(Admin::new(stats.clone()).recent(recent.clone())).await;
    let report = self::stats(page).await;
    drop(serving);
    let failed = report["recent"]["failed"].as_array().unwrap();
    failed.iter().map(|it| it["code"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn both_ends_keep_only_the_latest_slow_calls() {
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

/// Regression: sums over the sources counted such a source twice.
#[tokio::test]
async fn a_source_added_twice_is_counted_once() {
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
async fn bad_requests_get_advice() {
    let _watchdog = watchdog();
    let (stats, ..) = shop("mem://admin-wrong", &Recent::new()).await;
    let (page, _serving) = served(Admin::new(stats)).await;
    let (head, body) = get(page, "/nothing").await;
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
    assert_eq!(
        body,
        "not found; the paths are /, /api/stats, /metrics, /healthz, /readyz and /livez\n"
    );
    let (head, body) = get(page, "/api/stats?after=soon").await;
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    assert!(body.starts_with("after=N: N is "), "{body}");
    let (head, body) = get(page, "/").await;
    assert!(head.contains("content-security-policy: default-src 'none'"), "{head}");
    assert!(!body.contains("http://") || body.matches("http://").count() == 1, "no assets");
    let mut stream =
        send(page, "POST /api/stats HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
            .await;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    assert!(answer.ends_with("the page is read-only: use GET\n"), "{answer}");
    assert!(answer.contains("connection: close"), "{answer}");
}

/// Regression: a web site whose name resolves to 127.0.0.1 could read the page through a browser on
/// this machine.
#[tokio::test]
async fn a_local_page_rejects_foreign_host_names() {
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

    // On a non-loopback address, a warning was logged and every host name is accepted.
    let admin = Admin::new(stats).public().bind(([0, 0, 0, 0], 0)).await.unwrap();
    let page = ([127, 0, 0, 1], admin.local_address().port()).into();
    tokio::spawn(admin.serve());
    let (head, _) = get_as(page, "/", "Host: host.example\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
}

#[tokio::test]
async fn an_address_that_others_can_reach_is_said() {
    let _watchdog = watchdog();
    let (stats, ..) = shop("mem://admin-public", &Recent::new()).await;
    let refused = Admin::new(stats.clone()).bind(([0, 0, 0, 0], 0)).await.unwrap_err();
    let said =
        "admin page: everybody who reaches 0.0.0.0:0 could read it: choose a loopback address";
    assert!(refused.to_string().starts_with(said), "{refused}");
    let refused = Metrics::new(stats.clone()).bind(([0, 0, 0, 0], 0)).await.unwrap_err();
    assert!(refused.to_string().ends_with("allow it by `Metrics::public`"), "{refused}");
    let admin = Admin::new(stats.clone()).public().bind(([0, 0, 0, 0], 0)).await.unwrap();
    let port = admin.local_address().port();
    assert_eq!(admin.url(), format!("http://127.0.0.1:{port}/"));
    tokio::spawn(admin.serve());
    let report = self::stats(([127, 0, 0, 1], port).into()).await;
    assert_eq!(report["public"], format!("0.0.0.0:{port}"));
    let error = Admin::new(stats).serve(([127, 0, 0, 1], port)).await.unwrap_err();
    let said = format!("admin page: cannot listen at 127.0.0.1:{port}: ");
    assert!(error.to_string().starts_with(&said), "{error}");
}

/// More connections than the limit, all silent. Time passes only while all tasks wait.
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
        // Closed or reset: the connection is not kept any more.
        let _ = stream.read_to_end(&mut Vec::new()).await;
    }
}

#[tokio::test]
async fn a_page_that_is_dropped_leaves_nobody_connected() {
    let _watchdog = watchdog();
    let (stats, ..) = shop("mem://admin-dropped", &Recent::new()).await;
    let (page, serving) = served(Admin::new(stats)).await;
    // It is known to be accepted when a later one is answered.
    let mut held = send(page, "").await;
    get(page, "/").await;
    serving.abort();
    assert!(serving.await.unwrap_err().is_cancelled());
    let _ = held.read_to_end(&mut Vec::new()).await;
    TcpStream::connect(page).await.unwrap_err();
}

/// Runs it without letting time pass, in a test with paused time.
async fn without_time<T>(work: impl Future<Output = T>) -> T {
    let (held, ended) = std::sync::mpsc::channel::<()>();
    let stopped = tokio::task::spawn_blocking(move || {
        let _ = ended.recv();
    });
    let outcome = work.await;
    drop(held);
    stopped.await.unwrap();
    outcome
}

async fn answer_of(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    // Closed or reset.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

/// Regression: each kept its place until its time limit, while others waited.
#[tokio::test(start_paused = true)]
async fn the_oldest_silent_connection_gives_way() {
    let _watchdog = watchdog();
    let (stats, ..) = shop("mem://admin-give-way", &Recent::new()).await;
    let metrics = Metrics::new(stats.clone()).bind(([127, 0, 0, 1], 0)).await.unwrap();
    let numbers = metrics.local_address();
    tokio::spawn(metrics.serve());
    let (page, _serving) = served(Admin::new(stats)).await;
    for address in [page, numbers] {
        let work = async {
            let mut silent = Vec::new();
            for at in 0..137 {
                let request = if at % 2 == 0 { "" } else { "GET / HTTP/1.1\r\nHo" };
                silent.push(send(address, request).await);
                let (head, _) = get(address, "/metrics").await;
                assert!(head.starts_with("HTTP/1.1 200 "), "{at}: {head}");
            }
            let mut newest = silent.pop().unwrap();
            newest.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
            assert!(answer_of(newest).await.contains("serving\n"));
            for oldest in silent.drain(..80) {
                assert_eq!(answer_of(oldest).await, "");
            }
        };
        without_time(work).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_without_an_end_is_cut() {
    let _watchdog = watchdog();
    let (stats, ..) = shop("mem://admin-endless-head", &Recent::new()).await;
    let (page, _serving) = served(Admin::new(stats)).await;
    // Time passes only while all tasks wait.
    assert_eq!(answer_of(send(page, "GET / HTTP/1.1\r\nHost: localhost\r\n").await).await, "");
    without_time(async {
        let long = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(20_000));
        let answer = answer_of(send(page, &long).await).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
        let post = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000000000\r\n\r\n";
        let answer = answer_of(send(page, post).await).await;
        assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    })
    .await;
}

#[tokio::test]
async fn servers_of_a_channel_are_shown() {
    let _watchdog = watchdog();
    let (stats, _channel, _) = shop("mem://admin-members", &Recent::new()).await;
    let servers = StaticList::new(["mem://admin-members", "mem://admin-nobody"]).unwrap();
    let channel = Channel::builder().connect_balanced(servers).unwrap();
    ShopClient::new(channel.clone()).good().await.unwrap();
    let (page, _serving) = served(Admin::new(stats).channel("customers", &channel)).await;
    let is_connected = |it: &Value| it["sources"][1]["members"][1]["is_connected"] == true;
    let source = until(page, is_connected).await["sources"][1].take();
    let members = &source["members"];
    assert_eq!(members[0]["address"], "mem://admin-nobody", "trouble comes first");
    assert_eq!(members[1]["address"], "mem://admin-members");
    assert_eq!((&source["member_count"], &source["resolver"]["servers"]), (&2.into(), &2.into()));
    assert_eq!(source["resolver"]["name"], "[mem://admin-members, mem://admin-nobody]");
}

#[tokio::test]
async fn healthz_says_whether_to_send_calls() {
    let _watchdog = watchdog();
    let reporter = HealthReporter::new();
    let server = Server::builder()
        .add_service(ShopServer::new(Counter::default()))
        .health(&reporter)
        .drain_lead(Duration::from_secs(3600))
        .bind("mem://admin-healthz")
        .await
        .unwrap();
    let (stats, shutdown) = (server.stats_handle(), server.shutdown_handle());
    let metrics = Metrics::new(stats.clone()).health(&reporter);
    let metrics = metrics.bind(([127, 0, 0, 1], 0)).await.unwrap();
    let (page, _serving) = served(Admin::new(stats).health(&reporter)).await;
    let addresses = [page, metrics.local_address()];
    tokio::spawn(metrics.serve());
    tokio::spawn(server.serve());
    let expect = async |path: &str, status: &str, text: &str| {
        for address in addresses {
            let (head, body) = get(address, path).await;
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {head}");
            assert!(body.contains(text), "{path}: {body}");
        }
    };
    expect("/healthz", "200", "serving\n").await;
    expect("/healthz?service=Shop", "200", "serving\n").await;
    expect("/healthz?service=Shed", "404", "services are: \"\", \"Shop\"").await;
    reporter.set("Shop", ServingStatus::NotServing);
    expect("/readyz?service=Shop", "503", "Shop: not serving\n").await;
    expect("/healthz", "503", "Shop: not serving\n").await;
    expect("/healthz?service=", "200", "serving\n").await;
    reporter.set("Shop", ServingStatus::Serving);
    expect("/healthz", "200", "serving\n").await;
    shutdown.shutdown();
    for path in ["/healthz", "/readyz"] {
        expect(path, "503", "draining\n").await;
    }
    expect("/livez", "200", "alive\n").await;
}

#[tokio::test]
async fn metrics_alone_have_the_same_guards() {
    let _watchdog = watchdog();
    let (stats, _channel, _) = shop("mem://admin-metrics-alone", &Recent::new()).await;
    let metrics = Metrics::new(stats.clone()).host("proxy.example");
    let metrics = metrics.bind(([127, 0, 0, 1], 0)).await.unwrap();
    let address = metrics.local_address();
    tokio::spawn(metrics.serve());
    let (head, body) = get(address, "/metrics?x=1").await;
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    assert!(body.contains("\nrpc_server_connections 1\n"), "{body}");
    let (head, body) = get(address, "/").await;
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
    assert_eq!(body, "not found; the paths are /metrics, /healthz, /readyz and /livez\n");
    let (head, _) = get_as(address, "/metrics", "Host: proxy.example\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let (head, body) = get_as(address, "/metrics", "Host: evil.example\r\n").await;
    assert!(head.starts_with("HTTP/1.1 421 "), "{head}");
    assert!(body.contains("pass it to `Metrics::host`"), "{body}");
    let error = Metrics::new(stats).bind(address).await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("metrics: cannot listen at {address}: ")), "{error}");
    assert!(error.ends_with("; choose another port"), "{error}");
}
