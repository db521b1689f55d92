//! tarpc, the peer that most Rust users would choose: bincode over a Unix socket or TCP.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::StreamExt;
use hdrhistogram::Histogram;
use tarpc::server::{BaseChannel, Channel};
use tarpc::tokio_serde::formats::Bincode;
use tarpc::{client, context, serde_transport};

use crate::report::Laps;

/// The service as a tarpc trait.
#[tarpc::service]
pub(crate) trait Echo {
    /// Returns the bytes.
    async fn echo(data: Vec<u8>) -> Vec<u8>;
    /// Samples a byte of each page.
    async fn sink(data: Vec<u8>) -> u64;
    /// Returns bytes.
    async fn source(len: u32) -> Vec<u8>;
}

#[derive(Clone)]
struct Plain;

impl Echo for Plain {
    async fn echo(self, _: context::Context, data: Vec<u8>) -> Vec<u8> {
        data
    }

    async fn sink(self, _: context::Context, data: Vec<u8>) -> u64 {
        rpc_perf::pages::look(&data)
    }

    async fn source(self, _: context::Context, len: u32) -> Vec<u8> {
        vec![7; len as usize]
    }
}

/// Serves until the process is killed; prints `READY <place>`. The place is a socket address or a
/// path.
pub(crate) async fn serve(place: &str) -> Result<()> {
    if let Ok(address) = place.parse::<SocketAddr>() {
        let mut incoming = serde_transport::tcp::listen(address, Bincode::default).await?;
        println!("READY {}", incoming.local_addr());
        while let Some(transport) = incoming.next().await {
            let transport = transport?;
            transport.get_ref().set_nodelay(true)?;
            let requests = BaseChannel::with_defaults(transport).execute(Plain.serve());
            tokio::spawn(requests.for_each(spawned));
        }
        return Ok(());
    }
    // A killed server leaves its socket file behind.
    let _ = std::fs::remove_file(place);
    let mut incoming = serde_transport::unix::listen(place, Bincode::default).await?;
    println!("READY {place}");
    while let Some(transport) = incoming.next().await {
        let requests = BaseChannel::with_defaults(transport?).execute(Plain.serve());
        tokio::spawn(requests.for_each(spawned));
    }
    Ok(())
}

/// Each request is a task, as in tarpc's documentation.
async fn spawned(handler: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(handler);
}

pub(crate) async fn connect(place: &str) -> Result<EchoClient> {
    let config = client::Config::default();
    if let Ok(address) = place.parse::<SocketAddr>() {
        let transport = serde_transport::tcp::connect(address, Bincode::default).await?;
        transport.get_ref().set_nodelay(true)?;
        return Ok(EchoClient::new(config, transport).spawn());
    }
    let transport = serde_transport::unix::connect(place, Bincode::default).await?;
    Ok(EchoClient::new(config, transport).spawn())
}

/// Round trips one after the other.
pub(crate) async fn latency(
    client: &EchoClient,
    size: usize,
    duration: Duration,
) -> Result<Histogram<u64>> {
    let data = vec![7; size];
    for _ in 0..500 {
        client.echo(context::current(), data.clone()).await?;
    }
    let mut laps = Laps::start();
    while laps.elapsed() < duration {
        let reply = client.echo(context::current(), data.clone()).await?;
        laps.lap();
        ensure!(reply.len() == size, "the echo is of another size");
    }
    laps.histogram()
}

/// Bytes per second up and down with `in_flight` tasks.
#[allow(clippy::cast_precision_loss, reason = "byte counts are far below 2^52")]
pub(crate) async fn large_rates(
    client: &EchoClient,
    in_flight: usize,
    size: usize,
    duration: Duration,
) -> Result<(f64, f64)> {
    let len = u32::try_from(size)?;
    let mut rates = [0.0; 2];
    for (direction, rate) in rates.iter_mut().enumerate() {
        let start = Instant::now();
        let mut tasks = futures::stream::FuturesUnordered::new();
        for _ in 0..in_flight {
            let client = client.clone();
            tasks.push(tokio::spawn(async move {
                let data = vec![7; size];
                let mut calls = 0_u64;
                while start.elapsed() < duration {
                    if direction == 0 {
                        client.sink(context::current(), data.clone()).await?;
                    } else {
                        rpc_perf::pages::look(&client.source(context::current(), len).await?);
                    }
                    calls += 1;
                }
                anyhow::Ok(calls)
            }));
        }
        let mut calls = 0;
        while let Some(done) = tasks.next().await {
            calls += done??;
        }
        *rate = (calls * size as u64) as f64 / start.elapsed().as_secs_f64();
    }
    Ok((rates[0], rates[1]))
}

/// Calls per second with `in_flight` tasks.
#[allow(clippy::cast_precision_loss, reason = "call counts are far below 2^52")]
pub(crate) async fn rate(
    client: &EchoClient,
    size: usize,
    in_flight: usize,
    duration: Duration,
) -> Result<f64> {
    let start = Instant::now();
    let mut tasks = futures::stream::FuturesUnordered::new();
    for _ in 0..in_flight {
        let client = client.clone();
        tasks.push(tokio::spawn(async move {
            let data = vec![7; size];
            let mut calls = 0_u64;
            while start.elapsed() < duration {
                client.echo(context::current(), data.clone()).await?;
                calls += 1;
            }
            anyhow::Ok(calls)
        }));
    }
    let mut calls = 0;
    while let Some(done) = tasks.next().await {
        calls += done??;
    }
    Ok(calls as f64 / start.elapsed().as_secs_f64())
}
