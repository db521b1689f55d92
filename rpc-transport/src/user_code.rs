//! User code: where it may run, and what a panic in it costs.
//!
//! **Owns** the rule that nothing of the user's runs under the lock of a shard, neither handlers nor
//! wakers nor destructors nor subscribers of the log: what the user makes may call back, block or panic.
//! Debug builds check it: a thread that holds a shard panics as soon as it lets go of user memory, or
//! locks a shard again. What is logged meanwhile is kept until the thread lets go.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Whether this thread holds a shard.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    No,
    Yes,
    /// And there is something to be logged when it lets go.
    WithLog,
}

thread_local! {
    static HOLDS: Cell<Holds> = const { Cell::new(Holds::No) };
    static LOG: RefCell<Vec<Box<dyn FnOnce()>>> = const { RefCell::new(Vec::new()) };
}

/// This thread holds the lock of a shard, until it is dropped: right after the lock was released.
#[derive(Debug)]
pub struct HoldsShard(());

impl HoldsShard {
    /// To be made before the lock is taken: user code that runs under one and wants it again is to
    /// be told, and not to hang.
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

impl Drop for HoldsShard {
    #[inline]
    fn drop(&mut self) {
        if HOLDS.replace(Holds::No) == Holds::WithLog {
            log_all();
        }
    }
}

/// Logs what was kept. A subscriber that panics costs nobody else anything.
#[cold]
fn log_all() {
    for log in LOG.try_with(RefCell::take).unwrap_or_default() {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(log)) {
            std::mem::forget(panic);
        }
    }
}

/// Logs: subscribers of `tracing` are the user's, so where this thread holds a shard, as soon as it has
/// let go. For what is rare: under a lock it allocates.
#[cold]
pub fn logged(log: impl FnOnce() + 'static) {
    if HOLDS.get() == Holds::No {
        return log();
    }
    HOLDS.set(Holds::WithLog);
    // A thread that ends keeps nothing any more.
    let _ = LOG.try_with(|kept| kept.borrow_mut().push(Box::new(log)));
}

/// To be called where user code is about to run: panics in debug builds, when this thread holds a
/// shard.
#[inline]
#[track_caller]
pub(crate) fn assert_may_run(what: &str) {
    debug_assert!(
        std::thread::panicking() || HOLDS.get() == Holds::No,
        "{what} under the lock of a shard: it must leave the lock first"
    );
}

/// Runs user code. A panic of it is logged and ends here: whatever runs behind it has other owners.
pub fn caught<T>(run: impl FnOnce() -> T) -> Option<T> {
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
    // What was thrown may itself panic when dropped; it is of no further use.
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(second);
    }
}

/// What keeps memory of the user's alive, and is dropped when nobody needs the bytes any more. Cloning
/// shares it.
///
/// Its destructor is the user's: it runs outside of every lock of a shard, and a panic of it is
/// logged and ends there, so that several may panic one after the other.
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
        if Arc::strong_count(&owner) == 1 {
            assert_may_run("the owner of a message's memory was dropped");
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
    fn what_is_logged_under_the_lock_is_said_when_it_is_released() {
        thread_local!(static SAID: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) });
        let say = |number| {
            logged(move || {
                // The subscriber takes the lock as well.
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
