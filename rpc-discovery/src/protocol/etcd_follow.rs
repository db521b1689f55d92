//! The servers below a prefix in etcd, from what a list, a watch and checks of the watch say.
//!
//! Owns the entries and the revision that they are of. Decides whether a watch can be trusted;
//! never asks anything itself.
//!
//! Invariants:
//! 1. A watch begins at the revision after that of the list before it. A revision is never carried
//!    over to another list.
//! 2. An answer of another cluster, or with a revision that is smaller than a known one, is from
//!    another world (wiped, or restored from a backup): all is listed anew.
//! 3. A canceled watch is over, with or without a reason: all is listed anew.
//! 4. A check that knows of changes which the watch has not reported by the next check ends the
//!    watch.
//! 5. At most [`MAX_KEYS`] entries are kept.
//! 6. Of several entries with one address, the youngest counts: its server has started again.
//! 7. An entry that cannot be read is left out alone, and reported once.

use std::collections::BTreeMap;

use rpc_core::client::resolve::Endpoint;

use super::entry;
use super::etcd_messages::{Header, KeyValue, MAX_KEYS, RangeReply, WatchReply};
use super::problems::Problems;

/// What a message means.
#[derive(Debug, PartialEq)]
pub(crate) enum Heard {
    /// Nothing has changed.
    Nothing,
    /// The set is what it was.
    Confirmed,
    /// The set has changed.
    Changed,
    /// The watch is over, and why.
    ListAnew(String),
}

#[derive(Debug)]
struct Known {
    create_revision: i64,
    mod_revision: i64,
    /// `None`: it cannot be read.
    server: Option<Endpoint>,
}

/// The servers below a prefix.
#[derive(Debug)]
pub(crate) struct Follow {
    prefix: String,
    entries: BTreeMap<Vec<u8>, Known>,
    cluster: i64,
    revision: i64,
    /// The last check knew of changes that the watch had not reported.
    is_behind: bool,
    pub(crate) problems: Problems,
}

impl Follow {
    /// `prefix` ends with a `/`.
    pub(crate) fn new(prefix: String) -> Self {
        Self {
            prefix,
            entries: BTreeMap::new(),
            cluster: 0,
            revision: 0,
            is_behind: false,
            problems: Problems::default(),
        }
    }

    /// A list has arrived. Gives whether it is of another world than what was known.
    pub(crate) fn on_list(&mut self, list: RangeReply) -> bool {
        let is_other = self.revision != 0 && self.other_world(&list.header).is_some();
        let mut old = std::mem::take(&mut self.entries);
        for found in list.kvs {
            // An entry that is known is not read, and not reported, again.
            let known = old.remove(&found.key);
            let known = known.filter(|it| !is_other && it.mod_revision == found.mod_revision);
            match known {
                Some(known) => drop(self.entries.insert(found.key, known)),
                None => self.on_put(found),
            }
        }
        (self.cluster, self.revision) = (list.header.cluster_id, list.header.revision);
        self.is_behind = false;
        is_other
    }

    /// Where the watch after a list begins.
    pub(crate) fn watch_from(&self) -> i64 {
        self.revision.saturating_add(1)
    }

    pub(crate) fn on_watch(&mut self, reply: WatchReply) -> Heard {
        if reply.canceled {
            let why = match (reply.compact_revision, &*reply.cancel_reason) {
                (0, "") => "etcd has canceled the watch".to_owned(),
                (0, reason) => format!("etcd has canceled the watch: {reason}"),
                (compacted, _) => format!("etcd has compacted revision {compacted}"),
            };
            return Heard::ListAnew(why);
        }
        if let Some(why) = self.other_world(&reply.header) {
            return Heard::ListAnew(why);
        }
        self.revision = self.revision.max(reply.header.revision);
        let has_changes = !reply.events.is_empty();
        for event in reply.events {
            self.revision = self.revision.max(event.kv.mod_revision);
            match event.kind.as_deref() {
                None | Some("PUT") => self.on_put(event.kv),
                Some(_) => {
                    let is_newer = |it: &Known| event.kv.mod_revision >= it.mod_revision;
                    if self.entries.get(&event.kv.key).is_some_and(is_newer) {
                        self.entries.remove(&event.kv.key);
                    }
                }
            }
        }
        if !has_changes {
            return Heard::Nothing;
        }
        self.is_behind = false;
        Heard::Changed
    }

    /// The answer to [`check`](super::etcd_messages::check), asked while the watch is open.
    pub(crate) fn on_check(&mut self, reply: &RangeReply) -> Heard {
        if let Some(why) = self.other_world(&reply.header) {
            return Heard::ListAnew(why);
        }
        let count = i64::try_from(self.entries.len()).unwrap_or(i64::MAX);
        let newest = self.entries.values().map(|it| it.mod_revision).max().unwrap_or(0);
        let theirs = reply.kvs.first().map_or(0, |newest| newest.mod_revision);
        let is_behind = theirs != newest || reply.count != count;
        let was_behind = std::mem::replace(&mut self.is_behind, is_behind);
        if was_behind && is_behind {
            return Heard::ListAnew("the watch has missed changes".to_owned());
        }
        if is_behind { Heard::Nothing } else { Heard::Confirmed }
    }

    /// The servers.
    pub(crate) fn servers(&self) -> Vec<Endpoint> {
        let mut youngest = BTreeMap::new();
        for known in self.entries.values() {
            let Some(server) = &known.server else { continue };
            let place = youngest.entry(server.address().to_string()).or_insert(known);
            if place.create_revision < known.create_revision {
                *place = known;
            }
        }
        youngest.into_values().filter_map(|known| known.server.clone()).collect()
    }

    fn other_world(&self, header: &Header) -> Option<String> {
        if header.cluster_id != 0 && header.cluster_id != self.cluster {
            return Some("another cluster answers".to_owned());
        }
        (header.revision != 0 && header.revision < self.revision).then(|| {
            let (now, before) = (header.revision, self.revision);
            format!("etcd is at revision {now}, and was at {before}: wiped or restored")
        })
    }

    fn on_put(&mut self, put: KeyValue) {
        let KeyValue { key, value, create_revision, mod_revision } = put;
        let is_full = self.entries.len() >= MAX_KEYS;
        match self.entries.get(&key) {
            Some(known) if known.mod_revision >= mod_revision => return,
            None if is_full => {
                return self.problems.add(&key, &format!("there are more than {MAX_KEYS} entries"));
            }
            _ => {}
        }
        let server = entry::id(&key, &self.prefix).and_then(|_| entry::read(&value));
        let server = server.map_err(|reason| self.problems.add(&key, &reason)).ok();
        self.entries.insert(key, Known { create_revision, mod_revision, server });
    }
}

#[cfg(test)]
#[path = "etcd_follow_tests.rs"]
mod tests;
