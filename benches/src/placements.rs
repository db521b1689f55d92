//! 64-byte echo by the place that calls are made from: the speed for a user who awaits in the main
//! future, in a `LocalSet`, in a spawned task, or on another runtime than the channel's.
//!
//! A benchmark that only calls from where the code is fastest hides what others get. Nothing is
//! pinned, as in a user's program. Each row is measured once in every round, and rounds are
//! interleaved.
//!
//! Concurrently with the calls a task of the same runtime waits for its own socket: its additional
//! wait, compared to a run without calls, is the cost of a spinning driver and of polling callers
//! for their neighbours.

use std::future::Future;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::future::join_all;
use rpc_perf::server_process::ServerProcess;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::LocalSet;

use crate::ours::{self, EchoClient};
use crate::report::{at_least, at_most, mean, median, quantile, row};

/// Bytes that each call carries in each direction.
const SIZE: usize = 64;
/// Concurrent calls for the measurement of calls per second.
const IN_FLIGHT: [usize; 2] = [32, 256];
/// Least rate of a placement at 32 in flight, relative to the best one on the same flavor of
/// runtime.
pub(crate) const RATE_BAR: f64 = 0.6;
/// Highest mean of a lone call, relative to its median.
const MEAN_BAR: f64 = 1.3;

/// A flavor of tokio's runtimes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flavor {
    Multi,
    Current,
}

impl Flavor {
    fn name(self) -> &'static str {
        match self {
            Self::Multi => "multi",
            Self::Current => "current",
        }
    }

    fn runtime(self) -> Result<Runtime> {
        let mut builder = match self {
            Self::Multi => Builder::new_multi_thread(),
            Self::Current => Builder::new_current_thread(),
        };
        Ok(builder.worker_threads(2).enable_all().build()?)
    }
}

/// Where calls are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Spawned,
    Main,
    LocalSet,
    /// The channel lives on another runtime, of the same flavor.
    Elsewhere,
}

const PLACES: [(Place, Flavor); 7] = [
    (Place::Spawned, Flavor::Multi),
    (Place::Main, Flavor::Multi),
    (Place::Elsewhere, Flavor::Multi),
    (Place::Spawned, Flavor::Current),
    (Place::Main, Flavor::Current),
    (Place::LocalSet, Flavor::Current),
    (Place::Elsewhere, Flavor::Current),
];

/// One placement's results in one round.
#[derive(Clone, Copy)]
struct Sample {
    p50: f64,
    mean: f64,
    p999: f64,
    rates: [f64; 2],
    /// A round trip of a socket on the same runtime, without calls and with 32 calls in flight.
    socket: [Socket; 2],
}

/// Round trips of one byte over a Unix socket, in ns: a task and a plain thread.
#[derive(Clone, Copy)]
struct Socket {
    p50: f64,
    p99: f64,
}

pub(crate) fn run(
    scheme: &str,
    mode: &str,
    server: &str,
    only: &str,
    rounds: usize,
    duration: Duration,
) -> Result<()> {
    let places: Vec<_> = PLACES
        .into_iter()
        .filter(|(place, flavor)| format!("{}, {place:?}", flavor.name()).contains(only))
        .collect();
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); places.len()];
    for _ in 0..rounds {
        for (samples, &(place, flavor)) in samples.iter_mut().zip(&places) {
            samples.push(sample(scheme, mode, server, place, flavor, duration)?);
        }
    }
    let of = |at: usize, value: fn(&Sample) -> f64| median(samples[at].iter().map(value).collect());
    println!(
        "64-byte echo over {scheme}, {mode}, server on a {server} runtime, medians of {rounds}"
    );
    for flavor in [Flavor::Multi, Flavor::Current] {
        let places = || places.iter().enumerate().filter(|(_, place)| place.1 == flavor);
        let best = places().map(|(at, _)| of(at, |it| it.rates[0])).fold(0.0, f64::max);
        for (at, (place, _)) in places() {
            let rate = of(at, |it| it.rates[0]);
            row(
                format!("{}, {place:?}: 32 in flight, of the best", flavor.name()),
                format!("{:.0} k/s", rate / 1e3),
                at_least(rate / best, RATE_BAR),
            );
            row("    256 in flight", format!("{:.0} k/s", of(at, |it| it.rates[1]) / 1e3), "");
            let tail = of(at, |it| it.p999 / it.p50);
            row(
                "    lone call, mean of p50",
                format!("{:.2} us", of(at, |it| it.p50) / 1e3),
                format!(
                    "{}, p99.9 {tail:.1} of p50",
                    at_most(of(at, |it| it.mean / it.p50), MEAN_BAR)
                ),
            );
            let us = |value: fn(&Sample) -> f64| of(at, value) / 1e3;
            row(
                "    a socket beside 32 in flight, p50 and p99 (without calls)",
                format!("{:.0} us, {:.0} us", us(|it| it.socket[1].p50), us(|it| it.socket[1].p99)),
                format!(
                    "({:.0} us, {:.0} us)",
                    us(|it| it.socket[0].p50),
                    us(|it| it.socket[0].p99)
                ),
            );
        }
    }
    Ok(())
}

/// The rate of the slowest place of the default mode over a scheme, relative to the best one on the
/// same flavor of runtime, with 32 calls in flight: the smaller ratio of the two flavors.
pub(crate) fn slowest_of_best(scheme: &str, duration: Duration) -> Result<f64> {
    let mut rates = PLACES.map(|(_, flavor)| (flavor, 0.0_f64));
    // Seven measurements, each of which other load can spoil: the best of three turns counts.
    for _ in 0..3 {
        for ((place, flavor), (_, rate)) in PLACES.into_iter().zip(&mut rates) {
            let ends = Ends::start((scheme, "adaptive"), "current", place, flavor)?;
            *rate = rate.max(ends.rate(place, IN_FLIGHT[0], duration / 2)?);
        }
    }
    let of_flavor = |flavor: Flavor| {
        let rates = rates.iter().filter(|(of, _)| *of == flavor).map(|(_, rate)| *rate);
        rates.clone().fold(f64::INFINITY, f64::min) / rates.fold(0.0, f64::max)
    };
    Ok(of_flavor(Flavor::Multi).min(of_flavor(Flavor::Current)))
}

/// A server, and a client whose channel lives where its place demands.
struct Ends {
    runtime: Runtime,
    client: EchoClient,
    /// Ends the runtime of the channel, where it is another one.
    other: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
    _server: ServerProcess,
}

impl Ends {
    fn start(
        (scheme, mode): (&str, &str),
        server: &str,
        place: Place,
        flavor: Flavor,
    ) -> Result<Self> {
        let address = match scheme {
            "tcp" => "tcp://127.0.0.1:0".to_owned(),
            _ => format!("shm://bench-placements-{}", std::process::id()),
        };
        let server = crate::start_server(&format!("ours-{server}"), &address, mode)?;
        let other = if place == Place::Elsewhere { Some(flavor.runtime()?) } else { None };
        let runtime = flavor.runtime()?;
        let connect = ours::connect(server.address(), crate::mode(mode));
        let client = other.as_ref().unwrap_or(&runtime).block_on(connect)?;
        // A current-thread runtime runs its tasks only while a thread blocks on it.
        let other = other.map(|other| {
            let (stop, stopped) = oneshot::channel();
            let run = move || {
                let _ = other.block_on(stopped);
            };
            (stop, std::thread::spawn(run))
        });
        Ok(Self { runtime, client, other, _server: server })
    }

    /// Calls per second.
    fn rate(&self, place: Place, in_flight: usize, duration: Duration) -> Result<f64> {
        let (runtime, client) = (&self.runtime, self.client.clone());
        // Equal loops either way: tasks where tasks are measured, futures of one task otherwise.
        match place {
            Place::Spawned | Place::Elsewhere => {
                runtime.block_on(ours::rate(&client, SIZE, in_flight, duration))
            }
            Place::Main => runtime.block_on(joined(&client, in_flight, duration)),
            Place::LocalSet => {
                let local = LocalSet::new();
                let joined = async move { joined(&client, in_flight, duration).await };
                local.block_on(runtime, async move { tokio::task::spawn_local(joined).await? })
            }
        }
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.other.take() {
            drop(stop);
            let _ = thread.join();
        }
    }
}

fn sample(
    scheme: &str,
    mode: &str,
    server: &str,
    place: Place,
    flavor: Flavor,
    duration: Duration,
) -> Result<Sample> {
    let ends = Ends::start((scheme, mode), server, place, flavor)?;
    let Ends { runtime, client, .. } = &ends;
    let histogram = {
        let client = client.clone();
        at(runtime, place, async move { latency(&client, duration).await })?
    };
    let mut rates = [0.0; 2];
    for (rate, in_flight) in rates.iter_mut().zip(IN_FLIGHT) {
        *rate = ends.rate(place, in_flight, duration)?;
    }
    let alone = runtime.block_on(async { tokio::spawn(socket(duration)).await? })?;
    let beside = runtime.block_on(async {
        let socket = tokio::spawn(socket(duration));
        match place {
            Place::Spawned | Place::Elsewhere => {
                ours::rate(client, SIZE, IN_FLIGHT[0], duration).await?;
            }
            Place::Main => {
                joined(client, IN_FLIGHT[0], duration).await?;
            }
            Place::LocalSet => {
                let joined = async { joined(client, IN_FLIGHT[0], duration).await };
                LocalSet::new().run_until(joined).await?;
            }
        }
        socket.await?
    })?;
    Ok(Sample {
        p50: quantile(&histogram, 0.5),
        mean: mean(&histogram),
        p999: quantile(&histogram, 0.999),
        rates,
        socket: [alone, beside],
    })
}

/// Round trips between a task and a thread that answers, one byte each way.
async fn socket(duration: Duration) -> Result<Socket> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let answers = std::thread::spawn(move || {
        let mut theirs = theirs;
        let mut byte = [0];
        while theirs.read_exact(&mut byte).is_ok() && theirs.write_all(&byte).is_ok() {}
    });
    let mut histogram = hdrhistogram::Histogram::<u64>::new(3)?;
    let mut ours = tokio::net::UnixStream::from_std(ours)?;
    let start = Instant::now();
    while start.elapsed() < duration {
        let sent = Instant::now();
        ours.write_all(&[7]).await?;
        ensure!(ours.read_u8().await? == 7, "another byte came back");
        histogram.record(u64::try_from(sent.elapsed().as_nanos())?)?;
    }
    drop(ours);
    ensure!(answers.join().is_ok(), "the answering thread panicked");
    Ok(Socket { p50: quantile(&histogram, 0.5), p99: quantile(&histogram, 0.99) })
}

/// Runs a future at its place.
fn at<T: Send + 'static>(
    runtime: &Runtime,
    place: Place,
    future: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    match place {
        Place::Spawned | Place::Elsewhere => {
            runtime.block_on(async { tokio::spawn(future).await? })
        }
        Place::Main => runtime.block_on(future),
        Place::LocalSet => {
            LocalSet::new().block_on(runtime, async { tokio::task::spawn_local(future).await? })
        }
    }
}

async fn latency(client: &EchoClient, duration: Duration) -> Result<hdrhistogram::Histogram<u64>> {
    ours::latency(client, SIZE, duration).await
}

/// Calls per second with `in_flight` futures of one task.
#[allow(clippy::cast_precision_loss, reason = "call counts are far below 2^52")]
async fn joined(client: &EchoClient, in_flight: usize, duration: Duration) -> Result<f64> {
    let start = Instant::now();
    let loops = (0..in_flight).map(|_| async {
        let data = [7; SIZE];
        let mut calls = 0_u64;
        while start.elapsed() < duration {
            for _ in 0..32 {
                ensure!(client.echo(&data).await?.len() == SIZE, "the echo is of another size");
                calls += 1;
            }
        }
        Ok(calls)
    });
    let calls: u64 = join_all(loops).await.into_iter().sum::<Result<u64>>()?;
    Ok(calls as f64 / start.elapsed().as_secs_f64())
}
