//! Deadlines: a hierarchical timer wheel.
//!
//! Owns which deadline has passed; never reads a clock, never knows what a deadline is for.
//! Insert and remove are O(1) and allocate nothing once the wheel has been as full before; a
//! session that never sees a deadline owns no wheel. (Varghese and Lauck, "Hashed and
//! Hierarchical Timing Wheels", SOSP 1987.)
//!
//! Invariants:
//! 1. A deadline never fires early, and at most one tick (256 µs) after `poll_expired` is first
//!    called with a later time.
//! 2. A timer on level L differs from `now_tick` first in the L-th group of 6 bits, so every timer
//!    of a level is due before every timer of the level above.
//! 3. `now_tick` never passes the start of an occupied bucket without emptying it.
//! 4. A key is valid from `insert` until `remove` or until its payload came out of `poll_expired`.

use std::time::{Duration, Instant};

/// Length of a tick, µs, as a shift.
const TICK_SHIFT: u32 = 8;
const GROUP_BITS: u32 = 6;
const BUCKETS: usize = 1 << GROUP_BITS;
/// Eight levels of six bits: 2^48 ticks are 2,284 years.
const LEVELS: usize = 8;
const MAX_TICK: u64 = (1 << (GROUP_BITS * 8)) - 1;
/// The list of timers that have expired and were not taken yet, after those of the buckets.
const EXPIRED: usize = LEVELS * BUCKETS;
const NONE: u32 = u32::MAX;

/// A timer in the wheel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TimerKey(u32);

#[derive(Debug)]
struct Node<T> {
    tick: u64,
    payload: T,
    list: usize,
    prev: u32,
    next: u32,
}

/// All deadlines of a session.
#[derive(Debug)]
pub(super) struct Deadlines<T> {
    /// Where ticks count from: the first `now` that came with a deadline.
    base: Option<Instant>,
    now_tick: u64,
    nodes: Vec<Node<T>>,
    free: Vec<u32>,
    /// First node of each list; empty until the first insert.
    heads: Vec<u32>,
    /// One bit per bucket that is not empty.
    occupied: [u64; LEVELS],
}

impl<T: Copy> Deadlines<T> {
    pub(super) const fn new() -> Self {
        Self {
            base: None,
            now_tick: 0,
            nodes: Vec::new(),
            free: Vec::new(),
            heads: Vec::new(),
            occupied: [0; LEVELS],
        }
    }

    /// Timers in the wheel.
    pub(super) fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    /// Adds a deadline. `now` may lie a little behind earlier ones.
    pub(super) fn insert(&mut self, at: Instant, now: Instant, payload: T) -> TimerKey {
        let base = *self.base.get_or_insert(now);
        if self.heads.is_empty() {
            self.heads.resize(EXPIRED + 1, NONE);
        }
        if self.len() == 0 {
            // An idle wheel is not advanced by anybody; nothing is in it that could be passed.
            self.now_tick = self.now_tick.max(tick_before(base, now));
        }
        // The first tick that does not begin before `at`.
        let after = at.saturating_duration_since(base);
        let part = u64::from(!after.subsec_nanos().is_multiple_of(1000));
        let tick = micros(after).saturating_add(part).div_ceil(1 << TICK_SHIFT).min(MAX_TICK);
        let node = Node { tick, payload, list: EXPIRED, prev: NONE, next: NONE };
        let index = match self.free.pop() {
            Some(index) => {
                self.nodes[index as usize] = node;
                index
            }
            None => {
                let index = u32::try_from(self.nodes.len()).unwrap_or(NONE);
                debug_assert_ne!(index, NONE, "more timers than calls can exist");
                self.nodes.push(node);
                index
            }
        };
        self.file(index);
        TimerKey(index)
    }

    /// Takes a deadline out.
    pub(super) fn remove(&mut self, key: TimerKey) {
        self.unlink(key.0);
        self.free.push(key.0);
    }

    /// When to call [`poll_expired`](Self::poll_expired) next; may be earlier than the earliest
    /// deadline, never later than a tick after it.
    #[inline]
    pub(super) fn next(&self) -> Option<Instant> {
        if self.base.is_none() { None } else { self.first() }
    }

    fn first(&self) -> Option<Instant> {
        let base = self.base?;
        if *self.heads.get(EXPIRED)? != NONE {
            return Some(base);
        }
        let (_, _, start) = self.first_bucket()?;
        base.checked_add(Duration::from_micros(start << TICK_SHIFT))
    }

    /// Takes one payload whose deadline is not after `now`.
    pub(super) fn poll_expired(&mut self, now: Instant) -> Option<T> {
        if self.len() == 0 {
            return None;
        }
        let target = tick_before(self.base?, now);
        while self.heads[EXPIRED] == NONE {
            let (level, bucket, start) = self.first_bucket()?;
            if start > target {
                self.now_tick = self.now_tick.max(target);
                return None;
            }
            self.now_tick = start;
            // Files the timers of the bucket anew: a level lower, or expired.
            let list = level * BUCKETS + bucket;
            while self.heads[list] != NONE {
                let index = self.heads[list];
                self.unlink(index);
                self.file(index);
            }
        }
        let index = self.heads[EXPIRED];
        self.remove(TimerKey(index));
        Some(self.nodes[index as usize].payload)
    }

    /// Forgets every timer.
    pub(super) fn clear(&mut self) {
        self.nodes.clear();
        self.free.clear();
        self.heads.fill(NONE);
        self.occupied = [0; LEVELS];
    }

    /// The occupied bucket that starts first: level, bucket, tick (invariant 2).
    fn first_bucket(&self) -> Option<(usize, usize, u64)> {
        let level = self.occupied.iter().position(|bits| *bits != 0)?;
        let bucket = self.occupied[level].trailing_zeros();
        let shift = level_shift(level);
        let above = self.now_tick >> (shift + GROUP_BITS) << (shift + GROUP_BITS);
        Some((level, bucket as usize, above | (u64::from(bucket) << shift)))
    }

    /// Puts a timer into the list where it belongs (invariant 2).
    fn file(&mut self, index: u32) {
        let tick = self.nodes[index as usize].tick;
        let list = if tick <= self.now_tick {
            EXPIRED
        } else {
            let level = ((self.now_tick ^ tick).ilog2() / GROUP_BITS) as usize;
            let bucket = usize::try_from((tick >> level_shift(level)) % BUCKETS as u64);
            level * BUCKETS + bucket.unwrap_or(0)
        };
        let next = self.heads[list];
        self.heads[list] = index;
        if next != NONE {
            self.nodes[next as usize].prev = index;
        }
        if list != EXPIRED {
            self.occupied[list / BUCKETS] |= 1 << (list % BUCKETS);
        }
        let node = &mut self.nodes[index as usize];
        (node.list, node.prev, node.next) = (list, NONE, next);
    }

    fn unlink(&mut self, index: u32) {
        let Node { list, prev, next, .. } = self.nodes[index as usize];
        match prev {
            NONE => self.heads[list] = next,
            prev => self.nodes[prev as usize].next = next,
        }
        if next != NONE {
            self.nodes[next as usize].prev = prev;
        }
        if list != EXPIRED && self.heads[list] == NONE {
            self.occupied[list / BUCKETS] &= !(1 << (list % BUCKETS));
        }
    }
}

fn level_shift(level: usize) -> u32 {
    // At most 7 * 6.
    u32::try_from(level).unwrap_or(0) * GROUP_BITS
}

/// The tick that has begun at `now`.
fn tick_before(base: Instant, now: Instant) -> u64 {
    (micros(now.saturating_duration_since(base)) >> TICK_SHIFT).min(MAX_TICK)
}

/// Whole microseconds; `Duration::as_micros` would go through 128 bits.
pub(super) fn micros(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(1_000_000).saturating_add(duration.subsec_micros().into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const TICK: Duration = Duration::from_micros(1 << TICK_SHIFT);

    fn drain(wheel: &mut Deadlines<u32>, now: Instant) -> Vec<u32> {
        std::iter::from_fn(|| wheel.poll_expired(now)).collect()
    }

    #[test]
    fn a_deadline_fires_at_its_tick_not_before() {
        let base = Instant::now();
        let times = [1, 255, 256, 257, 16_383, 16_384, 16_385, 1_000_000, 5_000_000_000];
        for micros in times.map(Duration::from_micros) {
            let mut wheel = Deadlines::new();
            wheel.insert(base + micros, base, 7);
            let early = base + micros - Duration::from_nanos(1);
            assert_eq!(drain(&mut wheel, early), [], "{micros:?}");
            assert_eq!(drain(&mut wheel, base + micros + TICK), [7], "{micros:?}");
            assert_eq!((wheel.next(), wheel.len()), (None, 0));
        }
    }

    #[test]
    fn the_far_future_is_only_far() {
        let base = Instant::now();
        let mut wheel = Deadlines::new();
        let century = Duration::from_secs(100 * 365 * 24 * 3600);
        wheel.insert(base + century, base, 1);
        assert_eq!(drain(&mut wheel, base + century / 2), []);
        assert!(wheel.next() <= Some(base + century + TICK));
        assert_eq!(drain(&mut wheel, base + century + TICK), [1]);
    }

    #[test]
    fn an_idle_wheel_keeps_up_with_the_clock() {
        let base = Instant::now();
        let mut wheel = Deadlines::new();
        let key = wheel.insert(base + TICK, base, 1);
        wheel.remove(key);
        let later = base + Duration::from_secs(3600);
        wheel.insert(later + 3 * TICK, later, 2);
        assert!(wheel.next() >= Some(later + 2 * TICK), "no wake-up on the way");
        assert_eq!(drain(&mut wheel, later + 4 * TICK), [2]);
    }

    /// Against a sorted map, with timers removed at every stage of their lives.
    #[test]
    fn random_timers_fire_as_a_sorted_list_says() {
        for seed in 1..200u64 {
            let mut state = seed;
            let mut random = |bound: usize| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                usize::try_from(state >> 33).expect("31 bits") % bound
            };
            let base = Instant::now();
            let mut now = base;
            let mut wheel = Deadlines::new();
            let mut model: BTreeMap<u32, (Instant, TimerKey)> = BTreeMap::new();
            for number in 0..300 {
                let scale = [1, 1000, 100_000, 10_000_000][random(4)];
                let at = now + Duration::from_micros(random(1 + 300 * scale) as u64);
                model.insert(number, (at, wheel.insert(at, now, number)));
                let some = u32::try_from(random(450)).expect("small");
                if let Some((_, key)) = model.remove(&some) {
                    wheel.remove(key);
                }
                let pace = [1, 100][random(2)];
                now += Duration::from_micros(random(20_000 * pace) as u64);
                let next = wheel.next();
                for fired in drain(&mut wheel, now) {
                    let (at, _) = model.remove(&fired).expect("fires once");
                    assert!(at <= now, "seed {seed}: {fired} fired early");
                    assert!(next <= Some(now), "seed {seed}: fired before the time announced");
                }
                let overdue = model.values().filter(|(at, _)| *at + TICK <= now).count();
                assert_eq!((overdue, wheel.len()), (0, model.len()), "seed {seed}");
                let first = model.values().map(|(at, _)| *at).min();
                assert!(wheel.next().zip(first).is_none_or(|(next, at)| next <= at + TICK));
                assert_eq!(wheel.next().is_none(), model.is_empty());
            }
        }
    }
}
