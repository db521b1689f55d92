//! Nobody sleeps through a message, whoever polled last.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::time::Duration;

use rpc_core::{PollMode, Server, ShutdownHandle};

#[rpc_core::service]
trait Slow {
    async fn answer_after(&self, micros: u64) -> u64;
}

struct Sleeper;

impl Slow for Sleeper {
    async fn answer_after(&self, micros: u64) -> u64 {
        if micros > 0 {
            tokio::time::sleep(Duration::from_micros(micros)).await;
        }
        micros
    }
}

/// A server on a thread of its own that polls without a pause.
fn busy_server(address: &'static str) -> (ShutdownHandle, std::thread::JoinHandle<()>) {
    let (ready, is_ready) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = Server::builder()
                .add_service(SlowServer::new(Sleeper))
                .poll_mode(PollMode::Busy)
                .bind(address)
                .await
                .unwrap();
            ready.send(server.shutdown_handle()).unwrap();
            server.serve().await.unwrap();
        });
    });
    (is_ready.recv().unwrap(), thread)
}

/// Rounds in which the driver must have been asleep.
const ROUNDS: u32 = 20;

/// How often this thread has given its core away by itself. Its runtime does so when no task has
/// anything to do, the driver among them; one that spins never lets it.
fn sleeps_of_this_thread() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

/// A lone caller polls the CQ itself while the driver sleeps, and so takes the events that the
/// driver armed for. It must not leave the driver asleep: the slow answer would wake nobody.
async fn fast_calls_then_a_slow_one(address: &'static str) {
    let (stop, serving) = busy_server(address);
    let client = SlowClient::connect(address).await.unwrap();
    let (mut proved, mut rounds) = (0, 0);
    while proved < ROUNDS {
        rounds += 1;
        assert!(rounds <= 20 * ROUNDS, "the driver slept in {proved} of {rounds} rounds only");
        let before = sleeps_of_this_thread();
        // Long enough for an adaptive driver to go to sleep; a round in which it did not, because
        // this thread was kept from running, proves nothing.
        tokio::time::sleep(Duration::from_millis(1)).await;
        proved += u32::from(sleeps_of_this_thread() > before);
        for _ in 0..200 {
            assert_eq!(client.answer_after(0).await.unwrap(), 0);
        }
        assert_eq!(client.answer_after(1_000).await.unwrap(), 1_000);
    }
    drop(client);
    stop.shutdown();
    serving.join().unwrap();
}

#[tokio::test]
async fn a_caller_that_polled_leaves_no_driver_asleep_busy_mem() {
    fast_calls_then_a_slow_one("mem://wakeups").await;
}

#[tokio::test]
async fn a_caller_that_polled_leaves_no_driver_asleep_busy_shm() {
    fast_calls_then_a_slow_one("shm://wakeups-test").await;
}
