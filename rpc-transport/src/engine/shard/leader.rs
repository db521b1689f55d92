//! Which caller polls the CQ in place of the driver. How it does so is in [`lead`](super::lead).

use std::time::Instant;

use crate::engine::connection_key::ConnectionKey;

/// Who leads.
#[derive(Debug, Default)]
pub(super) struct Lead {
    pub(super) leader: Option<Leader>,
    /// The caller that was woken to lead, and has not polled yet.
    pub(super) next: Option<Leader>,
    /// A leader has polled since the driver last asked.
    pub(super) has_polled: bool,
    pub(super) looked_at: Option<Instant>,
}

impl Lead {
    /// Whether a caller polls for its answer, and will until it says otherwise.
    pub(super) fn has_leader(&self) -> bool {
        self.leader.is_some()
    }
}

/// A caller of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Leader {
    pub(super) key: ConnectionKey,
    pub(super) caller: u64,
}
