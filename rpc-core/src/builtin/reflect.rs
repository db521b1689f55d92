//! Reflection: what a server serves and what it does, for tools such as `rpcctl`.
//!
//! [`ServerBuilder::reflection`](crate::ServerBuilder::reflection) switches the services `rpc.Reflect`
//! and `rpc.Stats` on. Who may call the server then learns the names, documentation and types of all
//! its methods, and what it is busy with; interceptors see these calls as they see all others.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use rpc_core::Server;
//! use rpc_core::reflect::ReflectClient;
//!
//! /// Says good day.
//! #[rpc_core::service]
//! pub trait Greeter {
//!     /// In English.
//!     async fn greet(&self, name: &str) -> String;
//! }
//! # struct Polite; impl Greeter for Polite { async fn greet(&self, _: &str) -> String { "Good day".into() } }
//!
//! let server = Server::builder().add_service(GreeterServer::new(Polite)).reflection().bind("mem://reflect").await?;
//! tokio::spawn(server.serve());
//!
//! let reflect = ReflectClient::connect("mem://reflect").await?;
//! assert_eq!(reflect.services().await?[0].docs, "Says good day.");
//! let method = &reflect.methods("Greeter").await?[0];
//! assert_eq!((&*method.name, &*method.signature), ("Greeter.greet", "(str) -> str"));
//! assert_eq!((&method.arguments[..], &*method.docs), (&["name".to_owned()][..], "In English."));
//! assert_eq!(reflect.schema("Greeter.greet").await?, ["0: str", "result: str"]);
//! # Ok(()) }
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use crate::observability::stats::{ConnectionStats, Histogram, MethodStats, ServerStats};
use crate::server::stats::WeakStatsHandle;
use crate::service::{MethodDescriptor, ServiceDescriptor};
use crate::status::Status;

/// Most characters of a name that are shown back to who asked for it.
const MAX_SHOWN_CHARS: usize = 128;

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
    /// `#[rpc(idempotent)]`: may be carried out more than once.
    pub idempotent: bool,
    /// `#[rpc(no_cancel)]`: runs to its end although the caller has gone away.
    pub no_cancel: bool,
    /// `#[rpc(spawn)]`: is a task from the start.
    pub spawn: bool,
    /// Takes a stream.
    pub streams_arguments: bool,
    /// Gives a stream.
    pub streams_results: bool,
    /// `#[rpc(stream_deadline = "idle")]`: a deadline starts anew with each item.
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

/// What a server serves.
#[crate::service(crate = crate, name = "rpc.Reflect")]
pub trait Reflect {
    /// The services, in the order in which they were added.
    #[rpc(idempotent)]
    async fn services(&self) -> Vec<ServiceInfo>;

    /// The methods of a service. One that is not there is `NotFound`.
    #[rpc(idempotent)]
    async fn methods(&self, service: &str) -> Result<Vec<MethodInfo>, Status>;

    /// What the types of a method, `Service.method`, look like in a message: a line for each part of
    /// them, its path and what is there. Arguments begin with their position, the rest with `result`,
    /// `error`, `sent item`, `item` or `refusal`. Empty for a method that no macro has written. One
    /// that is not there is `NotFound`.
    #[rpc(idempotent)]
    async fn schema(&self, method: &str) -> Result<Vec<String>, Status>;
}

/// Reflects on services, itself included: so it learns of them after it has become one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reflection(Arc<OnceLock<Vec<&'static ServiceDescriptor>>>);

impl Reflection {
    /// Says what there is, once.
    pub(crate) fn reflect_on(&self, services: impl Iterator<Item = &'static ServiceDescriptor>) {
        let _ = self.0.set(services.collect());
    }

    fn all(&self) -> &[&'static ServiceDescriptor] {
        self.0.get().map_or(&[], |services| services)
    }

    fn not_found(&self, what: &str, name: &str) -> Status {
        let shown: String = name.chars().take(MAX_SHOWN_CHARS).collect();
        let names: Vec<_> = self.all().iter().map(|service| service.name).collect();
        Status::not_found(format!(
            "no {what} {shown:?} here; the services are: {}",
            names.join(", ")
        ))
    }
}

impl Reflect for Reflection {
    async fn services(&self) -> Vec<ServiceInfo> {
        let info = |service: &&'static ServiceDescriptor| ServiceInfo {
            name: service.name.to_owned(),
            docs: service.docs.to_owned(),
            methods: service.methods.iter().map(|method| method.name.to_owned()).collect(),
        };
        self.all().iter().map(info).collect()
    }

    async fn methods(&self, service: &str) -> Result<Vec<MethodInfo>, Status> {
        let found = self.all().iter().find(|it| it.name == service);
        let found = found.ok_or_else(|| self.not_found("service", service))?;
        Ok(found.methods.iter().map(|method| MethodInfo::of(method)).collect())
    }

    async fn schema(&self, method: &str) -> Result<Vec<String>, Status> {
        let mut methods = self.all().iter().flat_map(|service| service.methods);
        let found = methods.find(|it| it.name == method);
        let found = found.ok_or_else(|| self.not_found("method", method))?;
        Ok(found.schema().map(|schema| schema.lines().to_vec()).unwrap_or_default())
    }
}

/// The calls of a method, as [`MethodStats`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MethodSnapshot {
    /// `Service.method`. Empty: all calls of methods that the server does not have.
    pub name: String,
    /// Calls that have arrived.
    pub started: u64,
    /// How they ended, by the name of the code.
    pub ended: BTreeMap<String, u64>,
    /// Calls that ended with the method's own error.
    pub user_errors: u64,
    /// Encoded arguments, bytes.
    pub request_bytes: u64,
    /// Encoded results, bytes.
    pub reply_bytes: u64,
    /// The times of handlers: a sample.
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

/// What a server does, as [`ServerStats`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ServerSnapshot {
    /// Its methods, those that nobody has called included.
    pub methods: Vec<MethodSnapshot>,
    /// Some of its connections: those with the most messages.
    pub connections: Vec<ConnectionStats>,
    /// How many there are.
    pub connection_count: u64,
    /// Connections that were set up, ever.
    pub accepted: u64,
    /// Connections that were refused, ever.
    pub refused: u64,
    /// Connections whose set-up failed, ever.
    pub set_ups_failed: u64,
    /// Whether the server shuts down.
    pub is_draining: bool,
    /// Memory of large messages that is in use, bytes.
    pub memory_used_bytes: u64,
    /// The memory budget, bytes.
    pub memory_limit_bytes: u64,
}

impl ServerSnapshot {
    fn of(stats: ServerStats, connection_count: u64) -> Self {
        Self {
            methods: stats.methods.into_iter().map(MethodSnapshot::of).collect(),
            connections: stats.connections,
            connection_count,
            accepted: stats.accepted,
            refused: stats.refused,
            set_ups_failed: stats.set_ups_failed,
            is_draining: stats.is_draining,
            memory_used_bytes: stats.memory_used_bytes,
            memory_limit_bytes: stats.memory_limit_bytes,
        }
    }
}

/// What a server is busy with.
#[crate::service(crate = crate, name = "rpc.Stats")]
pub trait Stats {
    /// A snapshot of the server's counts, with at most so many of its connections.
    #[rpc(idempotent, spawn)]
    async fn server(&self, max_connections: u32) -> Result<ServerSnapshot, Status>;
}

/// Reads the numbers of the server that it is a service of, once there is one.
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
