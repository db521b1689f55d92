//! CPU time of large payloads, with both ends on one thread: a busy machine changes it little.

use anyhow::{Result, ensure};
use rpc_core::bytes::Bytes;
use rpc_core::{Channel, LinkConfig, PollMode, Server, ShutdownHandle};

use crate::large::{LargeClient, LargeServer, Store, link, registered};
use crate::report::row;
use rpc_perf::floor::tcp as floor_tcp;
use rpc_perf::pages::page_faults;

/// CPU time and page faults of both ends on one thread, against copies of equal size: a busy
/// machine changes them little. Each end spins until it is the other's turn, which counts too.
///
/// # Errors
/// When a call fails.
pub(crate) async fn cpu(
    scheme: &str,
    size: usize,
    (calls, in_flight): (u32, u32),
    only: &str,
) -> Result<()> {
    let (channel, _server) = both_ends(scheme, link()).await?;
    let client = LargeClient::new(channel.clone());
    let len = u32::try_from(size)?;
    let (from, mut to) = (vec![7_u8; size], vec![0; size]);
    let copy = timed(calls, 1, async || {
        std::hint::black_box(&mut to).copy_from_slice(std::hint::black_box(&from));
        Ok(())
    })
    .await?;
    let bulk = registered(&channel.bulk_pool(), size);
    let bytes = Bytes::from(vec![7; size]);
    row("CPU of both ends on one thread, per call", "us", "copies, page faults");
    let report = |name: &str, (nanos, faults): (f64, f64)| {
        let copies = nanos / copy.0;
        row(name, format!("{:.1}", nanos / 1000.0), format!("{copies:.2}, {faults:.1}"));
    };
    report("one copy", copy);
    if scheme == "tcp" {
        let mut raw = floor_tcp::Both::new()?;
        report("a raw stream", timed(calls, 1, async || raw.pass(&from, &mut to)).await?);
    }
    macro_rules! measure {
        ($name:literal, $call:expr) => {
            if $name.contains(only) {
                let step = async || {
                    let calls = (0..in_flight).map(|_| async { ensure_seen($call) });
                    futures::future::try_join_all(calls).await.map(|_| ())
                };
                report($name, timed(calls / in_flight, in_flight, step).await?);
            }
        };
    }
    measure!("registered Bulk up", client.sink(bulk.clone()).await?);
    measure!("registered Bulk down", client.source(len).await?.map_or(0, |bulk| bulk.len()));
    measure!("Bytes up", client.sink_bytes(bytes.clone()).await?);
    measure!("Bytes down", client.source_bytes(len).await?.len() as u64);
    measure!("Vec up, with the caller's copy", client.sink_vec(from.clone()).await?);
    measure!("Vec down, with the handler's copy", client.source_vec(len).await?.len() as u64);
    Ok(())
}

/// A server that can be ended.
type Running = (ShutdownHandle, tokio::task::JoinHandle<Result<(), rpc_core::ListenError>>);

/// A channel to a server on the same thread.
async fn both_ends(scheme: &str, link: LinkConfig) -> Result<(Channel, Running)> {
    let server = Server::builder()
        .add_service(LargeServer::new(Store::default()))
        .link(link.clone())
        .poll_mode(PollMode::Busy)
        .bind(&*match scheme {
            "tcp" => "tcp://127.0.0.1:0".to_owned(),
            scheme => format!("{scheme}://bench-large-cpu"),
        })
        .await?;
    let address = server.local_address().to_string();
    let running = (server.shutdown_handle(), tokio::spawn(server.serve()));
    let channel =
        Channel::builder().poll_mode(PollMode::Busy).link(link).connect(&*address).await?;
    Ok((channel, running))
}

/// CPU time of both ends on one thread for payloads in the arena, against the same payloads in
/// frames.
///
/// # Errors
/// When a call fails.
pub(crate) async fn thresholds(scheme: &str, calls: u32) -> Result<()> {
    const IN_FLIGHT: u32 = 4;
    row(format!("Vec up over {scheme}, written into the arena"), "us per call", "in frames");
    for kib in [10, 12, 16, 20, 24, 32, 48, 64, 128] {
        let vec = vec![7_u8; kib << 10];
        let mut nanos = [0.0; 2];
        for (nanos, threshold) in nanos.iter_mut().zip([0, u32::MAX]) {
            let (channel, (shutdown, server)) =
                both_ends(scheme, link().arena_threshold_bytes(threshold)).await?;
            let client = LargeClient::new(channel);
            let step = async || {
                let calls = (0..IN_FLIGHT).map(|_| async { client.sink_vec(vec.clone()).await });
                futures::future::try_join_all(calls).await?;
                Ok(())
            };
            *nanos = timed(calls / IN_FLIGHT, IN_FLIGHT, step).await?.0;
            drop(client);
            shutdown.shutdown();
            server.await??;
        }
        let [written, framed] = nanos;
        let us = |nanos: f64| format!("{:.2}", nanos / 1000.0);
        row(format!("{kib} KiB"), us(written), format!("{:.2}", framed / written));
    }
    Ok(())
}

fn ensure_seen(sum: u64) -> Result<()> {
    ensure!(sum > 0, "nothing was seen");
    Ok(())
}

/// CPU time of one call, nanoseconds, and its page faults, where a turn of `step` has several
/// calls: the best of five series.
#[allow(clippy::cast_precision_loss, reason = "nanoseconds of a run are far below 2^52")]
async fn timed(
    turns: u32,
    calls: u32,
    mut step: impl AsyncFnMut() -> Result<()>,
) -> Result<(f64, f64)> {
    let now = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let mut best = (f64::INFINITY, 0.0);
    for _ in 0..5 {
        let (before, faults) = (now(), page_faults()?);
        for _ in 0..turns {
            step().await?;
        }
        let after = now();
        let nanos = (after.tv_sec - before.tv_sec) * 1_000_000_000 + after.tv_nsec - before.tv_nsec;
        let calls = f64::from(turns * calls);
        let nanos = nanos as f64 / calls;
        if nanos < best.0 {
            best = (nanos, (page_faults()? - faults) as f64 / calls);
        }
    }
    Ok(best)
}
