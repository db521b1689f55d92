//! Posted RECVs, and a queue of them.
#![allow(unsafe_code, reason = "names bytes of registered memory")]

use std::ptr::NonNull;

use crate::device::RecvWr;

/// A posted RECV, with its buffer's address looked up at post time rather than when a message
/// arrives.
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) wr: RecvWr,
    pub(super) at: NonNull<u8>,
    pub(super) len: usize,
    /// The buffer belongs to another protection domain.
    pub(super) foreign: bool,
}

// SAFETY: `at` points into `wr.buffer`, which is owned here and Send.
unsafe impl Send for Posted {}

impl Posted {
    /// A RECV for a queue of protection domain `domain`.
    #[inline]
    pub(super) fn new(wr: RecvWr, domain: u64) -> Self {
        let (at, len) = (wr.buffer.as_ptr(), wr.buffer.len());
        let foreign = wr.buffer.region().domain() != domain;
        Self { wr, at, len, foreign }
    }
}

/// Fewest places for RECVs, once there are any.
const MIN_PLACES: usize = 16;

/// Posted RECVs in post order: a ring whose size is a power of two, or 0.
///
/// Invariant: the places of the numbers from `taken` to `posted` are full, all others are empty.
#[derive(Debug, Default)]
pub(super) struct Recvs {
    places: Vec<Option<Posted>>,
    /// Number of RECVs ever posted, modulo 2^64.
    posted: usize,
    /// Number of these that have been taken.
    taken: usize,
}

impl Recvs {
    #[inline]
    fn place(&self, number: usize) -> usize {
        number & self.places.len().wrapping_sub(1)
    }

    #[inline]
    fn len(&self) -> usize {
        self.posted.wrapping_sub(self.taken)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.posted == self.taken
    }

    /// Adds the RECV that `make` creates.
    // Always inlined, and a closure, so that the RECV is created in its place.
    #[inline(always)]
    pub(super) fn push(&mut self, make: impl FnOnce() -> Posted) {
        if self.len() == self.places.len() {
            self.grow();
        }
        let place = self.place(self.posted);
        // Avoids a drop of the old value.
        if let Some(empty @ None) = self.places.get_mut(place) {
            *empty = Some(make());
            self.posted = self.posted.wrapping_add(1);
        }
    }

    #[cold]
    fn grow(&mut self) {
        let count = self.len();
        let all: Vec<_> = self.take_all().collect();
        self.places.clear();
        self.places.resize_with((2 * count).max(MIN_PLACES), || None);
        all.into_iter().for_each(|recv| self.push(|| recv));
    }

    /// The first RECV.
    #[inline]
    pub(super) fn first(&self) -> Option<&Posted> {
        self.places.get(self.place(self.taken))?.as_ref()
    }

    /// Takes the first RECV if it satisfies the condition.
    #[inline]
    pub(super) fn take_if(&mut self, is_wanted: impl FnOnce(&Posted) -> bool) -> Option<Posted> {
        let place = self.place(self.taken);
        let first = self.places.get_mut(place)?.take_if(|recv| is_wanted(recv))?;
        self.taken = self.taken.wrapping_add(1);
        Some(first)
    }

    /// Takes the first RECV.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Posted> {
        self.take_if(|_| true)
    }

    /// Takes all of them, in order.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Posted> {
        std::iter::from_fn(|| self.take())
    }

    /// All of them, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Posted> {
        let numbers = (0..self.len()).map(|ahead| self.taken.wrapping_add(ahead));
        numbers.filter_map(|number| self.places[self.place(number)].as_ref())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use test_kit::for_seeds;

    use super::*;
    use crate::device::soft::mem_device;
    use crate::memory::region::BufferPool;

    const RUNS: u64 = if cfg!(miri) { 3 } else { 100 };

    #[test]
    fn recvs_leave_as_from_a_queue() {
        let domain = mem_device().allocate_pd().unwrap();
        let pool = BufferPool::allocate(&domain, 64, 256).unwrap();
        for_seeds(0x1ec5, RUNS, |rng| {
            let (mut recvs, mut queue) = (Recvs::default(), VecDeque::new());
            // The counts wrap.
            (recvs.posted, recvs.taken) = (usize::MAX - 20, usize::MAX - 20);
            for wr_id in 0..200 {
                if rng.chance(50) {
                    let buffer = pool.take().unwrap();
                    recvs.push(|| Posted::new(RecvWr { wr_id, buffer }, pool.domain()));
                    queue.push_back(wr_id);
                } else if rng.chance(20) {
                    assert!(recvs.take_if(|_| false).is_none());
                } else {
                    assert_eq!(recvs.take().map(|recv| recv.wr.wr_id), queue.pop_front());
                }
                assert_eq!(recvs.first().map(|recv| recv.wr.wr_id), queue.front().copied());
                assert!(recvs.iter().map(|recv| recv.wr.wr_id).eq(queue.iter().copied()));
                assert_eq!(recvs.is_empty(), queue.is_empty());
            }
            assert!(recvs.take_all().map(|recv| recv.wr.wr_id).eq(queue));
            assert!(recvs.is_empty());
        });
    }
}
