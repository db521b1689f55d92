//! User code: where it may run, and what a panic in it costs.
//!
//! **Owns** the rule that nothing of the user's runs under the lock of a shard, neither handlers nor
//! wakers nor destructors: what the user makes may call back, block or panic. Debug builds check it:
//! a thread that holds a shard panics as soon as it lets go of user memory, or locks a shard again.
//!
//! **Never** runs anything itself.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

#[cfg(debug_assertions)]
thread_local! {
    static HOLDS_SHARD: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// This thread holds the lock of a shard, until it is dropped. Nothing in release builds.
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
        #[cfg(debug_assertions)]
        HOLDS_SHARD.with(|holds| {
            assert!(
                !holds.get(),
                "this thread holds a shard already: user code runs under its lock"
            );
            holds.set(true);
        });
        Self(())
    }
}

#[cfg(debug_assertions)]
impl Drop for HoldsShard {
    fn drop(&mut self) {
        HOLDS_SHARD.with(|holds| holds.set(false));
    }
}

/// To be called where user code is about to run: panics in debug builds, when this thread holds a
/// shard.
#[inline]
#[track_caller]
pub(crate) fn assert_may_run(what: &str) {
    #[cfg(debug_assertions)]
    if !std::thread::panicking() {
        assert!(
            !HOLDS_SHARD.try_with(std::cell::Cell::get).unwrap_or(false),
            "{what} under the lock of a shard: it must leave the lock first"
        );
    }
    #[cfg(not(debug_assertions))]
    let _ = what;
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
