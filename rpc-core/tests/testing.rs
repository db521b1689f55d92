//! Support for users' tests: a service without an address, and a controlled clock.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::sync::Arc;
use std::time::Duration;

use rpc_core::{Channel, Code, ConnectError, Server};
use tokio::time::{Instant, sleep};

#[rpc_core::service]
trait Counter {
    async fn number(&self) -> u64;
    async fn wait(&self, seconds: u64) -> u64;
}

struct Fixed(u64);

impl Counter for Fixed {
    async fn number(&self) -> u64 {
        self.0
    }

    async fn wait(&self, seconds: u64) -> u64 {
        sleep(Duration::from_secs(seconds)).await;
        seconds
    }
}

#[tokio::test]
async fn a_channel_to_a_service_owns_it() {
    let (first, second) = (Arc::new(Fixed(1)), Arc::new(Fixed(2)));
    let channel = Channel::to(CounterServer::from_arc(Arc::clone(&first))).await.unwrap();
    let one = CounterClient::new(channel.clone());
    let two = Channel::to(CounterServer::from_arc(Arc::clone(&second))).await.unwrap();
    let two = CounterClient::new(two);
    assert_eq!(one.number().await, Ok(1));
    assert_eq!(two.number().await, Ok(2));
    drop(channel);
    assert_eq!(one.number().await, Ok(1), "a clone is left");
    let started = one.wait(3600).start();
    drop((one, started));
    while Arc::strong_count(&first) > 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(two.number().await, Ok(2));
}

#[tokio::test]
async fn an_unnamed_mem_address_is_unique() {
    let bind = || Server::builder().bind("mem://");
    let (first, second) = (bind().await.unwrap(), bind().await.unwrap());
    assert_ne!(first.local_address(), second.local_address());
    let connecting = Channel::connect("mem://").await;
    let Err(error @ ConnectError::Refused { .. }) = connecting else { panic!("{connecting:?}") };
    assert!(error.to_string().contains("local_address"), "{error}");
    tokio::spawn(first.serve());
    tokio::spawn(second.serve());
}

#[tokio::test(start_paused = true)]
async fn deadlines_and_waits_take_virtual_time() {
    let counter = CounterClient::new(Channel::to(CounterServer::new(Fixed(7))).await.unwrap());
    sleep(Duration::from_secs(3600)).await;
    let began = Instant::now();
    assert_eq!(counter.wait(100).await, Ok(100));
    assert_eq!(began.elapsed().as_secs(), 100);
    let late = counter.wait(100).timeout(Duration::from_secs(3)).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded, "{late}");
    assert_eq!(began.elapsed().as_secs(), 103);
    assert_eq!(counter.number().await, Ok(7));
}
