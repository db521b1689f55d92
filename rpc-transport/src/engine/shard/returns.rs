//! The wake list: connections that got arena chunks back from the application.
//!
//! Owns the list, to which any thread adds without the shard's lock, and the wake-up of a sleeping
//! driver. Never locks the shard.
//!
//! Invariant: a connection added before [`WakeList::sleep`] makes it return false; one added after
//! it wakes the driver.

use std::sync::atomic::Ordering;
use std::task::Waker;

use super::ConnectionKey;
use crate::sync::{AtomicBool, Mutex};

#[derive(Debug, Default)]
pub(crate) struct WakeList {
    has_any: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    keys: Vec<ConnectionKey>,
    sleeper: Option<Waker>,
}

impl WakeList {
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

    /// The driver is about to sleep; false if the list is not empty and it must look first.
    pub(super) fn sleep(&self, waker: &Waker) -> bool {
        let mut inner = self.inner.lock();
        inner.sleeper = Some(waker.clone());
        inner.keys.is_empty()
    }
}

/// Every interleaving: `RUSTFLAGS="--cfg rpc_loom"`.
#[cfg(all(test, rpc_loom))]
mod loom_tests {
    use std::sync::Arc;
    use std::task::Wake;

    use loom::thread;

    use super::*;

    struct Driver(AtomicBool);

    impl Wake for Driver {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Release);
        }
    }

    /// Two connections are added while the driver looks and goes to sleep, as far as it may.
    /// Returns how many it has found, having looked again if anything woke it.
    fn found(heeds: bool) -> usize {
        let returns = Arc::new(WakeList::default());
        let driver = Arc::new(Driver(AtomicBool::new(false)));
        let adder = {
            let returns = Arc::clone(&returns);
            thread::spawn(move || {
                for index in 1..=2 {
                    returns.add(ConnectionKey { index, generation: 1 });
                }
            })
        };
        let waker = Waker::from(Arc::clone(&driver));
        let mut found = 0;
        if returns.has_any() {
            found += returns.take().len();
        }
        let may_sleep = returns.sleep(&waker);
        if !may_sleep && heeds {
            found += returns.take().len();
        }
        adder.join().unwrap();
        if driver.0.load(Ordering::Acquire) {
            found += returns.take().len();
        }
        assert!(found < 2 || !returns.has_any(), "nothing is left, and it says that there is");
        found
    }

    #[test]
    fn no_connection_is_slept_through() {
        loom::model(|| assert_eq!(found(true), 2, "slept through a connection"));
    }

    #[test]
    #[should_panic(expected = "slept through a connection")]
    fn sleeping_despite_a_return_misses_it() {
        loom::model(|| assert_eq!(found(false), 2, "slept through a connection"));
    }
}
