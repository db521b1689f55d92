//! Reflection: what a server serves and what it does, for tools such as `rpcctl`.
//!
//! [`ServerBuilder::reflection`](crate::ServerBuilder::reflection) enables the services
//! `rpc.Reflect` and `rpc.Stats`. Everybody who can call the server can then read the names,
//! documentation and types of all its methods, and its statistics; interceptors see these calls
//! like all others.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use rpc_core::Server;
//! use rpc_core::reflect::{Description, ReflectClient};
//!
//! /// Says good day.
//! #[rpc_core::service]
//! pub trait Greeter {
//!     /// In English.
//!     async fn greet(&self, name: &str) -> String;
//! }
//! # struct Polite;
//! # impl Greeter for Polite { async fn greet(&self, _: &str) -> String { "Good day".into() } }
//!
//! let builder = Server::builder().add_service(GreeterServer::new(Polite)).reflection();
//! let server = builder.bind("mem://reflect").await?;
//! tokio::spawn(server.serve());
//!
//! let reflect = ReflectClient::connect("mem://reflect").await?;
//! assert_eq!(reflect.services().await?[0].docs, "Says good day.");
//! let mut found = reflect.describe("Greeter.greet").await?;
//! let Some(Description::Method(greet)) = found.try_next().await? else { panic!() };
//! let info = &greet.info;
//! assert_eq!((&*info.name, &*info.signature), ("Greeter.greet", "(str) -> str"));
//! assert_eq!((&info.arguments[..], &*info.docs), (&["name".to_owned()][..], "In English."));
//! assert_eq!(greet.lines, ["0: str", "result: str"]);
//! assert_eq!(greet.types, "argument name: #0\nresult: #0\n#0 str\n");
//! # Ok(()) }
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use crate::layout::Schema;
use crate::service::{MethodDescriptor, ServiceDescriptor};
use crate::stats::handle::WeakStatsHandle;
use crate::stats::{ConnectionStats, ConvertedStats, Histogram, MethodStats, ServerStats};
use crate::status::Status;
use crate::stream::{self, Stream};
use crate::text::printable;

/// Maximum length of a requested name that is repeated in an error, bytes.
const MAX_SHOWN_BYTES: usize = 128;
/// Maximum length of a method's described types, bytes: a message must have room for them.
const MAX_TYPES_BYTES: usize = 1 << 20;

/// A service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ServiceInfo {
    /// Its name.
    pub name: String,
    /// Its documentation, in Markdown.
    pub docs: String,
    /// The names of its methods, each `Service.method`.
    pub methods: Vec<String>,
}

impl ServiceInfo {
    fn of(service: &ServiceDescriptor) -> Self {
        Self {
            name: service.name.to_owned(),
            docs: service.docs.to_owned(),
            methods: service.methods.iter().map(|method| method.name.to_owned()).collect(),
        }
    }
}

/// A method.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MethodInfo {
    /// `Service.method`.
    pub name: String,
    /// Its types and version: `(str, bytes) -> u64 / KvError #2`.
    pub signature: String,
    /// The names of its arguments, without a stream.
    pub arguments: Vec<String>,
    /// Its documentation, in Markdown.
    pub docs: String,
    /// `#[rpc(idempotent)]`: safe to execute more than once.
    pub idempotent: bool,
    /// `#[rpc(no_cancel)]`: runs to its end even if the caller is gone.
    pub no_cancel: bool,
    /// `#[rpc(spawn)]`: runs as a task from the start.
    pub spawn: bool,
    /// Takes a stream.
    pub streams_arguments: bool,
    /// Returns a stream.
    pub streams_results: bool,
    /// `#[rpc(stream_deadline = "idle")]`: the deadline restarts with each item.
    pub idle_deadline: bool,
}

impl MethodInfo {
    fn of(method: &MethodDescriptor) -> Self {
        Self {
            name: method.name.to_owned(),
            signature: method.signature.to_owned(),
            arguments: method.arguments.iter().map(|&name| name.to_owned()).collect(),
            docs: method.docs.to_owned(),
            idempotent: method.idempotent,
            no_cancel: method.no_cancel,
            spawn: method.spawn,
            streams_arguments: method.streams.arguments,
            streams_results: method.streams.results,
            idle_deadline: method.streams.idle_deadline,
        }
    }
}

/// A method with its types.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MethodDescription {
    /// The method without its types.
    pub info: MethodInfo,
    /// The encoding of its types: a line for each part, with its path and its kind. Paths of
    /// arguments begin with their position, other paths with `result`, `error`, `sent item`, `item`
    /// or `refusal`. The server compares callers by these lines
    /// ([`LearntMethod`](crate::service::LearntMethod)). Empty without the macro's description.
    pub lines: Vec<String>,
    /// The same types as the text of an `rpc_schema::Schema`: also the aliases and the defaults of
    /// fields. Empty without the macro's description.
    pub types: String,
}

impl MethodDescription {
    fn of(method: &'static MethodDescriptor) -> Self {
        let info = MethodInfo::of(method);
        let types = method.types().map(ToString::to_string).unwrap_or_default();
        let lines = method.schema().map_or(&[][..], Schema::lines);
        let bytes = types.len() + lines.iter().map(String::len).sum::<usize>();
        match bytes <= MAX_TYPES_BYTES {
            true => Self { info, lines: lines.to_vec(), types },
            false => Self { info, lines: Vec::new(), types: String::new() },
        }
    }
}

/// A part of what a server serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Description {
    /// A service.
    Service(ServiceInfo),
    /// A method.
    Method(MethodDescription),
}

/// Describes the services of a server.
#[crate::service(crate = crate, name = "rpc.Reflect")]
pub trait Reflect {
    /// The services, in the order in which they were added.
    #[rpc(idempotent)]
    async fn services(&self) -> Vec<ServiceInfo>;

    /// What has that name: a method, a service followed by its methods, or all services for the
    /// empty name. It is one answer of one server, unlike several calls of a balanced channel. An
    /// unknown name is `NotFound`.
    #[rpc(spawn, stream_deadline = "idle")]
    async fn describe(&self, name: &str) -> Result<impl Stream<Item = Description>, Status>;
}

/// Describes services, including itself, so it gets their descriptors after it has become one of
/// them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reflection(Arc<OnceLock<Vec<&'static ServiceDescriptor>>>);

impl Reflection {
    /// Sets the services, once.
    pub(crate) fn reflect_on(&self, services: impl Iterator<Item = &'static ServiceDescriptor>) {
        let _ = self.0.set(services.collect());
    }

    fn all(&self) -> &[&'static ServiceDescriptor] {
        self.0.get().map_or(&[], |services| services)
    }

    fn not_found(&self, name: &str) -> Status {
        let shown = printable(name).at_most(MAX_SHOWN_BYTES);
        let names: Vec<_> = self.all().iter().map(|service| service.name).collect();
        Status::not_found(format!(
            "no service or method {shown:?} here; the services are: {}",
            names.join(", ")
        ))
    }
}

impl Reflect for Reflection {
    async fn services(&self) -> Vec<ServiceInfo> {
        self.all().iter().map(|service| ServiceInfo::of(service)).collect()
    }

    async fn describe(&self, name: &str) -> Result<impl Stream<Item = Description>, Status> {
        let is_it = |service: &&'static ServiceDescriptor| {
            name == service.name || service.methods.iter().any(|method| method.name == name)
        };
        if !name.is_empty() && !self.all().iter().any(is_it) {
            return Err(self.not_found(name));
        }
        Ok(stream::iter(self.all().iter().flat_map(move |service| {
            let is_whole = name.is_empty() || name == service.name;
            let head = is_whole.then(|| Description::Service(ServiceInfo::of(service)));
            let methods = service.methods.iter().filter(move |it| is_whole || it.name == name);
            let methods = methods.map(|method| Description::Method(MethodDescription::of(method)));
            head.into_iter().chain(methods)
        })))
    }
}

/// The calls of a method, as [`MethodStats`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MethodSnapshot {
    /// `Service.method`. Empty: all calls of unknown methods.
    pub name: String,
    /// Received calls.
    pub started: u64,
    /// Ended calls, by the name of the code.
    pub ended: BTreeMap<String, u64>,
    /// Calls that ended with the method's own error.
    pub user_errors: u64,
    /// Encoded arguments, bytes.
    pub request_bytes: u64,
    /// Encoded results, bytes.
    pub reply_bytes: u64,
    /// The durations of handlers, sampled.
    pub took: Histogram,
}

impl MethodSnapshot {
    fn of(stats: MethodStats) -> Self {
        let ended = stats.ended.into_iter().map(|(code, count)| (format!("{code:?}"), count));
        Self {
            name: stats.name.to_owned(),
            started: stats.started,
            ended: ended.collect(),
            user_errors: stats.user_errors,
            request_bytes: stats.request_bytes,
            reply_bytes: stats.reply_bytes,
            took: stats.took,
        }
    }
}

/// The statistics of a server, as [`ServerStats`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ServerSnapshot {
    /// Its methods, including those never called.
    pub methods: Vec<MethodSnapshot>,
    /// Some of its connections: those with the most messages.
    pub connections: Vec<ConnectionStats>,
    /// Total number of connections.
    pub connection_count: u64,
    /// Total number of connections set up.
    pub accepted: u64,
    /// Total number of refused connections.
    pub refused: u64,
    /// Total number of connections whose peer may not connect.
    pub denied: u64,
    /// Total number of calls that the server's rules refused.
    pub calls_denied: u64,
    /// Total number of connections without TLS at a server where that is optional.
    pub accepted_plain: u64,
    /// Total number of failed set-ups.
    pub set_ups_failed: u64,
    /// Whether the server is shutting down.
    pub is_draining: bool,
    /// Memory in use for large messages, bytes.
    pub memory_used_bytes: u64,
    /// The memory budget, bytes.
    pub memory_limit_bytes: u64,
    /// Messages of clients whose types differ.
    #[serde(default)]
    pub converted: Vec<ConvertedStats>,
}

impl ServerSnapshot {
    fn of(stats: ServerStats, connection_count: u64) -> Self {
        Self {
            methods: stats.methods.into_iter().map(MethodSnapshot::of).collect(),
            connections: stats.connections,
            connection_count,
            accepted: stats.accepted,
            refused: stats.refused,
            denied: stats.denied,
            calls_denied: stats.calls_denied,
            accepted_plain: stats.accepted_plain,
            set_ups_failed: stats.set_ups_failed,
            is_draining: stats.is_draining,
            memory_used_bytes: stats.memory_used_bytes,
            memory_limit_bytes: stats.memory_limit_bytes,
            converted: stats.converted,
        }
    }
}

/// Reports the statistics of a server.
#[crate::service(crate = crate, name = "rpc.Stats")]
pub trait Stats {
    /// A snapshot of the server's counts, with at most the given number of its connections.
    #[rpc(idempotent, spawn)]
    async fn server(&self, max_connections: u32) -> Result<ServerSnapshot, Status>;
}

/// Reads the statistics of its server, once there is one.
#[derive(Debug, Clone, Default)]
pub(crate) struct OwnStats(pub(crate) Arc<OnceLock<WeakStatsHandle>>);

impl Stats for OwnStats {
    async fn server(&self, max_connections: u32) -> Result<ServerSnapshot, Status> {
        let most = usize::try_from(max_connections).unwrap_or(usize::MAX);
        let read = self.0.get().and_then(|handle| handle.busiest(most));
        let (stats, count) = read.ok_or_else(|| Status::unavailable("the server has ended"))?;
        Ok(ServerSnapshot::of(stats, count))
    }
}
