//! Polling: dispatches completions and events to their connections.
//!
//! Owns the order: completions first, then reposts that waited for the reply, then events. What
//! they mean is up to the connections.

use std::time::Duration;

use super::outside::collect;
use super::{NO_CONNECTION, POLL_BATCH, State};
use crate::connect::error::CloseCause;
use crate::device::{CompletionKind, ProviderError, QpEvent, QpHandle};
use crate::engine::connection::repost_shared;
use crate::engine::connection_key::ConnectionKey;
use crate::engine::upper::Protocol;

/// Polls with completions before unfinished connections get a turn: arrivals are handled first.
const MOST_PASSED_OVER: u8 = 4;
/// Most connections that then get a turn, of one slice each.
const MOST_TURNS: usize = 32;
/// Empty polls for each poll of the event queue: events are rare and may wait.
const POLLS_PER_EVENT: u32 = 8;

impl<P: Protocol> State<P> {
    /// Polls the CQ once and handles its completions; returns the number of completions and events.
    /// Polls for events only on every [`POLLS_PER_EVENT`]th empty poll, or when they are overdue.
    #[inline]
    pub(crate) fn poll(&mut self) -> usize {
        if !self.completions.is_empty() {
            self.forget_completions();
        }
        let count = match self.cq.poll(&mut self.completions, POLL_BATCH) {
            Ok(0) => self.on_quiet(),
            Ok(count) => {
                let found = self.on_completions() + self.overdue_events(count);
                self.free_shares();
                found
            }
            Err(error) => self.on_dead_cq(&error),
        };
        if self.unfinished.is_empty() {
            return count;
        }
        self.passed_over += 1;
        if count > 0 && self.passed_over < MOST_PASSED_OVER {
            return count;
        }
        count + self.go_on()
    }

    /// An empty poll: reposts the RECV that waited until the reply was sent, and looks for events
    /// if it is time.
    #[inline]
    fn on_quiet(&mut self) -> usize {
        if self.spare != NO_CONNECTION {
            let index = std::mem::replace(&mut self.spare, NO_CONNECTION);
            self.post_spare(index);
            self.transmit_dirty();
        }
        self.quiet_polls = self.quiet_polls.wrapping_add(1);
        if !self.quiet_polls.is_multiple_of(POLLS_PER_EVENT) {
            return 0;
        }
        self.look_for_events()
    }

    /// Handles overdue events, once the CQ has given all its completions.
    #[inline]
    fn overdue_events(&mut self, count: usize) -> usize {
        if self.events_due && count < POLL_BATCH { self.look_for_events() } else { 0 }
    }

    #[cold]
    fn look_for_events(&mut self) -> usize {
        self.events_due = false;
        let found = match self.cq.poll_event() {
            None => 0,
            Some(event) => self.on_events(event),
        };
        self.free_shares();
        found
    }

    /// Gives back what connections have left of the receives that this shard's share.
    #[inline]
    fn free_shares(&mut self) {
        if let Some(shared) = &self.shared_recvs {
            shared.on_polled(&mut *self.cq);
        }
    }

    /// Whether there are so many receives for connections that begin, where they share them.
    pub(in crate::engine::shard) fn has_recvs(&mut self, count: u32) -> bool {
        let Some(shared) = &self.shared_recvs else { return true };
        if !shared.has_room(count) {
            shared.renew(&mut *self.cq);
        }
        shared.has_room(count)
    }

    /// Drops completions and reposts that a panic left in the lists. They belong to connections that
    /// have ended; RECVs that others have, too, are posted again.
    #[cold]
    fn forget_completions(&mut self) {
        let received = self.completions.drain(..).filter(|it| it.kind != CompletionKind::Send);
        let buffers = received.filter_map(|mut it| it.buffer.take());
        for buffer in buffers.chain(self.reposts.drain(..).map(|wr| wr.buffer)) {
            if let Some(shared) = &self.shared_recvs {
                repost_shared(&mut *self.cq, shared, Some(buffer));
            }
        }
    }

    /// Whether the peer needs this thread's core to answer.
    #[inline]
    pub(in crate::engine::shard) fn shares_core(&self) -> bool {
        self.spin.shares_core()
    }

    /// A `sched_yield` of a caller that leads, or of the driver, took this long. Returns whether another thread has
    /// run meanwhile.
    pub(crate) fn on_yielded(&mut self, took: Duration, leads: bool) -> bool {
        self.spin.on_yielded(took, leads, may_run_on_one_core_only)
    }

    /// How many empty polls who waits makes in a row before it looks at the time. Where the peer needs
    /// the core to answer: none before it was offered, then one.
    #[inline]
    pub(crate) fn polls_at_most(&self, most: u32) -> u32 {
        if self.shares_core() { u32::from(self.spin.has_yielded()) } else { most }
    }

    /// Empty polls so far.
    #[cfg(test)]
    pub(crate) fn empty_polls(&self) -> u32 {
        self.quiet_polls
    }

    /// Whether the next waits park because another thread wants the core.
    #[cfg(test)]
    pub(crate) fn parks(&self) -> bool {
        self.spin.parks()
    }

    /// Makes this the state of an end that may run on one core only, which its peer needs.
    #[cfg(test)]
    pub(crate) fn share_core(&mut self) {
        self.set_mode(crate::engine::spin::PollMode::Adaptive);
        while !self.shares_core() {
            self.spin.on_yielded(Duration::from_micros(3), false, || true);
            self.spin.on_progress();
        }
    }

    /// Called between two empty polls.
    #[inline]
    pub(crate) fn relax(&self) {
        if self.uses_spin_hint {
            std::hint::spin_loop();
        }
    }

    /// Like [`State::poll`], but always polls for events after an empty poll: nobody may poll again
    /// soon.
    pub(crate) fn poll_thoroughly(&mut self) -> usize {
        self.quiet_polls = POLLS_PER_EVENT - 1;
        self.poll()
    }

    /// Reposts the RECV of a connection whose repost was delayed.
    fn post_spare(&mut self, index: u32) {
        let Some(connection) = self.connections.get_mut(index as usize) else { return };
        connection.post_spare(&mut *self.cq, &mut self.reposts);
        // Posting may have failed and ended the connection.
        if connection.cause().is_some() {
            self.mark_dirty(index);
        }
    }

    /// Gives unfinished connections a turn, longest waiting first. At most [`MOST_TURNS`] slices,
    /// about what a device copies in a millisecond.
    #[cold]
    fn go_on(&mut self) -> usize {
        self.passed_over = 0;
        let count = self.unfinished.len().min(MOST_TURNS);
        for _ in 0..count {
            let Some(index) = self.unfinished.pop_front() else { break };
            if let Some(connection) = self.connections.get_mut(index as usize) {
                connection.in_line = false;
                connection.give_turn();
                self.mark_dirty(index);
                self.transmit_dirty();
            }
        }
        count
    }

    /// Ends all connections at once: a dead CQ gives no more completions, so no flush is awaited.
    #[cold]
    pub(crate) fn on_dead_cq(&mut self, error: &ProviderError) -> usize {
        self.dead = true;
        self.end_all(&CloseCause::Device(error.to_string().into()));
        0
    }

    #[inline(never)]
    fn on_completions(&mut self) -> usize {
        let count = self.completions.len();
        let mut at = 0;
        while at < count {
            at += self.on_run(at);
        }
        // Most have no buffer left.
        while let Some(completion) = self.completions.pop() {
            drop(completion.buffer);
        }
        self.transmit_dirty();
        count
    }

    /// Handles all events, each when all is handled that arrived before it: messages and a disconnect
    /// behind them may have come since the last poll (rule 16).
    #[cold]
    pub(in crate::engine::shard) fn on_events(&mut self, first: QpEvent) -> usize {
        let (mut count, mut next) = (0, Some(first));
        while let Some(event) = next {
            count += 1 + self.take_arrived();
            self.on_event(event);
            next = self.cq.poll_event();
        }
        self.transmit_dirty();
        count
    }

    /// Handles the completions that the CQ has. At most as many as it holds, as more may keep arriving.
    fn take_arrived(&mut self) -> usize {
        let (mut taken, most) = (0, self.cq.capacity() as usize);
        while taken < most
            // If the queue is dead, the next poll says so again.
            && let Ok(count @ 1..) = self.cq.poll(&mut self.completions, POLL_BATCH)
        {
            taken += count;
            self.on_completions();
        }
        taken
    }

    fn connection_of(&self, qp: QpHandle) -> Option<u32> {
        let index = *self.by_qp.get(qp.index as usize)?;
        self.connections.get(index as usize)?.is_on(qp).then_some(index)
    }

    /// Handles the completions from `first` on that are of the same QP, and returns how many. Unless there
    /// is no other one in the list, the connection is marked dirty and pumped once for the whole batch.
    #[inline]
    fn on_run(&mut self, first: usize) -> usize {
        let qp = self.completions[first].qp;
        // A CQ may still hold completions of a QP that has been destroyed.
        let Some(index) = self.connection_of(qp) else {
            self.on_orphan(first);
            return 1;
        };
        let is_alone = self.completions.len() == 1;
        let connection = &mut self.connections[index as usize];
        let completions = &mut self.completions[first..];
        let (count, has_received) =
            connection.on_run(&mut *self.cq, self.now, qp, completions, &mut self.reposts);
        if is_alone && has_received && connection.is_settled() {
            let key = ConnectionKey { index, generation: connection.generation };
            collect(&mut self.actions, &mut self.deferred, key, &mut connection.protocol);
        } else {
            self.mark_ready(index);
        }
        if has_received {
            let earlier = std::mem::replace(&mut self.spare, index);
            if earlier != index && earlier != NO_CONNECTION {
                self.post_spare(earlier);
            }
        }
        count
    }

    /// A completion of a QP that was destroyed: a RECV that others have it too is posted again.
    #[cold]
    fn on_orphan(&mut self, at: usize) {
        if let Some(shared) = &self.shared_recvs {
            repost_shared(&mut *self.cq, shared, self.completions[at].buffer.take());
        }
    }

    fn on_event(&mut self, event: QpEvent) {
        let (qp, cause) = match event {
            QpEvent::Disconnected(qp) => (qp, CloseCause::Disconnected),
            QpEvent::Fatal(qp, number) => {
                (qp, CloseCause::Device(format!("asynchronous event {number}").into()))
            }
        };
        let Some(index) = self.connection_of(qp) else { return };
        self.connections[index as usize].fail(&mut *self.cq, &cause);
        self.mark_dirty(index);
    }

    /// Polls until everything that had arrived on entry is handled. Bounded by the CQ's capacity,
    /// as more may keep arriving.
    pub(super) fn consume(&mut self) {
        let mut left = self.cq.capacity() as usize;
        loop {
            let count = self.poll();
            if count == 0 || count >= left {
                return;
            }
            left -= count;
        }
    }
}

/// Whether this thread may. If that is not known, it may run on others.
#[cold]
fn may_run_on_one_core_only() -> bool {
    rustix::thread::sched_getaffinity(None).is_ok_and(|cores| cores.count() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_with_one_core_to_run_on_is_told_from_others() {
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        assert_eq!(may_run_on_one_core_only(), allowed.count() == 1);
        let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).unwrap();
        let mut one = rustix::thread::CpuSet::new();
        one.set(first);
        // Of this thread alone.
        std::thread::spawn(move || {
            rustix::thread::sched_setaffinity(None, &one).unwrap();
            assert!(may_run_on_one_core_only());
        })
        .join()
        .unwrap();
    }
}
