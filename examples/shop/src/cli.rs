//! The command line of `shop`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, value_parser};

/// A shop of three processes. Buys, kills two of them in turn meanwhile, and counts what was lost.
#[derive(Debug, Parser)]
#[command(name = "shop", args_conflicts_with_subcommands = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    #[command(flatten)]
    pub(crate) run: RunOptions,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Keeps the stock
    #[command(hide = true)]
    Inventory(Role),
    /// Takes orders
    #[command(hide = true)]
    Orders(Role),
    /// Speaks HTTP
    #[command(hide = true)]
    Gateway(Role),
}

/// How processes of the shop reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Over {
    /// Shared memory
    Shm,
    /// TCP
    Tcp,
}

#[derive(Debug, Args)]
pub(crate) struct RunOptions {
    /// How long to buy, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: u64,

    /// Buy this many instead, however long it takes
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(8..))]
    pub(crate) orders: Option<u64>,

    /// Buyers at once
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = value_parser!(u64).range(1..=256))]
    pub(crate) buyers: u64,

    /// How the processes reach each other
    #[arg(long, value_enum, default_value = "shm")]
    pub(crate) over: Over,

    /// Tell Prometheus there what orders does, and one port further what inventory does: `/metrics`
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<SocketAddr>,

    /// Stay when all is counted, for a look at the admin pages, until Ctrl-C
    #[arg(long)]
    pub(crate) stay: bool,
}

/// What a process of the shop is told.
#[derive(Debug, Args)]
pub(crate) struct Role {
    /// Where it listens
    #[arg(long)]
    pub(crate) listen: String,
    /// The server that it calls
    #[arg(long)]
    pub(crate) upstream: Option<String>,
    /// Where it keeps what it has done
    #[arg(long)]
    pub(crate) journal: Option<PathBuf>,
    /// Where its admin page is
    #[arg(long, default_value = "127.0.0.1:0")]
    pub(crate) admin: SocketAddr,
    /// Where it tells Prometheus what it does
    #[arg(long)]
    pub(crate) metrics: Option<SocketAddr>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Options::command().debug_assert();
    }
}
