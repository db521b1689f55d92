//! Small calls: one at a time, at a fixed rate, and many in flight.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::stream::{FuturesUnordered, StreamExt};
use hdrhistogram::Histogram;
use rpc_core::Status;

use super::Target;
use crate::report::{Latency, OpenLoop, Rate};
use crate::service::PerfClient;

/// Maximum number of warm-up calls, and the share of the time that they may take.
const WARM_UP_CALLS: u32 = 2_000;
const WARM_UP_SHARE: u32 = 5;
/// Maximum number of unanswered calls of an open loop; further ones are sent later, and timed from
/// when they were due.
const MAX_WAITING: usize = 4_096;
/// An open loop that lags behind continues for this multiple of its duration, and at least this
/// long, before it gives up.
const PATIENCE: u32 = 3;
const LEAST_PATIENCE: Duration = Duration::from_secs(1);
/// Approximate delay of the runtime's timers.
const TIMER_LAG: Duration = Duration::from_millis(2);

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

async fn call(client: &PerfClient, data: &[u8]) -> Result<()> {
    let reply = client.echo(data).await?;
    ensure!(reply.len() == data.len(), "a reply has {} bytes, not {}", reply.len(), data.len());
    Ok(())
}

async fn warm_up(client: &PerfClient, data: &[u8], duration: Duration) -> Result<()> {
    let start = Instant::now();
    for _ in 0..WARM_UP_CALLS {
        if start.elapsed() >= duration / WARM_UP_SHARE {
            break;
        }
        call(client, data).await?;
    }
    Ok(())
}

/// Calls one at a time, each timed.
pub(super) async fn timed(
    client: PerfClient,
    data: Arc<[u8]>,
    duration: Duration,
) -> Result<Histogram<u64>> {
    warm_up(&client, &data, duration).await?;
    let mut histogram = rpc_perf::histogram();
    let start = Instant::now();
    loop {
        let began = Instant::now();
        call(&client, &data).await?;
        let ended = Instant::now();
        histogram.saturating_record(nanos(ended - began));
        if ended - start >= duration {
            return Ok(histogram);
        }
    }
}

/// Latency of one call at a time.
pub(super) async fn closed_loop(target: &Target, client: &PerfClient) -> Result<Latency> {
    let calls = timed(client.clone(), target.data(), target.options.duration);
    Ok(Latency::of(&tokio::spawn(calls).await??, 0))
}

/// Latency of calls at a fixed rate.
pub(super) async fn open_loop(target: &Target, client: &PerfClient, rate: u64) -> Result<OpenLoop> {
    let (data, duration) = (target.data(), target.options.duration);
    warm_up(client, &data, duration).await?;
    let patience = (duration * PATIENCE).max(LEAST_PATIENCE);
    tokio::spawn(scheduled(client.clone(), data, rate, duration, patience)).await?
}

/// Sends each call when it is due, whether or not earlier ones have been answered. A call that
/// cannot be sent in time is sent as soon as possible, and its wait counts: no coordinated
/// omission.
#[allow(clippy::cast_precision_loss, reason = "calls of a run are far below 2^52")]
async fn scheduled(
    client: PerfClient,
    data: Arc<[u8]>,
    rate: u64,
    duration: Duration,
    patience: Duration,
) -> Result<OpenLoop> {
    let start = Instant::now();
    let due = |number: u64| start + Duration::from_secs_f64(number as f64 / rate as f64);
    let all = (nanos(duration).saturating_mul(rate) / 1_000_000_000).max(1);
    let give_up = start + duration + patience;
    let mut histogram = rpc_perf::histogram();
    let mut waiting = FuturesUnordered::new();
    let mut sent = 0;
    let mut last = start;
    loop {
        let now = Instant::now();
        while sent < all && waiting.len() < MAX_WAITING && due(sent) <= now {
            let (due, client, data) = (due(sent), client.clone(), Arc::clone(&data));
            waiting.push(async move {
                call(&client, &data).await?;
                let answered = Instant::now();
                anyhow::Ok((answered, answered.saturating_duration_since(due)))
            });
            sent += 1;
        }
        if (sent == all && waiting.is_empty()) || now >= give_up {
            break;
        }
        let next = (sent < all && waiting.len() < MAX_WAITING).then(|| due(sent));
        tokio::select! {
            biased;
            Some(answered) = waiting.next(), if !waiting.is_empty() => {
                let (at, took) = answered?;
                last = last.max(at);
                histogram.saturating_record(nanos(took));
            }
            () = until(next.unwrap_or(give_up)) => {}
        }
    }
    let answered = histogram.len();
    // The last call was due before the end, so the rate never exceeds the requested one.
    let elapsed = (last - start).max(duration).max(Duration::from_nanos(1));
    Ok(OpenLoop {
        rate,
        calls_per_second: answered as f64 / elapsed.as_secs_f64(),
        unsent: all - sent,
        latency: Latency::of(&histogram, all - answered),
    })
}

/// Waits until a moment and lets other tasks run: with a timer while it is far off, then by
/// yielding.
async fn until(moment: Instant) {
    loop {
        let left = moment.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        if left > TIMER_LAG {
            tokio::time::sleep(left - TIMER_LAG).await;
        } else {
            tokio::task::yield_now().await;
        }
    }
}

/// Calls per second of the given number of tasks, and their CPU cost at both ends.
#[allow(clippy::cast_precision_loss, reason = "calls of a run are far below 2^52")]
pub(super) async fn rate(target: &Target, client: &PerfClient, in_flight: u32) -> Result<Rate> {
    let (data, duration) = (target.data(), target.options.duration);
    warm_up(client, &data, duration).await?;
    let before = target.usages(client).await?;
    let start = Instant::now();
    let mut tasks = FuturesUnordered::new();
    for _ in 0..in_flight {
        let (client, data) = (client.clone(), Arc::clone(&data));
        tasks.push(tokio::spawn(async move {
            let mut calls = 0_u64;
            while calls == 0 || start.elapsed() < duration {
                // Reading the clock for each call would distort the measurement.
                for _ in 0..8 {
                    call(&client, &data).await?;
                    calls += 1;
                }
            }
            anyhow::Ok(calls)
        }));
    }
    let mut calls = 0;
    while let Some(made) = tasks.next().await {
        calls += made??;
    }
    let elapsed = start.elapsed();
    let after = target.usages(client).await?;
    let per_call = |before: u64, after: u64| after.saturating_sub(before) as f64 / calls as f64;
    Ok(Rate {
        in_flight,
        calls_per_second: calls as f64 / elapsed.as_secs_f64(),
        client_cpu_ns: per_call(before.client.cpu_ns, after.client.cpu_ns),
        server_cpu_ns: per_call(before.server.cpu_ns, after.server.cpu_ns),
    })
}

/// Calls until stopped; returns the number of calls.
pub(super) async fn repeat<F, Fut>(stop: Arc<std::sync::atomic::AtomicBool>, call: F) -> Result<u64>
where
    F: Fn() -> Fut,
    Fut: Future<Output = Result<u64, Status>>,
{
    let mut calls = 0;
    loop {
        call().await?;
        calls += 1;
        if stop.load(std::sync::atomic::Ordering::Relaxed) {
            return Ok(calls);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use rpc_core::Channel;
    use rpc_core::bytes::Bytes;
    use test_kit::Watchdog;

    use super::*;
    use crate::service::{Perf, PerfServer, ServerUsage};

    /// Longer than any test runs.
    const FOREVER: Duration = Duration::from_secs(10_000);

    /// Replies only when the given number of calls have arrived.
    struct Crowd {
        wanted: u64,
        called: AtomicU64,
        enough: tokio::sync::Notify,
    }

    impl Perf for Crowd {
        async fn echo(&self, data: &[u8]) -> Vec<u8> {
            if self.called.fetch_add(1, Ordering::Relaxed) + 1 >= self.wanted {
                self.enough.notify_waiters();
            } else {
                let enough = self.enough.notified();
                if self.called.load(Ordering::Relaxed) < self.wanted {
                    enough.await;
                }
            }
            data.to_vec()
        }

        async fn put(&self, _: Bytes) -> u64 {
            0
        }

        async fn get(&self, _: u64) -> Result<Bytes, Status> {
            Err(rpc_core::Code::Unimplemented.into())
        }

        async fn put_bulk(&self, _: rpc_core::Bulk) -> u64 {
            0
        }

        async fn get_bulk(&self, _: u64) -> Result<rpc_core::Bulk, Status> {
            Err(rpc_core::Code::Unimplemented.into())
        }

        async fn usage(&self) -> ServerUsage {
            ServerUsage { cpu_ns: 0, resident_bytes: None }
        }
    }

    async fn crowd(wanted: u64) -> PerfClient {
        let crowd = Crowd { wanted, called: AtomicU64::new(0), enough: tokio::sync::Notify::new() };
        PerfClient::new(Channel::to(PerfServer::new(crowd)).await.unwrap())
    }

    #[tokio::test]
    async fn an_open_loop_continues_without_answers() {
        let _watchdog = Watchdog::start("open loop");
        let data = vec![1; 64].into();
        let duration = Duration::from_millis(100);
        let open = scheduled(crowd(20).await, data, 200, duration, FOREVER).await.unwrap();
        assert_eq!((open.unsent, open.latency.calls), (0, 20));
        assert!(open.latency.max_ns.is_some(), "all were answered");
        assert!(open.calls_per_second <= 200.0, "{}", open.calls_per_second);
    }

    #[tokio::test]
    async fn a_lagging_open_loop_counts_due_calls() {
        let _watchdog = Watchdog::start("open loop that lags");
        let data = vec![1; 64].into();
        let (calls, duration) = (MAX_WAITING as u64 + 100, Duration::from_millis(1));
        let never = crowd(u64::MAX).await;
        let open = scheduled(never, data, calls * 1000, duration, duration).await.unwrap();
        assert_eq!(open.latency.calls, calls, "those that were never sent, too");
        assert!(open.unsent >= 100, "{}", open.unsent);
        assert_eq!((open.latency.p50_ns, open.latency.max_ns), (None, None));
    }

    #[tokio::test]
    async fn waiting_ends_at_its_moment() {
        let moment = Instant::now() + TIMER_LAG + Duration::from_millis(1);
        until(moment).await;
        assert!(Instant::now() >= moment);
    }
}
