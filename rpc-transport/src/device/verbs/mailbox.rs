//! Messages of other threads to the owner of a CQ, and the eventfd that wakes it.
//!
//! Owns the eventfd, and the report of the CQ's death. [`crate::device::mailbox`] owns the order of
//! steps that keeps a wake-up from being lost. Never calls the device.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::event::{EventfdFlags, eventfd};

use crate::device::mailbox::{Doorbell, Events};
use crate::device::{ProviderError, QpEvent};

/// A mailbox with its eventfd.
#[derive(Debug)]
pub(super) struct Mailbox {
    events: Events<QpEvent, EventFd>,
    dead: OnceLock<String>,
}

#[derive(Debug)]
struct EventFd(OwnedFd);

impl Doorbell for EventFd {
    fn ring(&self) {
        // EAGAIN means that the counter is full, so the fd is readable already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    fn silence(&self) {
        // EAGAIN means that it was not rung.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl Mailbox {
    /// An empty mailbox.
    pub(super) fn new() -> io::Result<Self> {
        let bell = EventFd(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(Self { events: Events::new(bell), dead: OnceLock::new() })
    }

    /// The fd that becomes readable when something was added.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.events.bell().0.as_fd()
    }

    /// Makes the fd readable.
    pub(super) fn ring(&self) {
        self.events.ring();
    }

    /// Makes the fd unreadable until it is rung again.
    pub(super) fn silence(&self) {
        self.events.silence();
    }

    /// Adds an event.
    pub(super) fn put(&self, event: QpEvent) {
        self.events.put(event);
    }

    /// Takes the next event.
    pub(super) fn take(&self) -> Option<QpEvent> {
        self.events.take()
    }

    /// Declares the CQ dead.
    pub(super) fn kill(&self, reason: String) {
        // The first reason is kept.
        let _ = self.dead.set(reason);
        self.ring();
    }

    /// Fails when the CQ is dead.
    pub(super) fn check_alive(&self) -> Result<(), ProviderError> {
        match self.dead.get() {
            None => Ok(()),
            Some(reason) => Err(ProviderError::CompletionQueueDead(reason.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::device::QpHandle;

    fn is_rung(mailbox: &Mailbox) -> bool {
        let bell = mailbox.bell();
        let mut fds = [PollFd::from_borrowed_fd(bell, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    }

    #[test]
    fn events_keep_their_order_and_ring_the_doorbell() {
        let mailbox = Mailbox::new().unwrap();
        assert!(mailbox.take().is_none() && !is_rung(&mailbox));
        let handle = |index| QpHandle { index, generation: 1 };
        mailbox.put(QpEvent::Disconnected(handle(1)));
        mailbox.put(QpEvent::Fatal(handle(2), 3));
        assert!(is_rung(&mailbox));
        mailbox.silence();
        mailbox.silence();
        assert!(!is_rung(&mailbox));
        mailbox.ring();
        mailbox.ring();
        assert!(is_rung(&mailbox));
        mailbox.silence();
        assert!(!is_rung(&mailbox));
        assert_eq!(mailbox.take(), Some(QpEvent::Disconnected(handle(1))));
        assert_eq!(mailbox.take(), Some(QpEvent::Fatal(handle(2), 3)));
        assert_eq!(mailbox.take(), None);
        mailbox.put(QpEvent::Disconnected(handle(3)));
        assert_eq!(mailbox.take(), Some(QpEvent::Disconnected(handle(3))));
    }

    #[test]
    fn the_first_cause_of_death_stands_and_rings() {
        let mailbox = Mailbox::new().unwrap();
        assert!(mailbox.check_alive().is_ok());
        mailbox.kill("overflow".to_owned());
        mailbox.kill("later".to_owned());
        assert!(is_rung(&mailbox));
        let error = mailbox.check_alive().unwrap_err().to_string();
        assert!(error.contains("overflow"), "{error}");
    }
}
