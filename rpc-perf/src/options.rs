//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use rpc_core::{Address, PollMode};
use rpc_discovery::Destination;

use crate::service::MAX_PAYLOAD_BYTES;
use crate::units::{parse_bytes, parse_duration};

/// Measures the cost of calls (latency, rate, bandwidth, memory and CPU time) and compares it with
/// the raw limits of the machine.
#[derive(Debug, Parser)]
#[command(
    name = "rpc-perf",
    version,
    after_help = "Examples:
  rpc-perf all                                every transport of this machine
  rpc-perf all --schemes shm --only latency,rate --duration 5s
  rpc-perf all --json now.json --plot now.svg --compare before.json
  rpc-perf server tcp://0.0.0.0:7479          two machines: here the server ...
  rpc-perf client tcp://10.0.0.7:7479 --rate 50000      ... and here the client
  rpc-perf show now.json --compare before.json          a saved run"
)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure every transport of this machine, each with a server process of its own
    All(AllOptions),
    /// Serve calls until Ctrl-C; prints `READY <address>` once it accepts
    Server(ServerOptions),
    /// Measure a running server
    Client(ClientOptions),
    /// Show a run saved by --json
    Show(ShowOptions),
}

#[derive(Debug, Args)]
pub(crate) struct AllOptions {
    /// Transports to measure [default: all that work on this machine]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SCHEME,..")]
    pub(crate) schemes: Vec<Scheme>,

    /// Do not pin the two ends to CPUs
    #[arg(long)]
    pub(crate) no_pin: bool,

    #[command(flatten)]
    pub(crate) measure: MeasureOptions,

    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

#[derive(Debug, Args)]
pub(crate) struct ServerOptions {
    /// Where to listen: shm://name, tcp://host:port, rdma://host:port, auto://host:port; port 0
    /// takes a free one
    #[arg(value_name = "ADDRESS", value_parser = between_processes)]
    pub(crate) address: Address,

    /// How to wait for calls
    #[arg(long, value_enum, default_value_t)]
    pub(crate) poll: Poll,

    /// Pin to this CPU
    #[arg(long, value_name = "N")]
    pub(crate) cpu: Option<usize>,

    /// Serve with TLS: a directory of certificates, as `rpcctl cert dev` makes it
    #[arg(long, value_name = "DIR")]
    pub(crate) tls: Option<PathBuf>,

    /// End when stdin closes: for a server that must not outlive its parent
    #[arg(long, hide = true)]
    pub(crate) until_stdin_closes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ClientOptions {
    /// Where `rpc-perf server` listens, or a name of several servers: etcd://host:port/prefix,
    /// file:///path. The server's CPU time and memory are then of any one of them
    #[arg(value_name = "ADDRESS", value_parser = destination)]
    pub(crate) address: Destination,

    /// Pin to this CPU
    #[arg(long, value_name = "N")]
    pub(crate) cpu: Option<usize>,

    #[command(flatten)]
    pub(crate) measure: MeasureOptions,

    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

#[derive(Debug, Args)]
pub(crate) struct ShowOptions {
    /// A file written by --json
    #[arg(value_name = "FILE")]
    pub(crate) report: PathBuf,

    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// What to measure, and how long.
#[derive(Debug, Clone, Args)]
pub(crate) struct MeasureOptions {
    /// Duration of one measurement; payloads get a quarter of it per size and direction
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    pub(crate) duration: Duration,

    /// What to measure [default: everything]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "WHAT,..")]
    pub(crate) only: Vec<What>,

    /// Also measure latency at this many calls per second: an open loop, which keeps its pace when
    /// calls are slow and times each call from when it was due
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..=10_000_000))]
    pub(crate) rate: Option<u64>,

    /// Size of a small call's argument and of its result
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = call_size)]
    pub(crate) call_size: usize,

    /// Largest payload
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = payload_size)]
    pub(crate) max_size: usize,

    /// Number of idle connections whose memory is measured
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        value_parser = RangedU64ValueParser::<u32>::new().range(1..=10_000)
    )]
    pub(crate) connections: u32,

    /// How both ends wait (with `client`: this end)
    #[arg(long, value_enum, default_value_t)]
    pub(crate) poll: Poll,

    /// Connect with TLS: a directory of certificates, as `rpcctl cert dev` makes it
    #[arg(long, value_name = "DIR")]
    pub(crate) tls: Option<PathBuf>,

    /// The SPIFFE id that the server must prove
    #[arg(long, value_name = "SPIFFE_ID", default_value = "spiffe://dev.local/server")]
    pub(crate) expect_peer: String,
}

impl MeasureOptions {
    pub(crate) fn wants(&self, what: What) -> bool {
        self.only.is_empty() || self.only.contains(&what)
    }
}

/// The outputs in addition to the tables.
#[derive(Debug, Clone, Args)]
pub(crate) struct OutputOptions {
    /// Write the result as JSON; `-` is stdout, instead of the tables
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Draw latencies and bandwidths as SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,

    /// Show ratios to an earlier run saved by --json
    #[arg(long, value_name = "FILE")]
    pub(crate) compare: Option<PathBuf>,
}

impl OutputOptions {
    /// Whether stdout is only for JSON.
    pub(crate) fn json_on_stdout(&self) -> bool {
        self.json.as_ref().is_some_and(|path| path.as_os_str() == "-")
    }
}

/// A transport that `all` can set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scheme {
    /// Two threads of one process
    Mem,
    /// Shared memory between two processes
    Shm,
    /// The software device over TCP
    Tcp,
    /// Verbs on an RDMA device
    Rdma,
}

/// A part of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum What {
    /// One call at a time, and with --rate calls at a fixed rate
    Latency,
    /// Calls per second with 1, 32 and 256 in flight, and their CPU time
    Rate,
    /// Payloads of all sizes, owned and registered, up and down
    Bandwidth,
    /// Small calls on a connection that also carries payloads
    Beside,
    /// Memory of idle connections
    Idle,
    /// New connections per second
    Connect,
}

/// How an end waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Poll {
    /// Spin for a moment, then sleep
    #[default]
    Adaptive,
    /// Never sleep: one core at 100 %
    Busy,
    /// Sleep at once
    Event,
}

impl Poll {
    pub(crate) fn mode(self) -> PollMode {
        match self {
            Self::Adaptive => PollMode::Adaptive,
            Self::Busy => PollMode::Busy,
            Self::Event => PollMode::Event,
        }
    }
}

/// The command-line word of an option.
pub(crate) fn word(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn between_processes(text: &str) -> Result<Address, String> {
    let address: Address = text.parse().map_err(|error| format!("{error}"))?;
    match &address {
        Address::Mem(_) => Err("mem:// cannot be reached from another process; measure it with \
                                `rpc-perf all --schemes mem`"
            .to_owned()),
        _ => Ok(address),
    }
}

fn destination(text: &str) -> Result<Destination, String> {
    match text.parse().map_err(|error| format!("{error}"))? {
        Destination::Server(_) => between_processes(text).map(Destination::Server),
        name => Ok(name),
    }
}

fn call_size(text: &str) -> Result<usize, String> {
    at_most(1 << 20, text)
}

fn payload_size(text: &str) -> Result<usize, String> {
    match at_most(MAX_PAYLOAD_BYTES, text)? {
        ..64 => Err("the smallest payload is 64 bytes".to_owned()),
        size => Ok(size),
    }
}

fn at_most(limit: usize, text: &str) -> Result<usize, String> {
    match usize::try_from(parse_bytes(text)?) {
        Ok(size) if size <= limit => Ok(size),
        _ => Err(format!("{} at most", crate::units::bytes(limit as u64))),
    }
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
    fn everything_is_measured_unless_asked_otherwise() {
        let Command::All(all) = parse("rpc-perf all").unwrap().command else { panic!() };
        assert!(all.measure.wants(What::Latency) && all.measure.wants(What::Connect));
        let options = parse("rpc-perf all --only rate,idle --duration 20ms").unwrap();
        let Command::All(all) = options.command else { panic!() };
        assert!(all.measure.wants(What::Idle) && !all.measure.wants(What::Latency));
        assert_eq!(all.measure.duration, Duration::from_millis(20));
    }

    #[test]
    fn mistakes_are_named() {
        for (line, part) in [
            ("rpc-perf", "Usage"),
            ("rpc-perf all --schemes udp", "[possible values: mem, shm, tcp, rdma]"),
            ("rpc-perf all --only everything", "possible values"),
            ("rpc-perf all --duration 0", "1ms to 1h"),
            ("rpc-perf all --duration fast", "write 5s or 200ms"),
            ("rpc-perf all --rate 0", "1..=10000000"),
            ("rpc-perf all --max-size 1G", "64 MiB at most"),
            ("rpc-perf all --max-size 1", "64 bytes"),
            ("rpc-perf client", "<ADDRESS>"),
            ("rpc-perf client 10.0.0.7:1", "a scheme is missing"),
            ("rpc-perf server mem://a", "--schemes mem"),
            ("rpc-perf show", "<FILE>"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
