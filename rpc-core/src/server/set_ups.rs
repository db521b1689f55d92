//! Connection set-ups in progress, and which one to evict when a new one finds no room.
//!
//! Owns the source and the start time of each set-up. Has no clock, task or connection: time is an
//! argument, and the acceptor ends the set-up that is named here.
//!
//! Invariants:
//! 1. A peer that stalls costs a listener at most [`MIN_TIME`]: when all slots are taken, a set-up
//!    that has had that time is evicted.
//! 2. The evicted one is the oldest of the source with the most set-ups, so a single source cannot
//!    keep others out.

use std::collections::HashMap;
use std::time::Duration;

use rpc_transport::device::PeerIdentity;
use rpc_transport::engine::turns::Source;
use tokio::time::Instant;

/// Set-ups of one listener at once; more wait in its backlog.
pub(super) const SLOTS: usize = 256;
/// Time that every set-up gets, however many others wait. An honest peer takes milliseconds.
pub(super) const MIN_TIME: Duration = Duration::from_secs(1);

/// The set-ups of one listener; `K` names one.
#[derive(Debug)]
pub(super) struct SetUps<K> {
    /// Oldest first.
    under_way: Vec<(K, Source, Instant)>,
}

impl<K> SetUps<K> {
    pub(super) fn new() -> Self {
        Self { under_way: Vec::new() }
    }

    pub(super) fn begin(&mut self, key: K, peer: &PeerIdentity, now: Instant) {
        self.under_way.push((key, peer.into(), now));
    }

    /// Removes a set-up that has ended, successfully or not.
    pub(super) fn end(&mut self, is_it: impl Fn(&K) -> bool) {
        self.under_way.retain(|(key, ..)| !is_it(key));
    }

    pub(super) fn is_full(&self) -> bool {
        self.under_way.len() >= SLOTS
    }

    /// The set-up to evict now.
    ///
    /// # Errors
    /// No set-up has had [`MIN_TIME`] yet: when to ask again.
    pub(super) fn to_give_way(&self, now: Instant) -> Result<&K, Instant> {
        let mut counts: HashMap<Source, usize> = HashMap::new();
        for (_, source, _) in &self.under_way {
            *counts.entry(*source).or_default() += 1;
        }
        let has_had_its_time = |since: Instant| now.saturating_duration_since(since) >= MIN_TIME;
        let aged = self.under_way.iter().filter(|(.., since)| has_had_its_time(*since));
        // `max_by_key` returns the last of equals, which in reverse order is the oldest.
        let chosen = aged.rev().max_by_key(|(_, source, _)| counts.get(source));
        let oldest = self.under_way.first().map_or(now, |(.., since)| *since);
        chosen.map(|(key, ..)| key).ok_or(oldest + MIN_TIME)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> PeerIdentity {
        PeerIdentity::Network(([10, 0, 0, last], 7).into())
    }

    fn full(source: impl Fn(usize) -> u8, start: Instant) -> SetUps<usize> {
        let mut set_ups = SetUps::new();
        for key in 0..SLOTS {
            assert!(!set_ups.is_full());
            set_ups.begin(key, &peer(source(key)), start);
        }
        assert!(set_ups.is_full());
        set_ups
    }

    #[test]
    fn the_oldest_gives_way_after_some_time() {
        let start = Instant::now();
        let mut set_ups = full(|_| 1, start);
        assert_eq!(set_ups.to_give_way(start), Err(start + MIN_TIME));
        assert_eq!(set_ups.to_give_way(start + MIN_TIME), Ok(&0));
        set_ups.end(|key| *key == 0);
        set_ups.begin(SLOTS, &peer(1), start + MIN_TIME);
        assert_eq!(set_ups.to_give_way(start + MIN_TIME), Ok(&1));
    }

    #[test]
    fn a_stalling_source_gives_way_first() {
        let start = Instant::now();
        // The first ten are older than all set-ups of the greedy source.
        let set_ups = full(|key| if key < 10 { u8::try_from(key).unwrap() } else { 77 }, start);
        assert_eq!(set_ups.to_give_way(start + MIN_TIME), Ok(&10));
    }
}
