//! The completion queue of the software device, which also owns and drives its QPs.
//!
//! Owns which QPs are visited and when, what makes the event fd readable, and the doorbells that
//! are held back until the batch ends. Never looks into a packet.
//!
//! The cost of a poll grows with the number of active QPs, not of connected ones: a QP that has
//! been quiet for a while is armed (its peer will ring a doorbell) and leaves the hot list. The
//! event fd is an epoll set over all doorbells and sockets.
//!
//! Invariants:
//! 1. A QP outside the hot list is armed, and was found without work after the fence that followed
//!    arming.
//! 2. After [`CompletionQueue::arm`], until a poll returns completions or events are cleared, every
//!    QP is armed with a fence after it, or the event fd is readable.
//! 3. One fence, and one check of each doorbell, per batch; never per message.
//! 4. Reserved entries never exceed the capacity (contract rule 13), so the CQ cannot overflow.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::device::{
    Completion, CompletionQueue, PostError, PostErrorKind, ProviderError, QpCapacity, QpEvent,
    QpHandle, QpState, RecvWr, Ring, SendWr, Traffic, post_inline_listed,
};
use crate::memory::region::ProtectionDomain;

use super::advice;
use super::bell::Doorbell;
use super::domain::SoftDomain;
use super::queue_pair::QueuePair;
use super::sink::{CqQueues, Sink};
use super::wire::Wire;

mod bells;
mod shared;
#[cfg(test)]
mod testing;
mod watching;

/// A QP leaves the hot list when the polls since its last activity, times the number of hot QPs,
/// exceed this.
const QUIET_VISITS: u64 = 16 * 1024;
/// A visit that makes a system call counts as this many visits.
const COSTLY: u64 = 512;
/// One poll in this many also looks for events of QPs outside the hot list.
const EVENTS_EVERY: u64 = 256;
/// Most doorbells that wait for the next poll.
const MAX_HELD_BELLS: usize = 16;
/// Polls in a row that leave an acknowledgement held, though all find something.
const MAX_HOLDING_POLLS: u32 = 4;
/// Kinds of objects that an event of the epoll set refers to.
const KIND_OWN_BELL: u64 = 0;
const KIND_QP: u64 = 1;

#[derive(Debug, Default)]
struct Entry {
    generation: u32,
    qp: Option<Box<QueuePair>>,
}

/// A completion queue of the software device. It may own QPs of every software wire at once.
pub(super) struct SoftCompletionQueue {
    capacity: u32,
    reserved: u32,
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// QPs that every poll visits.
    hot: Vec<u32>,
    /// Index in `hot` where the next poll begins.
    cursor: usize,
    /// QPs whose peer's doorbell is checked when the batch ends.
    bells: Vec<u32>,
    /// Polls in a row that began with something in `bells`, since all of them were rung.
    holding_polls: u32,
    queues: CqQueues,
    events: VecDeque<QpEvent>,
    epoll: OwnedFd,
    own_bell: Doorbell,
    armed: bool,
    /// The CQ was armed since the last look for events.
    was_armed: bool,
    /// Number of QPs whose arrivals the epoll set does not report.
    muted: usize,
    /// Polls so far.
    clock: u64,
    /// The next poll looks for events.
    attends: bool,
}

impl SoftCompletionQueue {
    /// Creates a CQ that holds `capacity` completions.
    ///
    /// # Errors
    /// [`ProviderError::Resources`] when no file descriptors are left.
    pub(super) fn create(capacity: u32) -> Result<Self, ProviderError> {
        let refused = |error: rustix::io::Errno| no_fds(error.into());
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(refused)?;
        let own_bell = Doorbell::new().map_err(no_fds)?;
        let data = EventData::new_u64(KIND_OWN_BELL);
        epoll::add(&epoll, &own_bell, data, EventFlags::IN | EventFlags::ET).map_err(refused)?;
        Ok(Self {
            capacity,
            reserved: 0,
            entries: Vec::new(),
            free: Vec::new(),
            hot: Vec::new(),
            cursor: 0,
            bells: Vec::new(),
            holding_polls: 0,
            queues: CqQueues::default(),
            events: VecDeque::new(),
            epoll,
            own_bell,
            armed: false,
            was_armed: false,
            muted: 0,
            clock: 0,
            attends: false,
        })
    }

    /// Finds the software CQ behind a trait object.
    pub(super) fn of(cq: &mut dyn CompletionQueue) -> Result<&mut Self, ProviderError> {
        (cq as &mut dyn std::any::Any)
            .downcast_mut()
            .ok_or(ProviderError::WrongDevice("completion queue"))
    }

    /// Creates a QP in INIT.
    pub(super) fn create_qp(
        &mut self,
        pd: &ProtectionDomain,
        capacity: QpCapacity,
    ) -> Result<QpHandle, ProviderError> {
        let domain = SoftDomain::of(pd)?;
        let wanted = entries_of(capacity)?;
        self.check_room(wanted)?;
        self.join_srq(capacity, domain.id())?;
        self.reserved += wanted;
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry::default());
            u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX)
        });
        let entry = &mut self.entries[index as usize];
        let handle = QpHandle { index, generation: entry.generation };
        entry.qp = Some(Box::new(QueuePair::new(handle, domain, capacity)));
        Ok(handle)
    }

    fn check_room(&self, wanted: u32) -> Result<(), ProviderError> {
        if wanted > self.capacity - self.reserved {
            let (capacity, used) = (self.capacity, self.reserved);
            return Err(ProviderError::CompletionQueueFull { capacity, used, wanted });
        }
        Ok(())
    }

    /// Connects a QP: the last step of set-up.
    pub(super) fn attach(&mut self, handle: QpHandle, wire: Wire) -> Result<(), ProviderError> {
        let clock = self.clock;
        let qp = find(&mut self.entries, handle).ok_or(ProviderError::UnknownQp)?;
        // If the QP has failed in the meantime, dropping the wire notifies the peer.
        if qp.state() != QpState::Init {
            return Ok(());
        }
        if let Some((fd, flags)) = wire.watched() {
            // Edge-triggered, so nobody needs to read it.
            let data = event_data(KIND_QP, handle);
            epoll::add(&self.epoll, fd, data, flags | EventFlags::ET)
                .map_err(|error| no_fds(error.into()))?;
        }
        qp.attach(wire);
        qp.last_active = clock;
        self.heat(handle);
        // This QP was not armed with the others, and the peer may have sent already (invariant 2).
        self.fire();
        Ok(())
    }

    fn heat(&mut self, handle: QpHandle) {
        let clock = self.clock;
        let Some(qp) = find(&mut self.entries, handle) else { return };
        qp.attend();
        qp.last_active = clock;
        if !std::mem::replace(&mut qp.hot, true) {
            self.hot.push(handle.index);
        }
    }

    /// Moves queued completions to the caller's list.
    fn drain_queue(&mut self, completions: &mut Vec<Completion>, max: usize) {
        for _ in 0..max {
            let Some(queued) = self.queues.completions.pop_front() else { return };
            if queued.is_shared {
                self.shared_is_polled();
            } else if let Some(qp) = find(&mut self.entries, queued.completion.qp) {
                qp.free(queued.frees);
            }
            completions.push(queued.completion);
        }
    }

    /// Visits hot QPs until the caller's list has taken `room` more completions. Returns whether
    /// any QP was active.
    #[inline]
    fn visit_hot(&mut self, completions: &mut Vec<Completion>, room: usize) -> bool {
        let count = self.hot.len();
        let end = completions.len() + room;
        let (mut cooling, mut active) = (false, false);
        for step in 0..count {
            let at = self.cursor + step;
            let at = if at < count { at } else { at - count };
            let index = self.hot[at];
            let Some(qp) = self.entries[index as usize].qp.as_deref_mut() else { continue };
            if qp.is_quiet() {
                cooling |= is_overdue(qp, self.clock, count);
                continue;
            }
            let room = end - completions.len();
            if room == 0 {
                self.cursor = at;
                break;
            }
            let mut sink = Sink::polled(completions, room, &mut self.queues);
            let visit = qp.visit(&mut sink, &mut self.events);
            if visit.bell && !std::mem::replace(&mut qp.notify_listed, true) {
                self.bells.push(index);
            }
            if visit.active {
                active = true;
                qp.last_active = self.clock;
            } else {
                cooling |= is_overdue(qp, self.clock, count);
            }
        }
        if cooling {
            self.cool();
        }
        if self.cursor >= self.hot.len() {
            self.cursor = 0;
        }
        active
    }

    /// Arms QPs that have been quiet for long and takes them off the hot list (invariant 1).
    #[cold]
    fn cool(&mut self) {
        let clock = self.clock;
        let count = self.hot.len();
        for at in 0..count {
            match self.entries[self.hot[at] as usize].qp.as_deref_mut() {
                Some(qp) if is_overdue(qp, clock, count) => {
                    qp.arm();
                    let (handle, muted) = (qp.handle(), qp.muted);
                    if muted {
                        // A QP that the set refuses to report stays hot.
                        let _ = self.set_muted(handle, false);
                    }
                }
                _ => {}
            }
        }
        fence(Ordering::SeqCst);
        let Self { hot, entries, .. } = self;
        hot.retain(|index| {
            let entry = &mut entries[*index as usize];
            let Some(qp) = entry.qp.as_deref_mut() else { return false };
            qp.hot = !is_overdue(qp, clock, count) || qp.has_work() || qp.muted;
            qp.hot
        });
    }

    /// Runs `act` on a QP. Wakes an armed CQ if that queued completions.
    fn with_qp<T>(
        &mut self,
        handle: QpHandle,
        act: impl FnOnce(&mut QueuePair, &mut Sink<'_>) -> T,
    ) -> Option<T> {
        let qp = find(&mut self.entries, handle)?;
        let before = self.queues.completions.len();
        let mut sink = Sink::queued(&mut self.queues);
        let result = act(qp, &mut sink);
        if self.queues.completions.len() > before {
            self.fire();
        }
        Some(result)
    }

    /// Makes the event fd readable if the CQ is armed. Needed when something was added that no
    /// doorbell announces, or when a poll that returned no completion consumed the wake-up.
    #[cold]
    fn fire(&mut self) {
        if self.armed {
            self.own_bell.ring();
        }
    }
}

/// Whether a QP, one of `count` hot ones, has been quiet long enough to leave the hot list.
#[inline]
fn is_overdue(qp: &QueuePair, clock: u64, count: usize) -> bool {
    let cost = if qp.is_costly() { COSTLY } else { 1 };
    (clock - qp.last_active) * cost * count as u64 > QUIET_VISITS
}

/// Rings the doorbell of a QP's peer, if the peer has armed. Call it after a fence.
#[inline]
fn notify(qp: &mut QueuePair, hot: &mut Vec<u32>) {
    if qp.notify() && !std::mem::replace(&mut qp.hot, true) {
        hot.push(qp.handle().index);
    }
}

#[inline]
fn find(entries: &mut [Entry], handle: QpHandle) -> Option<&mut QueuePair> {
    let entry = entries.get_mut(handle.index as usize)?;
    if entry.generation != handle.generation {
        return None;
    }
    entry.qp.as_deref_mut()
}

fn event_data(kind: u64, handle: QpHandle) -> EventData {
    let generation = u64::from(handle.generation & 0x00ff_ffff);
    EventData::new_u64(kind | generation << 8 | u64::from(handle.index) << 32)
}

fn entries_of(capacity: QpCapacity) -> Result<u32, ProviderError> {
    for (what, asked) in [
        ("send work requests", capacity.max_send_wr),
        ("receive work requests", capacity.max_recv_wr),
    ] {
        if asked > super::MAX_QP_WR {
            let (asked, limit) = (u64::from(asked), u64::from(super::MAX_QP_WR));
            return Err(ProviderError::Limit { what, asked, limit });
        }
    }
    Ok(capacity.max_send_wr + capacity.max_recv_wr)
}

fn no_fds(error: io::Error) -> ProviderError {
    advice::out_of_resources("watching a file descriptor", &error)
}

impl CompletionQueue for SoftCompletionQueue {
    fn capacity(&self) -> u32 {
        self.capacity
    }

    fn poll(
        &mut self,
        completions: &mut Vec<Completion>,
        max: usize,
    ) -> Result<usize, ProviderError> {
        let start = completions.len();
        self.clock += 1;
        self.ring_bells_in_poll();
        let looks = self.clock.is_multiple_of(EVENTS_EVERY) | std::mem::take(&mut self.attends);
        let mut disturbed = looks && self.take_polled_events();
        if !self.queues.completions.is_empty() {
            self.drain_queue(completions, max);
        }
        let room = max - (completions.len() - start);
        if room > 0 {
            let events = self.events.len();
            disturbed |= self.visit_hot(completions, room);
            disturbed |= self.events.len() > events;
        }
        let polled = completions.len() - start;
        if polled > 0 {
            self.armed = false;
            return Ok(polled);
        }
        // The owner may sleep now, so no doorbell that a peer waits for may be held back.
        self.ring_all_bells();
        if disturbed {
            self.fire();
        }
        Ok(polled)
    }

    fn arm(&mut self) -> Result<(), ProviderError> {
        self.ring_all_bells();
        self.unmute_all();
        self.armed = true;
        for index in &self.hot {
            if let Some(qp) = self.entries[*index as usize].qp.as_deref_mut() {
                qp.arm();
            }
        }
        fence(Ordering::SeqCst);
        Ok(())
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn clear_events(&mut self) -> Result<(), ProviderError> {
        self.armed = false;
        self.take_events(false);
        Ok(())
    }

    fn attend(&mut self) {
        self.attends = true;
    }

    fn poll_event(&mut self) -> Option<QpEvent> {
        self.events.pop_front()
    }

    fn post_send(&mut self, qp: QpHandle, wrs: &mut [SendWr<'_>]) -> Result<(), PostError> {
        let index = qp.index;
        let Some(qp) = find(&mut self.entries, qp) else {
            return Err(PostError { posted: 0, kind: PostErrorKind::UnknownQp });
        };
        let before = self.queues.completions.len();
        let mut sink = Sink::queued(&mut self.queues);
        let result = qp.post_send(wrs, &mut sink);
        if !std::mem::replace(&mut qp.notify_listed, true) {
            self.bells.push(index);
        }
        if self.queues.completions.len() > before {
            self.fire();
        }
        result
    }

    fn post_send_inline(
        &mut self,
        handle: QpHandle,
        wr_id: u64,
        signaled: bool,
        bytes: &[u8],
        ring: Ring,
    ) -> Result<(), PostError> {
        if let Some(qp) = find(&mut self.entries, handle)
            && qp.post_small(wr_id, signaled, bytes)
        {
            if ring == Ring::Now && self.bells.is_empty() {
                // This post is the whole batch.
                fence(Ordering::SeqCst);
                notify(qp, &mut self.hot);
                return Ok(());
            }
            if !std::mem::replace(&mut qp.notify_listed, true) {
                self.bells.push(handle.index);
            }
            match ring {
                Ring::Now => self.ring_bells(),
                Ring::Soon => self.flush_soon(),
                Ring::WithNext => {}
            }
            return Ok(());
        }
        post_inline_listed(self, handle, wr_id, signaled, bytes, ring)
    }

    fn post_recv(&mut self, qp: QpHandle, wr: RecvWr) -> Result<(), (PostError, RecvWr)> {
        let refused = |kind, wr| Err((PostError { posted: 0, kind }, wr));
        let Some(found) = find(&mut self.entries, qp) else {
            return refused(PostErrorKind::UnknownQp, wr);
        };
        if let Err((kind, wr)) = found.post_recv(wr) {
            return refused(kind, wr);
        }
        if found.state() == QpState::Error {
            self.with_qp(qp, QueuePair::flush_recvs);
        }
        Ok(())
    }

    fn post_recvs(&mut self, qp: QpHandle, wrs: &mut Vec<RecvWr>) -> Result<(), PostError> {
        let count = wrs.len();
        let Some(found) = find(&mut self.entries, qp) else {
            return Err(PostError { posted: 0, kind: PostErrorKind::UnknownQp });
        };
        let posted = found.post_recvs(wrs);
        if found.state() == QpState::Error {
            self.with_qp(qp, QueuePair::flush_recvs);
        }
        posted.map_err(|kind| PostError { posted: count - wrs.len(), kind })
    }

    fn create_srq(&mut self, pd: &ProtectionDomain, max_recv_wr: u32) -> Result<(), ProviderError> {
        self.new_srq(SoftDomain::of(pd)?.id(), max_recv_wr)
    }

    fn post_srq_recv(&mut self, wr: RecvWr) -> Result<(), (PostError, RecvWr)> {
        self.post_shared(wr).map_err(|(kind, wr)| (PostError { posted: 0, kind }, wr))
    }

    fn flush(&mut self) {
        self.ring_bells();
    }

    #[inline]
    fn flush_soon(&mut self) {
        self.ring_bells_soon();
    }

    fn state(&self, qp: QpHandle) -> Option<QpState> {
        let entry = self.entries.get(qp.index as usize)?;
        let found = entry.qp.as_ref().filter(|_| entry.generation == qp.generation)?;
        Some(found.state())
    }

    fn traffic(&mut self, qp: QpHandle) -> Option<Traffic> {
        find(&mut self.entries, qp).map(QueuePair::traffic)
    }

    fn release_buffers(&mut self, qp: QpHandle) {
        if let Some(qp) = find(&mut self.entries, qp) {
            qp.release_buffers();
        }
    }

    fn release_pages(&mut self, qp: QpHandle) {
        if let Some(qp) = find(&mut self.entries, qp) {
            qp.release_pages();
        }
    }

    fn max_inline_bytes(&self, qp: QpHandle) -> u32 {
        let entry = self.entries.get(qp.index as usize);
        let found = entry.filter(|entry| entry.generation == qp.generation);
        found.and_then(|entry| entry.qp.as_ref()).map_or(0, |qp| qp.max_inline_bytes())
    }

    fn modify_to_error(&mut self, qp: QpHandle) -> Result<(), ProviderError> {
        self.ring_all_bells();
        self.with_qp(qp, QueuePair::modify_to_error).ok_or(ProviderError::UnknownQp)
    }

    fn destroy_qp(&mut self, qp: QpHandle) -> Result<(), ProviderError> {
        self.ring_all_bells();
        find(&mut self.entries, qp).ok_or(ProviderError::UnknownQp)?;
        let entry = &mut self.entries[qp.index as usize];
        entry.generation = entry.generation.wrapping_add(1);
        if let Some(gone) = entry.qp.take() {
            self.reserved -= gone.reserved();
            self.leave_srq(&gone);
            self.muted -= usize::from(gone.muted);
            if let Some((fd, _)) = gone.wire().watched() {
                // Closing the fd would not remove it from the set while another process has the
                // same open file. Deleting fails only if it was not in the set.
                let _ = epoll::delete(&self.epoll, fd);
            }
        }
        self.free.push(qp.index);
        self.hot.retain(|index| *index != qp.index);
        if self.cursor >= self.hot.len() {
            self.cursor = 0;
        }
        self.queues.completions.retain(|queued| queued.completion.qp != qp);
        self.events.retain(|event| {
            !matches!(event, QpEvent::Disconnected(of) | QpEvent::Fatal(of, _) if *of == qp)
        });
        Ok(())
    }

    fn has_drained(&mut self, qp: QpHandle) -> bool {
        let mut queued = self.queues.completions.iter();
        self.state(qp) == Some(QpState::Error)
            && !queued.any(|queued| queued.is_shared && queued.completion.qp == qp)
    }
}

impl std::fmt::Debug for SoftCompletionQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let qps = self.entries.iter().filter(|entry| entry.qp.is_some()).count();
        write!(
            f,
            "SoftCompletionQueue({qps} QPs, {} hot, {} queued)",
            self.hot.len(),
            self.queues.completions.len()
        )
    }
}
