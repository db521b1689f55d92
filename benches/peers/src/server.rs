//! Servers as processes: this program, started again.

use std::io::{Read, Write};

use anyhow::{Context, Result};
use rpc_perf::cores::{self, CpuPair};
use rpc_perf::server_process::ServerProcess;

use crate::row::Row;

/// The argument that makes this program a server.
pub(crate) const SERVE: &str = "serve";

/// Starts the server of a row on its CPU, and waits until it listens.
pub(crate) fn start(row: Row, place: &str, cpus: CpuPair) -> Result<ServerProcess> {
    let name = row.name();
    ServerProcess::start([SERVE, &name, place, &cpus.server.to_string()])
        .with_context(|| format!("the server of {name}"))
}

/// The process that `start` has started. Ends with its stdin, so with its parent.
pub(crate) fn serve(row: Row, place: &str, cpu: usize) -> Result<()> {
    cores::pin(cpu);
    std::thread::spawn(|| {
        let mut byte = [0];
        while matches!(std::io::stdin().read(&mut byte), Ok(1)) {}
        std::process::exit(0);
    });
    row.serve.with_context(|| format!("{} has no server", row.name()))?(row, place)
}

/// Reports the server's address to the parent process.
pub(crate) fn ready(address: impl std::fmt::Display) -> Result<()> {
    let mut stdout = std::io::stdout();
    writeln!(stdout, "READY {address}")?;
    Ok(stdout.flush()?)
}

/// The address for servers over RDMA: that of this machine's RDMA device.
pub(crate) fn rdma_device_address() -> Result<String> {
    std::env::var("PEERS_RDMA_ADDRESS")
        .context("rows over rdma: set PEERS_RDMA_ADDRESS to the IP address of an RDMA device here")
}
