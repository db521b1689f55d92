//! `rpc-perf`: measures the cost of calls on this machine, compared with its raw limits.
//!
//! `options.rs` is the command line, `run.rs` sets servers up, `measure` measures one of them,
//! `report.rs` is the result, and `table.rs`, `compare.rs` and `plot.rs` present it.

mod compare;
mod measure;
mod options;
mod output;
mod plot;
mod progress;
mod rdma;
mod report;
mod run;
mod server;
mod service;
mod style;
mod table;
mod tls;
mod units;
mod usage;

use std::io;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use rpc_core::text::printable;

use self::options::{Command, Options, OutputOptions, ShowOptions};
use self::output::Output;
use self::report::Report;

/// Exit status after Ctrl-C, by the convention of shells.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let options = Options::parse();
    // One thread per end: with more, each call would only move between threads.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = match runtime {
        Ok(runtime) => {
            let outcome = runtime.block_on(command(&options.command));
            // Raw transfers still in progress end with the process.
            runtime.shutdown_background();
            outcome
        }
        Err(error) => Err(error.into()),
    };
    match outcome {
        Ok(code) => code,
        // The reader has closed the pipe.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", printable(&format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}

async fn command(command: &Command) -> Result<ExitCode> {
    match command {
        Command::Server(options) => server::serve(options).await.map(|()| ExitCode::SUCCESS),
        Command::Show(options) => show(options).map(|()| ExitCode::SUCCESS),
        Command::All(options) => {
            measured(&options.output, async |output| run::all(options, output).await).await
        }
        Command::Client(options) => {
            measured(&options.output, async |output| run::client(options, output).await).await
        }
    }
}

/// Measures until done or interrupted; servers and the progress bar are removed in either case.
async fn measured(
    options: &OutputOptions,
    measure: impl AsyncFnOnce(&mut Output) -> Result<Report>,
) -> Result<ExitCode> {
    let signals = rpc_core::signal::shutdown();
    let mut output = Output::new(options)?;
    let report = tokio::select! {
        biased;
        () = signals => {
            eprintln!("error: interrupted");
            return Ok(ExitCode::from(INTERRUPTED));
        }
        report = measure(&mut output) => report?,
    };
    output.finish(&report)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints a saved run as if it had just been measured.
fn show(options: &ShowOptions) -> Result<()> {
    let report = Report::read(&options.report)?;
    let output = Output::new(&options.output)?;
    output.heading(&report)?;
    for run in &report.runs {
        output.run(run, &report.settings)?;
    }
    output.finish(&report)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
