//! Both ends of calls in one process that may lock 8 MiB, the limit of systemd and container
//! runtimes, on devices that charge for locked memory.

use futures::future::try_join_all;
use parking_lot::Mutex;
use rpc_core::stats::StatsHandle;
use rpc_core::stream::{self, Stream, Streaming};
use rpc_core::transport::FaultPlan;
use rpc_core::{Bulk, CallError, Channel, Context, PollMode, Server, Status};
use rpc_transport::device::fault::MLX5;
use rpc_transport::memory::budget::MemoryBudget;
use tests::scheme::Scheme;
use tests::service::pattern;

on_scheme!(mem, Mem, concurrent_payloads_fit_into_eight_mebibytes);
on_scheme!(shm, ShmName, concurrent_payloads_fit_into_eight_mebibytes);
on_scheme!(tcp, Tcp, concurrent_payloads_fit_into_eight_mebibytes);
on_scheme!(shared, Mem, payloads_are_sent_in_place_on_every_connection);

#[rpc_core::service]
trait Carry {
    async fn bytes(&self, bytes: Vec<u8>) -> Vec<u8>;
    async fn copied(&self, payload: Bulk) -> Bulk;
    async fn take(&self, items: Streaming<Vec<u8>>) -> Result<u64, Status>;
    fn give(&self, count: u64) -> impl Stream<Item = Vec<u8>>;
    /// Keeps a payload in registered memory.
    async fn keep(&self, payload: Bulk);
    /// Returns it.
    async fn kept(&self) -> Option<Bulk>;
}

#[derive(Default)]
struct Carrier(Mutex<Option<Bulk>>);

impl Carry for Carrier {
    async fn bytes(&self, bytes: Vec<u8>) -> Vec<u8> {
        bytes
    }

    async fn copied(&self, payload: Bulk) -> Bulk {
        Bulk::from(payload.to_vec().expect("readable"))
    }

    async fn take(&self, mut items: Streaming<Vec<u8>>) -> Result<u64, Status> {
        let mut count = 0;
        while let Some(item) = items.try_next().await? {
            assert!(item == pattern(LEN, count));
            count += 1;
        }
        Ok(count)
    }

    fn give(&self, count: u64) -> impl Stream<Item = Vec<u8>> {
        stream::iter((0..count).map(|number| pattern(LEN, number)))
    }

    async fn keep(&self, payload: Bulk) {
        let context = Context::current();
        let mut buffer = context.bulk_pool().expect("a pool").take(LEN).expect("a buffer");
        buffer.copy_from_slice(&payload.to_vec().expect("readable"));
        *self.0.lock() = Some(buffer.freeze());
    }

    async fn kept(&self) -> Option<Bulk> {
        self.0.lock().clone()
    }
}

/// Of one payload, bytes.
const LEN: usize = 1 << 20;
/// Concurrent calls.
const COUNT: u64 = 4;

fn faults(limit: &MemoryBudget) -> FaultPlan {
    FaultPlan::new(1).profile(&MLX5).lock_limit(limit)
}

async fn serve(scheme: Scheme, shards: usize, limit: &MemoryBudget) -> (String, StatsHandle) {
    let server = Server::builder()
        .add_service(CarryServer::new(Carrier::default()))
        .poll_mode(PollMode::Event)
        .shards(shards)
        .faults(faults(limit))
        .bind(scheme.fresh_address())
        .await
        .expect("it serves");
    let (address, stats) = (server.local_address().to_string(), server.stats_handle());
    tokio::spawn(server.serve());
    (address, stats)
}

async fn connect(address: &str, limit: &MemoryBudget) -> CarryClient {
    let builder = Channel::builder().poll_mode(PollMode::Event).faults(faults(limit));
    CarryClient::new(builder.connect(address).await.expect("it connects"))
}

/// A regression: concurrent calls of 1 MiB ended the connection when its buffers for staging passed
/// the limit.
async fn concurrent_payloads_fit_into_eight_mebibytes(scheme: Scheme) {
    let limit = MemoryBudget::new(8 << 20);
    let client = connect(&serve(scheme, 1, &limit).await.0, &limit).await;
    let calls = (0..COUNT).map(async |number| {
        let content = pattern(LEN, number);
        assert!(client.bytes(content.clone()).await? == content);
        assert!(client.copied(Bulk::from(content.clone())).await?.to_vec()? == content);
        Ok::<_, CallError<Status>>(())
    });
    try_join_all(calls).await.expect("calls");
    let items = stream::iter((0..COUNT).map(|number| pattern(LEN, number)));
    assert_eq!(client.take(items).await.expect("taken"), COUNT);
    let mut given = client.give(COUNT).await.expect("a stream");
    for number in 0..COUNT {
        assert!(given.next().await.expect("an item").expect("whole") == pattern(LEN, number));
    }
    assert!(given.next().await.is_none());
    assert_eq!(client.channel().stats().connected, 1, "the connection was lost");
}

/// A regression: each shard of a server had a protection domain of its own, so memory registered on
/// a connection of one was copied, and memory was locked for the copy, to be sent on a connection
/// of another.
async fn payloads_are_sent_in_place_on_every_connection(scheme: Scheme) {
    let (ours, theirs) = (MemoryBudget::new(64 << 20), MemoryBudget::new(64 << 20));
    let (address, stats) = serve(scheme, 2, &theirs).await;
    let clients = [connect(&address, &ours).await, connect(&address, &ours).await];
    let content = pattern(LEN, 7);
    for client in &clients {
        assert!(client.bytes(vec![1]).await == Ok(vec![1]));
    }
    clients[0].keep(Bulk::from(content.clone())).await.expect("kept");
    for client in &clients {
        let kept = client.kept().await.expect("answered").expect("kept");
        assert!(kept.to_vec().expect("readable") == content);
    }
    let connections = stats.stats().connections;
    let staged: Vec<_> = connections.iter().map(|it| it.staged_copies).collect();
    assert_eq!(staged, [0, 0], "it was copied to be sent");
    // For comparison, a payload from private memory: it is counted there.
    assert!(
        clients[1]
            .copied(Bulk::from(content.clone()))
            .await
            .expect("answered")
            .to_vec()
            .expect("readable")
            == content
    );
    let connections = stats.stats().connections;
    assert!(connections.iter().any(|it| it.staged_copies > 0), "{connections:?}");
}
