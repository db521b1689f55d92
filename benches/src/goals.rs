//! The goals that hold with room to spare, each as a ratio of two measurements of one round.
//!
//! One round is enough to show a goal. Other load on the machine can spoil a round, and one
//! measurement of a pair more than the other, but code that became too slow misses in every round.
//! So a miss says something about the code, and `.ci/run` can check for it.

use std::time::Duration;

use anyhow::{Result, ensure};
use rpc_perf::cores::{self, CpuPair};
use rpc_perf::floor::{self, Cores};
use tokio::runtime::Runtime;

use crate::large::{self, FOUR_BAR};
use crate::one_core::{self, EVENT_BAR, TARPC_BAR};
use crate::placements::{self, RATE_BAR};
use crate::report::{at_least, at_most, row};
use crate::{ours, shards, tarpc_peer};

/// Rounds in which a goal can be shown.
const ROUNDS: usize = 40;
/// Least rate over TCP with [`IN_FLIGHT`] concurrent calls, relative to tarpc's.
const TCP_RATE_BAR: f64 = 2.0;
const IN_FLIGHT: usize = 32;
const SIZE: usize = 64;
const LARGE: usize = 1 << 20;

/// The good side of the bar.
#[derive(Clone, Copy)]
enum Bar {
    AtMost(f64),
    AtLeast(f64),
}

impl Bar {
    fn is_met(self, ratio: f64) -> bool {
        match self {
            Self::AtMost(bar) => ratio <= bar,
            Self::AtLeast(bar) => ratio >= bar,
        }
    }

    fn verdict(self, ratio: f64) -> String {
        match self {
            Self::AtMost(bar) => at_most(ratio, bar),
            Self::AtLeast(bar) => at_least(ratio, bar),
        }
    }
}

struct Goal {
    name: &'static str,
    /// Two threads of one core cannot show it.
    of_two_cores: bool,
    bar: Bar,
    measure: fn(&Runtime, Duration) -> Result<f64>,
}

impl Goal {
    /// The ratio of one round. `None` if it needs two cores, and the CPUs were not two cores all
    /// the time.
    fn round(&self, runtime: &Runtime, duration: Duration) -> Result<Option<f64>> {
        if !self.of_two_cores {
            return (self.measure)(runtime, duration).map(Some);
        }
        let are_separate = || {
            let line = floor::line_round_trip(crate::CPUS, duration / 8)?;
            anyhow::Ok(Cores::of(line) == Cores::Separate)
        };
        if !are_separate()? {
            return Ok(None);
        }
        let ratio = (self.measure)(runtime, duration)?;
        Ok(are_separate()?.then_some(ratio))
    }
}

const GOALS: [Goal; 8] = [
    // The first two while this thread is pinned to no CPU.
    Goal {
        name: "shm, 32 in flight, slowest place, of the best",
        of_two_cores: false,
        bar: Bar::AtLeast(RATE_BAR),
        measure: |_, duration| placements::slowest_of_best("shm", duration),
    },
    Goal {
        name: "tcp, 32 in flight, slowest place, of the best",
        of_two_cores: false,
        bar: Bar::AtLeast(RATE_BAR),
        measure: |_, duration| placements::slowest_of_best("tcp", duration),
    },
    Goal {
        name: "one core: shm, lone mean, of tarpc, Unix socket",
        of_two_cores: false,
        bar: Bar::AtMost(TARPC_BAR),
        measure: |runtime, duration| {
            cores::pin(crate::CPUS.server);
            Ok(one_core::shm(runtime, "adaptive", duration)?
                / one_core::tarpc_unix(runtime, duration)?)
        },
    },
    Goal {
        name: "one core: shm, lone mean, of event mode",
        of_two_cores: false,
        bar: Bar::AtMost(EVENT_BAR),
        measure: |runtime, duration| {
            cores::pin(crate::CPUS.server);
            adaptive_of_event(runtime, duration)
        },
    },
    Goal {
        name: "server's core burnt: shm, lone mean, of event mode",
        of_two_cores: false,
        bar: Bar::AtMost(EVENT_BAR),
        measure: |runtime, duration| {
            cores::pin(crate::CPUS.client);
            one_core::beside_hog(|| adaptive_of_event(runtime, duration))
        },
    },
    Goal {
        name: "two cores: tcp, 32 in flight, calls/s, of tarpc",
        of_two_cores: false,
        bar: Bar::AtLeast(TCP_RATE_BAR),
        measure: |runtime, duration| {
            cores::pin(crate::CPUS.client);
            let ours = {
                let server = crate::start_server("ours", "tcp://127.0.0.1:0", "adaptive")?;
                runtime.block_on(async {
                    let client = ours::connect(server.address(), crate::mode("adaptive")).await?;
                    ours::rate(&client, SIZE, IN_FLIGHT, duration).await
                })?
            };
            let server = crate::start_server("tarpc", "127.0.0.1:0", "")?;
            let tarpc = runtime.block_on(async {
                let client = tarpc_peer::connect(server.address()).await?;
                tarpc_peer::rate(&client, SIZE, IN_FLIGHT, duration).await
            })?;
            Ok(ours / tarpc)
        },
    },
    Goal {
        name: "shm, 1 MiB Bytes, four at once, of two raw copies",
        of_two_cores: true,
        bar: Bar::AtLeast(FOUR_BAR),
        measure: |runtime, duration| large::four_of_two_copies(runtime, LARGE, duration),
    },
    Goal {
        name: "shm, 32 in flight, a second core, of one",
        of_two_cores: true,
        bar: Bar::AtLeast(shards::BAR),
        measure: |_, duration| shards::of_one_core(duration),
    },
];

/// The mean of a lone call over shared memory in the default mode, relative to event mode.
fn adaptive_of_event(runtime: &Runtime, duration: Duration) -> Result<f64> {
    let adaptive = one_core::shm(runtime, "adaptive", duration)?;
    Ok(adaptive / one_core::shm(runtime, "event", duration)?)
}

/// Measures each goal until a round shows it.
///
/// # Errors
/// When a call fails, and when no round has shown a goal: names the goals.
pub(crate) fn run(runtime: &Runtime, duration: Duration) -> Result<()> {
    // The CPUs of the clients and of the servers.
    ensure!(
        CpuPair::allowed()? == Some(crate::CPUS),
        "this process may not use CPUs {} and {}, on which the two ends run",
        crate::CPUS.client,
        crate::CPUS.server
    );
    row("goal, of the default mode", "rounds", "ratio of the last one");
    let mut missed = Vec::new();
    for goal in &GOALS {
        let (mut rounds, mut shown, mut last) = (0, false, None);
        while !shown && rounds < ROUNDS {
            rounds += 1;
            let Some(ratio) = goal.round(runtime, duration)? else { continue };
            (shown, last) = (goal.bar.is_met(ratio), Some(ratio));
        }
        let verdict = last.map_or_else(
            || "NOT COMPARED: the CPUs are threads of one core".to_owned(),
            |ratio| goal.bar.verdict(ratio),
        );
        row(goal.name, rounds, verdict);
        if last.is_some() && !shown {
            missed.push(goal.name);
        }
    }
    ensure!(missed.is_empty(), "missed in each of {ROUNDS} rounds: {}", missed.join("; "));
    Ok(())
}
