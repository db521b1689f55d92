//! The process that memory, descriptors and locks belong to: a child of `fork(2)` inherits objects
//! that belong to its parent.
//!
//! Owns the number of this process, and drops values only in the process that made them. Registered
//! memory, rings and sockets are shared with the parent, threads are missing, and a lock that one
//! of them held stays locked. So a child uses none of these, and drops none of them.
//!
//! Invariants:
//! 1. A child has another number than its parent before it runs any code of its own: the C library
//!    raises it inside `fork(2)`. (A raw `clone(2)` by user code is not noticed.)
//! 2. The check costs one load and takes no lock.
#![allow(
    unsafe_code,
    reason = "leaves out destructors, and asks the C library to be called at a fork"
)]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// Forks between the first process and this one.
static NUMBER: AtomicU32 = AtomicU32::new(0);
static IS_WATCHED: AtomicBool = AtomicBool::new(false);

/// Advice for errors about inherited objects, behind "which".
pub const FORKED: &str = "belongs to the process from which this one was forked (fork(2)): create \
                          a new one in the child";

/// Called by the C library in a child, before `fork` returns there.
extern "C" fn in_child() {
    NUMBER.fetch_add(1, Ordering::Relaxed);
}

/// A process, as an object remembers the one that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// This process. From now on its children are distinguished from it.
    #[must_use]
    pub fn current() -> Self {
        // Miri does not support forks.
        if !cfg!(miri) && !IS_WATCHED.swap(true, Ordering::Relaxed) {
            // SAFETY: the handler touches nothing but an atomic, as is allowed in a child.
            let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
            debug_assert_eq!(failed, 0, "no memory for a handler of forks");
        }
        Self(NUMBER.load(Ordering::Relaxed))
    }

    /// Whether this is the current process. False in each child that was forked since.
    #[inline]
    #[must_use]
    pub fn is_current(self) -> bool {
        self.0 == NUMBER.load(Ordering::Relaxed)
    }
}

/// A value that is used and dropped only by the process that made it. A child leaks its copy.
pub struct OfProcess<T> {
    value: ManuallyDrop<T>,
    process: Process,
}

impl<T> OfProcess<T> {
    /// A value of this process.
    pub fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), process: Process::current() }
    }

    /// Whether this process made it.
    #[inline]
    pub fn is_here(&self) -> bool {
        self.process.is_current()
    }

    /// The value; `None` in a child of the process that made it.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        self.is_here().then(|| &*self.value)
    }

    /// The value as a child of this process would find it.
    #[cfg(any(test, feature = "model"))]
    #[must_use]
    pub(crate) fn inherited(mut self) -> Self {
        self.process.0 ^= 1 << 31;
        self
    }

    /// The value.
    ///
    /// # Errors
    /// This value, in a child of the process that made it.
    pub fn into_inner(self) -> Result<T, Self> {
        if !self.is_here() {
            return Err(self);
        }
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not used again, nor dropped.
        Ok(unsafe { ManuallyDrop::take(&mut this.value) })
    }
}

/// Also in a child, for harmless uses such as reading what never changes.
impl<T> Deref for OfProcess<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for OfProcess<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for OfProcess<T> {
    #[inline]
    fn drop(&mut self) {
        if self.process.is_current() {
            // SAFETY: dropped once, and not used after this.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

impl<T: Default> Default for OfProcess<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: fmt::Debug> fmt::Debug for OfProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.get() {
            Some(value) => value.fmt(f),
            None => f.write_str("(of the parent process)"),
        }
    }
}

/// A static value per process: a child begins with the default and leaves the inherited value
/// alone, which may be locked for ever.
#[derive(Debug)]
pub struct PerProcess<T>(AtomicPtr<(Process, T)>);

impl<T: Default + Send + Sync> PerProcess<T> {
    /// No value yet.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "for statics")]
    pub const fn new() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// The value of this process, which lives as long as the process.
    pub fn get(&'static self) -> &'static T {
        let found = self.0.load(Ordering::Acquire);
        // SAFETY: null, or leaked by an earlier call.
        if let Some((process, value)) = unsafe { found.as_ref() }
            && process.is_current()
        {
            return value;
        }
        let new = Box::into_raw(Box::new((Process::current(), T::default())));
        match self.0.compare_exchange(found, new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: leaked just now.
            Ok(_) => unsafe { &(*new).1 },
            Err(other) => {
                // SAFETY: created just now, and not published.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: another thread of this process has leaked it.
                unsafe { &(*other).1 }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_child_leaks_what_it_inherits() {
        let kept = Arc::new(());
        drop(OfProcess::new(Arc::clone(&kept)));
        assert_eq!(Arc::strong_count(&kept), 1);
        let inherited = OfProcess::new(Arc::clone(&kept)).inherited();
        assert!(inherited.get().is_none() && !inherited.is_here());
        let inherited = inherited.into_inner().expect_err("it is not of this process");
        drop(inherited);
        assert_eq!(Arc::strong_count(&kept), 2);
    }

    #[test]
    fn a_static_is_the_same_in_one_process() {
        static COUNT: PerProcess<AtomicU32> = PerProcess::new();
        COUNT.get().fetch_add(1, Ordering::Relaxed);
        assert_eq!(COUNT.get().load(Ordering::Relaxed), 1);
    }
}
