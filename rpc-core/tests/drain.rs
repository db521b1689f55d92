//! The end of a server, step by step, in virtual time.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use rpc_core::stream::{self, Stream, StreamEnd, Streaming};
use rpc_core::{Channel, Code, Context, PollMode, Server, ShutdownHandle, Status};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

#[rpc_core::service]
trait Worker {
    async fn is_draining(&self) -> bool;
    async fn work_until_drained(&self) -> u64;
    async fn work(&self, seconds: u64) -> u64;
    async fn never(&self);
    #[rpc(idempotent)]
    async fn never_again(&self);
    fn numbers_for_ever(&self) -> impl Stream<Item = u64>;
    fn numbers_until_drained(&self) -> impl Stream<Item = u64>;
    async fn sum(&self, numbers: Streaming<u64>) -> u64;
    fn echo(&self, numbers: Streaming<u64>) -> impl Stream<Item = Result<u64, Status>>;
}

struct Work;

impl Worker for Work {
    async fn is_draining(&self) -> bool {
        Context::current().is_draining()
    }

    async fn work_until_drained(&self) -> u64 {
        let began = Instant::now();
        Context::current().draining().await;
        began.elapsed().as_secs()
    }

    async fn work(&self, seconds: u64) -> u64 {
        sleep(Duration::from_secs(seconds)).await;
        seconds
    }

    async fn never(&self) {
        pending().await
    }

    async fn never_again(&self) {
        pending().await
    }

    fn numbers_for_ever(&self) -> impl Stream<Item = u64> {
        stream::iter(0..3).chain(stream::iter([()]).then(|()| pending()))
    }

    fn numbers_until_drained(&self) -> impl Stream<Item = u64> {
        stream::stream(async |mut out| {
            out.send(1).await?;
            Context::current().draining().await;
            out.send(2).await
        })
    }

    async fn sum(&self, mut numbers: Streaming<u64>) -> u64 {
        let mut sum = 0;
        while let Some(Ok(number)) = numbers.next().await {
            sum += number;
        }
        sum
    }

    fn echo(&self, numbers: Streaming<u64>) -> impl Stream<Item = Result<u64, Status>> {
        numbers
    }
}

type Serving = JoinHandle<Result<(), rpc_core::ListenError>>;

/// A lead of 5 s and a grace of 10 s.
async fn serve(address: &str) -> (ShutdownHandle, Serving) {
    let server = Server::builder()
        .add_service(WorkerServer::new(Work))
        .poll_mode(PollMode::Event)
        .drain_lead(Duration::from_secs(5))
        .grace(Duration::from_secs(10))
        .bind(address)
        .await
        .unwrap();
    let handle = server.shutdown_handle();
    (handle, tokio::spawn(server.serve()))
}

async fn connect(address: &str) -> WorkerClient {
    let builder = Channel::builder().poll_mode(PollMode::Event);
    WorkerClient::new(builder.connect(address).await.unwrap())
}

fn check_not_started(status: &Status) {
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.is_retryable(), "{status}");
}

#[tokio::test(start_paused = true)]
async fn drain_notifies_handlers_then_clients_then_cuts() {
    let address = "mem://drain-steps";
    let (stop, serving) = serve(address).await;
    let client = connect(address).await;
    assert_eq!(client.is_draining().await, Ok(false));
    let told = client.work_until_drained().start();
    let in_time = client.work(30).start();
    let never = client.never().start();
    sleep(Duration::from_secs(20)).await;

    let began = Instant::now();
    stop.shutdown();
    assert_eq!(told.await, Ok(20), "handlers are notified at once");
    assert_eq!(began.elapsed(), Duration::ZERO);
    // Everything continues during the lead time.
    let late = connect(address).await;
    assert_eq!(late.is_draining().await, Ok(true));
    assert_eq!(late.work_until_drained().await, Ok(0));
    sleep(Duration::from_secs(4)).await;
    assert_eq!(late.work(0).await, Ok(0));
    stop.shutdown();
    sleep(Duration::from_secs(2)).await;
    // Then new calls are refused; running ones continue.
    check_not_started(&client.work(0).await.unwrap_err());
    check_not_started(&late.work(0).await.unwrap_err());
    assert!(Channel::connect(address).await.is_err());
    assert_eq!(in_time.await, Ok(30));
    assert_eq!(began.elapsed().as_secs(), 10);
    // At the end of the grace period, the rest is cut off.
    let status = never.await.unwrap_err();
    assert_eq!(began.elapsed().as_secs(), 15);
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.message().contains("shut down"), "{status}");
    assert!(!status.is_retryable(), "it may have run: {status}");
    serving.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_cut_idempotent_call_is_retryable() {
    let address = "mem://drain-idempotent";
    let (stop, serving) = serve(address).await;
    let client = connect(address).await;
    let call = client.never_again().start();
    assert_eq!(client.is_draining().await, Ok(false));
    stop.shutdown();
    let status = call.await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.is_retryable(), "{status}");
    serving.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn idle_clients_do_not_hold_a_server_up() {
    let address = "mem://drain-idle";
    let (stop, serving) = serve(address).await;
    let clients = [connect(address).await, connect(address).await];
    assert_eq!(clients[0].work(1).await, Ok(1));
    let began = Instant::now();
    stop.shutdown();
    serving.await.unwrap().unwrap();
    assert_eq!(began.elapsed().as_secs(), 5, "the lead, and nothing of the grace");
}

/// A source that yields some numbers and then waits; `held` shows whether it still exists.
fn waits_after(count: u64, held: &Arc<()>) -> impl Stream<Item = u64> + use<> {
    let held = Arc::clone(held);
    let waits = stream::iter([()]).then(move |()| {
        let _held = &held;
        pending()
    });
    stream::iter(0..count).chain(waits)
}

#[tokio::test(start_paused = true)]
async fn a_stream_notified_of_drain_ends_regularly() {
    let address = "mem://drain-stream-told";
    let (stop, serving) = serve(address).await;
    let client = connect(address).await;
    let mut numbers = client.numbers_until_drained().await.unwrap();
    assert_eq!(numbers.next().await, Some(Ok(1)));
    stop.shutdown();
    assert_eq!(numbers.next().await, Some(Ok(2)));
    assert_eq!(numbers.next().await, None);
    assert_eq!(numbers.end(), Some(StreamEnd::Finished));
    serving.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn streams_open_after_grace_are_cut() {
    let address = "mem://drain-stream-cut";
    let (stop, serving) = serve(address).await;
    let client = connect(address).await;
    let held = Arc::new(());
    let mut results = client.numbers_for_ever().await.unwrap();
    let mut both = client.echo(waits_after(2, &held)).await.unwrap();
    let mut upload = client.sum(waits_after(2, &held));
    assert_eq!(both.next().await, Some(Ok(0)));
    assert!((&mut upload).now_or_never().is_none());

    let began = Instant::now();
    stop.shutdown();
    sleep(Duration::from_secs(14)).await;
    // Clients have been sent away, and open streams continue.
    check_not_started(&client.numbers_for_ever().await.unwrap_err());
    check_not_started(&client.sum(stream::iter([1])).await.unwrap_err());
    assert_eq!(both.next().await, Some(Ok(1)));
    assert!(both.next().now_or_never().is_none());
    assert!((&mut upload).now_or_never().is_none());
    sleep(Duration::from_secs(2)).await;
    // Received items are delivered before the end.
    for number in 0..3 {
        assert_eq!(results.next().await, Some(Ok(number)));
    }
    let ends = [
        results.next().await.unwrap().unwrap_err(),
        both.next().await.unwrap().unwrap_err().into(),
        upload.await.unwrap_err(),
    ];
    for status in ends {
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert!(status.message().contains("shut down"), "{status}");
        assert!(!status.is_retryable(), "its handler has run: {status}");
    }
    assert_eq!([results.end(), both.end()], [Some(StreamEnd::Disconnected); 2]);
    assert_eq!((results.next().await, both.next().await), (None, None));
    assert_eq!(Arc::strong_count(&held), 1, "the sources are dropped");
    serving.await.unwrap().unwrap();
    assert_eq!(began.elapsed().as_secs(), 16);
}

#[tokio::test]
async fn nothing_drains_outside_a_server() {
    let context = Context::current();
    assert!(!context.is_draining());
    let told = tokio::time::timeout(Duration::from_millis(1), context.draining());
    assert!(told.await.is_err());
}
