//! Streams of 64-byte items with both ends on one thread, for `instructions`.
//!
//! Owns a service of its own, so that the service for calls stays unchanged.

use anyhow::{Result, ensure};
use rpc_core::stream::{self, Stream, Streaming};
use rpc_core::{Channel, PollMode, Server};

#[rpc_core::service]
trait Items {
    /// Returns `count` items.
    fn give(&self, count: u32) -> impl Stream<Item = Vec<u8>>;
    /// Takes items, and returns their number.
    async fn take(&self, items: Streaming<Vec<u8>>) -> u32;
}

struct Plain;

/// Each call of an echo makes a vector too.
fn items(count: u32) -> impl Stream<Item = Vec<u8>> {
    stream::iter((0..count).map(|_| vec![7; 64]))
}

impl Items for Plain {
    fn give(&self, count: u32) -> impl Stream<Item = Vec<u8>> {
        items(count)
    }

    async fn take(&self, mut items: Streaming<Vec<u8>>) -> u32 {
        let mut count = 0;
        while let Some(Ok(_)) = items.next().await {
            count += 1;
        }
        count
    }
}

/// Sends `items` items of one stream, of `results` or `arguments`. Nobody spins.
pub(crate) async fn count(items: u32, of: &str) -> Result<()> {
    let server = Server::builder().add_service(ItemsServer::new(Plain)).poll_mode(PollMode::Event);
    tokio::spawn(server.bind("mem://bench").await?.serve());
    let channel = Channel::builder().poll_mode(PollMode::Event).connect("mem://bench").await?;
    let client = ItemsClient::new(channel);
    let count = match of {
        "arguments" => client.take(self::items(items)).await?,
        "results" => {
            let (mut stream, mut count) = (client.give(items).await?, 0);
            while stream.try_next().await?.is_some() {
                count += 1;
            }
            count
        }
        other => anyhow::bail!("no stream of {other}: `results` or `arguments`"),
    };
    ensure!(count == items, "{count} of {items} items");
    Ok(())
}
