//! The mutex for state that user code must not run under.
//!
//! Owns nothing but parking_lot's mutex, and in debug builds the record that this thread holds one:
//! see [`user_code`](crate::user_code). In release builds it is parking_lot's mutex, at the same
//! cost.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::user_code::HoldsMutex;

/// A mutex under which no user code runs and nothing is logged.
#[derive(Default)]
pub struct Mutex<T>(parking_lot::Mutex<T>);

impl<T> Mutex<T> {
    /// An unlocked mutex.
    #[inline]
    pub const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { guard: self.0.lock(), _holds: HoldsMutex::begin() }
    }

    /// The value, through exclusive access to the mutex.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }

    /// The value.
    #[inline]
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The held lock.
#[must_use = "if unused the mutex is unlocked at once"]
pub struct MutexGuard<'a, T> {
    // Field order is drop order: the lock is released first.
    guard: parking_lot::MutexGuard<'a, T>,
    _holds: HoldsMutex,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T: fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::user_code::{caught, holds_lock};

    #[test]
    #[cfg(debug_assertions)]
    fn user_code_under_a_mutex_is_found() {
        let (outer, inner) = (Mutex::new(1), Mutex::new(2));
        let held = outer.lock();
        drop(inner.lock());
        assert!(holds_lock(), "the outer one is held still");
        let run = std::panic::AssertUnwindSafe(|| caught(|| ()));
        assert!(std::panic::catch_unwind(run).is_err());
        drop(held);
        assert_eq!(caught(|| 3), Some(3));
        assert!(!holds_lock());
    }
}
