//! The command line of `fleet`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, value_parser};
use examples::options::between_processes;
use rpc_core::Address;
use rpc_discovery::Etcd;

/// A fleet under load whose servers come, go, fall ill and die.
///
/// Starts etcd, servers that register there, and clients that find them. Scales up, replaces all
/// servers, kills one, stops one, makes one answer with errors, kills and wipes etcd, and scales
/// down. Prints which calls were lost.
#[derive(Debug, Parser)]
#[command(
    name = "fleet",
    version,
    override_usage = "fleet [OPTIONS]",
    disable_help_subcommand = true,
    after_help = "Examples:
  fleet                               a minute, with a picture in the terminal
  fleet --seconds 300 --servers 8 --plot fleet.svg
  fleet --seconds 10 | cat            lines instead of a picture
  fleet --soak --seconds 600          servers are killed all the time

Needs etcd 3.4 or later in PATH: apt-get install etcd-server (or etcd). RUST_LOG=warn shows more.

Exit status: 0 nothing was lost, 1 calls were lost or it failed, 2 wrong usage."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) options: Options,

    #[command(subcommand)]
    pub(crate) role: Option<Role>,
}

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// How long the whole scenario takes, at least, in seconds
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = value_parser!(u32).range(1..=3600))]
    pub(crate) seconds: u32,

    /// Number of servers to start with
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u32).range(3..=32))]
    pub(crate) servers: u32,

    /// Number of clients
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = value_parser!(u32).range(1..=32))]
    pub(crate) clients: u32,

    /// Where each server listens; port 0 takes a free one
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "auto://127.0.0.1:0",
        value_parser = between_processes
    )]
    pub(crate) listen: Address,

    /// Instead of the phases, kill a server every 2 s and etcd every 30 s; also compares memory and
    /// open files before and after
    #[arg(long)]
    pub(crate) soak: bool,

    /// Draw calls and errors per second of each server into this file
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
}

/// The processes that it starts.
#[derive(Debug, Subcommand)]
pub(crate) enum Role {
    /// A server
    #[command(hide = true)]
    Member(Box<MemberArgs>),
    /// etcd, which ends with its parent
    #[command(hide = true)]
    Etcd {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct MemberArgs {
    /// Where it listens
    #[arg(long)]
    pub(crate) listen: Address,
    /// Where it registers
    #[arg(long)]
    pub(crate) register: Etcd,
    /// The file that gets the number of each booking
    #[arg(long)]
    pub(crate) journal: PathBuf,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
        let cli = Cli::try_parse_from(["fleet", "--servers", "7", "--plot", "a.svg"]).unwrap();
        assert!(cli.role.is_none());
        assert_eq!((cli.options.servers, cli.options.seconds), (7, 60));
        for wrong in [["--servers", "2"], ["--seconds", "0"], ["--listen", "mem://a"]] {
            let arguments = ["fleet"].into_iter().chain(wrong);
            assert!(Cli::try_parse_from(arguments).is_err(), "{wrong:?}");
        }
        let help = Cli::command().render_long_help().to_string();
        assert!(!help.contains("Commands:"), "the processes are nobody's business: {help}");
    }
}
