//! Polling: dispatches completions and events to their connections.
//!
//! Owns the order: completions first, then reposts that waited for the reply, then events. What
//! they mean is up to the connections.

use std::time::{Duration, Instant};

use super::outside::collect;
use super::{NO_CONNECTION, POLL_BATCH, State};
use crate::device::connection_error::CloseCause;
use crate::device::{CompletionKind, ProviderError, QpEvent, QpHandle, RecvWr};
use crate::engine::connection_key::ConnectionKey;
use crate::engine::pump_queue::PumpQueue;
use crate::engine::upper::UpperLayer;

/// Empty polls for each poll of the event queue: events are rare and may wait.
const POLLS_PER_EVENT: u32 = 8;

impl<P: UpperLayer> State<P> {
    /// Polls the CQ once and handles its completions; returns the number of completions and events.
    /// Polls for events only on every [`POLLS_PER_EVENT`]th empty poll, or when they are overdue.
    #[inline]
    pub(crate) fn poll(&mut self) -> usize {
        if !self.completions.is_empty() {
            self.forget_completions();
        }
        let count = match self.cq.poll(&mut self.completions, POLL_BATCH) {
            Ok(0) => self.on_quiet(),
            Ok(count) => self.on_completions() + self.overdue_events(count),
            Err(error) => self.on_dead_cq(&error),
        };
        if self.pump_queue.is_empty() {
            return count;
        }
        count + self.give_turns(count > 0)
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
        match self.cq.poll_event() {
            None => 0,
            Some(event) => self.on_events(event),
        }
    }

    /// Whether so many connections that begin may share the receives of this shard, if they are
    /// shared.
    pub(in crate::engine::shard) fn has_shares(&mut self, count: u32) -> bool {
        self.shared_recvs.as_ref().is_none_or(|shared| shared.has_room(&mut *self.cq, count))
    }

    /// Drops completions and reposts that a panic left in the lists. They belong to connections
    /// that have ended; RECVs that others have, too, are posted again.
    #[cold]
    fn forget_completions(&mut self) {
        let received = self.completions.drain(..).filter(|it| it.kind != CompletionKind::Send);
        let buffers = received.filter_map(|mut it| it.buffer.take());
        for buffer in buffers.chain(self.reposts.drain(..).map(|wr| wr.buffer)) {
            if self.shared_recvs.is_some() {
                // One that is refused is missing to the connections that end, too.
                let _ = self.cq.post_srq_recv(RecvWr { wr_id: 0, buffer });
            }
        }
    }

    /// Whether the peer needs this thread's core to answer.
    #[inline]
    pub(in crate::engine::shard) fn shares_core(&self) -> bool {
        self.spin.shares_core()
    }

    /// A `sched_yield` of this thread ended at `now` and took this long. Returns whether another
    /// thread has run meanwhile.
    pub(crate) fn on_yielded(&mut self, now: Instant, took: Duration) -> bool {
        self.spin.on_yielded(now, took)
    }

    /// How many empty polls a thread that waits makes in a row before it looks at the time. Where
    /// the peer needs the core to answer: none before it was yielded, then one.
    #[inline]
    pub(crate) fn polls_at_most(&self, most: u32) -> u32 {
        if self.shares_core() { u32::from(self.spin.has_yielded()) } else { most }
    }

    /// Empty polls so far.
    #[cfg(test)]
    pub(crate) fn empty_polls(&self) -> u32 {
        self.quiet_polls
    }

    /// Whether another thread computes on this core.
    #[cfg(test)]
    pub(crate) fn is_contended(&self) -> bool {
        self.spin.is_contended(Instant::now())
    }

    /// Makes this the state of an end whose peer needs the core.
    #[cfg(test)]
    pub(crate) fn share_core(&mut self) {
        self.set_mode(crate::engine::poll::spin::PollMode::Adaptive);
        while !self.shares_core() {
            self.spin.on_yielded(Instant::now(), Duration::from_micros(3));
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

    /// Gives unfinished connections a turn, if it is time. Returns how many had one.
    #[cold]
    fn give_turns(&mut self, had_completions: bool) -> usize {
        let count = self.pump_queue.on_poll(had_completions);
        for _ in 0..count {
            let Some(index) = self.pump_queue.pop() else { break };
            if let Some(connection) = self.connections.get_mut(index as usize) {
                PumpQueue::give(&mut connection.turn);
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

    /// Handles all events, each when all is handled that arrived before it: messages and a
    /// disconnect behind them may have come since the last poll (rule 16).
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

    /// Handles the completions that the CQ has. At most as many as it holds, as more may keep
    /// arriving.
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

    /// Handles the completions from `first` on that are of the same QP, and returns how many.
    /// Unless there is no other one in the list, the connection is marked dirty and pumped once for
    /// the whole batch.
    #[inline]
    fn on_run(&mut self, first: usize) -> usize {
        let qp = self.completions[first].qp;
        // A CQ may still hold completions of a QP that has been destroyed.
        let Some(index) = self.connection_of(qp) else {
            return 1;
        };
        let is_alone = self.completions.len() == 1;
        let connection = &mut self.connections[index as usize];
        let completions = &mut self.completions[first..];
        let (count, has_received) =
            connection.on_run(&mut *self.cq, self.now, qp, completions, &mut self.reposts);
        if is_alone && has_received && connection.needs_no_pump() {
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
