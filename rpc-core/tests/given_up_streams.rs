//! Calls with a streamed payload that are dropped at any moment hurt no other call. And readers
//! that are slower than the wire, for any assembly limit.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::future::{IntoFuture, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rpc_core::bulk::BulkReader;
use rpc_core::transport::ArenaConfig;
use rpc_core::{Bulk, Channel, Code, LinkConfig, PollMode, Server};
use tokio::io::AsyncReadExt;
use tokio::sync::Notify;

#[rpc_core::service]
trait Streams {
    /// Takes a payload, but neither reads nor answers.
    async fn hold(&self, data: BulkReader) -> u64;
    async fn read(&self, data: BulkReader) -> u64;
    async fn give(&self, len: u32) -> BulkReader;
    async fn add(&self, a: u64, b: u64) -> u64;
}

struct Service {
    began: Arc<Notify>,
}

impl Streams for Service {
    async fn hold(&self, data: BulkReader) -> u64 {
        self.began.notify_one();
        std::future::pending::<()>().await;
        data.remaining()
    }

    /// Slower than any wire.
    async fn read(&self, mut data: BulkReader) -> u64 {
        let (mut sum, mut step) = (0, vec![0; 30_000]);
        loop {
            tokio::task::yield_now().await;
            match AsyncReadExt::read(&mut data, &mut step).await.unwrap() {
                0 => return sum,
                count => sum += count as u64,
            }
        }
    }

    async fn give(&self, len: u32) -> BulkReader {
        Bulk::from(vec![7; len as usize]).reader()
    }

    async fn add(&self, a: u64, b: u64) -> u64 {
        a + b
    }
}

struct World {
    client: StreamsClient,
    began: Arc<Notify>,
}

impl World {
    async fn new(address: &str, link: &LinkConfig) -> Self {
        let began = Arc::new(Notify::new());
        let server = Server::builder()
            .add_service(StreamsServer::new(Service { began: Arc::clone(&began) }))
            .link(link.clone())
            .poll_mode(PollMode::Event)
            .bind(address)
            .await
            .unwrap();
        let address = server.local_address().to_string();
        tokio::spawn(server.serve());
        let builder = Channel::builder().link(link.clone()).poll_mode(PollMode::Event);
        Self { client: StreamsClient::new(builder.connect(address).await.unwrap()), began }
    }

    async fn check(&self) {
        for a in 0..5 {
            assert_eq!(self.client.add(a, 1).await, Ok(a + 1));
        }
    }
}

fn run(name: &str, link: &LinkConfig, test: impl AsyncFn(World)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for scheme in ["mem", "shm", "tcp"] {
        let address = match scheme {
            "tcp" => "tcp://127.0.0.1:0".to_owned(),
            scheme => format!("{scheme}://given-up-{name}-{}", std::process::id()),
        };
        runtime.block_on(async {
            let test = async { test(World::new(&address, link).await).await };
            let limit = Duration::from_secs(60);
            tokio::time::timeout(limit, test).await.expect("it does not end");
        });
    }
}

/// Streams payloads above 1 MiB, and holds 4 MiB of them: the rest is still unsent.
fn link() -> LinkConfig {
    let arena = ArenaConfig::default().max_chunks(64);
    LinkConfig::default().assembly_bytes(1 << 20).arena(arena)
}

fn large() -> Bulk {
    Bulk::from(vec![7; 16 << 20])
}

#[test]
fn a_call_dropped_while_streaming_hurts_no_other() {
    run("dropped", &link(), async |world| {
        for _ in 0..5 {
            let mut call = Box::pin(world.client.hold(large().reader()).into_future());
            tokio::select! {
                outcome = &mut call => panic!("{outcome:?}"),
                () = world.began.notified() => {}
            }
            drop(call);
            world.check().await;
        }
    });
}

#[test]
fn a_deadline_while_streaming_hurts_no_other() {
    run("expired", &link(), async |world| {
        for _ in 0..5 {
            let call = world.client.hold(large().reader()).timeout(Duration::from_millis(20));
            let status = call.await.unwrap_err();
            assert_eq!(status.code(), Code::DeadlineExceeded);
            assert!(!status.is_retryable(), "its handler may have begun");
            world.check().await;
        }
    });
}

#[test]
fn a_reply_dropped_while_streaming_hurts_no_other() {
    run("reply", &link(), async |world| {
        for polls in 0..40 {
            let mut call = Box::pin(world.client.give(8 << 20).into_future());
            for _ in 0..polls {
                let is_over = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_ready())).await;
                if is_over {
                    break;
                }
                tokio::task::yield_now().await;
            }
            drop(call);
            world.check().await;
        }
    });
}

#[test]
fn a_slow_reader_holds_its_sender_back() {
    let none = ArenaConfig::default().max_chunks(0);
    let small = LinkConfig::default().assembly_bytes(64 << 10);
    for (name, link) in [("arena", small.clone()), ("frames", small.arena(none))] {
        run(&format!("slow-{name}"), &link, async |world| {
            // The first stream of a connection, before there is an arena.
            let sent = large();
            let reading = async { world.client.read(sent.reader()).await };
            let (sum, ()) = tokio::join!(reading, world.check());
            assert_eq!(sum, Ok(16 << 20));
            let mut back = world.client.give(8 << 20).await.unwrap();
            world.check().await;
            let mut all = Vec::new();
            AsyncReadExt::read_to_end(&mut back, &mut all).await.unwrap();
            assert_eq!(all.len(), 8 << 20);
        });
    }
}

#[test]
fn an_idle_reader_blocks_no_small_calls() {
    let none = ArenaConfig::default().max_chunks(0);
    let link = LinkConfig::default().assembly_bytes(64 << 10).arena(none);
    run("unread", &link, async |world| {
        let mut call = Box::pin(world.client.hold(large().reader()).into_future());
        tokio::select! {
            outcome = &mut call => panic!("{outcome:?}"),
            () = world.began.notified() => {}
        }
        for _ in 0..20 {
            world.check().await;
        }
        drop(call);
        // Dropping a stream drains it, so that the next large message can be received.
        assert_eq!(world.client.read(large().reader()).await, Ok(16 << 20));
    });
}
