//! Blocks: bytes of files in transit. The one place that knows their representation.
//!
//! Owns the type that travels in arguments and results, and how it is filled from a file and
//! written to one. An outgoing block is filled in memory that the device sends from; an incoming
//! one is written from the memory it arrived in. Neither is copied in between.

use std::fmt;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rpc_core::bulk::BulkMut;
use rpc_core::{Bulk, BulkPool};
use serde::{Deserialize, Serialize};

use super::sums::{Sum, leaf_sums, read_full, sum};

/// Bytes of one file, or of several small ones one after the other.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Block(Bulk);

impl Block {
    /// Its size, bytes.
    pub(crate) fn len(&self) -> u64 {
        self.0.len()
    }

    /// Writes part of it to a file. Returns `None` if it has no such part. Nobody else may use the
    /// file's position.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn write_to(
        &self,
        part: Range<u64>,
        mut file: &File,
        offset: u64,
    ) -> io::Result<Option<()>> {
        if part.start > part.end || part.end > self.len() {
            return Ok(None);
        }
        let part = self.0.slice(part);
        match part.as_slice() {
            Some(bytes) => file.write_all_at(bytes, offset)?,
            None => {
                file.seek(SeekFrom::Start(offset))?;
                part.write_to(file)?;
            }
        }
        Ok(Some(()))
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

/// A block that is being filled.
#[derive(Debug)]
pub(crate) struct BlockBuf {
    memory: Memory,
    filled: usize,
}

/// The memory of a block that is being filled.
#[derive(Debug)]
enum Memory {
    /// Memory that a connection's device sends from.
    Pooled(BulkMut),
    /// Anywhere.
    Own(Vec<u8>),
}

impl BlockBuf {
    /// A buffer of `bytes` bytes: one of the pool, if there is a pool and it has any.
    pub(crate) fn new(pool: Option<&BulkPool>, bytes: usize) -> Self {
        let pooled = pool.and_then(|pool| pool.take(bytes).ok());
        let memory = pooled.map_or_else(|| Memory::Own(vec![0; bytes]), Memory::Pooled);
        Self { memory, filled: 0 }
    }

    /// Bytes in it.
    pub(crate) fn len(&self) -> usize {
        self.filled
    }

    /// Adds bytes of a file, at most `bytes` and as many as there is room for. Returns their
    /// number, which is smaller where the file ends.
    ///
    /// # Errors
    /// The system's; nothing is added then.
    pub(crate) fn read_from(
        &mut self,
        file: &File,
        offset: u64,
        bytes: usize,
    ) -> io::Result<usize> {
        let room = match &mut self.memory {
            Memory::Pooled(buffer) => &mut buffer[self.filled..],
            Memory::Own(bytes) => &mut bytes[self.filled..],
        };
        let bytes = bytes.min(room.len());
        let read = read_full(file, offset, &mut room[..bytes])?;
        self.filled += read;
        Ok(read)
    }

    /// The checksum of the bytes added from `from` on.
    pub(crate) fn sum(&self, from: usize) -> Sum {
        sum(&self.bytes()[from..])
    }

    /// The checksums of the leaves.
    pub(crate) fn sums(&self) -> Vec<Sum> {
        leaf_sums(self.bytes())
    }

    fn bytes(&self) -> &[u8] {
        match &self.memory {
            Memory::Pooled(buffer) => &buffer[..self.filled],
            Memory::Own(bytes) => &bytes[..self.filled],
        }
    }

    /// Removes the bytes added from `from` on.
    pub(crate) fn truncate(&mut self, from: usize) {
        self.filled = self.filled.min(from);
    }

    /// The block.
    pub(crate) fn freeze(self) -> Block {
        let whole = match self.memory {
            Memory::Pooled(buffer) => buffer.freeze(),
            Memory::Own(bytes) => Bulk::from(bytes),
        };
        Block(whole.slice(0..self.filled as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use examples::testing::Scratch;

    #[test]
    fn block_reads_and_writes_files_in_place() {
        let dir = Scratch::new();
        std::fs::write(dir.path().join("in"), b"0123456789").unwrap();
        let from = File::open(dir.path().join("in")).unwrap();
        let mut buffer = BlockBuf::new(None, 8);
        assert_eq!(buffer.read_from(&from, 2, 3).unwrap(), 3);
        assert_eq!(buffer.read_from(&from, 8, 3).unwrap(), 2);
        assert_eq!(buffer.sum(3), sum(b"89"));
        assert_eq!(buffer.read_from(&from, 0, 9).unwrap(), 3);
        buffer.truncate(6);
        assert_eq!(buffer.sums(), [sum(b"234890")]);
        let block = buffer.freeze();
        let to = File::create_new(dir.path().join("out")).unwrap();
        assert_eq!(block.write_to(1..6, &to, 1).unwrap(), Some(()));
        assert_eq!(std::fs::read(dir.path().join("out")).unwrap(), b"\x0034890");
        assert_eq!(block.write_to(1..7, &to, 1).unwrap(), None);
        #[allow(clippy::reversed_empty_ranges, reason = "a peer may ask for it")]
        let reversed = block.write_to(3..2, &to, 1).unwrap();
        assert_eq!(reversed, None);
    }
}
