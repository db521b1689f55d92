//! The command line of `kv`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use clap::{ArgGroup, Args, Parser, Subcommand};
use examples::options::{CodecName, Poll, between_processes};
use examples::serving::ServerArgs;
use examples::units::parse_bytes;
use rpc_core::Address;
use rpc_discovery::{Destination, Etcd};

use super::service::Version;

/// A key-value store in memory, and the commands to use it.
///
/// Keys are strings, values are bytes of up to 1 GiB (less 1 MiB). The store is lost when the
/// server ends; `export` it before.
#[derive(Debug, Parser)]
#[command(
    name = "kv",
    version,
    after_help = "Examples:
  kv serve auto://127.0.0.1:7471                  a server for this machine; Ctrl-C ends it
  kv put auto://127.0.0.1:7471 greeting hello
  kv get auto://127.0.0.1:7471 greeting
  kv import auto://127.0.0.1:7471 ./photos        a whole directory tree
  kv list auto://127.0.0.1:7471 2024/ --long
  kv export auto://127.0.0.1:7471 ./copy          and back, byte for byte

Addresses: auto://host:port (shm, rdma or tcp, whichever is best), shm://name, shm:///path,
rdma://host:port, tcp://host:port. RUST_LOG=info shows more.

Exit status: 0 done, 1 failed, 2 wrong usage."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a store until Ctrl-C; prints `READY <address>` for each address once it accepts
    #[command(after_help = "Examples:
  kv serve auto://127.0.0.1:7471                     for this machine
  kv serve auto://0.0.0.0:7471 --max-bytes 8G        for all others too
  kv serve shm://kv tcp://127.0.0.1:0                two addresses of the same store
  kv serve auto://0.0.0.0:7471 --register etcd://10.0.0.1:2379/rpc/kv --advertise auto://10.0.0.5:0
                                                     found by `kv list etcd://10.0.0.1:2379/rpc/kv`")]
    Serve(Box<ServeArgs>),
    /// Print the value of a key
    Get(GetArgs),
    /// Set the value of a key; prints its new version
    #[command(
        override_usage = "kv put [OPTIONS] <ADDRESS> <KEY> <VALUE | --file <FILE>>",
        after_help = "Examples:
  kv put auto://127.0.0.1:7471 greeting hello
  kv put auto://127.0.0.1:7471 photo --file cat.jpg
  date | kv put auto://127.0.0.1:7471 now -"
    )]
    Put(PutArgs),
    /// Remove a key
    Del(DelArgs),
    /// Set the value of a key if it has the version that you expect (compare and swap)
    #[command(
        override_usage = "kv cas [OPTIONS] <ADDRESS> <KEY> <EXPECTED> <VALUE | --file <FILE>>",
        after_help = "Examples:
  kv cas auto://127.0.0.1:7471 leader absent me
  kv cas auto://127.0.0.1:7471 leader 7 somebody-else"
    )]
    Cas(CasArgs),
    /// List keys in order
    List(ListArgs),
    /// Print changes of keys as they happen, until Ctrl-C
    ///
    /// A line is `set VERSION BYTES KEY`, `deleted VERSION KEY`, or `lagged N` where N changes came
    /// faster than they were read.
    Watch(WatchArgs),
    /// Set the values of many keys in one call: a line each, with a tab between key and value
    #[command(after_help = "Examples:
  kv load auto://127.0.0.1:7471 table.tsv
  seq 1000 | sed 's/.*/n&\\t&/' | kv load auto://127.0.0.1:7471 -")]
    Load(LoadArgs),
    /// Bring the files of a directory up to date with the keys
    ///
    /// Only differences are sent. Files whose keys are not in the store are listed and left alone.
    Sync(SyncArgs),
    /// Show the contents and the counters of the server
    Stats(StatsArgs),
    /// Store every file of a directory tree
    ///
    /// A file's key is its path below DIR with `/` between the names. An empty directory is stored
    /// as a key that ends in `/`. Contents are kept byte for byte; modes, owners and times are not.
    ///
    /// Symbolic links, pipes, sockets and devices are listed and skipped. Names that are not UTF-8
    /// and files above the maximum size of a value are errors. Failures are listed and do not stop
    /// the rest; the exit status is then 1.
    #[command(after_help = "Examples:
  kv import auto://127.0.0.1:7471 ./photos
  kv import auto://127.0.0.1:7471 ./photos --prefix photos/ --in-flight 8")]
    Import(ImportArgs),
    /// Write keys as the files of a directory tree
    ///
    /// DIR is created if it does not exist. Existing files are replaced, others are left alone. A
    /// key that ends in `/` becomes a directory. A file appears whole or not at all.
    ///
    /// Nothing is ever written outside DIR: absolute keys and those with `.`, `..` or empty path
    /// components are refused, and symbolic links below DIR are not followed. Failures are listed
    /// and do not stop the rest; the exit status is then 1.
    #[command(after_help = "Examples:
  kv export auto://127.0.0.1:7471 ./copy
  kv export auto://127.0.0.1:7471 ./photos --prefix photos/")]
    Export(ExportArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Where to listen; port 0 takes a free one. May be repeated
    #[arg(value_name = "ADDRESS", required = true, value_parser = between_processes)]
    pub(crate) addresses: Vec<Address>,

    /// Maximum size of all keys and values [default: no limit]; accepts K, M, G
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) max_bytes: Option<u64>,

    /// Register the server in etcd while it serves: etcd://host:port/rpc/kv. Others then use that
    /// name as its address
    #[arg(long, value_name = "NAME")]
    pub(crate) register: Option<Etcd>,

    /// The address to register, if clients cannot use the first ADDRESS: port 0 is its port
    #[arg(long, value_name = "ADDRESS", requires = "register", value_parser = between_processes)]
    pub(crate) advertise: Option<Address>,

    /// The zone to register: clients of a zone prefer its servers
    #[arg(long, requires = "register")]
    pub(crate) zone: Option<String>,

    #[command(flatten)]
    pub(crate) server: ServerArgs,

    #[command(flatten)]
    pub(crate) tls: examples::tls::ServerTls,
}

/// The options that every client command needs to connect.
#[derive(Debug, Args)]
pub(crate) struct ConnectArgs {
    /// Where the server listens, or a name of several: etcd://host:port/prefix, file:///path
    #[arg(value_name = "ADDRESS", value_parser = destination)]
    pub(crate) address: Destination,

    /// Timeout of a call, seconds
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "60",
        value_parser = seconds,
        help_heading = "Connection"
    )]
    pub(crate) timeout: Duration,

    /// Wait for an unavailable server, until the timeout (`watch`: without limit). Retryable calls
    /// survive restarts of the server; watches, loads and syncs do not
    #[arg(long, help_heading = "Connection")]
    pub(crate) wait: bool,

    /// How to wait for replies
    #[arg(long, value_enum, default_value_t, help_heading = "Connection")]
    pub(crate) poll: Poll,

    /// How arguments and results are encoded
    #[arg(long, value_enum, default_value_t, help_heading = "Connection")]
    pub(crate) codec: CodecName,

    #[command(flatten)]
    pub(crate) tls: examples::tls::ClientTls,
}

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,

    /// The key
    pub(crate) key: String,

    /// Write the value to this file instead of stdout
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Print the version too, on stderr
    #[arg(long)]
    pub(crate) show_version: bool,
}

/// Where a value comes from.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("source").required(true))]
pub(crate) struct ValueArgs {
    /// The value; `-` reads it from stdin
    #[arg(group = "source", allow_hyphen_values = true)]
    pub(crate) value: Option<String>,

    /// Read the value from this file
    #[arg(short, long, group = "source", value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct PutArgs {
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,

    /// The key
    pub(crate) key: String,

    #[command(flatten)]
    pub(crate) value: ValueArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DelArgs {
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,

    /// The key
    pub(crate) key: String,
}

#[derive(Debug, Args)]
pub(crate) struct CasArgs {
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,

    /// The key
    pub(crate) key: String,

    /// The version that the key must have, or `absent`
    pub(crate) expected: Expected,

    #[command(flatten)]
    pub(crate) value: ValueArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,

    /// Only keys that begin with this prefix
    #[arg(default_value = "")]
    pub(crate) prefix: String,

    /// Print version and size before each key
    #[arg(short, long)]
    pub(crate) long: bool,

    /// Stop after this many keys
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) limit: Option<u64>,

    /// End each key with a NUL instead of a line feed, and do not escape control characters
    #[arg(short = '0', long, conflicts_with = "long")]
    pub(crate) null: bool,
}

#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,

    /// Only keys that begin with this prefix
    #[arg(default_value = "")]
    pub(crate) prefix: String,

    /// Stop after this many lines
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) limit: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct LoadArgs {
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,

    /// The file; `-` reads stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct SyncArgs {
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,

    /// The directory; created if it does not exist
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,

    /// Only keys that begin with this prefix, which is removed from the paths
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
}

#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,

    /// The directory
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,

    /// Prefix for every key, for example `photos/`
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,

    #[command(flatten)]
    pub(crate) transfer: TransferArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,

    /// The directory
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,

    /// Only keys that begin with this prefix, which is removed from the paths
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,

    #[command(flatten)]
    pub(crate) transfer: TransferArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TransferArgs {
    /// Number of files in flight
    #[arg(
        long,
        value_name = "N",
        default_value_t = 32,
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=4096)
    )]
    pub(crate) in_flight: usize,
}

/// The version that a compare-and-swap expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Expected(pub(crate) Option<Version>);

impl FromStr for Expected {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "absent" {
            return Ok(Self(None));
        }
        let version = text.parse().map_err(|_| "write a version number, or `absent`".to_owned())?;
        Ok(Self(Some(version)))
    }
}

/// What another process can reach.
fn destination(text: &str) -> Result<Destination, String> {
    match text.parse().map_err(|error| format!("{error}"))? {
        Destination::Server(Address::Mem(_)) => between_processes(text).map(Destination::Server),
        destination => Ok(destination),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "write a number of seconds".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(timeout) if !timeout.is_zero() => Ok(timeout),
        _ => Err("the timeout must be more than 0 seconds".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &[&str]) -> Result<Command, clap::Error> {
        let line = std::iter::once("kv").chain(line.iter().copied());
        Cli::try_parse_from(line).map(|cli| cli.command)
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn values_may_look_like_options() {
        for value in ["-", "--x", "-1", "", "a b"] {
            let Ok(Command::Put(put)) = parse(&["put", "shm://a", "k", value]) else {
                panic!("{value}")
            };
            assert_eq!(put.value.value.as_deref(), Some(value));
        }
    }

    #[test]
    fn a_value_comes_from_one_place() {
        assert!(parse(&["put", "shm://a", "k"]).is_err());
        assert!(parse(&["put", "shm://a", "k", "--file", "f", "v"]).is_err());
        let Ok(Command::Put(put)) = parse(&["put", "shm://a", "k", "--file", "f"]) else {
            panic!()
        };
        assert_eq!((put.value.value, put.value.file), (None, Some("f".into())));
    }

    #[test]
    fn mistakes_are_named() {
        for (line, part) in [
            (&["serve"][..], "<ADDRESS>"),
            (&["serve", "127.0.0.1:1"], "a scheme is missing"),
            (&["serve", "mem://a"], "use shm://a"),
            (&["serve", "shm://a", "--register", "etcd://a"], "the prefix"),
            (&["serve", "shm://a", "--advertise", "shm://a"], "--register"),
            (&["list", "mem://a"], "use shm://a"),
            (&["list", "etcd://a"], "the prefix"),
            (&["serve", "shm://a", "--max-bytes", "lots"], "is not a size"),
            (&["get", "shm://a"], "<KEY>"),
            (&["get", "shm://a", "k", "--timeout", "0"], "more than 0"),
            (&["get", "shm://a", "k", "--timeout=-1"], "more than 0"),
            (&["cas", "shm://a", "k", "new", "v"], "or `absent`"),
            (&["import", "shm://a", "d", "--in-flight", "0"], "1..=4096"),
            (&["list", "shm://a", "--long", "--null"], "cannot be used with"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(part), "{line:?}: {error}");
        }
    }

    #[test]
    fn versions_to_expect() {
        assert_eq!("absent".parse(), Ok(Expected(None)));
        assert_eq!("7".parse(), Ok(Expected(Some(Version(7)))));
        assert!("-7".parse::<Expected>().is_err());
    }
}
