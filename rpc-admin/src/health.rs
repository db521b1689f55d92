//! `/healthz` and `/readyz`: whether this process should be sent calls, for orchestrators and load
//! balancers.

use axum::http::StatusCode;
use rpc_core::health::{HealthReporter, ServingStatus};
use rpc_core::stats::StatsHandle;

/// The sources of the answer.
#[derive(Clone, Default)]
pub(crate) struct Health {
    pub(crate) servers: Vec<StatsHandle>,
    pub(crate) reporter: Option<HealthReporter>,
}

impl Health {
    /// The answer to a query: `service=NAME` asks for one service; otherwise all must be serving.
    pub(crate) fn answer(&self, query: &str) -> (StatusCode, String) {
        let statuses = self.reporter.as_ref().map(HealthReporter::statuses).unwrap_or_default();
        let asked = query.split('&').find_map(|pair| pair.strip_prefix("service="));
        if let Some(asked) = asked
            && !statuses.iter().any(|(name, _)| name == asked)
        {
            let names: Vec<_> = statuses.iter().map(|(name, _)| format!("{name:?}")).collect();
            let text = format!("no such service; the services are: {}\n", names.join(", "));
            return (StatusCode::NOT_FOUND, text);
        }
        if self.servers.iter().any(|server| server.stats().is_draining) {
            return (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", ServingStatus::Draining));
        }
        let is_asked = |name: &str| asked.is_none_or(|asked| asked == name);
        let failing: Vec<_> = statuses
            .iter()
            .filter(|(name, status)| is_asked(name) && *status != ServingStatus::Serving)
            .map(|(name, status)| match name.as_str() {
                "" => format!("{status}\n"),
                name => format!("{name}: {status}\n"),
            })
            .collect();
        match failing.as_slice() {
            [] => (StatusCode::OK, format!("{}\n", ServingStatus::Serving)),
            failing => (StatusCode::SERVICE_UNAVAILABLE, failing.concat()),
        }
    }
}
