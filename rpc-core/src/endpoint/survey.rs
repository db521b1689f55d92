//! The numbers of the connections of a shard.

use std::sync::Arc;
use std::time::Instant;

use rpc_transport::engine::clock;

use super::RpcShard;
use crate::identity::Identity;
use crate::stats::ConnectionStats;

/// Places of a shard's table that are read in one hold of its lock, so that a snapshot of many
/// connections delays calls only for a short time.
const AT_ONCE: usize = 16;

/// A connection without its texts: they are made only for the connections that are shown.
pub(crate) struct Surveyed<'s> {
    peer: Arc<Identity>,
    device: &'s str,
    since: Instant,
    pub(crate) stats: ConnectionStats,
}

impl Surveyed<'_> {
    pub(crate) fn with_texts(self) -> ConnectionStats {
        let protection = self.peer.protection();
        ConnectionStats {
            peer: self.peer.to_string(),
            protection: protection.map(|it| format!("{it:?}")).unwrap_or_default(),
            cipher_suite: self.peer.cipher_suite().unwrap_or_default().to_owned(),
            device: self.device.to_owned(),
            age: clock::now().saturating_duration_since(self.since),
            ..self.stats
        }
    }
}

/// Appends the connections of a shard.
pub(crate) fn survey(shard: &RpcShard, into: &mut Vec<ConnectionStats>) {
    let mut found = Vec::new();
    collect(shard, &mut found);
    into.extend(found.into_iter().map(Surveyed::with_texts));
}

/// Appends the connections of a shard, without the texts.
pub(crate) fn collect<'s>(shard: &'s RpcShard, into: &mut Vec<Surveyed<'s>>) {
    let device = shard.device().attributes().name.as_str();
    let mut from = Some(0);
    while let Some(at) = from {
        // Memory is allocated outside the lock.
        into.reserve(AT_ONCE);
        from = shard.survey(at, AT_ONCE, |endpoint, survey| {
            if let Some(since) = endpoint.established() {
                let (peer, stats) = (Arc::clone(endpoint.identity()), endpoint.stats(survey));
                into.push(Surveyed { peer, device, since, stats });
            }
        });
    }
}
