//! User code: where it may run, and what a panic in it costs.
//!
//! **Owns** the rule that no user code runs under a lock of this crate: neither handlers nor wakers
//! nor destructors nor log subscribers. User code may call back, block or panic. Debug builds check
//! the rule: a thread that holds a shard or a [`Mutex`](crate::lock::Mutex) panics as soon as it
//! runs user code, and a thread that holds a shard also panics when it locks a shard again. Lines
//! that [`logged`] receives under the lock of a shard are kept until the thread has released it and
//! has woken the waiting tasks: a subscriber may wait for those tasks.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Whether this thread holds a shard, and has lines to log afterwards.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    No,
    Yes,
    /// A shard, and lines to log after its release.
    WithLog,
}

thread_local! {
    static HOLDS: Cell<Holds> = const { Cell::new(Holds::No) };
    static LOG: RefCell<Vec<Box<dyn FnOnce()>>> = const { RefCell::new(Vec::new()) };
}

#[cfg(debug_assertions)]
thread_local! {
    /// Mutexes that this thread holds.
    static MUTEXES: Cell<u32> = const { Cell::new(0) };
}

/// Marks this thread as holding a mutex until this is dropped, right after the mutex was released.
/// Costs nothing in release builds.
#[derive(Debug)]
pub(crate) struct HoldsMutex(());

impl HoldsMutex {
    #[inline]
    pub(crate) fn begin() -> Self {
        #[cfg(debug_assertions)]
        MUTEXES.with(|held| held.set(held.get() + 1));
        Self(())
    }
}

impl Drop for HoldsMutex {
    #[inline]
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        let _ = MUTEXES.try_with(|held| held.set(held.get().saturating_sub(1)));
    }
}

#[cfg(debug_assertions)]
fn holds_mutex() -> bool {
    MUTEXES.try_with(|held| held.get() > 0).unwrap_or_default()
}

#[cfg(not(debug_assertions))]
fn holds_mutex() -> bool {
    false
}

/// Whether this thread holds a lock of this crate, so that user code must not run. Release builds
/// know of shards only.
#[must_use]
pub fn holds_lock() -> bool {
    HOLDS.get() != Holds::No || holds_mutex()
}

/// Marks this thread as holding the lock of a shard until this is dropped, right after the lock was
/// released.
#[derive(Debug)]
pub struct HoldsShard(());

impl HoldsShard {
    /// Call it before taking the lock: user code that runs under one and wants it again then panics
    /// instead of hanging.
    ///
    /// # Panics
    /// In debug builds, when the thread holds a shard already.
    #[inline]
    #[must_use]
    pub fn begin() -> Self {
        HOLDS.with(|holds| {
            debug_assert!(
                holds.get() == Holds::No,
                "this thread holds a shard already: user code runs under its lock"
            );
            holds.set(Holds::Yes);
        });
        Self(())
    }
}

impl HoldsShard {
    /// The lock was released. Lines logged under it are logged when the returned value is dropped.
    #[inline]
    pub(crate) fn end(self) -> KeptLog {
        std::mem::forget(self);
        KeptLog(HOLDS.replace(Holds::No) == Holds::WithLog)
    }
}

impl Drop for HoldsShard {
    #[inline]
    fn drop(&mut self) {
        drop(KeptLog(HOLDS.replace(Holds::No) == Holds::WithLog));
    }
}

/// Lines that were logged under the lock of a shard, if any: logged when this is dropped.
#[must_use = "dropped last"]
#[derive(Debug)]
pub(crate) struct KeptLog(bool);

impl Drop for KeptLog {
    #[inline]
    fn drop(&mut self) {
        if self.0 {
            log_all();
        }
    }
}

/// Logs the kept lines. A subscriber that panics does not affect the others.
#[cold]
fn log_all() {
    for log in LOG.try_with(RefCell::take).unwrap_or_default() {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(log)) {
            std::mem::forget(panic);
        }
    }
}

/// Logs. Subscribers of `tracing` are user code, so a thread that holds a shard logs after it has
/// released the shard. For rare lines: under a lock this allocates.
#[cold]
pub fn logged(log: impl FnOnce() + 'static) {
    if HOLDS.get() == Holds::No {
        assert_may_run("a log line is written");
        return log();
    }
    HOLDS.set(Holds::WithLog);
    // A thread that is ending drops the line.
    let _ = LOG.try_with(|kept| kept.borrow_mut().push(Box::new(log)));
}

/// Call it where user code is about to run: panics in debug builds, when this thread holds a lock.
#[inline]
#[track_caller]
pub fn assert_may_run(what: &str) {
    debug_assert!(
        std::thread::panicking() || !holds_lock(),
        "{what} under a lock: it must leave the lock first"
    );
}

/// Runs user code. A panic is logged and ends here: the code that follows belongs to other users.
pub fn caught<T>(run: impl FnOnce() -> T) -> Option<T> {
    assert_may_run("user code runs");
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(value) => Some(value),
        Err(panic) => {
            on_panic(panic);
            None
        }
    }
}

#[cold]
fn on_panic(panic: Box<dyn Any + Send>) {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(not a text)");
    tracing::error!(panic = text, "user code has panicked");
    // The panic payload may itself panic when dropped; nobody needs it any more.
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(second);
    }
}

/// Keeps user memory alive until nobody needs the bytes any more. Clones share it.
///
/// Its destructor is user code: it runs outside every lock of a shard, and a panic of it is logged
/// and ends there, so that several may panic one after the other.
#[derive(Clone)]
pub(crate) struct UserOwner(Option<Arc<dyn Any + Send + Sync>>);

impl UserOwner {
    pub(crate) fn new(owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self(Some(owner))
    }
}

impl Drop for UserOwner {
    fn drop(&mut self) {
        let Some(owner) = self.0.take() else { return };
        if Arc::strong_count(&owner) > 1 {
            // Another owner drops it, unless that happens right now.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(owner))) {
                on_panic(panic);
            }
            return;
        }
        caught(|| drop(owner));
    }
}

impl fmt::Debug for UserOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UserOwner")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_logged_under_the_lock_follow_its_release() {
        thread_local!(static SAID: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) });
        let say = |number| {
            logged(move || {
                // The subscriber takes the lock too.
                drop(HoldsShard::begin());
                SAID.with_borrow_mut(|said| said.push(number));
            });
        };
        say(1);
        let holds = HoldsShard::begin();
        say(2);
        logged(|| panic!("on purpose"));
        say(3);
        assert_eq!(SAID.with_borrow(Vec::clone), [1]);
        drop(holds);
        assert_eq!(SAID.with_borrow(Vec::clone), [1, 2, 3]);
        drop(HoldsShard::begin());
        assert_eq!(SAID.take(), [1, 2, 3]);
    }
}
