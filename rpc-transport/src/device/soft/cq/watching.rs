//! The epoll set behind the event fd: the meaning of its events, and the QPs that it reports.
//!
//! A ring's peer rings a doorbell only on request. A socket reports each arrival to the set, also
//! while its QP is polled, and the set wakes its sleeper for each batch: an idle worker of the
//! runtime. So a QP with such events whose CQ is polled continuously is *muted*: the set does not
//! report its arrivals until the CQ is armed or the QP leaves the hot list.
//!
//! Invariants:
//! 1. Only hot QPs are muted, and none while the CQ is armed.
//! 2. Arrivals at a muted QP are found by the poll that follows arming.

#[cfg(test)]
mod tests;

use std::mem::MaybeUninit;

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventFlags};
use rustix::io::Errno;

use crate::device::{CompletionQueue, QpEvent, QpHandle};
use crate::user_code::logged;

use super::super::queue_pair::QueuePair;
use super::{KIND_OWN_BELL, KIND_QP, SoftCompletionQueue, event_data, find};

/// Most events taken from the epoll set in one system call.
const EVENT_BATCH: usize = 64;

impl SoftCompletionQueue {
    /// Takes the events of the set while the CQ is polled. Returns whether there were any.
    #[cold]
    pub(super) fn take_polled_events(&mut self) -> bool {
        let is_awake = !std::mem::take(&mut self.was_armed) && !self.armed;
        self.take_events(is_awake)
    }

    /// Takes events from the epoll set and puts their QPs on the hot list. Mutes those that were on
    /// it, if `mutes`. Returns whether there were any.
    #[cold]
    pub(super) fn take_events(&mut self, mutes: bool) -> bool {
        let mut any = false;
        loop {
            let mut buffer = [const { MaybeUninit::<Event>::uninit() }; EVENT_BATCH];
            let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
            let Ok((ready, _)) = epoll::wait(&self.epoll, &mut buffer, Some(&zero)) else {
                return any;
            };
            any |= !ready.is_empty();
            for event in ready.iter() {
                let (data, flags) = (event.data.u64(), event.flags);
                if data & 0xff != KIND_OWN_BELL {
                    self.on_event(data, flags, mutes);
                }
            }
            if ready.len() < EVENT_BATCH {
                return any;
            }
        }
    }

    fn on_event(&mut self, data: u64, flags: EventFlags, mutes: bool) {
        let Ok(index) = usize::try_from(data >> 32) else { return };
        let handle = match self.entries.get(index).and_then(|entry| entry.qp.as_ref()) {
            // The QP of this event may have been destroyed and its slot reused: the new QP must not
            // see the event.
            Some(qp) if event_data(KIND_QP, qp.handle()).u64() == data => qp.handle(),
            _ => return,
        };
        if let Some(qp) = find(&mut self.entries, handle) {
            let end = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
            qp.on_event(flags.intersects(end));
            if mutes && qp.hot && !qp.muted && qp.is_costly() && flags.contains(EventFlags::IN) {
                // A failure to mute costs only time.
                let _ = self.set_muted(handle, true);
            }
        }
        self.heat(handle);
    }

    /// Lets the set report all arrivals again, for an owner that is about to sleep. A QP that the
    /// set refuses to report ends, since its arrivals would go unnoticed; the other QPs continue.
    pub(super) fn unmute_all(&mut self) {
        self.was_armed = true;
        if self.muted == 0 {
            return;
        }
        for at in 0..self.hot.len() {
            let qp = self.entries[self.hot[at] as usize].qp.as_deref();
            if let Some(handle) = qp.filter(|qp| qp.muted).map(QueuePair::handle)
                && let Err(error) = self.set_muted(handle, false)
            {
                self.end_unwatched(handle, error);
            }
        }
        // The set has just checked their sockets. The next poll finds what it found, and room to
        // write need not wake anybody.
        self.take_events(false);
    }

    #[cold]
    fn end_unwatched(&mut self, handle: QpHandle, error: Errno) {
        let Some(qp) = find(&mut self.entries, handle) else { return };
        qp.muted = false;
        self.muted -= 1;
        // The QP exists.
        let _ = self.modify_to_error(handle);
        self.events.push_back(QpEvent::Fatal(handle, error.raw_os_error().unsigned_abs()));
        logged(move || tracing::warn!(qp = ?handle, %error, "a socket can no longer be watched"));
    }

    /// Lets the set report a QP's arrivals, or not.
    pub(super) fn set_muted(&mut self, handle: QpHandle, muted: bool) -> Result<(), Errno> {
        let Some(qp) = find(&mut self.entries, handle) else { return Ok(()) };
        let Some((fd, news)) = qp.wire().watched() else { return Ok(()) };
        let news = if muted { news - EventFlags::IN } else { news };
        let data = event_data(KIND_QP, handle);
        epoll::modify(&self.epoll, fd, data, news | EventFlags::ET)?;
        qp.muted = muted;
        self.muted = if muted { self.muted + 1 } else { self.muted - 1 };
        Ok(())
    }
}
