//! Services that a server has of its own, switched on by its builder. Their names begin with `rpc.`,
//! which no other service's may.
//!
//! Each is written with [`macro@crate::service`], so it is called, intercepted, bounded and drained as
//! every other service is. Owns what they answer; knows of the server only what it is given.

pub mod health;
pub mod reflect;

use std::sync::{Arc, OnceLock};

use self::health::{HealthReporter, HealthServer};
use self::reflect::{OwnStats, ReflectServer, Reflection, StatsServer};
use crate::server::stats::WeakStatsHandle;
use crate::service::Dispatch;

/// Those of a server.
#[derive(Debug, Clone, Default)]
pub(crate) struct Builtins {
    pub(crate) health: Option<HealthReporter>,
    pub(crate) reflection: bool,
}

impl Builtins {
    /// Adds them to the services of the user. Gives where the server is to put its numbers.
    pub(crate) fn add_to(
        self,
        services: &mut Vec<Arc<dyn Dispatch>>,
    ) -> Arc<OnceLock<WeakStatsHandle>> {
        if let Some(reporter) = self.health {
            reporter.know(services.iter().map(|service| service.descriptor().name).chain([""]));
            services.push(Arc::new(HealthServer::new(reporter)));
        }
        let stats = OwnStats::default();
        if self.reflection {
            services.push(Arc::new(StatsServer::new(stats.clone())));
            let reflection = Reflection::default();
            services.push(Arc::new(ReflectServer::new(reflection.clone())));
            reflection.reflect_on(services.iter().map(|service| service.descriptor()));
        }
        stats.0
    }
}
