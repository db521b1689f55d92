//! Services that a server has of its own, switched on by its builder. Their names begin with `rpc.`,
//! which no other service's may.
//!
//! Each is written with [`macro@crate::service`], so it is called, intercepted, bounded and drained as
//! every other service is. Owns what they answer; knows of the server only what it is given.

pub mod health;

use std::sync::Arc;

use self::health::{HealthReporter, HealthServer};
use crate::service::Dispatch;

/// Those of a server.
#[derive(Debug, Default)]
pub(crate) struct Builtins {
    pub(crate) health: Option<HealthReporter>,
}

impl Builtins {
    /// Adds them to the services of the user.
    pub(crate) fn add_to(self, services: &mut Vec<Arc<dyn Dispatch>>) {
        if let Some(reporter) = self.health {
            reporter.know(services.iter().map(|service| service.descriptor().name).chain([""]));
            services.push(Arc::new(HealthServer::new(reporter)));
        }
    }
}
