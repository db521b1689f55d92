//! The limits of one encoding or decoding.
//!
//! Owns the budgets of elements, memory and stack and, after a failure, which rule was broken and
//! where. Lives on the stack of one call: stack use is measured from its address. Allocates only on
//! failure.

use std::cell::Cell;

use super::error::{CodecErrorKind, MAX_STACK_BYTES, Step};

/// Memory that the elements of a message may take for each of its bytes, bytes: an empty `String`
/// of one byte takes 24.
const MEMORY_PER_BYTE: usize = 64;
/// Memory that elements may take however short the message is, bytes.
const FREE_MEMORY_BYTES: usize = 16 << 20;

/// Budget and diagnosis of one encoding or decoding.
pub(super) struct Guard {
    limit: usize,
    claimed: Cell<usize>,
    /// Bytes of memory that elements take, without what they own on the heap.
    memory: Cell<usize>,
    // Boxed, because nearly no message needs it, and a guard is made for every message.
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
    /// A guard for encoding: the budget, the number of bytes written, is known only at the end.
    #[inline]
    pub(super) fn for_encoding() -> Self {
        Self::for_decoding(usize::MAX)
    }

    /// A guard for decoding: at most as many elements as the message has bytes.
    #[inline]
    pub(super) fn for_decoding(message_bytes: usize) -> Self {
        let (claimed, memory) = (Cell::new(0), Cell::new(0));
        Self { limit: message_bytes, claimed, memory, diagnosis: Cell::new(None) }
    }

    /// Elements claimed so far.
    #[inline]
    pub(super) fn claimed(&self) -> usize {
        self.claimed.get()
    }

    /// Takes `count` elements from the budget; false if that exceeds it.
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

    /// Takes the memory of `count` elements of `size` bytes from the budget; false if that exceeds
    /// it.
    #[inline]
    pub(super) fn claim_memory(&self, count: usize, size: usize) -> bool {
        let limit = self.limit.saturating_mul(MEMORY_PER_BYTE).saturating_add(FREE_MEMORY_BYTES);
        let claimed = self.memory.get().saturating_add(count.saturating_mul(size));
        if claimed <= limit {
            self.memory.set(claimed);
            return true;
        }
        self.note(CodecErrorKind::TooMuchMemory { limit });
        false
    }

    /// Whether there is stack for one more container. The stack used is the distance between a
    /// local variable's address and this guard's, which was made where decoding began.
    #[inline]
    pub(super) fn has_stack(&self) -> bool {
        let here = 0_u8;
        let used = (&raw const here).addr().abs_diff(std::ptr::from_ref(self).addr());
        if used <= MAX_STACK_BYTES {
            return true;
        }
        self.note(CodecErrorKind::TooMuchStack);
        false
    }

    fn diagnose(&self, add: impl FnOnce(&mut Diagnosis)) {
        let mut diagnosis = self.diagnosis.take().unwrap_or_default();
        add(&mut diagnosis);
        self.diagnosis.set(Some(diagnosis));
    }

    /// Records which rule was broken.
    #[cold]
    pub(super) fn note(&self, kind: CodecErrorKind) {
        self.diagnose(|diagnosis| diagnosis.broken = Some(kind));
    }

    /// Records one step of the path to what failed, from the inside out.
    #[cold]
    pub(super) fn step(&self, step: Step) {
        self.diagnose(|diagnosis| diagnosis.path.push(step));
    }

    /// The recorded rule, if any, and the path to what failed, outermost step first.
    #[cold]
    pub(super) fn into_diagnosis(self) -> (Option<CodecErrorKind>, Vec<Step>) {
        let Diagnosis { broken, mut path } = *self.diagnosis.into_inner().unwrap_or_default();
        path.reverse();
        (broken, path)
    }
}
