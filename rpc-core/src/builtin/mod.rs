//! Built-in services, enabled by the server's builder. Their names begin with `rpc.`, which is
//! reserved for them.
//!
//! Each is written with [`macro@crate::service`], so it is called, intercepted, limited and drained
//! like any other service. Owns their implementations; knows the server only through its arguments.

pub mod health;
pub mod reflect;

use std::sync::{Arc, OnceLock};

use self::health::{HealthReporter, HealthServer};
use self::reflect::{OwnStats, ReflectServer, Reflection, StatsServer};
use crate::service::Dispatch;
use crate::stats::handle::WeakStatsHandle;

/// The built-in services of a server.
#[derive(Debug, Clone, Default)]
pub(crate) struct Builtins {
    pub(crate) health: Option<HealthReporter>,
    /// Whether health bypasses interceptors and layers.
    pub(crate) is_health_open: bool,
    pub(crate) reflection: bool,
}

impl Builtins {
    /// Adds them to the services of the user, or to those that bypass interceptors and layers.
    /// Returns the place for the server's statistics.
    pub(crate) fn add_to(
        self,
        services: &mut Vec<Arc<dyn Dispatch>>,
        open: &mut Vec<Arc<dyn Dispatch>>,
    ) -> Arc<OnceLock<WeakStatsHandle>> {
        if let Some(reporter) = self.health {
            reporter.know(services.iter().map(|service| service.descriptor().name).chain([""]));
            let place = if self.is_health_open { &mut *open } else { &mut *services };
            place.push(Arc::new(HealthServer::new(reporter)));
        }
        let stats = OwnStats::default();
        if self.reflection {
            services.push(Arc::new(StatsServer::new(stats.clone())));
            let reflection = Reflection::default();
            services.push(Arc::new(ReflectServer::new(reflection.clone())));
            reflection
                .reflect_on(services.iter().chain(&*open).map(|service| service.descriptor()));
        }
        stats.0
    }
}
