//! `transfer`: copies files and directories between machines, over RDMA, shared memory or TCP.
//!
//! | file | what |
//! |---|---|
//! | `service.rs` | the service: its methods, types, limits and errors |
//! | `path.rs`, `sums.rs`, `block.rs` | paths, checksums and bytes, as they travel |
//! | `tree.rs`, `part.rs` | a directory and files being written in it; nothing outside |
//! | `files.rs` | the service behind such a directory |
//! | `serve.rs` | the server |
//! | `side.rs` | one end, here or at the server: the files below work between any two sides |
//! | `plan.rs` | the entries to copy |
//! | `copy.rs`, `small.rs`, `large.rs` | copying: the order, small files, large ones |
//! | `compare.rs`, `verify.rs` | comparing |
//! | `connect.rs`, `commands.rs`, `progress.rs` | the client and its output |
//! | `cli.rs`, `error.rs` | the texts at both ends |

mod block;
mod cli;
mod commands;
mod compare;
mod connect;
mod copy;
mod error;
mod files;
#[cfg(test)]
mod hostile;
mod large;
#[path = "../metrics.rs"]
mod metrics;
mod part;
mod path;
mod plan;
mod progress;
mod serve;
mod service;
mod side;
mod small;
mod sums;
mod tree;
mod verify;

use std::process::ExitCode;

use clap::Parser;
use rpc_core::text::printable;

use self::cli::{Cli, Command};
use self::error::CommandError;

#[tokio::main]
async fn main() -> ExitCode {
    examples::logging::init();
    let cli = Cli::parse();
    let Err(error) = run(&cli.command).await else { return ExitCode::SUCCESS };
    if !matches!(error, CommandError::OutputClosed) {
        eprintln!("error: {}", printable(&error.to_string()));
    }
    ExitCode::from(error.exit_code())
}

async fn run(command: &Command) -> Result<(), CommandError> {
    match command {
        Command::Serve(args) => serve::serve(args).await,
        Command::Send(args) => commands::send(args).await,
        Command::Receive(args) => commands::receive(args).await,
        Command::Verify(args) => commands::verify(args).await,
    }
}
