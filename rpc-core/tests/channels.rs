//! Channels that outlive their connections, over `mem://` and virtual time.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt, join_all};
use rpc_core::client::blocking::BlockingChannel;
use rpc_core::client::{Backoff, ConnectivityState};
use rpc_core::transport::CloseCause;
use rpc_core::{
    Bulk, Channel, Code, ConnectError, ListenError, PollMode, Server, ShutdownHandle, Status,
};
use tokio::task::JoinHandle;
use tokio::time::Instant;

#[rpc_core::service]
trait Counter {
    /// Returns the number of calls so far, including this one.
    async fn count(&self) -> u64;
    async fn add(&self, a: u64, b: u64) -> u64;
    async fn len(&self, data: Bulk) -> u64;
    async fn hang(&self);
    /// Counts as well, and the first call hangs.
    #[rpc(idempotent)]
    async fn hang_first(&self) -> u64;
    async fn give(&self, len: u32) -> Bulk;
}

#[derive(Default)]
struct Calls(AtomicU64);

impl Counter for Arc<Calls> {
    async fn count(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    async fn add(&self, a: u64, b: u64) -> u64 {
        a + b
    }

    async fn len(&self, data: Bulk) -> u64 {
        data.len()
    }

    async fn hang(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        std::future::pending().await
    }

    async fn hang_first(&self) -> u64 {
        match self.count().await {
            1 => std::future::pending().await,
            number => number,
        }
    }

    async fn give(&self, len: u32) -> Bulk {
        Bulk::from(vec![7; len as usize])
    }
}

/// A server that can be killed, or shut down regularly.
struct Running {
    task: JoinHandle<()>,
    stop: ShutdownHandle,
}

impl Running {
    async fn start(address: &str, calls: &Arc<Calls>) -> Self {
        Self::start_with(Server::builder, address, calls).await
    }

    async fn start_with(
        builder: impl Fn() -> rpc_core::ServerBuilder,
        address: &str,
        calls: &Arc<Calls>,
    ) -> Self {
        // The name is free again once the tasks of the previous server are gone.
        let server = loop {
            let service = CounterServer::new(Arc::clone(calls));
            match builder().add_service(service).bind(address).await {
                Ok(server) => break server,
                Err(ListenError::InUse { .. }) => tokio::task::yield_now().await,
                Err(error) => panic!("{error}"),
            }
        };
        let stop = server.shutdown_handle();
        let task = tokio::spawn(async move { server.serve().await.unwrap() });
        Self { task, stop }
    }

    async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

async fn until(channel: &Channel, state: ConnectivityState) {
    let mut now = channel.state();
    while now != state {
        now = channel.state_changed(now).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_channel_reconnects_after_ten_minutes() {
    let (address, calls) = ("mem://absent", Arc::default());
    let server = Running::start(address, &calls).await;
    let client = CounterClient::connect(address).await.unwrap();
    assert_eq!(client.count().await, Ok(1));
    tokio::time::sleep(Duration::from_secs(60)).await;
    server.kill().await;
    let cause = client.channel().closed().await;
    assert_eq!(client.channel().state(), ConnectivityState::Idle, "{cause}");
    let status = client.count().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.is_retryable() && status.message().contains(address), "{status}");
    assert!(status.message().contains("nothing is listening"), "{status}");
    assert!(status.message().starts_with("Counter.count: "), "{status}");
    let waiting = client.count().wait_for_ready(true).start();
    let waiting = tokio::spawn(waiting);
    let until_expired = client.count().wait_for_ready(true).timeout(Duration::from_secs(100));
    let began = Instant::now();
    let status = until_expired.await.unwrap_err();
    assert_eq!((status.code(), began.elapsed().as_secs()), (Code::DeadlineExceeded, 100));
    assert!(status.message().contains("nothing is listening"), "{status}");
    tokio::time::sleep(Duration::from_secs(500)).await;
    let _server = Running::start(address, &calls).await;
    let began = Instant::now();
    assert_eq!(waiting.await.unwrap(), Ok(2));
    assert!(began.elapsed() <= Duration::from_secs(5), "the longest backoff");
    assert_eq!(client.count().await, Ok(3));
    assert_eq!(client.channel().state(), ConnectivityState::Ready);
}

#[tokio::test(start_paused = true)]
async fn a_lazy_channel_connects_once_for_many_calls() {
    let (address, calls) = ("mem://lazy-crowd", Arc::default());
    let _server =
        Running::start_with(|| Server::builder().max_connections(1), address, &calls).await;
    let channel = Channel::builder().connect_lazy(address).unwrap();
    assert_eq!(channel.state(), ConnectivityState::Idle);
    assert!(channel.path().is_none() && channel.close_cause().is_none());
    let client = CounterClient::new(channel.clone());
    let (eager, crowd) = (client.add(1, 2).start(), (0..100).map(|number| client.add(number, 1)));
    let sums = join_all(crowd).await;
    assert!(sums.iter().zip(1..).all(|(sum, expected)| *sum == Ok(expected)), "{sums:?}");
    assert_eq!(eager.await, Ok(3));
    assert_eq!(channel.path().unwrap().target.to_string(), address);
}

#[tokio::test(start_paused = true)]
async fn unsent_calls_are_retried_once() {
    let (address, calls) = ("mem://never-sent", Arc::<Calls>::default());
    let one = || Server::builder().max_calls_per_connection(1);
    let server = Running::start_with(one, address, &calls).await;
    let builder = Channel::builder().wait_for_ready(true);
    let client = CounterClient::new(builder.connect(address).await.unwrap());
    assert_eq!(client.add(1, 1).await, Ok(2), "the server's limit is known");
    let hanging = client.hang().start();
    while calls.0.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    // There is no slot for these: they wait in the session, small and large, with metadata.
    let counts: Vec<_> = (0..10).map(|_| client.count().metadata("a", "b").start()).collect();
    let lens: Vec<_> =
        (0..3).map(|number| client.len(Bulk::from(vec![1; number << 20])).start()).collect();
    server.kill().await;
    let status = hanging.await.unwrap_err();
    assert_eq!((status.code(), status.is_retryable()), (Code::Unavailable, false), "it ran");
    let _server = Running::start(address, &calls).await;
    let mut counted: Vec<u64> = join_all(counts).await.into_iter().map(Result::unwrap).collect();
    counted.sort_unstable();
    assert_eq!(counted, (2..12).collect::<Vec<u64>>(), "each was counted once");
    let stats = client.channel().stats();
    let count = stats.methods.iter().find(|method| method.name == "Counter.count").unwrap();
    assert_eq!((count.started, count.in_flight()), (10, 0));
    assert_eq!(count.ended, [(Code::Ok, 10)].into(), "none has failed");
    let lens = join_all(lens).await;
    assert_eq!(lens, [Ok(0), Ok(1 << 20), Ok(2 << 20)]);
    assert_eq!(calls.0.load(Ordering::SeqCst), 11);
}

#[tokio::test(start_paused = true)]
async fn an_unsent_call_is_counted_once() {
    let (address, calls) = ("mem://came-back", Arc::<Calls>::default());
    let one = || Server::builder().max_calls_per_connection(1);
    let server = Running::start_with(one, address, &calls).await;
    let builder = Channel::builder().wait_for_ready(true);
    let client = CounterClient::new(builder.connect(address).await.unwrap());
    assert_eq!(client.add(1, 1).await, Ok(2), "the server's limit is known");
    let hanging = client.hang().start();
    while calls.0.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    let late = client.add(1, 2).timeout(Duration::from_secs(5)).start();
    let failed = client.add(1, 3).wait_for_ready(false).start();
    let mut dropped = client.add(1, 4).start().boxed();
    server.kill().await;
    hanging.await.unwrap_err();
    assert!((&mut dropped).now_or_never().is_none(), "it waits for another connection");
    drop(dropped);
    assert_eq!(failed.await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(late.await.unwrap_err().code(), Code::DeadlineExceeded);
    let stats = client.channel().stats();
    let add = stats.methods.iter().find(|method| method.name == "Counter.add").unwrap();
    assert_eq!((add.started, add.in_flight()), (4, 0));
    let once = [Code::Ok, Code::Cancelled, Code::Unavailable, Code::DeadlineExceeded];
    assert_eq!(add.ended, once.map(|code| (code, 1)).into());
}

#[tokio::test(start_paused = true)]
async fn a_departing_server_finishes_its_calls() {
    let (address, calls) = ("mem://going-away", Arc::<Calls>::default());
    let server = Running::start(address, &calls).await;
    let client = CounterClient::connect(address).await.unwrap();
    let hanging = client.hang().start();
    while calls.0.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    server.stop.shutdown();
    while client.channel().state() == ConnectivityState::Ready {
        client.channel().state_changed(ConnectivityState::Ready).await;
    }
    let status = client.add(1, 1).await.unwrap_err();
    assert!(status.is_retryable() && status.message().contains("shutting down"), "{status}");
    assert!(client.channel().close_cause().is_none(), "its last call is not over");
    let successor = loop {
        let service = CounterServer::new(Arc::clone(&calls));
        match Server::builder().add_service(service).bind(address).await {
            Ok(server) => break server,
            Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    };
    tokio::spawn(successor.serve());
    assert_eq!(client.add(1, 1).wait_for_ready(true).await, Ok(2));
    drop(hanging);
    server.task.await.unwrap();
    assert_eq!(client.add(1, 1).await, Ok(2));
}

#[tokio::test(start_paused = true)]
async fn many_calls_to_a_dead_server_connect_rarely() {
    let (address, calls) = ("mem://dead", Arc::<Calls>::default());
    let backoff = Backoff::new().initial(Duration::from_secs(1)).max(Duration::from_secs(8));
    let channel = Channel::builder().reconnect(backoff).connect_lazy(address).unwrap();
    let client = CounterClient::new(channel);
    let (began, mut failed) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(60) {
        assert_eq!(client.count().await.unwrap_err().code(), Code::Unavailable);
        failed += 1;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(failed > 500, "they fail at once: {failed}");
    // It is not polled in between.
    let server = Running::start(address, &calls).await;
    let back = Instant::now();
    while client.count().await.is_err() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(back.elapsed() <= Duration::from_secs(9), "{:?}", back.elapsed());
    drop(server);
}

#[tokio::test(start_paused = true)]
async fn without_reconnecting_the_first_end_is_the_last() {
    let (address, calls) = ("mem://no-reconnect", Arc::<Calls>::default());
    let server = Running::start(address, &calls).await;
    let channel = Channel::builder().reconnect(None).connect(address).await.unwrap();
    let client = CounterClient::new(channel.clone());
    server.kill().await;
    channel.closed().await;
    let _server = Running::start(address, &calls).await;
    let status = client.count().wait_for_ready(true).await.unwrap_err();
    assert_eq!(channel.state(), ConnectivityState::Shutdown);
    assert!(status.is_retryable() && status.message().contains(address), "{status}");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_waiting_call_is_never_sent() {
    let (address, calls) = ("mem://dropped-waiter", Arc::<Calls>::default());
    let channel = Channel::builder().wait_for_ready(true).connect_lazy(address).unwrap();
    let client = CounterClient::new(channel.clone());
    {
        let mut call = std::pin::pin!(client.count());
        poll_fn(|cx| {
            assert!(call.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
    }
    // The attempt that it started is made, and no other.
    until(&channel, ConnectivityState::TransientFailure).await;
    let _server = Running::start(address, &calls).await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_ne!(channel.state(), ConnectivityState::Ready, "nobody needs a connection");
    assert_eq!(calls.0.load(Ordering::SeqCst), 0);
    channel.kick();
    until(&channel, ConnectivityState::Ready).await;
    assert_eq!(client.count().await, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn calls_waiting_for_a_connection_are_limited() {
    let builder = Channel::builder().wait_for_ready(true).max_calls(7).max_waiting_calls(3);
    let client = CounterClient::new(builder.connect_lazy("mem://too-many-wait").unwrap());
    let started = (0..100).map(|_| client.count().timeout(Duration::from_secs(1)).start());
    let (mut refused, mut expired) = (0, 0);
    for status in join_all(started.collect::<Vec<_>>()).await {
        let status = status.unwrap_err();
        match status.code() {
            Code::ResourceExhausted => refused += 1,
            Code::DeadlineExceeded => expired += 1,
            code => panic!("{code:?}: {status}"),
        }
        assert!(status.message().contains("mem://too-many-wait"), "{status}");
    }
    assert_eq!((refused, expired), (90, 10));
}

/// A blocking client has the options of a builder, and reconnects like others.
#[test]
fn a_blocking_client_outlives_its_connections() {
    let servers =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (address, calls) = ("mem://blocking-outage", Arc::<Calls>::default());
    let connecting = async { Channel::builder().connect_lazy(address) };
    let channel = BlockingChannel::connect_with(connecting).unwrap();
    let client = CounterBlockingClient::new(channel.with_wait_for_ready(true));
    for number in 1..=3 {
        let server = servers.block_on(Running::start(address, &calls));
        let mut counted = client.count();
        // Lost with the previous server: it may have been executed.
        while counted.is_err() {
            counted = client.count();
        }
        assert_eq!(counted, Ok(number));
        servers.block_on(server.kill());
    }
}

#[tokio::test(start_paused = true)]
async fn an_eager_channel_fails_at_once() {
    let refused = Channel::connect("mem://nobody-here").await.unwrap_err();
    assert!(matches!(refused, ConnectError::Refused { .. }), "{refused}");
    let bad = Channel::builder().connect_lazy("nowhere").unwrap_err();
    assert!(matches!(bad, ConnectError::Address(_)), "{bad}");
}

#[tokio::test(start_paused = true)]
async fn buffers_of_an_earlier_connection_are_harmless() {
    let (address, calls) = ("mem://old-buffers", Arc::<Calls>::default());
    let channel = Channel::builder().wait_for_ready(true).connect_lazy(address).unwrap();
    let client = CounterClient::new(channel.clone());
    let mut unconnected = channel.bulk_pool().take(100_000).unwrap();
    unconnected.fill(1);
    let foreign = channel.bulk_pool().slot(100_000).unwrap();
    let server = Running::start(address, &calls).await;
    assert_eq!(client.len(unconnected.freeze()).await, Ok(100_000));
    let given = client.give(100_000).into(foreign).await.unwrap();
    assert_eq!(given.to_vec().unwrap(), vec![7; 100_000]);
    let mut old = channel.bulk_pool().take(100_000).unwrap();
    old.fill(2);
    let old_slot = channel.bulk_pool().slot(100_000).unwrap();
    server.kill().await;
    channel.closed().await;
    let _server = Running::start(address, &calls).await;
    assert_eq!(client.len(old.freeze()).await, Ok(100_000));
    let given = client.give(100_000).into(old_slot).await.unwrap();
    assert_eq!(given.to_vec().unwrap(), vec![7; 100_000]);
    let slot = channel.bulk_pool().slot(100_000).unwrap();
    let given = client.give(100_000).into(slot).await.unwrap();
    assert!(given.is_remote() && given.to_vec().unwrap() == vec![7; 100_000]);
}

/// The runtime in which a channel was made may end before the channel does.
#[test]
fn a_channel_moves_to_another_runtime() {
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let (servers, first, second) = (runtime().unwrap(), runtime().unwrap(), runtime().unwrap());
    let (address, calls) = ("mem://runtimes", Arc::<Calls>::default());
    let _server = servers.block_on(Running::start(address, &calls));
    let client = first.block_on(async {
        let client = CounterClient::connect(address).await.unwrap();
        assert_eq!(client.count().await, Ok(1));
        client
    });
    drop(first);
    second.block_on(async {
        let cause = client.channel().closed().await;
        assert!(matches!(cause, CloseCause::DriverGone), "{cause}");
        // With a timer of the ended runtime.
        let minute = Duration::from_secs(60);
        assert_eq!(client.count().wait_for_ready(true).timeout(minute).await, Ok(2));
    });
}

/// Regression: the wait before the next attempt used a timer of the ended runtime.
#[test]
fn a_call_in_flight_moves_to_another_runtime() {
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let (servers, first, second) = (runtime().unwrap(), runtime().unwrap(), runtime().unwrap());
    let (address, calls) = ("mem://runtimes-retry", Arc::<Calls>::default());
    let _server = servers.block_on(Running::start(address, &calls));
    let client = first.block_on(CounterClient::connect(address)).unwrap();
    let call = client.hang_first().timeout(Duration::from_secs(60)).start();
    while calls.0.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    drop(first);
    assert_eq!(second.block_on(call), Ok(2));
}

/// A call that is polled by its own waker: the moment the driver wakes it, before the driver does
/// anything else.
struct PolledWhenWoken {
    call: Mutex<BoxFuture<'static, Result<(), Status>>>,
    channel: Channel,
    /// The outcome of the call, and the state of the channel at that moment.
    seen: Mutex<Option<(Status, Option<CloseCause>)>>,
}

impl Wake for PolledWhenWoken {
    fn wake(self: Arc<Self>) {
        let mut call = self.call.lock().unwrap();
        if let Some(ended) = poll_once(&mut call, Waker::noop()) {
            *self.seen.lock().unwrap() = Some((ended.unwrap_err(), self.channel.close_cause()));
        }
    }
}

fn poll_once<O>(future: &mut BoxFuture<'static, O>, waker: &Waker) -> Option<O> {
    match future.poll_unpin(&mut Context::from_waker(waker)) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Also after a go-away, which takes the connection out of the channel while its calls go on.
#[tokio::test(start_paused = true)]
async fn a_lost_connections_cause_is_at_the_channel() {
    for is_going_away in [false, true] {
        let (address, calls) = ("mem://late-cause", Arc::<Calls>::default());
        let server = Running::start(address, &calls).await;
        // Otherwise the waker, which polls, would be called while it polls.
        let channel = Channel::builder().poll_mode(PollMode::Event).connect(address).await.unwrap();
        let client = CounterClient::new(channel);
        let polled = Arc::new(PolledWhenWoken {
            call: Mutex::new(client.hang().start().boxed()),
            channel: client.channel().clone(),
            seen: Mutex::default(),
        });
        let waker = Waker::from(Arc::clone(&polled));
        assert!(poll_once(&mut polled.call.lock().unwrap(), &waker).is_none(), "nobody answers");
        while calls.0.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        if is_going_away {
            server.stop.shutdown();
            client.channel().state_changed(ConnectivityState::Ready).await;
            assert!(client.channel().close_cause().is_none(), "its last call is not over");
        }
        server.kill().await;
        let (status, cause) = loop {
            if let Some(seen) = polled.seen.lock().unwrap().take() {
                break seen;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        let cause = cause.expect("the channel knows why");
        assert!(status.message().contains(&cause.to_string()), "`{status}` does not say: {cause}");
    }
}

/// Counts how often it is woken, or panics.
struct Woken {
    panics: bool,
    count: AtomicU64,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.count.fetch_add(1, Ordering::SeqCst);
        if self.panics {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
    }
}

/// Regression: tokio wakes waiters in batches, and a panic ended the batch.
#[tokio::test(start_paused = true)]
async fn a_waker_that_panics_costs_no_other_call() {
    let address = "mem://wakers";
    let channel = Channel::builder().wait_for_ready(true).connect_lazy(address).unwrap();
    let client = CounterClient::new(channel);
    let _server = Running::start(address, &Arc::default()).await;
    let mut calls: Vec<_> = (0..100)
        .map(|number| {
            let woken = Woken { panics: number % 2 == 0, count: AtomicU64::new(0) };
            (client.count().start().boxed(), Arc::new(woken))
        })
        .collect();
    for (call, woken) in &mut calls {
        let waker = Waker::from(Arc::clone(woken));
        assert!(poll_once(call, &waker).is_none(), "it waits for a connection");
    }
    until(client.channel(), ConnectivityState::Ready).await;
    let not_woken = calls.iter().filter(|(_, woken)| woken.count.load(Ordering::SeqCst) == 0);
    assert_eq!(not_woken.count(), 0);
    let mut counted = join_all(calls.into_iter().map(|(call, _)| call)).await;
    counted.sort_by_key(|counted| *counted.as_ref().unwrap());
    assert_eq!(counted, (1..=100).map(Ok).collect::<Vec<_>>());
}
