//! The arena: chunks of memory into which a peer writes large messages by one-sided WRITE.
//!
//! An arena belongs to the *receiver* of the messages, per connection and direction; the *sender*
//! allocates in it, so that no round trip is needed before a write. The owner adds whole arenas on
//! demand and asks them back when they are idle; chunk numbers run through all arenas.
//!
//! ```text
//! writer:  Free -> Writing -> Announced -> Free          owner:  Free -> Held -> Releasing -> Free
//!          allocate  announce     on_release                    on_message  release  take_releases
//! ```
//!
//! **Owns** the state of each chunk, and so which end may access it now: [`ArenaWriter`] at the
//! sender, [`ArenaOwner`] at the receiver. **Never** holds memory, posts or reads a clock: time is
//! an argument, and the caller writes, reads and registers the bytes.
//!
//! Rules, between the two ends (`docs/wire-format.md` has the bytes):
//!
//! 1. A chunk belongs to at most one message, from `allocate` to the arrival of its release.
//! 2. A message, or a segment of one, takes at most half of the chunks (one, if there is just one)
//!    in at most [`MAX_EXTENTS`] extents; an extent lies in one arena.
//! 3. The application holds at most half of the chunks; messages beyond that are copied out and
//!    released by the transport itself. So the other half is always released without the
//!    application, and a writer that waits for chunks waits only for the transport.
//! 4. A writer waits only while chunks are missing, never because the free ones are scattered (it
//!    then sends a part), and never without an arena (it then sends without one).
//! 5. An arena goes away in two steps: the owner asks it back, and the writer gives it up once all
//!    its chunks are free. Only then may the owner deregister it.
//! 6. Breaking a rule is an [`ArenaError`] and changes nothing. [`MAX_ARENAS`] and the 2^16 chunk
//!    numbers bound what a peer can make an end hold.

mod block;
mod error;
mod layout;
mod owner;
#[cfg(test)]
mod tests;
mod writer;

use std::ops::{Deref, Range, RangeInclusive};

pub use self::block::{ARENA_BLOCK_BYTES, ArenaBlock};
pub use self::error::ArenaError;
pub use self::owner::{ArenaConfig, ArenaOwner, Landed, Piece};
pub use self::writer::{Allocation, ArenaWrite, ArenaWriter};

/// Most extents of one message, and of one list of releases.
pub const MAX_EXTENTS: usize = 16;
/// Most arenas of one direction.
pub const MAX_ARENAS: usize = 64;
/// Most chunks of one arena.
pub const MAX_ARENA_CHUNKS: u16 = 4096;
/// Chunk sizes, as powers of two: 4 KiB to 64 MiB.
pub(crate) const CHUNK_LOG2: RangeInclusive<u8> = 12..=26;
/// Chunk numbers of one direction.
pub(crate) const CHUNK_NUMBERS: u32 = 1 << 16;

/// A run of chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Extent {
    /// The first chunk's number.
    pub first: u16,
    /// Chunks, at least 1.
    pub count: u16,
}

impl Extent {
    /// The bytes on the wire.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 4] {
        let ([f0, f1], [c0, c1]) = (self.first.to_le_bytes(), self.count.to_le_bytes());
        [f0, f1, c0, c1]
    }

    /// Reads what [`Extent::to_bytes`] wrote; [`ArenaOwner`] and [`ArenaWriter`] check it.
    #[must_use]
    pub const fn from_bytes([f0, f1, c0, c1]: [u8; 4]) -> Self {
        Self { first: u16::from_le_bytes([f0, f1]), count: u16::from_le_bytes([c0, c1]) }
    }

    fn end(self) -> u32 {
        u32::from(self.first) + u32::from(self.count)
    }

    fn chunks(self) -> Range<usize> {
        usize::from(self.first)..usize::from(self.first) + usize::from(self.count)
    }

    fn overlaps(self, other: Self) -> bool {
        u32::from(self.first) < other.end() && u32::from(other.first) < self.end()
    }
}

/// Up to [`MAX_EXTENTS`] extents. Dereferences to a slice.
#[derive(Debug, Clone, Copy, Default)]
pub struct Extents {
    list: [Extent; MAX_EXTENTS],
    len: usize,
}

impl Extents {
    /// Copies a list.
    ///
    /// # Errors
    /// [`ArenaError::TooManyExtents`].
    pub fn from_slice(extents: &[Extent]) -> Result<Self, ArenaError> {
        let mut list = Self::default();
        for extent in extents {
            if !list.push(*extent) {
                return Err(ArenaError::TooManyExtents(extents.len()));
            }
        }
        Ok(list)
    }

    /// Chunks in all.
    #[must_use]
    pub fn chunk_count(&self) -> u32 {
        self.iter().map(|extent| u32::from(extent.count)).sum()
    }

    /// Adds an extent; returns false if there is no room.
    fn push(&mut self, extent: Extent) -> bool {
        let Some(slot) = self.list.get_mut(self.len) else { return false };
        *slot = extent;
        self.len += 1;
        true
    }
}

impl Deref for Extents {
    type Target = [Extent];

    fn deref(&self) -> &[Extent] {
        &self.list[..self.len]
    }
}

impl PartialEq for Extents {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Extents {}

/// An arena, as its owner advertises it to the writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Advertisement {
    /// Its number among the arenas of this direction.
    pub arena: u16,
    /// The number of its first chunk.
    pub first_chunk: u16,
    /// Chunks, 1 to [`MAX_ARENA_CHUNKS`].
    pub chunks: u16,
    /// Size of a chunk, as a power of two, 12 to 26; the same in all arenas of a direction.
    pub log2_chunk: u8,
    /// Remote key.
    pub rkey: u32,
    /// Address of the first chunk, as the owner's device knows it.
    pub address: u64,
}

impl Advertisement {
    fn extent(&self) -> Extent {
        Extent { first: self.first_chunk, count: self.chunks }
    }

    /// Where an extent of this arena starts, bytes from the arena's start.
    fn offset_of(&self, extent: Extent) -> u64 {
        (u64::from(extent.first) - u64::from(self.first_chunk)) << self.log2_chunk
    }
}

/// Rule 2: how many of `chunks` chunks one message may take.
fn half(chunks: u32) -> u32 {
    (chunks / 2).max(1)
}

/// Cuts the bytes of a message along its extents: each extent is filled before the next.
fn cut<'a>(
    extents: &'a Extents,
    log2_chunk: u8,
    bytes: u64,
) -> impl Iterator<Item = (Extent, Range<u64>)> + 'a {
    let mut at = 0;
    extents.iter().map(move |extent| {
        let start = at;
        at = bytes.min(start + (u64::from(extent.count) << log2_chunk));
        (*extent, start..at)
    })
}
