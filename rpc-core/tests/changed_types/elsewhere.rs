//! Calls that one server of a balanced channel refuses before any handler runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use rpc_core::client::resolve::StaticList;
use rpc_core::client::{HedgingPolicy, RetryPolicy};
use rpc_core::interceptor::{ClientInterceptor, Ended};
use rpc_core::service::Dispatch;
use rpc_core::stats::StatsHandle;
use rpc_core::stream::{self, Stream, Streaming};
use rpc_core::{Channel, ChannelBuilder, Code, Server, Status};

mod old {
    use super::*;

    #[rpc_core::service]
    pub trait Stock {
        async fn put(&self, item: Vec<u32>) -> u32;
        fn list(&self, to: String) -> impl Stream<Item = u64>;
        async fn sum(&self, rows: Streaming<String>) -> u64;
        #[rpc(idempotent)]
        async fn fail(&self) -> Result<u64, Status>;
    }
}

mod new {
    use super::*;

    #[rpc_core::service]
    pub trait Stock {
        #[rpc(idempotent)]
        async fn count(&self) -> u64;
        fn count_up(&self, to: u64) -> impl Stream<Item = u64>;
        async fn put(&self, item: u32) -> u32;
        fn list(&self, to: u64) -> impl Stream<Item = u64>;
        async fn sum(&self, rows: Streaming<u64>) -> u64;
        #[rpc(idempotent)]
        async fn fail(&self) -> Result<u64, Status>;
    }
}

#[rpc_core::service]
trait Other {
    async fn other(&self);
    async fn hang(&self);
}

#[derive(Default)]
struct Shelf {
    runs: AtomicU64,
    takes: Duration,
}

impl Shelf {
    async fn run(&self) -> u64 {
        let runs = self.runs.fetch_add(1, Ordering::SeqCst) + 1;
        tokio::time::sleep(self.takes).await;
        runs
    }
}

impl Other for Shelf {
    async fn other(&self) {}
    async fn hang(&self) {
        std::future::pending().await
    }
}

impl old::Stock for Shelf {
    async fn put(&self, _: Vec<u32>) -> u32 {
        panic!("its types differ")
    }
    fn list(&self, _: String) -> impl Stream<Item = u64> {
        stream::iter(0..0)
    }
    async fn sum(&self, _: Streaming<String>) -> u64 {
        panic!("its types differ")
    }
    async fn fail(&self) -> Result<u64, Status> {
        Err(Status::unavailable("no").with_retryable(true))
    }
}

impl new::Stock for Shelf {
    async fn count(&self) -> u64 {
        self.run().await
    }
    fn count_up(&self, to: u64) -> impl Stream<Item = u64> {
        stream::iter(0..to)
    }
    async fn put(&self, item: u32) -> u32 {
        self.run().await;
        item
    }
    fn list(&self, to: u64) -> impl Stream<Item = u64> {
        stream::iter(0..to)
    }
    async fn sum(&self, mut rows: Streaming<u64>) -> u64 {
        let mut sum = 0;
        while let Ok(Some(row)) = rows.try_next().await {
            sum += row;
        }
        sum
    }
    async fn fail(&self) -> Result<u64, Status> {
        Err(Status::unavailable("no").with_retryable(true))
    }
}

#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<Code>>>);

impl ClientInterceptor for Seen {
    fn after(&self, call: &Ended<'_>) {
        self.0.lock().unwrap().push(call.code());
    }
}

/// Servers behind one channel.
#[derive(Default)]
struct Fleet {
    addresses: Vec<String>,
    stats: Vec<StatsHandle>,
}

impl Fleet {
    async fn add<D: Dispatch>(&mut self, service: D) {
        let [address, ..] = crate::addresses();
        let server = Server::builder().add_service(service).bind(&*address).await.unwrap();
        self.stats.push(server.stats_handle());
        tokio::spawn(server.serve());
        self.addresses.push(address);
    }

    /// A channel that is connected to all servers.
    async fn connect(&self, builder: ChannelBuilder) -> Channel {
        let list = StaticList::new(self.addresses.clone()).unwrap();
        let channel = builder.connect_balanced(list).unwrap();
        let all = self.addresses.len();
        let ready = async {
            channel.kick();
            while channel.stats().members.iter().filter(|it| it.is_connected).count() < all {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), ready).await.unwrap();
        channel
    }

    /// The calls of unknown methods that each server has got.
    fn unknown(&self) -> Vec<u64> {
        let of = |stats: &StatsHandle| {
            let methods = stats.stats().methods;
            methods.iter().filter(|method| method.name.is_empty()).map(|it| it.started).sum()
        };
        self.stats.iter().map(of).collect()
    }
}

async fn all(items: impl Stream<Item = Result<u64, Status>>) -> Vec<u64> {
    items.map(Result::unwrap).collect().await
}

#[tokio::test(start_paused = true)]
async fn a_refused_call_goes_to_another_server() {
    let (mut fleet, shelf, seen) = (Fleet::default(), Arc::<Shelf>::default(), Seen::default());
    fleet.add(old::StockServer::new(Shelf::default())).await;
    fleet.add(OtherServer::new(Shelf::default())).await;
    fleet.add(new::StockServer::from_arc(Arc::clone(&shelf))).await;
    let channel = fleet.connect(Channel::builder().interceptor(seen.clone())).await;
    let stock = new::StockClient::new(channel.clone());
    for round in 1..=20_u64 {
        assert_eq!(stock.count().await, Ok(2 * round - 1));
        assert_eq!(stock.put(7).await, Ok(7));
        let rows = || stream::iter(1..=2000_u64);
        assert_eq!(stock.sum(rows()).await, Ok(2000 * 2001 / 2));
        assert_eq!(all(stock.list(3).await.unwrap()).await, [0, 1, 2]);
        assert_eq!(all(stock.count_up(3).await.unwrap()).await, [0, 1, 2]);
    }
    assert_eq!(shelf.runs.load(Ordering::SeqCst), 40);
    assert!(fleet.unknown()[..2].iter().all(|unknown| *unknown > 0), "{:?}", fleet.unknown());
    assert_eq!(*seen.0.lock().unwrap(), [Code::Ok; 100], "each is one call");
    for method in channel.stats().methods {
        assert_eq!((method.started, method.in_flight()), (20, 0), "{method:?}");
        assert_eq!(method.ended.get(&Code::Ok), Some(&20), "{method:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_server_refuses_once_the_first_counts() {
    let mut fleet = Fleet::default();
    fleet.add(old::StockServer::new(Shelf::default())).await;
    fleet.add(OtherServer::new(Shelf::default())).await;
    fleet.add(OtherServer::new(Shelf::default())).await;
    let channel = fleet.connect(Channel::builder()).await;
    let stock = new::StockClient::new(channel.clone());
    for calls in 1..=10 {
        let status = stock.count().await.unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented);
        crate::assert_has(&status, &["Stock.count", "add the service to the server"]);
        assert_eq!(fleet.unknown(), [calls; 3]);
    }
    let mut codes = [0; 2];
    for _ in 0..60 {
        let code = stock.put(1).await.unwrap_err().code();
        codes[usize::from(code == Code::Unimplemented)] += 1;
        assert!([Code::Unimplemented, Code::FailedPrecondition].contains(&code));
    }
    // The server that is asked first decides.
    assert!(codes.iter().all(|count| *count > 0), "{codes:?}");
    let methods = channel.stats().methods;
    let put = methods.iter().find(|method| method.name == "Stock.put").unwrap();
    assert_eq!((put.started, put.in_flight()), (60, 0), "{put:?}");
}

/// The second attempt is refused while the first one runs, or the other way round.
#[tokio::test(start_paused = true)]
async fn a_refused_attempt_does_not_end_a_hedge() {
    let shelf = Arc::new(Shelf { takes: Duration::from_millis(50), ..Shelf::default() });
    let mut fleet = Fleet::default();
    fleet.add(OtherServer::new(Shelf::default())).await;
    fleet.add(new::StockServer::from_arc(Arc::clone(&shelf))).await;
    let policy = HedgingPolicy::new().delay(Duration::from_millis(1)).budget(1.0);
    let channel = fleet.connect(Channel::builder().hedging(policy)).await;
    let stock = new::StockClient::new(channel.clone());
    let (mut hedged, mut moved) = (0, 0);
    for call in 0..60 {
        if call == 30 {
            // From now on the server that refuses is busy, and is asked last.
            let other = OtherClient::new(channel.clone());
            for _ in 0..50 {
                tokio::spawn(other.hang().start());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let before = (fleet.unknown()[0], shelf.runs.load(Ordering::SeqCst));
        stock.count().await.unwrap();
        let after = (fleet.unknown()[0], shelf.runs.load(Ordering::SeqCst));
        match (after.0 - before.0, after.1 - before.1) {
            // First here, then hedged at the other one.
            (1, 1) => hedged += 1,
            // Refused, and hedged where it went.
            (1, 2) => moved += 1,
            (0, 1) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(hedged > 0 && moved > 0, "{hedged} {moved}");
    let methods = channel.stats().methods;
    let count = methods.iter().find(|method| method.name == "Stock.count").unwrap();
    assert_eq!(count.in_flight(), 0, "{count:?}");
}

#[tokio::test(start_paused = true)]
async fn a_closed_throttle_keeps_calls_where_they_are() {
    let mut fleet = Fleet::default();
    fleet.add(old::StockServer::new(Shelf::default())).await;
    fleet.add(old::StockServer::new(Shelf::default())).await;
    let policy = RetryPolicy::new().max_attempts(2).throttle(4, 0.0);
    let channel = fleet.connect(Channel::builder().retry(policy)).await;
    let stock = new::StockClient::new(channel);
    let asked = || fleet.unknown().iter().sum::<u64>();
    assert_eq!(stock.count().await.unwrap_err().code(), Code::Unimplemented);
    assert_eq!(asked(), 2);
    for _ in 0..4 {
        let status = Status::from(stock.fail().await.unwrap_err());
        assert_eq!(status.code(), Code::Unavailable);
    }
    assert_eq!(stock.count().await.unwrap_err().code(), Code::Unimplemented);
    assert_eq!(asked(), 3);
}
