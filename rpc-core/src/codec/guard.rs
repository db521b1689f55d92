//! The limits of one encoding or decoding.
//!
//! Owns the budgets of elements, memory and stack and, after a failure, the broken rule and the
//! path to it. Lives on the stack of one call: stack use is measured from its address. Allocates
//! only on failure.

use std::cell::Cell;

use super::error::{CodecErrorKind, MAX_STACK_BYTES, Step};

/// Memory that the elements of a message may take per byte of the message, bytes: an empty
/// `String`, one byte on the wire, takes 24.
const MEMORY_PER_BYTE: usize = 64;
/// Memory that elements may take in a message of any length, bytes.
const FREE_MEMORY_BYTES: usize = 16 << 20;

/// The limit of an encoding that may omit fields.
const LEAVES_OUT: usize = usize::MAX - 1;
/// The limit of an encoding with names, which can express what is omitted.
#[cfg(feature = "msgpack")]
const NAMES: usize = usize::MAX - 2;
/// Added to the claimed elements when a field was omitted: such an encoding is checked again.
const HAS_LEFT_OUT: usize = 1 << (usize::BITS - 2);

/// Budget and diagnosis of one encoding or decoding.
pub(super) struct Guard {
    limit: usize,
    claimed: Cell<usize>,
    /// Bytes of memory that elements take, without what they own on the heap.
    memory: Cell<usize>,
    // Boxed, because few messages need it and every message has a guard.
    diagnosis: Cell<Option<Box<Diagnosis>>>,
}

/// What failed, and where.
#[derive(Default)]
struct Diagnosis {
    broken: Option<CodecErrorKind>,
    /// The omitted fields.
    left_out: Vec<&'static str>,
    /// Innermost step first.
    path: Vec<Step>,
}

impl Guard {
    /// A guard for encoding: the budget, the number of bytes written, is known only at the end.
    /// `may` is whether fields can be omitted at all (serde's `skip_serializing_if`).
    #[inline]
    pub(super) fn for_encoding(may_leave_out: bool) -> Self {
        Self::for_decoding(if may_leave_out { LEAVES_OUT } else { usize::MAX })
    }

    /// A guard for encoding in a format that names fields.
    #[cfg(feature = "msgpack")]
    pub(super) fn for_names() -> Self {
        Self::for_decoding(NAMES)
    }

    /// Whether the format that is encoded in names fields.
    #[inline]
    pub(super) fn has_names(&self) -> bool {
        #[cfg(feature = "msgpack")]
        return self.limit == NAMES;
        #[cfg(not(feature = "msgpack"))]
        return false;
    }

    /// Records that a field is omitted; false if it must not be.
    #[cold]
    pub(super) fn leave_out(&self, field: &'static str) -> bool {
        if self.limit != LEAVES_OUT {
            return false;
        }
        self.claimed.set(self.claimed.get() | HAS_LEFT_OUT);
        self.diagnose(|diagnosis| diagnosis.left_out.push(field));
        true
    }

    /// Whether `claimed` is within `limit`, for an encoding that may have omitted fields: each must
    /// be one that `may` be omitted.
    #[cold]
    pub(super) fn fits(&self, limit: usize, may: impl Fn(&str) -> bool) -> bool {
        let mut refused = None;
        self.diagnose(|diagnosis| refused = diagnosis.left_out.iter().copied().find(|it| !may(it)));
        if let Some(field) = refused {
            self.note(CodecErrorKind::SkippedField);
            self.step(Step::Field(field));
        }
        refused.is_none() && self.claimed() & !HAS_LEFT_OUT <= limit
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
        let Diagnosis { broken, mut path, .. } = *self.diagnosis.into_inner().unwrap_or_default();
        path.reverse();
        (broken, path)
    }
}
