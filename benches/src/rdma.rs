//! Calls over `rdma://` against the device's own speed by perftest, in interleaved pairs.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rpc_core::PollMode;
use rpc_transport::device::verbs::preflight;
use tokio::runtime::Runtime;

use crate::report::{at_least, at_most, median, quantile, row};
use crate::{large, ours, perftest};
use rpc_perf::cores;

/// Bytes that each call carries in each direction.
const SIZE: usize = 64;
/// Concurrent calls for the measurement of messages per second.
const IN_FLIGHT: usize = 32;
/// Most that a call may cost, as a multiple of the device's own round trip.
const LATENCY_BAR: f64 = 1.6;

/// Least share of the device's own rate that large payloads reach.
const LARGE_BAR: f64 = 0.85;

/// One pair: the device alone, then calls over it.
struct Pair {
    raw_round_trip: f64,
    call_p50: f64,
    raw_messages: f64,
    calls: f64,
}

pub(crate) fn run(
    runtime: &Runtime,
    rounds: usize,
    iterations: u32,
    duration: Duration,
) -> Result<()> {
    let host = host()?;
    cores::pin(0);
    row("pair: raw round trip, call p50, raw Mmsg/s, Mcall/s", "", "ratios");
    let mut pairs = Vec::new();
    for round in 1..=rounds {
        let pair = measure(runtime, host, iterations, duration)?;
        let Pair { raw_round_trip, call_p50, raw_messages, calls } = pair;
        let us = |nanos: f64| nanos / 1000.0;
        let (raw, call) = (us(raw_round_trip), us(call_p50));
        let (messages, rate) = (raw_messages / 1e6, calls / 1e6);
        row(
            format!("{round}: {raw:.1} us, {call:.1} us, {messages:.4}, {rate:.4}"),
            "",
            format!("{:.3} {:.3}", call / raw, 2.0 * rate / messages),
        );
        pairs.push(pair);
    }
    print(&pairs)
}

/// An IPv4 address of an RDMA port of this machine.
fn host() -> Result<IpAddr> {
    let report = preflight();
    let mut addresses = report.addresses().into_iter();
    let host = addresses.find(IpAddr::is_ipv4);
    host.with_context(|| format!("no RDMA port has an IPv4 address:\n{report}"))
}

/// Registered payloads of `size` bytes against `ib_write_bw` of that size, in interleaved pairs.
///
/// # Errors
/// When there is no device, or a side fails.
pub(crate) fn large(
    runtime: &Runtime,
    size: usize,
    rounds: usize,
    iterations: u32,
    in_flight: usize,
    mode: &str,
    duration: Duration,
) -> Result<()> {
    let host = host()?;
    cores::pin(0);
    let mega = |rate: f64| rate / 1e6;
    row(format!("pair: ib_write_bw of {size} bytes, our payloads, MB/s"), "", "ratio");
    let mut ratios = Vec::new();
    for round in 1..=rounds {
        let raw = perftest::write_rate(host, size, iterations)?;
        let server = crate::start_server("large", &format!("rdma://{host}:0"), mode)?;
        let mode = crate::mode(mode);
        let ours = large::up_rate(server.address(), mode, size, in_flight, duration);
        let ours = runtime.block_on(ours)?;
        let ratio = ours / raw;
        row(format!("{round}: {:.1}, {:.1}", mega(raw), mega(ours)), "", format!("{ratio:.3}"));
        ratios.push(ratio);
    }
    let (ratio, spread) = middle(ratios);
    let text = format!("{size}-byte payloads, {in_flight} in flight, against ib_write_bw");
    row(text, spread, at_least(ratio, LARGE_BAR));
    Ok(())
}

fn measure(runtime: &Runtime, host: IpAddr, iterations: u32, duration: Duration) -> Result<Pair> {
    let raw_round_trip = perftest::round_trip(host, SIZE, iterations)?;
    let raw_messages = perftest::message_rate(host, SIZE, iterations)?;
    let server = crate::start_server("ours", &format!("rdma://{host}:0"), "busy")?;
    let (call_p50, calls) = runtime.block_on(async {
        let client = ours::connect(server.address(), PollMode::Busy).await?;
        let task = client.clone();
        let measuring = tokio::spawn(async move { ours::latency(&task, SIZE, duration).await });
        let call_p50 = quantile(&measuring.await??, 0.5);
        anyhow::Ok((call_p50, ours::rate(&client, SIZE, IN_FLIGHT, duration).await?))
    })?;
    Ok(Pair { raw_round_trip, call_p50, raw_messages, calls })
}

fn print(pairs: &[Pair]) -> Result<()> {
    ensure!(!pairs.is_empty(), "no round was asked for");
    let all = |value: fn(&Pair) -> f64| pairs.iter().map(value).collect::<Vec<_>>();
    let (latency, spread_of_latency) = middle(all(|pair| pair.call_p50 / pair.raw_round_trip));
    row(
        "busy p50 against ib_send_lat's round trip",
        spread_of_latency,
        at_most(latency, LATENCY_BAR),
    );
    // A call is two messages.
    let (messages, spread_of_messages) = middle(all(|pair| 2.0 * pair.calls / pair.raw_messages));
    let text = format!("messages/s, {IN_FLIGHT} calls in flight, against ib_send_bw");
    row(text, spread_of_messages, format!("{messages:.3}"));
    Ok(())
}

/// The median of ratios, and their spread as text.
fn middle(values: Vec<f64>) -> (f64, String) {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(0.0, f64::max);
    (median(values), format!("{low:.3} to {high:.3}"))
}
