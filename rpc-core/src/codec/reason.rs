//! Why a type's own `Serialize` refuses a value, whether or not the format's error keeps it.
//!
//! Owns the text of the last such refusal on this thread. The error type here is as large as the
//! format's own, so it costs nothing where nothing is refused.

use std::cell::Cell;
use std::fmt;

use serde::ser::Error;

thread_local! {
    static LAST: Cell<Option<String>> = const { Cell::new(None) };
}

/// Takes the text of the last refusal.
#[cold]
pub(super) fn take() -> Option<String> {
    LAST.try_with(Cell::take).ok().flatten()
}

/// A format's error, as the encoded types see it.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct Noted<E>(pub(super) E);

impl<E> Noted<E> {
    #[inline]
    pub(super) fn into_inner(self) -> E {
        self.0
    }
}

impl<E: Error> Error for Noted<E> {
    #[cold]
    fn custom<T: fmt::Display>(reason: T) -> Self {
        let text = reason.to_string();
        let error = E::custom(&text);
        // If the thread's locals are already destroyed, nobody reads the text.
        let _ = LAST.try_with(|last| last.set(Some(text)));
        Self(error)
    }
}

impl<E: Error> std::error::Error for Noted<E> {}

impl<E: fmt::Display> fmt::Display for Noted<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
