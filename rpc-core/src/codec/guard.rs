//! What one encoding or decoding keeps count of.
//!
//! Owns the element budget and, once something has failed, which rule it broke and where. Lives on
//! the stack of one call; allocates only on failure.

use std::cell::{Cell, RefCell};

use super::error::{CodecErrorKind, Step};

/// Budget and diagnosis of one encoding or decoding.
pub(super) struct Guard {
    limit: usize,
    claimed: Cell<usize>,
    broken: Cell<Option<CodecErrorKind>>,
    /// Innermost step first.
    path: RefCell<Vec<Step>>,
}

impl Guard {
    /// The budget is known only at the end: the number of bytes written.
    #[inline]
    pub(super) fn for_encoding() -> Self {
        Self::for_decoding(usize::MAX)
    }

    /// At most as many elements as the message has bytes.
    #[inline]
    pub(super) fn for_decoding(message_bytes: usize) -> Self {
        Self {
            limit: message_bytes,
            claimed: Cell::new(0),
            broken: Cell::new(None),
            path: RefCell::new(Vec::new()),
        }
    }

    /// Elements claimed so far.
    #[inline]
    pub(super) fn claimed(&self) -> usize {
        self.claimed.get()
    }

    /// Takes `count` elements from the budget; false when it does not hold them.
    #[inline]
    pub(super) fn claim(&self, count: usize) -> bool {
        match self.claimed.get().checked_add(count) {
            Some(claimed) if claimed <= self.limit => {
                self.claimed.set(claimed);
                true
            }
            _ => {
                self.broken.set(Some(CodecErrorKind::TooManyElements { limit: self.limit }));
                false
            }
        }
    }

    /// Notes which rule is broken.
    #[cold]
    pub(super) fn note(&self, kind: CodecErrorKind) {
        self.broken.set(Some(kind));
    }

    /// Notes one step of the way to what failed, from the inside out.
    #[cold]
    pub(super) fn step(&self, step: Step) {
        self.path.borrow_mut().push(step);
    }

    /// The rule noted, or else what the format itself said.
    #[cold]
    pub(super) fn kind_or(&self, other: CodecErrorKind) -> CodecErrorKind {
        self.broken.take().unwrap_or(other)
    }

    /// The way to what failed, outermost step first.
    #[cold]
    pub(super) fn into_path(self) -> Vec<Step> {
        let mut path = self.path.into_inner();
        path.reverse();
        path
    }
}
