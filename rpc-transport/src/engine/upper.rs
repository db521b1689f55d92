//! The interface to the layer above: a pure state machine per connection.
//!
//! Owns the boundary between messages (here) and calls (`rpc-core`). The driver feeds a
//! [`UpperLayer`] under the shard's lock and takes work that must run outside of it as *actions*:
//! waking, running handlers, dropping user values. No user code runs inside an `UpperLayer`.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use crate::device::PeerIdentity;
use crate::device::connection_error::CloseCause;
use crate::engine::connection_key::ConnectionKey;
use crate::engine::deferred::Deferred;
use crate::memory::budget::MemoryBudget;
use crate::message::outgoing::OutBuf;
use crate::message::received::Message;
use crate::protocol::link::{Lane, Revoked, SubmitError, Waiting};
use crate::protocol::lock::Secured;

/// A message that an [`UpperLayer`] wants sent.
#[derive(Debug)]
pub struct Submission {
    /// Order class; control messages are urgent, the rest is classed by size.
    pub lane: Lane,
    /// The protocol's identifier of the message, by which it can be revoked.
    pub tag: u64,
    /// The message, with headroom for the link's header.
    pub frame: OutBuf,
}

/// A caller that sleeps.
#[derive(Debug)]
pub enum Sleeper {
    /// Who it is among the callers of its connection, and its waker.
    Found(u64, Waker),
    /// None does.
    Nobody,
    /// None is easily found.
    Unknown,
}

/// Revokes a submitted message by its tag, as far as that is possible. The message itself is not
/// returned: it is dropped outside the lock.
pub type Revoke<'a> = &'a mut dyn FnMut(u64) -> Revoked<()>;

/// Takes the work of an [`UpperLayer`] that must be done outside the shard's lock.
pub struct Outside<'a, A> {
    pub(super) key: ConnectionKey,
    pub(super) actions: &'a mut VecDeque<(ConnectionKey, A)>,
    pub(super) deferred: &'a mut Vec<Deferred>,
}

impl<A> Outside<'_, A> {
    /// To be run by the [`Executor`](crate::engine::executor::Executor), on the driver's task.
    // Inlined, so that a large action is made where it goes.
    #[inline(always)]
    pub fn run(&mut self, action: A) {
        self.actions.push_back((self.key, action));
    }

    /// A message that will not be sent. Dropped by the thread that held the lock, right after it is
    /// released: its memory may be the user's.
    pub fn drop(&mut self, body: Box<OutBuf>) {
        self.deferred.push(Deferred::Body { _body: body });
    }
}

impl<A> fmt::Debug for Outside<'_, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outside").field("key", &self.key).finish_non_exhaustive()
    }
}

/// The layer above the link, one per connection.
pub trait UpperLayer: Send + Sized + 'static {
    /// Work that the driver's task must do outside the shard's lock.
    type Action: Send + Unpin + 'static;

    /// The peer is known, and messages may arrive from now on; submitted messages are sent when
    /// set-up is complete. Messages above `max_message_bytes` must not be submitted. The connection
    /// is known as `key` to its shard.
    fn on_established(&mut self, key: ConnectionKey, peer: &PeerIdentity, max_message_bytes: u64);

    /// The peer has proved who it is. Called before [`UpperLayer::on_established`], if the
    /// connection has a handshake. Default: nothing.
    fn on_secured(&mut self, _secured: &Secured) {}

    /// The budget for memory of this peer: arenas, large messages that arrive, streams that nobody
    /// reads. Asked once, when the connection is made. Default: unlimited.
    fn memory_budget(&self) -> MemoryBudget {
        MemoryBudget::unlimited()
    }

    /// Whether [`UpperLayer::on_waiting`] is to be called after the next pump, whether or not
    /// something had to wait. Must be cheap. Default: false.
    #[inline]
    fn wants_waiting(&self) -> bool {
        false
    }

    /// The amount that waits to be sent. Called after each pump once something had to wait, until
    /// nothing does; and when [`UpperLayer::wants_waiting`] says so. Returns whether this makes
    /// [`UpperLayer::poll_transmit`] return messages that it held back. Default: it held none back.
    fn on_waiting(&mut self, _waiting: Waiting) -> bool {
        false
    }

    /// A whole message has arrived.
    ///
    /// # Errors
    /// The rule that the peer broke: the connection is then closed.
    fn on_message(&mut self, message: Message, revoke: Revoke<'_>) -> Result<(), Arc<str>>;

    /// The head of a large message has arrived: whether the reader of its tail will copy the tail
    /// out. Then the link may copy it while it arrives. A wrong answer costs a copy. Default: no.
    fn copies_tail(&self, _head: &[u8]) -> bool {
        false
    }

    /// The link refused a message.
    fn on_refused(&mut self, tag: u64, error: &SubmitError);

    /// Whether [`UpperLayer::poll_transmit`] may return something. Must be cheap: false spares most
    /// pumps all their work. Default: true.
    #[inline]
    fn may_transmit(&self) -> bool {
        true
    }

    /// The next message to send.
    fn poll_transmit(&mut self) -> Option<Submission>;

    /// The most messages that a peer which keeps to the protocol can cause to be queued in the link
    /// at once. A longer queue means that the peer sends requests without reading replies, and ends
    /// the connection. Default: no bound.
    fn most_queued(&self) -> usize {
        usize::MAX
    }

    /// Whether [`UpperLayer::drain_actions`] may give something. Must be cheap, as it is asked
    /// after each message. Default: true.
    #[inline]
    fn has_actions(&self) -> bool {
        true
    }

    /// Hands over all work to be done outside the lock, in order.
    fn drain_actions(&mut self, outside: &mut Outside<'_, Self::Action>);

    /// The waker of an action that does nothing but wake it: any thread may do that. Default: none
    /// does.
    ///
    /// # Errors
    /// The action, if it is another one.
    fn into_waker(action: Self::Action) -> Result<Waker, Self::Action> {
        Err(action)
    }

    /// Whether all that is awaited from the peer are outcomes of calls, so that those who wait for
    /// them may poll in place of the driver. Must be cheap. Default: no.
    #[inline]
    fn is_for_callers_alone(&self) -> bool {
        false
    }

    /// Takes the waker of a caller that sleeps until its outcome comes. Must be cheap. Default: it
    /// is not known whether one does.
    fn take_sleeper(&mut self) -> Sleeper {
        Sleeper::Unknown
    }

    /// When [`UpperLayer::on_timeout`] must be called next.
    fn next_deadline(&self) -> Option<Instant>;

    /// A deadline has passed.
    fn on_timeout(&mut self, now: Instant, revoke: Revoke<'_>);

    /// The connection has ended; nothing can be sent or will arrive any more. Called once.
    fn on_closed(&mut self, cause: &CloseCause, revoke: Revoke<'_>);

    /// A message that was revoked whole in [`UpperLayer::on_closed`]; called after that, in the
    /// same visit. What is returned is dropped outside the lock. Default: all.
    fn on_given_back(&mut self, _tag: u64, message: OutBuf) -> Option<OutBuf> {
        Some(message)
    }

    /// The QP has been destroyed, after [`UpperLayer::on_closed`]. Called once.
    fn on_released(&mut self);

    /// Whether nothing is in flight, so that a graceful close may go on.
    fn is_idle(&self) -> bool;
}
