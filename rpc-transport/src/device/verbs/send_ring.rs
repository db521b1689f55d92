//! The provider's own record of an SQ: the WRs that were posted and are not known to be done.
//!
//! Owns the memory of posted WRs until a completion frees it. Pure; generic over what a WR holds.
//!
//! Invariants:
//! 1. A WR keeps its slot and its memory until the completion of that WR or a later one has been
//!    polled (contract rule 4): completions of one SQ come in order, and an unsignaled WR that
//!    succeeds has none.
//! 2. Slots are counted against the requested size, not the size that the device granted.
//! 3. Stranded WRs (refused by the device after their post was reported as successful) are at the
//!    tail, and are returned only after everything before them.

use std::collections::VecDeque;

use super::wr_key::{MAX_WRS, POSITIONS};

/// A posted WR.
#[derive(Debug)]
pub(super) struct Posted<T> {
    /// The caller's id.
    pub(super) wr_id: u64,
    /// Whether success gives a completion.
    pub(super) signaled: bool,
    /// Memory that must stay untouched until the WR is done.
    pub(super) held: T,
}

/// An SQ as the provider sees it.
#[derive(Debug)]
pub(super) struct SendRing<T> {
    posted: VecDeque<Posted<T>>,
    /// Position of the oldest WR.
    first: u32,
    limit: usize,
    /// Number of WRs at the tail that never reached the device.
    stranded: usize,
}

impl<T> SendRing<T> {
    /// An empty SQ with `limit` slots.
    pub(super) fn new(limit: u32) -> Self {
        debug_assert!(limit <= MAX_WRS);
        Self { posted: VecDeque::new(), first: 0, limit: limit as usize, stranded: 0 }
    }

    /// Whether no slot is free.
    pub(super) fn is_full(&self) -> bool {
        self.posted.len() >= self.limit
    }

    /// Number of slots.
    pub(super) fn limit(&self) -> u32 {
        // It was converted from a u32.
        u32::try_from(self.limit).unwrap_or(u32::MAX)
    }

    /// Number of WRs that have not been retired.
    pub(super) fn len(&self) -> usize {
        self.posted.len()
    }

    /// Takes a slot. Returns the WR's position.
    pub(super) fn push(&mut self, wr: Posted<T>) -> u32 {
        let position = self.position_of(self.posted.len());
        self.posted.push_back(wr);
        position
    }

    /// The WR at `position` has completed: frees it, and the WRs before it that give no completion.
    /// `None` if `position` is not posted.
    pub(super) fn retire(&mut self, position: u32) -> Option<Posted<T>> {
        let index = self.index_of(position)?;
        self.posted.drain(..index);
        self.first = (position + 1) % POSITIONS;
        self.posted.pop_front()
    }

    /// Nothing up to `position` will complete any more: returns all of it.
    pub(super) fn retire_all(&mut self, position: u32) -> impl Iterator<Item = Posted<T>> + '_ {
        let count = self.index_of(position).map_or(0, |index| index + 1);
        self.first = self.position_of(count);
        self.posted.drain(..count)
    }

    /// Position of the last WR that the device has, if it is unsignaled: no completion will report
    /// when it is done.
    pub(super) fn silent_tail(&self) -> Option<u32> {
        let last = (self.posted.len() - self.stranded).checked_sub(1)?;
        (!self.posted[last].signaled).then(|| self.position_of(last))
    }

    /// The device refused the last `count` WRs.
    pub(super) fn strand(&mut self, count: usize) {
        self.stranded = (self.stranded + count).min(self.posted.len());
    }

    /// Returns the stranded WRs, once nothing is before them.
    pub(super) fn take_stranded(&mut self) -> impl Iterator<Item = Posted<T>> + '_ {
        let count = if self.stranded == self.posted.len() { self.stranded } else { 0 };
        self.stranded -= count;
        self.first = self.position_of(count);
        self.posted.drain(..count)
    }

    /// Returns everything, in order, when the QP is destroyed.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Posted<T>> + '_ {
        self.stranded = 0;
        self.first = self.position_of(self.posted.len());
        self.posted.drain(..)
    }

    fn index_of(&self, position: u32) -> Option<usize> {
        let index = ((position + POSITIONS - self.first) % POSITIONS) as usize;
        (index < self.posted.len()).then_some(index)
    }

    fn position_of(&self, index: usize) -> u32 {
        // At most MAX_WRS + POSITIONS, which is far below 2^32.
        let index = u32::try_from(index).unwrap_or(MAX_WRS);
        (self.first + index) % POSITIONS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(limit: u32, first: u32, signaled: &[bool]) -> (SendRing<u32>, Vec<u32>) {
        let mut ring = SendRing::new(limit);
        ring.first = first;
        let positions = (0..)
            .zip(signaled)
            .map(|(held, signaled)| {
                let wr_id = u64::from(held) + 100;
                ring.push(Posted { wr_id, signaled: *signaled, held })
            })
            .collect();
        (ring, positions)
    }

    fn ids<T>(wrs: impl Iterator<Item = Posted<T>>) -> Vec<u64> {
        wrs.map(|wr| wr.wr_id).collect()
    }

    #[test]
    fn s43_unsignaled_keeps_slot() {
        // Also where positions wrap around.
        for first in [0, POSITIONS - 2] {
            let (mut ring, positions) = ring(4, first, &[false, false, true, false]);
            assert!(ring.is_full());
            let done = ring.retire(positions[2]).unwrap();
            assert_eq!((done.wr_id, done.held, ring.len()), (102, 2, 1));
            assert_eq!(ring.silent_tail(), Some(positions[3]));
            assert!(ring.retire(positions[2]).is_none(), "twice");
            assert!(ring.retire(positions[0]).is_none(), "freed before");
            let next = ring.push(Posted { wr_id: 9, signaled: true, held: 9 });
            assert_eq!(next, (first + 4) % POSITIONS);
            assert_eq!(ring.retire(next).unwrap().wr_id, 9);
            assert_eq!(ring.len(), 0);
        }
    }

    #[test]
    fn a_position_that_is_not_posted_is_none() {
        let (mut ring, positions) = ring(4, POSITIONS - 1, &[true]);
        assert!(ring.retire((positions[0] + 1) % POSITIONS).is_none());
        assert!(ring.retire(MAX_WRS).is_none());
        assert_eq!(ring.retire_all((positions[0] + 1) % POSITIONS).count(), 0);
        assert_eq!(ring.len(), 1);
    }

    #[test]
    fn a_drain_wr_gives_back_what_was_silent() {
        let (mut ring, positions) = ring(8, POSITIONS - 2, &[true, false, false]);
        assert_eq!(ring.silent_tail(), Some(positions[2]));
        assert_eq!(ring.retire(positions[0]).unwrap().wr_id, 100);
        // Posted after the drain WR, so the device flushes it with its own completion.
        let late = ring.push(Posted { wr_id: 7, signaled: true, held: 7 });
        assert_eq!(ids(ring.retire_all(positions[2])), [101, 102]);
        assert_eq!(ring.silent_tail(), None);
        assert_eq!(ring.retire(late).unwrap().wr_id, 7);
    }

    #[test]
    fn stranded_wrs_wait_for_those_before_them() {
        let (mut ring, positions) = ring(8, 5, &[false, true, true, false]);
        ring.strand(2);
        assert_eq!(ring.take_stranded().count(), 0);
        assert_eq!(ring.silent_tail(), None, "the last that the device has is signaled");
        assert_eq!(ring.retire(positions[1]).unwrap().wr_id, 101);
        assert_eq!(ids(ring.take_stranded()), [102, 103]);
        assert_eq!(ring.len(), 0);
        // Positions continue after them.
        assert_eq!(ring.push(Posted { wr_id: 1, signaled: true, held: 1 }), 9);
        assert_eq!(ring.take_stranded().count(), 0, "the new one is not stranded");
    }

    #[test]
    fn unsignaled_wr_before_stranded_ones_is_the_tail() {
        let (mut ring, positions) = ring(8, 0, &[true, false, true]);
        ring.strand(1);
        assert_eq!(ring.silent_tail(), Some(positions[1]));
        assert_eq!(ids(ring.retire_all(positions[1])), [100, 101]);
        assert_eq!(ids(ring.take_stranded()), [102]);
        assert_eq!(ring.silent_tail(), None);
    }

    #[test]
    fn a_destroyed_qp_gives_everything_back() {
        let (mut ring, _) = ring(8, 0, &[true, false]);
        ring.strand(1);
        assert_eq!(ids(ring.take_all()), [100, 101]);
        assert_eq!(ring.take_stranded().count(), 0);
    }
}
