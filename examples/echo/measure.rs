//! Calls, and their durations.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use tokio::task::JoinSet;

use super::error::EchoError;
use super::service::EchoClient;

/// Calls between two updates of the progress bar.
const REPORT_EVERY: u64 = 64;
/// Calls before the measurement: connections, caches and the wait policy settle.
const MAX_WARM_UP: u64 = 2_000;

/// One row of the result.
#[derive(Debug)]
pub(crate) struct Row {
    /// Calls in flight at once.
    pub(crate) in_flight: u32,
    /// From the first call to the last reply.
    pub(crate) elapsed: Duration,
    /// Time of each call, ns.
    pub(crate) latency: Histogram<u64>,
}

impl Row {
    /// Calls per second.
    pub(crate) fn calls_per_second(&self) -> f64 {
        self.latency.len() as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Makes `calls` calls, `in_flight` of them at once, after some that do not count.
pub(crate) async fn measure(
    client: &EchoClient,
    data: &Arc<[u8]>,
    calls: u64,
    in_flight: u32,
    progress: &ProgressBar,
) -> Result<Row, EchoError> {
    let warm_up = (calls / 10).min(MAX_WARM_UP);
    run(client, data, warm_up, in_flight, &ProgressBar::hidden()).await?;
    run(client, data, calls, in_flight, progress).await
}

async fn run(
    client: &EchoClient,
    data: &Arc<[u8]>,
    calls: u64,
    in_flight: u32,
    progress: &ProgressBar,
) -> Result<Row, EchoError> {
    // During the calls nothing else runs: the histograms are created before the first call, and
    // added up after the last.
    let histograms: Vec<_> = (0..in_flight).map(|_| histogram()).collect();
    let mut callers = JoinSet::new();
    let started = Instant::now();
    for (caller, latency) in (0..).zip(histograms) {
        let share = calls / u64::from(in_flight) + u64::from(caller < calls % u64::from(in_flight));
        let (client, data) = (client.clone(), Arc::clone(data));
        callers.spawn(call(client, data, share, latency, progress.clone()));
    }
    let mut parts = Vec::new();
    while let Some(ended) = callers.join_next().await {
        parts.push(ended??);
    }
    let elapsed = started.elapsed();
    let mut latency = histogram();
    for part in parts {
        latency += part;
    }
    Ok(Row { in_flight, elapsed, latency })
}

/// Calls one after the other.
async fn call(
    client: EchoClient,
    data: Arc<[u8]>,
    calls: u64,
    mut latency: Histogram<u64>,
    progress: ProgressBar,
) -> Result<Histogram<u64>, EchoError> {
    for number in 1..=calls {
        let started = Instant::now();
        let reply = client.echo(&data).await?;
        let took = started.elapsed();
        if *reply != *data {
            return Err(EchoError::WrongReply { sent: data.len(), got: reply.len() });
        }
        latency.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        if number.is_multiple_of(REPORT_EVERY) {
            progress.inc(REPORT_EVERY);
        }
    }
    progress.inc(calls % REPORT_EVERY);
    Ok(latency)
}

/// From 1 ns to a minute, three digits.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds in order, three digits")
}
