//! The command line.

use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use rpc_core::identity::Credentials;
use rpc_core::{Address, Metadata};
use rpc_discovery::Destination;

/// Maximum number of bytes read from a file with metadata: more than a call can have.
const MOST_FILE_BYTES: u64 = 1 << 17;

/// Lists, describes, calls and watches the services of a server
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Args)]
pub(crate) struct Common {
    /// Output format
    #[arg(long, value_enum, default_value_t, global = true)]
    pub(crate) output: Output,

    /// Time limit for connecting and for each call, seconds [default: 10; none for the call of
    /// `call`]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, global = true)]
    pub(crate) timeout: Option<Duration>,

    /// Metadata for each call; may be repeated. Other users of this machine can read it: pass
    /// secrets by one of the next two options
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair, global = true)]
    pub(crate) metadata: Vec<(String, String)>,

    /// Metadata whose value is read from an environment variable
    #[arg(long, value_name = "NAME=VARIABLE", value_parser = from_variable, global = true)]
    pub(crate) metadata_env: Vec<(String, String)>,

    /// Metadata whose value is read from a file, without its final line feed
    #[arg(long, value_name = "NAME=PATH", value_parser = from_file, global = true)]
    pub(crate) metadata_file: Vec<(String, String)>,

    /// Credentials for a server that authenticates its clients, from an environment variable
    #[arg(long, value_name = "VARIABLE", value_parser = variable, global = true)]
    pub(crate) credentials_env: Option<Credentials>,

    /// Such credentials from a file, without its final line feed
    #[arg(
        long,
        value_name = "PATH",
        value_parser = file,
        global = true,
        conflicts_with = "credentials_env"
    )]
    pub(crate) credentials_file: Option<Credentials>,

    /// Send credentials also over tcp:// and rdma://, where others may read them
    #[arg(long, global = true)]
    pub(crate) allow_clear_credentials: bool,

    /// Connect with TLS: a directory with client.pem, client-key.pem and ca.pem
    #[arg(long, value_name = "DIR", global = true)]
    pub(crate) tls: Option<PathBuf>,

    /// The SPIFFE id that the server must prove [default: the host in the address]
    #[arg(long, value_name = "SPIFFE_ID", requires = "tls", global = true)]
    pub(crate) expect_peer: Option<String>,

    /// How TLS protects what is sent over a network, as the server does [default: encrypt]
    #[arg(long, value_enum, requires = "tls", global = true)]
    pub(crate) protection: Option<ProtectionName>,

    /// Codec of arguments and results [default: bincode]. The server must have it compiled in
    #[arg(long, value_enum, global = true)]
    pub(crate) codec: Option<CodecName>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CodecName {
    /// bincode 2
    Bincode,
    /// postcard 1
    Postcard,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProtectionName {
    /// Both ends prove who they are; frames are in clear
    Authenticate,
    /// All frames are encrypted, too
    Encrypt,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// Text for people
    #[default]
    Text,
    /// One JSON value per line
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Lists the services of a server
    List(List),
    /// Describes services, or a method with its types and an example
    Describe(Describe),
    /// Calls a method with arguments in JSON
    Call(Call),
    /// Serves the methods of a server as JSON over HTTP, until Ctrl-C
    Gateway(Gateway),
    /// Shows the health of a server or a service; exit code 0 only if it is serving
    Health(Health),
    /// Measures round-trip times
    Ping(Ping),
    /// Shows the servers of a name: address, state, weight, zone, and how long they are so
    Resolve(Resolve),
    /// Saves the types of all methods of a server, and shows what a change of them breaks
    #[command(subcommand)]
    Schema(Schema),
    /// Shows the load of a server, refreshed periodically
    Top(Top),
    /// Makes and shows certificates
    #[command(subcommand)]
    Cert(Cert),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Cert {
    /// Makes an authority, and certificates of a server and a client, for development
    Dev(CertDev),
    /// Shows what the certificates in a PEM file say. Nothing is verified
    Show(CertShow),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Schema {
    /// Writes the types of all methods of a server as text: one file, sorted, for reviews
    Save(SchemaSave),
    /// Shows which methods differ, and whether old and new ends work together; exit code 1 if one
    /// of them breaks
    Diff(SchemaDiff),
}

#[derive(Debug, Args)]
pub(crate) struct SchemaSave {
    /// auto://host:port, tcp://host:port, shm://name, .., or a name: etcd://host:port/prefix
    #[arg(value_parser = address)]
    pub(crate) address: String,
    /// The file, which is replaced [default: stdout]
    #[arg(short = 'o', long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct SchemaDiff {
    /// The types before the change: a file of `schema save`, or the address of a server
    #[arg(value_parser = file_or_address)]
    pub(crate) old: String,
    /// The types after the change: a file or an address
    #[arg(value_parser = file_or_address)]
    pub(crate) new: String,
    /// One JSON value for each change, as `--output json`
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CertDev {
    /// Directory for ca.pem, server.pem, server-key.pem, client.pem and client-key.pem
    #[arg(long, default_value = "tls")]
    pub(crate) dir: PathBuf,
    /// Names and IP addresses of the server, separated by commas
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', default_value = "localhost")]
    pub(crate) names: Vec<String>,
    /// The trust domain of the SPIFFE ids of both
    #[arg(long, value_name = "DOMAIN", default_value = "dev.local")]
    pub(crate) trust_domain: String,
    /// Days until the certificates end
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u16).range(1..=825))]
    pub(crate) days: u16,
    /// Keep the key of the authority as ca-key.pem: its holder can be everybody
    #[arg(long)]
    pub(crate) keep_ca: bool,
    /// Replace files that exist
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CertShow {
    /// A PEM file
    pub(crate) file: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// auto://host:port, tcp://host:port, shm://name, .., or a name: etcd://host:port/prefix
    #[arg(value_parser = address)]
    pub(crate) address: String,
}

#[derive(Debug, Args)]
pub(crate) struct Describe {
    /// auto://host:port, tcp://host:port, shm://name, .., or a name: etcd://host:port/prefix
    #[arg(value_parser = address)]
    pub(crate) address: String,
    /// SERVICE or SERVICE.METHOD [default: all services]
    pub(crate) name: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Call {
    /// auto://host:port, tcp://host:port, shm://name, .., or a name: etcd://host:port/prefix
    #[arg(value_parser = address)]
    pub(crate) address: String,
    /// SERVICE.METHOD
    #[arg(value_parser = method)]
    pub(crate) method: String,
    /// The arguments, as an object with their names; `-` reads it from stdin. A stream of arguments
    /// is read from stdin, one value per line
    #[arg(long, value_name = "JSON", value_parser = arguments)]
    pub(crate) json: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  rpcctl gateway tcp://kv:7471
  curl localhost:8080/Kv/get -d '{\"key\": \"a\"}' -H 'content-type: application/json'
  curl localhost:8080/openapi.json")]
pub(crate) struct Gateway {
    /// auto://host:port, tcp://host:port, shm://name, .., or a name: etcd://host:port/prefix
    #[arg(value_parser = address)]
    pub(crate) address: String,
    /// Where to listen. HTTP is neither encrypted nor authenticated: beyond this machine put a
    /// proxy in front of it
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8080")]
    pub(crate) listen: SocketAddr,
    /// Longest body of a request, and longest line of a stream, bytes
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 20, value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub(crate) max_body: u64,
    /// Most requests at once; more get 503
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) max_requests: u32,
}

#[derive(Debug, Args)]
pub(crate) struct Health {
    /// auto://host:port, tcp://host:port, shm://name, .., or a name: etcd://host:port/prefix
    #[arg(value_parser = address)]
    pub(crate) address: String,
    /// The service [default: the whole server]
    #[arg(default_value = "")]
    pub(crate) service: String,
    /// Show each change until the server shuts down
    #[arg(long)]
    pub(crate) watch: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Ping {
    /// auto://host:port, tcp://host:port, shm://name, .., or a name: etcd://host:port/prefix
    #[arg(value_parser = address)]
    pub(crate) address: String,
    /// Number of round trips
    #[arg(short, long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) count: u32,
    /// Time between round trips, seconds
    #[arg(short, long, value_name = "SECONDS", default_value = "0.1", value_parser = seconds)]
    pub(crate) interval: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Resolve {
    /// etcd://host:port,host:port/prefix, file:///path, auto://host:port, ..
    #[arg(value_parser = name)]
    pub(crate) name: String,
    /// Show each change until Ctrl-C
    #[arg(long)]
    pub(crate) watch: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Top {
    /// auto://host:port, tcp://host:port, shm://name, .., or a name: etcd://host:port/prefix
    #[arg(value_parser = address)]
    pub(crate) address: String,
    /// Refresh interval, seconds
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub(crate) interval: Duration,
    /// Number of refreshes [default: until Ctrl-C]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) count: Option<u32>,
    /// Maximum number of connections to show, busiest first
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) connections: u32,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 =
        text.parse().map_err(|_| "expected a number of seconds, such as 0.5".to_owned())?;
    Duration::try_from_secs_f64(number).map_err(|error| error.to_string())
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    entry(name, value.to_owned())
}

fn from_variable(text: &str) -> Result<(String, String), String> {
    let (name, variable) = text.split_once('=').ok_or("expected NAME=VARIABLE")?;
    entry(name, value_of(variable)?)
}

fn from_file(text: &str) -> Result<(String, String), String> {
    let (name, path) = text.split_once('=').ok_or("expected NAME=PATH")?;
    entry(name, content_of(path)?)
}

fn variable(name: &str) -> Result<Credentials, String> {
    value_of(name).map(Credentials::from)
}

fn file(path: &str) -> Result<Credentials, String> {
    content_of(path).map(Credentials::from)
}

fn value_of(variable: &str) -> Result<String, String> {
    std::env::var(variable).map_err(|error| format!("the variable {variable}: {error}"))
}

fn content_of(path: &str) -> Result<String, String> {
    let mut value = String::new();
    let read =
        File::open(path).and_then(|file| file.take(MOST_FILE_BYTES).read_to_string(&mut value));
    read.map_err(|error| format!("{path}: {error}"))?;
    // Text files end with a line feed, which is not part of a token.
    let end = value.trim_end_matches(['\r', '\n']).len();
    value.truncate(end);
    Ok(value)
}

fn entry(name: &str, value: String) -> Result<(String, String), String> {
    Metadata::new().insert(name, value.clone()).map_err(|error| error.to_string())?;
    Ok((name.to_owned(), value))
}

fn name(text: &str) -> Result<String, String> {
    let resolver = rpc_discovery::resolver(text);
    resolver.map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// The address or name of servers in other processes, as written.
fn address(text: &str) -> Result<String, String> {
    match text.parse::<Destination>().map_err(|error| error.to_string())? {
        Destination::Server(Address::Mem(_)) => {
            Err("mem:// cannot be reached from another process: let the server also listen at \
                                shm:// or auto:// (`bind_all`)"
                .to_owned())
        }
        _ => Ok(text.to_owned()),
    }
}

fn file_or_address(text: &str) -> Result<String, String> {
    if text.contains("://") { address(text) } else { Ok(text.to_owned()) }
}

fn method(text: &str) -> Result<String, String> {
    let is_method = text
        .rsplit_once('.')
        .is_some_and(|(service, method)| !service.is_empty() && !method.is_empty());
    if is_method { Ok(text.to_owned()) } else { Err("expected SERVICE.METHOD".to_owned()) }
}

/// JSON, or `-`.
fn arguments(text: &str) -> Result<String, String> {
    if text != "-" {
        serde_json::from_str::<serde_json::Value>(text).map_err(|error| error.to_string())?;
    }
    Ok(text.to_owned())
}
