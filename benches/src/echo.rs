//! 64-byte echo over shared memory against the floor of the machine and against tarpc.
//!
//! A virtual machine's CPUs may be two cores now and two threads of one core a second later, which
//! changes every number several fold. So each round checks the cores before and after, ratios are
//! those within a round, and rounds of both kinds are reported separately.

use std::time::Duration;

use anyhow::Result;
use rpc_core::PollMode;
use tokio::runtime::Runtime;

use crate::report::{at_least, at_most, median, quantile, row};
use crate::{ours, tarpc_peer};
use rpc_perf::cores;
use rpc_perf::floor::{self, Cores};

/// Most that a call may cost, as a multiple of a message each way through shared memory.
const FLOOR_BAR: f64 = 2.5;
/// Highest cost relative to a call of tarpc.
const TARPC_BAR: f64 = 1.0 / 40.0;
/// Most that a call in event mode may cost, as a multiple of two threads that wake each other.
const WAKE_BAR: f64 = 1.15;
/// Bytes that each call carries in each direction.
const SIZE: usize = 64;
/// Concurrent calls for the measurement of calls per second.
const IN_FLIGHT: usize = 32;

/// Consecutive measurements, nanoseconds and calls per second.
struct Round {
    line: f64,
    cores: Option<Cores>,
    floor: f64,
    wake: f64,
    busy_p50: f64,
    busy_p99: f64,
    adaptive_p50: f64,
    event_p50: f64,
    busy_rate: f64,
    tarpc_p50: f64,
    tarpc_rate: f64,
}

pub(crate) fn run(runtime: &Runtime, rounds: usize, duration: Duration) -> Result<()> {
    let all: Vec<Round> = (0..rounds).map(|_| round(runtime, duration)).collect::<Result<_>>()?;
    for kind in [Cores::Separate, Cores::Siblings] {
        let of_kind: Vec<&Round> = all.iter().filter(|it| it.cores == Some(kind)).collect();
        if !of_kind.is_empty() {
            print(kind, &of_kind, rounds);
        }
    }
    let mixed = all.iter().filter(|it| it.cores.is_none()).count();
    if mixed > 0 {
        row(format!("{mixed} of {rounds} rounds in which the cores changed"), "left out", "");
    }
    Ok(())
}

fn round(runtime: &Runtime, duration: Duration) -> Result<Round> {
    let before = floor::line_round_trip(crate::CPUS, duration / 4)?;
    let floor = floor::message_round_trip(crate::CPUS, duration / 2)?;
    let busy = latency(runtime, "busy", duration / 2)?;
    let (tarpc_p50, tarpc_rate) = tarpc(runtime, duration / 2)?;
    let adaptive = latency(runtime, "adaptive", duration / 2)?;
    let wake = floor::wake_round_trip(crate::CPUS, duration / 2)?;
    let event = latency(runtime, "event", duration / 2)?;
    let after = floor::line_round_trip(crate::CPUS, duration / 4)?;
    let kind = Cores::of(before);
    let cores = (kind == Cores::of(after)).then_some(kind);
    Ok(Round {
        line: before,
        cores,
        floor,
        wake,
        busy_p50: busy.p50,
        busy_p99: busy.p99,
        adaptive_p50: adaptive.p50,
        event_p50: event.p50,
        busy_rate: rate(runtime, duration)?,
        tarpc_p50,
        tarpc_rate,
    })
}

struct Latency {
    p50: f64,
    p99: f64,
}

fn latency(runtime: &Runtime, mode: &str, duration: Duration) -> Result<Latency> {
    cores::pin(0);
    let server = crate::start_server("ours", "shm://bench-echo", mode)?;
    runtime.block_on(async {
        // One task measures, like a user's program; the connection's driver is another.
        let client = ours::connect(server.address(), crate::mode(mode)).await?;
        let measuring = tokio::spawn(async move { ours::latency(&client, SIZE, duration).await });
        let histogram = measuring.await??;
        Ok(Latency { p50: quantile(&histogram, 0.5), p99: quantile(&histogram, 0.99) })
    })
}

fn rate(runtime: &Runtime, duration: Duration) -> Result<f64> {
    let server = crate::start_server("ours", "shm://bench-echo", "busy")?;
    runtime.block_on(async {
        let client = ours::connect(server.address(), PollMode::Busy).await?;
        ours::rate(&client, SIZE, IN_FLIGHT, duration).await
    })
}

fn tarpc(runtime: &Runtime, duration: Duration) -> Result<(f64, f64)> {
    let socket = std::env::temp_dir().join(format!("bench-tarpc-{}", std::process::id()));
    let server = crate::start_server("tarpc", &socket.to_string_lossy(), "")?;
    let measured = runtime.block_on(async {
        let client = tarpc_peer::connect(server.address()).await?;
        let histogram = tarpc_peer::latency(&client, SIZE, duration).await?;
        let rate = tarpc_peer::rate(&client, SIZE, IN_FLIGHT, duration).await?;
        Ok((quantile(&histogram, 0.5), rate))
    });
    drop(server);
    // Left by a server that was killed; the next one would not bind.
    let _ = std::fs::remove_file(&socket);
    measured
}

fn print(kind: Cores, rounds: &[&Round], all: usize) {
    let of = |value: fn(&Round) -> f64| median(rounds.iter().map(|it| value(it)).collect());
    let us = |nanos: f64| format!("{:.2} us", nanos / 1000.0);
    let title = format!("64-byte echo, two processes, {} ({} of {all} rounds)", kind, rounds.len());
    row(title, "median", "ratio within a round");
    row("one cache line there and back", us(of(|it| it.line)), kind.remark());
    row("floor: 80-byte message each way", us(of(|it| it.floor)), "");
    let busy = us(of(|it| it.busy_p50));
    let against_floor = of(|it| it.busy_p50 / it.floor);
    let against_floor = match kind {
        Cores::Separate => at_most(against_floor, FLOOR_BAR),
        // Two threads of one core exchange lines faster than any code can keep up with.
        Cores::Siblings => format!("{against_floor:.3}"),
    };
    row("shm busy p50, against the floor", &busy, against_floor);
    row("shm busy p99", us(of(|it| it.busy_p99)), "");
    row("tarpc unix p50", us(of(|it| it.tarpc_p50)), "");
    let against_tarpc = at_most(of(|it| it.busy_p50 / it.tarpc_p50), TARPC_BAR);
    row("shm busy p50, against tarpc unix", &busy, against_tarpc);
    let adaptive = at_most(of(|it| it.adaptive_p50 / it.tarpc_p50), TARPC_BAR);
    row("shm adaptive p50, against tarpc unix", us(of(|it| it.adaptive_p50)), adaptive);
    row("floor: two threads that wake each other", us(of(|it| it.wake)), "");
    let event = at_most(of(|it| it.event_p50 / it.wake), WAKE_BAR);
    row("shm event p50, against that floor", us(of(|it| it.event_p50)), event);
    // No bar: the time that a CPU takes to wake depends on how long it has slept, so tarpc's median
    // can lie below that floor, although its mean does not.
    let event = of(|it| it.event_p50 / it.tarpc_p50);
    row("shm event p50, against tarpc unix", "", format!("{event:.3}"));
    let rate = at_least(of(|it| it.busy_rate / 1e6), 1.5);
    row("shm busy, 32 in flight, million calls/s", "", rate);
    let against_tarpc = at_least(of(|it| it.busy_rate / it.tarpc_rate), 9.0);
    row("shm busy, 32 in flight, against tarpc unix", "", against_tarpc);
}
