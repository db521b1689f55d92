//! Tests of users may pause tokio's clock.

use std::time::Duration;

use rpc_core::{Code, Server};
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

/// An idle connection that passed its keep-alive under a paused clock never came back, at full load.
#[tokio::test(start_paused = true)]
async fn a_connection_lives_and_deadlines_pass_in_virtual_time() {
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
