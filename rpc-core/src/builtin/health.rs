//! Health: whether a server, or one of its services, should be sent calls. For load balancers and
//! supervisors.
//!
//! [`ServerBuilder::health`](crate::ServerBuilder::health) enables the service `rpc.Health`. The
//! server itself, which has the name "", and each of its services are
//! [`Serving`](ServingStatus::Serving) until their [`HealthReporter`] changes that. From the start
//! of a shutdown, all of them are [`Draining`](ServingStatus::Draining); with a
//! [lead time](crate::ServerBuilder::drain_lead), this is before clients are sent away.
//!
//! ```
//! # #[rpc_core::service] pub trait Greeter { async fn greet(&self) -> String; }
//! # struct Polite;
//! # impl Greeter for Polite { async fn greet(&self) -> String { "Good day".into() } }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use rpc_core::Server;
//! use rpc_core::health::{HealthClient, HealthReporter, ServingStatus};
//!
//! let reporter = HealthReporter::new();
//! let server = Server::builder()
//!     .add_service(GreeterServer::new(Polite))
//!     .health(&reporter)
//!     .bind("mem://health")
//!     .await?;
//! tokio::spawn(server.serve());
//!
//! let health = HealthClient::connect("mem://health").await?;
//! assert_eq!(health.check("Greeter").await?, ServingStatus::Serving);
//! let mut states = health.watch("Greeter").await?; // the current status and later ones
//! reporter.set("Greeter", ServingStatus::NotServing); // for example, its database is down
//! while states.try_next().await? != Some(ServingStatus::NotServing) {}
//! # Ok(()) }
//! ```
//!
//! Interceptors see these calls too, so one that requires a token rejects probes without one:
//! [`ServerBuilder::open_health`](crate::ServerBuilder::open_health) bypasses the interceptors.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use rpc_transport::lock::Mutex;
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::runtime::watched::{Closed, Watch, Watched};
use crate::status::Status;
use crate::stream::{self, Stream};
use crate::text::printable;

/// Maximum length of a requested name that is repeated in an error, bytes.
const MAX_SHOWN_BYTES: usize = 128;

/// The health of a server or a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ServingStatus {
    /// Calls are accepted.
    Serving,
    /// Calls are still answered, but the server is about to shut down: send new ones to another
    /// server.
    Draining,
    /// Calls would fail.
    NotServing,
}

impl fmt::Display for ServingStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Serving => "serving",
            Self::Draining => "draining",
            Self::NotServing => "not serving",
        })
    }
}

/// Whether a server and its services should be sent calls. See [`health`](self).
#[crate::service(crate = crate, name = "rpc.Health")]
pub trait Health {
    /// Returns the status of a service, or of the whole server, whose name is empty. An unknown
    /// service is `NotFound`.
    #[rpc(idempotent)]
    async fn check(&self, service: &str) -> Result<ServingStatus, Status>;

    /// Streams the current status of a service and each later one; if changes are faster than the
    /// reader, the latest. It ends when the server begins to shut down, with `Draining` as its last
    /// item. Fails like `check`.
    async fn watch(&self, service: &str) -> Result<impl Stream<Item = ServingStatus>, Status>;
}

type Statuses = BTreeMap<String, Watched<ServingStatus>>;

/// Sets the health of services. Cheap to clone; clones share the state.
///
/// A reporter can be used by several servers.
#[derive(Clone, Default)]
pub struct HealthReporter(Arc<Mutex<Statuses>>);

impl HealthReporter {
    /// Creates a reporter in which everything is serving.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the status of a service, or of the whole server: "". The status of the server does not
    /// affect that of its services, nor the other way round. An unknown name is added.
    pub fn set(&self, service: &str, status: ServingStatus) {
        // Watchers are woken after the lock is released.
        let sender = self.sender(service, status);
        sender.update(|now| std::mem::replace(now, status) != status);
    }

    /// The status as set; `None` for an unknown name. It does not reflect a server's shutdown.
    #[must_use]
    pub fn status(&self, service: &str) -> Option<ServingStatus> {
        self.0.lock().get(service).map(Watched::get)
    }

    /// The known names, sorted, with their status as set. "" is the whole server. It does not
    /// reflect a server's shutdown.
    #[must_use]
    pub fn statuses(&self) -> Vec<(String, ServingStatus)> {
        let statuses = self.0.lock();
        statuses.iter().map(|(name, status)| (name.clone(), status.get())).collect()
    }

    /// Adds services; known ones keep their status.
    pub(crate) fn know<'a>(&self, services: impl IntoIterator<Item = &'a str>) {
        for service in services {
            self.sender(service, ServingStatus::Serving);
        }
    }

    fn sender(&self, service: &str, at_first: ServingStatus) -> Watched<ServingStatus> {
        let mut statuses = self.0.lock();
        let new = || Watched::new(at_first);
        statuses.entry(service.to_owned()).or_insert_with(new).clone()
    }

    fn subscribe(&self, service: &str) -> Result<Watch<ServingStatus>, Status> {
        let found = self.0.lock().get(service).map(Watched::watch);
        found.ok_or_else(|| {
            let shown = printable(service).at_most(MAX_SHOWN_BYTES);
            Status::not_found(format!("the health of service {shown:?} is not known here"))
        })
    }
}

impl fmt::Debug for HealthReporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let statuses = self.0.lock().clone();
        f.debug_map().entries(statuses.iter().map(|(name, it)| (name, it.get()))).finish()
    }
}

impl Health for HealthReporter {
    async fn check(&self, service: &str) -> Result<ServingStatus, Status> {
        let status = self.subscribe(service)?.get();
        Ok(if Context::current().is_draining() { ServingStatus::Draining } else { status })
    }

    async fn watch(&self, service: &str) -> Result<impl Stream<Item = ServingStatus>, Status> {
        let mut statuses = self.subscribe(service)?;
        let draining = Context::current().draining();
        Ok(stream::stream(async move |mut out| {
            tokio::pin!(draining);
            let mut told = None;
            let mut is_draining = false;
            while !is_draining {
                is_draining = tokio::select! {
                    biased;
                    () = &mut draining => true,
                    // Ready at once for the first status, and for changes made while an item was
                    // being sent.
                    changed = next(&mut statuses, told) => changed.is_err(),
                };
                let status = statuses.look();
                let status = if is_draining { ServingStatus::Draining } else { status };
                if told.replace(status) != Some(status) {
                    out.send(status).await?;
                }
            }
            Ok(())
        }))
    }
}

/// Waits for a change, but not for the first status.
async fn next(
    statuses: &mut Watch<ServingStatus>,
    told: Option<ServingStatus>,
) -> Result<(), Closed> {
    if told.is_some() { statuses.changed().await } else { Ok(()) }
}
