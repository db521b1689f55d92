//! A channel's estimates of its end points, over `mem://` and virtual time: healthy end points get
//! calls, others get few.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rpc_core::client::resolve::{Resolve, ResolveError, Resolving, StaticList};
use rpc_core::client::{Backoff, BalancingPolicy};
use rpc_core::stream::{Stream, Streaming, stream};
use rpc_core::{Channel, Server, Status};
use test_kit::Watchdog;
use tokio::task::{JoinHandle, JoinSet};

#[rpc_core::service]
trait Work {
    /// Takes a millisecond, or as long as the server's mood. Returns its number.
    #[rpc(idempotent)]
    async fn work(&self) -> Result<usize, Status>;
    /// An item each second.
    fn tick(&self, seconds: u64) -> impl Stream<Item = usize>;
    /// Reads all.
    async fn read(&self, items: Streaming<u64>) -> usize;
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Mood {
    Well,
    Slow,
    Refuses(Duration),
    Hangs,
}

struct Node {
    number: usize,
    mood: Mutex<Mood>,
    calls: AtomicU64,
}

impl Work for Arc<Node> {
    async fn work(&self) -> Result<usize, Status> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let mood = *self.mood.lock();
        let takes = if mood == Mood::Slow { 300 } else { 1 };
        tokio::time::sleep(Duration::from_millis(takes)).await;
        match mood {
            Mood::Well | Mood::Slow => Ok(self.number),
            Mood::Refuses(again) => Err(Status::unavailable("just now").with_retry_after(again)),
            Mood::Hangs => std::future::pending().await,
        }
    }

    fn tick(&self, seconds: u64) -> impl Stream<Item = usize> {
        let number = self.number;
        stream(async move |mut out| {
            for _ in 0..seconds {
                out.send(number).await?;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            Ok(())
        })
    }

    async fn read(&self, mut items: Streaming<u64>) -> usize {
        while let Ok(Some(_)) = items.try_next().await {}
        self.number
    }
}

/// Two servers behind one channel.
struct Pair {
    nodes: [Arc<Node>; 2],
    servers: Vec<JoinHandle<()>>,
    addresses: [String; 2],
    client: WorkClient,
}

async fn serve(address: &str, node: &Arc<Node>) -> JoinHandle<()> {
    let service = WorkServer::new(Arc::clone(node));
    let server = Server::builder().add_service(service).bind(address).await.unwrap();
    tokio::spawn(async move { server.serve().await.unwrap() })
}

impl Pair {
    async fn start(name: &str) -> Self {
        let nodes = [0, 1].map(|number| {
            let (mood, calls) = (Mutex::new(Mood::Well), AtomicU64::new(0));
            Arc::new(Node { number, mood, calls })
        });
        let addresses = [0, 1].map(|number| format!("mem://{name}-{number}"));
        let mut servers = Vec::new();
        for (address, node) in addresses.iter().zip(&nodes) {
            servers.push(serve(address, node).await);
        }
        let list = StaticList::new(addresses.each_ref().map(String::as_str)).unwrap();
        // These tests are about estimates, not about the slow start of servers that come back.
        let balancing = BalancingPolicy::new().slow_start(Duration::ZERO);
        let builder = Channel::builder().retry(None).wait_for_ready(true).balancing(balancing);
        let client = WorkClient::new(builder.connect_balanced(list).unwrap());
        let pair = Self { nodes, servers, addresses, client };
        let calls = pair.calls_in(100, 10).await;
        assert!(calls.iter().all(|calls| *calls > 10), "both are well: {calls:?}");
        pair
    }

    fn calls(&self) -> [u64; 2] {
        self.nodes.each_ref().map(|node| node.calls.load(Ordering::SeqCst))
    }

    /// The number of calls that each server gets, of `count` calls at the given interval, ms.
    async fn calls_in(&self, count: u64, pause_ms: u64) -> [u64; 2] {
        let before = self.calls();
        for _ in 0..count {
            let _ = self.client.work().await;
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        }
        let after = self.calls();
        [0, 1].map(|at| after[at] - before[at])
    }

    /// Calls until the first server has answered one in that mood.
    async fn feels_once(&self, mood: Mood) {
        *self.nodes[0].mood.lock() = mood;
        let before = self.calls()[0];
        while self.calls()[0] == before {
            let _ = self.client.work().await;
        }
        *self.nodes[0].mood.lock() = Mood::Well;
    }
}

#[tokio::test(start_paused = true)]
async fn an_end_point_slow_once_is_used_again() {
    let pair = Pair::start("once").await;
    for (mood, pause_ms) in [
        (Mood::Refuses(Duration::ZERO), 10),
        (Mood::Refuses(Duration::ZERO), 1000),
        (Mood::Slow, 1),
    ] {
        pair.feels_once(mood).await;
        let at_first = pair.calls_in(1000 / (pause_ms + 1), pause_ms).await;
        assert_eq!(at_first[0], 0, "left alone for a second: {mood:?}");
        let (count, pause_ms) = if pause_ms < 1000 { (1500, 10) } else { (30, pause_ms) };
        pair.calls_in(count, pause_ms).await;
        let calls = pair.calls_in(100, pause_ms).await;
        assert!(calls.iter().all(|calls| *calls > 10), "{mood:?}, each {pause_ms} ms: {calls:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_stream_is_no_long_call() {
    let pair = Pair::start("streams").await;
    let mut ticks = pair.client.tick(60).await.unwrap();
    let number = ticks.try_next().await.unwrap().unwrap();
    let calls = pair.calls_in(100, 10).await;
    assert!(calls[number] > 10, "while it lasts: {calls:?}");
    while ticks.try_next().await.unwrap().is_some() {}
    let calls = pair.calls_in(100, 10).await;
    assert!(calls[number] > 10, "after it has ended: {calls:?}");
    let items = futures::stream::unfold(0, |at| async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        (at < 60).then_some((at, at + 1))
    });
    let number = pair.client.read(items).await.unwrap();
    let calls = pair.calls_in(100, 10).await;
    assert!(calls[number] > 10, "after an upload: {calls:?}");
}

#[tokio::test(start_paused = true)]
async fn a_new_connection_starts_anew() {
    let mut pair = Pair::start("anew").await;
    // Its estimate is that of a server that refuses calls, and its connection is lost.
    pair.feels_once(Mood::Refuses(Duration::ZERO)).await;
    pair.servers[0].abort();
    let _ = (&mut pair.servers[0]).await;
    pair.calls_in(10, 1).await;
    pair.servers[0] = serve(&pair.addresses[0], &pair.nodes[0]).await;
    pair.calls_in(50, 1).await;
    let calls = pair.calls_in(100, 10).await;
    assert!(calls.iter().all(|calls| *calls > 10), "{calls:?}");
}

/// A resolver whose answer the test changes.
#[derive(Clone, Default)]
struct Book(Arc<Mutex<Vec<String>>>, Arc<AtomicU64>);

impl Resolve for Book {
    fn name(&self) -> String {
        "the book".to_owned()
    }

    fn resolve(&self) -> Resolving<'_> {
        self.1.fetch_add(1, Ordering::SeqCst);
        let addresses = self.0.lock().clone();
        Box::pin(async move {
            let failed = |error| ResolveError::new("the book", format!("{error}"));
            addresses.iter().map(|address| address.parse().map_err(failed)).collect()
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_server_that_hangs_gets_few_calls() {
    let pair = Pair::start("joins").await;
    *pair.nodes[1].mood.lock() = Mood::Hangs;
    let book = Book::default();
    *book.0.lock() = vec![pair.addresses[0].clone()];
    let channel = Channel::builder().connect_balanced(book.clone()).unwrap();
    let client = WorkClient::new(channel.clone());
    for _ in 0..100 {
        client.work().await.unwrap();
    }
    *book.0.lock() = pair.addresses.to_vec();
    tokio::time::sleep(Duration::from_secs(2)).await;
    channel.kick();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (before, mut tasks) = (pair.calls()[1], JoinSet::new());
    for _ in 0..1000 {
        let client = client.clone();
        tasks.spawn(async move { client.work().timeout(Duration::from_secs(60)).await.is_ok() });
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let answered = tasks.join_all().await.iter().filter(|is_ok| **is_ok).count();
    let in_vain = pair.calls()[1] - before;
    assert!((1..=3).contains(&in_vain), "{in_vain} calls to the one that hangs");
    assert!(answered >= 997, "{answered}");
}

#[tokio::test(start_paused = true)]
async fn callers_that_give_up_make_a_server_dear() {
    let pair = Pair::start("given-up").await;
    *pair.nodes[0].mood.lock() = Mood::Hangs;
    let before = pair.calls();
    for _ in 0..1000 {
        let _ = tokio::time::timeout(Duration::from_millis(50), pair.client.work()).await;
    }
    let after = pair.calls();
    assert!(after[0] - before[0] < 20, "{before:?}, {after:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_parks_no_call_for_ever() {
    let pair = Pair::start("parks").await;
    *pair.nodes[0].mood.lock() = Mood::Refuses(Duration::from_millis(u64::MAX));
    let list = StaticList::new(pair.addresses.each_ref().map(String::as_str)).unwrap();
    let client = WorkClient::new(Channel::builder().connect_balanced(list).unwrap());
    for _ in 0..10 {
        let call = client.work().wait_for_ready(true);
        let answer = tokio::time::timeout(Duration::from_secs(600), call).await;
        assert_eq!(answer.unwrap(), Ok(1), "the other one takes it");
    }
}

#[tokio::test(start_paused = true)]
async fn a_backoff_beyond_the_clock_is_waited_out() {
    let _watchdog = Watchdog::within(Watchdog::LIMIT);
    let backoff = Backoff::new().initial(Duration::MAX).max(Duration::MAX);
    let builder = || Channel::builder().reconnect(backoff).wait_for_ready(true);
    let one = builder().connect_lazy("mem://nobody-is-here").unwrap();
    let book = Book::default();
    let several = builder().connect_balanced(book.clone()).unwrap();
    let calls = [one.clone(), several]
        .map(|channel| tokio::spawn(async move { WorkClient::new(channel).work().await }));
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(one.stats().connect_failures, 1);
    assert_eq!(book.1.load(Ordering::SeqCst), 1);
    calls.iter().for_each(JoinHandle::abort);
}
