//! Rendezvous hashing: each key ranks all end points in its own way, the same at every client.
//!
//! When an end point comes or goes, only the keys move that rank it first.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use rpc_transport::address::Address;

use super::endpoint::Endpoint;

/// How much more than the mean an end point may have to do before a key goes to the next one.
const MOST_LOAD: f64 = 1.25;

/// A hash that is the same in every process: FNV-1a.
#[derive(Debug)]
pub struct StableHasher(u64);

impl Default for StableHasher {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for StableHasher {
    fn finish(&self) -> u64 {
        mixed(self.0)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// Spreads a number over all bits: the finalizer of MurmurHash3.
fn mixed(mut bits: u64) -> u64 {
    bits ^= bits >> 33;
    bits = bits.wrapping_mul(0xff51_afd7_ed55_8ccd);
    bits ^= bits >> 33;
    bits = bits.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    bits ^ (bits >> 33)
}

/// The hash of a key, the same in every process where its type is hashed in the same way.
#[must_use]
pub fn stable_hash(key: &impl Hash) -> u64 {
    let mut hasher = StableHasher::default();
    key.hash(&mut hasher);
    hasher.finish()
}

/// The hash of an address.
#[must_use]
pub fn address_hash(address: &Address) -> u64 {
    let mut hasher = StableHasher::default();
    hasher.write(address.to_string().as_bytes());
    hasher.finish()
}

/// The rank of an end point for a key: the highest comes first.
#[must_use]
pub fn rank(key: u64, end_point: u64) -> u64 {
    mixed(key ^ end_point.rotate_left(32))
}

/// At most `most` end points of each priority, those that the nonce ranks first. Those that drain
/// do not count.
#[must_use]
pub fn subset(all: &[Endpoint], most: usize, nonce: u64) -> Vec<Endpoint> {
    let mut classes: BTreeMap<(u8, bool), Vec<&Endpoint>> = BTreeMap::new();
    for end_point in all {
        classes.entry((end_point.priority(), end_point.is_draining())).or_default().push(end_point);
    }
    let mut chosen = Vec::new();
    for mut class in classes.into_values() {
        if class.len() > most {
            class.sort_by_cached_key(|it| Reverse(rank(nonce, address_hash(it.address()))));
            class.truncate(most);
        }
        chosen.extend(class.into_iter().cloned());
    }
    chosen
}

/// The end point for a key, of those that are ready: the first in its order that has less than
/// 1.25 times the mean of calls in flight. `ready` gives hash and calls in flight of an end point,
/// or `None` if it can take no call.
pub fn pick_for(
    key: u64,
    count: usize,
    mut ready: impl FnMut(usize) -> Option<(u64, u32)>,
) -> Option<usize> {
    let found =
        (0..count).filter_map(|at| ready(at).map(|(hash, calls)| (rank(key, hash), at, calls)));
    let found: Vec<_> = found.collect();
    let all: u64 = found.iter().map(|(_, _, calls)| u64::from(*calls)).sum();
    // With the call that is to come.
    let mean = (all + 1) as f64 / found.len().max(1) as f64;
    let most = (mean * MOST_LOAD).ceil();
    let has_room = |calls: u32| f64::from(calls) + 1.0 <= most;
    let first = found.iter().filter(|(_, _, calls)| has_room(*calls)).max();
    first.or_else(|| found.iter().max()).map(|(_, at, _)| *at)
}

#[cfg(test)]
mod tests {
    use test_kit::Rng;

    use super::*;

    fn end_points(count: usize) -> Vec<Endpoint> {
        (0..count).map(|at| format!("tcp://10.0.0.{at}:7471").parse().unwrap()).collect()
    }

    /// 1,000 clients of 100 servers.
    #[test]
    fn subsets_are_small_and_share_the_load() {
        let (all, mut rng) = (end_points(100), Rng::new(1));
        let mut clients: BTreeMap<String, u32> = BTreeMap::new();
        for _ in 0..1000 {
            let chosen = subset(&all, 32, rng.next());
            assert_eq!(chosen.len(), 32);
            for end_point in chosen {
                *clients.entry(end_point.address().to_string()).or_default() += 1;
            }
        }
        let (least, most) = (clients.values().min().unwrap(), clients.values().max().unwrap());
        assert!(clients.len() == 100 && *least >= 272 && *most <= 368, "{least} to {most}");
    }

    #[test]
    fn a_subset_changes_by_what_comes_and_goes() {
        let all = end_points(100);
        let before = subset(&all[..50], 32, 7);
        let after = subset(&all[1..51], 32, 7);
        let moved = after.iter().filter(|it| !before.contains(it)).count();
        assert!(moved <= 2, "{moved}");
        assert_eq!(subset(&all[..10], 32, 7).len(), 10);
    }

    #[test]
    fn keys_move_only_from_what_goes() {
        let hashes: Vec<u64> = end_points(10).iter().map(|it| address_hash(it.address())).collect();
        let mut rng = Rng::new(3);
        let (mut moved, mut of_gone, mut hits) = (0, 0, [0; 10]);
        for _ in 0..10_000 {
            let key = rng.next();
            let before = pick_for(key, 10, |at| Some((hashes[at], 0))).unwrap();
            let after = pick_for(key, 10, |at| (at != 4).then_some((hashes[at], 0))).unwrap();
            hits[before] += 1;
            of_gone += u32::from(before == 4);
            moved += u32::from(before != after);
        }
        assert_eq!(moved, of_gone, "no other key moves");
        assert!(hits.iter().all(|hits| (900..1100).contains(hits)), "{hits:?}");
    }

    /// All calls have one key.
    #[test]
    fn one_hot_key_does_not_drown_its_server() {
        let hashes: Vec<u64> = end_points(10).iter().map(|it| address_hash(it.address())).collect();
        let mut calls = [0_u32; 10];
        for total in 1..=1000_u32 {
            let at = pick_for(42, 10, |at| Some((hashes[at], calls[at]))).unwrap();
            calls[at] += 1;
            let most = (f64::from(total) / 10.0 * MOST_LOAD).ceil();
            assert!(f64::from(calls[at]) <= most, "{calls:?}");
        }
        assert_eq!(pick_for(42, 0, |_| None), None);
    }
}
