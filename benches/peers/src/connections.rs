//! What connections of this framework over TCP cost with TLS, beside plain ones: CPU time and
//! memory of each end, and the rate of calls beside new connections.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rpc_core::Channel;
use rpc_perf::cores::{self, CpuPair};

use crate::measure::small_rate;
use crate::peers::ours;
use crate::row::{Row, block_on};
use crate::rows;

/// Connections that are made for a number.
const COUNT: usize = 500;
/// New connections a second beside the calls.
const PER_SECOND: usize = 500;

/// What a connection costs.
struct Cost {
    /// CPU time of the client and of the server, us.
    cpu: [f64; 2],
    /// Memory of both ends while it is open, bytes.
    memory: f64,
}

pub(crate) fn run(duration: Duration, cpus: CpuPair) -> Result<()> {
    cores::try_pin(cpus.client)?;
    let row = |name| rows::named(name).with_context(|| format!("there is no row {name}"));
    let (plain, tls) = (row("rpc-over-rdma/tcp")?, row("rpc-over-rdma/tcp-tls")?);
    let (of_plain, of_tls) = (cost(plain, cpus)?, cost(tls, cpus)?);
    println!("{COUNT} connections over tcp://, each end in a process of its own");
    println!("{:<10}{:>16}{:>16}{:>20}", "", "client us", "server us", "bytes of both ends");
    for (name, Cost { cpu: [client, server], memory }) in [("plain", &of_plain), ("TLS", &of_tls)] {
        println!("{name:<10}{client:>16.0}{server:>16.0}{memory:>20.0}");
    }
    let [client, server] = [0, 1].map(|end| of_tls.cpu[end] - of_plain.cpu[end]);
    let memory = (of_tls.memory - of_plain.memory) / 2.0;
    println!(
        "TLS takes {client:.0} us of the client, {server:.0} us of the server, {memory:.0} B an end"
    );
    beside("plain", plain, duration, cpus)?;
    beside("TLS", tls, duration, cpus)
}

fn cost(row: Row, cpus: CpuPair) -> Result<Cost> {
    let (server, certificates) = ours::start(row, cpus)?;
    let pids = [std::process::id(), server.id()];
    block_on(async {
        let builder = ours::builder(row, &certificates)?;
        let connect = async |count| {
            let mut channels = Vec::new();
            for _ in 0..count {
                channels.push(builder.clone().connect(server.address()).await?);
            }
            anyhow::Ok(channels)
        };
        // What is there once for all, and what the allocator keeps.
        drop(connect(COUNT).await?);
        let first = connect(COUNT).await?;
        let (cpu, memory) = (cpu_us(pids)?, resident_bytes(pids)?);
        let second = connect(COUNT).await?;
        let (cpu_then, memory_then) = (cpu_us(pids)?, resident_bytes(pids)?);
        drop((first, second));
        Ok(Cost {
            cpu: [0, 1].map(|end| (cpu_then[end] - cpu[end]) / COUNT as f64),
            memory: (memory_then - memory) / COUNT as f64,
        })
    })
}

/// The rate of calls alone, and beside connections that come and go.
fn beside(name: &str, row: Row, duration: Duration, cpus: CpuPair) -> Result<()> {
    let (server, certificates) = ours::start(row, cpus)?;
    block_on(async {
        let builder = ours::builder(row, &certificates)?;
        let client = ours::with_bytes(builder.clone().connect(server.address()).await?);
        small_rate(&client, duration).await?;
        let alone = small_rate(&client, duration).await?;
        let address = server.address().to_owned();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let comers = tokio::task::spawn_local(async move {
            let mut ticks = tokio::time::interval(Duration::from_secs(1) / PER_SECOND as u32);
            let mut made = tokio::task::JoinSet::new();
            tokio::pin!(stopped);
            loop {
                tokio::select! {
                    _ = &mut stopped => break,
                    _ = ticks.tick() => {}
                }
                let (builder, address) = (builder.clone(), address.clone());
                made.spawn_local(
                    async move { builder.connect(&*address).await.map(drop::<Channel>) },
                );
            }
            let mut count = 0;
            while let Some(connected) = made.join_next().await {
                connected??;
                count += 1;
            }
            anyhow::Ok(count)
        });
        let among = small_rate(&client, duration).await?;
        let _ = stop.send(());
        let count: usize = comers.await??;
        let per_second = count as f64 / duration.as_secs_f64();
        ensure!(count > 0, "nobody connected");
        println!(
            "{name}: {:.0} thousand calls/s with 32 in flight, {:.0} beside {per_second:.0} new \
             connections/s of the same client: {:.2}",
            alone / 1e3,
            among / 1e3,
            among / alone,
        );
        Ok(())
    })
}

/// CPU time of processes, of all their threads.
fn cpu_us(pids: [u32; 2]) -> Result<[f64; 2]> {
    let of = |pid: u32| -> Result<f64> {
        let mut sum = 0;
        for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
            sum += text.split(' ').next().context("schedstat")?.parse::<u64>()?;
        }
        Ok(sum as f64 / 1e3)
    };
    Ok([of(pids[0])?, of(pids[1])?])
}

/// Memory of processes; shared pages are divided among their users.
fn resident_bytes(pids: [u32; 2]) -> Result<f64> {
    let mut sum = 0;
    for pid in pids {
        let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).context("Pss")?;
        sum += line.split_whitespace().next().context("Pss")?.parse::<u64>()? * 1024;
    }
    Ok(sum as f64)
}
