//! Payloads: bytes per second, compared with the same bytes without the framework; and their effect
//! on small calls.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use futures::stream::{FuturesUnordered, StreamExt};
use rpc_core::bytes::Bytes;
use rpc_core::{Address, Bulk, Status};
use rpc_perf::cores::{self, CpuPair};
use rpc_perf::floor;
use rpc_perf::pages::look;

use super::small::{repeat, timed};
use super::{Target, quarter};
use crate::report::{Bandwidth, Beside, Latency, Raw, RawKind};
use crate::service::{FILL, PerfClient, look_at, registered, sum_of};

/// Number of payloads of one kind in flight.
const IN_FLIGHT: u32 = 4;
/// The payloads of the measurement of small calls beside payloads.
const BESIDE_BYTES: usize = 1 << 20;

/// Sizes up to a limit: from 64 B in steps of four times to 64 MiB, and the limit itself.
pub(super) fn sizes(limit: usize) -> impl Iterator<Item = usize> {
    let powers = (3..=13).map(|power| 1_usize << (2 * power));
    powers.filter(move |size| *size < limit).chain([limit])
}

/// The raw limit for an address, if it is on this machine.
pub(super) fn raw_kind(address: &Address) -> Option<RawKind> {
    match address {
        Address::Tcp(to) => {
            let text = to.to_string();
            let local = text.starts_with("127.")
                || text.starts_with("localhost:")
                || text.starts_with("[::1]");
            local.then_some(RawKind::Tcp)
        }
        Address::Mem(_) | Address::ShmName(_) | Address::ShmPath(_) => Some(RawKind::Memory),
        _ => None,
    }
}

/// Bytes per second of payloads of one size, in all variants.
pub(super) async fn measure(
    target: &Target,
    client: &PerfClient,
    size: usize,
    raw: Option<RawKind>,
) -> Result<Bandwidth> {
    let duration = quarter(target.options.duration);
    let len = size as u64;
    let bytes = Bytes::from(vec![FILL; size]);
    let bulk = registered(&client.channel().bulk_pool(), size);
    let (up, down) = (client.clone(), client.clone());
    let bytes_up = rate(size, duration, move || {
        let (client, bytes) = (up.clone(), bytes.clone());
        async move { client.put(bytes).await }
    });
    let bytes_up = bytes_up.await?;
    let bytes_down = rate(size, duration, move || {
        let client = down.clone();
        async move { Ok(look(&client.get(len).await?)) }
    });
    let bytes_down = bytes_down.await?;
    let (up, down) = (client.clone(), client.clone());
    let bulk_up = rate(size, duration, move || {
        let (client, bulk) = (up.clone(), bulk.clone());
        async move { client.put_bulk(bulk).await }
    });
    let bulk_up = bulk_up.await?;
    let bulk_down = rate(size, duration, move || {
        let client = down.clone();
        async move { Ok(look_at(&client.get_bulk(len).await?)?) }
    });
    let bulk_down = bulk_down.await?;
    let raw = match (raw, target.cpus) {
        (Some(kind), Some(cpus)) => {
            let passes = move || raw_rate(kind, cpus, size, duration);
            Some(tokio::task::spawn_blocking(passes).await??)
        }
        _ => None,
    };
    Ok(Bandwidth { size: len, in_flight: IN_FLIGHT, bytes_up, bytes_down, bulk_up, bulk_down, raw })
}

/// Bytes per second of tasks that each make one call at a time.
#[allow(clippy::cast_precision_loss, reason = "bytes of a run are far below 2^52")]
async fn rate<F, Fut>(size: usize, duration: Duration, call: F) -> Result<f64>
where
    F: Fn() -> Fut + Clone + Send + 'static,
    Fut: Future<Output = Result<u64, Status>> + Send,
{
    // Each task has made a call before the clock starts, so that memory is allocated and its pages
    // are mapped.
    round(size, &call, |calls| calls < 1).await?;
    let start = Instant::now();
    let calls = round(size, &call, move |calls| calls < 1 || start.elapsed() < duration).await?;
    Ok((calls * size as u64) as f64 / start.elapsed().as_secs_f64())
}

/// The calls of all tasks, each of which continues while `go_on` returns true.
async fn round<F, Fut, G>(size: usize, call: &F, go_on: G) -> Result<u64>
where
    F: Fn() -> Fut + Clone + Send + 'static,
    Fut: Future<Output = Result<u64, Status>> + Send,
    G: Fn(u64) -> bool + Clone + Send + 'static,
{
    let mut tasks = FuturesUnordered::new();
    for _ in 0..IN_FLIGHT {
        let (call, go_on) = (call.clone(), go_on.clone());
        tasks.push(tokio::spawn(async move {
            let mut calls = 0_u64;
            while go_on(calls) {
                ensure!(call().await? == sum_of(size), "a payload of {size} bytes arrived changed");
                calls += 1;
            }
            Ok(calls)
        }));
    }
    let mut calls = 0;
    while let Some(made) = tasks.next().await {
        calls += made??;
    }
    Ok(calls)
}

/// The same bytes without the framework, on the CPUs of both ends.
fn raw_rate(kind: RawKind, cpus: CpuPair, size: usize, duration: Duration) -> Result<Raw> {
    match kind {
        RawKind::Memory => Ok(Raw {
            kind,
            rate: floor::large::two_copies(cpus, size, duration)?,
            one_copy: Some(floor::large::one_copy(cpus, size, duration)?),
        }),
        RawKind::Tcp => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let address = listener.local_addr()?.to_string();
            let reader = std::thread::spawn(move || {
                cores::pin(cpus.server);
                floor::tcp::count(&listener)
            });
            cores::pin(cpus.client);
            let rate = floor::tcp::stream(&address, size, duration)?;
            reader.join().map_err(|_| anyhow!("the reading thread panicked"))??;
            Ok(Raw { kind, rate, one_copy: None })
        }
    }
}

/// Small calls, one at a time, on a connection that also carries large payloads up.
#[allow(clippy::cast_precision_loss, reason = "bytes of a run are far below 2^52")]
pub(super) async fn beside(target: &Target, client: &PerfClient) -> Result<Beside> {
    let size = BESIDE_BYTES.min(target.options.max_size);
    let bulk: Bulk = registered(&client.channel().bulk_pool(), size);
    let stop = Arc::new(AtomicBool::new(false));
    let mut payloads = FuturesUnordered::new();
    let start = Instant::now();
    for _ in 0..IN_FLIGHT {
        let (client, bulk) = (client.clone(), bulk.clone());
        payloads.push(tokio::spawn(repeat(Arc::clone(&stop), move || {
            let (client, bulk) = (client.clone(), bulk.clone());
            async move { client.put_bulk(bulk).await }
        })));
    }
    let calls = tokio::spawn(timed(client.clone(), target.data(), target.options.duration)).await;
    stop.store(true, Ordering::Relaxed);
    let mut count = 0;
    while let Some(made) = payloads.next().await {
        count += made??;
    }
    let payloads_rate = (count * size as u64) as f64 / start.elapsed().as_secs_f64();
    let latency = Latency::of(&calls??, 0);
    Ok(Beside { payload_bytes: size as u64, in_flight: IN_FLIGHT, latency, payloads_rate })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_end_with_the_limit() {
        assert_eq!(sizes(64 << 20).count(), 11);
        assert_eq!(sizes(64 << 20).last(), Some(64 << 20));
        assert_eq!(sizes(64).collect::<Vec<_>>(), [64]);
        assert_eq!(sizes(1000).collect::<Vec<_>>(), [64, 256, 1000]);
    }

    #[test]
    fn only_what_is_here_has_a_raw_limit() {
        for (address, kind) in [
            ("mem://a", Some(RawKind::Memory)),
            ("shm://a", Some(RawKind::Memory)),
            ("tcp://127.0.0.1:1", Some(RawKind::Tcp)),
            ("tcp://[::1]:1", Some(RawKind::Tcp)),
            ("tcp://10.0.0.7:1", None),
            ("rdma://127.0.0.1:1", None),
        ] {
            assert_eq!(raw_kind(&address.parse().unwrap()), kind, "{address}");
        }
    }
}
