//! Hedging, over `mem://` and virtual time: which calls get a second attempt, when, where, and how
//! many.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures::future::join_all;
use rpc_core::client::HedgingPolicy;
use rpc_core::client::blocking::BlockingChannel;
use rpc_core::client::resolve::StaticList;
use rpc_core::{Bulk, Channel, ChannelBuilder, Code, LinkConfig, Server, Status};
use tokio::sync::watch;
use tokio::task::{JoinHandle, coop};
use tokio::time::Instant;

#[rpc_core::service]
trait Data {
    /// Returns the server's number, once the gate is open.
    #[rpc(idempotent)]
    async fn read(&self, data: Bulk) -> u64;
    /// Not idempotent.
    async fn write(&self) -> u64;
    /// The first call waits at the gate; others are refused with a pushback of this many seconds.
    #[rpc(idempotent)]
    async fn refuse_others(&self, quiet_s: u64) -> Result<u64, Status>;
    /// Waits at the gate, then is refused if this server refuses.
    #[rpc(idempotent)]
    async fn refuse_late(&self) -> Result<u64, Status>;
}

struct Node {
    number: u64,
    takes_ms: AtomicU64,
    open: watch::Sender<bool>,
    calls: AtomicU64,
    given_up: AtomicU64,
    saw_metadata: AtomicBool,
    refuses: AtomicBool,
}

/// Records that a handler was dropped at the gate.
struct AtGate<'a>(&'a Node, bool);

impl Drop for AtGate<'_> {
    fn drop(&mut self) {
        self.0.given_up.fetch_add(u64::from(self.1), Ordering::SeqCst);
    }
}

impl Node {
    fn new(number: u64, takes_ms: u64) -> Arc<Self> {
        let open = watch::Sender::new(true);
        let takes_ms = AtomicU64::new(takes_ms);
        let (calls, given_up, saw_metadata, refuses) = Default::default();
        Arc::new(Self { number, takes_ms, open, calls, given_up, saw_metadata, refuses })
    }

    fn hold(&self) {
        self.open.send_replace(false);
    }

    fn let_go(&self) {
        self.open.send_replace(true);
    }

    fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    fn given_up(&self) -> u64 {
        self.given_up.load(Ordering::SeqCst)
    }

    async fn pass(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let metadata = rpc_core::Context::current().metadata().text("key").is_some();
        self.saw_metadata.store(metadata, Ordering::SeqCst);
        let mut at_gate = AtGate(self, true);
        tokio::time::sleep(Duration::from_millis(self.takes_ms.load(Ordering::SeqCst))).await;
        self.open.subscribe().wait_for(|open| *open).await.unwrap();
        at_gate.1 = false;
        self.number
    }
}

struct Nodes(Arc<Node>);

impl Data for Nodes {
    async fn read(&self, _data: Bulk) -> u64 {
        self.0.pass().await
    }

    async fn write(&self) -> u64 {
        self.0.pass().await
    }

    async fn refuse_others(&self, quiet_s: u64) -> Result<u64, Status> {
        if self.0.calls() > 0 {
            self.0.calls.fetch_add(1, Ordering::SeqCst);
            return Err(Status::unavailable("busy").with_retry_after(Duration::from_secs(quiet_s)));
        }
        Ok(self.0.pass().await)
    }

    async fn refuse_late(&self) -> Result<u64, Status> {
        let number = self.0.pass().await;
        let refuses = self.0.refuses.load(Ordering::SeqCst);
        if refuses { Err(Status::unavailable("busy")) } else { Ok(number) }
    }
}

async fn serve(address: &str, node: &Arc<Node>) -> JoinHandle<()> {
    serve_with(LinkConfig::default(), address, node).await
}

async fn serve_with(link: LinkConfig, address: &str, node: &Arc<Node>) -> JoinHandle<()> {
    let server = Server::builder().link(link);
    let server = server.add_service(DataServer::new(Nodes(Arc::clone(node))));
    let server = server.bind(address).await.unwrap();
    tokio::spawn(async move { server.serve().await.unwrap() })
}

/// Two servers behind one channel, both connected, after a number of calls.
struct Pair {
    nodes: [Arc<Node>; 2],
    servers: Vec<JoinHandle<()>>,
    client: DataClient,
}

impl Pair {
    async fn start(name: &str, takes_ms: u64, builder: ChannelBuilder, calls: u64) -> Self {
        let nodes = [Node::new(0, takes_ms), Node::new(1, takes_ms)];
        let addresses = [format!("mem://{name}-0"), format!("mem://{name}-1")];
        let mut servers = Vec::new();
        for (address, node) in addresses.iter().zip(&nodes) {
            servers.push(serve(address, node).await);
        }
        let client = builder.connect_balanced(StaticList::new(addresses).unwrap()).unwrap();
        let client = DataClient::new(client);
        for _ in 0..calls {
            client.read(Bulk::new()).hedging(None).await.unwrap();
        }
        // Only calls that may be hedged add to the budget.
        for _ in 0..calls {
            client.read(Bulk::new()).await.unwrap();
        }
        assert!(nodes.iter().all(|node| node.calls() > 0), "both are connected");
        Self { nodes, servers, client }
    }

    fn calls(&self) -> u64 {
        self.nodes.iter().map(|node| node.calls()).sum()
    }

    fn hold_both(&self) {
        self.nodes.iter().for_each(|node| node.hold());
    }
}

async fn until(mut is_so: impl FnMut() -> bool) {
    let mut turns = 0;
    while !is_so() {
        turns += 1;
        assert!(turns < 100_000, "it never happens");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// As above, with these calls polled meanwhile.
async fn until_meanwhile<F: Future + Unpin>(calls: &mut F, is_so: impl FnMut() -> bool) {
    tokio::select! {
        biased;
        _ = calls => panic!("they end too early"),
        () = until(is_so) => {}
    }
}

fn after(millis: u64) -> HedgingPolicy {
    HedgingPolicy::new().delay(Duration::from_millis(millis))
}

/// Some of a hundred calls go to the hanging server: the other one answers them.
#[tokio::test(start_paused = true)]
async fn a_hanging_call_is_answered_by_another_server() {
    let pair = Pair::start("hang", 0, Channel::builder().hedging(after(10)), 100).await;
    pair.nodes[0].hold();
    let (mut hanging, mut turns, before) = (0, 0, pair.calls());
    // Half of the calls begin at the server that answers.
    while hanging == 0 {
        turns += 1;
        assert!(turns < 1000, "it is never chosen");
        let (calls, began) = (pair.nodes[0].calls(), Instant::now());
        let read = pair.client.read(Bulk::from(vec![7; 100_000])).metadata("key", "v");
        assert_eq!(read.timeout(Duration::from_secs(60)).await, Ok(1));
        assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
        if pair.nodes[0].calls() > calls {
            hanging += 1;
            assert!(began.elapsed() >= Duration::from_millis(10), "not before its time");
        }
        assert!(pair.nodes[1].saw_metadata.load(Ordering::SeqCst));
    }
    assert_eq!(pair.calls(), before + turns + 1, "one second attempt, and only for that one");
    until(|| pair.nodes[0].given_up() == 1).await;
    // The losing server is known to be slow, and is avoided.
    let calls = pair.nodes[0].calls();
    for _ in 0..20 {
        assert_eq!(pair.client.read(Bulk::new()).timeout(Duration::from_secs(60)).await, Ok(1));
    }
    assert_eq!((pair.nodes[0].calls(), pair.nodes[1].given_up()), (calls, 0));
}

#[tokio::test(start_paused = true)]
async fn what_is_not_idempotent_is_never_sent_twice() {
    let pair = Pair::start("twice", 0, Channel::builder().hedging(after(10)), 100).await;
    pair.hold_both();
    let before = pair.calls();
    let write = pair.client.write().timeout(Duration::from_secs(60)).hedging(after(1));
    assert_eq!(write.await.unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(pair.calls(), before + 1);
    // Nor calls with hedging switched off, nor those whose reply goes into a slot.
    let read = pair.client.read(Bulk::new()).timeout(Duration::from_secs(60)).hedging(None);
    assert_eq!(read.await.unwrap_err().code(), Code::DeadlineExceeded);
    let slot = pair.client.channel().bulk_pool().slot(4096).unwrap();
    let read = pair.client.read(Bulk::new()).timeout(Duration::from_secs(60)).into(slot);
    assert_eq!(read.await.unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(pair.calls(), before + 3);
}

#[tokio::test(start_paused = true)]
async fn slow_servers_do_not_exceed_the_budget() {
    let builder = Channel::builder().hedging(after(10).budget(0.05));
    let pair = Pair::start("budget", 100, builder, 20).await;
    let before = pair.calls();
    for _ in 0..100 {
        for read in join_all((0..8).map(|_| pair.client.read(Bulk::new()))).await {
            read.unwrap();
        }
    }
    let seconds = pair.calls() - before - 800;
    assert!((35..=41).contains(&seconds), "{seconds} of 820 calls at 5 %");
}

#[tokio::test(start_paused = true)]
async fn the_default_delay_is_the_95th_percentile() {
    let pair = Pair::start("p95", 20, Channel::builder().hedging(HedgingPolicy::new()), 40).await;
    pair.hold_both();
    let before = pair.calls();
    let read = pair.client.read(Bulk::new()).timeout(Duration::from_secs(60));
    assert_eq!(read.await.unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(pair.calls(), before + 1, "nobody knows how long it takes");
    pair.nodes.iter().for_each(|node| node.let_go());
    for _ in 0..10 {
        pair.client.read(Bulk::new()).await.unwrap();
    }
    pair.hold_both();
    let (before, began) = (pair.calls(), Instant::now());
    let read = tokio::spawn(pair.client.read(Bulk::new()).start());
    until(|| pair.calls() == before + 2).await;
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(20) && took <= Duration::from_millis(30), "{took:?}");
    pair.nodes.iter().for_each(|node| node.let_go());
    read.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn pushback_stops_second_attempts() {
    let node = Node::new(0, 0);
    let _server = serve("mem://asks-for-time", &node).await;
    let builder = Channel::builder().hedging(after(10).budget(1.0));
    let client = DataClient::new(builder.connect("mem://asks-for-time").await.unwrap());
    node.hold();
    // There is one server: it gets the second attempt too, and refuses it.
    let first = tokio::spawn(client.refuse_others(10).start());
    until(|| node.calls() == 2).await;
    let second = tokio::spawn(client.read(Bulk::new()).start());
    until(|| node.calls() == 3).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(node.calls(), 3);
    tokio::time::sleep(Duration::from_secs(6)).await;
    let third = tokio::spawn(client.read(Bulk::new()).start());
    until(|| node.calls() == 5).await;
    node.let_go();
    for call in [second, third] {
        assert_eq!(call.await.unwrap(), Ok(0));
    }
    assert_eq!(first.await.unwrap(), Ok(0), "a refused second attempt changes nothing");
}

/// Regression: one server could stop second attempts at all others for any time.
#[tokio::test(start_paused = true)]
async fn pushback_of_a_year_lasts_a_minute() {
    let node = Node::new(0, 0);
    let _server = serve("mem://asks-for-a-year", &node).await;
    let builder = Channel::builder().hedging(after(10).budget(1.0));
    let client = DataClient::new(builder.connect("mem://asks-for-a-year").await.unwrap());
    node.hold();
    let first = tokio::spawn(client.refuse_others(365 * 24 * 3600).start());
    until(|| node.calls() == 2).await;
    tokio::time::sleep(Duration::from_secs(55)).await;
    let second = tokio::spawn(client.read(Bulk::new()).start());
    until(|| node.calls() == 3).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(node.calls(), 3, "it is heeded");
    tokio::time::sleep(Duration::from_secs(3)).await;
    let third = tokio::spawn(client.read(Bulk::new()).start());
    until(|| node.calls() == 5).await;
    node.let_go();
    assert_eq!(first.await.unwrap(), Ok(0));
    for call in [second, third] {
        assert_eq!(call.await.unwrap(), Ok(0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_servers_call_is_answered_elsewhere() {
    let builder = Channel::builder().hedging(after(10)).retry(None);
    let mut pair = Pair::start("dies", 0, builder, 100).await;
    pair.hold_both();
    let before = [0, 1].map(|at| pair.nodes[at].calls());
    let read = pair.client.read(Bulk::new()).timeout(Duration::from_secs(600));
    let read = tokio::spawn(read.start());
    until(|| (0..2).any(|at| pair.nodes[at].calls() > before[at])).await;
    let first = usize::from(pair.nodes[0].calls() == before[0]);
    until(|| pair.nodes[1 - first].calls() > before[1 - first]).await;
    let server = pair.servers.remove(first);
    server.abort();
    let _ = server.await;
    until(|| pair.nodes[first].given_up() == 1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!read.is_finished());
    pair.nodes[1 - first].let_go();
    assert_eq!(read.await.unwrap(), Ok(1 - first as u64));
}

/// Regression: if the second attempt won later, the server that had refused counted as one that had
/// answered.
#[tokio::test(start_paused = true)]
async fn a_refusing_server_looks_slow_after_hedging() {
    let builder = Channel::builder().hedging(after(10)).retry(None);
    let pair = Pair::start("refuses-late", 0, builder, 100).await;
    pair.hold_both();
    let before = [0, 1].map(|at| pair.nodes[at].calls());
    let call = pair.client.refuse_late().timeout(Duration::from_secs(600));
    let call = tokio::spawn(call.start());
    until(|| (0..2).any(|at| pair.nodes[at].calls() > before[at])).await;
    let first = usize::from(pair.nodes[0].calls() == before[0]);
    let [first, second] = [first, 1 - first].map(|at| &pair.nodes[at]);
    until(|| pair.calls() == before[0] + before[1] + 2).await;
    first.refuses.store(true, Ordering::SeqCst);
    first.let_go();
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert!(!call.is_finished());
    second.let_go();
    assert_eq!(call.await.unwrap(), Ok(second.number));
    second.takes_ms.store(100, Ordering::SeqCst);
    for _ in 0..3 {
        let answer = pair.client.read(Bulk::new()).hedging(None).await;
        assert_eq!(answer, Ok(second.number), "the other one refuses calls");
    }
}

/// Regression: the waiting task had used up its budget, and got no outcome.
#[tokio::test(start_paused = true)]
async fn a_call_fails_if_both_servers_die() {
    let builder = Channel::builder().hedging(after(10)).retry(None);
    let mut pair = Pair::start("both-die", 0, builder, 100).await;
    pair.hold_both();
    let before = [0, 1].map(|at| pair.nodes[at].calls());
    let mut read = Box::pin(pair.client.read(Bulk::new()).timeout(Duration::from_secs(600)));
    let both = || (0..2).all(|at| pair.nodes[at].calls() > before[at]);
    until_meanwhile(&mut read, both).await;
    for server in pair.servers.drain(..) {
        server.abort();
        let _ = server.await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let ended = poll_fn(|cx| {
            while let Poll::Ready(turn) = coop::poll_proceed(cx) {
                turn.made_progress();
            }
            Poll::Ready(read.as_mut().poll(cx))
        });
        if let Poll::Ready(outcome) = ended.await {
            assert_eq!(outcome.unwrap_err().code(), Code::Unavailable);
            return;
        }
    }
    assert_eq!(read.await.unwrap_err().code(), Code::Unavailable);
}

/// Regression: a full connection refused second attempts, which the throttle counted as failures.
#[tokio::test(start_paused = true)]
async fn unsent_second_attempts_do_not_stop_retries() {
    let node = Node::new(0, 20);
    let _server = serve("mem://never-left", &node).await;
    let builder = Channel::builder().hedging(after(10).budget(1.0)).max_calls(1);
    let client = DataClient::new(builder.connect("mem://never-left").await.unwrap());
    for _ in 0..30 {
        assert_eq!(client.read(Bulk::new()).await, Ok(0));
    }
    assert_eq!(node.calls(), 30, "there is no room for a second one");
    assert!(client.refuse_others(10).await.is_err());
    assert!(node.calls() > 31, "it was tried again");
}

/// Regression: the first attempt was hedged while it was queued at this end: the budget went to
/// second attempts that the full connection refused.
#[tokio::test(start_paused = true)]
async fn a_queued_call_is_hedged_once_it_runs() {
    let node = Node::new(0, 20);
    let _server = serve("mem://in-line", &node).await;
    let builder = Channel::builder().hedging(after(10).budget(1.0)).max_calls(2);
    let client = DataClient::new(builder.connect("mem://in-line").await.unwrap());
    node.hold();
    let others = [0, 1].map(|_| tokio::spawn(client.write().start()));
    let waiting = tokio::spawn(client.read(Bulk::new()).start());
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(node.calls(), 2, "it has not left");
    node.let_go();
    for other in others {
        other.await.unwrap().unwrap();
    }
    node.hold();
    until(|| node.calls() == 4).await;
    node.let_go();
    assert_eq!(waiting.await.unwrap(), Ok(0));
}

/// Regression: a local failure of the second attempt ended the first one.
#[tokio::test(start_paused = true)]
async fn a_too_large_second_attempt_spares_the_first() {
    let [wide, narrow] = [0, 1].map(|number| Node::new(number, 0));
    let narrow_link = LinkConfig::default().max_message_bytes(64 * 1024);
    let _wide = serve("mem://wide", &wide).await;
    let _narrow = serve_with(narrow_link, "mem://narrow", &narrow).await;
    let addresses = StaticList::new(["mem://wide", "mem://narrow"]).unwrap();
    let builder = Channel::builder().hedging(after(10).budget(1.0));
    let client = DataClient::new(builder.connect_balanced(addresses).unwrap());
    for _ in 0..100 {
        client.read(Bulk::new()).hedging(None).await.unwrap();
    }
    wide.hold();
    let before = [wide.calls(), narrow.calls()];
    // Half of the calls begin at the server that cannot accept them.
    let read = loop {
        let read = tokio::spawn(client.read(Bulk::from(vec![7; 100_000])).start());
        until(|| read.is_finished() || wide.calls() > before[0]).await;
        if !read.is_finished() {
            break read;
        }
        let status = read.await.unwrap().unwrap_err();
        assert!(status.message().contains("exceeds"));
    };
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!read.is_finished(), "the first attempt runs");
    wide.let_go();
    assert_eq!(read.await.unwrap(), Ok(0));
    assert_eq!([wide.calls(), narrow.calls()], [before[0] + 1, before[1]]);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_leaves_no_attempt_behind() {
    let pair = Pair::start("dropped", 0, Channel::builder().hedging(after(10)), 100).await;
    pair.hold_both();
    for number in 1..=3 {
        let before = pair.calls();
        let read = tokio::spawn(pair.client.read(Bulk::new()).start());
        until(|| pair.calls() == before + 2).await;
        read.abort();
        until(|| pair.nodes.iter().all(|node| node.given_up() == number)).await;
    }
    pair.nodes.iter().for_each(|node| node.let_go());
    assert!(pair.client.read(Bulk::new()).await.is_ok());
}

/// The second attempt of a blocking call is sent while its thread waits.
#[test]
fn blocking_clients_hedge_as_well() {
    let servers =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let node = Node::new(7, 0);
    let _server = servers.block_on(serve("mem://blocking-hedge", &node));
    let channel = BlockingChannel::connect("mem://blocking-hedge").unwrap();
    node.hold();
    let hedged = DataBlockingClient::new(channel.with_hedging(after(1).budget(1.0)));
    // Without a policy of the channel, the call's policy applies.
    let read = std::thread::spawn(move || hedged.read(Bulk::new()));
    servers.block_on(until(|| node.calls() == 2));
    node.let_go();
    assert_eq!(read.join().unwrap(), Ok(7));
}
