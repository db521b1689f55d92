//! Servers: services bound to addresses.
//!
//! Owns the listeners and the order of a shutdown. `builder.rs` has the configuration, and
//! `acceptor.rs` handles connection requests.
//!
//! Invariants:
//! 1. Shutdown always ends: first handlers and registries are notified and everything is served as
//!    before for the lead time; then registries remove the server, within a limit; then nothing new
//!    is taken and calls in flight get a grace period; then their connections are closed.
//! 2. If a listener dies, the server shuts down in the same order, and the error names its address.

mod acceptor;
mod adaptive_limit;
mod allow;
#[cfg(feature = "rules")]
mod allow_file;
mod available_memory;
mod builder;
mod call;
mod config;
mod door;
pub(crate) mod executor;
mod interceptor_stack;
mod limiter;
pub(crate) mod peer_services;
mod poll_watch;
mod registration;
mod request_check;
mod route_counts;
mod router;
mod running;
mod set_ups;
pub(crate) mod stats;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures::future::BoxFuture;
use rpc_transport::address::Address;
use rpc_transport::device::Listener;
use rpc_transport::device::connection_error::ListenError;
use rpc_transport::memory::process::OfProcess;
use tokio::task::{self, JoinError, JoinSet};

use self::acceptor::Acceptor;
pub use self::adaptive_limit::{AdaptiveLimit, Priority};
pub use self::allow::{Allow, AllowError};
pub use self::builder::ServerBuilder;
pub use self::registration::{Register, Registered};
use crate::runtime::phase::{Phase, Phases};
use crate::stats::handle::ReadStats;
use crate::stats::{ServerStats, StatsHandle};

/// A server whose addresses are open.
///
/// It belongs to the process that bound it. In a child of `fork(2)` it does not serve, and dropping
/// it closes nothing in the parent. Forked workers must bind their own servers.
///
/// # Example
/// ```
/// # #[rpc_core::service] pub trait Greeter { async fn greet(&self) -> String; }
/// # struct Polite;
/// # impl Greeter for Polite {
/// #     async fn greet(&self) -> String { "Good day".into() }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use rpc_core::Server;
///
/// let server = Server::builder().add_service(GreeterServer::new(Polite))
///     .bind("mem://server").await?;
/// let serving = tokio::spawn(server.serve_until(async { /* a signal */ }));
/// serving.await??; // calls in flight have had their grace
/// # Ok(()) }
/// ```
pub struct Server {
    listeners: OfProcess<Vec<Box<dyn Listener>>>,
    acceptor: OfProcess<Arc<Acceptor>>,
    phases: OfProcess<Arc<Phases>>,
    registries: Vec<Arc<dyn Register>>,
}

/// Shuts a server down, from anywhere.
///
/// # Example
/// ```
/// # #[rpc_core::service] pub trait Greeter { async fn greet(&self) -> String; }
/// # struct Polite;
/// # impl Greeter for Polite {
/// #     async fn greet(&self) -> String { "Good day".into() }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = rpc_core::Server::builder().add_service(GreeterServer::new(Polite))
/// #     .bind("mem://handle").await?;
/// let handle = server.shutdown_handle();
/// let serving = tokio::spawn(server.serve());
/// handle.shutdown();
/// serving.await??;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct ShutdownHandle(Arc<Phases>);

impl ShutdownHandle {
    /// Starts an orderly shutdown. Handlers are notified
    /// ([`Context::draining`](crate::Context::draining)); after
    /// [`drain_lead`](ServerBuilder::drain_lead) no new connections and calls are taken; calls in
    /// flight finish within [`grace`](ServerBuilder::grace), and their answers are delivered; then
    /// [`Server::serve`] returns. A client whose call came too late knows that it was not started,
    /// and can make it elsewhere.
    pub fn shutdown(&self) {
        self.0.advance(Phase::Draining);
    }
}

impl Server {
    /// Configures a server.
    #[must_use]
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// The bound addresses, with real ports, in the order of binding, without those that were
    /// [left out](ServerBuilder::bind_all).
    #[must_use]
    pub fn local_addresses(&self) -> Vec<Address> {
        self.listeners.iter().map(|listener| listener.local_address()).collect()
    }

    /// The first bound address.
    ///
    /// # Panics
    /// If the server is bound to no address.
    #[must_use]
    pub fn local_address(&self) -> Address {
        self.listeners[0].local_address()
    }

    /// A handle that shuts the server down.
    #[must_use]
    pub fn shutdown_handle(&self) -> ShutdownHandle {
        ShutdownHandle(Arc::clone(&self.phases))
    }

    /// A snapshot of the server's counts.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        self.acceptor.read_stats()
    }

    /// A handle that reads the [`stats`](Self::stats) while the server serves, and afterwards.
    #[must_use]
    pub fn stats_handle(&self) -> StatsHandle {
        StatsHandle(Arc::clone(&self.acceptor) as _)
    }

    /// Serves until shut down. Dropping the future ends all connections at once.
    ///
    /// # Errors
    /// [`ListenError::Forked`] in a child of the process that bound the server. If a listener dies,
    /// its [`ListenError`]; the server then shuts down in order.
    pub async fn serve(self) -> Result<(), ListenError> {
        self.serving().await
    }

    /// Boxed, so that programs do not compile it again.
    fn serving(self) -> BoxFuture<'static, Result<(), ListenError>> {
        Box::pin(self.serve_all())
    }

    async fn serve_all(self) -> Result<(), ListenError> {
        let Self { listeners, acceptor, phases, registries } = self;
        let parts = (listeners.into_inner(), acceptor.into_inner(), phases.into_inner());
        let (Ok(listeners), Ok(acceptor), Ok(phases)) = parts else {
            return Err(ListenError::Forked);
        };
        let _end = EndShards(Arc::clone(&acceptor));
        // The task ends with this future.
        let mut house = JoinSet::new();
        house.spawn(Arc::clone(&acceptor).keep_house());
        let mut accepting = JoinSet::new();
        let mut addresses = HashMap::new();
        let bound = listeners.iter().map(|listener| listener.local_address()).collect();
        for listener in listeners {
            let address = listener.local_address();
            let looping = Arc::clone(&acceptor).accept_loop(listener);
            addresses.insert(accepting.spawn(looping).id(), address);
        }
        let mut kept = registration::keep_all(registries, bound, &phases);
        // Without a listener, only the shutdown handle can end this.
        let mut died = tokio::select! {
            () = phases.watch().reached(Phase::Draining) => None,
            Some(ended) = accepting.join_next_with_id() => death(ended, &addresses),
        };
        phases.advance(Phase::Draining);
        let lead = acceptor.drain_lead();
        if !lead.is_zero() {
            tracing::info!(?lead, "draining: still serving");
            tokio::time::sleep(lead).await;
        }
        phases.advance(Phase::Leaving);
        registration::all_have_left(&mut kept).await;
        phases.advance(Phase::Closing);
        while let Some(ended) = accepting.join_next_with_id().await {
            died = died.or_else(|| death(ended, &addresses));
        }
        // All listeners are closed and no set-up is in progress, so no connection can be added.
        acceptor.drain().await;
        tracing::info!("shut down");
        died.map_or(Ok(()), Err)
    }

    /// Serves until `signal` completes, then shuts down in order.
    ///
    /// # Errors
    /// [`ListenError`] when a listener dies.
    pub async fn serve_until(self, signal: impl Future<Output = ()>) -> Result<(), ListenError> {
        let handle = self.shutdown_handle();
        let serving = self.serve();
        tokio::pin!(serving);
        tokio::select! {
            outcome = &mut serving => return outcome,
            () = signal => handle.shutdown(),
        }
        serving.await
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("addresses", &self.local_addresses()).finish_non_exhaustive()
    }
}

/// Why an accept loop ended without having been stopped, with its address.
fn death(
    ended: Result<(task::Id, Option<ListenError>), JoinError>,
    addresses: &HashMap<task::Id, Address>,
) -> Option<ListenError> {
    let (id, reason) = match ended {
        Ok((_, None)) => return None,
        Ok((_, Some(error @ (ListenError::Failed { .. } | ListenError::InUse { .. })))) => {
            return Some(error);
        }
        Ok((id, Some(error))) => (id, error.to_string()),
        Err(error) => (error.id(), error.to_string()),
    };
    let address = addresses.get(&id)?.clone();
    Some(ListenError::Failed { address, reason })
}

/// Drop guard: ends every connection when the future of `serve` ends.
struct EndShards(Arc<Acceptor>);

impl Drop for EndShards {
    fn drop(&mut self) {
        for shard in self.0.end() {
            shard.shutdown_now();
        }
    }
}
