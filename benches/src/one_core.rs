//! Both ends on one core, where polling gains nothing; and a server whose core another thread
//! burns.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use rpc_perf::cores;
use tokio::runtime::Runtime;

use crate::report::{at_most, mean, ratio, row};
use crate::{ours, tarpc_peer};

/// Highest time of a call over shared memory, relative to tarpc's over a Unix socket, both in their
/// default mode.
pub(crate) const TARPC_BAR: f64 = 0.55;
/// Highest time relative to this framework's event mode.
pub(crate) const EVENT_BAR: f64 = 1.1;
/// Highest time of a call over TCP, relative to tarpc's.
const TCP_BAR: f64 = 0.7;
const SIZE: usize = 64;

/// Mean times of a lone call, ns, round by round.
#[derive(Default)]
struct Means {
    adaptive: Vec<f64>,
    event: Vec<f64>,
    tarpc: Vec<f64>,
    tcp: Vec<f64>,
    tarpc_tcp: Vec<f64>,
    /// With a thread that burns the server's core, and the client on the other one.
    hog_adaptive: Vec<f64>,
    hog_event: Vec<f64>,
}

pub(crate) fn run(runtime: &Runtime, rounds: usize, duration: Duration) -> Result<()> {
    let mut means = Means::default();
    for _ in 0..rounds {
        // The servers' CPU.
        cores::pin(crate::CPUS.server);
        means.adaptive.push(shm(runtime, "adaptive", duration)?);
        means.tarpc.push(tarpc_unix(runtime, duration)?);
        means.event.push(shm(runtime, "event", duration)?);
        means.tcp.push(call(runtime, "tcp://127.0.0.1:0", "adaptive", duration)?);
        means.tarpc_tcp.push(tarpc(runtime, "127.0.0.1:0", duration)?);
        cores::pin(crate::CPUS.client);
        means.hog_adaptive.push(beside_hog(|| shm(runtime, "adaptive", duration))?);
        means.hog_event.push(beside_hog(|| shm(runtime, "event", duration))?);
    }
    let us = |values: &[f64]| format!("{:.2} us", crate::report::median(values.to_vec()) / 1e3);
    row(format!("lone 64-byte call, mean, medians of {rounds}"), "", "ratio within a round");
    row("one core: tarpc, Unix socket", us(&means.tarpc), "");
    row("one core: shm, event", us(&means.event), "");
    row(
        "one core: shm, adaptive, against tarpc",
        us(&means.adaptive),
        at_most(ratio(&means.adaptive, &means.tarpc), TARPC_BAR),
    );
    row(
        "one core: shm, adaptive, against event",
        "",
        at_most(ratio(&means.adaptive, &means.event), EVENT_BAR),
    );
    row("one core: tarpc, tcp", us(&means.tarpc_tcp), "");
    row(
        "one core: tcp, adaptive, against tarpc",
        us(&means.tcp),
        at_most(ratio(&means.tcp, &means.tarpc_tcp), TCP_BAR),
    );
    row("server's core burnt: shm, event", us(&means.hog_event), "");
    row(
        "server's core burnt: shm, adaptive, against event",
        us(&means.hog_adaptive),
        at_most(ratio(&means.hog_adaptive, &means.hog_event), EVENT_BAR),
    );
    Ok(())
}

/// The mean of a lone call over shared memory, ns. The server runs on its CPU, the client on any
/// CPU that this thread may use.
pub(crate) fn shm(runtime: &Runtime, mode: &str, duration: Duration) -> Result<f64> {
    call(runtime, &format!("shm://bench-one-core-{}", std::process::id()), mode, duration)
}

/// The mean of a lone call of tarpc over a Unix socket, ns.
pub(crate) fn tarpc_unix(runtime: &Runtime, duration: Duration) -> Result<f64> {
    let socket = std::env::temp_dir().join(format!("bench-one-core-{}", std::process::id()));
    let mean = tarpc(runtime, &socket.to_string_lossy(), duration);
    // Left by a server that was killed.
    let _ = std::fs::remove_file(&socket);
    mean
}

fn call(runtime: &Runtime, address: &str, mode: &str, duration: Duration) -> Result<f64> {
    let server = crate::start_server("ours", address, mode)?;
    runtime.block_on(async {
        let client = ours::connect(server.address(), crate::mode(mode)).await?;
        let measuring = tokio::spawn(async move { ours::latency(&client, SIZE, duration).await });
        Ok(mean(&measuring.await??))
    })
}

fn tarpc(runtime: &Runtime, address: &str, duration: Duration) -> Result<f64> {
    let server = crate::start_server("tarpc", address, "")?;
    runtime.block_on(async {
        let client = tarpc_peer::connect(server.address()).await?;
        let measuring =
            tokio::spawn(async move { tarpc_peer::latency(&client, SIZE, duration).await });
        Ok(mean(&measuring.await??))
    })
}

/// Runs `work` while a thread of this process takes as much of the server's CPU as it can.
pub(crate) fn beside_hog<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            cores::pin(crate::CPUS.server);
            while !over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let done = work();
        over.store(true, Ordering::Relaxed);
        done
    })
}
