//! The command line of `shop`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, value_parser};
use examples::tls::ClientTls;

/// A shop of three processes. Places orders while two of the processes are killed in turn, and
/// checks that none was lost.
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
    /// Serves HTTP
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
    /// How long to place orders, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: u64,

    /// Place this many orders instead, however long it takes
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(8..))]
    pub(crate) orders: Option<u64>,

    /// Number of concurrent buyers
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = value_parser!(u64).range(1..=256))]
    pub(crate) buyers: u64,

    /// How the processes reach each other
    #[arg(long, value_enum, default_value = "shm")]
    pub(crate) over: Over,

    /// Serve Prometheus metrics of `orders` at this address, and those of `inventory` at the next
    /// port: `/metrics`
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<SocketAddr>,

    /// Keep running after the check, until Ctrl-C, so that the admin pages can be viewed
    #[arg(long)]
    pub(crate) stay: bool,

    #[command(flatten)]
    pub(crate) tls: ClientTls,
}

/// The arguments of a process of the shop.
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
    /// Where to serve its metrics for Prometheus
    #[arg(long)]
    pub(crate) metrics: Option<SocketAddr>,
    /// The certificates of both of its ends
    #[command(flatten)]
    pub(crate) tls: ClientTls,
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
