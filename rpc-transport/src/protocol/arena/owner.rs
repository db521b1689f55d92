//! The owner: the receiver's view of its own arenas.
//!
//! Owns the state of every chunk at the receiving end, the limit of what the application may hold,
//! and the decision when to add an arena and when to ask one back. Never holds memory.
//!
//! Invariants: `held` chunks are `Held`, of which the application holds `lent`; `releasing` chunks
//! are `Releasing`; what is lent never passes half of the chunks when it is lent (rule 3).

use std::ops::Range;
use std::time::{Duration, Instant};

use super::layout::{Layout, Placed};
use super::{Advertisement, ArenaError, Extent, Extents, cut, half};

/// Sizes of the arenas that an owner offers: the landing zone for the large messages of its peer.
///
/// ```
/// use rpc_transport::ArenaConfig;
///
/// // 128 MiB of landing zone at most.
/// let arena = ArenaConfig::default().max_chunks(2048);
/// assert_eq!(u64::from(arena.max_chunks) << arena.log2_chunk, 128 << 20);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArenaConfig {
    /// Size of a chunk, as a power of two. Default 16 (64 KiB), 12 to 26.
    pub log2_chunk: u8,
    /// Chunks of each arena. Default 64, 1 to 4096.
    pub arena_chunks: u16,
    /// Chunks that all arenas of the connection may have. Default 1024; 0 for no arena.
    pub max_chunks: u32,
    /// Chunks that are kept when idle. Default 0.
    pub keep_chunks: u32,
    /// Time without a message after which an arena is asked back, when the keep-alive looks next.
    /// Default 10 s.
    pub idle: Duration,
}

impl Default for ArenaConfig {
    fn default() -> Self {
        Self {
            log2_chunk: 16,
            arena_chunks: 64,
            max_chunks: 1024,
            keep_chunks: 0,
            idle: Duration::from_secs(10),
        }
    }
}

impl ArenaConfig {
    /// Sets [`ArenaConfig::log2_chunk`].
    #[must_use]
    pub fn log2_chunk(mut self, log2: u8) -> Self {
        self.log2_chunk = log2;
        self
    }

    /// Sets [`ArenaConfig::arena_chunks`].
    #[must_use]
    pub fn arena_chunks(mut self, chunks: u16) -> Self {
        self.arena_chunks = chunks;
        self
    }

    /// Sets [`ArenaConfig::max_chunks`].
    #[must_use]
    pub fn max_chunks(mut self, chunks: u32) -> Self {
        self.max_chunks = chunks;
        self
    }

    /// Sets [`ArenaConfig::keep_chunks`].
    #[must_use]
    pub fn keep_chunks(mut self, chunks: u32) -> Self {
        self.keep_chunks = chunks;
        self
    }

    /// Sets [`ArenaConfig::idle`].
    #[must_use]
    pub fn idle(mut self, idle: Duration) -> Self {
        self.idle = idle;
        self
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chunk {
    Absent,
    /// The writer may use it, or will once the release arrives.
    Free,
    Held,
    Releasing,
}

/// A message, or a part of one, that lies in the arenas. Return it with [`ArenaOwner::release`].
#[derive(Debug)]
#[must_use = "its chunks are held"]
pub struct Landed {
    extents: Extents,
    bytes: u64,
    lent: bool,
}

impl Landed {
    /// One chunk that belongs to no arena, to test the return queue.
    #[cfg(all(test, rpc_loom))]
    pub(crate) fn of_one_chunk() -> Self {
        let extents = Extents::from_slice(&[super::Extent { first: 0, count: 1 }]);
        Self { extents: extents.expect("one extent"), bytes: 1, lent: true }
    }

    /// Bytes written.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Chunks that they lie in.
    #[must_use]
    pub fn chunk_count(&self) -> u32 {
        self.extents.chunk_count()
    }
}

/// Where a piece of a landed message lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The arena's number.
    pub arena: u16,
    /// Offset in that arena, bytes.
    pub offset: u64,
    /// Which bytes of the message.
    pub bytes: Range<u64>,
}

/// The receiving end of the arenas of one direction.
#[derive(Debug)]
pub struct ArenaOwner {
    config: ArenaConfig,
    layout: Layout,
    /// Indexed by chunk number.
    chunks: Vec<Chunk>,
    held: u32,
    lent: u32,
    releasing: u32,
    /// The writer reported that it waits for chunks, and nothing was released to it since.
    starved: bool,
    /// The writer waits, or the application holds its share, and no arena was added or declined
    /// since.
    wants_arena: bool,
    last_used: Instant,
    asked_back: Option<u16>,
}

impl ArenaOwner {
    /// An owner without an arena. `config` is valid.
    #[must_use]
    pub fn new(config: ArenaConfig, now: Instant) -> Self {
        Self {
            config,
            layout: Layout::default(),
            chunks: Vec::new(),
            held: 0,
            lent: 0,
            releasing: 0,
            starved: false,
            wants_arena: false,
            last_used: now,
            asked_back: None,
        }
    }

    /// Bytes of the arena to allocate now, if one is wanted and within the budget. Answer with
    /// [`ArenaOwner::add`] or [`ArenaOwner::decline`].
    #[inline]
    #[must_use]
    pub fn wanted_bytes(&self) -> Option<u64> {
        if self.wants_arena { self.allowed_bytes() } else { None }
    }

    #[cold]
    fn allowed_bytes(&self) -> Option<u64> {
        let is_allowed =
            self.check_budget().is_ok() && self.layout.vacant(self.config.arena_chunks).is_some();
        is_allowed.then_some(self.arena_bytes())
    }

    /// Length of each arena, bytes.
    #[must_use]
    pub fn arena_bytes(&self) -> u64 {
        u64::from(self.config.arena_chunks) << self.config.log2_chunk
    }

    /// Adds an arena of [`ArenaOwner::arena_bytes`]; returns what to advertise. Allowed even if
    /// none is wanted, so that a connection may start with one.
    ///
    /// # Errors
    /// [`ArenaError::OverBudget`], [`ArenaError::TooManyArenas`],
    /// [`ArenaError::BeyondAddressSpace`].
    pub fn add(&mut self, address: u64, rkey: u32) -> Result<Advertisement, ArenaError> {
        self.check_budget()?;
        let ArenaConfig { arena_chunks: chunks, log2_chunk, .. } = self.config;
        let (arena, first_chunk) = self.layout.vacant(chunks).ok_or(ArenaError::TooManyArenas)?;
        let arena = Advertisement { arena, first_chunk, chunks, log2_chunk, rkey, address };
        self.layout.add(arena)?;
        let range = arena.extent().chunks();
        if self.chunks.len() < range.end {
            self.chunks.resize(range.end, Chunk::Absent);
        }
        self.chunks[range].fill(Chunk::Free);
        self.wants_arena = false;
        Ok(arena)
    }

    fn check_budget(&self) -> Result<(), ArenaError> {
        let (chunks, used) = (self.config.arena_chunks, self.layout.chunk_count());
        let max = self.config.max_chunks;
        if used + u32::from(chunks) > max {
            return Err(ArenaError::OverBudget { chunks, used, max });
        }
        Ok(())
    }

    /// There is no memory for the wanted arena: the writer has to work with those it has.
    pub fn decline(&mut self) {
        self.wants_arena = false;
    }

    /// The writer waits for chunks.
    pub fn on_starved(&mut self) {
        self.starved = true;
        self.wants_arena = true;
    }

    /// A frame announces a message of `bytes` bytes in `extents`.
    ///
    /// # Errors
    /// [`ArenaError`] if the extents break a rule.
    pub fn on_message(
        &mut self,
        now: Instant,
        extents: Extents,
        bytes: u64,
    ) -> Result<Landed, ArenaError> {
        self.check_message(&extents, bytes)?;
        self.set(&extents, Chunk::Held);
        self.held += extents.chunk_count();
        self.last_used = now;
        Ok(Landed { extents, bytes, lent: false })
    }

    fn check_message(&self, extents: &Extents, bytes: u64) -> Result<(), ArenaError> {
        if extents.is_empty() {
            return Err(ArenaError::NoExtents);
        }
        self.layout.check(extents)?;
        for number in extents.iter().flat_map(|extent| extent.chunks()) {
            if self.chunks[number] != Chunk::Free {
                return Err(ArenaError::ChunkInUse(u16::try_from(number).unwrap_or(u16::MAX)));
            }
        }
        let chunks = extents.chunk_count();
        // Never less than the share that the writer computed: it learns of a new arena later and
        // gives one up earlier than this end.
        let share = half(self.layout.chunk_count());
        if chunks > share {
            return Err(ArenaError::BeyondShare { chunks, share });
        }
        let log2_chunk = self.config.log2_chunk;
        let room = u64::from(chunks) << log2_chunk;
        if bytes > room || bytes <= room - (1 << log2_chunk) {
            return Err(ArenaError::WrittenMismatch { written: bytes, chunks, log2_chunk });
        }
        Ok(())
    }

    /// Where the bytes lie, in order.
    pub fn pieces(&self, landed: &Landed) -> impl Iterator<Item = Piece> {
        cut(&landed.extents, self.config.log2_chunk, landed.bytes).filter_map(|(extent, bytes)| {
            let arena = self.layout.locate(extent).ok()?;
            Some(Piece { arena: arena.arena, offset: arena.offset_of(extent), bytes })
        })
    }

    /// Rule 3: whether the application may hold the message where it lies. If not, copy it out and
    /// release it at once; another arena would help the next message.
    #[must_use]
    pub fn lend(&mut self, landed: &mut Landed) -> bool {
        let chunks = landed.extents.chunk_count();
        if landed.lent {
            return true;
        }
        if self.lent + chunks > self.layout.usable_chunk_count() / 2 {
            self.wants_arena = true;
            return false;
        }
        landed.lent = true;
        self.lent += chunks;
        true
    }

    /// A message of `bytes` bytes in all is copied because of what the application already holds:
    /// another arena would help the next message. A message longer than the application's share of
    /// the present arenas is copied in any case.
    pub fn on_unlendable(&mut self, bytes: u64) {
        let chunks = bytes.div_ceil(1 << self.config.log2_chunk);
        self.wants_arena |= chunks <= u64::from(self.layout.usable_chunk_count() / 2);
    }

    /// How much more the application may hold, bytes.
    #[must_use]
    pub fn lendable_bytes(&self) -> u64 {
        let lendable = (self.layout.usable_chunk_count() / 2).saturating_sub(self.lent);
        u64::from(lendable) << self.config.log2_chunk
    }

    /// The message was read or dropped: its chunks are released with the next frame.
    pub fn release(&mut self, landed: Landed) {
        let chunks = landed.extents.chunk_count();
        self.set(&landed.extents, Chunk::Releasing);
        self.held -= chunks;
        self.releasing += chunks;
        if landed.lent {
            self.lent -= chunks;
        }
    }

    /// Whether a frame should be sent just for the releases: half of the chunks wait for release,
    /// or the writer waits for chunks. An end that is about to sleep sends any release that waits.
    #[inline]
    #[must_use]
    pub fn is_release_due(&self) -> bool {
        self.releasing > 0 && (self.starved || self.releasing >= half(self.layout.chunk_count()))
    }

    /// How many more chunks have to be released until [`ArenaOwner::is_release_due`] is true.
    #[must_use]
    pub fn release_due_in(&self) -> u32 {
        if self.starved {
            1
        } else {
            half(self.layout.chunk_count()).saturating_sub(self.releasing)
        }
    }

    /// Releases for the header of a frame that is sent now, adjacent chunks joined; empty if there
    /// are none.
    pub fn take_releases(&mut self) -> Extents {
        let mut extents = Extents::default();
        if self.releasing == 0 {
            return extents;
        }
        let mut left = self.releasing;
        for placed in self.layout.iter() {
            if !take_runs(&mut self.chunks, placed.arena.extent(), &mut left, &mut extents) {
                break;
            }
        }
        self.releasing -= extents.chunk_count();
        self.starved = false;
        extents
    }

    /// Chunks whose release waits for a frame.
    #[must_use]
    pub fn releasing_count(&self) -> u32 {
        self.releasing
    }

    /// An arena to ask back from the writer, if all have been idle for long enough.
    pub fn poll_ask_back(&mut self, now: Instant) -> Option<u16> {
        let is_idle = self.held == 0 && self.releasing == 0 && self.asked_back.is_none();
        if !is_idle || self.next_deadline().is_none_or(|deadline| now < deadline) {
            return None;
        }
        let newest = self.layout.iter().next_back()?.arena.arena;
        self.layout.find(newest).ok()?.retiring = true;
        self.asked_back = Some(newest);
        self.asked_back
    }

    /// When to call [`ArenaOwner::poll_ask_back`].
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let left = self.layout.chunk_count().checked_sub(u32::from(self.config.arena_chunks))?;
        if left < self.config.keep_chunks || self.asked_back.is_some() || self.held > 0 {
            return None;
        }
        self.last_used.checked_add(self.config.idle)
    }

    /// The writer gives an arena up. After this it may be deregistered.
    ///
    /// # Errors
    /// [`ArenaError::UnknownArena`], [`ArenaError::NotAskedBack`], [`ArenaError::GivenUpInUse`].
    pub fn on_given_up(&mut self, arena: u16) -> Result<(), ArenaError> {
        let Placed { arena: advertised, retiring } = *self.layout.find(arena)?;
        if !retiring {
            return Err(ArenaError::NotAskedBack(arena));
        }
        let range = advertised.extent().chunks();
        if self.chunks[range.clone()].iter().any(|chunk| *chunk != Chunk::Free) {
            return Err(ArenaError::GivenUpInUse(arena));
        }
        self.chunks[range].fill(Chunk::Absent);
        self.layout.remove(arena);
        self.asked_back = None;
        Ok(())
    }

    /// Chunks in all arenas.
    #[must_use]
    pub fn chunk_count(&self) -> u32 {
        self.layout.chunk_count()
    }

    /// Chunks that hold messages.
    #[must_use]
    pub fn held_count(&self) -> u32 {
        self.held
    }

    /// Chunks that the application holds.
    #[must_use]
    pub fn lent_count(&self) -> u32 {
        self.lent
    }

    fn set(&mut self, extents: &Extents, chunk: Chunk) {
        for extent in extents.iter() {
            self.chunks[extent.chunks()].fill(chunk);
        }
    }
}

/// Moves the runs of releasing chunks within an arena to `extents`; `releasing` counts all such
/// chunks. False if there is no more room, or no more such chunk.
fn take_runs(
    chunks: &mut [Chunk],
    arena: Extent,
    releasing: &mut u32,
    extents: &mut Extents,
) -> bool {
    let mut number = arena.first;
    let mut left = arena.count;
    while left > 0 {
        if *releasing == 0 {
            return false;
        }
        let from = usize::from(number);
        let run = chunks[from..from + usize::from(left)]
            .iter()
            .take_while(|chunk| **chunk == Chunk::Releasing)
            .count();
        // Never truncates: a run is within `left`.
        let run = u16::try_from(run).unwrap_or(left);
        if run > 0 {
            let extent = Extent { first: number, count: run };
            if !extents.push(extent) {
                return false;
            }
            chunks[extent.chunks()].fill(Chunk::Free);
            *releasing -= u32::from(run);
        }
        // The chunk after a run is not releasing.
        let step = run.saturating_add(1).min(left);
        number = number.wrapping_add(step);
        left -= step;
    }
    true
}
