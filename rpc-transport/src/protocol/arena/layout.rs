//! The layout: which arenas a direction has, and where their chunks lie.
//!
//! Owns the list of arenas; both ends use it. Never knows what a chunk holds.
//!
//! Invariants: arenas share no chunk number and no arena number, all have one chunk size, and no
//! extent that [`Layout::locate`] accepts leaves its arena.

use super::{
    Advertisement, ArenaError, CHUNK_LOG2, CHUNK_NUMBERS, Extent, Extents, MAX_ARENA_CHUNKS,
    MAX_ARENAS,
};

#[derive(Debug, Default)]
pub(super) struct Layout {
    /// Sorted by first chunk.
    arenas: Vec<Placed>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Placed {
    pub(super) arena: Advertisement,
    /// Asked back: nothing new is allocated in it.
    pub(super) retiring: bool,
}

impl Layout {
    pub(super) fn add(&mut self, arena: Advertisement) -> Result<(), ArenaError> {
        self.check_new(arena)?;
        let at = self.arenas.partition_point(|other| other.arena.first_chunk < arena.first_chunk);
        self.arenas.insert(at, Placed { arena, retiring: false });
        Ok(())
    }

    fn check_new(&self, new: Advertisement) -> Result<(), ArenaError> {
        if !CHUNK_LOG2.contains(&new.log2_chunk) {
            return Err(ArenaError::BadChunkSize(new.log2_chunk));
        }
        if let Some(first) = self.log2_chunk()
            && first != new.log2_chunk
        {
            return Err(ArenaError::ChunkSizeChanged { first, now: new.log2_chunk });
        }
        if !(1..=MAX_ARENA_CHUNKS).contains(&new.chunks) {
            return Err(ArenaError::BadChunkCount(new.chunks));
        }
        if new.extent().end() > CHUNK_NUMBERS {
            return Err(ArenaError::BeyondChunkNumbers(new.extent()));
        }
        if new.address.checked_add(u64::from(new.chunks) << new.log2_chunk).is_none() {
            return Err(ArenaError::BeyondAddressSpace(new.address));
        }
        if self.arenas.len() >= MAX_ARENAS {
            return Err(ArenaError::TooManyArenas);
        }
        for Placed { arena, .. } in &self.arenas {
            if arena.arena == new.arena {
                return Err(ArenaError::ArenaExists(new.arena));
            }
            if arena.extent().overlaps(new.extent()) {
                return Err(ArenaError::ArenasOverlap(new.extent()));
            }
        }
        Ok(())
    }

    pub(super) fn find(&mut self, number: u16) -> Result<&mut Placed, ArenaError> {
        let arena = self.arenas.iter_mut().find(|placed| placed.arena.arena == number);
        arena.ok_or(ArenaError::UnknownArena(number))
    }

    pub(super) fn remove(&mut self, number: u16) {
        self.arenas.retain(|placed| placed.arena.arena != number);
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &Placed> {
        self.arenas.iter()
    }

    pub(super) fn log2_chunk(&self) -> Option<u8> {
        self.arenas.first().map(|placed| placed.arena.log2_chunk)
    }

    /// Chunks of all arenas.
    pub(super) fn chunk_count(&self) -> u32 {
        self.arenas.iter().map(|placed| u32::from(placed.arena.chunks)).sum()
    }

    /// Chunks of arenas that are not asked back.
    pub(super) fn usable_chunk_count(&self) -> u32 {
        let usable = self.arenas.iter().filter(|placed| !placed.retiring);
        usable.map(|placed| u32::from(placed.arena.chunks)).sum()
    }

    /// The arena that an extent lies in.
    pub(super) fn locate(&self, extent: Extent) -> Result<&Advertisement, ArenaError> {
        if extent.count == 0 {
            return Err(ArenaError::EmptyExtent(extent.first));
        }
        let after = self.arenas.partition_point(|placed| placed.arena.first_chunk <= extent.first);
        let holder = after.checked_sub(1).and_then(|at| self.arenas.get(at));
        let holder = holder.filter(|placed| u32::from(extent.first) < placed.arena.extent().end());
        let Some(Placed { arena, .. }) = holder else {
            return Err(ArenaError::UnknownChunks(extent));
        };
        if extent.end() > arena.extent().end() {
            return Err(ArenaError::CrossesArenas(extent));
        }
        Ok(arena)
    }

    /// Checks that each extent lies in an arena, and that no two extents share a chunk.
    pub(super) fn check(&self, extents: &Extents) -> Result<(), ArenaError> {
        for (index, extent) in extents.iter().enumerate() {
            self.locate(*extent)?;
            if extents[..index].iter().any(|other| other.overlaps(*extent)) {
                return Err(ArenaError::DuplicateChunks(*extent));
            }
        }
        Ok(())
    }

    /// The lowest unused arena number and first chunk number for a new arena of `chunks` chunks.
    pub(super) fn vacant(&self, chunks: u16) -> Option<(u16, u16)> {
        let mut first = 0_u32;
        for placed in &self.arenas {
            if u32::from(placed.arena.first_chunk) - first >= u32::from(chunks) {
                break;
            }
            first = placed.arena.extent().end();
        }
        if first + u32::from(chunks) > CHUNK_NUMBERS || self.arenas.len() >= MAX_ARENAS {
            return None;
        }
        let is_used = |number: &u16| self.arenas.iter().any(|placed| placed.arena.arena == *number);
        let number = (0..=u16::MAX).find(|number| !is_used(number))?;
        Some((number, u16::try_from(first).ok()?))
    }
}
