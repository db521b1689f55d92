//! What must not run under the shard's lock: wakers and destructors that belong to users.
//!
//! Owns them until the lock is released.

use std::task::Waker;

use crate::message::part::OutPart;
use crate::message::reply_slot::SlotOffer;
use crate::protocol::link::Link;

/// Something to do without the lock.
pub(crate) enum Deferred {
    /// Wake who reads a stream.
    Wake(Waker),
    /// Let go of what was sent.
    Part { _part: OutPart },
    /// Let go of a link, and with it of the memory that the peer could write.
    Link { _link: Box<Link> },
    /// Let go of the memory of a reply slot.
    Slot { _slot: SlotOffer },
    /// Let go of a message that was arriving.
    Message { _message: Box<dyn Send> },
}

impl Deferred {
    pub(crate) fn run(self) {
        if let Self::Wake(waker) = self {
            waker.wake();
        }
    }
}
