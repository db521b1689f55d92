//! Channels whose runtime ends while another one, or none, continues.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use rpc_core::client::HedgingPolicy;
use rpc_core::client::resolve::StaticList;
use rpc_core::{Channel, Code, Server, Status};
use test_kit::Watchdog;
use tokio::runtime::{Builder, Runtime};

#[rpc_core::service]
trait Counter {
    /// Returns the number of calls so far, including this one.
    async fn count(&self) -> u64;
    /// Waits a little.
    async fn slow(&self) -> u64;
    /// The first call hangs.
    #[rpc(idempotent)]
    async fn hang_first(&self) -> u64;
    /// The first call is refused with a short pushback.
    #[rpc(idempotent)]
    async fn refuse_first(&self) -> Result<u64, Status>;
    /// Hangs if requested.
    #[rpc(idempotent)]
    async fn hang_there(&self) -> u64;
}

#[derive(Default)]
struct Calls {
    count: AtomicU64,
    hangs: bool,
}

impl Calls {
    fn so_far(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    fn next(&self) -> u64 {
        self.count.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn reach(&self, count: u64) {
        while self.so_far() < count {
            std::thread::yield_now();
        }
    }
}

impl Counter for Arc<Calls> {
    async fn count(&self) -> u64 {
        self.next()
    }

    async fn slow(&self) -> u64 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        self.next()
    }

    async fn hang_first(&self) -> u64 {
        match self.next() {
            1 => std::future::pending().await,
            number => number,
        }
    }

    async fn refuse_first(&self) -> Result<u64, Status> {
        match self.next() {
            1 => Err(Status::unavailable("later").with_retry_after(Duration::from_millis(300))),
            number => Ok(number),
        }
    }

    async fn hang_there(&self) -> u64 {
        match (self.next(), self.hangs) {
            (_, true) => std::future::pending().await,
            (number, false) => number,
        }
    }
}

fn many() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn one() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Gives the address with what it was bound to.
async fn serve(address: &str, calls: &Arc<Calls>) -> String {
    let service = CounterServer::new(Arc::clone(calls));
    let server = Server::builder().add_service(service).bind(address).await.unwrap();
    let address = server.local_address().to_string();
    tokio::spawn(server.serve());
    address
}

struct Unparks(std::thread::Thread);

impl Wake for Unparks {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits outside of every runtime.
fn block_on<O>(future: impl Future<Output = O>) -> O {
    let waker = Waker::from(Arc::new(Unparks(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

fn list(addresses: &[&str]) -> StaticList {
    StaticList::new(addresses).unwrap()
}

fn until(done: impl Fn() -> bool) {
    while !done() {
        std::thread::yield_now();
    }
}

#[test]
fn a_waiting_call_outlives_its_channels_runtime() {
    let _watchdog = Watchdog::start("a waiting call");
    let (first, second) = (many(), many());
    let channel = {
        let _here = first.enter();
        Channel::builder().connect_lazy("mem://runtimes-absent").unwrap()
    };
    let client = CounterClient::new(channel.clone());
    let call = second.spawn(async move {
        client.count().wait_for_ready(true).timeout(Duration::from_millis(500)).await
    });
    until(|| channel.stats().waiting_calls > 0);
    drop(first);
    let status = second.block_on(call).expect("it has not panicked").unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
}

#[test]
fn a_hedged_call_outlives_its_channels_runtime() {
    let _watchdog = Watchdog::start("a hedged call");
    let (first, second, servers) = (many(), many(), many());
    let calls = Arc::<Calls>::default();
    servers.block_on(serve("mem://runtimes-hedged", &calls));
    let client = first.block_on(async {
        let hedging = HedgingPolicy::new().delay(Duration::from_secs(100)).budget(1.0);
        let channel = Channel::builder().hedging(hedging).connect("mem://runtimes-hedged");
        CounterClient::new(channel.await.unwrap())
    });
    let call = second.spawn(async move { client.hang_first().await });
    calls.reach(1);
    drop(first);
    assert_eq!(second.block_on(call).expect("it has not panicked"), Ok(2));
}

#[test]
fn a_retry_outlives_its_channels_runtime() {
    let _watchdog = Watchdog::start("a retry");
    let (first, second, servers) = (many(), many(), many());
    let calls = Arc::<Calls>::default();
    servers.block_on(serve("mem://runtimes-refused", &calls));
    let client = first.block_on(CounterClient::connect("mem://runtimes-refused")).unwrap();
    let channel = client.channel().clone();
    let call = second.spawn(async move { client.refuse_first().await });
    let has_ended = || channel.stats().methods.iter().any(|method| !method.ended.is_empty());
    until(has_ended);
    drop(first);
    assert_eq!(second.block_on(call).expect("it has not panicked"), Ok(2));
}

#[test]
fn channels_made_in_an_ended_runtime_serve() {
    let _watchdog = Watchdog::start("channels of an ended runtime");
    let first = one();
    let address = "mem://runtimes-ended";
    let channels = {
        let _here = first.enter();
        [(); 4].map(|()| {
            let balanced = Channel::builder().connect_balanced(list(&[address])).unwrap();
            [Channel::builder().connect_lazy(address).unwrap(), balanced]
        })
    };
    drop(first);
    let second = many();
    let calls = Arc::<Calls>::default();
    second.block_on(serve(address, &calls));
    for (number, channels) in channels.into_iter().enumerate() {
        for channel in channels {
            let client = CounterClient::new(channel);
            let call = async move {
                let call = client.count().wait_for_ready(number % 2 == 0);
                call.timeout(Duration::from_secs(100)).await
            };
            let counted = match number {
                0 | 1 => second.block_on(call),
                // In a runtime without a timer, and outside any runtime.
                2 => Builder::new_current_thread().build().unwrap().block_on(call),
                _ => block_on(call),
            };
            counted.unwrap();
        }
    }
    assert_eq!(calls.so_far(), 8);
}

/// Regression: it moved to the runtime of the next call, and was not driven after that ended.
#[test]
fn a_channel_never_moves_where_nobody_drives_it() {
    let _watchdog = Watchdog::start("a channel that moves");
    let (home, servers, other) = (many(), many(), many());
    let calls = Arc::<Calls>::default();
    servers.block_on(serve("mem://runtimes-driven", &calls));
    let client = home.block_on(CounterClient::connect("mem://runtimes-driven")).unwrap();
    drop(home);
    let own = one();
    own.block_on(client.slow()).unwrap();
    // That runtime is stopped now.
    assert_eq!(other.block_on(client.slow()), Ok(2));
}

/// One client in a static, a runtime for each test.
#[test]
fn short_runtimes_share_one_client() {
    let _watchdog = Watchdog::start("short runtimes");
    let servers = many();
    let calls = Arc::<Calls>::default();
    let mut answered = 0;
    for at in ["mem://runtimes-short", "shm://runtimes-short", "tcp://127.0.0.1:0"] {
        let address = servers.block_on(serve(at, &calls));
        for kind in ["connect", "lazy", "balanced"] {
            for runtime in [one, many] {
                let mut client = None;
                for test in 0..12 {
                    let runtime = runtime();
                    let counted = runtime.block_on(async {
                        let client = match &mut client {
                            Some(client) => client,
                            none => {
                                let builder = Channel::builder();
                                let channel = match kind {
                                    "connect" => builder.connect(&address).await.unwrap(),
                                    "lazy" => builder.connect_lazy(&address).unwrap(),
                                    _ => builder.connect_balanced(list(&[&address])).unwrap(),
                                };
                                none.insert(CounterClient::new(channel))
                            }
                        };
                        client.count().await?;
                        client.count().await
                    });
                    answered += 2;
                    assert_eq!(counted, Ok(answered), "test {test} of {kind} at {address}");
                }
            }
        }
    }
}

/// Regression: each of them ended because its handler was dropped, and the throttle allowed few
/// retries.
#[test]
fn a_servers_ended_runtime_costs_no_idempotent_call() {
    let _watchdog = Watchdog::start("a server's runtime");
    let here = many();
    for round in 0..5 {
        let (a, b) = (format!("mem://ended-a-{round}"), format!("mem://ended-b-{round}"));
        let (first, successor) = (many(), many());
        let hangs = Arc::new(Calls { hangs: true, ..Calls::default() });
        let well = Arc::<Calls>::default();
        first.block_on(serve(&a, &hangs));
        let channel =
            here.block_on(async { Channel::builder().connect_balanced(list(&[&a, &b])).unwrap() });
        let client = CounterClient::new(channel);
        let calls: Vec<_> = (0..100)
            .map(|_| {
                let client = client.clone();
                here.spawn(async move { client.hang_there().wait_for_ready(true).await })
            })
            .collect();
        hangs.reach(100);
        successor.block_on(serve(&b, &well));
        drop(first);
        for call in calls {
            here.block_on(call).unwrap().unwrap();
        }
        assert_eq!(well.so_far(), 100);
    }
}

#[test]
fn calls_find_the_successor_at_its_address() {
    let _watchdog = Watchdog::start("a successor");
    let here = many();
    for at in ["mem://ended-same", "tcp://127.0.0.1:0"] {
        let first = many();
        let hangs = Arc::new(Calls { hangs: true, ..Calls::default() });
        let well = Arc::<Calls>::default();
        let address = first.block_on(serve(at, &hangs));
        let client = here.block_on(CounterClient::connect(&address)).unwrap();
        let calls: Vec<_> = (0..100)
            .map(|_| {
                let client = client.clone();
                here.spawn(async move { client.hang_there().wait_for_ready(true).await })
            })
            .collect();
        hangs.reach(100);
        drop(first);
        let successor = many();
        successor.block_on(serve(&address, &well));
        for call in calls {
            here.block_on(call).unwrap().unwrap();
        }
        assert_eq!(well.so_far(), 100);
    }
}
