//! The plans of the process, which its connections share.
//!
//! Owns the bound on them: the oldest ones go first. A plan that is gone is made again of the
//! schema that the peer then sends.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, LazyLock};

use rpc_transport::lock::Mutex;

use super::{Plans, Resolution, Role};
use crate::layout::{MethodTypes, OwnTypes};
use crate::method::MethodDescriptor;

/// Most plans.
const MAX_PLANS: usize = 4096;
/// Most memory of all plans, bytes.
const MAX_BYTES: usize = 16 << 20;

/// The number of this process's method, which is read, and the schema that is written.
type Key = (u32, Role, Arc<str>);

static CACHE: LazyLock<Mutex<Cache>> = LazyLock::new(Mutex::default);

#[derive(Debug, Default)]
pub(super) struct Cache {
    plans: HashMap<Key, Arc<Resolution>>,
    /// Oldest first.
    order: VecDeque<Key>,
    bytes: usize,
}

impl Cache {
    fn insert(&mut self, key: Key, resolution: Arc<Resolution>) {
        self.bytes += resolution.bytes;
        if let Some(other) = self.plans.insert(Key::clone(&key), resolution) {
            // Two callers have made it at once.
            self.bytes -= other.bytes;
        } else {
            self.order.push_back(key);
        }
        while self.plans.len() > MAX_PLANS || self.bytes > MAX_BYTES {
            let Some(oldest) = self.order.pop_front() else { return };
            if let Some(gone) = self.plans.remove(&oldest) {
                self.bytes -= gone.bytes;
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_bounded() -> bool {
        let cache = CACHE.lock();
        cache.plans.len() == cache.order.len()
            && cache.plans.len() <= MAX_PLANS
            && cache.bytes <= MAX_BYTES
            && cache.bytes == cache.plans.values().map(|plan| plan.bytes).sum::<usize>()
    }
}

/// All plans of a role, each with the number of its method.
#[cold]
pub(super) fn all(role: Role) -> Vec<(u32, Arc<Resolution>)> {
    let cache = CACHE.lock();
    let of_role = cache.plans.iter().filter(|((_, of, _), _)| *of == role);
    of_role.map(|((method, ..), plan)| (*method, Arc::clone(plan))).collect()
}

/// The plans for a peer with the schema `text`.
///
/// # Errors
/// That of `make`, or why the text is no schema. It is not kept.
#[cold]
pub(super) fn find_or_make(
    method: &'static MethodDescriptor,
    role: Role,
    text: &str,
    make: impl FnOnce(&OwnTypes, &MethodTypes) -> Result<Plans, String>,
) -> Result<Arc<Resolution>, String> {
    let key = (method.dense_index(), role, Arc::from(text));
    if let Some(found) = CACHE.lock().plans.get(&key) {
        return Ok(Arc::clone(found));
    }
    // Outside the lock: a type that is looked at is the user's code.
    let made = Arc::new(Resolution::new(method, text, make)?);
    CACHE.lock().insert(key, Arc::clone(&made));
    Ok(made)
}
