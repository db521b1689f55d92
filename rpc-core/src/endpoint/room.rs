//! Room in the queue of a connection: what may be handed to the link now.
//!
//! Owns the count of what waits to leave, and who waits until there is room. Wakes nobody itself:
//! wakers come out, to be woken outside of the shard's lock.
//!
//! Invariants:
//! 1. What waits in the link is at most the limit and one message more, of small messages as of all:
//!    small ones pass large ones by, so they wait for small ones only.
//! 2. Whoever waits is woken when there is room, or when the connection has ended, unless it has
//!    been forgotten: then the next one is.

use std::collections::VecDeque;
use std::task::Waker;

use rpc_transport::protocol::config::QueueLimit;
use rpc_transport::protocol::link::Waiting;

use crate::session::IncomingId;

/// Messages up to this length are let through without being counted, as long as nothing waits that
/// would hold them up, bytes.
pub(crate) const UNCOUNTED_BYTES: u64 = 16 * 1024;

pub(crate) struct Room {
    limit: QueueLimit,
    /// The longest message that the other side takes, bytes.
    max_message_bytes: u64,
    /// What waits, as the link said last.
    waiting: Waiting,
    /// What was let through since then, bytes.
    admitted: u64,
    /// Messages up to this length pass without a closer look, bytes.
    passes: u64,
    /// Whose replies wait, with their lengths.
    waiters: VecDeque<(IncomingId, u64, Waker)>,
    /// What may be woken for: bytes of room.
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

    /// Whether a message of `bytes` bytes, with its header, leaves or waits like any other.
    #[inline(always)]
    pub(crate) fn passes(&self, bytes: u64) -> bool {
        bytes <= self.passes
    }

    /// So much waits in the link, which has been given all that was admitted.
    pub(crate) fn on_waiting(&mut self, waiting: Waiting) {
        self.waiting = waiting;
        self.admitted = 0;
        let passes = if waiting.small_bytes >= self.limit.bytes {
            0
        } else if waiting.total_bytes() >= self.limit.bytes {
            // What is small to the link passes by what waits.
            waiting.longest_small as u64
        } else {
            UNCOUNTED_BYTES
        };
        self.passes = passes.min(self.max_message_bytes);
        self.hand_out();
    }

    fn is_full(&self) -> bool {
        self.waiting.total_bytes().saturating_add(self.admitted) >= self.limit.bytes
    }

    /// Counts a message that does not just pass; false if it has to wait.
    pub(crate) fn admit(&mut self, bytes: u64) -> bool {
        if self.is_full() && !self.is_closed {
            return false;
        }
        self.admitted = self.admitted.saturating_add(bytes);
        true
    }

    /// The same for one that is not made to wait.
    pub(crate) fn count(&mut self, bytes: u64) {
        self.admitted = self.admitted.saturating_add(bytes);
    }

    /// The waker of a reply that was not admitted.
    pub(crate) fn wait(&mut self, id: IncomingId, bytes: u64, waker: Waker) {
        self.waiters.push_back((id, bytes, waker));
    }

    /// The reply waits no more, for whatever reason. Gives its waker, to be dropped outside of any
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

    /// The connection has ended: nobody waits any more.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        self.passes = self.max_message_bytes;
    }

    /// Whether [`Room::poll_wake`] gives something.
    pub(crate) fn has_wakes(&self) -> bool {
        !self.waiters.is_empty() && (self.to_wake > 0 || self.is_closed)
    }

    /// Who is to try again now.
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
        // It was stopped before it ran.
        assert!(room.forget(IncomingId::of(0, 1)).is_none());
        assert_eq!(woken(&mut room), 1);
        assert!(room.forget(IncomingId::of(2, 1)).is_some());
        assert_eq!(woken(&mut room), 0);
    }
}
