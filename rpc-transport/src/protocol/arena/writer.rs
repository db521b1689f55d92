//! The writer: what the sender knows about the peer's arenas.
//!
//! Owns the state of every chunk at the sending end. Never posts a WRITE: it says where to write.
//!
//! Invariants: an arena that is given up keeps its numbers until its owner was notified, which
//! bounds the arenas that wait to be reported; a chunk that is not `Free` belongs to one
//! allocation, or to one announced message; only chunks of arenas that are not asked back are
//! allocated.

use std::collections::VecDeque;
use std::ops::Range;

use super::{Advertisement, ArenaError, Extent, Extents, MAX_EXTENTS, cut, half, layout::Layout};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chunk {
    Absent,
    Free,
    Writing,
    Announced,
}

/// Whether the writer needs chunks, and whether it has told the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Want {
    None,
    ToTell,
    Told,
}

/// Chunks taken for one message or a part of it. Return it with [`ArenaWriter::announce`] when its
/// WRITEs are posted, or with [`ArenaWriter::abandon`] when none is.
#[derive(Debug)]
#[must_use = "its chunks are taken"]
pub struct Allocation {
    extents: Extents,
    bytes: u64,
}

impl Allocation {
    /// Bytes of the message that fit: all that were requested, or a part.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The extents, for the frame that announces them.
    #[must_use]
    pub fn extents(&self) -> &Extents {
        &self.extents
    }
}

/// One WRITE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArenaWrite {
    /// Where to write, as the owner's device knows it.
    pub address: u64,
    /// Remote key.
    pub rkey: u32,
    /// Which bytes of the message, or of the part.
    pub bytes: Range<u64>,
}

/// The sending end of the arenas of one direction.
#[derive(Debug)]
pub struct ArenaWriter {
    layout: Layout,
    /// Indexed by chunk number.
    chunks: Vec<Chunk>,
    want: Want,
    given_up: VecDeque<u16>,
}

impl Default for ArenaWriter {
    fn default() -> Self {
        Self {
            layout: Layout::default(),
            chunks: Vec::new(),
            want: Want::None,
            given_up: VecDeque::new(),
        }
    }
}

impl ArenaWriter {
    /// A writer without an arena.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The owner added an arena.
    ///
    /// # Errors
    /// [`ArenaError`] if it cannot be.
    pub fn on_advertise(&mut self, arena: Advertisement) -> Result<(), ArenaError> {
        self.layout.add(arena)?;
        let range = arena.extent().chunks();
        if self.chunks.len() < range.end {
            self.chunks.resize(range.end, Chunk::Absent);
        }
        self.chunks[range].fill(Chunk::Free);
        self.want = Want::None;
        Ok(())
    }

    /// Takes chunks for `bytes` bytes, or for a first part of them if they exceed the share of
    /// one message (rule 2) or the free chunks are too scattered (rule 4).
    ///
    /// `None`: tell the owner ([`ArenaWriter::take_starved`]) and wait for releases. But if
    /// [`ArenaWriter::usable_count`] is 0 do not wait, as the owner may have no memory: send the
    /// rest without the arena.
    pub fn allocate(&mut self, bytes: u64) -> Option<Allocation> {
        self.allocate_within(bytes, MAX_EXTENTS)
    }

    /// Like [`ArenaWriter::allocate`], in at most `max_extents` extents, at least 1.
    pub fn allocate_within(&mut self, bytes: u64, max_extents: usize) -> Option<Allocation> {
        let allocation = self.try_allocate(bytes, max_extents.clamp(1, MAX_EXTENTS));
        let is_news = self.want == Want::None || self.usable_count() == 0;
        if allocation.is_none() && bytes != 0 && is_news {
            self.want = Want::ToTell;
        }
        allocation
    }

    fn try_allocate(&mut self, bytes: u64, max_extents: usize) -> Option<Allocation> {
        let log2_chunk = self.layout.log2_chunk()?;
        let needed = bytes.div_ceil(1 << log2_chunk);
        let usable = self.layout.usable_chunk_count();
        if needed == 0 || usable == 0 {
            return None;
        }
        // Two parts are in flight at a time, beside the half that the application may hold.
        let part = (usable / 4).max(1);
        let needed = u32::try_from(needed).ok().filter(|needed| *needed <= half(usable));
        let extents = self.choose(needed.unwrap_or(part), max_extents)?;
        self.set(&extents, Chunk::Writing);
        let bytes = bytes.min(u64::from(extents.chunk_count()) << log2_chunk);
        Some(Allocation { extents, bytes })
    }

    /// Chooses `wanted` free chunks, fewer only if they are too scattered; `None` if fewer are
    /// free. Takes the first run that fits, so that the same memory is used again soon; otherwise
    /// the largest runs, at most `max_extents`.
    fn choose(&self, wanted: u32, max_extents: usize) -> Option<Extents> {
        let mut free = 0;
        let mut fits = false;
        let mut largest = [Extent::default(); MAX_EXTENTS];
        self.for_free_runs(|run| {
            free += u32::from(run.count);
            fits = u32::from(run.count) >= wanted;
            if fits {
                largest[0] = run;
            } else {
                insert(&mut largest, run);
            }
            !fits
        });
        if !fits && free < wanted {
            return None;
        }
        let mut extents = Extents::default();
        let mut left = wanted;
        for run in largest.into_iter().take(max_extents) {
            // Never truncates: `run.count` is the larger bound.
            let count = u16::try_from(left).unwrap_or(u16::MAX).min(run.count);
            if count == 0 {
                break;
            }
            extents.push(Extent { first: run.first, count });
            left -= u32::from(count);
        }
        Some(extents)
    }

    /// Calls `with` for each free run until it returns false.
    fn for_free_runs(&self, mut with: impl FnMut(Extent) -> bool) {
        for placed in self.layout.iter().filter(|placed| !placed.retiring) {
            let mut run = Extent { first: placed.arena.first_chunk, count: 0 };
            for number in placed.arena.extent().chunks() {
                if self.chunks[number] == Chunk::Free {
                    run.count += 1;
                    continue;
                }
                if run.count > 0 && !with(run) {
                    return;
                }
                // Chunk numbers are 16 bits; past the last one the loop is over.
                run = Extent { first: u16::try_from(number + 1).unwrap_or(u16::MAX), count: 0 };
            }
            if run.count > 0 && !with(run) {
                return;
            }
        }
    }

    /// The WRITEs for an allocation.
    pub fn writes(&self, allocation: &Allocation) -> impl Iterator<Item = ArenaWrite> {
        let log2_chunk = self.layout.log2_chunk().unwrap_or(0);
        cut(&allocation.extents, log2_chunk, allocation.bytes).filter_map(|(extent, bytes)| {
            let arena = self.layout.locate(extent).ok()?;
            let address = arena.address + arena.offset_of(extent);
            Some(ArenaWrite { address, rkey: arena.rkey, bytes })
        })
    }

    /// The WRITEs are posted, and the frame that names the extents follows them. The chunks belong
    /// to the owner until it releases them.
    pub fn announce(&mut self, allocation: Allocation) -> Extents {
        self.set(&allocation.extents, Chunk::Announced);
        allocation.extents
    }

    /// Nothing was posted: the chunks are free again.
    pub fn abandon(&mut self, allocation: Allocation) {
        self.set(&allocation.extents, Chunk::Free);
        self.give_up_idle();
    }

    /// The owner releases chunks.
    ///
    /// # Errors
    /// [`ArenaError`] if the release breaks a rule.
    pub fn on_release(&mut self, extents: &Extents) -> Result<(), ArenaError> {
        self.layout.check(extents)?;
        for number in extents.iter().flat_map(|extent| extent.chunks()) {
            if self.chunks[number] != Chunk::Announced {
                let number = u16::try_from(number).unwrap_or(u16::MAX);
                return Err(ArenaError::NotAnnounced(number));
            }
        }
        self.set(extents, Chunk::Free);
        if !extents.is_empty() {
            self.want = Want::None;
        }
        self.give_up_idle();
        Ok(())
    }

    /// The owner wants an arena back: nothing more is allocated in it.
    ///
    /// # Errors
    /// [`ArenaError::UnknownArena`], [`ArenaError::AskedBackTwice`].
    pub fn on_ask_back(&mut self, arena: u16) -> Result<(), ArenaError> {
        let placed = self.layout.find(arena)?;
        if placed.retiring {
            return Err(ArenaError::AskedBackTwice(arena));
        }
        placed.retiring = true;
        self.give_up_idle();
        Ok(())
    }

    /// Whether there is something to tell the owner.
    #[inline]
    #[must_use]
    pub fn has_news(&self) -> bool {
        self.want == Want::ToTell || !self.given_up.is_empty()
    }

    /// An arena that is given up; tell the owner.
    pub fn poll_given_up(&mut self) -> Option<u16> {
        let arena = self.given_up.pop_front()?;
        self.layout.remove(arena);
        Some(arena)
    }

    /// Whether to tell the owner that chunks are missing. True once, until chunks are released or
    /// an arena is added.
    pub fn take_starved(&mut self) -> bool {
        let is_due = self.want == Want::ToTell;
        if is_due {
            self.want = Want::Told;
        }
        is_due
    }

    /// Chunks in all arenas.
    #[must_use]
    pub fn chunk_count(&self) -> u32 {
        self.layout.chunk_count()
    }

    /// Chunks in arenas that are not asked back, free or not.
    #[must_use]
    pub fn usable_count(&self) -> u32 {
        self.layout.usable_chunk_count()
    }

    /// Chunks that may be allocated now.
    #[must_use]
    pub fn free_count(&self) -> u32 {
        let mut free = 0;
        self.for_free_runs(|run| {
            free += u32::from(run.count);
            true
        });
        free
    }

    fn set(&mut self, extents: &Extents, chunk: Chunk) {
        for extent in extents.iter() {
            self.chunks[extent.chunks()].fill(chunk);
        }
    }

    fn give_up_idle(&mut self) {
        let chunks = &mut self.chunks;
        let is_idle = |range: Range<usize>| chunks[range].iter().all(|chunk| *chunk == Chunk::Free);
        let idle = self.layout.iter().find_map(|placed| {
            let range = placed.arena.extent().chunks();
            (placed.retiring && is_idle(range.clone())).then_some((placed.arena.arena, range))
        });
        if let Some((arena, range)) = idle {
            self.chunks[range].fill(Chunk::Absent);
            self.given_up.push_back(arena);
            self.give_up_idle();
        }
    }
}

/// Keeps the largest runs, in falling order.
fn insert(largest: &mut [Extent; MAX_EXTENTS], run: Extent) {
    let at = largest.partition_point(|other| other.count >= run.count);
    if let Some(tail) = largest.get_mut(at..).filter(|tail| !tail.is_empty()) {
        tail.rotate_right(1);
        tail[0] = run;
    }
}
