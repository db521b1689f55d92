//! Items of a stream do not allocate in steady state, at either end and in either direction.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use allocation_counter::measure;
use rpc_core::stream::{self, Stream, Streaming};
use rpc_core::{Channel, Codec, PollMode, Server};
use test_kit::Watchdog;

/// 64 bytes in either codec, or nearly so.
type Item = [u8; 32];

#[rpc_core::service]
trait Flow {
    fn give(&self) -> impl Stream<Item = Item>;
    fn relay(&self, items: Streaming<Item>) -> impl Stream<Item = Item>;
}

struct Service;

fn endless() -> impl Stream<Item = Item> {
    stream::iter(std::iter::repeat([7; 32]))
}

impl Flow for Service {
    fn give(&self) -> impl Stream<Item = Item> {
        endless()
    }

    fn relay(&self, mut items: Streaming<Item>) -> impl Stream<Item = Item> {
        stream::stream(async move |mut out| {
            while let Some(item) = items.next().await {
                out.send(item.unwrap()).await?;
            }
            Ok(())
        })
    }
}

/// Warm-up items, until windows and pools have grown, and the items of a measured series.
const WARM_UP: u32 = 4000;
const ITEMS: u32 = 1000;
const SERIES: u32 = 3;

#[test]
fn items_allocate_nothing() {
    let _watchdog = Watchdog::start("items_allocate_nothing");
    for mode in [PollMode::Adaptive, PollMode::Event] {
        for codec in [Codec::Bincode, Codec::Postcard] {
            items_allocate_nothing_in(mode, codec);
        }
    }
}

/// Both ends on one thread, whose allocations are counted.
fn items_allocate_nothing_in(mode: PollMode, codec: Codec) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let address = format!("mem://stream-allocs-{mode:?}-{codec:?}");
    let client = runtime.block_on(async {
        let server = Server::builder().add_service(FlowServer::new(Service)).poll_mode(mode);
        let server = server.bind(&address).await.unwrap();
        tokio::spawn(server.serve());
        let channel = Channel::builder().codec(codec).poll_mode(mode).connect(&address).await;
        FlowClient::new(channel.unwrap())
    });
    let mut given = runtime.block_on(async { client.give().await.unwrap() });
    let mut relayed = runtime.block_on(async { client.relay(endless()).await.unwrap() });
    // The minimum of a few series, as for calls.
    let least = |read: &mut dyn FnMut(u32)| {
        read(WARM_UP);
        (0..SERIES).map(|_| measure(|| read(ITEMS)).count_total).min().unwrap()
    };
    let results = least(&mut |items| {
        runtime.block_on(async {
            for _ in 0..items {
                assert_eq!(given.next().await, Some(Ok([7; 32])));
            }
        });
    });
    let both = least(&mut |items| {
        runtime.block_on(async {
            for _ in 0..items {
                assert_eq!(relayed.next().await, Some(Ok([7; 32])));
            }
        });
    });
    println!(
        "{mode:?} {codec:?}: {results} for {ITEMS} items of results, {both} in both directions"
    );
    // A few by the runtime itself.
    assert!(results <= 10, "{mode:?} {codec:?}: {results} for {ITEMS} items of results");
    assert!(both <= 10, "{mode:?} {codec:?}: {both} for {ITEMS} items in both directions");
}
