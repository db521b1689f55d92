//! A handle for reading the statistics of a running server.

use std::fmt;
use std::sync::Arc;

use super::ServerStats;

/// The owner of a server's numbers.
pub(crate) trait ReadStats: Send + Sync {
    fn read_stats(&self) -> ServerStats;

    /// A snapshot with at most `most` connections, those with the most messages, and the number of
    /// all connections.
    #[cfg(feature = "macros")]
    fn read_busiest(&self, most: usize) -> (ServerStats, u64);
}

/// A handle that does not keep the server alive.
#[cfg(feature = "macros")]
#[derive(Clone)]
pub(crate) struct WeakStatsHandle(pub(crate) std::sync::Weak<dyn ReadStats>);

#[cfg(feature = "macros")]
impl WeakStatsHandle {
    /// The [busiest](ReadStats::read_busiest) connections, as long as there is a server.
    pub(crate) fn busiest(&self, most: usize) -> Option<(ServerStats, u64)> {
        Some(self.0.upgrade()?.read_busiest(most))
    }
}

#[cfg(feature = "macros")]
impl fmt::Debug for WeakStatsHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakStatsHandle")
    }
}

/// Reads the statistics of a server, from anywhere, while it serves and after that.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = rpc_core::Server::builder().bind("mem://stats-handle").await?;
/// let handle = server.stats_handle();
/// tokio::spawn(server.serve());
/// println!("{} connections", handle.stats().connections.len());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct StatsHandle(pub(crate) Arc<dyn ReadStats>);

impl StatsHandle {
    /// Takes a snapshot. It costs a few hundred nanoseconds per connection, and locks a shard for
    /// sixteen of them at a time.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        self.0.read_stats()
    }
}

/// Handles are equal if they belong to the same server.
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
