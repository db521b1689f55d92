//! Work that must not run under the shard's lock: wakers and destructors of users.
//!
//! Owns it until the lock is released. A panic of one item is logged and does not affect the
//! others.

use std::task::Waker;

use crate::message::outgoing::OutBuf;
use crate::message::part::OutPart;
use crate::protocol::link::{Freed, Link};
use crate::user_code::caught;

/// Work to do after the lock is released.
pub(crate) enum Deferred {
    /// Wake the reader of a stream, or open what has arrived of a tail.
    Wake(Waker),
    /// Drop a part that has been sent.
    Part { _part: OutPart },
    /// Drop a message that will not be sent.
    Body { _body: Box<OutBuf> },
    /// Drop what a link no longer needs.
    Freed { _freed: Freed },
    /// Drop a link, and with it the memory that the peer could write.
    Link { _link: Box<Link> },
    /// Drop a message that was still arriving.
    Message { _message: Box<dyn Send> },
    /// Drop a connection that nobody knows any more.
    Connection { _connection: Box<dyn Send> },
}

impl Deferred {
    fn run(self) {
        if let Self::Wake(waker) = self {
            waker.wake();
        }
    }

    /// Runs all of it, in order.
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
