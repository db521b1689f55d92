//! Keeps the reason why a type's own `Serialize` or `Deserialize` rejected a value, even if the
//! format's error drops it.
//!
//! Owns the text of the last such rejection on this thread. The error type here is as large as the
//! format's own, so it costs nothing as long as nothing is rejected.

use std::cell::Cell;
use std::fmt;

use serde::{de, ser};

thread_local! {
    static LAST: Cell<Option<String>> = const { Cell::new(None) };
}

/// Takes the text of the last rejection.
#[cold]
pub(super) fn take() -> Option<String> {
    LAST.try_with(Cell::take).ok().flatten()
}

/// A format's error, as `Serialize` and `Deserialize` implementations see it.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct Noted<E>(pub(super) E);

impl<E> Noted<E> {
    #[inline]
    pub(super) fn into_inner(self) -> E {
        self.0
    }
}

#[cold]
fn note(reason: impl fmt::Display) -> String {
    let text = reason.to_string();
    // If the thread's locals are already destroyed, the text is not read.
    let _ = LAST.try_with(|last| last.set(Some(text.clone())));
    text
}

impl<E: ser::Error> ser::Error for Noted<E> {
    #[cold]
    fn custom<T: fmt::Display>(reason: T) -> Self {
        Self(E::custom(note(reason)))
    }
}

impl<E: de::Error> de::Error for Noted<E> {
    #[cold]
    fn custom<T: fmt::Display>(reason: T) -> Self {
        Self(E::custom(note(reason)))
    }
}

impl<E: std::error::Error> std::error::Error for Noted<E> {}

impl<E: fmt::Display> fmt::Display for Noted<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
