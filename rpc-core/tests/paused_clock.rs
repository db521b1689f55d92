//! Users' tests may pause tokio's clock.

use std::time::Duration;

use rpc_core::stream::{self, Stream, Streaming};
use rpc_core::{Channel, Code, Server};
use tokio::time::{Instant, sleep};

#[rpc_core::service]
trait Waiter {
    async fn echo(&self, number: u32) -> u32;
    async fn wait(&self, seconds: u64) -> u64;
}

struct Patient;

impl Waiter for Patient {
    async fn echo(&self, number: u32) -> u32 {
        number
    }

    async fn wait(&self, seconds: u64) -> u64 {
        sleep(Duration::from_secs(seconds)).await;
        seconds
    }
}

/// Regression: an idle connection whose keep-alive passed under a paused clock hung at full load.
#[tokio::test(start_paused = true)]
async fn deadlines_pass_in_virtual_time() {
    let server = Server::builder()
        .add_service(WaiterServer::new(Patient))
        .bind("mem://paused-clock")
        .await
        .unwrap();
    let stop = server.shutdown_handle();
    let serving = tokio::spawn(server.serve());
    let client = WaiterClient::connect("mem://paused-clock").await.unwrap();
    for hours in 0..3 {
        sleep(Duration::from_secs(20 + hours * 3600)).await;
        let began = Instant::now();
        assert_eq!(client.echo(7).timeout(Duration::from_secs(3)).await, Ok(7));
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert_eq!(client.wait(100).await, Ok(100));
        assert_eq!(began.elapsed().as_secs(), 100);
        let late = client.wait(100).timeout(Duration::from_secs(3)).await.unwrap_err();
        assert_eq!(late.code(), Code::DeadlineExceeded, "{late}");
        assert_eq!(began.elapsed().as_secs(), 103);
    }
    drop(client);
    stop.shutdown();
    serving.await.unwrap().unwrap();
}

#[rpc_core::service]
trait Slow {
    /// A number after each pause of `seconds` seconds.
    #[rpc(stream_deadline = "idle")]
    fn tick(&self, seconds: u64, count: u64) -> impl Stream<Item = u64>;
    #[rpc(stream_deadline = "idle")]
    async fn count(&self, items: Streaming<u64>) -> u64;
    #[rpc(stream_deadline = "idle")]
    fn relay(&self, items: Streaming<u64>) -> impl Stream<Item = u64>;
}

fn ticks(seconds: u64, count: u64) -> impl Stream<Item = u64> + Send + 'static {
    stream::stream(async move |mut out| {
        for number in 0..count {
            sleep(Duration::from_secs(seconds)).await;
            out.send(number).await?;
        }
        Ok(())
    })
}

impl Slow for Patient {
    fn tick(&self, seconds: u64, count: u64) -> impl Stream<Item = u64> {
        ticks(seconds, count)
    }

    async fn count(&self, mut items: Streaming<u64>) -> u64 {
        let mut count = 0;
        while let Some(Ok(_)) = items.next().await {
            count += 1;
        }
        count
    }

    fn relay(&self, mut items: Streaming<u64>) -> impl Stream<Item = u64> {
        stream::stream(async move |mut out| {
            while let Some(Ok(item)) = items.next().await {
                out.send(item).await?;
            }
            Ok(())
        })
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_deadline_restarts_with_each_item() {
    let slow = SlowClient::new(Channel::to(SlowServer::new(Patient)).await.unwrap());
    let deadline = Duration::from_secs(3);
    let began = Instant::now();
    let mut given = slow.tick(2, 50).timeout(deadline).await.unwrap();
    for number in 0..50 {
        assert_eq!(given.next().await, Some(Ok(number)));
    }
    assert_eq!(given.next().await, None);
    assert_eq!(slow.count(ticks(2, 50)).timeout(deadline).await, Ok(50));
    let mut relayed = slow.relay(ticks(2, 50)).timeout(deadline).await.unwrap();
    for number in 0..50 {
        assert_eq!(relayed.next().await, Some(Ok(number)));
    }
    assert_eq!(relayed.next().await, None);
    assert_eq!(began.elapsed().as_secs(), 300);

    // A pause above it ends each of them, when the time is over.
    let began = Instant::now();
    let mut given = slow.tick(4, 1).timeout(deadline).await.unwrap();
    let late = given.next().await.unwrap().unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded, "{late}");
    let late = slow.count(ticks(4, 1)).timeout(deadline).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded, "{late}");
    let mut relayed = slow.relay(ticks(4, 1)).timeout(deadline).await.unwrap();
    let late = relayed.next().await.unwrap().unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded, "{late}");
    assert_eq!(began.elapsed().as_secs(), 9);
}
