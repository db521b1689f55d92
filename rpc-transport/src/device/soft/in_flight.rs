//! The WRs of one QP that are on the wire, in post order.
//!
//! Owns their order, and which of them the peer has accepted. Never completes one, and holds no
//! memory.
//!
//! Most are unsignaled, and their bytes were copied when they were posted: nothing is done for such
//! a WR when it is accepted. So all those before another one are passed in one step.
//!
//! Invariants:
//! 1. `end` positions never decrease in post order; WRs leave from the front only.
//! 2. [`Other::before`] never decreases, and is between `passed` and `posted` of the unsignaled
//!    ones.

use std::collections::VecDeque;

/// Fewest places for unsignaled WRs, once there are any.
const MIN_PLACES: usize = 16;

/// A WR on the wire.
#[derive(Debug, Clone, Copy)]
pub(super) struct InFlightWr {
    pub(super) wr_id: u64,
    /// Position of the wire after the message: the message is accepted once the peer's position has
    /// reached it.
    pub(super) end: u64,
    pub(super) signaled: bool,
    /// The requester holds its memory.
    pub(super) holds: bool,
}

/// The WRs in flight.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    unsignaled: Unsignaled,
    /// WRs that are signaled, or have held memory.
    others: VecDeque<Other>,
}

#[derive(Debug)]
struct Other {
    wr: InFlightWr,
    /// Number of unsignaled WRs that were posted before it.
    before: u64,
}

impl InFlight {
    /// Appends a WR that is now on the wire.
    #[inline]
    pub(super) fn push(&mut self, wr: InFlightWr) {
        if wr.signaled || wr.holds {
            self.others.push_back(Other { wr, before: self.unsignaled.posted });
        } else {
            self.unsignaled.push(wr.wr_id, wr.end);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        self.unsignaled.len() + self.others.len()
    }

    /// Takes from the front what a peer at position `accepted` has accepted: unsignaled WRs, whose
    /// number is returned, and the other WR after them, unless it `must_stay`.
    pub(super) fn take_accepted(
        &mut self,
        accepted: u64,
        must_stay: impl FnOnce(&InFlightWr) -> bool,
    ) -> (u32, Option<InFlightWr>) {
        let next = self.others.front();
        let before = next.map_or(self.unsignaled.posted, |next| next.before);
        let count = self.unsignaled.pass(before, accepted);
        let is_first = |next: &Other| self.unsignaled.passed == next.before;
        if next
            .is_some_and(|next| is_first(next) && next.wr.end <= accepted && !must_stay(&next.wr))
        {
            return (count, self.others.pop_front().map(|other| other.wr));
        }
        (count, None)
    }

    /// Takes the first WR, accepted or not.
    pub(super) fn take_first(&mut self) -> Option<InFlightWr> {
        match self.others.front() {
            Some(other) if other.before == self.unsignaled.passed => {
                self.others.pop_front().map(|other| other.wr)
            }
            _ => self.unsignaled.take_first(),
        }
    }
}

/// The unsignaled WRs, with ids and ends: a ring whose size is a power of two, or 0.
#[derive(Debug, Default)]
struct Unsignaled {
    places: Vec<(u64, u64)>,
    /// Number of WRs ever posted.
    posted: u64,
    /// Number of these that are no longer in flight.
    passed: u64,
}

impl Unsignaled {
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "an SQ is far shorter than 2^32")]
    fn len(&self) -> usize {
        (self.posted - self.passed) as usize
    }

    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "only the low bits count")]
    fn place(&self, number: u64) -> usize {
        number as usize & self.places.len().wrapping_sub(1)
    }

    #[inline]
    fn push(&mut self, wr_id: u64, end: u64) {
        if self.len() == self.places.len() {
            self.grow();
        }
        let place = self.place(self.posted);
        self.places[place] = (wr_id, end);
        self.posted += 1;
    }

    #[cold]
    fn grow(&mut self) {
        let numbers = self.passed..self.posted;
        let wrs: Vec<_> = numbers.clone().map(|number| self.places[self.place(number)]).collect();
        self.places = vec![(0, 0); (2 * wrs.len()).max(MIN_PLACES)];
        for (number, wr) in numbers.zip(wrs) {
            let place = self.place(number);
            self.places[place] = wr;
        }
    }

    fn end(&self, number: u64) -> u64 {
        self.places[self.place(number)].1
    }

    /// Passes the accepted WRs among the first `until`; returns how many.
    fn pass(&mut self, until: u64, accepted: u64) -> u32 {
        let (mut low, mut high) = (self.passed, until);
        // Most often all of them are accepted.
        if low < high && self.end(high - 1) <= accepted {
            low = high;
        }
        while low < high {
            let middle = low + (high - low) / 2;
            if self.end(middle) <= accepted {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let count = low - self.passed;
        self.passed = low;
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    fn take_first(&mut self) -> Option<InFlightWr> {
        if self.passed == self.posted {
            return None;
        }
        let (wr_id, end) = self.places[self.place(self.passed)];
        self.passed += 1;
        Some(InFlightWr { wr_id, end, signaled: false, holds: false })
    }
}

#[cfg(test)]
mod tests {
    use test_kit::for_seeds;

    use super::*;

    const RUNS: u64 = if cfg!(miri) { 5 } else { 500 };

    /// The reference: one queue for all.
    #[derive(Default)]
    struct OneQueue(VecDeque<InFlightWr>);

    impl OneQueue {
        fn take_accepted(&mut self, accepted: u64, must_stay: bool) -> (u32, Option<u64>) {
            let mut count = 0;
            while let Some(&first) = self.0.front().filter(|first| first.end <= accepted) {
                let is_other = first.signaled || first.holds;
                if is_other && must_stay {
                    break;
                }
                self.0.pop_front();
                if is_other {
                    return (count, Some(first.wr_id));
                }
                count += 1;
            }
            (count, None)
        }

        fn take_first(&mut self) -> Option<u64> {
            self.0.pop_front().map(|first| first.wr_id)
        }
    }

    #[test]
    fn wrs_leave_as_from_one_queue() {
        for_seeds(0x1f11, RUNS, |rng| {
            let (mut in_flight, mut queue) = (InFlight::default(), OneQueue::default());
            let (mut end, mut accepted) = (0, 0);
            for wr_id in 0..300 {
                if rng.chance(15) {
                    accepted += rng.below(end - accepted + 1);
                    let must_stay = rng.chance(20);
                    let (count, other) = in_flight.take_accepted(accepted, |_| must_stay);
                    let taken = (count, other.map(|wr| wr.wr_id));
                    assert_eq!(taken, queue.take_accepted(accepted, must_stay));
                } else if rng.chance(5) {
                    let first = in_flight.take_first().map(|wr| wr.wr_id);
                    assert_eq!(first, queue.take_first());
                } else {
                    end += rng.below(3);
                    let (signaled, holds) = (rng.chance(10), rng.chance(10));
                    let wr = InFlightWr { wr_id, end, signaled, holds };
                    in_flight.push(wr);
                    queue.0.push_back(wr);
                }
                assert_eq!(in_flight.len(), queue.0.len());
            }
            while let Some(first) = queue.take_first() {
                assert_eq!(in_flight.take_first().map(|wr| wr.wr_id), Some(first));
            }
            assert!(in_flight.is_empty() && in_flight.take_first().is_none());
        });
    }
}
