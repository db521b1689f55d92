//! `kv`: a key-value store in memory, served over RDMA, shared memory or TCP, and its commands.
//!
//! | file | what |
//! |---|---|
//! | `service.rs` | the service: its methods, types, limits and errors |
//! | `store.rs` | the map behind it, which knows no calls |
//! | `serve.rs` | the server |
//! | `connect.rs`, `listing.rs`, `commands.rs` | the client, and its commands about single keys |
//! | `streams.rs` | the commands that stream |
//! | `walk.rs`, `import.rs` | a tree becomes keys |
//! | `key_path.rs`, `target_dir.rs`, `export.rs` | keys become a tree, and never leave it |
//! | `output.rs` | the file that a value is written to |
//! | `transfer.rs` | many files in flight, progress, tally |
//! | `cli.rs`, `error.rs` | the words at both ends |

mod cli;
mod commands;
mod connect;
mod error;
mod export;
mod import;
mod key_path;
mod listing;
#[path = "../metrics.rs"]
mod metrics;
mod output;
mod serve;
mod service;
mod store;
mod streams;
mod target_dir;
mod transfer;
mod walk;

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
        Command::Get(args) => commands::get(args).await,
        Command::Put(args) => commands::put(args).await,
        Command::Del(args) => commands::del(args).await,
        Command::Cas(args) => commands::cas(args).await,
        Command::List(args) => commands::list(args).await,
        Command::Stats(args) => commands::stats(args).await,
        Command::Watch(args) => streams::watch(args).await,
        Command::Load(args) => streams::load(args).await,
        Command::Sync(args) => streams::sync(args).await,
        Command::Import(args) => import::import(args).await,
        Command::Export(args) => export::export(args).await,
    }
}
