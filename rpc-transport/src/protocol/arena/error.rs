//! The rules of the arena, as the errors of a peer that broke one.

use super::{Extent, MAX_ARENA_CHUNKS, MAX_ARENAS, MAX_EXTENTS};

/// The peer broke a rule of the arena; nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// Chunks are of 4 KiB to 64 MiB.
    #[error("chunk size of 2^{0} bytes, allowed is 2^12 to 2^26")]
    BadChunkSize(u8),
    /// All arenas of a direction have chunks of one size.
    #[error("chunk size of 2^{now} bytes, but that of the first arena is 2^{first}")]
    ChunkSizeChanged {
        /// Of the first arena.
        first: u8,
        /// Of this one.
        now: u8,
    },
    /// An arena has at least one chunk, and not too many.
    #[error("arena of {0} chunks, allowed is 1 to {MAX_ARENA_CHUNKS}")]
    BadChunkCount(u16),
    /// A number that is in use.
    #[error("arena {0} exists")]
    ArenaExists(u16),
    /// Too many arenas.
    #[error("arena beyond the limit of {MAX_ARENAS}")]
    TooManyArenas,
    /// Chunk numbers are 16 bits.
    #[error("chunks {0:?} pass the last chunk number")]
    BeyondChunkNumbers(Extent),
    /// Arenas share no chunk number.
    #[error("chunks {0:?} overlap those of another arena")]
    ArenasOverlap(Extent),
    /// Memory does not wrap around.
    #[error("arena at {0:#x} passes the end of the address space")]
    BeyondAddressSpace(u64),
    /// The arena would exceed the owner's budget.
    #[error("arena of {chunks} chunks is beyond the budget: {used} of {max} are in use")]
    OverBudget {
        /// Chunks asked for.
        chunks: u16,
        /// Chunks there are.
        used: u32,
        /// Chunks there may be.
        max: u32,
    },
    /// An arena that does not exist.
    #[error("arena {0} does not exist")]
    UnknownArena(u16),
    /// An arena is asked back once.
    #[error("arena {0} was already requested back")]
    AskedBackTwice(u16),
    /// An arena is given up only when asked for.
    #[error("arena {0} is given up without having been requested back")]
    NotAskedBack(u16),
    /// An arena is given up when all its chunks are free.
    #[error("arena {0} is given up while one of its chunks is in use")]
    GivenUpInUse(u16),
    /// A message in the arena has at least one extent.
    #[error("no extents")]
    NoExtents,
    /// A list of extents is bounded.
    #[error("{0} extents, at most {MAX_EXTENTS} are allowed")]
    TooManyExtents(usize),
    /// An extent has at least one chunk.
    #[error("extent of no chunks at {0}")]
    EmptyExtent(u16),
    /// Chunks that are in no arena.
    #[error("chunks {0:?} are in no arena")]
    UnknownChunks(Extent),
    /// An extent lies in one arena.
    #[error("chunks {0:?} lie in more than one arena")]
    CrossesArenas(Extent),
    /// A chunk appears once in a list.
    #[error("chunks {0:?} are listed twice")]
    DuplicateChunks(Extent),
    /// A message names chunks that hold another message, or whose release has not left yet.
    #[error("chunk {0} is in use")]
    ChunkInUse(u16),
    /// A release names a chunk that holds no announced message.
    #[error("release of chunk {0}, which holds no message")]
    NotAnnounced(u16),
    /// A message takes at most half of the chunks.
    #[error("message takes {chunks} chunks, but its share is {share}")]
    BeyondShare {
        /// Chunks named.
        chunks: u32,
        /// The share.
        share: u32,
    },
    /// Every chunk named has at least one byte, and no byte is outside.
    #[error("{written} bytes written in {chunks} chunks of 2^{log2_chunk} bytes")]
    WrittenMismatch {
        /// Bytes.
        written: u64,
        /// Chunks named.
        chunks: u32,
        /// Chunk size.
        log2_chunk: u8,
    },
    /// The operation is not known in this version.
    #[error("unknown arena operation {0}")]
    UnknownOperation(u8),
    /// Fields that an operation does not use are 0.
    #[error("arena block with a field that must be 0")]
    ReservedNotZero,
}
