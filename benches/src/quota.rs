//! A server with a CPU quota, as a container has it: a thread that spins while it waits uses up the
//! quota of the calls that come later.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rpc_core::PollMode;
use rpc_perf::server_process::ServerProcess;
use tokio::runtime::Runtime;

use crate::ours;
use crate::report::{at_least, row};

/// Microseconds of CPU time in each period.
const QUOTA: u32 = 20_000;
const PERIOD: u32 = 100_000;
/// Calls per second that are asked for.
const CALLS_PER_SECOND: u32 = 20_000;
/// Least share of them that the server must answer.
const BAR: f64 = 0.95;
const SIZE: usize = 64;

/// A cgroup with a CPU quota; removed on drop.
struct Group {
    path: PathBuf,
    is_v2: bool,
}

impl Group {
    /// # Errors
    /// Why this process cannot have one.
    fn new() -> Result<Self> {
        let root = Path::new("/sys/fs/cgroup");
        let controllers = fs::read_to_string(root.join("cgroup.controllers"));
        let is_v2 = controllers.is_ok_and(|all| all.split_whitespace().any(|it| it == "cpu"));
        let parent = if is_v2 { root.to_owned() } else { root.join("cpu") };
        let path = parent.join(format!("bench-quota-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
        let group = Self { path, is_v2 };
        if is_v2 {
            group.write("cpu.max", &format!("{QUOTA} {PERIOD}"))?;
        } else {
            group.write("cpu.cfs_period_us", &PERIOD.to_string())?;
            group.write("cpu.cfs_quota_us", &QUOTA.to_string())?;
        }
        Ok(group)
    }

    fn write(&self, file: &str, value: &str) -> Result<()> {
        let path = self.path.join(file);
        fs::write(&path, value).with_context(|| format!("writing {}", path.display()))
    }

    /// For how long its processes were throttled.
    fn throttled(&self) -> Result<Duration> {
        let stat = fs::read_to_string(self.path.join("cpu.stat"))?;
        let name = if self.is_v2 { "throttled_usec " } else { "throttled_time " };
        let value = stat.lines().find_map(|line| line.strip_prefix(name)).context("cpu.stat")?;
        let value = value.trim().parse()?;
        Ok(if self.is_v2 { Duration::from_micros(value) } else { Duration::from_nanos(value) })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Fails while a process is in it, which has ended by now.
        let _ = fs::remove_dir(&self.path);
    }
}

pub(crate) fn run(runtime: &Runtime, duration: Duration) -> Result<()> {
    // Dropped last: the servers must have left it.
    let group = match Group::new() {
        Ok(group) => group,
        Err(why) => {
            row("a server with a CPU quota", "not run", format!("{why:#}"));
            return Ok(());
        }
    };
    let quota = format!("{} ms of {} ms", QUOTA / 1000, PERIOD / 1000);
    row(format!("quota of {quota}, {CALLS_PER_SECOND} calls/s"), "answered", "throttled");
    for (mode, bar) in [("adaptive", Some(BAR)), ("event", None), ("busy", None)] {
        for (name, batch) in [("one by one", 1), ("20 each millisecond", 20)] {
            let (share, throttled) = measure(runtime, &group, mode, batch, duration)?;
            let verdict = bar.map_or_else(|| format!("{share:.3}"), |bar| at_least(share, bar));
            row(format!("{mode}, {name}"), verdict, format!("{:.0} %", 100.0 * throttled));
        }
    }
    Ok(())
}

/// The share of the calls that was answered in time, and of the time in which the server was
/// throttled.
fn measure(
    runtime: &Runtime,
    group: &Group,
    mode: &str,
    batch: u32,
    duration: Duration,
) -> Result<(f64, f64)> {
    let address = format!("shm://bench-quota-{}", std::process::id());
    let server: ServerProcess = crate::start_server("ours-current", &address, mode)?;
    group.write("cgroup.procs", &server.id().to_string())?;
    let before = group.throttled()?;
    let calls = runtime.block_on(async {
        let client = ours::connect(server.address(), PollMode::Adaptive).await?;
        paced(&client, batch, duration).await
    })?;
    let throttled = group.throttled()?.saturating_sub(before);
    let asked = f64::from(CALLS_PER_SECOND) * duration.as_secs_f64();
    Ok((f64::from(calls) / asked, throttled.as_secs_f64() / duration.as_secs_f64()))
}

/// Makes calls at their times, `batch` at once, and as soon as possible where that is too late.
/// Returns how many.
async fn paced(client: &ours::EchoClient, batch: u32, duration: Duration) -> Result<u32> {
    let (start, mut calls) = (Instant::now(), 0);
    while start.elapsed() < duration {
        let due = Duration::from_secs(1) * calls / CALLS_PER_SECOND;
        // Sleeping is late by a millisecond, so this end waits actively, and lets its driver run.
        while start.elapsed() < due {
            tokio::task::yield_now().await;
        }
        let started: Vec<_> = (0..batch).map(|_| client.echo(&[7; SIZE]).start()).collect();
        for call in started {
            call.await?;
        }
        calls += batch;
    }
    Ok(calls)
}
