//! Metrics through the facade of the crate `metrics`.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]
#![allow(missing_docs, unreachable_pub, reason = "the service here is an example")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use parking_lot::Mutex;
use rpc_core::stats::MetricsPublisher;
use rpc_core::{Channel, Server, Status};
use test_kit::Watchdog;

#[rpc_core::service]
trait Shop {
    async fn good(&self) -> u64;
    async fn bad(&self) -> Result<u64, Status>;
}

struct Counting;

impl Shop for Counting {
    async fn good(&self) -> u64 {
        7
    }

    async fn bad(&self) -> Result<u64, Status> {
        Err(Status::not_found("it"))
    }
}

/// Keeps the last value of each name and its labels.
#[derive(Default)]
struct Kept {
    values: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
    times: Mutex<BTreeMap<String, Arc<Times>>>,
    registered: AtomicUsize,
}

#[derive(Default)]
struct Times(Mutex<Vec<f64>>);

impl HistogramFn for Times {
    fn record(&self, value: f64) {
        self.0.lock().push(value);
    }
}

impl Kept {
    fn name(&self, key: &Key) -> String {
        self.registered.fetch_add(1, Ordering::Relaxed);
        let labels = key.labels().map(|it| format!(" {}={}", it.key(), it.value()));
        key.name().to_owned() + &labels.collect::<String>()
    }

    fn value(&self, key: &Key) -> Arc<AtomicU64> {
        let name = self.name(key);
        Arc::clone(self.values.lock().entry(name).or_default())
    }

    /// The value of a counter.
    fn count(&self, name: &str) -> Option<u64> {
        self.values.lock().get(name).map(|it| it.load(Ordering::Relaxed))
    }
}

impl Recorder for Kept {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, unit: Option<Unit>, _: SharedString) {
        assert_eq!(unit, Some(Unit::Seconds));
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.value(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.value(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        let name = self.name(key);
        Histogram::from_arc(Arc::clone(self.times.lock().entry(name).or_default()))
    }
}

async fn what_is_counted_is_published(address: &str) {
    let _watchdog = Watchdog::within(Duration::from_secs(60));
    let server =
        Server::builder().add_service(ShopServer::new(Counting)).bind(address).await.unwrap();
    let (handle, address) = (server.stats_handle(), server.local_address().to_string());
    tokio::spawn(server.serve());
    let channel = Channel::builder().connect(&address).await.unwrap();
    let shop = ShopClient::new(channel.clone());
    let kept = Kept::default();
    let mut of_server = MetricsPublisher::of_server(handle).label("zone", "north");
    let mut of_channel = MetricsPublisher::of_channel(&channel);
    let mut publish = || {
        metrics::with_local_recorder(&kept, || {
            of_server.publish();
            of_channel.publish();
        });
    };
    for round in 1..=3 {
        for _ in 0..5 {
            shop.good().await.unwrap();
        }
        shop.bad().await.unwrap_err();
        // The server counts its calls concurrently with the answers.
        let good = "rpc.server.call.duration method=Shop.good zone=north";
        let bad = "rpc.server.call.ended method=Shop.bad code=NotFound zone=north";
        loop {
            publish();
            let timed = kept.times.lock().get(good).map(|it| it.0.lock().len() as u64);
            if timed >= Some(5 * round) && kept.count(bad) == Some(round) {
                break;
            }
            tokio::task::yield_now().await;
        }
        // Nothing has happened since, so nothing changes.
        let registered = kept.registered.load(Ordering::Relaxed);
        publish();
        assert_eq!(kept.registered.load(Ordering::Relaxed), registered, "handles are held");
        for (name, count) in [
            ("rpc.server.call.started method=Shop.good zone=north", 5 * round),
            (bad, round),
            ("rpc.client.attempt.started method=Shop.good", 5 * round),
            ("rpc.client.connected", 1),
        ] {
            assert_eq!(kept.count(name), Some(count), "{name}");
        }
        let connections = kept.count("rpc.server.connections zone=north").unwrap();
        assert_eq!(f64::from_bits(connections).to_string(), "1");
        // The first sixteen calls of a method are timed one by one.
        let times = kept.times.lock();
        let times = times[good].0.lock();
        assert_eq!(times.len() as u64, 5 * round, "{times:?}");
        assert!(times.iter().all(|it| *it > 0.0 && *it < 138.0), "{times:?}");
    }
}

#[tokio::test]
async fn what_is_counted_is_published_over_shm() {
    what_is_counted_is_published(&format!("shm://published-{}", std::process::id())).await;
}

#[tokio::test]
async fn what_is_counted_is_published_over_tcp() {
    what_is_counted_is_published("tcp://127.0.0.1:0").await;
}
