//! The common part of the `serve` commands: their options, READY lines, and the end by a signal.
//!
//! Owns a server from its options until it has ended. Knows nothing of the service.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use rpc_core::health::HealthReporter;
use rpc_core::stats::StatsHandle;
use rpc_core::{Address, ListenError, ServerBuilder, signal};
use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::options::Poll;

/// How a server works.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// Tasks that serve connections, per kind of address: more use more cores; 0: one for each
    /// worker of the runtime
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = RangedU64ValueParser::<usize>::new().range(0..=256)
    )]
    pub shards: usize,

    /// How long to serve on after a signal to end, before clients are asked to go away, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub drain_lead: u32,

    /// How long calls in flight may take to end after that, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub grace: u32,

    /// How to wait for calls
    #[arg(long, value_enum, default_value_t)]
    pub poll: Poll,

    /// Where to show calls, times and connections over HTTP, for Prometheus, and whether to send
    /// calls (`/readyz`): 127.0.0.1:9100. To everybody who can reach it; on a loopback address to
    /// programs of this machine alone
    #[arg(long, value_name = "IP:PORT")]
    pub metrics: Option<SocketAddr>,
}

/// Why a server ended without a request.
#[derive(Debug)]
pub enum ServeError {
    /// It cannot listen, or can no longer.
    Listen(ListenError),
    /// The system refused something; a broken pipe means that nobody reads stdout.
    Io(io::Error),
    /// A second signal: calls in flight were cut.
    Interrupted,
}

impl From<io::Error> for ServeError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<ListenError> for ServeError {
    fn from(error: ListenError) -> Self {
        Self::Listen(error)
    }
}

/// Serves until Ctrl-C or SIGTERM; a second signal does not wait for calls in flight. Prints
/// `READY <address>` for each address once it accepts. `metrics` listens at
/// [`ServerArgs::metrics`], and returns its address: the programs provide it, since this crate does
/// not depend on HTTP.
///
/// # Errors
/// [`ServeError`].
///
/// # Panics
/// Outside a tokio runtime with I/O enabled.
pub async fn serve(
    builder: ServerBuilder,
    args: &ServerArgs,
    addresses: &[Address],
    metrics: impl AsyncFnOnce(SocketAddr, StatsHandle, HealthReporter) -> io::Result<SocketAddr>,
) -> Result<(), ServeError> {
    let mut signals = signal::shutdown();
    // A client may send more than a file may hold: that must be the client's error, and not end
    // this process.
    let _too_large = unix::signal(SignalKind::from_raw(Signal::XFSZ.as_raw()))?;
    let health = HealthReporter::new();
    let server = builder
        .health(&health)
        .reflection()
        .poll_mode(args.poll.into())
        .shards(args.shards)
        .drain_lead(Duration::from_secs(args.drain_lead.into()))
        .grace(Duration::from_secs(args.grace.into()))
        .bind_all(addresses.iter().map(ToString::to_string))
        .await?;
    if let Some(address) = args.metrics {
        let address = metrics(address, server.stats_handle(), health).await?;
        eprintln!("metrics: http://{address}/metrics, health: http://{address}/readyz");
    }
    let mut stdout = io::stdout();
    for address in server.local_addresses() {
        writeln!(stdout, "READY {address}")?;
    }
    stdout.flush()?;
    let handle = server.shutdown_handle();
    let serving = server.serve();
    tokio::pin!(serving);
    tokio::select! {
        outcome = &mut serving => return Ok(outcome?),
        () = &mut signals => handle.shutdown(),
    }
    eprintln!("stopping; again to stop at once");
    tokio::select! {
        outcome = serving => Ok(outcome?),
        () = &mut signals => Err(ServeError::Interrupted),
    }
}
