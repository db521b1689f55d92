//! The end of a server, step by step, in virtual time.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::future::pending;
use std::time::Duration;

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
async fn handlers_are_told_then_clients_then_the_rest_is_cut() {
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
    assert_eq!(told.await, Ok(20), "handlers are told at once");
    assert_eq!(began.elapsed(), Duration::ZERO);
    // All goes on for the lead time.
    let late = connect(address).await;
    assert_eq!(late.is_draining().await, Ok(true));
    assert_eq!(late.work_until_drained().await, Ok(0));
    sleep(Duration::from_secs(4)).await;
    assert_eq!(late.work(0).await, Ok(0));
    stop.shutdown();
    sleep(Duration::from_secs(2)).await;
    // Then nothing new is taken; what had begun goes on.
    check_not_started(&client.work(0).await.unwrap_err());
    check_not_started(&late.work(0).await.unwrap_err());
    assert!(Channel::connect(address).await.is_err());
    assert_eq!(in_time.await, Ok(30));
    assert_eq!(began.elapsed().as_secs(), 10);
    // At the end of grace the rest is cut.
    let status = never.await.unwrap_err();
    assert_eq!(began.elapsed().as_secs(), 15);
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.message().contains("shut down"), "{status}");
    assert!(!status.is_retryable(), "it may have run: {status}");
    serving.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_idempotent_call_that_is_cut_may_be_made_again() {
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

#[tokio::test]
async fn nothing_drains_outside_a_server() {
    let context = Context::current();
    assert!(!context.is_draining());
    let told = tokio::time::timeout(Duration::from_millis(1), context.draining());
    assert!(told.await.is_err());
}
