//! Large payloads: rates against raw passes through shared memory and against tarpc, and their
//! effect on concurrent small calls.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::stream::{FuturesUnordered, StreamExt};
use rpc_core::bytes::Bytes;
use rpc_core::{Bulk, Channel, Context, LinkConfig, PollMode, Server};

use crate::ours::{self, EchoClient};
use crate::report::{at_least, at_most, median, quantile, ratio, row};
use crate::tarpc_peer;
use rpc_perf::cores;
use rpc_perf::floor::{large as floor_large, tcp as floor_tcp};
use rpc_perf::pages::{PAGE_BYTES, look, page_faults, page_faults_of};
use rpc_perf::server_process::ServerProcess;
use tokio::runtime::Runtime;

/// Least rate of `Bytes` with four in flight, relative to two raw copies.
pub(crate) const FOUR_BAR: f64 = 0.7;

/// The payloads to move, in the types to compare.
#[rpc_core::service]
pub(crate) trait Large {
    /// Samples a payload.
    async fn sink(&self, data: Bulk) -> u64;
    /// Returns a payload.
    async fn source(&self, len: u32) -> Option<Bulk>;
    /// Samples private bytes.
    async fn sink_bytes(&self, data: Bytes) -> u64;
    /// Returns private bytes.
    async fn source_bytes(&self, len: u32) -> Bytes;
    /// Samples a vector.
    async fn sink_vec(&self, data: Vec<u8>) -> u64;
    /// Returns a vector.
    async fn source_vec(&self, len: u32) -> Vec<u8>;
}

/// Samples a payload, wherever it lies.
fn look_at(data: &Bulk) -> u64 {
    let mut byte = [0];
    let mut sum = 0;
    for at in (0..data.len()).step_by(PAGE_BYTES) {
        data.read_at(at, &mut byte).expect("the payload can be read");
        sum += u64::from(byte[0]);
    }
    sum
}

/// The payloads to send were made in advance.
#[derive(Default)]
pub(crate) struct Store {
    registered: std::sync::OnceLock<Option<Bulk>>,
    bytes: std::sync::OnceLock<Bytes>,
}

impl Store {
    fn bytes(&self, len: u32) -> &Bytes {
        self.bytes.get_or_init(|| vec![7; len as usize].into())
    }
}

impl Large for Store {
    async fn sink(&self, data: Bulk) -> u64 {
        look_at(&data)
    }

    async fn source(&self, len: u32) -> Option<Bulk> {
        let make = || Some(registered(Context::current().bulk_pool()?, len as usize));
        self.registered.get_or_init(make).clone()
    }

    async fn sink_bytes(&self, data: Bytes) -> u64 {
        look(&data)
    }

    async fn source_bytes(&self, len: u32) -> Bytes {
        self.bytes(len).clone()
    }

    async fn sink_vec(&self, data: Vec<u8>) -> u64 {
        look(&data)
    }

    async fn source_vec(&self, len: u32) -> Vec<u8> {
        self.bytes(len).to_vec()
    }
}

/// A payload in a registered buffer.
pub(crate) fn registered(pool: &rpc_core::BulkPool, len: usize) -> Bulk {
    match pool.take(len) {
        Ok(mut buffer) => {
            buffer.fill(7);
            buffer.freeze()
        }
        Err(_) => Bulk::from(vec![7; len]),
    }
}

/// Serves both services at `address` until the process is killed; prints `READY <address>`.
pub(crate) async fn serve(address: &str, mode: PollMode) -> Result<()> {
    let server = Server::builder()
        .add_service(LargeServer::new(Store::default()))
        .add_service(ours::echo_server())
        .link(link())
        .poll_mode(mode)
        .bind(address)
        .await?;
    println!("READY {}", server.local_address());
    Ok(server.serve().await?)
}

pub(crate) fn link() -> LinkConfig {
    LinkConfig::default()
}

/// Bytes per second of `in_flight` loops of `call`, each moving `size` bytes.
#[allow(clippy::cast_precision_loss, reason = "bytes of a run are far below 2^52")]
async fn rate<F, Fut>(in_flight: usize, size: usize, duration: Duration, call: F) -> Result<f64>
where
    F: Fn() -> Fut + Clone + Send + 'static,
    Fut: Future<Output = Result<u64>> + Send,
{
    let expected = size.div_ceil(PAGE_BYTES) as u64 * 7;
    for _ in 0..8 {
        ensure!(call().await? == expected, "the payload is another one");
    }
    let start = Instant::now();
    let mut tasks = FuturesUnordered::new();
    for _ in 0..in_flight {
        let call = call.clone();
        tasks.push(tokio::spawn(async move {
            let mut calls = 0_u64;
            while start.elapsed() < duration {
                ensure!(call().await? == expected, "the payload is another one");
                calls += 1;
            }
            Ok(calls)
        }));
    }
    let mut calls = 0;
    while let Some(done) = tasks.next().await {
        calls += done??;
    }
    Ok((calls * size as u64) as f64 / start.elapsed().as_secs_f64())
}

/// Rates of one kind of payload, up and down.
#[derive(Default)]
struct Both {
    up: Vec<f64>,
    down: Vec<f64>,
}

/// One value of each for every round.
#[derive(Default)]
struct Samples {
    one_copy: Vec<f64>,
    two_copies: Vec<f64>,
    fresh_copies: Vec<f64>,
    in_turn: Vec<f64>,
    overlapping: Vec<f64>,
    stream: Vec<f64>,
    bulk: Both,
    bulk_4: Both,
    bytes: Both,
    bytes_4: Both,
    vec: Both,
    tarpc: Both,
    tarpc_4: Both,
    faults_up: Vec<f64>,
    faults_down: Vec<f64>,
    alone: Vec<f64>,
    beside: Vec<f64>,
    beside_p99: Vec<f64>,
    beside_load: Vec<f64>,
}

pub(crate) fn run(
    runtime: &Runtime,
    (scheme, mode): (&str, &str),
    size: usize,
    rounds: usize,
    duration: Duration,
) -> Result<()> {
    let address = match scheme {
        "tcp" => "tcp://127.0.0.1:0".to_owned(),
        scheme => format!("{scheme}://bench-large"),
    };
    let socket = std::env::temp_dir().join(format!("bench-large-{}", std::process::id()));
    let mut samples = Samples::default();
    for _ in 0..rounds {
        cores::pin(0);
        if scheme == "tcp" {
            let raw = crate::start_server("stream", "-", "")?;
            samples.stream.push(floor_tcp::stream(raw.address(), size, duration)?);
        }
        samples.one_copy.push(floor_large::one_copy(crate::CPUS, size, duration)?);
        samples.two_copies.push(floor_large::two_copies(crate::CPUS, size, duration)?);
        samples.fresh_copies.push(floor_large::fresh_copies(crate::CPUS, size, duration)?);
        samples.in_turn.push(floor_large::one_at_a_time(crate::CPUS, size, 1, duration)?);
        samples.overlapping.push(floor_large::one_at_a_time(crate::CPUS, size, 4, duration)?);
        let server = crate::start_server("large", &address, mode)?;
        runtime.block_on(measure_ours(&server, mode, size, duration, &mut samples))?;
        drop(server);
        let server = crate::start_server("tarpc", &socket.to_string_lossy(), "")?;
        runtime.block_on(async {
            let client = tarpc_peer::connect(server.address()).await?;
            let (up, down) = tarpc_peer::large_rates(&client, 1, size, duration).await?;
            samples.tarpc.up.push(up);
            samples.tarpc.down.push(down);
            let (up, down) = tarpc_peer::large_rates(&client, 4, size, duration).await?;
            samples.tarpc_4.up.push(up);
            samples.tarpc_4.down.push(down);
            anyhow::Ok(())
        })?;
    }
    print((scheme, mode), size, &samples);
    Ok(())
}

async fn measure_ours(
    server: &ServerProcess,
    mode: &str,
    size: usize,
    duration: Duration,
    samples: &mut Samples,
) -> Result<()> {
    let builder = Channel::builder().poll_mode(crate::mode(mode)).link(link());
    let channel = builder.connect(server.address()).await?;
    let client = LargeClient::new(channel.clone());
    let len = u32::try_from(size)?;

    let (bulk, sink) = (registered(&channel.bulk_pool(), size), client.clone());
    let bulk_up = move || {
        let (sink, bulk) = (sink.clone(), bulk.clone());
        async move { Ok(sink.sink(bulk).await?) }
    };
    samples.bulk.up.push(rate(1, size, duration, bulk_up.clone()).await?);
    samples.bulk_4.up.push(rate(4, size, duration, bulk_up.clone()).await?);
    let source = client.clone();
    let down = move || {
        let source = source.clone();
        async move { Ok(source.source(len).await?.as_ref().map_or(0, look_at)) }
    };
    samples.bulk.down.push(rate(1, size, duration, down.clone()).await?);
    samples.bulk_4.down.push(rate(4, size, duration, down).await?);

    for (in_flight, samples) in [(1, &mut samples.bytes), (4, &mut samples.bytes_4)] {
        let (up, down) = bytes_rates(&client, in_flight, size, duration).await?;
        samples.up.push(up);
        samples.down.push(down);
    }

    let (vec, sink) = (std::sync::Arc::new(vec![7; size]), client.clone());
    let vec_up = move || {
        let (sink, vec) = (sink.clone(), std::sync::Arc::clone(&vec));
        async move { Ok(sink.sink_vec(vec.to_vec()).await?) }
    };
    let faults = Faults::of(server)?;
    let up = rate(4, size, duration, vec_up).await?;
    samples.vec.up.push(up);
    samples.faults_up.push(faults.per_call(up, size, duration)?);
    let source = client.clone();
    let vec_down = move || {
        let source = source.clone();
        async move { Ok(look(&source.source_vec(len).await?)) }
    };
    let faults = Faults::of(server)?;
    let down = rate(4, size, duration, vec_down).await?;
    samples.vec.down.push(down);
    samples.faults_down.push(faults.per_call(down, size, duration)?);

    let echo = EchoClient::new(channel);
    let alone = latency_of(&echo, duration).await?;
    samples.alone.push(quantile(&alone, 0.5));
    let load = tokio::spawn(rate(4, size, duration + Duration::from_millis(100), bulk_up));
    let beside = latency_of(&echo, duration).await?;
    samples.beside.push(quantile(&beside, 0.5));
    samples.beside_p99.push(quantile(&beside, 0.99));
    samples.beside_load.push(load.await??);
    Ok(())
}

/// Bytes per second of `Bytes` up and down, `in_flight` at once.
async fn bytes_rates(
    client: &LargeClient,
    in_flight: usize,
    size: usize,
    duration: Duration,
) -> Result<(f64, f64)> {
    let (bytes, sink) = (Bytes::from(vec![7; size]), client.clone());
    let up = move || {
        let (sink, bytes) = (sink.clone(), bytes.clone());
        async move { Ok(sink.sink_bytes(bytes).await?) }
    };
    let up = rate(in_flight, size, duration, up).await?;
    let (source, len) = (client.clone(), u32::try_from(size)?);
    let down = move || {
        let source = source.clone();
        async move { Ok(look(&source.source_bytes(len).await?)) }
    };
    Ok((up, rate(in_flight, size, duration, down).await?))
}

/// The rate of `Bytes` over shared memory, four at once in the default mode, relative to two raw
/// copies: up or down, whichever is less.
pub(crate) fn four_of_two_copies(
    runtime: &Runtime,
    size: usize,
    duration: Duration,
) -> Result<f64> {
    let raw = floor_large::two_copies(crate::CPUS, size, duration)?;
    let address = format!("shm://bench-large-{}", std::process::id());
    let server = crate::start_server("large", &address, "adaptive")?;
    cores::pin(crate::CPUS.client);
    let (up, down) = runtime.block_on(async {
        let channel = Channel::builder().link(link()).connect(server.address()).await?;
        let client = LargeClient::new(channel);
        bytes_rates(&client, 4, size, duration).await
    })?;
    Ok(up.min(down) / raw)
}

/// Bytes per second of registered payloads from here to the server, `in_flight` at once.
///
/// # Errors
/// When a call fails.
#[cfg(feature = "verbs")]
pub(crate) async fn up_rate(
    address: &str,
    mode: PollMode,
    size: usize,
    in_flight: usize,
    duration: Duration,
) -> Result<f64> {
    let builder = Channel::builder().poll_mode(mode).link(link());
    let channel = builder.connect(address).await?;
    let bulk = registered(&channel.bulk_pool(), size);
    let client = LargeClient::new(channel);
    let up = move || {
        let (client, bulk) = (client.clone(), bulk.clone());
        async move { Ok(client.sink(bulk).await?) }
    };
    rate(in_flight, size, duration, up).await
}

/// Page faults of both ends.
struct Faults {
    server: String,
    before: u64,
}

impl Faults {
    fn of(server: &ServerProcess) -> Result<Self> {
        let mut faults = Self { server: server.id().to_string(), before: 0 };
        faults.before = faults.now()?;
        Ok(faults)
    }

    fn now(&self) -> Result<u64> {
        Ok(page_faults()? + page_faults_of(&self.server)?)
    }

    /// The faults per call since this was made, for calls of `size` bytes at a rate in bytes per
    /// second.
    #[allow(clippy::cast_precision_loss, reason = "counts of a run are far below 2^52")]
    fn per_call(&self, rate: f64, size: usize, duration: Duration) -> Result<f64> {
        let calls = rate * duration.as_secs_f64() / size as f64;
        Ok((self.now()? - self.before) as f64 / calls)
    }
}

async fn latency_of(
    client: &EchoClient,
    duration: Duration,
) -> Result<hdrhistogram::Histogram<u64>> {
    let task = client.clone();
    tokio::spawn(async move { ours::latency(&task, 64, duration).await }).await?
}

fn print((scheme, mode): (&str, &str), size: usize, samples: &Samples) {
    row(format!("{size}-byte payloads over {scheme}, two processes, {mode}"), "median", "ratio");
    let raw = |name: &str, rates: &[f64]| {
        if !rates.is_empty() {
            row(format!("raw: {name}"), giga(rates), "");
        }
    };
    raw("a TCP stream", &samples.stream);
    raw("one copy into shared memory, 1 slot", &samples.one_copy);
    raw("copied in and out, 4 slots", &samples.two_copies);
    raw("the same, out to fresh memory", &samples.fresh_copies);
    raw("one at a time, copied in, then out", &samples.in_turn);
    raw("one at a time, in four parts that overlap", &samples.overlapping);
    let one_copy = ("one raw copy", &*samples.one_copy, 0.8);
    let two_copies = ("two raw copies", &*samples.two_copies, 0.5);
    let several = ("two raw copies", &*samples.two_copies, FOUR_BAR);
    let stream = ("the raw stream", &*samples.stream, 0.8);
    let rows = [
        ("registered Bulk", 1, &samples.bulk, one_copy),
        ("registered Bulk", 4, &samples.bulk_4, one_copy),
        ("Bytes", 1, &samples.bytes, two_copies),
        ("Bytes", 4, &samples.bytes_4, several),
        ("Vec", 4, &samples.vec, two_copies),
    ];
    for (name, in_flight, rates, mut floor) in rows {
        if scheme == "tcp" {
            floor = stream;
        }
        let (tarpc, bar) = match in_flight {
            1 => (&samples.tarpc, 15.0),
            _ => (&samples.tarpc_4, 6.0),
        };
        for (way, rates, tarpc) in
            [("up", &rates.up, &tarpc.up), ("down", &rates.down, &tarpc.down)]
        {
            row(format!("{name} {way}, {in_flight} in flight"), giga(rates), "");
            let (what, floor, least) = floor;
            row(format!("  against {what}"), "", at_least(ratio(rates, floor), least));
            // Its bars apply to shared memory.
            let tarpc_ratio = ratio(rates, tarpc);
            let verdict = match scheme {
                "tcp" => format!("{tarpc_ratio:.3}"),
                _ => at_least(tarpc_ratio, bar),
            };
            row(format!("  against tarpc unix, {in_flight} in flight"), giga(tarpc), verdict);
        }
    }
    let faults = |counts: &[f64]| format!("{:.1}", median(counts.to_vec()));
    row("Vec up: page faults of both ends per call", faults(&samples.faults_up), "");
    row("Vec down: page faults of both ends per call", faults(&samples.faults_down), "");
    print_beside(samples);
}

/// Small calls of the thread that also makes the large ones, on one connection.
fn print_beside(samples: &Samples) {
    let us = |nanos: &[f64]| format!("{:.2} us", median(nanos.to_vec()) / 1000.0);
    let slower = ratio(&samples.beside, &samples.alone);
    row("64-byte echo alone, p50", us(&samples.alone), "");
    row("64-byte echo beside 4 payloads, p50", us(&samples.beside), at_most(slower, 3.0));
    row("the payloads meanwhile", giga(&samples.beside_load), "");
    row("64-byte echo beside 4 payloads, p99", us(&samples.beside_p99), "");
}

fn giga(rates: &[f64]) -> String {
    format!("{:.2} GB/s", median(rates.to_vec()) / 1e9)
}
