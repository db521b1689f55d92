//! Two services of one process on one runtime; the first calls the second within each call. The
//! time of the chain, against its two hops one by one.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use rpc_core::{Channel, PollMode, Server, Status};

use crate::ours::{self, EchoClient};
use crate::report::{Laps, at_most, mean, median, quantile, row};
use rpc_perf::cores;

/// Highest time of a chain, relative to its hops one after the other.
const BAR: f64 = 1.1;
const SIZE: usize = 64;
const IN_FLIGHT: usize = 32;

/// The first service.
#[rpc_core::service]
trait Front {
    /// Makes the second service echo it.
    async fn chain(&self, data: &[u8]) -> Result<Vec<u8>, Status>;

    /// Median and mean of a lone call of the second service from here, in ns, and calls per second.
    async fn inner(&self, millis: u64) -> Result<Vec<f64>, Status>;
}

struct Calls(EchoClient);

impl Front for Calls {
    async fn chain(&self, data: &[u8]) -> Result<Vec<u8>, Status> {
        self.0.echo(data).await
    }

    async fn inner(&self, millis: u64) -> Result<Vec<f64>, Status> {
        let hop = hop(&self.0, Duration::from_millis(millis)).await;
        let hop = hop.map_err(|error| Status::internal(format!("{error:#}")))?;
        Ok(vec![hop.p50, hop.mean, hop.rate])
    }
}

/// A lone call in ns, and calls per second.
#[derive(Clone, Copy)]
struct Hop {
    p50: f64,
    mean: f64,
    rate: f64,
}

async fn hop(client: &EchoClient, duration: Duration) -> Result<Hop> {
    let laps = ours::latency(client, SIZE, duration).await?;
    let rate = ours::rate(client, SIZE, IN_FLIGHT, duration).await?;
    Ok(Hop { p50: quantile(&laps, 0.5), mean: mean(&laps), rate })
}

/// Serves both until the process is killed; the second at `address` with `-second` after it.
pub(crate) async fn serve(address: &str, mode: PollMode) -> Result<()> {
    let second = ours::bind(&format!("{address}-second"), mode).await?;
    let place = second.local_address().to_string();
    tokio::spawn(second.serve());
    let front = FrontServer::new(Calls(ours::connect(&place, mode).await?));
    let server = Server::builder().add_service(front).poll_mode(mode).bind(address).await?;
    println!("READY {}", server.local_address());
    Ok(server.serve().await?)
}

/// Consecutive measurements.
struct Round {
    chain: Hop,
    /// A client's call of the second service.
    outer: Hop,
    /// The first service's calls of the second, on the same runtime.
    inner: Hop,
}

impl Round {
    fn of_sum(&self, value: fn(&Hop) -> f64) -> f64 {
        value(&self.chain) / (value(&self.outer) + value(&self.inner))
    }
}

pub(crate) fn run(mode: &str, server: &str, rounds: usize, duration: Duration) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Each on a thread of its own, so that the next server does not inherit this one's CPU.
    let round = |_| {
        let round = || round(&runtime, mode, server, duration);
        std::thread::scope(|scope| scope.spawn(round).join()).map_err(|_| anyhow!("a panic"))?
    };
    let all: Vec<Round> = (0..rounds).map(round).collect::<Result<_>>()?;
    let of = |value: &dyn Fn(&Round) -> f64| median(all.iter().map(value).collect());
    row(
        format!("shm, {mode}, services on a {server} runtime, medians of {rounds}"),
        "p50, mean, k/s",
        "of both hops after each other, within a round",
    );
    let hop = |hop: fn(&Round) -> Hop| {
        let [p50, mean] = [|hop: Hop| hop.p50, |hop: Hop| hop.mean].map(|it| of(&|r| it(hop(r))));
        let rate = of(&|round| hop(round).rate);
        format!("{:.2}, {:.2} us, {:.0}", p50 / 1e3, mean / 1e3, rate / 1e3)
    };
    row("a client calls the second", hop(|round| round.outer), "");
    row("the first calls the second, on its runtime", hop(|round| round.inner), "");
    row("a client calls the first, which calls the second", hop(|round| round.chain), "");
    let p50 = of(&|round| round.of_sum(|hop| hop.p50));
    row("    p50", "", at_most(p50, BAR));
    row("    mean", "", at_most(of(&|round| round.of_sum(|hop| hop.mean)), BAR));
    let time = of(&|round| round.of_sum(|hop| 1.0 / hop.rate));
    row(format!("    time of a call, {IN_FLIGHT} in flight"), "", at_most(time, BAR));
    Ok(())
}

fn round(
    runtime: &tokio::runtime::Runtime,
    mode: &str,
    server: &str,
    duration: Duration,
) -> Result<Round> {
    let address = format!("shm://bench-pipeline-{}", std::process::id());
    let server = crate::start_server(&format!("pipeline-{server}"), &address, mode)?;
    let mode = crate::mode(mode);
    cores::pin(0);
    runtime.block_on(async {
        let second = ours::connect(&format!("{address}-second"), mode).await?;
        let outer = tokio::spawn(async move { hop(&second, duration).await }).await??;
        let channel = Channel::builder().poll_mode(mode).connect(server.address()).await?;
        let front = FrontClient::new(channel);
        let inner = front.inner(u64::try_from(duration.as_millis())?).await?;
        let [p50, mean, rate] = inner[..] else { anyhow::bail!("three numbers are expected") };
        let chain = tokio::spawn(async move { chain(&front, duration).await }).await??;
        Ok(Round { chain, outer, inner: Hop { p50, mean, rate } })
    })
}

/// The loops of `ours::latency` and `ours::rate`, over the first service.
#[allow(clippy::cast_precision_loss, reason = "call counts are far below 2^52")]
async fn chain(client: &FrontClient, duration: Duration) -> Result<Hop> {
    let data = vec![7; SIZE];
    for _ in 0..2_000 {
        ensure!(client.chain(&data).await?.len() == SIZE, "the echo is of another size");
    }
    let mut laps = Laps::start();
    while laps.elapsed() < duration {
        let reply = client.chain(&data).await?;
        laps.lap();
        ensure!(reply.len() == SIZE, "the echo is of another size");
    }
    let laps = laps.histogram()?;
    let start = Instant::now();
    let tasks: Vec<_> = (0..IN_FLIGHT)
        .map(|_| {
            let (client, data) = (client.clone(), data.clone());
            tokio::spawn(async move {
                let mut calls = 0_u64;
                while start.elapsed() < duration {
                    for _ in 0..32 {
                        client.chain(&data).await?;
                        calls += 1;
                    }
                }
                anyhow::Ok(calls)
            })
        })
        .collect();
    let mut calls = 0;
    for task in tasks {
        calls += task.await??;
    }
    let rate = calls as f64 / start.elapsed().as_secs_f64();
    Ok(Hop { p50: quantile(&laps, 0.5), mean: mean(&laps), rate })
}
