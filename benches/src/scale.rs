//! Thousands of connections to one server: how fast they are made, the CPU and memory cost of idle
//! ones, the rate of the few that work, and the rest when all have gone.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rpc_core::{Channel, PollMode};
use rpc_perf::server_process::ServerProcess;

use crate::idle::{cpu_seconds, resident_kib};
use crate::ours::{self, EchoClient};
use crate::report::{at_least, at_most, row};

/// Connections that one client process holds: a channel takes up to five descriptors.
const OF_ONE: usize = 2_000;
/// One of this many connections works.
const ONE_WORKS_OF: usize = 100;
/// How long the idle ones are watched.
const WATCHED: Duration = Duration::from_secs(3);
/// Time until the timer of an idle connection has run: the interval of keep-alive, and some more.
const QUIET_AFTER: Duration = Duration::from_secs(20);
/// Longest time until memory and descriptors are returned.
const GIVEN_BACK: Duration = Duration::from_secs(20);
/// Memory that may stay, KiB.
const STAYS_KIB: f64 = 64.0 * 1024.0;

/// Holds `connections` connections to `address` until the process is killed; prints `READY` when
/// they are established.
pub(crate) async fn hold(address: &str, connections: usize) -> Result<()> {
    let start = Instant::now();
    let mut held = Vec::with_capacity(connections);
    for _ in 0..connections {
        let channel = Channel::connect(address).await?;
        EchoClient::new(channel.clone()).echo(&[7; 64]).await?;
        held.push(channel);
    }
    println!("READY {}", start.elapsed().as_micros());
    std::future::pending::<()>().await;
    drop(held);
    Ok(())
}

/// Where the server of a scheme listens.
pub(crate) fn address_of(scheme: &str) -> String {
    match scheme {
        "tcp" => "tcp://127.0.0.1:0".to_owned(),
        _ => format!("shm://bench-scale-{}", std::process::id()),
    }
}

#[allow(clippy::cast_precision_loss, reason = "connection counts are small")]
pub(crate) async fn run(address: &str, connections: usize, duration: Duration) -> Result<()> {
    ensure!(connections >= 2, "at least two connections: one works, and the others are idle");
    // A NIC locks the posted buffers.
    let most_kib = if address.starts_with("rdma:") { 110.0 } else { 24.0 };
    let server = crate::start_server("ours-multi", address, "adaptive")?;
    let before = Held::by(&server)?;
    println!("{connections} connections to {address}, 1 in {ONE_WORKS_OF} of them at work");

    let mut working = Vec::new();
    for _ in 0..(connections / ONE_WORKS_OF).max(1) {
        working.push(ours::connect(server.address(), PollMode::Adaptive).await?);
    }
    let alone = rate(&working, duration).await?;
    let at_work = Held::by(&server)?;

    let idle = connections - working.len();
    let mut holders = Vec::new();
    let mut left = idle;
    while left > 0 {
        let count = left.min(OF_ONE);
        let arguments = ["hold", server.address(), &count.to_string()].map(str::to_owned);
        holders.push((count, ServerProcess::start(arguments)?));
        left -= count;
    }
    let micros = holders.iter().map(|(_, holder)| Ok(holder.address().parse::<f64>()?));
    let seconds = micros.sum::<Result<f64>>()? / 1e6;
    row("set up, one client at a time", format!("{:.0} /s", idle as f64 / seconds), "");

    let with_idle = Held::by(&server)?;
    let kib = (with_idle.kib - at_work.kib) / idle as f64;
    row("a connection that was just made, server's side", format!("{kib:.1} KiB"), "");
    tokio::time::sleep(QUIET_AFTER).await;
    let kib = (Held::by(&server)?.kib - at_work.kib) / idle as f64;
    row("once it is idle", format!("{kib:.1} KiB"), at_most(kib, most_kib));
    let cpu = cpu_seconds(server.id())?;
    tokio::time::sleep(WATCHED).await;
    let share = (cpu_seconds(server.id())? - cpu) / WATCHED.as_secs_f64();
    row(
        "CPU of the server, all idle",
        format!("{:.2} % of a core", share * 100.0),
        at_most(share, 0.02),
    );
    let beside = rate(&working, duration).await?;
    row(
        "calls of those at work",
        format!("{:.0} k/s", beside / 1e3),
        at_least(beside / alone, 0.8),
    );

    drop(holders);
    drop(working);
    let since = Instant::now();
    let mut after = Held::by(&server)?;
    while !after.is_back_to(&before) && since.elapsed() < GIVEN_BACK {
        tokio::time::sleep(Duration::from_millis(250)).await;
        after = Held::by(&server)?;
    }
    let mib = (after.kib - before.kib) / 1024.0;
    row("memory that stays when all have gone", format!("{mib:.1} MiB"), at_most(mib, 64.0));
    let descriptors = format!("{} (before: {})", after.descriptors, before.descriptors);
    row("descriptors then", descriptors, "");
    Ok(())
}

/// Calls per second of all clients together, each with one in flight.
async fn rate(clients: &[EchoClient], duration: Duration) -> Result<f64> {
    let start = Instant::now();
    let tasks: Vec<_> = clients
        .iter()
        .map(|client| {
            let client = client.clone();
            tokio::spawn(async move {
                let mut calls = 0_u32;
                while start.elapsed() < duration {
                    ensure!(
                        client.echo(&[7; 64]).await?.len() == 64,
                        "the echo is of another size"
                    );
                    calls += 1;
                }
                Ok(f64::from(calls))
            })
        })
        .collect();
    let mut calls = 0.0;
    for task in tasks {
        calls += task.await??;
    }
    Ok(calls / start.elapsed().as_secs_f64())
}

/// Resources of a process.
struct Held {
    kib: f64,
    descriptors: usize,
}

impl Held {
    fn by(server: &ServerProcess) -> Result<Self> {
        let id = server.id();
        let descriptors = std::fs::read_dir(format!("/proc/{id}/fd"))?.count();
        Ok(Self { kib: resident_kib(id)?, descriptors })
    }

    /// Pools that stay account for a few descriptors.
    fn is_back_to(&self, before: &Self) -> bool {
        self.kib < before.kib + STAYS_KIB && self.descriptors < before.descriptors + 64
    }
}
