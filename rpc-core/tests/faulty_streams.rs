//! Streams on faulty devices: late and reordered completions change nothing; a lost connection ends
//! each stream once, with its error, never as if it were complete.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use rpc_core::client::Backoff;
use rpc_core::stream::{self, Stream, StreamEnd, Streaming};
use rpc_core::transport::FaultPlan;
use rpc_core::{Channel, Code, PollMode, Server, Status};
use test_kit::{Watchdog, variable};

#[rpc_core::service]
trait Streams {
    async fn add(&self, a: u64, b: u64) -> u64;
    fn give(&self, sizes: &[u32]) -> impl Stream<Item = Vec<u8>>;
    async fn take(&self, items: Streaming<Vec<u8>>) -> Result<Vec<u32>, Status>;
    fn echo(&self, items: Streaming<Vec<u8>>) -> impl Stream<Item = Result<Vec<u8>, Status>>;
    async fn take_one(&self, items: Streaming<Vec<u8>>) -> u32;
}

struct Service;

/// The item of this number and length.
fn item(number: usize, len: u32) -> Vec<u8> {
    (0..=250).cycle().skip(number % 100).take(len as usize).collect()
}

fn items(sizes: &[u32]) -> Vec<Vec<u8>> {
    sizes.iter().enumerate().map(|(number, &len)| item(number, len)).collect()
}

impl Streams for Service {
    async fn add(&self, a: u64, b: u64) -> u64 {
        a + b
    }

    fn give(&self, sizes: &[u32]) -> impl Stream<Item = Vec<u8>> {
        stream::iter(sizes.iter().enumerate().map(|(number, &len)| item(number, len)))
    }

    async fn take(&self, mut items: Streaming<Vec<u8>>) -> Result<Vec<u32>, Status> {
        let mut sizes = Vec::new();
        while let Some(taken) = items.try_next().await? {
            let len = u32::try_from(taken.len()).unwrap();
            assert!(taken == item(sizes.len(), len), "another item, or a torn one");
            sizes.push(len);
        }
        assert_eq!(items.end(), Some(StreamEnd::Finished));
        Ok(sizes)
    }

    fn echo(&self, items: Streaming<Vec<u8>>) -> impl Stream<Item = Result<Vec<u8>, Status>> {
        items
    }

    async fn take_one(&self, mut items: Streaming<Vec<u8>>) -> u32 {
        items.next().await.and_then(Result::ok).map_or(0, |item| u32::try_from(item.len()).unwrap())
    }
}

/// Small items, some that overdraw the window, and some that use the arena.
const SIZES: [u32; 24] = [
    0, 1, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 5000, 70_000, 3, 20_000, 64,
    200_000, 7,
];

async fn client(scheme: &str, name: &str, plans: [FaultPlan; 2]) -> StreamsClient {
    let address = match scheme {
        "tcp" => "tcp://127.0.0.1:0".to_owned(),
        scheme => format!("{scheme}://faulty-streams-{name}-{}", std::process::id()),
    };
    let [ours, theirs] = plans;
    let server = Server::builder()
        .add_service(StreamsServer::new(Service))
        .poll_mode(PollMode::Event)
        .faults(theirs)
        .bind(address)
        .await
        .unwrap();
    let address = server.local_address().to_string();
    tokio::spawn(server.serve());
    let soon = Backoff::new().initial(Duration::from_millis(1)).max(Duration::from_millis(1));
    let builder = Channel::builder().poll_mode(PollMode::Event).faults(ours).reconnect(soon);
    StreamsClient::new(builder.wait_for_ready(true).connect_lazy(address).unwrap())
}

fn run(test: &str, seeds: u64, plan: impl Fn(u64) -> FaultPlan, body: impl AsyncFn(StreamsClient)) {
    // `MODEL_RUNS` increases their number, as in the models.
    for seed in 0..variable("MODEL_RUNS").unwrap_or(seeds) {
        for scheme in ["mem", "shm", "tcp"] {
            let _watchdog = Watchdog::start(&format!("{test}, {scheme}, seed {seed}"));
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let plans = [plan(2 * seed), plan(2 * seed + 1)];
            let name = format!("{test}-{seed}");
            runtime.unwrap().block_on(async { body(client(scheme, &name, plans).await).await });
        }
    }
}

/// All faults of a device that lose nothing.
fn late(seed: u64) -> FaultPlan {
    FaultPlan::new(seed)
        .delay_completions(6)
        .interleave_queues(true)
        .poison_receives(true)
        .touch_memory_late(4)
}

#[test]
fn late_and_reordered_completions_change_nothing() {
    run("late", 2, late, async |client| {
        let given = client.give(&SIZES).await.unwrap();
        assert!(given.try_collect::<Vec<_>>().await.unwrap() == items(&SIZES));
        let taken = client.take(stream::iter(items(&SIZES))).await;
        assert_eq!(taken.unwrap(), SIZES);
        // Both directions interleaved, together with calls that stop halfway.
        let given = client.give(&SIZES).await.unwrap();
        let echoed = client.echo(given).await.unwrap();
        let dropped = async {
            for _ in 0..4 {
                let mut given = client.give(&SIZES).await.unwrap();
                assert!(given.next().await.unwrap().unwrap().is_empty());
                assert_eq!(client.take_one(stream::iter(items(&SIZES[2..]))).await, Ok(64));
            }
        };
        let (echoed, ()) = tokio::join!(echoed.try_collect::<Vec<_>>(), dropped);
        assert!(echoed.unwrap() == items(&SIZES));
        assert_eq!(client.add(1, 2).await, Ok(3));
    });
}

/// The allowed ends of a stream after its connection was lost.
fn assert_lost(status: &Status) {
    assert_eq!(status.code(), Code::Unavailable, "{status}");
}

/// Reads to the end, and returns whether all items arrived.
async fn read<E: Into<Status>>(mut given: impl Stream<Item = Result<Vec<u8>, E>> + Unpin) -> bool {
    let mut count = 0;
    while let Some(next) = given.next().await {
        match next {
            Ok(next) => {
                assert!(next == item(count, SIZES[count]), "another item, or a torn one");
                count += 1;
            }
            Err(error) => {
                assert_lost(&error.into());
                assert!(given.next().await.is_none(), "an error is the last");
                return false;
            }
        }
    }
    assert_eq!(count, SIZES.len(), "an end in the midst of the items");
    true
}

/// Makes calls until enough of them were lost: each ends once, complete or with an error.
async fn lose(client: StreamsClient) {
    let (mut lost, mut whole) = (0, 0);
    for round in 0.. {
        let is_whole = match round % 3 {
            0 => match client.give(&SIZES).await {
                Ok(given) => read(given).await,
                Err(status) => {
                    assert_lost(&status);
                    false
                }
            },
            1 => match client.take(stream::iter(items(&SIZES))).await {
                Ok(sizes) => {
                    assert_eq!(sizes, SIZES);
                    true
                }
                Err(error) => {
                    assert_lost(&error.into());
                    false
                }
            },
            _ => match client.echo(stream::iter(items(&SIZES))).await {
                Ok(echoed) => read(echoed).await,
                Err(error) => {
                    assert_lost(&error);
                    false
                }
            },
        };
        *if is_whole { &mut whole } else { &mut lost } += 1;
        if lost >= 3 && whole >= 3 {
            return;
        }
    }
}

#[test]
fn streams_of_failed_queue_pairs_are_named() {
    run("failing", 1, |seed| late(seed).kill_queue_pairs(150), lose);
}

#[test]
fn streams_of_lost_peers_are_named() {
    run("losing", 1, |seed| late(seed).lose_peer(150), lose);
}
