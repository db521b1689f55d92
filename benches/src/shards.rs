//! A server with one shard and one client against two of each: the value of a second core.
//!
//! On a machine with two cores both ends of a client share one. So the comparison is between one
//! core that does everything and two cores that do twice that; one end on each core is shown next
//! to it. Each rate is also given per second of CPU time, which does not depend on who waits for
//! whom.
//!
//! The runtime decides which worker polls the driver of a shard, and the choice changes. So the
//! value of a core is measured with a runtime of one thread for each shard, pinned, and clients
//! that choose their shard. Two shards of one runtime of two workers are shown next to it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use rpc_core::{PollMode, Server};
use rpc_perf::cores;
use rpc_perf::floor::{self, Cores};

use crate::idle::cpu_seconds;
use crate::ours;
use crate::report::{at_least, median, row};

/// Least rate of twice the cores, relative to half of them.
pub(crate) const BAR: f64 = 1.7;
/// Concurrent calls of a client.
const IN_FLIGHT: usize = 32;
/// Separates the addresses of the servers of `ours-cores`.
const BETWEEN: &str = " ";

/// The servers, and the CPU of each client.
#[derive(Clone, Copy)]
struct Shape {
    name: &'static str,
    who: &'static str,
    clients: &'static [usize],
}

const SHAPES: [Shape; 5] = [
    Shape { name: "one shard, one client, one core", who: "ours", clients: &[1] },
    Shape {
        name: "a shard and a client on each of two cores",
        who: "ours-cores",
        clients: &[0, 1],
    },
    Shape {
        name: "two shards of one runtime, the same clients",
        who: "ours-shards",
        clients: &[0, 1],
    },
    Shape { name: "one shard, one client, a core each", who: "ours", clients: &[0] },
    Shape { name: "one shard, two clients, two cores", who: "ours", clients: &[0, 1] },
];

/// A shape's results in a round: calls per second of the clock, and per second of CPU time.
#[derive(Clone, Copy)]
struct Sample {
    rate: f64,
    of_cpu: f64,
}

/// Two servers with a shard each, on two runtimes of a thread on a CPU of its own. The address is
/// both addresses, that of the first CPU first.
pub(crate) fn serve_cores(address: &str, mode: PollMode) -> Result<()> {
    let start = |cpu: usize| {
        let of_cpu = match address.strip_prefix("shm://") {
            Some(name) => format!("shm://{name}-{cpu}"),
            None => address.to_owned(),
        };
        let (bound, is_bound) = mpsc::channel();
        let thread = std::thread::spawn(move || -> Result<()> {
            cores::pin(cpu);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let server = ours::bind(&of_cpu, mode).await?;
                bound.send(server.local_address().to_string())?;
                Ok(server.serve().await?)
            })
        });
        (thread, is_bound)
    };
    let end = |thread: std::thread::JoinHandle<Result<()>>| {
        thread.join().map_err(|_| anyhow!("a server panicked"))?
    };
    let (mut addresses, mut threads) = (Vec::new(), Vec::new());
    for (thread, is_bound) in [0, 1].map(start) {
        let Ok(address) = is_bound.recv() else { return end(thread) };
        addresses.push(address);
        threads.push(thread);
    }
    println!("READY {}", addresses.join(BETWEEN));
    threads.into_iter().try_for_each(end)
}

/// A server with two shards, each of two threads on a CPU of its own.
pub(crate) fn serve(address: &str, mode: PollMode) -> Result<()> {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .on_thread_start(|| cores::pin(THREADS.fetch_add(1, Ordering::Relaxed) % 2))
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let builder = Server::builder().add_service(ours::echo_server()).shards(2);
        let server = builder.poll_mode(mode).bind(address).await?;
        println!("READY {}", server.local_address());
        Ok(server.serve().await?)
    })
}

pub(crate) fn run(scheme: &str, mode: &str, rounds: usize, duration: Duration) -> Result<()> {
    let mut samples: [Vec<(Sample, Cores)>; SHAPES.len()] = Default::default();
    for _ in 0..rounds {
        let before = floor::line_round_trip(crate::CPUS, duration / 8)?;
        let round: Vec<Sample> = SHAPES
            .iter()
            .map(|shape| sample(scheme, mode, *shape, duration))
            .collect::<Result<_>>()?;
        let after = floor::line_round_trip(crate::CPUS, duration / 8)?;
        let kind = Cores::of(before);
        if kind == Cores::of(after) {
            for (samples, sample) in samples.iter_mut().zip(round) {
                samples.push((sample, kind));
            }
        }
    }
    for kind in [Cores::Separate, Cores::Siblings] {
        let of = |at: usize| {
            let of_kind = samples[at].iter().filter(|(_, of)| *of == kind);
            of_kind.map(|(sample, _)| *sample).collect::<Vec<_>>()
        };
        let count = of(0).len();
        if count == 0 {
            continue;
        }
        row(
            format!("64-byte echo over {scheme}, {mode}, {kind} ({count} of {rounds} rounds)"),
            "calls/s",
            "of the first within a round; calls per second of CPU time",
        );
        for (at, shape) in SHAPES.iter().enumerate() {
            let of_first: Vec<f64> =
                of(at).iter().zip(of(0)).map(|(sample, first)| sample.rate / first.rate).collect();
            let ratio = median(of_first);
            let verdict = match (at, kind) {
                (1, Cores::Separate) => at_least(ratio, BAR),
                _ => format!("{ratio:.3}"),
            };
            let middle = |value: fn(&Sample) -> f64| median(of(at).iter().map(value).collect());
            row(
                shape.name,
                format!("{:.0} k/s", middle(|it| it.rate) / 1e3),
                format!("{verdict}; {:.0} k", middle(|it| it.of_cpu) / 1e3),
            );
        }
    }
    Ok(())
}

/// The rate of a shard and a client on each of two cores, relative to one of each on one core: over
/// shared memory, in the default mode.
pub(crate) fn of_one_core(duration: Duration) -> Result<f64> {
    let one = sample("shm", "adaptive", SHAPES[0], duration)?;
    Ok(sample("shm", "adaptive", SHAPES[1], duration)?.rate / one.rate)
}

#[allow(clippy::cast_precision_loss, reason = "there are two clients at most")]
fn sample(scheme: &str, mode: &str, shape: Shape, duration: Duration) -> Result<Sample> {
    let address = match scheme {
        "tcp" => "tcp://127.0.0.1:0".to_owned(),
        _ => format!("shm://bench-shards-{}", std::process::id()),
    };
    let server = crate::start_server(shape.who, &address, mode)?;
    let pids = [server.id(), std::process::id()];
    let used = || pids.iter().map(|pid| cpu_seconds(*pid)).sum::<Result<f64>>();
    let all_connected = std::sync::Barrier::new(shape.clients.len());
    let before = used()?;
    let client = |cpu: usize| -> Result<f64> {
        cores::pin(cpu);
        let connected = (|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            // The server of its CPU, if there is one for each.
            let addresses: Vec<_> = server.address().split(BETWEEN).collect();
            let address = addresses.get(cpu).unwrap_or(&addresses[0]);
            let client = ours::connect(address, crate::mode(mode));
            let client = runtime.block_on(client)?;
            anyhow::Ok((runtime, client))
        })();
        // Also if connecting has failed: the other one waits.
        all_connected.wait();
        let (runtime, client) = connected?;
        runtime.block_on(ours::rate(&client, 64, IN_FLIGHT, duration))
    };
    let client = &client;
    let rate = std::thread::scope(|scope| {
        let start = |cpu: &'static usize| scope.spawn(move || client(*cpu));
        let clients: Vec<_> = shape.clients.iter().map(start).collect();
        let end = |client: std::thread::ScopedJoinHandle<'_, _>| {
            client.join().map_err(|_| anyhow!("a client panicked"))?
        };
        clients.into_iter().map(end).sum::<Result<f64>>()
    })?;
    let of_cpu = rate * duration.as_secs_f64() / (used()? - before);
    Ok(Sample { rate, of_cpu })
}
