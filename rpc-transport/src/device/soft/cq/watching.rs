//! The epoll set behind the event fd: what its events say, and which QPs it tells of.
//!
//! A ring's peer rings a doorbell only where it is asked to. A socket tells the set of each arrival, also
//! while its QP is polled, and the set wakes whoever sleeps in it: an idle worker of the runtime, for each
//! batch. So a QP that has such events though its CQ is polled without end is *muted*: the set tells no more
//! of its arrivals, until the CQ is armed or the QP leaves the hot list.
//!
//! Invariants:
//! 1. Only a hot QP is muted, and none while the CQ is armed.
//! 2. What came while a QP was muted is found by the poll that follows arming.

#[cfg(test)]
mod tests;

use std::mem::MaybeUninit;

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventFlags};
use rustix::io::Errno;

use crate::device::{ProviderError, QpHandle};

use super::super::queue_pair::QueuePair;
use super::{KIND_OWN_BELL, KIND_QP, SoftCompletionQueue, event_data, find, no_fds};

/// Most events taken from the epoll set in one system call.
const EVENT_BATCH: usize = 64;

impl SoftCompletionQueue {
    /// Takes the events of the set while the CQ is polled. Returns whether there were any.
    #[cold]
    pub(super) fn look_around(&mut self) -> bool {
        let is_awake = !std::mem::take(&mut self.was_armed) && !self.armed;
        self.take_events(is_awake)
    }

    /// Takes events from the epoll set and puts their QPs on the hot list. Mutes those that were on it, if
    /// `mutes`. Returns whether there were any.
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
            // The QP of this event may be destroyed and its slot reused: the new QP must not see
            // the event.
            Some(qp) if event_data(KIND_QP, qp.handle()).u64() == data => qp.handle(),
            _ => return,
        };
        if let Some(qp) = find(&mut self.entries, handle) {
            let end = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
            qp.on_event(flags.intersects(end));
            if mutes && qp.hot && !qp.muted && qp.is_costly() && flags.contains(EventFlags::IN) {
                // If it cannot be, it costs time only.
                let _ = self.set_muted(handle, true);
            }
        }
        self.heat(handle);
    }

    /// Has the set tell of arrivals again where it does not, for who is about to sleep.
    ///
    /// # Errors
    /// [`ProviderError::Resources`] when the set refuses.
    pub(super) fn unmute_all(&mut self) -> Result<(), ProviderError> {
        self.was_armed = true;
        if self.muted == 0 {
            return Ok(());
        }
        for at in 0..self.hot.len() {
            let qp = self.entries[self.hot[at] as usize].qp.as_deref();
            if let Some(handle) = qp.filter(|qp| qp.muted).map(QueuePair::handle) {
                self.set_muted(handle, false).map_err(|error| no_fds(error.into()))?;
            }
        }
        // The set has just looked at their sockets. What it has found the next poll finds, too, and that there
        // is room to write need wake nobody.
        self.take_events(false);
        Ok(())
    }

    /// Has the set tell of a QP's arrivals, or not.
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
