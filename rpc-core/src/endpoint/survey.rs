//! The numbers of the connections of a shard.

use std::sync::Arc;
use std::time::Instant;

use rpc_transport::device::PeerIdentity;
use rpc_transport::engine::clock;

use super::RpcShard;
use crate::observability::stats::ConnectionStats;

/// Places of a shard's table that are looked at while its lock is held: a snapshot of many connections
/// holds nobody up for longer than that takes.
const AT_ONCE: usize = 16;

/// A connection without its texts: of many, only those are made that are shown.
pub(crate) struct Surveyed<'s> {
    peer: Arc<PeerIdentity>,
    device: &'s str,
    since: Instant,
    pub(crate) stats: ConnectionStats,
}

impl Surveyed<'_> {
    pub(crate) fn with_texts(self) -> ConnectionStats {
        ConnectionStats {
            peer: self.peer.to_string(),
            device: self.device.to_owned(),
            age: clock::now().saturating_duration_since(self.since),
            ..self.stats
        }
    }
}

/// Appends the connections of a shard.
pub(crate) fn survey(shard: &RpcShard, into: &mut Vec<ConnectionStats>) {
    let mut found = Vec::new();
    look_at(shard, &mut found);
    into.extend(found.into_iter().map(Surveyed::with_texts));
}

/// The same, without the texts.
pub(crate) fn look_at<'s>(shard: &'s RpcShard, into: &mut Vec<Surveyed<'s>>) {
    let device = shard.device().attributes().name.as_str();
    let mut from = Some(0);
    while let Some(at) = from {
        // Memory is taken when the lock has been let go.
        into.reserve(AT_ONCE);
        from = shard.survey(at, AT_ONCE, |endpoint, survey| {
            if let Some(since) = endpoint.established() {
                let (peer, stats) = (Arc::clone(endpoint.identity()), endpoint.stats(survey));
                into.push(Surveyed { peer, device, since, stats });
            }
        });
    }
}
