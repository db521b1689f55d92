//! Simulates whole systems: servers of several versions, clients and faults, all drawn from a seed
//! that repeats them. `docs/simulator.md` describes it.
//!
//! | file | idea |
//! |---|---|
//! | `chance`, `clock` | the world's random numbers, and its time |
//! | `interpose` | the C library's, replaced |
//! | `plan` | what a world is, and how it is made smaller |
//! | `world`, `ends`, `fleet`, `load`, `left` | its course, its settings, its servers, its calls |
//! | `types`, `services`, `desk` | versions of a service, and its handlers |
//! | `oracle`, `ledger`, `rules` | what must come of calls, what came of them, what is broken |
//! | `trace`, `report` | what happened, for people and for the process that asked |
//! | `process`, `twice`, `minimize`, `seeds` | worlds in processes of their own |

#![expect(clippy::cast_possible_truncation, reason = "a world has few calls, and for some time")]

mod chance;
mod clock;
mod desk;
mod ends;
mod fleet;
mod interpose;
mod ledger;
mod left;
mod load;
mod minimize;
mod oracle;
mod plan;
mod process;
mod report;
mod rules;
mod seeds;
mod services;
mod trace;
mod twice;
mod types;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use crate::plan::{Cut, Plan};
use crate::report::Report;
use crate::seeds::{Known, Seeds};

/// How long a world may take, in real time: it hangs, or spins without a look at the clock.
/// Without optimization it takes some ten times as long.
const REAL_LIMIT: Duration = Duration::from_secs(if cfg!(debug_assertions) { 240 } else { 120 });

/// The exit code of a world that takes too long.
const TOO_LONG: i32 = 71;

/// Simulates whole systems, each drawn from a seed that repeats it, and checks rules that no part
/// can keep alone.
#[derive(Debug, Parser)]
#[command(after_help = "\
Exit codes: 0: all is right. 1: a rule was broken, or nothing was compared. 2: wrong options.
3: two runs of a seed differ.

A failure prints its seed. `--seed N` repeats it; `--seed N --minimize` makes it smaller.")]
struct Options {
    /// Runs the world of this seed, and shows what happened in it if a rule was broken
    #[arg(long, conflicts_with_all = ["seeds", "seconds"])]
    seed: Option<u64>,
    /// Runs that many worlds [default: 100]
    #[arg(long, value_name = "COUNT", conflicts_with = "seconds")]
    seeds: Option<u64>,
    /// The first seed of several [default: 1, or of `--seconds` another one each time]
    #[arg(long, value_name = "SEED", conflicts_with = "seed")]
    from: Option<u64>,
    /// Runs worlds for that long
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
    /// Worlds at once [default: the number of cores]
    #[arg(long)]
    jobs: Option<usize>,
    /// Runs each seed twice, and compares the traces of both runs, down to each look at the clock
    #[arg(long)]
    twice: bool,
    /// Makes each failing world smaller, as long as it breaks the same rule
    #[arg(long)]
    minimize: bool,
    /// Ends with the first world that breaks a rule
    #[arg(long)]
    first: bool,
    /// Takes something out of the world: copies, keyed, hedged, .., outage:NUMBER
    #[arg(long, value_name = "WHAT")]
    without: Vec<Cut>,
    /// Does not count a fault: the name of a rule, or RULE/FEATURE+FEATURE for worlds that have all
    /// of these features
    #[arg(long, value_name = "FINGERPRINT")]
    known: Vec<Known>,
    /// Writes the whole trace of the world into a file
    #[arg(long, value_name = "FILE", requires = "seed")]
    trace: Option<PathBuf>,
    /// Runs the world here instead of in a process of its own: for debuggers
    #[arg(long, hide = true, requires = "seed")]
    in_this_process: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let (true, Some(seed)) = (options.in_this_process, options.seed) {
        return run_here(seed, &options);
    }
    let seeds = Seeds {
        jobs: options.jobs.unwrap_or_else(cores).max(1),
        twice: options.twice,
        minimize: options.minimize,
        first: options.first,
        cuts: options.without,
        known: options.known,
    };
    match (options.seed, options.seconds) {
        (Some(seed), _) => seeds.one(seed, options.trace.as_deref()),
        (None, Some(seconds)) => {
            let from = options.from.unwrap_or_else(fresh);
            println!("the first seed is {from}");
            seeds.all(from, None, Some(Duration::from_secs(seconds)))
        }
        (None, None) => {
            seeds.all(options.from.unwrap_or(1), Some(options.seeds.unwrap_or(100)), None)
        }
    }
}

fn run_here(seed: u64, options: &Options) -> ExitCode {
    std::thread::spawn(|| {
        std::thread::sleep(REAL_LIMIT);
        eprintln!("the world did not end within {} s of real time", REAL_LIMIT.as_secs());
        std::process::exit(TOO_LONG);
    });
    let plan = Plan::draw(seed).without_all(&options.without);
    world::run(&plan);
    print!("{}", Report::of(&plan));
    if let Some(file) = &options.trace
        && let Err(error) = std::fs::write(file, trace::whole())
    {
        eprintln!("{}: {error}", file.display());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// A seed that was hardly used before, and is short enough to be typed.
fn fresh() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |now| now.as_secs()) * 1000
}
