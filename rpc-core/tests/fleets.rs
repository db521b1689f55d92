//! Servers that come, go, and move between sets, as a resolver says: over `mem://` and virtual
//! time.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use parking_lot::Mutex;
use rpc_core::client::BalancingPolicy;
use rpc_core::client::resolve::{
    Endpoint, File, Resolve, ResolveError, Resolving, StaticList, Watching,
};
use rpc_core::{Channel, Code, Server};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

const SECOND: Duration = Duration::from_secs(1);

#[rpc_core::service]
trait Named {
    /// The number of the server, after so many milliseconds.
    async fn name(&self, takes_ms: u64) -> u64;
}

struct Numbered(u64);

impl Named for Numbered {
    async fn name(&self, takes_ms: u64) -> u64 {
        tokio::time::sleep(Duration::from_millis(takes_ms)).await;
        self.0
    }
}

/// Serves at `mem://fleet-name-number`.
async fn serve(name: &str, number: u64) -> JoinHandle<()> {
    let server = Server::builder().add_service(NamedServer::new(Numbered(number)));
    let server = server.bind(format!("mem://{name}-{number}")).await.unwrap();
    tokio::spawn(async move { server.serve().await.unwrap() })
}

async fn serve_all(name: &str, count: u64) {
    for number in 0..count {
        serve(name, number).await;
    }
}

fn set(name: &str, numbers: impl IntoIterator<Item = u64>) -> Vec<Endpoint> {
    let endpoint = |number| format!("mem://{name}-{number}").parse().unwrap();
    numbers.into_iter().map(endpoint).collect()
}

/// A registry whose answer the test changes, and which may tell what it is.
#[derive(Clone, Default)]
struct Registry(Arc<State>);

type Word = Result<Vec<Endpoint>, ResolveError>;

#[derive(Default)]
struct State {
    set: Mutex<Vec<Endpoint>>,
    fails: Mutex<Option<ResolveError>>,
    asked: AtomicU64,
    reports: bool,
    listeners: Mutex<Vec<mpsc::UnboundedSender<Word>>>,
}

impl Registry {
    fn telling() -> Self {
        Self(Arc::new(State { reports: true, ..State::default() }))
    }

    fn say(&self, set: Vec<Endpoint>) {
        *self.0.set.lock() = set.clone();
        self.0.listeners.lock().retain(|to| to.send(Ok(set.clone())).is_ok());
    }

    fn fail(&self, text: &str) {
        let error = ResolveError::new("registry", text);
        *self.0.fails.lock() = Some(error.clone());
        self.0.listeners.lock().retain(|to| to.send(Err(error.clone())).is_ok());
    }

    fn asked(&self) -> u64 {
        self.0.asked.load(Ordering::SeqCst)
    }
}

impl Resolve for Registry {
    fn name(&self) -> String {
        "the registry".to_owned()
    }

    fn resolve(&self) -> Resolving<'_> {
        self.0.asked.fetch_add(1, Ordering::SeqCst);
        let answer = match &*self.0.fails.lock() {
            Some(error) => Err(error.clone()),
            None => Ok(self.0.set.lock().clone()),
        };
        Box::pin(async move { answer })
    }

    fn watch(&self) -> Option<Watching<'_>> {
        self.0.reports.then(|| {
            let (to, mut told) = mpsc::unbounded_channel();
            to.send(Ok(self.0.set.lock().clone())).unwrap();
            self.0.listeners.lock().push(to);
            let told: Watching<'_> =
                Box::pin(futures::stream::poll_fn(move |cx| told.poll_recv(cx)));
            told
        })
    }
}

fn client(resolver: impl Resolve, policy: BalancingPolicy) -> NamedClient {
    NamedClient::new(Channel::builder().balancing(policy).connect_balanced(resolver).unwrap())
}

/// A call each so often. Gives the answers by server.
async fn calls(client: &NamedClient, count: u32, every: Duration) -> BTreeMap<u64, u32> {
    let mut answers = BTreeMap::new();
    for _ in 0..count {
        *answers.entry(client.name(1).await.unwrap()).or_default() += 1;
        tokio::time::sleep(every).await;
    }
    answers
}

/// Calls of eight callers at once.
async fn load(client: &NamedClient, count: u32) -> BTreeMap<u64, u32> {
    let callers = (0..8).map(|_| calls(client, count / 8, Duration::ZERO));
    let mut all = BTreeMap::new();
    for (server, count) in join_all(callers).await.into_iter().flatten() {
        *all.entry(server).or_default() += count;
    }
    all
}

fn members(client: &NamedClient) -> usize {
    client.channel().stats().members.len()
}

#[tokio::test(start_paused = true)]
async fn a_new_server_gets_its_share() {
    let registry = Registry::default();
    serve_all("scale-out", 3).await;
    registry.say(set("scale-out", 0..2));
    let client = client(registry.clone(), BalancingPolicy::new());
    calls(&client, 100, SECOND).await;
    registry.say(set("scale-out", 0..3));
    // The interval, and its slow start.
    tokio::time::sleep(30 * SECOND).await;
    let first = calls(&client, 10, SECOND).await;
    assert!(first.contains_key(&2), "{first:?}");
    let then = calls(&client, 300, SECOND).await;
    assert!(then[&2] > 60, "{then:?}");
    assert!((12..=20).contains(&registry.asked()), "{} times in 440 s", registry.asked());
}

#[tokio::test(start_paused = true)]
async fn a_server_taken_out_is_drained() {
    let registry = Registry::default();
    serve_all("taken-out", 3).await;
    registry.say(set("taken-out", 0..3));
    let client = client(registry.clone(), BalancingPolicy::new());
    load(&client, 80).await;
    let long: Vec<_> = (0..12).map(|_| client.name(100_000).start()).collect();
    registry.say(set("taken-out", 0..2));
    tokio::time::sleep(31 * SECOND).await;
    let answers = calls(&client, 300, Duration::from_millis(100)).await;
    assert!(!answers.contains_key(&2), "{answers:?}");
    // What was in flight there has ended as always.
    let long: Vec<_> = join_all(long).await.into_iter().map(Result::unwrap).collect();
    assert!(long.contains(&2), "{long:?}");
}

#[tokio::test(start_paused = true)]
async fn who_comes_back_in_time_is_the_same() {
    let registry = Registry::telling();
    serve_all("returns", 3).await;
    registry.say(set("returns", 0..3));
    let client = client(registry.clone(), BalancingPolicy::new());
    load(&client, 80).await;
    let long: Vec<_> = (0..12).map(|_| client.name(20_000).start()).collect();
    tokio::time::sleep(SECOND).await;
    let connected = client.channel().stats().connected;
    registry.say(set("returns", 0..2));
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(members(&client), 2);
    registry.say(set("returns", 0..3));
    tokio::time::sleep(SECOND).await;
    assert!(load(&client, 800).await[&2] > 100);
    assert_eq!(client.channel().stats().connected, connected);
    join_all(long).await.into_iter().for_each(|call| assert!(call.is_ok()));
}

#[tokio::test(start_paused = true)]
async fn what_is_told_is_done_at_once() {
    let registry = Registry::telling();
    serve_all("told", 4).await;
    registry.say(set("told", 0..3));
    let client = client(registry.clone(), BalancingPolicy::new().slow_start(Duration::ZERO));
    load(&client, 80).await;
    let asked = registry.asked();
    registry.say(set("told", 1..4));
    tokio::time::sleep(SECOND).await;
    let answers = load(&client, 400).await;
    assert!(answers[&3] > 60 && !answers.contains_key(&0), "{answers:?}");
    // An error changes nothing, and a stream that ends is made again.
    registry.fail("on fire");
    tokio::time::sleep(100 * SECOND).await;
    assert_eq!(load(&client, 400).await.len(), 3);
    assert_eq!(registry.asked(), asked, "it reports by itself");
    registry.0.listeners.lock().clear();
    tokio::time::sleep(5 * SECOND).await;
    registry.say(set("told", 0..2));
    tokio::time::sleep(SECOND).await;
    assert!(load(&client, 400).await.contains_key(&0));
}

#[tokio::test(start_paused = true)]
async fn a_wiped_registry_stops_nobody_at_once() {
    let registry = Registry::telling();
    serve_all("wiped", 4).await;
    registry.say(set("wiped", 0..4));
    let client = client(registry.clone(), BalancingPolicy::new());
    load(&client, 80).await;
    registry.say(Vec::new());
    tokio::time::sleep(25 * SECOND).await;
    assert_eq!(load(&client, 400).await.len(), 4);
    registry.say(set("wiped", 0..4));
    tokio::time::sleep(20 * SECOND).await;
    assert_eq!(members(&client), 4);
    // Most of it is lost at once: those that answer leave one after another.
    registry.say(set("wiped", 3..4));
    let mut sizes = Vec::new();
    for _ in 0..4 {
        tokio::time::sleep(9 * SECOND).await;
        sizes.push(members(&client));
        tokio::time::sleep(SECOND).await;
    }
    assert_eq!(sizes, [4, 2, 1, 1]);
    // In the end an empty registry is believed.
    registry.say(Vec::new());
    tokio::time::sleep(60 * SECOND).await;
    let status = client.name(0).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("no server is registered"), "{status}");
    registry.say(set("wiped", 0..4));
    assert!(client.name(0).wait_for_ready(true).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_flapping_registry_storms_nobody() {
    let registry = Registry::telling();
    serve_all("flaps", 8).await;
    registry.say(set("flaps", 0..8));
    let client = client(registry.clone(), BalancingPolicy::new());
    load(&client, 80).await;
    for turn in 0..1000 {
        registry.say(if turn % 2 == 0 { set("flaps", 0..1) } else { set("flaps", 0..8) });
        tokio::time::sleep(Duration::from_millis(10)).await;
        if turn % 10 == 0 {
            client.name(1).await.unwrap();
        }
    }
    let connected = client.channel().stats().connected;
    assert!(connected < 40, "{connected} in ten seconds");
    let all = [Vec::new(), set("flaps", 0..8)];
    for turn in 0..100 {
        registry.say(all[turn % 2].clone());
        tokio::time::sleep(SECOND).await;
        client.name(1).await.unwrap();
    }
    assert_eq!(members(&client), 8);
}

#[tokio::test(start_paused = true)]
async fn an_unused_channel_asks_nobody() {
    let registry = Registry::default();
    let task = serve("unused", 0).await;
    registry.say(set("unused", 0..1));
    let policy = BalancingPolicy::new();
    let channel = Channel::builder().balancing(policy).max_connection_idle(60 * SECOND);
    let client = NamedClient::new(channel.connect_balanced(registry.clone()).unwrap());
    client.name(0).await.unwrap();
    tokio::time::sleep(100 * SECOND).await;
    let asked = registry.asked();
    tokio::time::sleep(1000 * SECOND).await;
    assert_eq!(registry.asked(), asked);
    assert_eq!(client.channel().stats().connected, 1);
    client.name(0).await.unwrap();
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn a_channel_connects_to_its_subset_only() {
    serve_all("subset", 12).await;
    let list = || StaticList::from(set("subset", 0..12));
    let mut all = BTreeMap::new();
    for _ in 0..20 {
        let client = client(list(), BalancingPolicy::new().subset(4));
        load(&client, 160).await.into_iter().for_each(|(server, count)| {
            *all.entry(server).or_insert(0) += count;
        });
        let stats = client.channel().stats();
        assert_eq!((stats.members.len(), stats.connected), (4, 4));
    }
    assert_eq!(all.len(), 12, "each channel has its own: {all:?}");
}

#[tokio::test(start_paused = true)]
async fn priority_zone_and_weight_steer_the_calls() {
    let mut tasks = Vec::new();
    for number in 0..6 {
        tasks.push(serve("steer", number).await);
    }
    let mut all = set("steer", 0..6);
    for (number, it) in all.iter_mut().enumerate() {
        *it = it.clone().with_zone(if number < 2 { "a" } else { "b" });
        *it = it.clone().with_priority(u8::from(number >= 4));
    }
    all[0] = all[0].clone().with_weight(300);
    let client = client(StaticList::from(all), BalancingPolicy::new().zone("a"));
    load(&client, 160).await;
    // A choice holds for a tenth of a second. Then those of the other zone are tried once.
    tokio::time::sleep(SECOND).await;
    load(&client, 160).await;
    let answers = load(&client, 1600).await;
    assert_eq!(answers.keys().copied().collect::<Vec<_>>(), [0, 1], "the own zone");
    assert!((950..1450).contains(&answers[&0]), "three of four calls: {answers:?}");
    // The own zone ends.
    tasks.drain(..2).for_each(|task| task.abort());
    tokio::time::sleep(SECOND).await;
    let answers = load(&client, 1600).await;
    assert_eq!(answers.keys().copied().collect::<Vec<_>>(), [2, 3]);
    // Less than half of the priority is left.
    tasks.remove(0).abort();
    tokio::time::sleep(SECOND).await;
    let answers = load(&client, 1600).await;
    assert_eq!(answers.keys().copied().collect::<Vec<_>>(), [4, 5]);
}

#[tokio::test(start_paused = true)]
async fn a_draining_server_is_the_last_resort() {
    serve_all("drains", 2).await;
    let registry = Registry::telling();
    let mut all = set("drains", 0..2);
    all[1] = all[1].clone().draining();
    registry.say(all.clone());
    let client = client(registry.clone(), BalancingPolicy::new());
    client.name(0).await.unwrap();
    tokio::time::sleep(SECOND).await;
    assert_eq!(load(&client, 80).await.into_keys().collect::<Vec<_>>(), [0]);
    assert!(client.channel().stats().members[1].is_draining);
    registry.say(all.split_off(1));
    tokio::time::sleep(30 * SECOND).await;
    assert_eq!(load(&client, 80).await.into_keys().collect::<Vec<_>>(), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_key_stays_where_it_is() {
    serve_all("keys", 5).await;
    let registry = Registry::telling();
    registry.say(set("keys", 0..5));
    let clients = [(); 2].map(|()| client(registry.clone(), BalancingPolicy::new()));
    let mut homes = Vec::new();
    for client in &clients {
        load(client, 160).await;
        let mut of_keys = Vec::new();
        for key in 0..200_u32 {
            of_keys.push(client.name(0).affinity(key).await.unwrap());
        }
        homes.push(of_keys);
    }
    assert_eq!(homes[0], homes[1], "the same from every client");
    for server in 0..5 {
        let count = homes[0].iter().filter(|home| **home == server).count();
        assert!((20..65).contains(&count), "{server}: {count}");
    }
    registry.say(set("keys", 0..4));
    tokio::time::sleep(SECOND).await;
    for (key, home) in homes[0].iter().enumerate() {
        let key = u32::try_from(key).unwrap();
        let now = clients[0].name(0).affinity(key).await.unwrap();
        assert!(*home == 4 || now == *home, "{key}: {home} {now}");
    }
    // One hot key is shared.
    let calls: Vec<_> = (0..200).map(|_| clients[0].name(1000).affinity("hot").start()).collect();
    let mut answers = BTreeMap::new();
    for server in join_all(calls).await {
        *answers.entry(server.unwrap()).or_insert(0_u32) += 1;
    }
    assert!(answers.values().all(|count| *count <= 64), "1.25 times 50: {answers:?}");
}

#[tokio::test(start_paused = true)]
async fn a_first_call_may_have_a_key() {
    serve_all("first-key", 1).await;
    let client = client(StaticList::from(set("first-key", 0..1)), BalancingPolicy::new());
    assert_eq!(client.name(0).affinity("any").await, Ok(0));
    let one = NamedClient::connect("mem://first-key-0").await.unwrap();
    assert_eq!(one.name(0).affinity("any").await, Ok(0));
}

#[tokio::test(start_paused = true)]
async fn a_file_names_servers_as_it_changes() {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("fleets-servers");
    let _ = std::fs::remove_file(&path);
    let file = File::new(&path);
    let error = file.resolve().await.unwrap_err().to_string();
    assert!(error.contains("check that it exists"), "{error}");
    let mut told = file.watch().unwrap();
    assert!(told.next().await.unwrap().is_err());
    let text = "# all\nmem://file-0 weight=7 zone=a priority=2 # old\n\nmem://file-1 draining\n";
    std::fs::write(&path, text).unwrap();
    let found = told.next().await.unwrap().unwrap();
    assert_eq!((found[0].weight(), found[0].zone(), found[0].priority()), (7, Some("a"), 2));
    assert_eq!((found.len(), found[1].is_draining()), (2, true));
    for (line, words) in [
        ("mem://a wait=3", "`wait=3` is none of"),
        ("mem://a weight=x", "`weight=x` is not a number"),
        ("mem://a priority=256", "above 255"),
        ("nowhere", "a scheme is missing"),
    ] {
        std::fs::write(&path, line).unwrap();
        let error = file.resolve().await.unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("line 1"), "{error}");
        std::fs::write(&path, format!("mem://file-0\n{line}")).unwrap();
        assert_eq!(file.resolve().await.unwrap().len(), 1, "one bad line is left out");
    }
    serve_all("file", 2).await;
    std::fs::write(&path, "mem://file-0").unwrap();
    let client = client(file.clone(), BalancingPolicy::new().slow_start(Duration::ZERO));
    assert_eq!(client.name(0).await, Ok(0));
    std::fs::write(&path, "mem://file-0\nmem://file-1").unwrap();
    tokio::time::sleep(3 * SECOND).await;
    assert_eq!(load(&client, 160).await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_file_of_servers_has_a_limit() {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("fleets-long");
    std::fs::write(&path, "#".repeat((1 << 20) + 1)).unwrap();
    let error = File::new(&path).resolve().await.unwrap_err().to_string();
    assert!(error.contains("more than 1048576 bytes"), "{error}");
    std::fs::remove_file(&path).unwrap();
}
