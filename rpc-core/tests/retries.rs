//! Retries, over `mem://` and virtual time: which calls are retried, when, and how often.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use rpc_core::client::{Backoff, RetryPolicy};
use rpc_core::{Bulk, CallError, Channel, Code, Server, Status};
use tokio::task::JoinHandle;
use tokio::time::Instant;

#[rpc_core::service]
trait Flaky {
    /// Hangs in the first `hang` calls, then returns the number of calls.
    #[rpc(idempotent)]
    async fn hang(&self, hang: u64, data: Bulk) -> u64;
    /// Not idempotent.
    async fn hang_once(&self, hang: u64) -> u64;
    /// Refuses `refuse` calls, with a pushback unless it is 0.
    #[rpc(idempotent)]
    async fn refuse(&self, refuse: u64, after_ms: u64) -> Result<u64, Status>;
    /// Not idempotent.
    async fn refuse_once(&self, refuse: u64) -> Result<u64, Status>;
    /// Always its own error.
    #[rpc(idempotent)]
    async fn err(&self) -> Result<(), u64>;
}

#[derive(Default)]
struct Calls(AtomicU64);

impl Calls {
    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    async fn reach(&self, count: u64) {
        let mut turns = 0;
        while self.count() < count {
            turns += 1;
            assert!(turns < 100_000, "stuck at {} of {count}", self.count());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Flaky for Arc<Calls> {
    async fn hang(&self, hang: u64, data: Bulk) -> u64 {
        let number = self.next();
        if number <= hang {
            std::future::pending().await
        }
        number + data.len()
    }

    async fn hang_once(&self, hang: u64) -> u64 {
        self.hang(hang, Bulk::new()).await
    }

    async fn refuse(&self, refuse: u64, after_ms: u64) -> Result<u64, Status> {
        let number = self.next();
        if number > refuse {
            return Ok(number);
        }
        let status = Status::unavailable("not now").with_details(vec![1, 2]);
        Err(match after_ms {
            0 => status.with_retryable(true),
            millis => status.with_retry_after(Duration::from_millis(millis)),
        })
    }

    async fn refuse_once(&self, refuse: u64) -> Result<u64, Status> {
        self.refuse(refuse, 0).await
    }

    async fn err(&self) -> Result<(), u64> {
        Err(self.next())
    }
}

async fn serve(address: &str, calls: &Arc<Calls>) -> JoinHandle<()> {
    let service = FlakyServer::new(Arc::clone(calls));
    let server = Server::builder().add_service(service).bind(address).await.unwrap();
    tokio::spawn(async move { server.serve().await.unwrap() })
}

async fn kill(server: JoinHandle<()>) {
    server.abort();
    let _ = server.await;
}

fn policy() -> RetryPolicy {
    let backoff = Backoff::new().initial(Duration::from_secs(1)).multiplier(2.0).jitter(0.0);
    RetryPolicy::new().backoff(backoff)
}

async fn connect(address: &str, policy: Option<RetryPolicy>) -> FlakyClient {
    let builder = Channel::builder().wait_for_ready(true).retry(policy);
    FlakyClient::new(builder.connect(address).await.unwrap())
}

#[tokio::test(start_paused = true)]
async fn idempotent_calls_survive_their_servers() {
    let (address, calls) = ("mem://survive", Arc::<Calls>::default());
    let server = serve(address, &calls).await;
    let client = connect(address, Some(RetryPolicy::new())).await;
    let small: Vec<_> = (0..20).map(|_| client.hang(61, Bulk::new()).start()).collect();
    let large: Vec<_> =
        (0..20).map(|_| client.hang(61, Bulk::from(vec![1; 100_000])).start()).collect();
    let once: Vec<_> = (0..20).map(|_| client.hang_once(61).start()).collect();
    let dropped = client.hang(61, Bulk::new()).start();
    let ended = tokio::spawn(join_all(small));
    calls.reach(61).await;
    kill(server).await;
    client.channel().closed().await;
    drop(dropped);
    let _server = serve(address, &calls).await;
    for status in join_all(once).await {
        let status = status.unwrap_err();
        assert_eq!((status.code(), status.is_retryable()), (Code::Unavailable, false), "it ran");
    }
    for number in ended.await.unwrap() {
        assert!(number.unwrap() > 61);
    }
    for number in join_all(large).await {
        assert!(number.unwrap() > 100_000 + 61);
    }
    assert_eq!(calls.count(), 61 + 40, "each once more");
}

#[tokio::test(start_paused = true)]
async fn a_call_killing_servers_has_limited_attempts() {
    let (address, calls) = ("mem://killer", Arc::<Calls>::default());
    let client = {
        let server = serve(address, &calls).await;
        let client = connect(address, Some(policy().max_attempts(3))).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        kill(server).await;
        client.channel().closed().await;
        client
    };
    let call = tokio::spawn(client.hang(u64::MAX, Bulk::new()).start());
    for attempt in 1..=3 {
        let server = serve(address, &calls).await;
        calls.reach(attempt).await;
        kill(server).await;
    }
    let status = call.await.unwrap().unwrap_err();
    assert!(status.message().contains("tried 3 times"), "{status}");
    assert!(status.is_retryable(), "it is idempotent: {status}");
    assert_eq!(calls.count(), 3);
}

#[tokio::test(start_paused = true)]
async fn refused_calls_wait_for_pushback_or_backoff() {
    let (address, calls) = ("mem://refusing", Arc::<Calls>::default());
    let _server = serve(address, &calls).await;
    let client = connect(address, Some(policy())).await;
    let began = Instant::now();
    assert_eq!(client.refuse(2, 0).await, Ok(3));
    assert_eq!(began.elapsed().as_secs(), 1 + 2);
    calls.0.store(0, Ordering::SeqCst);
    let began = Instant::now();
    assert_eq!(client.refuse(2, 7000).await, Ok(3));
    assert_eq!(began.elapsed().as_secs(), 14);
    // A failed call takes one token, whatever its number of attempts: a little over eight of ten
    // are left.
    for _ in 0..3 {
        calls.0.store(0, Ordering::SeqCst);
        client.refuse(u64::MAX, 0).await.unwrap_err();
        assert_eq!(calls.count(), 5, "one call leaves the next its attempts");
    }
    assert_eq!(client.channel().stats().retries_throttled, 0);
    for throttled in 1..3 {
        calls.0.store(0, Ordering::SeqCst);
        let status = Status::from(client.refuse(u64::MAX, 0).await.unwrap_err());
        assert_eq!((status.code(), status.details()), (Code::Unavailable, &[1, 2][..]));
        assert!(status.is_retryable(), "{status}");
        assert_eq!(status.message(), "not now", "the server's word");
        assert_eq!(calls.count(), 1);
        let stats = client.channel().stats();
        assert_eq!(stats.retries_throttled, throttled);
        let line = format!("\nrpc_client_retries_throttled_total {throttled}\n");
        assert!(stats.prometheus_text().contains(&line));
    }
}

#[tokio::test(start_paused = true)]
async fn the_deadline_is_for_all_attempts_together() {
    let (address, calls) = ("mem://deadline-of-all", Arc::<Calls>::default());
    let _server = serve(address, &calls).await;
    let client = connect(address, Some(policy().throttle(0, 0.0))).await;
    let began = Instant::now();
    let refused = client.refuse(u64::MAX, 0).timeout(Duration::from_secs(5)).await;
    assert_eq!(Status::from(refused.unwrap_err()).code(), Code::Unavailable);
    assert_eq!(began.elapsed().as_secs(), 3, "a third wait of 4 s would be too long");
    assert_eq!(calls.count(), 3);
}

#[tokio::test(start_paused = true)]
async fn nothing_else_is_tried_twice() {
    let (address, calls) = ("mem://once", Arc::<Calls>::default());
    let _server = serve(address, &calls).await;
    let client = connect(address, Some(policy())).await;
    assert_eq!(client.err().await, Err(CallError::User(1)));
    let status = Status::from(client.refuse_once(u64::MAX).await.unwrap_err());
    assert!(status.is_retryable(), "by the server's word: {status}");
    assert_eq!(calls.count(), 2);
    let client = connect(address, None).await;
    client.refuse(u64::MAX, 0).await.unwrap_err();
    assert_eq!(calls.count(), 3);
}
