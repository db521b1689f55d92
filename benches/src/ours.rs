//! This framework's side: an echo service through the generated client, over any scheme and poll
//! mode.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use futures::stream::{FuturesUnordered, StreamExt};
use hdrhistogram::Histogram;
use rpc_core::interceptor::{ClientInterceptor, Ended, Inbound, Outbound, ServerInterceptor};
use rpc_core::{Channel, Context, LinkConfig, PollMode, Server, Status};

use crate::report::Laps;

/// The measured service.
#[rpc_core::service]
pub(crate) trait Echo {
    /// Returns the bytes.
    async fn echo(&self, data: &[u8]) -> Vec<u8>;
}

struct Plain;

impl Echo for Plain {
    async fn echo(&self, data: &[u8]) -> Vec<u8> {
        data.to_vec()
    }
}

/// Serves echo at `address` until the process is killed; prints `READY <address>`.
pub(crate) async fn serve(address: &str, mode: PollMode) -> Result<()> {
    let server = bind(address, mode).await?;
    println!("READY {}", server.local_address());
    server.serve().await?;
    Ok(())
}

/// The service.
pub(crate) fn echo_server() -> impl rpc_core::service::Dispatch {
    EchoServer::new(Plain)
}

pub(crate) async fn bind(address: &str, mode: PollMode) -> Result<Server> {
    let builder = Server::builder().add_service(echo_server()).poll_mode(mode);
    Ok(builder.bind(address).await?)
}

pub(crate) async fn connect(address: &str, mode: PollMode) -> Result<EchoClient> {
    Ok(EchoClient::new(Channel::builder().poll_mode(mode).connect(address).await?))
}

/// Counts calls.
#[derive(Default)]
struct Calls {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl ServerInterceptor for Calls {
    fn before(&self, _: &mut Inbound<'_>) -> Result<(), Status> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn after(&self, _: &Context, _: &Ended<'_>) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }
}

impl ClientInterceptor for Calls {
    fn before(&self, _: &mut Outbound<'_>) -> Result<(), Status> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn after(&self, _: &Ended<'_>) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// Differences from the default configuration.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Ends {
    /// With an interceptor that counts the calls, at the `server` or the `client`.
    #[arg(long)]
    interceptor: Option<String>,
    /// `LinkConfig::shared_receive_queue` of the server.
    #[arg(long)]
    shared_receives: bool,
    /// `LinkConfig::send_queue_slots` of both.
    #[arg(long)]
    send_queue_slots: Option<u16>,
}

/// A server that is not awaited, and a client of it. Nobody spins.
pub(crate) async fn both_ends(address: &str, ends: &Ends) -> Result<EchoClient> {
    let mut link = LinkConfig::default();
    if let Some(slots) = ends.send_queue_slots {
        link = link.send_queue_slots(slots);
    }
    let mut channel = Channel::builder().link(link.clone());
    let mut server = Server::builder().link(link.shared_receive_queue(ends.shared_receives));
    match ends.interceptor.as_deref() {
        Some("server") => server = server.interceptor(Calls::default()),
        Some("client") => channel = channel.interceptor(Calls::default()),
        Some(other) => bail!("no end is called {other}: `server` or `client`"),
        None => {}
    }
    let server = server.add_service(echo_server()).poll_mode(PollMode::Event);
    tokio::spawn(server.bind(address).await?.serve());
    Ok(EchoClient::new(channel.poll_mode(PollMode::Event).connect(address).await?))
}

/// Round trips one after the other.
pub(crate) async fn latency(
    client: &EchoClient,
    size: usize,
    duration: Duration,
) -> Result<Histogram<u64>> {
    let data = vec![7; size];
    for _ in 0..2_000 {
        ensure!(client.echo(&data).await?.len() == size, "the echo is of another size");
    }
    let mut laps = Laps::start();
    while laps.elapsed() < duration {
        let reply = client.echo(&data).await?;
        laps.lap();
        ensure!(reply.len() == size, "the echo is of another size");
    }
    laps.histogram()
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
    let mut tasks = FuturesUnordered::new();
    for _ in 0..in_flight {
        let client = client.clone();
        tasks.push(tokio::spawn(async move {
            let data = vec![7; size];
            let mut calls = 0_u64;
            while start.elapsed() < duration {
                for _ in 0..32 {
                    client.echo(&data).await?;
                    calls += 1;
                }
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
