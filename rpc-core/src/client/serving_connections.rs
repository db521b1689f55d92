//! The connections of a channel that serves: the connections on which a server may call.

use std::sync::{Arc, Weak};

use rpc_transport::lock::Mutex;

use super::connection::Connection;

/// All connections that are up. A connection whose server goes away, or is no longer named, is one
/// of them while calls run there. The list keeps none of them alive.
#[derive(Default)]
pub(super) struct ServingConnections(Mutex<Vec<Weak<Connection>>>);

impl ServingConnections {
    /// Adds a connection when it comes up. Connections that have ended leave the list.
    pub(super) fn add(&self, connection: &Arc<Connection>) {
        let mut all = self.0.lock();
        all.retain(|connection| connection.strong_count() > 0);
        all.push(Arc::downgrade(connection));
    }

    /// Returned, to be dropped outside the lock: dropping the last share of a connection ends it.
    pub(super) fn all(&self) -> Vec<Arc<Connection>> {
        self.0.lock().iter().filter_map(Weak::upgrade).collect()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.lock().len()
    }
}
