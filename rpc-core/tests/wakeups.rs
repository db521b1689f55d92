//! No waiter misses a message, whichever task polled last.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::path::PathBuf;

use rpc_core::{PollMode, Server, ShutdownHandle};
use test_kit::Watchdog;

#[rpc_core::service]
trait Slow {
    async fn answer(&self) -> u64;
    /// Answers as soon as the caller's thread sleeps.
    async fn answer_when_asleep(&self) -> u64;
}

struct Watcher(Thread);

impl Slow for Watcher {
    async fn answer(&self) -> u64 {
        0
    }

    async fn answer_when_asleep(&self) -> u64 {
        while !self.0.is_asleep() {
            tokio::task::yield_now().await;
        }
        1
    }
}

/// A thread, as the kernel sees it.
#[derive(Clone)]
struct Thread(PathBuf);

impl Thread {
    fn current() -> Self {
        Self(fs::canonicalize("/proc/thread-self").unwrap())
    }

    /// Whether it waits in the kernel. A runtime of one thread does if none of its tasks, including
    /// the driver, has work; a task that spins or yields prevents it.
    fn is_asleep(&self) -> bool {
        let stat = fs::read_to_string(self.0.join("stat")).unwrap();
        // The name in parentheses may contain anything.
        stat.rsplit_once(") ").unwrap().1.starts_with('S')
    }
}

/// A server on a separate thread that polls continuously.
fn busy_server(
    address: &'static str,
    client: Thread,
) -> (ShutdownHandle, std::thread::JoinHandle<()>) {
    let (ready, is_ready) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = Server::builder()
                .add_service(SlowServer::new(Watcher(client)))
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

/// A lone caller polls the CQ itself while the driver sleeps, and so consumes the events that the
/// driver armed for. It must not leave the driver asleep, or a late answer would wake nobody.
async fn fast_calls_then_a_slow_one(address: &'static str) {
    let _watchdog = Watchdog::start(address);
    let thread = Thread::current();
    let (stop, serving) = busy_server(address, thread.clone());
    let client = SlowClient::connect(address).await.unwrap();
    for _ in 0..20 {
        // The driver must be asleep when the fast calls begin.
        let thread = thread.clone();
        let asleep = move || {
            while !thread.is_asleep() {
                std::thread::yield_now();
            }
        };
        tokio::task::spawn_blocking(asleep).await.unwrap();
        for _ in 0..200 {
            assert_eq!(client.answer().await, Ok(0));
        }
        assert_eq!(client.answer_when_asleep().await, Ok(1));
    }
    drop(client);
    stop.shutdown();
    serving.join().unwrap();
}

#[tokio::test]
async fn a_caller_leaves_no_driver_asleep_busy_mem() {
    fast_calls_then_a_slow_one("mem://wakeups").await;
}

#[tokio::test]
async fn a_caller_leaves_no_driver_asleep_busy_shm() {
    fast_calls_then_a_slow_one("shm://wakeups-test").await;
}
