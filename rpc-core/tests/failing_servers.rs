//! Several servers of which one fails, refuses, or says that it is ill: over `mem://` and virtual
//! time.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use rpc_core::client::BalancingPolicy;
use rpc_core::client::resolve::StaticList;
use rpc_core::health::{Health, HealthReporter, HealthServer, ServingStatus};
use rpc_core::stats::MemberStats;
use rpc_core::stream::{self, Stream};
use rpc_core::{Channel, Code, Server, Status};
use tokio::task::JoinHandle;

const SECOND: Duration = Duration::from_secs(1);

#[rpc_core::service]
trait Work {
    async fn work(&self) -> Result<(), Status>;
}

/// Takes 5 ms, or fails at once.
#[derive(Clone, Default)]
struct Worker(Arc<State>);

#[derive(Default)]
struct State {
    calls: AtomicU64,
    /// The code of each call, or of every second one.
    fails: Mutex<Option<(Code, bool)>>,
}

impl Work for Worker {
    async fn work(&self) -> Result<(), Status> {
        let count = self.0.calls.fetch_add(1, Ordering::SeqCst);
        let fails = *self.0.fails.lock();
        match fails {
            Some((code, always)) if always || count.is_multiple_of(2) => {
                Err(Status::new(code, "on purpose"))
            }
            _ => {
                tokio::time::sleep(Duration::from_millis(5)).await;
                Ok(())
            }
        }
    }
}

impl Worker {
    fn calls(&self) -> u64 {
        self.0.calls.load(Ordering::SeqCst)
    }

    fn fail(&self, how: impl Into<Option<(Code, bool)>>) {
        *self.0.fails.lock() = how.into();
    }
}

struct Fleet {
    addresses: Vec<String>,
    workers: Vec<Worker>,
    health: Vec<HealthReporter>,
    tasks: Vec<JoinHandle<()>>,
}

async fn serve(address: &str, worker: &Worker, health: &HealthReporter) -> JoinHandle<()> {
    let service = WorkServer::new(worker.clone());
    let builder = Server::builder().add_service(service).health(health);
    let server = builder.bind(address).await.unwrap();
    tokio::spawn(async move { server.serve().await.unwrap() })
}

impl Fleet {
    async fn start(name: &str, count: usize) -> Self {
        let addresses: Vec<_> = (0..count).map(|at| format!("mem://{name}-{at}")).collect();
        let workers = vec![(); count].into_iter().map(|()| Worker::default()).collect::<Vec<_>>();
        let health =
            vec![(); count].into_iter().map(|()| HealthReporter::new()).collect::<Vec<_>>();
        let mut tasks = Vec::new();
        for (at, address) in addresses.iter().enumerate() {
            tasks.push(serve(address, &workers[at], &health[at]).await);
        }
        Self { addresses, workers, health, tasks }
    }

    fn client(&self, policy: BalancingPolicy) -> WorkClient {
        let list = StaticList::new(&self.addresses).unwrap();
        WorkClient::new(Channel::builder().balancing(policy).connect_balanced(list).unwrap())
    }

    fn calls(&self) -> Vec<u64> {
        self.workers.iter().map(Worker::calls).collect()
    }
}

/// Eight callers at once, each one call after another. Gives the failures that they see.
async fn load(client: &WorkClient, calls: u64) -> u64 {
    let callers = (0..8).map(async |_| {
        let mut failed = 0;
        for _ in 0..calls / 8 {
            failed += u64::from(client.work().await.is_err());
        }
        failed
    });
    join_all(callers).await.into_iter().sum()
}

fn member(client: &WorkClient, at: usize) -> MemberStats {
    client.channel().stats().members.swap_remove(at)
}

/// Until the server is ejected; some seconds of calls are enough for that.
async fn load_until_ejected(client: &WorkClient, at: usize) {
    for _ in 0..100 {
        load(client, 80).await;
        if member(client, at).is_ejected {
            return;
        }
    }
    panic!("it fails, and is not ejected: {:?}", client.channel().stats().members);
}

/// Four servers, the last of which fails each call. Gives its calls of 4,000, and how often it was
/// ejected.
async fn calls_at_a_bad_server(name: &str, code: Code, always: bool) -> (u64, u64) {
    let fleet = Fleet::start(name, 4).await;
    fleet.workers[3].fail((code, always));
    let client = fleet.client(BalancingPolicy::new());
    load(&client, 4000).await;
    let stats = client.channel().stats();
    assert_eq!(stats.members[3].is_ejected, stats.ejections > 0);
    (fleet.workers[3].calls(), stats.ejections)
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_fast_is_ejected() {
    for (name, code) in
        [("bad-1", Code::Internal), ("bad-2", Code::Unknown), ("bad-3", Code::DataLoss)]
    {
        let (calls, ejections) = calls_at_a_bad_server(name, code, true).await;
        assert!(calls <= 20, "{code:?}: {calls} of 4,000");
        assert_eq!(ejections, 1, "{code:?}");
    }
    let (calls, _) = calls_at_a_bad_server("gone", Code::Unavailable, true).await;
    assert!(calls <= 20, "{calls} of 4,000");
}

#[tokio::test(start_paused = true)]
async fn a_server_gets_less_as_it_sheds() {
    let (calls, ejections) = calls_at_a_bad_server("sheds", Code::ResourceExhausted, true).await;
    assert!((2..100).contains(&calls), "{calls} of 4,000");
    assert_eq!(ejections, 0);
    // The half of its even share is 500.
    let (calls, ejections) =
        calls_at_a_bad_server("sheds-half", Code::ResourceExhausted, false).await;
    assert!((300..700).contains(&calls), "{calls} of 4,000");
    assert_eq!(ejections, 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_no_failure_is_an_answer() {
    let (calls, ejections) = calls_at_a_bad_server("not-found", Code::NotFound, true).await;
    assert!(calls > 1000, "it answers fast: {calls}");
    assert_eq!(ejections, 0);
    // A service says itself what counts.
    let fleet = Fleet::start("own-codes", 4).await;
    fleet.workers[3].fail((Code::NotFound, true));
    let client = fleet.client(BalancingPolicy::new().failures_of("Work", [Code::NotFound]));
    load(&client, 4000).await;
    assert!(fleet.workers[3].calls() <= 20, "{:?}", fleet.calls());
    fleet.workers[3].fail((Code::Internal, true));
    tokio::time::sleep(30 * SECOND).await;
    load(&client, 4000).await;
    assert_eq!(client.channel().stats().ejections, 1);
}

#[tokio::test(start_paused = true)]
async fn a_bad_rate_ejects_among_good_ones() {
    let (calls, ejections) = calls_at_a_bad_server("rate", Code::Internal, false).await;
    assert!(calls < 500, "{calls} of 4,000");
    assert_eq!(ejections, 1);
}

#[tokio::test(start_paused = true)]
async fn an_ejected_server_comes_back_by_degrees() {
    let fleet = Fleet::start("back", 4).await;
    fleet.workers[3].fail((Code::Internal, true));
    let client = fleet.client(BalancingPolicy::new());
    load_until_ejected(&client, 3).await;
    let before = fleet.workers[3].calls();
    tokio::time::sleep(8 * SECOND).await;
    load(&client, 400).await;
    assert_eq!(fleet.workers[3].calls(), before, "not before ten seconds, less a tenth");
    // It still fails: out for twice as long.
    tokio::time::sleep(3 * SECOND).await;
    load_until_ejected(&client, 3).await;
    fleet.workers[3].fail(None);
    tokio::time::sleep(17 * SECOND).await;
    assert!(member(&client, 3).is_ejected);
    tokio::time::sleep(5 * SECOND).await;
    let before = fleet.calls();
    load(&client, 1600).await;
    let first: Vec<_> = fleet.calls().iter().zip(before).map(|(now, then)| now - then).collect();
    assert!((10..300).contains(&first[3]), "a part of an even share: {first:?}");
    tokio::time::sleep(10 * SECOND).await;
    let before = fleet.calls();
    load(&client, 1600).await;
    let then: Vec<_> = fleet.calls().iter().zip(before).map(|(now, then)| now - then).collect();
    assert!((300..500).contains(&then[3]), "an even share: {then:?}");
    assert_eq!(client.channel().stats().ejections, 2);
}

#[tokio::test(start_paused = true)]
async fn at_most_a_third_is_ejected() {
    for (count, most) in [(2, 0), (3, 1), (7, 2)] {
        let fleet = Fleet::start(&format!("all-bad-{count}"), count).await;
        fleet.workers.iter().for_each(|worker| worker.fail((Code::Internal, true)));
        let client = fleet.client(BalancingPolicy::new());
        assert_eq!(load(&client, 800).await, 800);
        assert_eq!(fleet.calls().iter().sum::<u64>(), 800, "each call has a server");
        let stats = client.channel().stats();
        assert_eq!(stats.members.iter().filter(|member| member.is_ejected).count(), most);
        assert_eq!(stats.ejections, most as u64);
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_in_the_midst_ejects_nobody() {
    let mut fleet = Fleet::start("restart", 3).await;
    let client = fleet.client(BalancingPolicy::new());
    load(&client, 80).await;
    let calls: Vec<_> = (0..60).map(|_| client.work().start()).collect();
    let task = fleet.tasks.remove(0);
    task.abort();
    let _ = task.await;
    let lost = join_all(calls).await.into_iter().filter(Result::is_err).count();
    assert!(lost > 5, "{lost} calls ended with the connection");
    fleet.tasks.push(serve(&fleet.addresses[0], &fleet.workers[0], &fleet.health[0]).await);
    let before = fleet.workers[0].calls();
    for _ in 0..10 {
        load(&client, 80).await;
        tokio::time::sleep(SECOND).await;
    }
    assert!(fleet.workers[0].calls() > before + 50, "it has its share again");
    assert_eq!(client.channel().stats().ejections, 0);
}

#[tokio::test(start_paused = true)]
async fn an_ill_server_gets_no_new_calls() {
    let fleet = Fleet::start("ill", 3).await;
    fleet.health[1].set("Work", ServingStatus::NotServing);
    fleet.health[2].set("", ServingStatus::NotServing);
    let client = fleet.client(BalancingPolicy::new().health_service("Work"));
    assert_eq!(load(&client, 80).await, 0);
    assert_eq!(fleet.workers[1].calls(), 0, "from its first call on");
    assert!(fleet.workers[2].calls() > 10, "that of another service says nothing");
    fleet.health[1].set("Work", ServingStatus::Serving);
    fleet.health[2].set("Work", ServingStatus::Draining);
    tokio::time::sleep(SECOND).await;
    let before = fleet.workers[2].calls();
    load(&client, 800).await;
    assert!(fleet.workers[1].calls() > 0);
    assert_eq!(fleet.workers[2].calls(), before);
    let health = |at| member(&client, at).health;
    assert_eq!([health(0), health(1), health(2)], ["serving", "serving", "draining"]);
    // Where there is no other, it still serves.
    fleet.health[0].set("Work", ServingStatus::NotServing);
    fleet.health[1].set("Work", ServingStatus::NotServing);
    tokio::time::sleep(SECOND).await;
    assert_eq!(load(&client, 80).await, 0);
    assert_eq!(fleet.workers[2].calls(), before + 80);
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_for_a_healthy_server() {
    let fleet = Fleet::start("all-ill", 2).await;
    fleet.health.iter().for_each(|health| health.set("Work", ServingStatus::NotServing));
    let client = fleet.client(BalancingPolicy::new().health_service("Work"));
    let status = Status::from(client.work().await.unwrap_err());
    assert_eq!((status.code(), status.is_retryable()), (Code::Unavailable, true));
    assert!(status.message().contains("mem://all-ill-0 does not say that it serves"), "{status}");
    let waits = tokio::spawn(client.work().wait_for_ready(true).start());
    tokio::time::sleep(SECOND).await;
    assert_eq!(fleet.calls(), [0, 0]);
    fleet.health[1].set("Work", ServingStatus::Serving);
    assert_eq!(waits.await.unwrap(), Ok(()));
    assert_eq!(fleet.calls(), [0, 1]);
    let patience = client.work().timeout(SECOND);
    fleet.health[1].set("Work", ServingStatus::NotServing);
    tokio::time::sleep(SECOND).await;
    let status = Status::from(patience.wait_for_ready(true).await.unwrap_err());
    assert_eq!(status.code(), Code::DeadlineExceeded);
}

#[tokio::test(start_paused = true)]
async fn who_does_not_tell_counts_as_serving() {
    let fleet = Fleet::start("silent", 1).await;
    let client = fleet.client(BalancingPolicy::new().health_service("Unheard"));
    assert_eq!(load(&client, 80).await, 0);
    // A server without that service at all.
    let worker = Worker::default();
    let server = Server::builder().add_service(WorkServer::new(worker.clone()));
    let server = server.bind("mem://silent-plain").await.unwrap();
    tokio::spawn(server.serve());
    let list = StaticList::new(["mem://silent-plain"]).unwrap();
    let policy = BalancingPolicy::new().health_service("Work");
    let channel = Channel::builder().balancing(policy).connect_balanced(list).unwrap();
    assert_eq!(load(&WorkClient::new(channel), 80).await, 0);
    assert_eq!(worker.calls(), 80);
}

/// Says once that it does not serve, and ends the watch; refuses so many watches after that.
#[derive(Clone, Default)]
struct Ill(Arc<(AtomicU64, AtomicU64)>);

impl Health for Ill {
    async fn check(&self, _: &str) -> Result<ServingStatus, Status> {
        Ok(ServingStatus::NotServing)
    }

    async fn watch(&self, _: &str) -> Result<impl Stream<Item = ServingStatus>, Status> {
        let (watches, refused) = &*self.0;
        if !watches
            .fetch_add(1, Ordering::SeqCst)
            .is_multiple_of(refused.load(Ordering::SeqCst) + 1)
        {
            return Err(Status::internal("not now"));
        }
        Ok(stream::stream(async |mut out| {
            out.send(ServingStatus::NotServing).await?;
            Ok(())
        }))
    }
}

/// A regression: after "not serving" one watch that failed made a server well, for up to a minute.
#[tokio::test(start_paused = true)]
async fn a_word_outlives_watches_that_fail() {
    let (ill, fleet) = (Ill::default(), Fleet::start("word", 2).await);
    let worker = Worker::default();
    let server = Server::builder().add_service(WorkServer::new(worker.clone()));
    let server = server.add_service(HealthServer::new(ill.clone()));
    tokio::spawn(server.bind("mem://word-ill").await.unwrap().serve());
    let all = fleet.addresses.iter().map(String::as_str).chain(["mem://word-ill"]);
    let list = StaticList::new(all).unwrap();
    let policy = BalancingPolicy::new().health_service("Work");
    let channel = Channel::builder().balancing(policy).connect_balanced(list).unwrap();
    let client = WorkClient::new(channel);
    for refused in [0, 1, 2] {
        ill.0.1.store(refused, Ordering::SeqCst);
        // The next one says it, whatever was refused before.
        ill.0.0.store(0, Ordering::SeqCst);
        for _ in 0..120 {
            load(&client, 16).await;
            tokio::time::sleep(SECOND).await;
        }
        assert_eq!(worker.calls(), 0, "{refused} in a row were refused");
    }
    // In the end one that says nothing counts as serving.
    ill.0.1.store(u64::MAX - 1, Ordering::SeqCst);
    tokio::time::sleep(60 * SECOND).await;
    load(&client, 80).await;
    assert!(worker.calls() > 0);
}

/// The watch is a call that holds the connection.
#[tokio::test(start_paused = true)]
async fn a_watched_connection_ends_with_its_channel() {
    let fleet = Fleet::start("watched", 1).await;
    let server = Server::builder().add_service(WorkServer::new(Worker::default()));
    let server = server.health(&HealthReporter::new()).bind("mem://watched-end").await.unwrap();
    let stats = server.stats_handle();
    tokio::spawn(server.serve());
    let list = StaticList::new(["mem://watched-end"]).unwrap();
    let policy = BalancingPolicy::new().health_service("Work");
    let channel = Channel::builder().balancing(policy).connect_balanced(list).unwrap();
    WorkClient::new(channel.clone()).work().await.unwrap();
    assert_eq!(stats.stats().connections.len(), 1);
    drop(channel);
    for _ in 0..100 {
        tokio::time::sleep(SECOND).await;
        if stats.stats().connections.is_empty() {
            return;
        }
    }
    panic!("it is held: {:?} {:?}", stats.stats().connections, fleet.addresses);
}
