//! Idle connections: the memory cost of one, and the cost of a thousand for a busy neighbour.

use std::time::Duration;

use anyhow::{Context, Result};
use rpc_core::PollMode;

use crate::ours;
use crate::report::{at_most, median, quantile, row};
use rpc_perf::cores;

/// Proportional resident memory of a process, KiB: shared pages are counted once over all their
/// users.
pub(crate) fn resident_kib(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let line = text.lines().find(|line| line.starts_with("Pss:")).context("no Pss line")?;
    let kib = line.split_whitespace().nth(1).context("no Pss value")?;
    Ok(kib.parse()?)
}

/// CPU time that a process has used, seconds.
#[allow(clippy::cast_precision_loss, reason = "clock ticks of a run are few")]
pub(crate) fn cpu_seconds(pid: u32) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after_name = text.rsplit_once(')').context("stat")?.1;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let ticks = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

#[allow(clippy::cast_precision_loss, reason = "connection counts are small")]
pub(crate) fn run(runtime: &tokio::runtime::Runtime, connections: usize) -> Result<()> {
    cores::pin(0);
    let server = crate::start_server("ours", "shm://bench-idle", "adaptive")?;
    runtime.block_on(async {
        let busy = ours::connect(server.address(), PollMode::Adaptive).await?;
        let duration = Duration::from_millis(400);
        let mut alone = Vec::new();
        for _ in 0..5 {
            alone.push(quantile(&ours::latency(&busy, 64, duration).await?, 0.5));
        }
        let pids = [server.id(), std::process::id()];
        let total = || pids.iter().map(|pid| resident_kib(*pid)).sum::<Result<f64>>();
        let before = total()?;
        let mut idle = Vec::new();
        for _ in 0..connections {
            let client = ours::connect(server.address(), PollMode::Adaptive).await?;
            client.echo(&[7; 64]).await?;
            idle.push(client);
        }
        let per_connection = (total()? - before) / connections as f64;
        tokio::time::sleep(Duration::from_millis(200)).await;
        let cpu = pids.iter().map(|pid| cpu_seconds(*pid)).sum::<Result<f64>>()?;
        tokio::time::sleep(Duration::from_secs(3)).await;
        let used = pids.iter().map(|pid| cpu_seconds(*pid)).sum::<Result<f64>>()? - cpu;
        let mut beside = Vec::new();
        for _ in 0..5 {
            beside.push(quantile(&ours::latency(&busy, 64, duration).await?, 0.5));
        }
        let kib = format!("{per_connection:.1} KiB");
        row("idle connection, both ends", kib, at_most(per_connection, 96.0));
        let share = used / 3.0;
        row(format!("CPU of both processes, {connections} idle"), "", at_most(share, 0.01));
        let ratio = median(beside) / median(alone);
        row(format!("busy p50 beside {connections} idle, against alone"), "", at_most(ratio, 1.1));
        Ok(())
    })
}
