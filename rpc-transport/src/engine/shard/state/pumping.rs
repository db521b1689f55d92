//! Pumping: connections whose state has changed send what they have, and what they have for the
//! shard is taken.
//!
//! Owns the list of these connections. What a connection may send is up to it.

use std::collections::BTreeSet;
use std::time::Instant;

use super::State;
use super::outside::collect;
use crate::device::Ring;
use crate::engine::connection::Connection;
use crate::engine::connection_key::ConnectionKey;
use crate::engine::deferred::Deferred;
use crate::engine::upper::UpperLayer;

impl<P: UpperLayer> State<P> {
    /// Has a connection pumped, whose state has changed in any way.
    pub(crate) fn mark_dirty(&mut self, index: u32) {
        self.connections[index as usize].leave_fast_path();
        self.mark_ready(index);
    }

    /// Has a connection pumped that may have messages to send or actions to be run, and more only
    /// if it knows of that itself.
    #[inline]
    pub(super) fn mark_ready(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        if !connection.dirty {
            connection.dirty = true;
            self.dirty.push(index);
        }
    }

    pub(crate) fn mark_dirty_key(&mut self, key: ConnectionKey) {
        if self.connection(key).is_some() {
            self.mark_dirty(key.index);
        }
    }

    /// Pumps the dirty connections.
    #[inline]
    pub(in crate::engine::shard) fn transmit_dirty(&mut self) {
        while let Some(index) = self.dirty.pop() {
            self.pump(index, Ring::Now);
        }
    }

    /// Sends what a connection has to send, with doorbells by `ring`, and takes what it has for
    /// others.
    #[inline(never)]
    pub(super) fn pump(&mut self, index: u32, ring: Ring) {
        let Some(connection) = self.connections.get_mut(index as usize) else { return };
        connection.dirty = false;
        connection.pump(&mut *self.cq, ring);
        if !connection.is_fast() {
            return self.end_pump(index);
        }
        let key = ConnectionKey { index, generation: connection.generation };
        collect(&mut self.actions, &mut self.deferred, key, &mut connection.protocol);
        if !connection.is_deadline_registered() {
            register(&mut self.deadlines, index, connection);
        }
        if connection.owes_idle_ack() && !connection.warm {
            connection.warm = true;
            self.warm.push(index);
        }
    }

    /// Ends a pump that made every check.
    #[inline(never)]
    fn end_pump(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        let key = ConnectionKey { index, generation: connection.generation };
        let drained = connection.end_pump(&mut *self.cq, self.now);
        collect(&mut self.actions, &mut self.deferred, key, &mut connection.protocol);
        self.spin.on_written(connection.take_written());
        if let Some(drained) = drained {
            self.qp_count -= 1;
            self.unflushed += u64::from(!drained);
            if let Some(at) = connection.take_registered_deadline() {
                self.deadlines.remove(&(at, index));
            }
        }
        self.deferred.append(connection.deferred());
        if connection.is_locked() {
            // Wakers of the handshake; most connections have nothing to be deferred afterwards.
            *connection.deferred() = Vec::new();
            self.handshake_since = self.handshake_since.or(self.idle_since).or(self.parked_at);
        }
        self.pump_queue.on_pumped(index, &mut connection.turn);
        register(&mut self.deadlines, index, connection);
        if connection.owes_idle_ack() && !connection.warm {
            connection.warm = true;
            self.warm.push(index);
        }
        connection.update_fast();
        if connection.is_removable() {
            self.remove(index);
        }
    }

    #[cold]
    fn remove(&mut self, index: u32) {
        let mut gone = self.connections.remove(index as usize);
        if let Some(at) = gone.take_registered_deadline() {
            self.deadlines.remove(&(at, index));
        }
        self.warm.retain(|other| *other != index);
        // Its protocol may still have messages of the user's.
        self.deferred.push(Deferred::Connection { _connection: Box::new(gone) });
    }
}

/// Registers the deadline of a connection, if it has an earlier one than is registered.
fn register<P: UpperLayer>(
    deadlines: &mut BTreeSet<(Instant, u32)>,
    index: u32,
    connection: &mut Connection<P>,
) {
    if let Some((at, earlier)) = connection.deadline_to_register() {
        deadlines.insert((at, index));
        if let Some(earlier) = earlier {
            deadlines.remove(&(earlier, index));
        }
    }
}
