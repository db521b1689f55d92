//! A buffer of a pool while it is being filled.
//!
//! Invariant: it has one writer, and no reader before it is frozen.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use rpc_transport::memory::region::Buffer;

use super::{Bulk, Memory};

/// A registered buffer with one owner, which fills it and then [`freeze`](BulkMut::freeze)s it to
/// send it. Returns to its pool when it, or the last handle of the frozen [`Bulk`], is dropped.
pub struct BulkMut {
    buffer: Buffer,
    len: usize,
}

impl BulkMut {
    pub(super) fn of(buffer: Buffer, len: usize) -> Self {
        Self { buffer, len }
    }

    /// Truncates it to `len` bytes; no effect if it is shorter.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// The maximum length, bytes.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.buffer.len()
    }

    /// Sets the length to `len` bytes; added bytes have arbitrary values.
    ///
    /// # Panics
    /// If `len` exceeds the [`capacity`](BulkMut::capacity).
    pub fn resize(&mut self, len: usize) {
        let capacity = self.capacity();
        assert!(len <= capacity, "{len} bytes in a buffer of {capacity}");
        self.len = len;
    }

    /// Turns it into an immutable [`Bulk`], without a copy.
    #[must_use]
    pub fn freeze(self) -> Bulk {
        let Self { buffer, len } = self;
        Bulk(Memory::Pooled { buffer: Arc::new(buffer), start: 0, len })
    }
}

impl Deref for BulkMut {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[..self.len]
    }
}

impl DerefMut for BulkMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.len]
    }
}

impl From<BulkMut> for Bulk {
    fn from(buffer: BulkMut) -> Self {
        buffer.freeze()
    }
}

impl fmt::Debug for BulkMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BulkMut({} of {} bytes)", self.len, self.capacity())
    }
}
