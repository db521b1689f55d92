//! Backpressure: whether a connection's queue has room for one more message.
//!
//! Owns the count of bytes that wait in the link, the share of the memory budget that covers them,
//! and the wakers of replies that wait for room. Never wakes a task: wakers are returned, to be
//! woken outside the shard's lock.
//!
//! Invariants:
//! 1. At most the limit plus one message waits in the link. This holds for all messages together
//!    and for small ones alone: small ones overtake large ones, so they wait for small ones only.
//! 2. Every waiter is woken when there is room or the connection has ended. If a waiter was
//!    forgotten meanwhile, the next one is woken instead.
//! 3. Bytes that wait beyond [`FREE_BYTES`] are covered by the memory budget: messages up to
//!    [`UNCOUNTED_BYTES`] together here, each longer one by its own reservation. No more waits than
//!    is covered, so a connection never waits for the memory of others while its queue is empty.

use std::collections::VecDeque;
use std::task::Waker;

use rpc_transport::memory::budget::{MemoryBudget, Reservation};
use rpc_transport::protocol::config::QueueLimit;
use rpc_transport::protocol::link::{TOGETHER_BYTES, Waiting};

use crate::session::IncomingId;

/// Messages up to this length, bytes, are let through uncounted while the queue is below its limit.
pub(crate) const UNCOUNTED_BYTES: u64 = TOGETHER_BYTES;
/// Most bytes of such messages that may wait without a share of the memory budget.
const FREE_BYTES: u64 = 64 * 1024;

pub(crate) struct SendQuota {
    limit: QueueLimit,
    memory: MemoryBudget,
    /// Covers the messages that are charged together, beyond [`FREE_BYTES`].
    cover: Option<Reservation>,
    /// [`FREE_BYTES`] and the bytes of `cover`.
    covered_bytes: u64,
    /// The cover is changed when fewer bytes wait than the first, or more than the second.
    fits: (u64, u64),
    /// As much waits as the memory budget allows (invariant 3).
    is_uncovered: bool,
    /// The longest message that the peer accepts, bytes.
    max_message_bytes: u64,
    /// The messages that wait in the link, by its last report.
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

impl SendQuota {
    pub(crate) fn new(limit: QueueLimit, memory: MemoryBudget) -> Self {
        let mut quota = Self {
            limit,
            memory,
            cover: None,
            covered_bytes: FREE_BYTES,
            fits: (0, FREE_BYTES / 2),
            is_uncovered: false,
            max_message_bytes: u64::MAX,
            waiting: Waiting::default(),
            admitted: 0,
            passes: 0,
            waiters: VecDeque::new(),
            to_wake: 0,
            is_closed: false,
        };
        quota.on_waiting(Waiting::default());
        quota
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

    /// Takes the link's report of the messages that wait in it. It has all that were admitted so
    /// far.
    pub(crate) fn on_waiting(&mut self, waiting: Waiting) {
        self.waiting = waiting;
        self.admitted = 0;
        if waiting.together_bytes < self.fits.0 || waiting.together_bytes > self.fits.1 {
            self.change_cover();
        }
        self.is_uncovered = waiting.together_bytes >= self.covered_bytes;
        let passes = if waiting.small_bytes >= self.limit.bytes || self.is_uncovered {
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

    /// Reserves more once half of the covered bytes wait, and gives back a cover that is not
    /// needed.
    #[cold]
    fn change_cover(&mut self) {
        let (waiting, covered) = (self.waiting.together_bytes, self.covered_bytes);
        if waiting > covered / 2 {
            let wanted = (2 * covered.max(waiting)).min(self.limit.bytes);
            let more = wanted.saturating_sub(covered);
            // Queues can do with less memory, so large messages keep the other half of the budget.
            let Ok(more) = self.memory.reserve_spare(more) else { return };
            match &mut self.cover {
                Some(cover) => cover.absorb(more),
                None => self.cover = Some(more),
            }
        } else if waiting == 0 {
            self.cover = None;
        } else if let Some(cover) = &mut self.cover {
            cover.shrink_to(covered / 4);
        }
        self.on_cover_changed();
    }

    fn on_cover_changed(&mut self) {
        self.covered_bytes = FREE_BYTES + self.cover.as_ref().map_or(0, Reservation::bytes);
        let least = if self.cover.is_some() { self.covered_bytes / 8 } else { 0 };
        self.fits = (least, self.covered_bytes / 2);
    }

    /// Bytes of items that may be queued before the next report.
    pub(crate) fn item_bytes(&self) -> u64 {
        let left = self.limit.bytes.saturating_sub(self.waiting.total_bytes());
        left.min(self.covered_bytes.saturating_sub(self.waiting.together_bytes))
    }

    fn is_full(&self) -> bool {
        self.is_uncovered
            || self.waiting.total_bytes().saturating_add(self.admitted) >= self.limit.bytes
    }

    /// Counts a message for which [`SendQuota::passes`] is false. Returns false if it has to wait.
    pub(crate) fn admit(&mut self, bytes: u64) -> bool {
        if self.is_full() && !self.is_closed {
            return false;
        }
        self.admitted = self.admitted.saturating_add(bytes);
        true
    }

    /// Counts a message that is queued although the queue is full.
    pub(crate) fn count(&mut self, bytes: u64) {
        self.admitted = self.admitted.saturating_add(bytes);
    }

    /// Whether a message was counted since the link's last report.
    #[inline]
    pub(crate) fn has_admitted(&self) -> bool {
        self.admitted > 0
    }

    /// Registers the waker of a reply that was not admitted.
    pub(crate) fn wait(&mut self, id: IncomingId, bytes: u64, waker: Waker) {
        self.waiters.push_back((id, bytes, waker));
    }

    /// Removes a waiting reply. Returns its waker, to be dropped outside the lock.
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
        let left = self.limit.bytes.saturating_sub(taken);
        self.to_wake = if self.is_uncovered { 0 } else { left };
    }

    /// The connection has ended: from now on no message waits.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        self.cover = None;
        self.on_cover_changed();
        self.passes = self.max_message_bytes;
    }

    /// Whether [`SendQuota::poll_wake`] would return a waker.
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

    fn quota() -> SendQuota {
        quota_within(MemoryBudget::unlimited())
    }

    fn quota_within(memory: MemoryBudget) -> SendQuota {
        SendQuota::new(QueueLimit { bytes: LIMIT, when_full: WhenFull::Wait }, memory)
    }

    fn waiting(small_bytes: u64, large_bytes: u64) -> Waiting {
        let together_bytes = small_bytes;
        Waiting { small_bytes, large_bytes, together_bytes, longest_small: 8000 }
    }

    fn wait(quota: &mut SendQuota, slot: u32, bytes: u64) {
        quota.wait(IncomingId::of(slot, 1), bytes, Waker::noop().clone());
    }

    fn woken(quota: &mut SendQuota) -> usize {
        std::iter::from_fn(|| quota.poll_wake()).count()
    }

    #[test]
    fn the_queue_accepts_one_message_above_the_limit() {
        let mut quota = quota();
        assert!(quota.admit(LIMIT - 1) && quota.admit(64 << 20));
        assert!(!quota.admit(1), "whether the link has reported them or not");
        quota.on_waiting(waiting(0, LIMIT));
        assert!(!quota.admit(1));
        quota.on_waiting(waiting(0, LIMIT - 1));
        assert!(quota.admit(1) && !quota.admit(1));
    }

    #[test]
    fn small_messages_wait_for_small_ones_only() {
        let mut quota = quota();
        assert!(quota.passes(UNCOUNTED_BYTES) && !quota.passes(UNCOUNTED_BYTES + 1));
        quota.on_waiting(waiting(0, 100 * LIMIT));
        assert!(quota.passes(8000) && !quota.passes(8001));
        quota.on_waiting(waiting(LIMIT, 0));
        assert!(!quota.passes(1) && !quota.admit(1));
        quota.on_waiting(waiting(0, 0));
        quota.set_max_message_bytes(100);
        assert!(quota.passes(100) && !quota.passes(101));
    }

    #[test]
    fn as_many_are_woken_as_fit() {
        let mut quota = quota();
        quota.on_waiting(waiting(0, 2 * LIMIT));
        (0..10).for_each(|slot| wait(&mut quota, slot, LIMIT / 4));
        assert_eq!(woken(&mut quota), 0);
        quota.on_waiting(waiting(0, LIMIT / 2));
        assert_eq!(woken(&mut quota), 2);
        quota.on_waiting(waiting(0, LIMIT / 2));
        assert_eq!(woken(&mut quota), 2);
        quota.close();
        assert_eq!(woken(&mut quota), 6);
        assert!(quota.admit(u64::MAX), "the session says what has become of it");
    }

    #[test]
    fn small_messages_that_wait_are_charged() {
        let memory = MemoryBudget::new(1 << 20);
        let mut quota = quota_within(memory.clone());
        let mut queued = 0;
        // A peer that reads nothing.
        while quota.item_bytes() > 0 {
            queued += quota.item_bytes();
            quota.on_waiting(waiting(queued, 0));
            assert!(queued <= memory.used_bytes() + FREE_BYTES, "what waits is covered");
        }
        assert!(queued < LIMIT && memory.used_bytes() <= 1 << 19, "half is left to others");
        assert!(!quota.passes(1) && !quota.admit(1));
        let rest = memory.reserve_spare((1 << 19) - memory.used_bytes()).expect("there is as much");
        let mut other = quota_within(memory.clone());
        assert!(other.item_bytes() > 0 && other.passes(1), "an empty queue needs no budget");
        other.on_waiting(waiting(FREE_BYTES, 0));
        wait(&mut other, 0, 100);
        assert!(!other.passes(1) && woken(&mut other) == 0);
        quota.on_waiting(waiting(1000, 0));
        other.on_waiting(waiting(FREE_BYTES - 1, 0));
        assert!(woken(&mut other) == 1 && other.item_bytes() > 0);
        quota.on_waiting(waiting(0, 0));
        drop((other, rest));
        assert_eq!(memory.used_bytes(), 0);
    }

    #[test]
    fn a_forgotten_waiter_makes_room() {
        let mut quota = quota();
        quota.on_waiting(waiting(0, LIMIT));
        (0..3).for_each(|slot| wait(&mut quota, slot, 64 << 20));
        quota.on_waiting(waiting(0, 0));
        assert_eq!(woken(&mut quota), 1);
        // Its task was aborted before it ran.
        assert!(quota.forget(IncomingId::of(0, 1)).is_none());
        assert_eq!(woken(&mut quota), 1);
        assert!(quota.forget(IncomingId::of(2, 1)).is_some());
        assert_eq!(woken(&mut quota), 0);
    }
}
