//! Counts of what a shard holds, for tests: whether every resource was given back.
//!
//! Owns nothing, and changes nothing but the numbers of sealed frames.

use super::Shard;
use super::state::DriverState;
use crate::engine::connection_key::ConnectionKey;
use crate::engine::upper::UpperLayer;
use crate::memory::region::BufferPool;

/// Counts of what a shard holds, for tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardStats {
    /// Connections, those without a QP included.
    pub entries: usize,
    /// Connections with a QP.
    pub queue_pairs: usize,
    /// Deadlines that the driver waits for.
    pub deadlines: usize,
    /// Actions that the driver has not taken.
    pub actions: usize,
    /// Connections that have begun to send a large message and wait for their next turn.
    pub unfinished: usize,
    /// Whether the driver sleeps.
    pub is_parked: bool,
    /// QPs that were destroyed before all their work requests had been flushed.
    pub unflushed: u64,
}

impl<P: UpperLayer> Shard<P> {
    /// Counts what the shard holds.
    pub fn stats(&self) -> ShardStats {
        let state = self.lock();
        ShardStats {
            entries: state.connections.len(),
            queue_pairs: state.qp_count,
            deadlines: state.deadlines.len(),
            actions: state.actions.len(),
            unfinished: state.pump_queue.len(),
            is_parked: matches!(state.driver, DriverState::Parked { .. }),
            unflushed: state.unflushed,
        }
    }

    /// The receive and send buffers of a connection, while it has a QP.
    pub fn pools(&self, key: ConnectionKey) -> Vec<BufferPool> {
        self.lock().connection(key).map_or_else(Vec::new, |connection| connection.pools())
    }

    /// The receive and send buffers of all connections that have a QP.
    pub fn every_pool(&self) -> Vec<BufferPool> {
        let mut state = self.lock();
        state.connections.iter_mut().flat_map(|(_, connection)| connection.pools()).collect()
    }

    /// The next sealed frames of a connection have this number in both directions, as if those
    /// before it had been sent.
    pub fn skip_frames(&self, key: ConnectionKey, to: u64) {
        if let Some(connection) = self.lock().connection(key) {
            connection.skip_frames(to);
        }
    }
}
