//! What a connection offers to the calls on it, and to whoever keeps a handle of it.
//!
//! Owns no part of the connection: it can be kept for as long as one likes, and keeps nothing alive.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use rpc_transport::connect::error::CloseCause;
use rpc_transport::device::PeerIdentity;
use rpc_transport::engine::connection_key::ConnectionKey;
use rpc_transport::memory::budget::MemoryBudget;

use super::RpcShard;
use crate::bulk::BulkPool;
use crate::runtime::phase::Watch;

/// One for each connection.
pub(crate) struct ConnectionContext {
    /// The peer's identity.
    pub(crate) identity: Arc<PeerIdentity>,
    /// Registered buffers.
    pub(crate) bulk: BulkPool,
    /// Byte strings of at least this many bytes are sent beside the body.
    pub(crate) min_part_bytes: usize,
    /// Longest metadata of a call that is taken, bytes.
    pub(crate) max_metadata_bytes: usize,
    /// The memory budget that large messages of the connection are charged to.
    pub(crate) memory: MemoryBudget,
    /// How far the end of what is served has come; `None` where nothing is.
    pub(crate) phase: Option<Watch>,
    /// Where it is.
    pub(crate) shard: Weak<RpcShard>,
    /// As what, and since when; `None` before it is set up.
    pub(crate) place: Option<(ConnectionKey, Instant)>,
    /// Why it has ended.
    pub(super) ended: OnceLock<CloseCause>,
    /// What calls of this end go through, while anybody has it; it is known to the client's side alone.
    pub(crate) channel: Mutex<Weak<dyn Any + Send + Sync>>,
}

impl ConnectionContext {
    /// Whether it is that of a certain connection.
    pub(crate) fn is_at(&self, shard: &Arc<RpcShard>, key: ConnectionKey) -> bool {
        std::ptr::eq(self.shard.as_ptr(), Arc::as_ptr(shard))
            && self.place.is_some_and(|(own, _)| own == key)
    }

    /// Why the connection has ended, once it has.
    pub(crate) fn close_cause(&self) -> Option<CloseCause> {
        let gone = || (self.shard.strong_count() == 0).then_some(CloseCause::DriverGone);
        self.ended.get().cloned().or_else(gone)
    }

    /// The same of an established connection.
    pub(super) fn established(
        &self,
        key: ConnectionKey,
        identity: PeerIdentity,
        since: Instant,
    ) -> Self {
        Self {
            identity: Arc::new(identity),
            bulk: self.bulk.clone(),
            memory: self.memory.clone(),
            phase: self.phase.clone(),
            shard: Weak::clone(&self.shard),
            place: Some((key, since)),
            ended: OnceLock::new(),
            channel: no_channel(),
            ..*self
        }
    }
}

/// Before the first use.
pub(super) fn no_channel() -> Mutex<Weak<dyn Any + Send + Sync>> {
    let nothing: Weak<()> = Weak::new();
    Mutex::new(nothing)
}

impl fmt::Debug for ConnectionContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionContext")
            .field("identity", &self.identity)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}
