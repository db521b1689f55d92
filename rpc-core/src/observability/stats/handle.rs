//! A handle to read the numbers of a server while it serves.

use std::fmt;
use std::sync::Arc;

use super::ServerStats;

/// What has the numbers of a server.
pub(crate) trait ReadStats: Send + Sync {
    fn read_stats(&self) -> ServerStats;
}

/// Reads the numbers of a server, from anywhere, also while it serves and after that.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = rpc_core::Server::builder().bind("mem://stats-handle").await?;
/// let handle = server.stats_handle();
/// tokio::spawn(server.serve());
/// println!("{} connections", handle.stats().connections.len());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct StatsHandle(pub(crate) Arc<dyn ReadStats>);

impl StatsHandle {
    /// A snapshot. It takes a few hundred nanoseconds for each connection, and the lock of a shard
    /// for sixteen of them at a time.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        self.0.read_stats()
    }
}

/// Handles are equal if they are of the same server.
impl PartialEq for StatsHandle {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for StatsHandle {}

impl fmt::Debug for StatsHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatsHandle").finish_non_exhaustive()
    }
}
