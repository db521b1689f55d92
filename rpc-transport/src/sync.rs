//! The lock and the atomics for code that loom tests.
//!
//! Owns the choice between the real ones and loom's (`--cfg rpc_loom`, see `.ci/run`), so that loom
//! searches the code that runs in production.

#[cfg(not(rpc_loom))]
pub(crate) use crate::lock::Mutex;
#[cfg(not(rpc_loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32};

#[cfg(rpc_loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32};

/// loom's lock, without poisoning.
#[cfg(rpc_loom)]
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

#[cfg(rpc_loom)]
impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
