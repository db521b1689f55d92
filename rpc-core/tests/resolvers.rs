//! Resolvers that fail, panic, hang, or are never called.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use rpc_core::client::resolve::{Endpoint, Resolve, ResolveError, Resolving, StaticList};
use rpc_core::{Channel, Code, Server};
use test_kit::Watchdog;

#[rpc_core::service]
trait Counter {
    async fn count(&self) -> u64;
}

#[derive(Default)]
struct Calls(AtomicU64);

impl Counter for Calls {
    async fn count(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }
}

async fn serve(address: &str) {
    let service = CounterServer::new(Calls::default());
    let server = Server::builder().add_service(service).bind(address).await.unwrap();
    tokio::spawn(server.serve());
}

const HOUR: Duration = Duration::from_secs(3600);

/// Fails until the server is known.
#[derive(Clone)]
struct Later {
    address: &'static str,
    knows: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
}

impl Later {
    fn new(address: &'static str) -> Self {
        Self { address, knows: Arc::default(), asked: Arc::default() }
    }
}

impl Resolve for Later {
    fn name(&self) -> String {
        "later".into()
    }

    fn resolve(&self) -> Resolving<'_> {
        Box::pin(async move {
            self.asked.fetch_add(1, Ordering::SeqCst);
            match self.knows.load(Ordering::SeqCst) {
                true => Ok(vec![self.address.parse().unwrap()]),
                false => Err(ResolveError::new("later", "not yet")),
            }
        })
    }
}

/// Regression: after the first call had ended, the resolver was not called again.
#[tokio::test(start_paused = true)]
async fn a_call_waits_for_a_name_that_failed() {
    let _watchdog = Watchdog::start("a call that waits for a name");
    serve("mem://resolvers-later").await;
    for waits_first in [false, true] {
        let later = Later::new("mem://resolvers-later");
        let channel = Channel::builder().connect_balanced(later.clone()).unwrap();
        let client = CounterClient::new(channel);
        client.count().await.unwrap_err();
        if waits_first {
            let waits = client.count().wait_for_ready(true).timeout(Duration::from_secs(10));
            assert_eq!(waits.await.unwrap_err().code(), Code::DeadlineExceeded);
        }
        // Not long enough for the next look-up to be due.
        tokio::time::sleep(Duration::from_millis(80)).await;
        later.knows.store(true, Ordering::SeqCst);
        let waits = tokio::time::timeout(HOUR, client.count().wait_for_ready(true));
        waits.await.expect("somebody asks for it").unwrap();
        let asked = later.asked.load(Ordering::SeqCst);
        assert!((2..50).contains(&asked), "asked {asked} times");
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_what_has_shut_down() {
    let _watchdog = Watchdog::start("channels that have shut down");
    let builder = || Channel::builder().reconnect(None).wait_for_ready(true);
    let list = StaticList::new(["mem://resolvers-none"]).unwrap();
    let channels = [
        builder().connect_lazy("mem://resolvers-none").unwrap(),
        builder().connect_balanced(list).unwrap(),
    ];
    for channel in channels {
        let client = CounterClient::new(channel);
        for _ in 0..3 {
            let call = tokio::time::timeout(HOUR, client.count());
            let status = call.await.expect("it ends").unwrap_err();
            assert_eq!(status.code(), Code::Unavailable, "{status}");
        }
    }
}

/// Where it panics.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Where {
    Asked,
    Polled,
    Dropped,
}

struct Panics(Where, Arc<AtomicU64>);

fn panics() -> ! {
    std::panic::resume_unwind(Box::new("on purpose, without a line in the log"));
}

struct Answer(Where);

impl Future for Answer {
    type Output = Result<Vec<Endpoint>, ResolveError>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        match self.0 {
            Where::Dropped => Poll::Ready(Err(ResolveError::new("bad", "nobody"))),
            _ => panics(),
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if self.0 == Where::Dropped && !std::thread::panicking() {
            panics();
        }
    }
}

impl Resolve for Panics {
    fn name(&self) -> String {
        "bad".into()
    }

    fn resolve(&self) -> Resolving<'_> {
        self.1.fetch_add(1, Ordering::SeqCst);
        match self.0 {
            Where::Asked => panics(),
            other => Box::pin(Answer(other)),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_resolver_that_panics_has_failed() {
    let _watchdog = Watchdog::start("a resolver that panics");
    for place in [Where::Asked, Where::Polled, Where::Dropped] {
        let asked = Arc::<AtomicU64>::default();
        let resolver = Panics(place, Arc::clone(&asked));
        let client = CounterClient::new(Channel::builder().connect_balanced(resolver).unwrap());
        let call = tokio::time::timeout(HOUR, client.count());
        let status = call.await.expect("it fails").unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{place:?}: {status}");
        let why = if place == Where::Dropped { "nobody" } else { "panicked" };
        assert!(status.message().contains(why), "{place:?}: {status}");
        let waits = client.count().wait_for_ready(true).timeout(Duration::from_secs(60));
        assert_eq!(waits.await.unwrap_err().code(), Code::DeadlineExceeded, "{place:?}");
        let asked = asked.load(Ordering::SeqCst);
        assert!((5..50).contains(&asked), "{place:?}: asked {asked} times in a minute");
    }
}

/// Answers once, and hangs from then on.
struct Hangs(Arc<AtomicU64>);

impl Resolve for Hangs {
    fn name(&self) -> String {
        "hangs".into()
    }

    fn resolve(&self) -> Resolving<'_> {
        Box::pin(async move {
            match self.0.fetch_add(1, Ordering::SeqCst) {
                0 => Ok(vec!["mem://resolvers-hang".parse().unwrap()]),
                _ => std::future::pending().await,
            }
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_resolver_that_hangs_holds_no_channel() {
    let _watchdog = Watchdog::start("a resolver that hangs");
    serve("mem://resolvers-hang").await;
    let asked = Arc::<AtomicU64>::default();
    let builder = Channel::builder().connect_timeout(Duration::MAX);
    let channel = builder.connect_balanced(Hangs(Arc::clone(&asked))).unwrap();
    let client = CounterClient::new(channel.clone());
    client.count().await.unwrap();
    while asked.load(Ordering::SeqCst) < 2 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        channel.kick();
        tokio::task::yield_now().await;
    }
    drop((channel, client));
    let gone = async {
        while Arc::strong_count(&asked) > 1 {
            tokio::task::yield_now().await;
        }
    };
    // Time passes only when nothing else happens.
    let patience = async {
        for _ in 0..1000 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::select! {
        () = gone => {}
        () = patience => panic!("it is held"),
    }
}

/// Regression: the answer came while a call looked for end points, and the call failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_calls_wait_for_the_first_answer() {
    let _watchdog = Watchdog::start("first calls of channels");
    serve("mem://resolvers-first").await;
    // Not in tasks: the resolver is asked by another worker meanwhile.
    for _ in 0..1000 {
        let known = Later::new("mem://resolvers-first");
        known.knows.store(true, Ordering::SeqCst);
        let channel = Channel::builder().connect_balanced(known).unwrap();
        CounterClient::new(channel).count().await.unwrap();
    }
}
