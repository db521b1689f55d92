//! What must not run under the shard's lock: wakers and destructors that belong to users.
//!
//! Owns them until the lock is released. Each runs by itself: a panic of one is logged, and costs
//! none of the others.

use std::task::Waker;

use crate::message::outgoing::OutBuf;
use crate::message::part::OutPart;
use crate::protocol::link::{Freed, Link};
use crate::user_code::caught;

/// Something to do without the lock.
pub(crate) enum Deferred {
    /// Wake who reads a stream.
    Wake(Waker),
    /// Let go of what was sent.
    Part { _part: OutPart },
    /// Let go of a message that is not sent.
    Body { _body: Box<OutBuf> },
    /// Let go of what a link is done with.
    Freed { _freed: Freed },
    /// Let go of a link, and with it of the memory that the peer could write.
    Link { _link: Box<Link> },
    /// Let go of a message that was arriving.
    Message { _message: Box<dyn Send> },
}

impl Deferred {
    fn run(self) {
        if let Self::Wake(waker) = self {
            waker.wake();
        }
    }

    /// Does all of that, in order.
    #[inline]
    pub(crate) fn run_all(deferred: Vec<Self>) {
        if !deferred.is_empty() {
            run_each(deferred);
        }
    }
}

#[cold]
fn run_each(deferred: Vec<Deferred>) {
    for deferred in deferred {
        caught(|| deferred.run());
    }
}
