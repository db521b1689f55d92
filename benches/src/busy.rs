//! One end of a lone call in busy mode, for `instructions`: the other end is a process of its own.

use std::hint::{black_box, spin_loop};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{env, io, process};

use anyhow::{Result, bail, ensure};
use rpc_core::{PollMode, Server};
use rpc_perf::cores;

use crate::CPUS;
use crate::ours::{self, Echo, EchoServer};

/// Calls from one [`lap`] to the next.
pub(crate) const CALLS_PER_LAP: u32 = 16;
/// Waits of the end that is not counted: each lap has another of these.
const WAITS: u32 = 4;
const LEAST_WAIT: Duration = Duration::from_micros(8);
const MORE_WAIT: Duration = Duration::from_micros(3);

/// Callgrind dumps its counts here.
#[inline(never)]
fn lap() {
    black_box(());
}

/// Waits before it does its part of this call.
fn wait(call: u32) {
    let (began, wait) = (Instant::now(), LEAST_WAIT + MORE_WAIT * (call / CALLS_PER_LAP % WAITS));
    while began.elapsed() < wait {
        spin_loop();
    }
}

/// The service of [`ours`], with a hook before each call.
struct Before<F>(AtomicU32, F);

impl<F: Fn(u32) + Send + Sync + 'static> Echo for Before<F> {
    async fn echo(&self, data: &[u8]) -> Vec<u8> {
        (self.1)(self.0.fetch_add(1, Ordering::Relaxed));
        data.to_vec()
    }
}

async fn bind(address: &str, before: impl Fn(u32) + Send + Sync + 'static) -> Result<Server> {
    let service = EchoServer::new(Before(AtomicU32::new(0), before));
    let server = Server::builder().add_service(service).poll_mode(PollMode::Busy);
    Ok(server.bind(address).await?)
}

/// The server that is not counted.
pub(crate) async fn serve(address: &str) -> Result<()> {
    let server = bind(address, wait).await?;
    println!("READY {}", server.local_address());
    // Also if valgrind ends the client without its destructors.
    let client_ends = tokio::task::spawn_blocking(|| io::copy(&mut io::stdin(), &mut io::sink()));
    tokio::select! {
        served = server.serve() => served?,
        ended = client_ends => { ended??; }
    }
    Ok(())
}

/// The client that is not counted.
pub(crate) async fn call(address: &str, calls: u32) -> Result<()> {
    cores::pin(CPUS.client);
    let client = ours::connect(address, PollMode::Busy).await?;
    for call in 0..calls {
        wait(call);
        client.echo(&[7; 64]).await?;
    }
    Ok(())
}

/// Makes `calls` calls; this process is their `client` or their `server`.
pub(crate) async fn count(calls: u32, end: &str) -> Result<()> {
    let address = format!("shm://bench-busy-{}", process::id());
    match end {
        "client" => client(calls, &address).await,
        "server" => server(calls, &address).await,
        other => bail!("no end is called {other}: `client` or `server`"),
    }
}

async fn client(calls: u32, address: &str) -> Result<()> {
    cores::pin(CPUS.client);
    let _server = crate::start_server("late", address, "")?;
    let client = ours::connect(address, PollMode::Busy).await?;
    for call in 0..calls {
        if call.is_multiple_of(CALLS_PER_LAP) {
            lap();
        }
        client.echo(&[7; 64]).await?;
    }
    Ok(())
}

async fn server(calls: u32, address: &str) -> Result<()> {
    cores::pin(CPUS.server);
    let in_laps = |call: u32| {
        if call.is_multiple_of(CALLS_PER_LAP) {
            lap();
        }
    };
    let server = bind(address, in_laps).await?;
    let mut client = Command::new(env::current_exe()?);
    client.args(["call-late", address, &calls.to_string()]);
    let client = tokio::task::spawn_blocking(move || client.status());
    let status = tokio::select! {
        served = server.serve() => { served?; bail!("the server has ended") }
        status = client => status??,
    };
    ensure!(status.success(), "the client has failed");
    Ok(())
}
