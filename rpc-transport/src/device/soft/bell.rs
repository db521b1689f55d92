//! Doorbells inside this process: eventfds that wake the other side.
//!
//! Owns how they are created and rung. They sit in epoll sets as edge-triggered members, so every
//! ring is an event and nobody needs to read them. Never shared with another process: a process
//! that shares an eventfd could make ringing it block. Between processes the side channel carries
//! doorbells.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

/// A doorbell. Cloning shares it.
#[derive(Debug, Clone)]
pub(super) struct Doorbell(Arc<OwnedFd>);

impl Doorbell {
    /// Creates a doorbell.
    ///
    /// # Errors
    /// Those of `eventfd(2)`: usually the limit on open files.
    pub(super) fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(fd)))
    }

    /// Rings it. Nobody reads the counter, but filling its 64 bits would take centuries.
    pub(super) fn ring(&self) {
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
