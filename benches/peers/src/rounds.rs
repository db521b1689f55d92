//! Rounds: every row once, one after the other, and checks of the cores in between.
//!
//! The host of a virtual machine may move its CPUs at any time: to two cores, near or far, or to
//! two threads of one. Rounds are distinguished by the round trip of a cache line, and a round
//! during which it changed is compared with nothing.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use anyhow::Result;
use rpc_perf::cores::{self, CpuPair};
use rpc_perf::floor;

use crate::columns::Numbers;
use crate::measure::Plan;
use crate::row::Row;

/// Time for a check of the cores.
const LOOK: Duration = Duration::from_millis(10);

/// How far two CPUs are from each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Distance {
    /// Two threads of one core.
    Siblings,
    /// Two cores that share a cache.
    Near,
    /// Two cores that do not share a cache.
    Far,
}

impl Distance {
    pub(crate) const ALL: [Self; 3] = [Self::Siblings, Self::Near, Self::Far];

    /// The distance that the round trip of a cache line, ns, indicates.
    fn of(line: f64) -> Self {
        match line {
            ..70.0 => Self::Siblings,
            ..200.0 => Self::Near,
            _ => Self::Far,
        }
    }

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Siblings => "two threads of one core",
            Self::Near => "two cores, near",
            Self::Far => "two cores, far apart",
        }
    }
}

/// All rows, measured right after each other.
#[derive(Debug)]
pub(crate) struct Round {
    /// Round trips of a cache line, before each row and at the end, ns.
    pub(crate) lines: Vec<f64>,
    /// Each row by its name.
    pub(crate) rows: Vec<(String, Result<Numbers, String>)>,
}

impl Round {
    /// The distance of the cores; `None` if it changed during the round.
    pub(crate) fn distance(&self) -> Option<Distance> {
        let mut distances = self.lines.iter().map(|line| Distance::of(*line));
        let first = distances.next()?;
        distances.all(|distance| distance == first).then_some(first)
    }
}

pub(crate) fn run(rows: &[Row], rounds: u16, plan: &Plan, cpus: CpuPair) -> Result<Vec<Round>> {
    cores::try_pin(cpus.client)?;
    (1..=rounds).map(|number| round(rows, plan, cpus, &format!("{number} of {rounds}"))).collect()
}

fn round(rows: &[Row], plan: &Plan, cpus: CpuPair, which: &str) -> Result<Round> {
    let mut round = Round { lines: Vec::new(), rows: Vec::new() };
    for row in rows {
        tell(&format!("round {which}: {}", row.name()));
        round.lines.push(floor::line_round_trip(cpus, LOOK)?);
        let numbers = (row.measure)(*row, plan, cpus).map_err(|error| format!("{error:#}"));
        round.rows.push((row.name(), numbers));
    }
    round.lines.push(floor::line_round_trip(cpus, LOOK)?);
    tell("");
    Ok(round)
}

/// Shows the current step on a terminal.
fn tell(what: &str) {
    let mut stderr = std::io::stderr();
    if stderr.is_terminal() {
        let _ = write!(stderr, "\r\x1b[K{what}");
        let _ = stderr.flush();
    }
}
