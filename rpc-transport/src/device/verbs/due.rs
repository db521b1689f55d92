//! The deadlines of conversations.
//!
//! Owns their order. Never reads a clock.
//!
//! Invariant: each key has at most one entry, which is removed with its conversation. So the map
//! does not grow with past conversations.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use super::id_link::IdKey;

/// Deadlines by their time.
#[derive(Debug, Default)]
pub(super) struct Due {
    order: BTreeSet<(Instant, IdKey)>,
    by_key: HashMap<IdKey, Instant>,
}

impl Due {
    /// Sets the deadline of a key, replacing the previous one; `None` removes it.
    pub(super) fn set(&mut self, key: IdKey, at: Option<Instant>) {
        let before = match at {
            Some(at) => self.by_key.insert(key, at),
            None => self.by_key.remove(&key),
        };
        if let Some(before) = before {
            self.order.remove(&(before, key));
        }
        if let Some(at) = at {
            self.order.insert((at, key));
        }
    }

    /// The earliest deadline.
    pub(super) fn next(&self) -> Option<Instant> {
        self.order.first().map(|(at, _)| *at)
    }

    /// Takes a key that is due by `now`.
    pub(super) fn pop(&mut self, now: Instant) -> Option<IdKey> {
        let (at, key) = *self.order.first()?;
        (at <= now).then(|| {
            self.set(key, None);
            key
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A regression: entries stayed until they were due, long after their conversations had ended.
    #[test]
    fn what_has_ended_is_kept_no_more() {
        let (mut due, begin) = (Due::default(), Instant::now());
        let at = |seconds| Some(begin + Duration::from_secs(seconds));
        for _ in 0..1000 {
            let key = IdKey::fresh();
            // Resolving, connecting, and over.
            due.set(key, at(5));
            due.set(key, at(60));
            due.set(key, None);
        }
        assert_eq!((due.order.len(), due.by_key.len(), due.next()), (0, 0, None));
        let [first, second] = [IdKey::fresh(), IdKey::fresh()];
        due.set(second, at(2));
        due.set(first, at(9));
        due.set(first, at(1));
        assert_eq!(due.next(), at(1));
        let now = begin + Duration::from_secs(2);
        assert_eq!([due.pop(now), due.pop(now), due.pop(now)], [Some(first), Some(second), None]);
    }
}
