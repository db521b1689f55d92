//! The command line of `echo`.

use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand, value_parser};
use examples::options::{CodecName, Poll, between_processes};
use examples::tls::{ClientTls, ServerTls};
use examples::units::parse_bytes;
use rpc_core::Address;

/// Largest `--size`, bytes.
const MAX_SIZE_BYTES: u64 = 512 << 20;
/// Calls of a row unless `--calls` overrides it, and the most bytes that they carry in all.
const DEFAULT_CALLS: u64 = 100_000;
const DEFAULT_TOTAL_BYTES: u64 = 2 << 30;

/// Calls a service in another process, and shows the path and the latency of the calls.
///
/// Without a command, it starts the server as a second process and stops it afterwards.
#[derive(Debug, Parser)]
#[command(
    name = "echo",
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  echo                                    server and client, the best transport of this machine
  echo --address tcp://127.0.0.1:0        the same over TCP
  echo --size 1M --in-flight 1,4
  echo server auto://0.0.0.0:7471         two machines: here the server ...
  echo client auto://10.0.0.7:7471        ... and here the client

Addresses: auto://host:port (shm, rdma or tcp, whichever is best), shm://name, shm:///path,
rdma://host:port, tcp://host:port. RUST_LOG=info shows more."
)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) role: Option<Role>,

    #[command(flatten)]
    pub(crate) run: RunOptions,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Role {
    /// Serve until Ctrl-C; prints `READY <address>` on stdout once it accepts
    Server(ServerOptions),
    /// Call a running server
    Client(ClientOptions),
}

#[derive(Debug, Args)]
pub(crate) struct RunOptions {
    /// Where the server listens; port 0 takes a free one
    #[arg(long, default_value = "auto://127.0.0.1:0", value_parser = between_processes)]
    pub(crate) address: Address,

    #[command(flatten)]
    pub(crate) calls: CallOptions,
}

#[derive(Debug, Args)]
pub(crate) struct ClientOptions {
    /// Where the server listens
    #[arg(value_name = "ADDRESS", value_parser = between_processes)]
    pub(crate) address: Address,

    #[command(flatten)]
    pub(crate) calls: CallOptions,
}

#[derive(Debug, Args)]
pub(crate) struct ServerOptions {
    /// Where to listen; port 0 takes a free one
    #[arg(value_name = "ADDRESS", value_parser = between_processes)]
    pub(crate) address: Address,

    /// How to wait for calls
    #[arg(long, value_enum, default_value_t)]
    pub(crate) poll: Poll,

    /// End when stdin does: for a server that must not outlive who started it
    #[arg(long, hide = true)]
    pub(crate) until_stdin_closes: bool,

    #[command(flatten)]
    pub(crate) tls: ServerTls,
}

/// The calls to make.
#[derive(Debug, Clone, Args)]
pub(crate) struct CallOptions {
    /// Calls per row of the result [default: 100000, fewer for large sizes]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    calls: Option<u64>,

    /// Bytes that each call carries in each direction; accepts K and M
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = size)]
    pub(crate) size: u64,

    /// Numbers of calls in flight, one row of the result for each
    #[arg(
        long,
        value_name = "N[,N]",
        value_delimiter = ',',
        default_value = "1,32",
        value_parser = RangedU64ValueParser::<u32>::new().range(1..=10_000)
    )]
    pub(crate) in_flight: Vec<u32>,

    /// How to wait for replies
    #[arg(long, value_enum, default_value_t)]
    pub(crate) poll: Poll,

    /// How arguments and results are encoded
    #[arg(long, value_enum, default_value_t)]
    pub(crate) codec: CodecName,

    #[command(flatten)]
    pub(crate) tls: ClientTls,
}

impl CallOptions {
    /// Calls of each row.
    pub(crate) fn calls(&self) -> u64 {
        let affordable = DEFAULT_TOTAL_BYTES / self.size.max(1);
        self.calls.unwrap_or_else(|| affordable.clamp(100, DEFAULT_CALLS))
    }
}

fn size(text: &str) -> Result<u64, String> {
    let size = parse_bytes(text)?;
    if size > MAX_SIZE_BYTES {
        return Err("a call of this example carries at most 512M".to_owned());
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Options, clap::Error> {
        Options::try_parse_from(line.split(' '))
    }

    #[test]
    fn the_definition_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn the_default_run_is_on_this_machine() {
        let options = parse("echo").unwrap();
        assert!(options.role.is_none());
        assert_eq!(options.run.address.to_string(), "auto://127.0.0.1:0");
        assert_eq!(options.run.calls.in_flight, [1, 32]);
        assert_eq!(options.run.calls.calls(), 100_000);
    }

    #[test]
    fn large_calls_are_fewer_unless_asked_for() {
        assert_eq!(parse("echo --size 1M").unwrap().run.calls.calls(), 2048);
        assert_eq!(parse("echo --size 512M").unwrap().run.calls.calls(), 100);
        assert_eq!(parse("echo --size 0").unwrap().run.calls.calls(), 100_000);
        assert_eq!(parse("echo --size 512M --calls 3").unwrap().run.calls.calls(), 3);
    }

    #[test]
    fn mistakes_are_named() {
        for (line, part) in [
            ("echo server 127.0.0.1:0", "a scheme is missing"),
            ("echo server mem://a", "use shm://a"),
            ("echo --calls 0", "0"),
            ("echo --size 1G", "at most 512M"),
            ("echo --in-flight 0,1", "1..=10000"),
            ("echo client", "<ADDRESS>"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
