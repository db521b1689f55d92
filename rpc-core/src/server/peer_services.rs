//! The services of a client on the connections that it makes.
//!
//! Owns services, limits and counts of one channel. The handlers are those of servers.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rpc_transport::memory::budget::MemoryBudget;

use super::available_memory;
use super::builder::{ServerBuilder, router};
use super::executor::Handlers;
use super::router::Router;
use crate::endpoint::{RpcEndpoint, RpcShard};
use crate::runtime::phase::{Phase, Phases};
use crate::runtime::watched::Watched;
use crate::stats::counts::Methods;

/// The services of a channel, over all of its connections.
pub(crate) struct PeerServices {
    router: Arc<Router>,
    pub(crate) methods: Arc<Methods>,
    memory: MemoryBudget,
    pub(crate) max_calls: u32,
    max_metadata_bytes: usize,
    /// No new calls are taken.
    is_stopped: AtomicBool,
    phases: Phases,
}

impl PeerServices {
    /// # Errors
    /// What does not fit together.
    pub(crate) fn new(services: &ServerBuilder) -> Result<Self, String> {
        #[cfg_attr(not(feature = "macros"), expect(unused_mut, reason = "nothing is added"))]
        let (mut all, mut open) = (services.services.clone(), Vec::new());
        // There is no server whose numbers a built-in service could report.
        #[cfg(feature = "macros")]
        drop(services.builtins.clone().add_to(&mut all, &mut open));
        let router = router(&services.interceptors, all, open, &services.spawned)?
            .with_rules(services.config.allow.as_ref());
        let methods = Arc::<Methods>::default();
        methods.know(router.methods());
        let config = &services.config;
        if !config.door.is_open() {
            return Err(
                "`admit` and `authenticate` ask who connects to a server, but a channel has \
                        connected itself"
                    .to_owned(),
            );
        }
        if config.secured.is_some() {
            return Err("`tls` belongs to the channel, which has connected itself".to_owned());
        }
        config.validate().map_err(|error| error.to_string())?;
        let memory = config.memory_budget.unwrap_or_else(available_memory::default_budget);
        Ok(Self {
            router: Arc::new(router),
            methods,
            memory: MemoryBudget::new(memory),
            max_calls: config.limits.max_incoming_calls,
            max_metadata_bytes: config.max_metadata_bytes,
            is_stopped: AtomicBool::new(false),
            phases: Phases::new(),
        })
    }

    /// What one connection is charged to.
    pub(crate) fn memory(&self) -> MemoryBudget {
        self.memory.share()
    }

    /// The handlers of a connection's shard.
    pub(crate) fn handlers(&self, shard: &Arc<RpcShard>) -> Handlers {
        let (router, methods) = (Arc::clone(&self.router), Arc::clone(&self.methods));
        Handlers::new(Arc::clone(shard), router, methods, Watched::default())
    }

    /// An end of a connection, with the limits of what is served.
    pub(crate) fn bound(&self, peer: RpcEndpoint) -> RpcEndpoint {
        peer.taking_metadata(self.max_metadata_bytes).watching(self.phases.watch())
    }

    /// Takes no new calls. The owner of the connections sends go-away to the peers.
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }

    /// Notifies the handlers, after go-away was sent to the peers.
    pub(crate) fn tell_handlers(&self) {
        self.phases.advance(Phase::Draining);
    }
}

impl fmt::Debug for PeerServices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerServices").field("max_calls", &self.max_calls).finish_non_exhaustive()
    }
}
