//! Calls on a host that is not idle: client and server, unpinned as a user's are, and a thread that
//! only computes. With two CPUs that is one thread too many, and how the two ends wait decides what
//! each of the three gets.
//!
//! Ratios are those within a round. A mode is measured right after the others, as hosts drift.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Runtime;

use crate::ours;
use crate::report::{at_least, median, ratio, row};

/// Least rate of the default mode beside a neighbour, of event mode.
const EVENT_BAR: f64 = 1.0;
/// Least rate relative to busy mode, with [`IN_FLIGHT`] calls in flight.
const BUSY_BAR: f64 = 0.7;
/// Least rate relative to busy mode, lone calls.
const LONE_BAR: f64 = 1.0 / 3.0;
const IN_FLIGHT: usize = 32;
const SIZE: usize = 64;
const MODES: [&str; 3] = ["adaptive", "event", "busy"];

/// What one mode gave, round by round.
#[derive(Default)]
struct Mode {
    /// Calls per second.
    rates: Vec<f64>,
    /// The neighbour's share of a core.
    shares: Vec<f64>,
}

pub(crate) fn run(runtime: &Runtime, rounds: usize, duration: Duration) -> Result<()> {
    row(format!("64-byte echo, unpinned, medians of {rounds}"), "calls/s", "ratio within a round");
    for (calls, in_flight, bar) in [("32 in flight", IN_FLIGHT, BUSY_BAR), ("lone", 1, LONE_BAR)] {
        for has_neighbour in [false, true] {
            let modes = modes(runtime, rounds, (in_flight, has_neighbour), duration)?;
            let host = if has_neighbour { "one neighbour" } else { "no neighbour" };
            let bar = has_neighbour.then_some(bar);
            print(&format!("{calls}, {host}"), &modes, bar);
        }
    }
    Ok(())
}

fn modes(
    runtime: &Runtime,
    rounds: usize,
    (in_flight, has_neighbour): (usize, bool),
    duration: Duration,
) -> Result<[Mode; 3]> {
    let mut modes: [Mode; 3] = Default::default();
    for _ in 0..rounds {
        for (of_mode, mode) in modes.iter_mut().zip(MODES) {
            let measure = || rate(runtime, mode, in_flight, duration);
            if has_neighbour {
                let (rate, share) = beside_neighbour(measure)?;
                of_mode.rates.push(rate);
                of_mode.shares.push(share);
            } else {
                of_mode.rates.push(measure()?);
            }
        }
    }
    Ok(modes)
}

fn print(what: &str, [adaptive, event, busy]: &[Mode; 3], busy_bar: Option<f64>) {
    let per_second = |mode: &Mode| format!("{:.0} k", median(mode.rates.clone()) / 1e3);
    let verdict = |to: &Mode, bar: Option<f64>| {
        let ratio = ratio(&adaptive.rates, &to.rates);
        bar.map_or_else(|| format!("{ratio:.3}"), |bar| at_least(ratio, bar))
    };
    let event_bar = busy_bar.map(|_| EVENT_BAR);
    row(format!("{what}: default"), per_second(adaptive), "");
    row(format!("{what}: event, default of it"), per_second(event), verdict(event, event_bar));
    row(format!("{what}: busy, default of it"), per_second(busy), verdict(busy, busy_bar));
    if busy_bar.is_some() {
        let shares = [adaptive, event, busy].map(|it| median(it.shares.clone()));
        let [adaptive, event, busy] = shares.map(|share| format!("{share:.2}"));
        let shares = format!("event {event}, busy {busy}");
        row(format!("{what}: the neighbour's share of a core"), adaptive, shares);
    }
}

fn rate(runtime: &Runtime, mode: &str, in_flight: usize, duration: Duration) -> Result<f64> {
    let address = format!("shm://bench-neighbours-{}", std::process::id());
    // The server that is pinned to no CPU.
    let server = crate::start_server("ours-current", &address, mode)?;
    runtime.block_on(async {
        let client = ours::connect(server.address(), crate::mode(mode)).await?;
        ours::rate(&client, SIZE, in_flight, duration / 4).await?;
        ours::rate(&client, SIZE, in_flight, duration).await
    })
}

/// Does something while a thread of this process computes. Returns the share of a core that it had.
fn beside_neighbour<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let neighbour = scope.spawn(|| {
            let began = Instant::now();
            while !over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
            let used = clock_gettime(ClockId::ThreadCPUTime);
            let used = Duration::try_from(used).unwrap_or_default();
            used.as_secs_f64() / began.elapsed().as_secs_f64()
        });
        let done = work();
        over.store(true, Ordering::Relaxed);
        let share = neighbour.join().unwrap_or(f64::NAN);
        Ok((done?, share))
    })
}
