//! A server process of the end-to-end tests.
//!
//! Prints `READY address` for each address, then `STOPPED` when `serve` has returned; ends with its
//! stdin. Commands: `shutdown`, `open TAG`. SIGTERM and SIGINT have the effect of `shutdown` too.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use rpc_core::transport::Isolation;
use rpc_core::{PollMode, Server};
use tests::chain::{Chain, OrdersServer, PassageServer, ShopServer, StockServer};
use tests::changed;
use tests::depot;
use tests::flow::{FlowServer, FlowService};
use tests::journal::Journal;
use tests::ledger::{FileLedger, LedgerServer};
use tests::probe::ProbeServer;
use tests::process::{self, OPEN, READY, SHUTDOWN, STOPPED};
use tests::raw::RawService;
use tests::resources;
use tests::service::ProbeService;
use tests::versions::{OldLedger, old};

#[derive(Debug, Parser)]
struct Options {
    /// Where to listen; may be given several times.
    #[arg(long, required = true)]
    listen: Vec<String>,
    /// The server for nested calls.
    #[arg(long)]
    next: Option<String>,
    /// Also serves the depot, as this version of it.
    #[arg(long)]
    depot: Option<u8>,
    #[arg(long)]
    max_calls: Option<u32>,
    #[arg(long)]
    max_connections: Option<usize>,
    #[arg(long)]
    max_message: Option<u64>,
    #[arg(long)]
    receive_buffer: Option<u32>,
    #[arg(long)]
    data_credits: Option<u16>,
    #[arg(long)]
    queued_bytes: Option<u64>,
    #[arg(long)]
    memory_budget: Option<u64>,
    /// Most open files of this process; default: the system's limit.
    #[arg(long)]
    open_files: Option<u64>,
    /// Most address space of this process, bytes.
    #[arg(long)]
    address_space: Option<u64>,
    /// Largest file and shared memory of this process, bytes.
    #[arg(long)]
    file_size: Option<u64>,
    /// The file of the ledger; without it there is no ledger.
    #[arg(long)]
    ledger: Option<PathBuf>,
    /// A protection domain for each connection.
    #[arg(long)]
    isolated: bool,
    /// A protection domain for each address.
    #[arg(long)]
    tenants: bool,
    /// Arenas in no memory windows.
    #[arg(long)]
    no_windows: bool,
    #[arg(long)]
    keep_alive_ms: Option<u64>,
    /// Default: the value of `--keep-alive-ms`.
    #[arg(long, requires = "keep_alive_ms")]
    keep_alive_timeout_ms: Option<u64>,
    #[arg(long)]
    grace_ms: Option<u64>,
    #[arg(long)]
    drain_lead_ms: Option<u64>,
    #[arg(long, default_value_t = 1)]
    shards: usize,
    #[arg(long, default_value = "event")]
    poll_mode: String,
    /// Workers of the runtime; 0: one thread for everything.
    #[arg(long, default_value_t = 2)]
    workers: usize,
}

fn main() {
    let options = Options::parse();
    process::log_to_stderr();
    options.open_files.map_or_else(resources::raise_fd_limit, resources::limit_open_files);
    if let Some(bytes) = options.address_space {
        resources::limit_address_space(bytes);
    }
    if let Some(bytes) = options.file_size {
        resources::limit_file_size(bytes);
    }
    let runtime = match options.workers {
        0 => tokio::runtime::Builder::new_current_thread().enable_all().build(),
        workers => {
            tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build()
        }
    };
    runtime.expect("a runtime").block_on(serve(options));
}

async fn serve(options: Options) {
    let journal = Arc::new(Journal::default());
    let server = bind(&options, Arc::clone(&journal)).await;
    let shutdown = server.shutdown_handle();
    process::obey(move |command| match command.split_once(' ') {
        None if command == SHUTDOWN => shutdown.shutdown(),
        Some((OPEN, tag)) => journal.open(tag.parse().expect("a number")),
        _ => panic!("unknown command `{command}`"),
    });
    let terminated = rpc_core::signal::shutdown();
    for address in server.local_addresses() {
        process::say(READY, address);
    }
    match server.serve_until(terminated).await {
        Ok(()) => process::say(STOPPED, "ok"),
        Err(error) => process::say(STOPPED, error),
    }
}

async fn bind(options: &Options, journal: Arc<Journal>) -> Server {
    let mut link = tests::device::link();
    if let Some(bytes) = options.receive_buffer {
        link = link.receive_buffer_bytes(bytes);
    }
    if let Some(bytes) = options.max_message {
        link = link.max_message_bytes(bytes);
    }
    if let Some(bytes) = options.queued_bytes {
        link = link.queued_bytes(bytes);
    }
    if let Some(credits) = options.data_credits {
        link = link.data_credits(credits);
    }
    if options.isolated {
        link = link.isolation(Isolation::PerConnection);
    }
    if options.tenants {
        link = link.isolation(Isolation::PerTenant);
    }
    if options.no_windows {
        link = link.memory_windows(false);
    }
    if let Some(interval) = options.keep_alive_ms.map(Duration::from_millis) {
        let timeout = options.keep_alive_timeout_ms.map_or(interval, Duration::from_millis);
        link = link.keep_alive(Some(interval)).keep_alive_timeout(timeout);
    }
    let chain = Arc::new(Chain::new(options.next.clone()));
    let mut builder = tests::device::server()
        .add_service(StockServer::from_arc(Arc::clone(&chain)))
        .add_service(OrdersServer::from_arc(Arc::clone(&chain)))
        .add_service(PassageServer::from_arc(Arc::clone(&chain)))
        .add_service(ShopServer::from_arc(chain))
        .add_service(FlowServer::new(FlowService::new(Arc::clone(&journal))))
        .add_service(ProbeServer::new(ProbeService::new(journal, options.next.clone())))
        .add_service(old::LedgerServer::new(OldLedger))
        .add_service(changed::old::CatalogServer::new(changed::Service))
        .add_service(RawService)
        .link(tests::device::server_link(link))
        .poll_mode(poll_mode(&options.poll_mode))
        .shards(options.shards);
    if let Some(path) = &options.ledger {
        builder = builder.add_service(LedgerServer::new(FileLedger::open(path)));
    }
    if let Some(build) = options.depot {
        builder = depot::added_to(builder, build);
    }
    if let Some(count) = options.max_calls {
        builder = builder.max_calls_per_connection(count);
    }
    if let Some(count) = options.max_connections {
        builder = builder.max_connections(count);
    }
    if let Some(bytes) = options.memory_budget {
        builder = builder.memory_budget(bytes);
    }
    if let Some(grace) = options.grace_ms {
        builder = builder.grace(Duration::from_millis(grace));
    }
    if let Some(lead) = options.drain_lead_ms {
        builder = builder.drain_lead(Duration::from_millis(lead));
    }
    builder.bind_all(&options.listen).await.unwrap_or_else(|error| panic!("{error}"))
}

fn poll_mode(name: &str) -> PollMode {
    match name {
        "event" => PollMode::Event,
        "adaptive" => PollMode::Adaptive,
        "busy" => PollMode::Busy,
        other => panic!("no poll mode is called {other}"),
    }
}
