//! Measurements of asynchronous peers: the same loops for all of them.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use hdrhistogram::Histogram;
use rpc_perf::pages::PAGE_BYTES;

use crate::columns::{Column, Numbers};

/// Bytes that small calls carry in each direction.
pub(crate) const SMALL_BYTES: usize = 64;
/// Bytes of a large payload.
pub(crate) const LARGE_BYTES: usize = 1 << 20;
/// Concurrent small calls for the measurement of calls per second.
pub(crate) const IN_FLIGHT: usize = 32;
/// Every byte of large payloads.
pub(crate) const FILL: u8 = 7;

/// Durations of a measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// Time for each number, after a quarter of it to warm up.
    pub(crate) duration: Duration,
}

/// The longest that a row may take beyond its plan before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(20);

impl Plan {
    /// The time after which a row counts as hung.
    pub(crate) fn patience(&self) -> Duration {
        PATIENCE + self.duration * 10
    }
}

/// A connected client of any peer.
pub(crate) trait Client: Clone + 'static {
    /// Makes the server echo the bytes; returns whether they came back unchanged.
    async fn echo(&self, data: &[u8]) -> Result<bool>;

    /// Sends `LARGE_BYTES`; returns the server's sum of one byte of each page.
    async fn put(&self) -> Result<u64>;

    /// Receives `LARGE_BYTES`; returns this side's sum of one byte of each page.
    async fn get(&self) -> Result<u64>;
}

/// The sum of a large payload.
pub(crate) fn sum_of_large() -> u64 {
    (LARGE_BYTES / PAGE_BYTES) as u64 * u64::from(FILL)
}

/// The bytes of a small call; no two neighbours alike.
pub(crate) fn small() -> [u8; SMALL_BYTES] {
    std::array::from_fn(|at| u8::try_from(at * 3 + 1).unwrap_or(0))
}

/// Measures all columns of a client.
pub(crate) async fn all<C: Client>(client: C, plan: &Plan) -> Result<Numbers> {
    let mut numbers = small_calls(client.clone(), plan).await?;
    large_calls(client, plan, &mut numbers).await?;
    Ok(numbers)
}

/// Small calls: alone, and many at once.
pub(crate) async fn small_calls<C: Client>(client: C, plan: &Plan) -> Result<Numbers> {
    let plan = *plan;
    let measured = async {
        let mut numbers = Numbers::default();
        // A task measures, like a user's program.
        let alone = client.clone();
        lone(&latency_task(alone, plan.duration).await?, &mut numbers);
        run(&client, Kind::Echo, IN_FLIGHT, plan.duration / 4).await?;
        let rate = run(&client, Kind::Echo, IN_FLIGHT, plan.duration).await?;
        numbers.set(Column::Rate, rate / 1e3);
        Ok(numbers)
    };
    tokio::time::timeout(plan.patience(), measured).await.context("it hangs")?
}

/// Small calls per second, many at once.
pub(crate) async fn small_rate<C: Client>(client: &C, duration: Duration) -> Result<f64> {
    run(client, Kind::Echo, IN_FLIGHT, duration).await
}

/// Large payloads, both ways.
pub(crate) async fn large_calls<C: Client>(
    client: C,
    plan: &Plan,
    numbers: &mut Numbers,
) -> Result<()> {
    let measured = async {
        for (column, kind, in_flight) in [
            (Column::UpOne, Kind::Put, 1),
            (Column::UpFour, Kind::Put, 4),
            (Column::DownOne, Kind::Get, 1),
            (Column::DownFour, Kind::Get, 4),
        ] {
            run(&client, kind, in_flight, plan.duration / 4).await?;
            let rate = run(&client, kind, in_flight, plan.duration).await?;
            numbers.set(column, rate * LARGE_BYTES as f64 / 1e9);
        }
        Ok(())
    };
    tokio::time::timeout(plan.patience(), measured).await.context("it hangs")?
}

/// The columns of lone calls.
pub(crate) fn lone(laps: &Histogram<u64>, numbers: &mut Numbers) {
    numbers.set(Column::P50, rpc_perf::quantile(laps, 0.5) / 1e3);
    numbers.set(Column::Mean, laps.mean() / 1e3);
    numbers.set(Column::P999, rpc_perf::quantile(laps, 0.999) / 1e3);
}

async fn latency_task<C: Client>(client: C, duration: Duration) -> Result<Histogram<u64>> {
    let task = tokio::task::spawn_local(async move {
        let data = small();
        let mut laps = Laps::new(duration);
        while laps.go_on()? {
            ensure!(client.echo(&data).await?, "the echo is not what was sent");
        }
        anyhow::Ok(laps.histogram)
    });
    task.await?
}

/// Times of repeated operations, without those of the warm-up.
pub(crate) struct Laps {
    histogram: Histogram<u64>,
    warm: Instant,
    end: Instant,
    last: Option<Instant>,
}

impl Laps {
    pub(crate) fn new(duration: Duration) -> Self {
        let now = Instant::now();
        let warm = now + duration / 4;
        Self { histogram: rpc_perf::histogram(), warm, end: warm + duration, last: None }
    }

    /// Ends a lap, if one has begun, and begins the next one unless the time is over. At least one
    /// lap counts.
    #[inline]
    pub(crate) fn go_on(&mut self) -> Result<bool> {
        let now = Instant::now();
        let Some(last) = self.last else {
            self.last = Some(now);
            return Ok(true);
        };
        if last >= self.warm {
            self.histogram.record(u64::try_from((now - last).as_nanos())?.max(1))?;
            if now >= self.end {
                return Ok(false);
            }
        }
        // The time to record a lap is not part of the next lap.
        self.last = Some(Instant::now());
        Ok(true)
    }

    pub(crate) fn histogram(self) -> Histogram<u64> {
        self.histogram
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Echo,
    Put,
    Get,
}

/// Calls per second of `in_flight` tasks that make one call after the other.
async fn run<C: Client>(
    client: &C,
    kind: Kind,
    in_flight: usize,
    duration: Duration,
) -> Result<f64> {
    let start = Instant::now();
    let mut tasks = FuturesUnordered::new();
    for _ in 0..in_flight {
        let client = client.clone();
        tasks.push(tokio::task::spawn_local(async move {
            let data = small();
            let mut calls = 0_u64;
            loop {
                match kind {
                    Kind::Echo => {
                        ensure!(client.echo(&data).await?, "the echo is not what was sent");
                    }
                    Kind::Put => {
                        let sum = client.put().await?;
                        ensure!(sum == sum_of_large(), "the server has read something else");
                    }
                    Kind::Get => {
                        let sum = client.get().await?;
                        ensure!(sum == sum_of_large(), "what arrived is something else");
                    }
                }
                calls += 1;
                if start.elapsed() >= duration {
                    return anyhow::Ok(calls);
                }
            }
        }));
    }
    let mut calls = 0;
    while let Some(done) = tasks.next().await {
        calls += done??;
    }
    Ok(calls as f64 / start.elapsed().as_secs_f64())
}
