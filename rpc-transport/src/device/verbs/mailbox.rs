//! What other threads tell the owner of a CQ, and the eventfd that wakes it.
//!
//! Owns the events of QPs on their way from the connection manager or the device to the CQ's owner,
//! and the news of the CQ's death. Never calls the device.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use crate::device::{ProviderError, QpEvent};

/// A mailbox with a bell.
#[derive(Debug)]
pub(super) struct Mailbox {
    events: Mutex<VecDeque<QpEvent>>,
    /// Whether `events` may hold something: keeps the lock off the polling path.
    has_events: AtomicBool,
    dead: OnceLock<String>,
    bell: OwnedFd,
    /// The bell was rung: keeps the system call out of every wake-up by a completion.
    was_rung: AtomicBool,
}

impl Mailbox {
    /// An empty mailbox.
    pub(super) fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self {
            events: Mutex::default(),
            has_events: AtomicBool::new(false),
            dead: OnceLock::new(),
            bell,
            was_rung: AtomicBool::new(false),
        })
    }

    /// Becomes readable when something was put in.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Makes the bell readable.
    pub(super) fn ring(&self) {
        // EAGAIN means that the counter is full, so it is readable already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        // Behind the write: whoever sees it finds the bell rung. In between the bell is heard once
        // too often, which is legal; the other way round it would never be silent again.
        self.was_rung.store(true, Ordering::Release);
    }

    /// Makes the bell unreadable until it is rung again.
    pub(super) fn silence(&self) {
        if !self.was_rung.swap(false, Ordering::Acquire) {
            return;
        }
        // EAGAIN means that it was not rung.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }

    /// Puts an event in.
    pub(super) fn put(&self, event: QpEvent) {
        let mut events = self.events.lock();
        events.push_back(event);
        self.has_events.store(true, Ordering::Release);
        drop(events);
        self.ring();
    }

    /// Takes the next event.
    pub(super) fn take(&self) -> Option<QpEvent> {
        if !self.has_events.load(Ordering::Acquire) {
            return None;
        }
        let mut events = self.events.lock();
        let event = events.pop_front();
        if events.is_empty() {
            self.has_events.store(false, Ordering::Release);
        }
        event
    }

    /// Declares the CQ dead.
    pub(super) fn kill(&self, reason: String) {
        // The first reason stands.
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
    fn events_come_out_in_order_and_ring_the_bell() {
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
