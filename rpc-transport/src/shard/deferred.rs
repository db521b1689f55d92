//! What must not run under the shard's lock: wakers and destructors that belong to users.
//!
//! Owns them until the lock is released.

use std::task::Waker;

use crate::link::Link;
use crate::out_part::OutPart;

/// Something to do without the lock.
pub(crate) enum Deferred {
    /// Wake who reads a stream.
    Wake(Waker),
    /// Let go of what was sent.
    Part { _part: OutPart },
    /// Let go of a link, whose streams end with it.
    Link { _link: Box<Link> },
}

impl Deferred {
    pub(crate) fn run(self) {
        if let Self::Wake(waker) = self {
            waker.wake();
        }
    }
}
