//! Streams whose items are sent one by one, each at once: their share of the queue is returned.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use rpc_core::stream::{self, Stream, Streaming};
use rpc_core::{Channel, LinkConfig, Server, Status};
use test_kit::Watchdog;

#[rpc_core::service]
trait Slow {
    /// Returns each item before it takes the next.
    fn echo(&self, texts: Streaming<String>) -> impl Stream<Item = Result<String, Status>>;
    async fn total(&self, texts: Streaming<String>) -> Result<u64, Status>;
    fn first_of(&self, count: u32) -> impl Stream<Item = String>;
}

struct Service;

impl Slow for Service {
    fn echo(&self, mut texts: Streaming<String>) -> impl Stream<Item = Result<String, Status>> {
        stream::try_stream(async move |mut out| {
            while let Some(text) = texts.try_next().await? {
                out.send(text).await?;
            }
            Ok(())
        })
    }

    async fn total(&self, mut texts: Streaming<String>) -> Result<u64, Status> {
        let mut bytes = 0;
        while let Some(text) = texts.try_next().await? {
            bytes += text.len() as u64;
        }
        Ok(bytes)
    }

    fn first_of(&self, count: u32) -> impl Stream<Item = String> {
        stream::iter((0..count).map(|number| number.to_string()))
    }
}

async fn connected(address: &str, queued_bytes: u64) -> SlowClient {
    let link = || LinkConfig::default().queued_bytes(queued_bytes);
    let server = Server::builder().link(link()).add_service(SlowServer::new(Service));
    let server = server.bind(address).await.unwrap();
    let address = server.local_address().to_string();
    tokio::spawn(server.serve());
    SlowClient::new(Channel::builder().link(link()).connect(&address).await.unwrap())
}

/// `count` items of `bytes` bytes go to the server and back, each after the one before it.
async fn echo(client: &SlowClient, count: u32, bytes: usize) {
    let (out, texts) = tokio::sync::mpsc::channel(1);
    let texts = stream::stream(async move |mut sender| {
        let mut texts = texts;
        while let Some(text) = texts.recv().await {
            sender.send(text).await?;
        }
        Ok(())
    });
    let mut back = client.echo(texts).await.unwrap();
    for _ in 0..count {
        out.send("x".repeat(bytes)).await.unwrap();
        assert_eq!(back.try_next().await.unwrap().unwrap().len(), bytes);
    }
    drop(out);
    assert_eq!(back.try_next().await.unwrap(), None);
}

async fn several_times_the_queue(address: &str) {
    let _watchdog = Watchdog::within(Watchdog::LIMIT);
    let client = connected(address, 4096).await;
    echo(&client, 500, 30).await;
    echo(&client, 50, 3000).await;
    echo(&client, 5, 100_000).await;
    // One stream for each item.
    for _ in 0..500 {
        assert_eq!(client.total(stream::iter(["x".repeat(30)])).await.unwrap(), 30);
    }
    // Streams that are dropped after their first item.
    for _ in 0..500 {
        let mut numbers = client.first_of(40).await.unwrap();
        assert_eq!(numbers.try_next().await.unwrap().as_deref(), Some("0"));
    }
}

#[tokio::test]
async fn slow_items_exceed_the_queue_mem() {
    several_times_the_queue("mem://slow-items").await;
}

#[tokio::test]
async fn slow_items_exceed_the_queue_shm() {
    several_times_the_queue(&format!("shm://slow-items-{}", std::process::id())).await;
}

#[tokio::test]
async fn slow_items_exceed_the_queue_tcp() {
    several_times_the_queue("tcp://127.0.0.1:0").await;
}

/// All streams have an item, and the queue has room for one: the others follow immediately.
#[tokio::test]
async fn streams_share_the_least_queue() {
    let _watchdog = Watchdog::within(Watchdog::LIMIT);
    let client = connected("mem://least-queue", 1).await;
    let echoes = (0..20).map(|_| echo(&client, 20, 30));
    futures::future::join_all(echoes).await;
}
