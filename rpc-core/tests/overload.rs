//! A server with an adaptive limit, over `mem://` and virtual time.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use rpc_core::server::{AdaptiveLimit, Priority};
use rpc_core::stats::StatsHandle;
use rpc_core::{Code, Server};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

#[rpc_core::service]
trait Work {
    /// Takes 10 ms of one of eight workers.
    async fn work(&self);
    /// Ends when the test says so.
    async fn wait(&self);
}

struct Workers {
    workers: Semaphore,
    end: Arc<Notify>,
}

impl Work for Workers {
    async fn work(&self) {
        let _worker = self.workers.acquire().await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    async fn wait(&self) {
        self.end.notified().await;
    }
}

/// A server of eight workers, its stats, and what ends [`Work::wait`].
async fn serve(name: &str, limit: Option<AdaptiveLimit>) -> (WorkClient, StatsHandle, Arc<Notify>) {
    let end = Arc::<Notify>::default();
    let workers = Workers { workers: Semaphore::new(8), end: Arc::clone(&end) };
    let mut builder = Server::builder().add_service(WorkServer::new(workers));
    if let Some(limit) = limit {
        builder = builder.adaptive_limit(limit);
    }
    let address = format!("mem://{name}");
    let server = builder.bind(&*address).await.unwrap();
    let stats = server.stats_handle();
    tokio::spawn(server.serve());
    (WorkClient::connect(&address).await.unwrap(), stats, end)
}

/// Makes a call every `every`, `count` times, whether or not the earlier ones have ended. Returns
/// the times of those that succeeded in order, and how many were refused.
async fn load(client: &WorkClient, every: Duration, count: u32) -> (Vec<Duration>, usize) {
    let began = Instant::now();
    let calls = (0..count).map(|number| {
        let client = client.clone();
        tokio::spawn(async move {
            tokio::time::sleep_until(began + every * number).await;
            let began = Instant::now();
            match client.work().await {
                Ok(()) => Some(began.elapsed()),
                Err(status) => {
                    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                    assert!(status.is_retryable() && status.retry_after().is_some(), "{status}");
                    None
                }
            }
        })
    });
    let ended: Vec<_> = join_all(calls).await.into_iter().map(Result::unwrap).collect();
    let refused = ended.iter().filter(|it| it.is_none()).count();
    let mut times: Vec<_> = ended.into_iter().flatten().collect();
    times.sort_unstable();
    (times, refused)
}

/// Twice the 800 calls a second that the workers can do.
const DOUBLE: Duration = Duration::from_micros(625);

#[tokio::test(start_paused = true)]
async fn overloaded_server_keeps_its_rate_and_times() {
    let (client, stats, _) = serve("overload-limited", Some(AdaptiveLimit::default())).await;
    let (calm, _) = load(&client, 4 * DOUBLE, 1_000).await;
    load(&client, DOUBLE, 2_000).await;
    let began = Instant::now();
    let (times, refused) = load(&client, DOUBLE, 8_000).await;
    let capacity = began.elapsed().as_secs_f64() * 800.0;
    let p99 = |times: &[Duration]| times[times.len() * 99 / 100];
    let said = format!(
        "{} of {capacity} calls, {refused} refused, p99 {:?}, of {:?} without load",
        times.len(),
        p99(&times),
        p99(&calm)
    );
    println!("{said}");
    assert!(times.len() as f64 >= 0.9 * capacity, "{said}");
    assert!(p99(&times) <= 3 * p99(&calm), "{said}");
    let overload = stats.stats().overload.unwrap();
    assert_eq!(overload.in_flight, 0);
    assert!(overload.shed >= refused as u64 && overload.limit < 24, "{overload:?}");
}

#[tokio::test(start_paused = true)]
async fn unlimited_server_answers_ever_later() {
    let (client, stats, _) = serve("overload-unlimited", None).await;
    let (times, refused) = load(&client, DOUBLE, 2_000).await;
    assert_eq!((times.len(), refused), (2_000, 0));
    assert!(times.last().unwrap() > &Duration::from_secs(1));
    assert_eq!(stats.stats().overload, None);
}

#[tokio::test(start_paused = true)]
async fn sheddable_calls_are_refused_before_critical_ones() {
    let limit = AdaptiveLimit::default().at_least(8).at_most(8);
    let (client, stats, end) = serve("overload-priorities", Some(limit)).await;
    let call = |priority: Priority| {
        let client = client.clone();
        tokio::spawn(async move { client.wait().metadata(Priority::KEY, priority.as_str()).await })
    };
    let mut taken = Vec::new();
    // Three quarters of eight, then all, then a quarter more.
    for (priority, room) in
        [(Priority::Sheddable, 6), (Priority::Default, 2), (Priority::Critical, 2)]
    {
        for _ in 0..room {
            taken.push(call(priority));
        }
        let refused = call(priority).await.unwrap().unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    }
    assert_eq!(stats.stats().overload.unwrap().shed, 3);
    end.notify_waiters();
    for call in taken {
        call.await.unwrap().unwrap();
    }
    assert_eq!(stats.stats().overload.unwrap().in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn dropped_calls_leave_the_count() {
    let (client, stats, _) = serve("overload-dropped", Some(AdaptiveLimit::default())).await;
    for _ in 0..100 {
        let call = client.wait().timeout(Duration::from_millis(5)).await;
        assert_eq!(call.unwrap_err().code(), Code::DeadlineExceeded);
    }
    client.work().await.unwrap();
    assert_eq!(stats.stats().overload.unwrap().in_flight, 0);
}
