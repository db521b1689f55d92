//! Random numbers that need not be secret: jitter, and ids of instances.

use std::hash::{BuildHasher, RandomState};

/// A number that other processes and other calls do not get.
pub(crate) fn random() -> u64 {
    // Each state has keys of its own, which begin with what the system calls random.
    RandomState::new().hash_one(std::process::id())
}
