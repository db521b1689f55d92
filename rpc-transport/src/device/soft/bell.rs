//! Doorbells inside this process: event fds that wake the other side.
//!
//! Owns how they are made and rung. Members of an epoll set are edge-triggered, so nobody reads
//! them: every ring is an edge. Never leaves this process: who shares an event fd can make ringing
//! it block. Between processes the side channel rings.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

/// A doorbell. Cloning shares it.
#[derive(Debug, Clone)]
pub(super) struct Bell(Arc<OwnedFd>);

impl Bell {
    /// Makes a doorbell.
    ///
    /// # Errors
    /// Those of `eventfd(2)`: mostly the limit on open files.
    pub(super) fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(fd)))
    }

    /// Rings it. Nobody reads it, and to fill it up would take for ever.
    pub(super) fn ring(&self) {
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
