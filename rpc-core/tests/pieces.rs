//! Payloads as streams of pieces: forwarded by a gateway while they arrive, or read from a source
//! of unknown length; and failures of each end halfway.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{Either, select};
use rpc_core::bulk::BulkReader;
use rpc_core::bulk::read_pieces;
use rpc_core::stream::{Stream, StreamEnd, Streaming};
use rpc_core::transport::ArenaConfig;
use rpc_core::{Bulk, Channel, Code, LinkConfig, PollMode, Server, Status};
use test_kit::Watchdog;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use tokio::sync::watch;

#[rpc_core::service]
trait Store {
    async fn put(&self, data: Streaming<Bulk>) -> Result<(u64, u64), Status>;
    async fn big(&self, len: u64) -> BulkReader;
    fn give(&self, len: u64) -> impl Stream<Item = Result<Bulk, Status>>;
    fn give_then_fail(&self, len: u64) -> impl Stream<Item = Result<Bulk, Status>>;
    /// Reads a piece, then waits forever.
    async fn hold(&self, data: Streaming<Bulk>);
    async fn add(&self, a: u64, b: u64) -> u64;
}

#[rpc_core::service]
trait Gateway {
    async fn upload(&self, data: BulkReader) -> Result<(u64, u64), Status>;
    async fn upload_and_hold(&self, data: BulkReader) -> Result<(), Status>;
    async fn download(&self, len: u64) -> Result<impl Stream<Item = Result<Bulk, Status>>, Status>;
}

/// The expected byte at each position.
fn byte(at: u64) -> u8 {
    u8::try_from(at % 251).unwrap()
}

fn digest(sum: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(sum, |sum, byte| sum.rotate_left(1) ^ u64::from(*byte))
}

fn pattern(len: u64) -> Vec<u8> {
    (0..len).map(byte).collect()
}

/// The observations of a store.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Seen {
    /// Number of `hold` handlers that have their first piece.
    holding: u32,
    /// Number of those that were dropped.
    dropped: u32,
    /// How the last stream ended.
    end: Option<StreamEnd>,
}

struct Work(watch::Sender<Seen>);

struct Dropped<'a>(&'a Work);

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        self.0.0.send_modify(|seen| seen.dropped += 1);
    }
}

async fn read_all(mut data: impl AsyncRead + Unpin) -> io::Result<(u64, u64)> {
    let (mut len, mut sum, mut step) = (0, 0, vec![0; 9_999]);
    loop {
        match data.read(&mut step).await? {
            0 => return Ok((len, sum)),
            count => (len, sum) = (len + count as u64, digest(sum, &step[..count])),
        }
    }
}

impl Store for Work {
    async fn put(&self, mut data: Streaming<Bulk>) -> Result<(u64, u64), Status> {
        let (mut len, mut sum) = (0, 0);
        let failed = loop {
            match data.next().await {
                Some(Ok(piece)) => {
                    assert!(piece.len() <= 64 << 10);
                    (len, sum) = (len + piece.len(), digest(sum, &piece.to_vec().unwrap()));
                }
                Some(Err(status)) => break Err(status),
                None => break Ok((len, sum)),
            }
        };
        self.0.send_modify(|seen| seen.end = data.end());
        failed
    }

    async fn big(&self, len: u64) -> BulkReader {
        Bulk::from(pattern(len)).reader()
    }

    fn give(&self, len: u64) -> impl Stream<Item = Result<Bulk, Status>> {
        read_pieces(Counting::upto(len))
    }

    fn give_then_fail(&self, len: u64) -> impl Stream<Item = Result<Bulk, Status>> {
        read_pieces(Counting::failing(len))
    }

    async fn hold(&self, mut data: Streaming<Bulk>) {
        let _dropped = Dropped(self);
        data.next().await;
        self.0.send_modify(|seen| seen.holding += 1);
        std::future::pending::<()>().await;
    }

    async fn add(&self, a: u64, b: u64) -> u64 {
        a + b
    }
}

struct Between(StoreClient);

impl Gateway for Between {
    async fn upload(&self, data: BulkReader) -> Result<(u64, u64), Status> {
        assert!(data.is_arriving() || data.remaining() <= 100_000);
        self.0.put(data.into_pieces()).await.map_err(Status::from)
    }

    async fn upload_and_hold(&self, data: BulkReader) -> Result<(), Status> {
        self.0.hold(data.into_pieces()).await
    }

    async fn download(&self, len: u64) -> Result<impl Stream<Item = Result<Bulk, Status>>, Status> {
        Ok(self.0.big(len).await?.into_pieces())
    }
}

/// A source of unknown length: reads of varying length, sometimes pending, and optionally an error
/// at the end.
struct Counting {
    given: Arc<AtomicU64>,
    len: u64,
    fails: bool,
    is_ready: bool,
}

impl Counting {
    fn upto(len: u64) -> Self {
        Self { given: Arc::default(), len, fails: false, is_ready: false }
    }

    fn failing(len: u64) -> Self {
        Self { fails: true, ..Self::upto(len) }
    }
}

impl AsyncRead for Counting {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.is_ready = !this.is_ready;
        if this.is_ready {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let given = this.given.load(Ordering::Relaxed);
        if given == this.len && this.fails {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "a torn page")));
        }
        let most = 1 + given % 100_000;
        let count = most.min(this.len - given).min(to.remaining() as u64);
        (given..given + count).for_each(|at| to.put_slice(&[byte(at)]));
        this.given.store(given + count, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

/// Assembles at most 100 kB, with memory for 1 MiB of unread data: a long payload is never in
/// memory as a whole.
fn link() -> LinkConfig {
    let arena = ArenaConfig::default().arena_chunks(16).max_chunks(16);
    LinkConfig::default().assembly_bytes(100_000).arena(arena)
}

/// Serves on a separate runtime, whose end is the death of the server.
async fn serve(
    service: impl rpc_core::service::Dispatch,
    address: &str,
) -> (String, tokio::runtime::Runtime) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let builder = Server::builder().add_service(service).link(link()).poll_mode(PollMode::Event);
    let address = address.to_owned();
    let bound = runtime.spawn(async move { builder.bind(&address).await.unwrap() }).await.unwrap();
    let address = bound.local_address().to_string();
    runtime.spawn(bound.serve());
    (address, runtime)
}

async fn connect(address: &str) -> Channel {
    let builder = Channel::builder().link(link()).poll_mode(PollMode::Event);
    builder.connect(address).await.unwrap()
}

/// A store, a gateway in front of it, and clients of both.
struct World {
    store: StoreClient,
    gateway: GatewayClient,
    seen: watch::Receiver<Seen>,
    store_runtime: Option<tokio::runtime::Runtime>,
    gateway_runtime: Option<tokio::runtime::Runtime>,
}

impl World {
    async fn start(scheme: &str, test: &str) -> Self {
        let address = |who| match scheme {
            "tcp" => "tcp://127.0.0.1:0".to_owned(),
            scheme => format!("{scheme}://pieces-{test}-{who}-{}", std::process::id()),
        };
        let (sender, seen) = watch::channel(Seen::default());
        let (store, store_runtime) = serve(StoreServer::new(Work(sender)), &address("store")).await;
        let next = Between(StoreClient::new(connect(&store).await));
        let (gateway, gateway_runtime) = serve(GatewayServer::new(next), &address("gateway")).await;
        Self {
            store: StoreClient::new(connect(&store).await),
            gateway: GatewayClient::new(connect(&gateway).await),
            seen,
            store_runtime: Some(store_runtime),
            gateway_runtime: Some(gateway_runtime),
        }
    }

    async fn until(&mut self, is_so: impl FnMut(&Seen) -> bool) -> Seen {
        *self.seen.wait_for(is_so).await.unwrap()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for runtime in [self.store_runtime.take(), self.gateway_runtime.take()] {
            runtime.into_iter().for_each(tokio::runtime::Runtime::shutdown_background);
        }
    }
}

fn run(test: &str, body: impl AsyncFn(World)) {
    let _watchdog = Watchdog::start(test);
    for scheme in ["mem", "shm", "tcp"] {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { body(World::start(scheme, test).await).await });
    }
}

fn expected(len: u64) -> (u64, u64) {
    (len, digest(0, &pattern(len)))
}

#[test]
fn an_arriving_payload_is_forwarded_as_argument() {
    run("argument", async |world| {
        for len in [0, 1, 99_000, 100_001, 5 << 20] {
            let data = Bulk::from(pattern(len));
            assert_eq!(world.gateway.upload(data.reader()).await, Ok(expected(len)), "{len}");
        }
    });
}

#[test]
fn an_arriving_payload_is_forwarded_as_result() {
    run("result", async |world| {
        for len in [0, 1, 99_000, 100_001, 5 << 20] {
            let data = world.gateway.download(len).await.unwrap().into_reader();
            assert_eq!(read_all(data).await.unwrap(), expected(len), "{len}");
        }
    });
}

#[test]
fn a_source_of_unknown_length_is_sent() {
    run("unknown", async |mut world| {
        for len in [0, 1, 65_536, 600_000] {
            let put = world.store.put(read_pieces(Counting::upto(len))).await;
            assert_eq!(put.unwrap(), expected(len), "{len} up");
            world.until(|seen| seen.end == Some(StreamEnd::Finished)).await;
            let given = world.store.give(len).await.unwrap().into_reader();
            assert_eq!(read_all(given).await.unwrap(), expected(len), "{len} down");
        }
    });
}

#[test]
fn a_failing_source_resets_its_stream() {
    run("failing", async |mut world| {
        let status: Status =
            world.store.put(read_pieces(Counting::failing(300_000))).await.unwrap_err().into();
        assert_eq!(status.code(), Code::DataLoss, "{status}");
        assert!(status.message().contains("a torn page"), "{status}");
        world.until(|seen| seen.end == Some(StreamEnd::Reset(Code::DataLoss))).await;
        let mut given = world.store.give_then_fail(300_000).await.unwrap().into_reader();
        let mut all = Vec::new();
        let error = given.read_to_end(&mut all).await.unwrap_err();
        assert!(error.to_string().contains("a torn page"), "{error}");
        assert!(all == pattern(300_000), "what came before the error is given");
        // A status inside an error is forwarded unchanged: a stream of pieces is a source, too.
        let given = world.store.give_then_fail(10).await.unwrap().into_reader();
        let status: Status = world.store.put(read_pieces(given)).await.unwrap_err().into();
        assert!(status.message().contains("a torn page"), "{status}");
    });
}

/// The store reads nothing: only its window and the gateway's buffers are filled, and both
/// connections have room for other calls.
#[test]
fn back_pressure_crosses_a_chain() {
    run("pressure", async |mut world| {
        let source = Counting::upto(u64::MAX);
        let given = Arc::clone(&source.given);
        let held = world.store.hold(read_pieces(source)).start();
        let held = Box::pin(held);
        let others = async {
            world.seen.wait_for(|seen| seen.holding == 1).await.unwrap();
            for a in 0..500 {
                assert_eq!(world.store.add(a, 1).await, Ok(a + 1));
            }
        };
        let Either::Right(((), held)) = select(held, Box::pin(others)).await else {
            panic!("nobody lets it go")
        };
        let given = given.load(Ordering::Relaxed);
        assert!(given <= 4 * (64 << 10), "{given} bytes were read of the source");
        drop(held);
        world.until(|seen| seen.dropped == 1).await;
        // A payload far longer than all windows through the gateway, with other calls at the same
        // time.
        let data = Bulk::from(vec![7; 32 << 20]);
        let held = Box::pin(world.gateway.upload_and_hold(data.reader()).start());
        let others = async {
            world.seen.wait_for(|seen| seen.holding == 2).await.unwrap();
            for a in 0..500 {
                assert_eq!(world.store.add(a, 1).await, Ok(a + 1));
            }
        };
        let Either::Right(((), held)) = select(held, Box::pin(others)).await else {
            panic!("nobody lets it go")
        };
        // Cancelled halfway: every handler of the chain is dropped.
        drop(held);
        world.until(|seen| seen.dropped == 2).await;
        assert_eq!(
            world.gateway.upload(Bulk::from(pattern(200_000)).reader()).await,
            Ok(expected(200_000))
        );
    });
}

#[test]
fn a_deadline_ends_every_hop_of_a_chain() {
    run("deadline", async |mut world| {
        let data = Bulk::from(vec![7; 32 << 20]);
        let call = world.gateway.upload_and_hold(data.reader()).timeout(Duration::from_millis(500));
        let status = Status::from(call.await.unwrap_err());
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        // It may pass before the last of them has read anything.
        world.until(|seen| seen.dropped >= seen.holding).await;
        assert_eq!(
            world.gateway.upload(Bulk::from(pattern(200_000)).reader()).await,
            Ok(expected(200_000))
        );
    });
}

#[test]
fn the_gateway_reports_the_next_hops_death() {
    run("next-dies", async |mut world| {
        let data = Bulk::from(vec![7; 32 << 20]);
        let held = Box::pin(world.gateway.upload_and_hold(data.reader()).start());
        let begun = Box::pin(world.seen.wait_for(|seen| seen.holding == 1));
        let Either::Right((begun, held)) = select(held, begun).await else {
            panic!("nobody lets it go")
        };
        drop(begun.unwrap());
        let dies = world.store_runtime.take().unwrap();
        dies.shutdown_background();
        let status = Status::from(held.await.unwrap_err());
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        // The connection to the gateway still works.
        let again = world.gateway.upload(Bulk::from(pattern(200_000)).reader()).await;
        let status = Status::from(again.unwrap_err());
        assert_eq!(status.code(), Code::Unavailable, "{status}");
    });
}

#[test]
fn the_first_senders_death_is_no_end() {
    run("first-dies", async |mut world| {
        let mut data = world.gateway.download(32 << 20).await.unwrap();
        assert!(data.next().await.unwrap().is_ok());
        world.store_runtime.take().unwrap().shutdown_background();
        let status = loop {
            match data.next().await {
                Some(Ok(_)) => {}
                Some(Err(error)) => break Status::from(error),
                None => panic!("an end in the midst of a payload"),
            }
        };
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert!(status.message().contains("did not arrive"), "{status}");
        assert_eq!(data.end(), Some(StreamEnd::Failed));
    });
}

#[test]
fn the_gateways_death_is_no_end() {
    run("gateway-dies", async |mut world| {
        let data = Bulk::from(vec![7; 32 << 20]);
        let held = Box::pin(world.gateway.upload_and_hold(data.reader()).start());
        let begun = Box::pin(world.seen.wait_for(|seen| seen.holding == 1));
        let Either::Right((begun, held)) = select(held, begun).await else {
            panic!("nobody lets it go")
        };
        drop(begun.unwrap());
        let dies = world.gateway_runtime.take().unwrap();
        dies.shutdown_background();
        let status = Status::from(held.await.unwrap_err());
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        let seen = world.until(|seen| seen.dropped == 1).await;
        assert_eq!(seen.end, None);
        assert_eq!(world.store.add(1, 2).await, Ok(3));
    });
}
