//! The command line.

use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use rpc_core::{Address, Metadata};

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
    /// How results are written
    #[arg(long, value_enum, default_value_t, global = true)]
    pub(crate) output: Output,

    /// Longest time for connecting and for each call, seconds. Without: 10, and for the call of `call`
    /// no limit
    #[arg(long, value_name = "SECONDS", value_parser = seconds, global = true)]
    pub(crate) timeout: Option<Duration>,

    /// Metadata of each call; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair, global = true)]
    pub(crate) metadata: Vec<(String, String)>,

    /// What arguments and results are encoded by. Without: bincode. The server needs it compiled in, as
    /// it answers in the codec of the call
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

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people
    #[default]
    Text,
    /// For machines: one JSON value a line
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Lists the services of a server
    List(List),
    /// Describes services, or a method with its types and an example
    Describe(Describe),
    /// Calls a method with JSON
    Call(Call),
    /// Tells whether a server, or a service, is to be sent calls; exit code 0 only if it is serving
    Health(Health),
    /// Measures round trips
    Ping(Ping),
    /// Shows what a server does, again and again
    Top(Top),
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// auto://host:port, tcp://host:port, shm://name, ..
    #[arg(value_parser = address)]
    pub(crate) address: String,
}

#[derive(Debug, Args)]
pub(crate) struct Describe {
    /// auto://host:port, tcp://host:port, shm://name, ..
    #[arg(value_parser = address)]
    pub(crate) address: String,
    /// SERVICE or SERVICE.METHOD; all services without
    pub(crate) name: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Call {
    /// auto://host:port, tcp://host:port, shm://name, ..
    #[arg(value_parser = address)]
    pub(crate) address: String,
    /// SERVICE.METHOD
    #[arg(value_parser = method)]
    pub(crate) method: String,
    /// The arguments, an object by their names; `-` reads it from stdin. A stream of arguments is read
    /// from stdin, a value a line
    #[arg(long, value_name = "JSON", value_parser = arguments)]
    pub(crate) json: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Health {
    /// auto://host:port, tcp://host:port, shm://name, ..
    #[arg(value_parser = address)]
    pub(crate) address: String,
    /// The service; the whole server without
    #[arg(default_value = "")]
    pub(crate) service: String,
    /// Tell each change, until the server shuts down
    #[arg(long)]
    pub(crate) watch: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Ping {
    /// auto://host:port, tcp://host:port, shm://name, ..
    #[arg(value_parser = address)]
    pub(crate) address: String,
    /// How many round trips
    #[arg(short, long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) count: u32,
    /// Time between them, seconds
    #[arg(short, long, value_name = "SECONDS", default_value = "0.1", value_parser = seconds)]
    pub(crate) interval: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Top {
    /// auto://host:port, tcp://host:port, shm://name, ..
    #[arg(value_parser = address)]
    pub(crate) address: String,
    /// Time between two looks, seconds
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub(crate) interval: Duration,
    /// How many looks; until Ctrl-C without
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) count: Option<u32>,
    /// Most connections to show: those with the most messages
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) connections: u32,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "a number of seconds, such as 0.5".to_owned())?;
    Duration::try_from_secs_f64(number).map_err(|error| error.to_string())
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("NAME=VALUE is wanted")?;
    let pair = (name.to_owned(), value.to_owned());
    Metadata::new().insert(name, value.to_owned()).map_err(|error| error.to_string())?;
    Ok(pair)
}

/// The address of a server in another process, as it was written.
fn address(text: &str) -> Result<String, String> {
    match text.parse::<Address>().map_err(|error| error.to_string())? {
        Address::Mem(_) => {
            Err("mem:// stays within one process, and rpcctl is another: have the server \
                                listen at shm:// or auto://, too (`bind_all`)"
                .to_owned())
        }
        _ => Ok(text.to_owned()),
    }
}

fn method(text: &str) -> Result<String, String> {
    let is_method = text
        .rsplit_once('.')
        .is_some_and(|(service, method)| !service.is_empty() && !method.is_empty());
    if is_method { Ok(text.to_owned()) } else { Err("SERVICE.METHOD is wanted".to_owned()) }
}

/// JSON, or `-`.
fn arguments(text: &str) -> Result<String, String> {
    if text != "-" {
        serde_json::from_str::<serde_json::Value>(text).map_err(|error| error.to_string())?;
    }
    Ok(text.to_owned())
}
