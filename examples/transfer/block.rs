//! Blocks: bytes of files on their way. The one place that knows what they are made of.
//!
//! Owns the type that travels in arguments and results, how it is filled from a file and written to
//! one, and the pool that its memory comes from: memory that is new to a process costs as much as
//! copying it.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::sums::{Sum, leaf_sums, read_full, sum};

/// Unused buffers that a pool keeps; more are given back to the system.
const KEPT_BUFFERS: usize = 32;

/// Bytes of one file, or of several small ones one after the other.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Block(Bytes);

impl Block {
    /// Its size, bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The checksums of its leaves.
    pub(crate) fn sums(&self) -> Vec<Sum> {
        leaf_sums(&self.0)
    }

    /// Writes part of it to a file. Gives nothing if it has no such part.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn write_to(
        &self,
        part: Range<usize>,
        file: &File,
        offset: u64,
    ) -> io::Result<Option<()>> {
        let Some(bytes) = self.0.get(part) else { return Ok(None) };
        file.write_all_at(bytes, offset).map(Some)
    }
}

impl From<Vec<u8>> for Block {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} bytes)", self.len())
    }
}

/// Buffers for blocks that are read from files.
#[derive(Debug, Default)]
pub(crate) struct BlockPool(Mutex<Vec<Vec<u8>>>);

impl BlockPool {
    /// A buffer to fill, of so many bytes.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> BlockBuf {
        let kept = self.0.lock().pop();
        let mut memory = kept.unwrap_or_default();
        if memory.len() < bytes {
            // Not grown: what is in there need not be copied.
            memory = vec![0; bytes];
        }
        BlockBuf { memory, filled: 0, room: bytes, pool: Arc::clone(self) }
    }
}

/// A block that is being filled.
#[derive(Debug)]
pub(crate) struct BlockBuf {
    memory: Vec<u8>,
    filled: usize,
    room: usize,
    pool: Arc<BlockPool>,
}

impl BlockBuf {
    /// Bytes in it.
    pub(crate) fn len(&self) -> usize {
        self.filled
    }

    /// Bytes that it still takes.
    pub(crate) fn room(&self) -> usize {
        self.room - self.filled
    }

    /// Adds bytes of a file, at most `bytes` and as many as there is room for. Gives how many they
    /// are; fewer where the file ends.
    ///
    /// # Errors
    /// The system's; nothing is added then.
    pub(crate) fn read_from(
        &mut self,
        file: &File,
        offset: u64,
        bytes: usize,
    ) -> io::Result<usize> {
        let bytes = bytes.min(self.room());
        let read = read_full(file, offset, &mut self.memory[self.filled..][..bytes])?;
        self.filled += read;
        Ok(read)
    }

    /// The checksum of what was added from `from` on.
    pub(crate) fn sum(&self, from: usize) -> Sum {
        sum(&self.memory[from..self.filled])
    }

    /// Takes back what was added from `from` on.
    pub(crate) fn truncate(&mut self, from: usize) {
        self.filled = self.filled.min(from);
    }

    /// The block. Its memory goes back to the pool with the last clone.
    pub(crate) fn freeze(self) -> Block {
        Block(Bytes::from_owner(self))
    }
}

impl AsRef<[u8]> for BlockBuf {
    fn as_ref(&self) -> &[u8] {
        &self.memory[..self.filled]
    }
}

impl Drop for BlockBuf {
    fn drop(&mut self) {
        let mut kept = self.pool.0.lock();
        if kept.len() < KEPT_BUFFERS {
            kept.push(std::mem::take(&mut self.memory));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Scratch;
    use super::*;

    #[test]
    fn a_block_holds_what_files_hold_and_writes_it_where_it_belongs() {
        let dir = Scratch::new();
        std::fs::write(dir.path().join("in"), b"0123456789").unwrap();
        let from = File::open(dir.path().join("in")).unwrap();
        let pool = Arc::new(BlockPool::default());
        let mut buffer = pool.take(8);
        assert_eq!(buffer.read_from(&from, 2, 3).unwrap(), 3);
        assert_eq!(buffer.read_from(&from, 8, 3).unwrap(), 2);
        assert_eq!((buffer.sum(3), buffer.room()), (sum(b"89"), 3));
        assert_eq!(buffer.read_from(&from, 0, 9).unwrap(), 3);
        buffer.truncate(6);
        let block = buffer.freeze();
        let to = File::create_new(dir.path().join("out")).unwrap();
        assert_eq!(block.write_to(1..6, &to, 1).unwrap(), Some(()));
        assert_eq!(std::fs::read(dir.path().join("out")).unwrap(), b"\x003489\x30");
        assert_eq!(block.write_to(1..7, &to, 1).unwrap(), None);
        assert_eq!(block.sums(), [sum(b"234890")]);
    }

    #[test]
    fn memory_comes_back_to_the_pool() {
        let pool = Arc::new(BlockPool::default());
        let block = pool.take(100).freeze();
        let clone = block.clone();
        drop(block);
        assert_eq!(pool.0.lock().len(), 0);
        drop(clone);
        assert_eq!(pool.0.lock().len(), 1);
        assert_eq!(pool.take(50).room(), 50);
        assert_eq!(pool.0.lock()[0].len(), 100);
    }
}
