//! The context of a connection, for the calls on it and for handles of it.
//!
//! Owns no part of the connection: it can be kept for any time, and keeps nothing alive.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use rpc_transport::device::connection_error::CloseCause;
use rpc_transport::engine::connection_key::ConnectionKey;
use rpc_transport::lock::Mutex;
use rpc_transport::memory::budget::MemoryBudget;
use rpc_transport::memory::process::Process;

use super::RpcShard;
use crate::bulk::BulkPool;
use crate::identity::Identity;
use crate::resolution::KnownSchemas;
use crate::runtime::phase::Watch;

/// One for each connection.
pub(crate) struct ConnectionContext {
    /// The peer's identity.
    pub(crate) identity: Arc<Identity>,
    /// Registered buffers.
    pub(crate) bulk: BulkPool,
    /// Byte strings of at least this many bytes are sent separately from the body.
    pub(crate) min_part_bytes: usize,
    /// Longest metadata of a call that is taken, bytes.
    pub(crate) max_metadata_bytes: usize,
    /// The memory budget that large messages of the connection are charged to.
    pub(crate) memory: MemoryBudget,
    /// The phase of the end of the services; `None` if this end serves nothing.
    pub(crate) phase: Option<Watch>,
    /// The shard of the connection.
    pub(crate) shard: Weak<RpcShard>,
    /// Its key, and the time of its set-up; `None` before that.
    pub(crate) place: Option<(ConnectionKey, Instant)>,
    /// Why it has ended.
    pub(super) ended: OnceLock<CloseCause>,
    /// The channel that calls of this end go through, while there is one. Only the client's side
    /// knows its type.
    pub(crate) channel: Mutex<Weak<dyn Any + Send + Sync>>,
    /// Names of the methods that rules have granted to the peer.
    pub(crate) granted: Mutex<Vec<&'static str>>,
    /// The peer's types that differ from those of this end.
    pub(crate) schemas: Mutex<KnownSchemas>,
    /// The process of the connection. A child of it has none.
    pub(crate) process: Process,
}

impl ConnectionContext {
    /// Whether this is the context of the connection with that key.
    pub(crate) fn is_at(&self, shard: &Arc<RpcShard>, key: ConnectionKey) -> bool {
        std::ptr::eq(self.shard.as_ptr(), Arc::as_ptr(shard))
            && self.place.is_some_and(|(own, _)| own == key)
    }

    /// Why the connection has ended, once it has.
    pub(crate) fn close_cause(&self) -> Option<CloseCause> {
        if !self.process.is_current() {
            return Some(CloseCause::Forked);
        }
        let gone = || (self.shard.strong_count() == 0).then_some(CloseCause::DriverGone);
        self.ended.get().cloned().or_else(gone)
    }

    /// The context of the established connection.
    pub(super) fn established(
        &self,
        key: ConnectionKey,
        identity: Identity,
        since: Instant,
    ) -> Self {
        Self { place: Some((key, since)), ..self.identified(identity) }
    }

    /// The context with another identity, before its first use.
    pub(super) fn identified(&self, identity: Identity) -> Self {
        Self {
            identity: Arc::new(identity),
            bulk: self.bulk.clone(),
            memory: self.memory.clone(),
            phase: self.phase.clone(),
            shard: Weak::clone(&self.shard),
            ended: OnceLock::new(),
            channel: no_channel(),
            granted: Mutex::new(Vec::new()),
            schemas: Mutex::default(),
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
