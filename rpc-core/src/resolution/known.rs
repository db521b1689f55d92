//! The schemas that the peer of a connection has sent.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::Resolution;

/// Most schemas of a connection.
const MAX_SCHEMAS: usize = 1024;
/// Most memory of their plans, bytes.
const MAX_BYTES: usize = 2 << 20;

/// The method's id, and the hash of the caller's types as its requests have it.
type Key = (u32, u64);

/// What a callee knows of a caller's types, with the plans by which it reads arguments. When it has
/// no room the oldest goes: the caller then sends its schema again.
#[derive(Debug, Default)]
pub(crate) struct KnownSchemas {
    by_key: HashMap<Key, Arc<Resolution>>,
    /// Oldest first.
    order: VecDeque<Key>,
    bytes: usize,
}

impl KnownSchemas {
    pub(crate) fn find(&self, method: u32, hash: u64) -> Option<Arc<Resolution>> {
        self.by_key.get(&(method, hash)).map(Arc::clone)
    }

    pub(crate) fn insert(&mut self, method: u32, hash: u64, resolution: Arc<Resolution>) {
        self.bytes += resolution.bytes;
        match self.by_key.insert((method, hash), resolution) {
            Some(other) => self.bytes -= other.bytes,
            None => self.order.push_back((method, hash)),
        }
        while self.by_key.len() > MAX_SCHEMAS || self.bytes > MAX_BYTES {
            let Some(oldest) = self.order.pop_front() else { return };
            if let Some(gone) = self.by_key.remove(&oldest) {
                self.bytes -= gone.bytes;
            }
        }
    }

    /// How many there are, and the memory of their plans, bytes.
    #[cfg(test)]
    pub(super) fn size(&self) -> (usize, usize) {
        assert_eq!(self.by_key.len(), self.order.len());
        (self.by_key.len(), self.bytes)
    }
}

#[cfg(test)]
pub(super) const MOST: (usize, usize) = (MAX_SCHEMAS, MAX_BYTES);
