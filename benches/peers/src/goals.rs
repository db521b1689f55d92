//! The goals among peers that hold, this framework against one of them over the same transport,
//! column by column.
//!
//! One round is enough to show a goal. Other load on the machine can spoil a round, and one row
//! more than the other, but code that became too slow misses in every round. So a miss says
//! something about the code, and CI can check for it.

use anyhow::{Context, Result, ensure};
use rpc_perf::cores::{self, CpuPair};

use crate::columns::{ALL, Column};
use crate::measure::Plan;
use crate::row::Row;

/// Rounds in which a goal can be shown.
const ROUNDS: usize = 20;

struct Goal {
    /// The row of this framework.
    ours: &'static str,
    /// The row to compare with.
    peer: &'static str,
    /// The columns to compare.
    columns: &'static [Column],
    /// Least speed, relative to the peer's: how many times its rate, or how many times shorter than
    /// its time.
    least: f64,
}

#[cfg(feature = "tonic")]
const TLS: &str = "rpc-over-rdma/tcp-tls";

const GOALS: &[Goal] = &[
    Goal { ours: "rpc-over-rdma/tcp", peer: "ruapc/tcp", columns: &ALL, least: 1.0 },
    #[cfg(feature = "rdma")]
    Goal { ours: "rpc-over-rdma/rdma", peer: "ruapc/rdma", columns: &ALL, least: 1.0 },
    #[cfg(feature = "tonic")]
    Goal { ours: TLS, peer: "tonic/tcp-tls", columns: &[Column::Rate], least: 5.0 },
    #[cfg(feature = "tonic")]
    Goal { ours: TLS, peer: "tonic/tcp-tls", columns: &[Column::P50], least: 4.0 },
    #[cfg(feature = "tonic")]
    Goal {
        ours: TLS,
        peer: "tonic/tcp-tls",
        columns: &[Column::UpOne, Column::DownOne],
        least: 2.0,
    },
    #[cfg(feature = "iceoryx2")]
    Goal {
        ours: "rpc-over-rdma/shm-bulk",
        peer: "iceoryx2/poll",
        columns: &[Column::UpFour, Column::DownFour],
        least: 0.7,
    },
];

impl Goal {
    /// Its two rows, if both are among these.
    fn rows(&self, rows: &[Row]) -> Option<[Row; 2]> {
        let named = |name| rows.iter().copied().find(|row| row.name() == name);
        Some([named(self.ours)?, named(self.peer)?])
    }
}

/// Measures each goal between two of these rows until a round has shown every column of it.
///
/// # Errors
/// When a row fails, when there is no goal, and when no round has shown a column: names the
/// columns.
pub(crate) fn run(rows: &[Row], plan: &Plan, cpus: CpuPair) -> Result<()> {
    cores::try_pin(cpus.client)?;
    let goals: Vec<_> = GOALS.iter().filter_map(|goal| Some((goal, goal.rows(rows)?))).collect();
    ensure!(!goals.is_empty(), "no goal has both of its rows among those");
    let mut missed = Vec::new();
    for (goal, pair) in goals {
        println!("{}, speed of {}'s (bar >= {:.2})", goal.ours, goal.peer, goal.least);
        let mut left = goal.columns.to_vec();
        for round in 1..=ROUNDS {
            let measure = |row: Row| {
                (row.measure)(row, plan, cpus).with_context(|| format!("row {}", row.name()))
            };
            let [ours, peer] = [measure(pair[0])?, measure(pair[1])?];
            for column in std::mem::take(&mut left) {
                let speed = column
                    .speed(&ours, &peer)
                    .with_context(|| format!("{} has no {}", goal.ours, column.head()))?;
                if speed >= goal.least {
                    println!("  {:<12} {speed:>8.2}   ok, round {round}", column.head());
                } else {
                    left.push(column);
                    if round == ROUNDS {
                        println!("  {:<12} {speed:>8.2}   MISSED", column.head());
                        missed.push(format!("{} of {}", column.head(), goal.ours));
                    }
                }
            }
            if left.is_empty() {
                break;
            }
        }
    }
    ensure!(missed.is_empty(), "missed in each of {ROUNDS} rounds: {}", missed.join(", "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::Numbers;

    #[test]
    fn every_goal_names_rows_that_are_there() {
        for goal in GOALS {
            assert!(goal.rows(&crate::rows::all()).is_some(), "{}, {}", goal.ours, goal.peer);
        }
    }

    #[test]
    fn shorter_time_and_higher_rate_are_faster() {
        let numbers = |p50, rate| {
            let mut numbers = Numbers::default();
            numbers.set(Column::P50, p50);
            numbers.set(Column::Rate, rate);
            numbers
        };
        let (ours, peer) = (numbers(2.0, 300.0), numbers(8.0, 100.0));
        assert_eq!(Column::P50.speed(&ours, &peer), Some(4.0));
        assert_eq!(Column::Rate.speed(&ours, &peer), Some(3.0));
        assert_eq!(Column::Mean.speed(&ours, &peer), None);
    }
}
