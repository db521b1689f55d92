//! Benchmarks: ratios against a floor and against peers, measured in one run.
//!
//!     cargo run --profile lto -p benches -- echo
//!
//! The server runs on core 1 in a process of its own, the client on core 0. Numbers of one run are
//! comparable, numbers of two runs are not: the machine drifts.

mod arrivals;
mod busy;
mod echo;
mod goals;
mod idle;
mod instructions;
mod items;
mod large;
mod large_cpu;
mod neighbours;
mod one_core;
mod ours;
#[cfg(feature = "verbs")]
mod perftest;
mod pipeline;
mod placements;
mod quota;
#[cfg(feature = "verbs")]
mod rdma;
mod report;
mod scale;
mod shards;
mod strangers;
mod tarpc_peer;

use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};
use rpc_core::PollMode;
use rpc_perf::cores::{self, CpuPair};
use rpc_perf::floor;
use rpc_perf::floor::tcp as floor_tcp;
use rpc_perf::server_process::ServerProcess;

use crate::report::{at_least, at_most, quantile, row};

#[derive(Parser)]
#[command(about = "Ratios against a floor and against peers, measured in one run")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// 64-byte echo: latency and rate over shared memory against the floor and tarpc.
    Echo {
        /// Rounds; medians are printed, of ratios those within a round.
        #[arg(long, default_value_t = 9)]
        rounds: usize,
        /// Milliseconds per measurement.
        #[arg(long, default_value_t = 400)]
        millis: u64,
    },
    /// 64-byte echo from spawned tasks, the main future, a `LocalSet` and another runtime, on both
    /// flavors of runtimes.
    Placements {
        /// `shm` or `tcp`.
        #[arg(long, default_value = "shm")]
        scheme: String,
        /// Poll mode of both ends.
        #[arg(long, default_value = "adaptive")]
        mode: String,
        /// The server's runtime: `current` or `multi`.
        #[arg(long, default_value = "current")]
        server: String,
        /// Only places whose names contain this, such as `multi, Main`, for profiling.
        #[arg(long, default_value = "")]
        only: String,
        /// Interleaved rounds; medians are printed.
        #[arg(long, default_value_t = 3)]
        rounds: usize,
        /// Milliseconds per measurement.
        #[arg(long, default_value_t = 300)]
        millis: u64,
    },
    /// One shard and one client against two of each.
    Shards {
        /// `shm` or `tcp`.
        #[arg(long, default_value = "shm")]
        scheme: String,
        /// Poll mode of all ends.
        #[arg(long, default_value = "adaptive")]
        mode: String,
        /// Interleaved rounds; medians are printed, of ratios those within a round.
        #[arg(long, default_value_t = 9)]
        rounds: usize,
        /// Milliseconds per measurement.
        #[arg(long, default_value_t = 400)]
        millis: u64,
    },
    /// A service that calls another one of its process within each call, against both hops alone.
    Pipeline {
        /// Poll mode of all ends.
        #[arg(long, default_value = "adaptive")]
        mode: String,
        /// The services' runtime: `current` or `multi`.
        #[arg(long, default_value = "current")]
        server: String,
        /// Rounds; medians are printed, of ratios those within a round.
        #[arg(long, default_value_t = 7)]
        rounds: usize,
        /// Milliseconds per measurement.
        #[arg(long, default_value_t = 300)]
        millis: u64,
    },
    /// 64-byte echo with both ends on one core, and with a server whose core somebody else burns.
    OneCore {
        /// Interleaved rounds; medians are printed, of ratios those within a round.
        #[arg(long, default_value_t = 9)]
        rounds: usize,
        /// Milliseconds per measurement.
        #[arg(long, default_value_t = 400)]
        millis: u64,
    },
    /// 64-byte echo of two ends that are pinned to no CPU, with and without a thread that only
    /// computes: the default mode against event and busy mode.
    Neighbours {
        /// Interleaved rounds; medians are printed, of ratios those within a round.
        #[arg(long, default_value_t = 9)]
        rounds: usize,
        /// Milliseconds per measurement.
        #[arg(long, default_value_t = 300)]
        millis: u64,
    },
    /// A server with a CPU quota of a fifth of a core, called 20,000 times a second.
    Quota {
        /// Milliseconds per measurement.
        #[arg(long, default_value_t = 3000)]
        millis: u64,
    },
    /// The goals that hold with room to spare, each until one round shows it; fails where none
    /// does.
    Goals {
        /// Milliseconds per measurement.
        #[arg(long, default_value_t = 200)]
        millis: u64,
    },
    /// 1 MiB payloads: rates against raw passes through shared memory and tarpc.
    Large {
        /// `shm` or `tcp`.
        #[arg(long, default_value = "shm")]
        scheme: String,
        /// Bytes of a payload.
        #[arg(long, default_value_t = 1 << 20)]
        size: usize,
        /// Interleaved rounds; medians are printed, of ratios those within a round.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Milliseconds per measurement.
        #[arg(long, default_value_t = 300)]
        millis: u64,
        /// Poll mode of both ends.
        #[arg(long, default_value = "busy")]
        mode: String,
    },
    /// CPU time of large payloads with both ends on one thread, against copies.
    LargeCpu {
        /// `shm`, `tcp`, or `mem` where bytes go through a ring.
        #[arg(long, default_value = "shm")]
        scheme: String,
        /// Bytes of a payload.
        #[arg(long, default_value_t = 1 << 20)]
        size: usize,
        /// Calls in each of five series; the best one counts.
        #[arg(long, default_value_t = 200)]
        calls: u32,
        /// Calls in flight.
        #[arg(long, default_value_t = 1)]
        in_flight: u32,
        /// Only kinds whose names contain this, for profiling.
        #[arg(long, default_value = "")]
        only: String,
    },
    /// CPU time of payloads that are written into the arena, against the same in frames, by size.
    Thresholds {
        /// `shm` or `tcp`.
        #[arg(long, default_value = "shm")]
        scheme: String,
        /// Calls in each of five series; the best one counts.
        #[arg(long, default_value_t = 2000)]
        calls: u32,
    },
    /// The cost of idle connections in memory and time.
    Idle {
        /// Number of idle connections next to the busy one.
        #[arg(long, default_value_t = 1000)]
        connections: usize,
    },
    /// Thousands of connections to one server, few of them at work: set-up, memory, the rate of the
    /// few.
    Scale {
        #[arg(long, default_value = "tcp", value_parser = ["shm", "tcp"])]
        scheme: String,
        /// Where the server listens instead, `rdma://10.9.0.1:0` for one.
        #[arg(long, conflicts_with = "scheme")]
        address: Option<String>,
        /// Connections in all. The limit on open files of the server has to allow them.
        #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(2..))]
        connections: u32,
        /// Milliseconds per measurement.
        #[arg(long, default_value_t = 3000)]
        millis: u64,
    },
    /// Connections that come and go, 500 a second, next to 32 calls in flight.
    Arrivals {
        #[arg(long, default_value = "tcp", value_parser = ["shm", "tcp"])]
        scheme: String,
        /// Interleaved rounds; medians are printed, of ratios those within a round.
        #[arg(long, default_value_t = 3)]
        rounds: usize,
        /// Milliseconds per measurement.
        #[arg(long, default_value_t = 2000)]
        millis: u64,
    },
    /// Connects of a good client with TLS next to a flood of handshakes of strangers.
    Strangers {
        /// Milliseconds per measurement.
        #[arg(long, default_value_t = 5000)]
        millis: u64,
        /// Milliseconds after which a stranger that was refused tries again.
        #[arg(long, default_value_t = 500)]
        pause: u64,
    },
    /// 64-byte echo between two threads of one process over mem://, for profiling.
    Mem {
        /// Milliseconds per measurement.
        #[arg(long, default_value_t = 2000)]
        millis: u64,
    },
    /// 64-byte echo with both ends on one thread, which `instructions` counts. Nobody spins, so
    /// that nothing is counted but work.
    Count {
        /// Calls.
        #[arg(long, default_value_t = 20_000)]
        calls: u32,
        /// Calls in flight; 1 counts two wake-ups with each.
        #[arg(long, default_value_t = 32)]
        in_flight: u32,
        /// Each is made by a spawned task of its own, which awaits it at once, and not started by
        /// one task that awaits all of them.
        #[arg(long)]
        tasks: bool,
        /// Counts this many items of one stream instead of calls: `results` or `arguments`.
        #[arg(long)]
        items: Option<String>,
        /// In busy mode, one call after the other, of which this process is the `client` or the
        /// `server`.
        #[arg(long)]
        busy: Option<String>,
        #[command(flatten)]
        ends: ours::Ends,
    },
    /// Instructions of a 64-byte echo and of a 64-byte item by layer, both ends, against the
    /// baseline in `benches/instructions.txt`. Needs valgrind; run it with `--profile counted`.
    Instructions {
        /// Rewrites the whole baseline.
        #[arg(long)]
        write: bool,
        /// Counts a lone call in busy mode instead, which takes longer and two cores: polls in vain
        /// are not counted.
        #[arg(long)]
        busy: bool,
    },
    /// The files and functions of this project that a small call enters at the client; fails if
    /// they are too many. Needs valgrind and two cores; run it with `--profile counted`.
    Walk,
    /// 64-byte echo over rdma:// against perftest's ib_send_lat and ib_send_bw (see
    /// `tests/bench_in_lab`).
    #[cfg(feature = "verbs")]
    Rdma {
        /// Interleaved pairs; all and their medians are printed.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Messages of each perftest run.
        #[arg(long, default_value_t = 5000)]
        iterations: u32,
        /// Milliseconds for each of our measurements.
        #[arg(long, default_value_t = 1000)]
        millis: u64,
    },
    /// Large payloads over rdma:// against perftest's ib_write_bw (see `tests/bench_in_lab`).
    #[cfg(feature = "verbs")]
    RdmaLarge {
        /// Bytes of a payload.
        #[arg(long, default_value_t = 1 << 20)]
        size: usize,
        /// Interleaved pairs; all and their median are printed.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// WRITEs of each perftest run.
        #[arg(long, default_value_t = 300)]
        iterations: u32,
        /// Payloads of ours under way at once; perftest has up to 128.
        #[arg(long, default_value_t = 4)]
        in_flight: usize,
        /// Poll mode of both our ends. Soft-RoCE's own thread needs the core that a busy end takes.
        #[arg(long, default_value = "adaptive")]
        mode: String,
        /// Milliseconds for each of our measurements.
        #[arg(long, default_value_t = 2000)]
        millis: u64,
    },
    /// A number of calls over any scheme, for counting system calls (`strace -c`).
    Calls {
        /// The address of a server.
        address: String,
        /// Calls, one after the other.
        #[arg(default_value_t = 1000)]
        calls: u32,
        /// Poll mode.
        #[arg(default_value = "busy")]
        mode: String,
    },
    /// Internal: a client process that holds connections.
    #[command(hide = true)]
    Hold {
        /// Where to.
        address: String,
        /// How many.
        connections: usize,
    },
    /// Internal: strangers.
    #[command(hide = true)]
    Flood {
        /// Where to.
        address: String,
        /// Where the certificates are.
        directory: String,
        /// Whose certificate they show.
        who: String,
        /// Milliseconds between two attempts of each.
        pause: u64,
    },
    /// Internal: clients that come and go.
    #[command(hide = true)]
    Arrive {
        /// Where to.
        address: String,
    },
    /// Internal: the client of a busy server that is counted.
    #[command(hide = true)]
    CallLate {
        /// Where to.
        address: String,
        /// Calls, one after the other.
        calls: u32,
    },
    /// Internal: a server process.
    #[command(hide = true)]
    Serve {
        /// `ours`, `ours-current`, `ours-multi`, `ours-mlx5`, `ours-cores`, `ours-shards`,
        /// `pipeline-current`, `pipeline-multi`, `large`, `late`, `strangers`, `stream` or `tarpc`.
        who: String,
        /// Where.
        address: String,
        /// Poll mode of `ours`, or the directory of the certificates of `strangers`.
        #[arg(default_value = "adaptive")]
        mode: String,
    },
}

/// Clients run on the first CPU, servers on the second.
const CPUS: CpuPair = CpuPair { client: 0, server: 1 };

/// A server in a process of its own: `bench serve WHO ADDRESS MODE`.
fn start_server(who: &str, address: &str, mode: &str) -> Result<ServerProcess> {
    let arguments = ["serve", who, address, mode];
    ServerProcess::start(arguments.into_iter().filter(|argument| !argument.is_empty()))
}

fn mode(name: &str) -> PollMode {
    match name {
        "busy" => PollMode::Busy,
        "event" => PollMode::Event,
        _ => PollMode::Adaptive,
    }
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match cli.command {
        Command::Serve { who, address, mode: name } if who == "ours-shards" => {
            shards::serve(&address, mode(&name))
        }
        Command::Serve { who, address, mode: name } if who == "ours-cores" => {
            shards::serve_cores(&address, mode(&name))
        }
        Command::Serve { who, address, mode: name } if who == "pipeline-multi" => {
            let multi = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            multi.block_on(pipeline::serve(&address, mode(&name)))
        }
        Command::Serve { who, address, mode: directory } if who == "strangers" => {
            let multi = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            multi.block_on(strangers::serve(&address, &directory))
        }
        Command::Serve { who, address, mode: name } if who == "ours-multi" => {
            let multi = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            // The accepting future waits in the main future, as a user's does.
            multi.block_on(ours::serve(&address, mode(&name)))
        }
        Command::Serve { who, address, mode: name } => {
            if who != "ours-current" {
                cores::pin(1);
            }
            runtime.block_on(async {
                match &*who {
                    "tarpc" => tarpc_peer::serve(&address).await,
                    "stream" => floor_tcp::serve(),
                    "ours-mlx5" => arrivals::serve(&address, mode(&name)).await,
                    "pipeline-current" => pipeline::serve(&address, mode(&name)).await,
                    "late" => busy::serve(&address).await,
                    "large" => large::serve(&address, mode(&name)).await,
                    _ => ours::serve(&address, mode(&name)).await,
                }
            })
        }
        Command::Shards { scheme, mode, rounds, millis } => {
            shards::run(&scheme, &mode, rounds, Duration::from_millis(millis))
        }
        Command::Pipeline { mode, server, rounds, millis } => {
            pipeline::run(&mode, &server, rounds, Duration::from_millis(millis))
        }
        Command::OneCore { rounds, millis } => {
            one_core::run(&runtime, rounds, Duration::from_millis(millis))
        }
        Command::Neighbours { rounds, millis } => {
            neighbours::run(&runtime, rounds, Duration::from_millis(millis))
        }
        Command::Quota { millis } => quota::run(&runtime, Duration::from_millis(millis)),
        Command::Goals { millis } => goals::run(&runtime, Duration::from_millis(millis)),
        Command::Large { scheme, size, rounds, millis, mode } => {
            let duration = Duration::from_millis(millis);
            large::run(&runtime, (&scheme, &mode), size, rounds, duration)
        }
        Command::LargeCpu { scheme, size, calls, in_flight, only } => {
            runtime.block_on(large_cpu::cpu(&scheme, size, (calls, in_flight.max(1)), &only))
        }
        Command::Thresholds { scheme, calls } => {
            runtime.block_on(large_cpu::thresholds(&scheme, calls))
        }
        Command::Echo { rounds, millis } => {
            echo::run(&runtime, rounds, Duration::from_millis(millis))
        }
        Command::Placements { scheme, mode, server, only, rounds, millis } => {
            let duration = Duration::from_millis(millis);
            placements::run(&scheme, &mode, &server, &only, rounds, duration)
        }
        Command::Mem { millis } => mem(&runtime, Duration::from_millis(millis)),
        Command::Count { calls, busy: Some(end), .. } => runtime.block_on(busy::count(calls, &end)),
        Command::Count { calls, in_flight, tasks: true, ends, .. } => {
            runtime.block_on(count_tasks(calls, in_flight.max(1), &ends))
        }
        Command::Count { calls, in_flight, items: None, ends, .. } => {
            runtime.block_on(count(calls, in_flight.max(1), &ends))
        }
        Command::Count { calls, items: Some(items), .. } => {
            runtime.block_on(items::count(calls, &items))
        }
        Command::Instructions { write, busy } => instructions::run(write, busy),
        Command::Walk => instructions::walk::run(),
        #[cfg(feature = "verbs")]
        Command::Rdma { rounds, iterations, millis } => {
            rdma::run(&runtime, rounds, iterations, Duration::from_millis(millis))
        }
        #[cfg(feature = "verbs")]
        Command::RdmaLarge { size, rounds, iterations, in_flight, mode, millis } => {
            let duration = Duration::from_millis(millis);
            rdma::large(&runtime, size, rounds, iterations, in_flight, &mode, duration)
        }
        Command::Calls { address, calls, mode: name } => runtime.block_on(async {
            let client = ours::connect(&address, mode(&name)).await?;
            for _ in 0..calls {
                client.echo(&[7; 64]).await?;
            }
            Ok(())
        }),
        Command::Scale { scheme, address, connections, millis } => {
            let address = address.unwrap_or_else(|| scale::address_of(&scheme));
            let duration = Duration::from_millis(millis);
            runtime.block_on(scale::run(&address, connections as usize, duration))
        }
        Command::Hold { address, connections } => {
            runtime.block_on(scale::hold(&address, connections))
        }
        Command::Arrivals { scheme, rounds, millis } => {
            runtime.block_on(arrivals::run(&scheme, rounds, Duration::from_millis(millis)))
        }
        Command::CallLate { address, calls } => runtime.block_on(busy::call(&address, calls)),
        Command::Strangers { millis, pause } => {
            runtime.block_on(strangers::run(Duration::from_millis(millis), pause))
        }
        Command::Flood { address, directory, who, pause } => {
            let pause = Duration::from_millis(pause);
            runtime.block_on(strangers::flood(&address, &directory, &who, pause))
        }
        Command::Arrive { address } => runtime.block_on(arrivals::arrive(&address)),
        Command::Idle { connections } => idle::run(&runtime, connections),
    }
}

async fn count(calls: u32, in_flight: u32, ends: &ours::Ends) -> Result<()> {
    let client = ours::both_ends("mem://bench", ends).await?;
    for _ in 0..calls / in_flight {
        let batch: Vec<_> = (0..in_flight).map(|_| client.echo(&[7; 64]).start()).collect();
        for call in batch {
            call.await?;
        }
    }
    Ok(())
}

async fn count_tasks(calls: u32, in_flight: u32, ends: &ours::Ends) -> Result<()> {
    let client = ours::both_ends("mem://bench", ends).await?;
    let task = |client: ours::EchoClient| async move {
        for _ in 0..calls / in_flight {
            client.echo(&[7; 64]).await?;
        }
        anyhow::Ok(())
    };
    let tasks: Vec<_> = (0..in_flight).map(|_| tokio::spawn(task(client.clone()))).collect();
    for task in tasks {
        task.await??;
    }
    Ok(())
}

fn mem(runtime: &tokio::runtime::Runtime, duration: Duration) -> Result<()> {
    let (ready, is_ready) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        cores::pin(1);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let server = ours::bind("mem://bench", PollMode::Busy).await?;
            ready.send(())?;
            Ok::<(), anyhow::Error>(server.serve().await?)
        })
    });
    is_ready.recv()?;
    let floor = floor::message_round_trip(crate::CPUS, duration / 4)?;
    cores::pin(0);
    runtime.block_on(async {
        let client = ours::connect("mem://bench", PollMode::Busy).await?;
        let task = client.clone();
        let histogram =
            tokio::spawn(async move { ours::latency(&task, 64, duration).await }).await??;
        let p50 = quantile(&histogram, 0.5);
        row("mem busy p50, against the floor", format!("{p50:.0} ns"), at_most(p50 / floor, 2.5));
        let rate = ours::rate(&client, 64, 32, duration).await?;
        row("mem busy, 32 in flight, million calls/s", "", at_least(rate / 1e6, 1.5));
        Ok(())
    })
}
