//! Backpressure: whether a connection's queue has room for one more message.
//!
//! Owns the count of bytes that wait in the link, and the wakers of replies that wait for room.
//! Wakes nobody itself: wakers are returned, to be woken outside the shard's lock.
//!
//! Invariants:
//! 1. At most the limit plus one message waits in the link. This holds for all messages together
//!    and for small ones alone: small ones overtake large ones, so they wait for small ones only.
//! 2. Every waiter is woken when there is room or the connection has ended. If a waiter was
//!    forgotten meanwhile, the next one is woken instead.

use std::collections::VecDeque;
use std::task::Waker;

use rpc_transport::protocol::config::QueueLimit;
use rpc_transport::protocol::link::Waiting;

use crate::session::IncomingId;

/// Messages up to this length, bytes, are let through uncounted while the queue is below its limit.
pub(crate) const UNCOUNTED_BYTES: u64 = 16 * 1024;

pub(crate) struct Room {
    limit: QueueLimit,
    /// The longest message that the peer accepts, bytes.
    max_message_bytes: u64,
    /// What waits in the link, by its last report.
    waiting: Waiting,
    /// Bytes let through since that report.
    admitted: u64,
    /// Fast path: messages up to this length, bytes, need no further check.
    passes: u64,
    /// Replies that wait for room: call, length in bytes, waker.
    waiters: VecDeque<(IncomingId, u64, Waker)>,
    /// Free bytes that waiters may still be woken for.
    to_wake: u64,
    is_closed: bool,
}

impl Room {
    pub(crate) fn new(limit: QueueLimit) -> Self {
        let mut room = Self {
            limit,
            max_message_bytes: u64::MAX,
            waiting: Waiting::default(),
            admitted: 0,
            passes: 0,
            waiters: VecDeque::new(),
            to_wake: 0,
            is_closed: false,
        };
        room.on_waiting(Waiting::default());
        room
    }

    pub(crate) fn set_max_message_bytes(&mut self, bytes: u64) {
        self.max_message_bytes = bytes;
        self.on_waiting(self.waiting);
    }

    /// Whether a message of `bytes` bytes, header included, may be sent without further checks.
    #[inline]
    pub(crate) fn passes(&self, bytes: u64) -> bool {
        bytes <= self.passes
    }

    /// Takes the link's report of what waits in it. The link has everything admitted so far.
    pub(crate) fn on_waiting(&mut self, waiting: Waiting) {
        self.waiting = waiting;
        self.admitted = 0;
        let passes = if waiting.small_bytes >= self.limit.bytes {
            0
        } else if waiting.total_bytes() >= self.limit.bytes {
            // Small messages overtake the large ones that fill the queue.
            waiting.longest_small as u64
        } else {
            UNCOUNTED_BYTES
        };
        self.passes = passes.min(self.max_message_bytes);
        self.hand_out();
    }

    /// The limit, bytes.
    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit.bytes
    }

    fn is_full(&self) -> bool {
        self.waiting.total_bytes().saturating_add(self.admitted) >= self.limit.bytes
    }

    /// Counts a message for which [`Room::passes`] is false. Returns false if it has to wait.
    pub(crate) fn admit(&mut self, bytes: u64) -> bool {
        if self.is_full() && !self.is_closed {
            return false;
        }
        self.admitted = self.admitted.saturating_add(bytes);
        true
    }

    /// Counts a message that is sent even if the queue is full.
    pub(crate) fn count(&mut self, bytes: u64) {
        self.admitted = self.admitted.saturating_add(bytes);
    }

    /// Whether something was counted since the link's last report.
    #[inline]
    pub(crate) fn has_admitted(&self) -> bool {
        self.admitted > 0
    }

    /// Registers the waker of a reply that was not admitted.
    pub(crate) fn wait(&mut self, id: IncomingId, bytes: u64, waker: Waker) {
        self.waiters.push_back((id, bytes, waker));
    }

    /// Removes a waiting reply, whatever the reason. Returns its waker, to be dropped outside any
    /// lock.
    pub(crate) fn forget(&mut self, id: IncomingId) -> Option<Waker> {
        if self.waiters.is_empty() {
            return None;
        }
        let at = self.waiters.iter().position(|(waiter, ..)| *waiter == id);
        let waker = at.and_then(|at| self.waiters.remove(at)).map(|(.., waker)| waker);
        self.hand_out();
        waker
    }

    fn hand_out(&mut self) {
        let taken = self.waiting.total_bytes().saturating_add(self.admitted);
        self.to_wake = self.limit.bytes.saturating_sub(taken);
    }

    /// The connection has ended: from now on nothing waits.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        self.passes = self.max_message_bytes;
    }

    /// Whether [`Room::poll_wake`] would return a waker.
    pub(crate) fn has_wakes(&self) -> bool {
        !self.waiters.is_empty() && (self.to_wake > 0 || self.is_closed)
    }

    /// The next waiter that may try again.
    pub(crate) fn poll_wake(&mut self) -> Option<Waker> {
        if !self.has_wakes() {
            return None;
        }
        let (_, bytes, waker) = self.waiters.pop_front()?;
        self.to_wake = self.to_wake.saturating_sub(bytes);
        Some(waker)
    }
}

#[cfg(test)]
mod tests {
    use rpc_transport::protocol::config::WhenFull;

    use super::*;

    const LIMIT: u64 = 1 << 20;

    fn room() -> Room {
        Room::new(QueueLimit { bytes: LIMIT, when_full: WhenFull::Wait })
    }

    fn waiting(small_bytes: u64, large_bytes: u64) -> Waiting {
        Waiting { small_bytes, large_bytes, longest_small: 8000 }
    }

    fn wait(room: &mut Room, slot: u32, bytes: u64) {
        room.wait(IncomingId::of(slot, 1), bytes, Waker::noop().clone());
    }

    fn woken(room: &mut Room) -> usize {
        std::iter::from_fn(|| room.poll_wake()).count()
    }

    #[test]
    fn the_queue_takes_the_limit_and_one_message_more() {
        let mut room = room();
        assert!(room.admit(LIMIT - 1) && room.admit(64 << 20));
        assert!(!room.admit(1), "whether the link has told of them or not");
        room.on_waiting(waiting(0, LIMIT));
        assert!(!room.admit(1));
        room.on_waiting(waiting(0, LIMIT - 1));
        assert!(room.admit(1) && !room.admit(1));
    }

    #[test]
    fn small_messages_wait_for_small_ones_only() {
        let mut room = room();
        assert!(room.passes(UNCOUNTED_BYTES) && !room.passes(UNCOUNTED_BYTES + 1));
        room.on_waiting(waiting(0, 100 * LIMIT));
        assert!(room.passes(8000) && !room.passes(8001));
        room.on_waiting(waiting(LIMIT, 0));
        assert!(!room.passes(1) && !room.admit(1));
        room.on_waiting(waiting(0, 0));
        room.set_max_message_bytes(100);
        assert!(room.passes(100) && !room.passes(101));
    }

    #[test]
    fn as_many_are_woken_as_there_is_room_for() {
        let mut room = room();
        room.on_waiting(waiting(0, 2 * LIMIT));
        (0..10).for_each(|slot| wait(&mut room, slot, LIMIT / 4));
        assert_eq!(woken(&mut room), 0);
        room.on_waiting(waiting(0, LIMIT / 2));
        assert_eq!(woken(&mut room), 2);
        room.on_waiting(waiting(0, LIMIT / 2));
        assert_eq!(woken(&mut room), 2);
        room.close();
        assert_eq!(woken(&mut room), 6);
        assert!(room.admit(u64::MAX), "the session says what has become of it");
    }

    #[test]
    fn one_that_is_forgotten_makes_room_for_the_next() {
        let mut room = room();
        room.on_waiting(waiting(0, LIMIT));
        (0..3).for_each(|slot| wait(&mut room, slot, 64 << 20));
        room.on_waiting(waiting(0, 0));
        assert_eq!(woken(&mut room), 1);
        // Its task was aborted before it ran.
        assert!(room.forget(IncomingId::of(0, 1)).is_none());
        assert_eq!(woken(&mut room), 1);
        assert!(room.forget(IncomingId::of(2, 1)).is_some());
        assert_eq!(woken(&mut room), 0);
    }
}
