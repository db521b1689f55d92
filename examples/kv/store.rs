//! The store: a map in memory, split into shards, each behind a lock of its own.
//!
//! Owns the keys, the values, their versions and the memory budget. Waits only for locks that are
//! held for the time of a map operation; knows no calls.
//!
//! Invariants:
//! 1. A key's versions grow, even across deletions: each shard counts its writes, and a write's
//!    number is its version.
//! 2. `used` is the sum of all keys' and values' lengths, and never more than the budget.
//! 3. Code that holds more than one shard's lock took them in the order of the shards, for reading.
//! 4. A value is made the store's own ([`Bulk::detach`]) before its shard is locked, and freed
//!    after: the store keeps no memory of a connection.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::hash::{BuildHasher, RandomState};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::RwLock;
use rpc_core::Bulk;
use tokio::sync::broadcast;

use super::service::{
    Change, KvError, Listed, MAX_KEY_BYTES, MAX_PAGE_BYTES, MAX_PAGE_KEYS, MAX_VALUE_BYTES, Page,
    Requests, Stats, Value, Version,
};

/// Shards; a power of two, more than the cores that serve at once on most machines.
const SHARD_COUNT: usize = 16;
/// Number of changes kept for watchers that have not seen them.
const KEPT_CHANGES: usize = 1024;

/// A map from keys to values.
#[derive(Debug)]
pub(crate) struct Store {
    shards: [Shard; SHARD_COUNT],
    hasher: RandomState,
    budget: Budget,
    started: Instant,
    changes: broadcast::Sender<Change>,
}

#[derive(Debug, Default)]
struct Shard {
    map: RwLock<Map>,
    requests: Counters,
}

/// Ordered, so that the cost of a page depends on the page and not on the store.
#[derive(Debug, Default)]
struct Map {
    entries: BTreeMap<Box<str>, Value>,
    writes: u64,
}

#[derive(Debug, Default)]
struct Counters {
    get: AtomicU64,
    put: AtomicU64,
    delete: AtomicU64,
    compare_and_swap: AtomicU64,
    list: AtomicU64,
}

impl Store {
    /// An empty store whose keys and values take at most `max_bytes` together. The map's own
    /// overhead, some hundred bytes a key, is not counted.
    pub(crate) fn new(max_bytes: Option<u64>) -> Self {
        Self {
            shards: Default::default(),
            hasher: RandomState::new(),
            budget: Budget { used: AtomicU64::new(0), max: max_bytes },
            started: Instant::now(),
            changes: broadcast::Sender::new(KEPT_CHANGES),
        }
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: &str) -> Result<Value, KvError> {
        let shard = self.shard(key);
        bump(&shard.requests.get);
        shard.map.read().entries.get(key).cloned().ok_or(KvError::NotFound)
    }

    /// Sets the value of a key.
    pub(crate) fn put(&self, key: &str, value: impl Into<Bulk>) -> Result<Version, KvError> {
        let shard = self.shard(key);
        bump(&shard.requests.put);
        self.write(shard, key, value.into(), |_| Ok(()))
    }

    /// Sets the value of a key that has the expected version, or none.
    pub(crate) fn compare_and_swap(
        &self,
        key: &str,
        expected: Option<Version>,
        value: impl Into<Bulk>,
    ) -> Result<Version, KvError> {
        let shard = self.shard(key);
        bump(&shard.requests.compare_and_swap);
        self.write(shard, key, value.into(), |current| {
            if current == expected { Ok(()) } else { Err(KvError::VersionMismatch { current }) }
        })
    }

    /// Removes a key.
    pub(crate) fn delete(&self, key: &str) -> Result<Version, KvError> {
        let shard = self.shard(key);
        bump(&shard.requests.delete);
        let mut map = shard.map.write();
        let removed = map.entries.remove(key).ok_or(KvError::NotFound)?;
        self.budget.shrink(size(key, removed.bytes.len()));
        self.tell(|key| Change::Deleted { key, version: removed.version }, key);
        drop(map);
        Ok(removed.version)
    }

    /// Changes from now on.
    pub(crate) fn watch(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    /// Notifies watchers, in the order of a key's changes: under its shard's lock.
    fn tell(&self, change: impl FnOnce(String) -> Change, key: &str) {
        if self.changes.receiver_count() > 0 {
            // Fails if the last watcher has just gone.
            let _ = self.changes.send(change(key.to_owned()));
        }
    }

    /// The keys that begin with `prefix`, in order, page by page.
    pub(crate) fn keys(&self, prefix: &str) -> impl Iterator<Item = String> {
        let mut after = Some(String::new());
        let pages = std::iter::from_fn(move || {
            let page = self.list(prefix, &after.take()?, MAX_PAGE_KEYS);
            after = page.next;
            Some(page.keys)
        });
        pages.flatten().map(|listed| listed.key)
    }

    /// A page of the keys that begin with `prefix` and sort after `after`.
    pub(crate) fn list(&self, prefix: &str, after: &str, limit: u32) -> Page {
        bump(&self.shards[0].requests.list);
        let limit = limit.clamp(1, MAX_PAGE_KEYS) as usize;
        let maps: Vec<_> = self.shards.iter().map(|shard| shard.map.read()).collect();
        let mut runs: Vec<_> = maps.iter().map(|map| map.behind(prefix, after)).collect();
        let mut heads: BinaryHeap<_> = (0..runs.len())
            .filter_map(|at| runs[at].next().map(|(key, value)| Reverse(Head { key, value, at })))
            .collect();
        let mut keys = Vec::new();
        let mut bytes = 0;
        while let Some(Reverse(head)) = heads.pop() {
            if keys.len() == limit || bytes >= MAX_PAGE_BYTES {
                let next = keys.last().map(|last: &Listed| last.key.clone());
                return Page { keys, next };
            }
            bytes += head.key.len();
            keys.push(head.listed());
            heads.extend(
                runs[head.at].next().map(|(key, value)| Reverse(Head { key, value, ..head })),
            );
        }
        Page { keys, next: None }
    }

    /// Statistics: each number is exact, but they are not from one moment.
    pub(crate) fn stats(&self) -> Stats {
        let keys = self.shards.iter().map(|shard| shard.map.read().entries.len() as u64).sum();
        let sum = |counter: fn(&Counters) -> &AtomicU64| {
            self.shards.iter().map(|it| counter(&it.requests).load(Ordering::Relaxed)).sum()
        };
        Stats {
            keys,
            bytes: self.budget.used.load(Ordering::Relaxed),
            max_bytes: self.budget.max,
            uptime_seconds: self.started.elapsed().as_secs(),
            requests: Requests {
                get: sum(|it| &it.get),
                put: sum(|it| &it.put),
                delete: sum(|it| &it.delete),
                compare_and_swap: sum(|it| &it.compare_and_swap),
                list: sum(|it| &it.list),
            },
        }
    }

    fn shard(&self, key: &str) -> &Shard {
        let [byte, ..] = self.hasher.hash_one(key).to_le_bytes();
        &self.shards[usize::from(byte) % SHARD_COUNT]
    }

    fn write(
        &self,
        shard: &Shard,
        key: &str,
        value: Bulk,
        check: impl FnOnce(Option<Version>) -> Result<(), KvError>,
    ) -> Result<Version, KvError> {
        let len = value.len();
        check_sizes(key, len)?;
        let bytes = value.detach()?;
        let mut guard = shard.map.write();
        let map = &mut *guard;
        let version = Version(map.writes + 1);
        let new = Value { version, bytes };
        let replaced = match map.entries.get_mut(key) {
            Some(old) => {
                check(Some(old.version))?;
                self.budget.replace(old.bytes.len(), len)?;
                Some(std::mem::replace(old, new))
            }
            None => {
                check(None)?;
                self.budget.replace(0, size(key, len))?;
                map.entries.insert(key.into(), new)
            }
        };
        map.writes += 1;
        self.tell(|key| Change::Set { key, version, bytes: len }, key);
        drop(guard);
        drop(replaced);
        Ok(version)
    }
}

impl Map {
    /// The entries that begin with `prefix` and sort after `after`, in order.
    fn behind<'a>(
        &'a self,
        prefix: &'a str,
        after: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a Value)> {
        let from = if after < prefix { Bound::Included(prefix) } else { Bound::Excluded(after) };
        self.entries
            .range::<str, _>((from, Bound::Unbounded))
            .map(|(key, value)| (&**key, value))
            .take_while(move |(key, _)| key.starts_with(prefix))
    }
}

/// The next entry of shard `at` while the shards' entries are merged. Ordered by key.
struct Head<'a> {
    key: &'a str,
    value: &'a Value,
    at: usize,
}

impl Head<'_> {
    fn listed(&self) -> Listed {
        let Value { version, bytes } = self.value;
        Listed { key: self.key.to_owned(), version: *version, bytes: bytes.len() }
    }
}

impl PartialEq for Head<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Head<'_> {}

impl PartialOrd for Head<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Head<'_> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(other.key)
    }
}

/// Bytes of keys and values, and their limit.
#[derive(Debug)]
struct Budget {
    used: AtomicU64,
    max: Option<u64>,
}

impl Budget {
    /// Swaps `old` bytes for `new` ones. A swap that does not enlarge the store is always allowed.
    fn replace(&self, old: u64, new: u64) -> Result<(), KvError> {
        let Some(needed) = new.checked_sub(old) else {
            self.shrink(old - new);
            return Ok(());
        };
        let max = self.max.unwrap_or(u64::MAX);
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(needed).filter(|sum| *sum <= max)
            })
            .map(drop)
            .map_err(|used| KvError::Full { used, max, needed })
    }

    fn shrink(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

fn check_sizes(key: &str, value_bytes: u64) -> Result<(), KvError> {
    if key.is_empty() || key.len() > MAX_KEY_BYTES {
        return Err(KvError::BadKey { bytes: key.len() as u64, max: MAX_KEY_BYTES as u64 });
    }
    if value_bytes > MAX_VALUE_BYTES as u64 {
        return Err(KvError::TooLarge { bytes: value_bytes, max: MAX_VALUE_BYTES as u64 });
    }
    Ok(())
}

fn size(key: &str, value_bytes: u64) -> u64 {
    key.len() as u64 + value_bytes
}

fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(page: &Page) -> Vec<&str> {
        page.keys.iter().map(|listed| &*listed.key).collect()
    }

    #[test]
    fn what_was_put_is_there_until_deleted() {
        let store = Store::new(None);
        assert_eq!(store.get("a"), Err(KvError::NotFound));
        let version = store.put("a", b"1").unwrap();
        assert_eq!(store.get("a").unwrap(), Value { version, bytes: "1".into() });
        assert_eq!(store.delete("a"), Ok(version));
        assert_eq!(store.delete("a"), Err(KvError::NotFound));
        assert_eq!(store.get("a"), Err(KvError::NotFound));
    }

    #[test]
    fn versions_grow_over_deletions() {
        let store = Store::new(None);
        let mut last = store.put("a", b"").unwrap();
        for round in 0..100 {
            if round % 3 == 0 {
                store.delete("a").unwrap();
            }
            let version = store.put("a", b"").unwrap();
            assert!(version > last, "{version} after {last}");
            last = version;
        }
    }

    #[test]
    fn a_swap_needs_the_current_version() {
        let store = Store::new(None);
        let stale = Some(Version(77));
        assert_eq!(
            store.compare_and_swap("a", stale, b"x"),
            Err(KvError::VersionMismatch { current: None })
        );
        let first = store.compare_and_swap("a", None, b"1").unwrap();
        assert_eq!(
            store.compare_and_swap("a", None, b"2"),
            Err(KvError::VersionMismatch { current: Some(first) })
        );
        let second = store.compare_and_swap("a", Some(first), b"2").unwrap();
        assert!(second > first);
        assert_eq!(
            store.compare_and_swap("a", Some(first), b"3"),
            Err(KvError::VersionMismatch { current: Some(second) })
        );
        assert_eq!(store.get("a").unwrap().bytes, *b"2");
    }

    #[test]
    fn concurrent_swaps_lose_no_update() {
        let store = Store::new(None);
        store.put("n", b"0").unwrap();
        let add_100 = || {
            let mut done = 0;
            while done < 100 {
                let Value { version, bytes } = store.get("n").unwrap();
                let number: u32 =
                    str::from_utf8(bytes.as_slice().unwrap()).unwrap().parse().unwrap();
                let next = (number + 1).to_string();
                match store.compare_and_swap("n", Some(version), next) {
                    Ok(_) => done += 1,
                    Err(error) => assert!(matches!(error, KvError::VersionMismatch { .. })),
                }
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(add_100))));
        assert_eq!(store.get("n").unwrap().bytes, *b"400");
    }

    #[test]
    fn keys_and_values_have_limits() {
        let store = Store::new(None);
        let long = "k".repeat(MAX_KEY_BYTES);
        store.put(&long, b"").unwrap();
        for key in ["", &format!("{long}k")] {
            let (bytes, max) = (key.len() as u64, MAX_KEY_BYTES as u64);
            assert_eq!(store.put(key, b""), Err(KvError::BadKey { bytes, max }));
        }
        assert_eq!(
            check_sizes("k", MAX_VALUE_BYTES as u64 + 1),
            Err(KvError::TooLarge {
                bytes: MAX_VALUE_BYTES as u64 + 1,
                max: MAX_VALUE_BYTES as u64
            })
        );
    }

    #[test]
    fn the_budget_holds_and_a_refusal_changes_nothing() {
        let store = Store::new(Some(10));
        let version = store.put("a", b"1234").unwrap();
        store.put("b", b"123").unwrap();
        let full = KvError::Full { used: 9, max: 10, needed: 2 };
        assert_eq!(store.put("c", b"1"), Err(full.clone()));
        assert_eq!(store.put("a", b"123456"), Err(full));
        assert_eq!(store.get("a").unwrap(), Value { version, bytes: "1234".into() });
        store.put("a", b"12345").unwrap();
        store.put("a", b"54321").unwrap();
        assert_eq!(store.stats().bytes, 10);
        store.put("a", b"").unwrap();
        assert_eq!(store.stats().bytes, 5);
        store.delete("b").unwrap();
        store.delete("a").unwrap();
        let stats = store.stats();
        assert_eq!((stats.keys, stats.bytes, stats.max_bytes), (0, 0, Some(10)));
    }

    #[test]
    fn listing_has_every_key_once_in_order() {
        let store = Store::new(None);
        let mut expected: Vec<String> = (0..500).map(|n| format!("p/{n}")).collect();
        for key in expected.iter().map(|key| &**key).chain(["o", "p", "p0", "q", "p/é\n"]) {
            store.put(key, key.to_owned()).unwrap();
        }
        expected.push("p/é\n".to_owned());
        expected.sort();
        for limit in [1, 7, 100, 500, 501, 502, u32::MAX] {
            let (mut seen, mut after) = (Vec::new(), String::new());
            // A page has at least one key, so there are never more pages than keys.
            for _ in 0..=expected.len() {
                let page = store.list("p/", &after, limit);
                assert!(page.keys.len() <= limit as usize);
                assert!(page.keys.iter().all(|listed| listed.bytes == listed.key.len() as u64));
                seen.extend(page.keys.into_iter().map(|listed| listed.key));
                let Some(next) = page.next else { break };
                after = next;
            }
            assert_eq!(seen, expected, "limit {limit}");
        }
    }

    #[test]
    fn the_borders_of_a_listing() {
        let store = Store::new(None);
        assert_eq!(store.list("", "", 10), Page { keys: Vec::new(), next: None });
        for key in ["a", "b", "ba", "c"] {
            store.put(key, b"").unwrap();
        }
        assert_eq!(keys(&store.list("", "", 10)), ["a", "b", "ba", "c"]);
        assert_eq!(keys(&store.list("b", "", 10)), ["b", "ba"]);
        assert_eq!(keys(&store.list("b", "a", 10)), ["b", "ba"]);
        assert_eq!(keys(&store.list("b", "b", 10)), ["ba"]);
        assert!(store.list("b", "c", 10).keys.is_empty());
        assert!(store.list("x", "", 10).keys.is_empty());
        let page = store.list("", "", 0);
        assert_eq!((keys(&page), page.next.as_deref()), (vec!["a"], Some("a")));
        assert_eq!(store.list("", "ba", 1).next, None);
    }

    #[test]
    fn a_page_ends_after_its_bytes() {
        let store = Store::new(None);
        let long = "k".repeat(MAX_KEY_BYTES - 4);
        for number in 0..600 {
            store.put(&format!("{long}{number:04}"), b"").unwrap();
        }
        let page = store.list("", "", 1000);
        assert_eq!(page.keys.len(), MAX_PAGE_BYTES / MAX_KEY_BYTES);
        assert_eq!(page.next.as_ref(), page.keys.last().map(|listed| &listed.key));
    }

    #[test]
    fn requests_are_counted() {
        let store = Store::new(None);
        let _ = store.get("a");
        let _ = store.put("a", b"");
        let _ = store.compare_and_swap("a", None, b"");
        let _ = store.delete("a");
        let _ = store.list("", "", 1);
        let expected = Requests { get: 1, put: 1, delete: 1, compare_and_swap: 1, list: 1 };
        let requests = store.stats().requests;
        assert_eq!((requests.total(), requests), (5, expected));
    }
}
