//! The connections of a channel that serves: those on which a server may call.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::connection::Connection;

/// All that are up: also those whose server goes away, or is named no longer, while calls run there. They are
/// not kept by that.
#[derive(Default)]
pub(super) struct Serving(Mutex<Vec<Weak<Connection>>>);

impl Serving {
    /// Adds one when it is put in place. Those that are over leave the list.
    pub(super) fn add(&self, connection: &Arc<Connection>) {
        let mut all = self.0.lock();
        all.retain(|connection| connection.strong_count() > 0);
        all.push(Arc::downgrade(connection));
    }

    /// Held outside of the lock: whoever holds the last of a connection ends it.
    pub(super) fn all(&self) -> Vec<Arc<Connection>> {
        self.0.lock().iter().filter_map(Weak::upgrade).collect()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.lock().len()
    }
}
