//! Health: whether a server, or one of its services, is to be sent calls. For balancers, and for who
//! starts and stops servers.
//!
//! [`ServerBuilder::health`](crate::ServerBuilder::health) switches the service `rpc.Health` on. The
//! server itself, which has the name "", and each of its services are [`Serving`](ServingStatus::Serving)
//! until their [`HealthReporter`] says otherwise. From the begin of a shutdown on, all of them are
//! [`Draining`](ServingStatus::Draining); with a
//! [lead time](crate::ServerBuilder::drain_lead) that is before clients are told to go away.
//!
//! ```
//! # #[rpc_core::service] pub trait Greeter { async fn greet(&self) -> String; }
//! # struct Polite; impl Greeter for Polite { async fn greet(&self) -> String { "Good day".into() } }
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
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
//! let mut states = health.watch("Greeter").await?; // the state, and each further one
//! reporter.set("Greeter", ServingStatus::NotServing); // its database is away, say
//! while states.try_next().await? != Some(ServingStatus::NotServing) {}
//! # Ok(()) }
//! ```
//!
//! Interceptors see these calls, too: one that asks for a token lets those pass whose method's name
//! begins with `rpc.Health.`, if balancers have none.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::context::Context;
use crate::status::Status;
use crate::stream::{self, Stream};

/// Most bytes of a name that are shown back to who asked for it.
const MAX_SHOWN_CHARS: usize = 128;

/// Whether calls are welcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ServingStatus {
    /// They are.
    Serving,
    /// They are still answered, but the server is about to shut down: send them to another one.
    Draining,
    /// They would fail.
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

/// Whether a server and its services are to be sent calls. See [`health`](self).
#[crate::service(crate = crate, name = "rpc.Health")]
pub trait Health {
    /// Tells the status of a service, or of the whole server, which has an empty name. A service that
    /// is not known there is `NotFound`.
    #[rpc(idempotent)]
    async fn check(&self, service: &str) -> Result<ServingStatus, Status>;

    /// Tells the status of a service now, and each further one; of changes that follow each other
    /// faster than they are read, the last. It ends when the server begins to shut down, with
    /// `Draining` as its last item. Refused as `check` is.
    async fn watch(&self, service: &str) -> Result<impl Stream<Item = ServingStatus>, Status>;
}

type Statuses = BTreeMap<String, watch::Sender<ServingStatus>>;

/// Says how services are. Cheap to clone; clones are the same.
///
/// One that is used by several servers speaks for all of them.
#[derive(Clone, Default)]
pub struct HealthReporter(Arc<Mutex<Statuses>>);

impl HealthReporter {
    /// Everything serves.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the status of a service, or of the whole server: "". What is set for the server does not
    /// change that of its services, nor the other way round. A name that is not known yet becomes so.
    pub fn set(&self, service: &str, status: ServingStatus) {
        // Who watches is woken when the lock has been let go.
        let sender = self.sender(service, status);
        sender.send_if_modified(|now| std::mem::replace(now, status) != status);
    }

    /// What was set; `None` for a name that is not known. It does not tell that a server shuts down.
    #[must_use]
    pub fn status(&self, service: &str) -> Option<ServingStatus> {
        self.0.lock().get(service).map(|sender| *sender.borrow())
    }

    /// Makes services known; those that are keep their status.
    pub(crate) fn know<'a>(&self, services: impl IntoIterator<Item = &'a str>) {
        for service in services {
            self.sender(service, ServingStatus::Serving);
        }
    }

    fn sender(&self, service: &str, at_first: ServingStatus) -> watch::Sender<ServingStatus> {
        let mut statuses = self.0.lock();
        let new = || watch::Sender::new(at_first);
        statuses.entry(service.to_owned()).or_insert_with(new).clone()
    }

    fn subscribe(&self, service: &str) -> Result<watch::Receiver<ServingStatus>, Status> {
        let found = self.0.lock().get(service).map(watch::Sender::subscribe);
        found.ok_or_else(|| {
            let shown: String = service.chars().take(MAX_SHOWN_CHARS).collect();
            Status::not_found(format!("there is no service {shown:?} here whose health is known"))
        })
    }
}

impl fmt::Debug for HealthReporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let statuses = self.0.lock();
        f.debug_map().entries(statuses.iter().map(|(name, it)| (name, *it.borrow()))).finish()
    }
}

impl Health for HealthReporter {
    async fn check(&self, service: &str) -> Result<ServingStatus, Status> {
        let status = *self.subscribe(service)?.borrow();
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
                    // At once for the first status, and for what has changed while one was sent.
                    changed = next(&mut statuses, told) => changed.is_err(),
                };
                let status = *statuses.borrow_and_update();
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
    statuses: &mut watch::Receiver<ServingStatus>,
    told: Option<ServingStatus>,
) -> Result<(), watch::error::RecvError> {
    if told.is_some() { statuses.changed().await } else { Ok(()) }
}
