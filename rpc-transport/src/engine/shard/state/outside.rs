//! What a protocol has for the time after the lock is released.
//!
//! Owns how it is collected. Runs and drops nothing.

use std::collections::VecDeque;

use crate::engine::connection_key::ConnectionKey;
use crate::engine::deferred::Deferred;
use crate::engine::upper::{Outside, UpperLayer};

/// Collects the protocol's actions and the bodies to be dropped, for after the lock is released.
#[inline]
pub(super) fn collect<P: UpperLayer>(
    actions: &mut VecDeque<(ConnectionKey, P::Action)>,
    deferred: &mut Vec<Deferred>,
    key: ConnectionKey,
    protocol: &mut P,
) {
    if protocol.has_actions() {
        collect_all(actions, deferred, key, protocol);
    }
}

#[inline(never)]
fn collect_all<P: UpperLayer>(
    actions: &mut VecDeque<(ConnectionKey, P::Action)>,
    deferred: &mut Vec<Deferred>,
    key: ConnectionKey,
    protocol: &mut P,
) {
    protocol.drain_actions(&mut Outside { key, actions, deferred });
}
