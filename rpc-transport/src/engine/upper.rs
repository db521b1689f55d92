//! What the transport asks of the layer above: a pure state machine per connection.
//!
//! Owns the boundary between messages (here) and calls (`rpc-core`). The driver feeds a
//! [`Protocol`] under the shard's lock and takes what must happen outside of it as *actions*:
//! waking, running handlers, dropping user values. No user code runs inside a `Protocol`.

use std::sync::Arc;
use std::time::Instant;

use crate::connect::error::CloseCause;
use crate::device::PeerIdentity;
use crate::memory::budget::MemoryBudget;
use crate::message::outgoing::OutBuf;
use crate::message::received::Message;
use crate::protocol::link::{Lane, Revoked, SubmitError, Waiting};

/// A message that a [`Protocol`] wants sent.
#[derive(Debug)]
pub struct Submission {
    /// Order class; control messages are urgent, the rest is classed by size.
    pub lane: Lane,
    /// The protocol's name for the message, to revoke it by.
    pub tag: u64,
    /// The message, with headroom for the link's header.
    pub frame: OutBuf,
}

/// Takes a submitted message back by its tag, as far as that is possible.
/// The message itself does not come back: it is let go of outside the lock.
pub type Revoke<'a> = &'a mut dyn FnMut(u64) -> Revoked<()>;

/// What must happen outside the shard's lock.
#[derive(Debug)]
pub enum Outside<E> {
    /// To be run by the [`Executor`], on the driver's task.
    Action(E),
    /// A message that is not sent after all. Dropped as soon as the lock has been released, by whoever
    /// held it: its memory may be the user's.
    Drop(Box<OutBuf>),
}

/// The layer above the link, one per connection.
pub trait Protocol: Send + Sized + 'static {
    /// What the driver's task must do outside the shard's lock.
    type Action: Send + Unpin + 'static;

    /// The peer is known, and messages may arrive from now on; what is submitted leaves when set-up
    /// is complete. Messages above `max_message_bytes` must not be submitted.
    fn on_established(&mut self, peer: &PeerIdentity, max_message_bytes: u64);

    /// What memory for this peer is taken from: arenas, large messages that arrive, streams that
    /// nobody reads. Asked when the connection is made. Default: memory is not counted.
    fn memory_budget(&self) -> MemoryBudget {
        MemoryBudget::unlimited()
    }

    /// So much waits to leave. Called after something had to wait, until nothing does.
    fn on_waiting(&mut self, _waiting: Waiting) {}

    /// A whole message has arrived.
    ///
    /// # Errors
    /// The broken rule, when the peer is out of protocol: the connection is then closed.
    fn on_message(&mut self, message: Message, revoke: Revoke<'_>) -> Result<(), Arc<str>>;

    /// The link did not take a message.
    fn on_refused(&mut self, tag: u64, error: &SubmitError);

    /// Whether [`Protocol::poll_transmit`] may give something. A cheap answer spares most pumps all
    /// their work. Default: it may.
    #[inline]
    fn may_transmit(&self) -> bool {
        true
    }

    /// The next message to send.
    fn poll_transmit(&mut self) -> Option<Submission>;

    /// The most messages that a peer which keeps to the protocol can make wait in the link at once.
    /// More mean that it asks without reading, and end the connection. Default: no such bound.
    fn most_queued(&self) -> usize {
        usize::MAX
    }

    /// What is next to happen outside the lock.
    fn poll_action(&mut self) -> Option<Outside<Self::Action>>;

    /// When [`Protocol::on_timeout`] wants to be called.
    fn next_deadline(&self) -> Option<Instant>;

    /// A deadline has passed.
    fn on_timeout(&mut self, now: Instant, revoke: Revoke<'_>);

    /// The transport is gone; nothing can be sent or will arrive any more. Called once.
    fn on_closed(&mut self, cause: &CloseCause, revoke: Revoke<'_>);

    /// The QP has been destroyed, after [`Protocol::on_closed`]. Called once.
    fn on_released(&mut self);

    /// Whether nothing is in flight, so that a graceful close may go on.
    fn is_idle(&self) -> bool;
}
