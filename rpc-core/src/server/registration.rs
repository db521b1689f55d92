//! Announcing a server where channels look for servers.
//!
//! Owns the trait of a registry, and what a registry learns of the server. Runs each registry as a
//! task of its own: one that hangs or panics delays a shutdown by at most [`LEAVE_LIMIT`], and
//! disturbs no call.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use rpc_transport::address::Address;
use tokio::task::JoinSet;

use crate::runtime::phase::{Phase, Phases, Watch};

/// Longest time that a shutdown waits until registries have removed the server.
const LEAVE_LIMIT: Duration = Duration::from_secs(2);

/// A place where channels find servers.
///
/// ```
/// use futures::future::BoxFuture;
/// use rpc_core::Address;
/// use rpc_core::server::{Register, Registered};
///
/// /// A file with the address of the one server.
/// struct Written(std::path::PathBuf);
///
/// impl Register for Written {
///     fn name(&self) -> String {
///         self.0.display().to_string()
///     }
///
///     fn check(&self, addresses: &[Address]) -> Result<(), String> {
///         if addresses.is_empty() { Err("the server has no address".into()) } else { Ok(()) }
///     }
///
///     fn keep(&self, server: Registered) -> BoxFuture<'_, ()> {
///         Box::pin(async move {
///             let _ = std::fs::write(&self.0, server.addresses()[0].to_string());
///             server.leaving().await;
///             let _ = std::fs::remove_file(&self.0);
///         })
///     }
/// }
/// ```
pub trait Register: Send + Sync + 'static {
    /// The name, for errors and logs.
    fn name(&self) -> String;

    /// Checks the bound addresses of the server before it serves.
    ///
    /// # Errors
    /// Why the server cannot be registered, and what to do; it is then not bound.
    fn check(&self, addresses: &[Address]) -> Result<(), String>;

    /// Keeps the server registered, from the start of [`Server::serve`](super::Server::serve) until
    /// [`Registered::leaving`] completes, and removes it then. A registry that cannot be reached
    /// must not stop the server: try again. Dropped if the future of `serve` is, or if removing
    /// takes more than 2 s.
    fn keep(&self, server: Registered) -> BoxFuture<'_, ()>;
}

/// What a registry learns of a server.
#[derive(Debug, Clone)]
pub struct Registered {
    addresses: Vec<Address>,
    phases: Watch,
}

impl Registered {
    /// The bound addresses, with real ports, in the order of binding.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Completes when the server begins to shut down. It still serves, and new calls should go
    /// elsewhere.
    pub async fn draining(&self) {
        self.phases.clone().reached(Phase::Draining).await;
    }

    /// Completes when the server must be found no longer.
    pub async fn leaving(&self) {
        self.phases.clone().reached(Phase::Leaving).await;
    }
}

/// Starts a task for each registry. They end with the set.
pub(super) fn keep_all(
    registries: Vec<Arc<dyn Register>>,
    addresses: Vec<Address>,
    phases: &Phases,
) -> JoinSet<()> {
    let mut kept = JoinSet::new();
    for registry in registries {
        let server = Registered { addresses: addresses.clone(), phases: phases.watch() };
        kept.spawn(async move {
            registry.keep(server.clone()).await;
            if !server.phases.has_reached(Phase::Leaving) {
                tracing::warn!("a registry has stopped keeping the server registered");
            }
        });
    }
    kept
}

/// Waits until all registries have removed the server, but not for long.
pub(super) async fn all_have_left(kept: &mut JoinSet<()>) {
    let all = async {
        while let Some(ended) = kept.join_next().await {
            if let Err(error) = ended {
                tracing::warn!(%error, "a registry failed");
            }
        }
    };
    if tokio::time::timeout(LEAVE_LIMIT, all).await.is_err() {
        tracing::warn!("a registry has not removed the server within {LEAVE_LIMIT:?}");
    }
}
