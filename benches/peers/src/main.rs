//! This framework next to its peers, in one interleaved run, as one table.

mod certificates;
mod columns;
mod connections;
#[cfg(feature = "capnp")]
#[rustfmt::skip]
#[allow(warnings, clippy::all, clippy::pedantic, reason = "generated")]
mod echo_capnp;
mod goals;
mod measure;
mod peers;
mod plot;
mod rounds;
mod row;
mod rows;
mod server;
#[cfg(any(feature = "capnp", feature = "tarpc", feature = "tonic"))]
mod socket_file;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use rpc_perf::cores::CpuPair;

use crate::measure::Plan;
use crate::row::Row;

/// Measures this framework, its peers and the raw limits of this machine in one interleaved run:
/// 64-byte calls one at a time and 32 at once, and payloads of 1 MiB both ways, one and four at
/// once. Each server is a process on a CPU of its own. Prints a table: medians over the rounds, and
/// half of their spread.
#[derive(Debug, Parser)]
#[command(name = "peers", version, max_term_width = 100)]
struct Options {
    /// How many times everything is measured, in turn.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// How long each number takes; a round has about seventy.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    duration: u64,
    /// Only rows whose name contains one of these, such as `tarpc`, `/tcp` or `floor/eventfd`.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Writes every number of every round to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draws the medians as bars, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Looks at the goals among the rows instead, each until a round shows it; fails if none of
    /// twenty does.
    #[arg(long, conflicts_with_all = ["rounds", "json", "plot", "list"])]
    goals: bool,
    /// Measures instead what connections of this framework over TCP cost with TLS, beside plain
    /// ones.
    #[arg(long, conflicts_with_all = ["rounds", "json", "plot", "list", "goals"])]
    connections: bool,
    /// Prints the names of the rows and ends.
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, command, name, place, cpu] = &arguments[..]
        && command == server::SERVE
    {
        let row = rows::named(name).with_context(|| format!("there is no row {name}"))?;
        server::serve(row, place, cpu.parse()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let options = Options::parse();
    let rows = chosen(&options.only)?;
    if options.list {
        for row in &rows {
            println!("{}", row.name());
        }
        return Ok(ExitCode::SUCCESS);
    }
    let cpus = CpuPair::allowed()?.context(
        "this process may use one CPU only, and client and server need one each; `taskset -p $$` shows which",
    )?;
    let plan = Plan { duration: Duration::from_millis(options.duration) };
    if options.connections {
        connections::run(plan.duration, cpus)?;
        return Ok(ExitCode::SUCCESS);
    }
    if options.goals {
        goals::run(&rows, &plan, cpus)?;
        return Ok(ExitCode::SUCCESS);
    }
    let rounds = rounds::run(&rows, options.rounds, &plan, cpus)?;
    table::print(&rows, &rounds, &plan);
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&table::json(&rounds, &plan))?;
        write(path, &(text + "\n"))?;
    }
    if let Some(path) = &options.plot {
        write(path, &plot::svg(&rows, &rounds)?)?;
    }
    let failed = rounds.iter().any(|round| round.rows.iter().any(|(_, numbers)| numbers.is_err()));
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// The selected rows; all, if none was selected.
fn chosen(only: &[String]) -> Result<Vec<Row>> {
    let all = rows::all();
    for part in only {
        if !all.iter().any(|row| row.name().contains(part.as_str())) {
            let names: Vec<_> = all.iter().map(Row::name).collect();
            bail!("--only {part}: no row has that in its name; there are {}", names.join(", "));
        }
    }
    let wanted =
        |row: &Row| only.is_empty() || only.iter().any(|part| row.name().contains(part.as_str()));
    let rows: Vec<_> = all.into_iter().filter(wanted).collect();
    ensure!(!rows.is_empty(), "no rows");
    Ok(rows)
}
