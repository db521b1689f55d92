//! What one encoding or decoding keeps count of.
//!
//! Owns the element budget and, once something has failed, which rule it broke and where. Lives on
//! the stack of one call; allocates only on failure.

use std::cell::Cell;

use super::error::{CodecErrorKind, Step};

/// Budget and diagnosis of one encoding or decoding.
pub(super) struct Guard {
    limit: usize,
    claimed: Cell<usize>,
    // Boxed: nearly all need none, and each is made and dropped with its message.
    diagnosis: Cell<Option<Box<Diagnosis>>>,
}

/// What went wrong, and where.
#[derive(Default)]
struct Diagnosis {
    broken: Option<CodecErrorKind>,
    /// Innermost step first.
    path: Vec<Step>,
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
        Self { limit: message_bytes, claimed: Cell::new(0), diagnosis: Cell::new(None) }
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
                self.note(CodecErrorKind::TooManyElements { limit: self.limit });
                false
            }
        }
    }

    fn diagnose(&self, add: impl FnOnce(&mut Diagnosis)) {
        let mut diagnosis = self.diagnosis.take().unwrap_or_default();
        add(&mut diagnosis);
        self.diagnosis.set(Some(diagnosis));
    }

    /// Notes which rule is broken.
    #[cold]
    pub(super) fn note(&self, kind: CodecErrorKind) {
        self.diagnose(|diagnosis| diagnosis.broken = Some(kind));
    }

    /// Notes one step of the way to what failed, from the inside out.
    #[cold]
    pub(super) fn step(&self, step: Step) {
        self.diagnose(|diagnosis| diagnosis.path.push(step));
    }

    /// The rule noted, if any; and the way to what failed, outermost step first.
    #[cold]
    pub(super) fn into_diagnosis(self) -> (Option<CodecErrorKind>, Vec<Step>) {
        let Diagnosis { broken, mut path } = *self.diagnosis.into_inner().unwrap_or_default();
        path.reverse();
        (broken, path)
    }
}
