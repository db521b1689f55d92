//! Byte strings that an encoder takes out of the body.
//!
//! Owns the choice between body and tail, by size alone, and the list of byte strings that were
//! taken, with their places. Never sends anything.
//!
//! Both formats encode a byte string as its length, encoded like a u64, followed by its bytes. So
//! only the length is written, as a u64, and the place of the bytes is the end of the output at
//! that moment.
//!
//! Invariant: places grow, since the output does, and no part is empty.

use std::cell::{Cell, RefCell};
use std::fmt;

use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::read_error::ReadError;

use crate::bulk::{Bulk, Copies};
use crate::wire::{self, MAX_PARTS, Part};

/// Default minimum length of byte strings that are sent beside the body, bytes.
pub(crate) const DEFAULT_MIN_PART_BYTES: usize = 8 * 1024;

/// Decides which byte strings leave the body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placement<'a> {
    /// Byte strings of at least this many bytes become parts.
    pub(crate) min_part_bytes: usize,
    /// The pool for copies of byte strings that cannot be shared.
    pub(crate) pool: Pool<'a>,
}

/// Registered buffers, or a function that copies into one when needed.
#[derive(Clone, Copy)]
pub(crate) enum Pool<'a> {
    None,
    Of(&'a dyn Copies),
    /// Called only when there is something to copy; the function finds the pool.
    Ask(fn(&[u8]) -> Option<Bulk>),
}

impl fmt::Debug for Pool<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Of(_) => "Of",
            Self::Ask(_) => "Ask",
        })
    }
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
    /// Keeps everything in the body.
    pub(crate) const INLINE: Self = Self { min_part_bytes: usize::MAX, pool: Pool::None };
}

/// The byte strings that one encoding takes out of its body.
pub(super) struct Collector<'a> {
    placement: Placement<'a>,
    /// Length of the output at the start of the value.
    start: usize,
    /// Length of the output, as reported by the writers.
    written: Cell<usize>,
    // Boxed, because few bodies need it and every body has a collector.
    taken: RefCell<Option<Box<Taken>>>,
}

type Taken = Vec<(u32, Bulk)>;

impl<'a> Collector<'a> {
    #[inline]
    pub(super) fn new(placement: Placement<'a>, start: usize) -> Self {
        Self { placement, start, written: Cell::new(start), taken: RefCell::new(None) }
    }

    /// The writer calls this after each write.
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

    /// The place of the next byte; leaves room for one byte, as the length is written first.
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

    /// Makes the collected byte strings the tail of `out`, with the PARTS block in front of the
    /// body. Changes nothing if one of them cannot be read.
    #[inline]
    pub(super) fn finish(self, out: &mut OutBuf) -> Result<(), ReadError> {
        match self.taken.into_inner() {
            None => Ok(()),
            Some(taken) => attach(&taken, out),
        }
    }
}

#[cold]
fn attach(taken: &[(u32, Bulk)], out: &mut OutBuf) -> Result<(), ReadError> {
    if let Err(error) = taken.iter().try_for_each(|(_, bytes)| bytes.push_to(out)) {
        drop(out.take_tail());
        return Err(error);
    }
    wire::prepend_parts(out, taken.iter().map(|(at, bytes)| Part { at: *at, len: bytes.len() }));
    Ok(())
}
