//! Byte strings that an encoder takes out of the body.
//!
//! Owns the choice between body and tail, by size alone, and the list of what was taken with its
//! places. Never sends anything.
//!
//! Both formats write a byte string as its length, in the way of a u64, and then its bytes; so the
//! length is written as a u64, and the bytes belong where the output then ends.
//!
//! Invariant: places grow, since the output does, and no part is empty.

use std::cell::{Cell, RefCell};

use rpc_transport::message::outgoing::OutBuf;

use crate::bulk::{Bulk, BulkPool};
use crate::wire::{self, MAX_PARTS, Part};

/// Where byte strings of a body go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placement<'a> {
    /// Byte strings of at least so many bytes become parts.
    pub(crate) min_part_bytes: usize,
    /// Where those are copied to that cannot be shared.
    pub(crate) pool: Pool<'a>,
}

/// Registered buffers, or where to ask for some when they are needed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pool<'a> {
    None,
    Of(&'a BulkPool),
    /// Asked only when there is something to copy: which pool it is, the caller knows.
    Ask(fn(&[u8]) -> Option<Bulk>),
}

impl Pool<'_> {
    fn copy_of(self, bytes: &[u8]) -> Option<Bulk> {
        match self {
            Self::None => None,
            Self::Of(pool) => pool.copy_of(bytes),
            Self::Ask(copy_of) => copy_of(bytes),
        }
    }
}

impl Placement<'_> {
    /// Everything stays in the body.
    pub(crate) const INLINE: Self = Self { min_part_bytes: usize::MAX, pool: Pool::None };
}

/// What one encoding takes out of its body.
pub(super) struct Collector<'a> {
    placement: Placement<'a>,
    /// Length of the output when the value began.
    start: usize,
    /// Length of the output, as the writers tell it.
    written: Cell<usize>,
    // Boxed: nearly all bodies have none, and each has a collector.
    taken: RefCell<Option<Box<Taken>>>,
}

type Taken = Vec<(u32, Bulk)>;

impl<'a> Collector<'a> {
    #[inline]
    pub(super) fn new(placement: Placement<'a>, start: usize) -> Self {
        Self { placement, start, written: Cell::new(start), taken: RefCell::new(None) }
    }

    /// To be told by the writer after each write.
    #[inline]
    pub(super) fn on_written(&self, output_bytes: usize) {
        self.written.set(output_bytes);
    }

    /// Whether a byte string of that length becomes a part.
    #[inline]
    pub(super) fn takes(&self, len: usize) -> bool {
        len >= self.placement.min_part_bytes && len > 0 && self.has_room()
    }

    #[cold]
    fn has_room(&self) -> bool {
        let count = self.taken.borrow().as_ref().map_or(0, |taken| taken.len());
        count < usize::from(MAX_PARTS) && self.place().is_some()
    }

    /// Where the next byte goes; one byte of room is left for the length to be written first.
    fn place(&self) -> Option<u32> {
        const LONGEST_LENGTH: usize = 10;
        let at = self.written.get() - self.start;
        u32::try_from(at + LONGEST_LENGTH).ok()?;
        u32::try_from(at).ok()
    }

    /// Takes bytes whose length has been written.
    pub(super) fn push(&self, bytes: Bulk) {
        if let Some(at) = self.place() {
            self.taken.borrow_mut().get_or_insert_default().push((at, bytes));
        }
    }

    /// A copy of bytes that cannot be shared.
    #[cold]
    pub(super) fn stage(&self, bytes: &[u8]) -> Bulk {
        match self.placement.pool.copy_of(bytes) {
            Some(copy) => copy,
            None => Bulk::from(bytes.to_vec()),
        }
    }

    /// Length of a body of `written` bytes with its parts put back.
    #[cold]
    pub(super) fn total(&self, written: usize) -> usize {
        let taken: u64 = self
            .taken
            .borrow()
            .iter()
            .flat_map(|taken| &**taken)
            .map(|(_, bytes)| bytes.len())
            .sum();
        usize::try_from(taken).unwrap_or(usize::MAX).saturating_add(written)
    }

    /// Makes what was taken the tail of `out`, with the PARTS block in front of the body.
    #[inline]
    pub(super) fn finish(self, out: &mut OutBuf) {
        if let Some(taken) = self.taken.into_inner() {
            attach(&taken, out);
        }
    }
}

#[cold]
fn attach(taken: &[(u32, Bulk)], out: &mut OutBuf) {
    wire::prepend_parts(out, taken.iter().map(|(at, bytes)| Part { at: *at, len: bytes.len() }));
    for (_, bytes) in taken {
        bytes.push_to(out);
    }
}
