//! The interface by which the driver has the layer above run actions outside the lock.

use crate::engine::connection_key::ConnectionKey;
use crate::engine::shard::State;
use crate::engine::upper::UpperLayer;

/// Runs actions outside the shard's lock, and feeds results back under it.
pub trait Executor<P: UpperLayer>: Send + 'static {
    /// Runs one action. User code is allowed here. Returns whether a task was woken, in which case
    /// the driver yields to it soon.
    fn execute(&mut self, key: ConnectionKey, action: P::Action) -> bool;

    /// The driver is being dropped: the action must not run user code any more, but waiters must be
    /// woken.
    fn discard(&mut self, action: P::Action);

    /// Feeds results of executed actions back. Runs under the lock: no user code here.
    fn apply(&mut self, state: &mut State<P>);

    /// Called outside the lock, after [`Executor::apply`], to drop values that must not be dropped
    /// under it.
    fn applied(&mut self) {}

    /// Whether [`Executor::apply`] has something to feed back.
    fn has_results(&self) -> bool;
}
