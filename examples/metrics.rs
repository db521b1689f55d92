//! `--metrics ADDRESS`: the metrics of a server for Prometheus, and its health for probes.

use std::io;
use std::net::SocketAddr;

use rpc_admin::Metrics;
use rpc_core::health::HealthReporter;
use rpc_core::stats::StatsHandle;

/// Answers as long as the program runs. Returns the address.
///
/// # Errors
/// It cannot listen there.
pub(crate) async fn listen(
    address: SocketAddr,
    stats: StatsHandle,
    health: HealthReporter,
) -> io::Result<SocketAddr> {
    // Who gives an address says who reaches it.
    let metrics = Metrics::new(stats).health(&health).public().bind(address).await?;
    let address = metrics.local_address();
    tokio::spawn(metrics.serve());
    Ok(address)
}
