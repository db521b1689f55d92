//! Returns: which connections have got arena chunks back from the application.
//!
//! Owns the list of them, which any thread adds to without the shard's lock, and the wake-up of a
//! driver that sleeps meanwhile. Never locks the shard.
//!
//! Invariant: what was added before [`Returns::sleep`] makes it say so; what is added after it
//! wakes the driver.

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use parking_lot::Mutex;

use super::ConnectionKey;

#[derive(Debug, Default)]
pub(crate) struct Returns {
    has_any: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    keys: Vec<ConnectionKey>,
    sleeper: Option<Waker>,
}

impl Returns {
    /// The connection should be pumped.
    pub(crate) fn add(&self, key: ConnectionKey) {
        let sleeper = {
            let mut inner = self.inner.lock();
            inner.keys.push(key);
            self.has_any.store(true, Ordering::Release);
            inner.sleeper.take()
        };
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
    }

    #[inline]
    pub(super) fn has_any(&self) -> bool {
        self.has_any.load(Ordering::Acquire)
    }

    pub(super) fn take(&self) -> Vec<ConnectionKey> {
        let mut inner = self.inner.lock();
        self.has_any.store(false, Ordering::Relaxed);
        std::mem::take(&mut inner.keys)
    }

    /// The driver is about to sleep; false if it must look first.
    pub(super) fn sleep(&self, waker: &Waker) -> bool {
        let mut inner = self.inner.lock();
        inner.sleeper = Some(waker.clone());
        inner.keys.is_empty()
    }
}
