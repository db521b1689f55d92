//! The peer's regions, mapped into this process: one-sided access without the target's CPU.
//!
//! Owns the cache of mappings of one `shm` connection, and the checks of an access through them.
//! Never talks to the peer: the wire asks it, and stores the answer here.
//!
//! A region is requested once, on the first access to its rkey. An access that the cache cannot
//! serve (a region that cannot be mapped, an access out of bounds or not allowed, a region
//! deregistered in the meantime) goes through the target's engine, which serves or refuses it
//! according to the contract.
//!
//! Invariants:
//! 1. A copy stays inside a mapping whose size was checked against the file's.
//! 2. The mappings of one peer are bounded in number and in bytes.
//! 3. Mapped memory is touched only by the atomic copies of `memory::copy`: the peer, and other
//!    connections to it, may write it at any time.
#![allow(unsafe_code, reason = "memory that another process may write")]

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::device::RemoteSlice;
use crate::memory::copy;

use super::domain::{revoked_offset, revoked_words};
use super::mapping::{self, Mapping, page_bytes};
use super::packet::{Span, decode_rights};
use super::ring::Piece;

/// Most regions remembered; beyond it the oldest is dropped.
const MAX_REGIONS: usize = 1024;
/// Most bytes mapped; beyond it the oldest regions are dropped. A peer may announce any length, and
/// all connections of a process share one address space.
const MAX_MAPPED_BYTES: u64 = 4 << 30;

/// One region of the peer.
#[derive(Debug)]
struct PeerRegion {
    rkey: u32,
    base: u64,
    len: u64,
    may_write: bool,
    may_read: bool,
    /// Number of the word behind the region that shows its end.
    word: usize,
    /// `None` if the region must be accessed through the peer's engine.
    mapping: Option<Mapping>,
}

/// Result of an access through the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// The access was done.
    Done,
    /// The access must go through the peer's engine.
    ThroughEngine,
    /// Nothing is known about this rkey: ask the peer.
    Unknown,
}

/// The peer's regions that have been accessed.
#[derive(Debug, Default)]
pub(super) struct Regions {
    /// The most recently used region comes first.
    list: Vec<PeerRegion>,
}

impl Regions {
    /// Copies `from` to the peer's region.
    pub(super) fn write(&mut self, to: RemoteSlice, from: Piece) -> Known {
        let target = match self.find(to, from.len, true) {
            Ok(target) => target,
            Err(known) => return known,
        };
        // SAFETY: `find` checked the span; `from` is memory of a WR. The two cannot overlap: only
        // this cache knows the mapping. Peers may be writing both.
        unsafe { copy::between_shared(from.base.as_ptr(), target.as_ptr(), from.len) };
        // The copy is ordered before the packet that follows, which is published by a release
        // store.
        Known::Done
    }

    /// Copies from the peer's region to `to`.
    pub(super) fn read(&mut self, from: RemoteSlice, to: Piece) -> Known {
        let source = match self.find(from, to.len, false) {
            Ok(source) => source,
            Err(known) => return known,
        };
        // SAFETY: as in `write`; `to` is a buffer of a WR, which nobody else uses.
        unsafe { copy::from_shared(source.as_ptr(), to.base.as_ptr(), to.len) };
        Known::Done
    }

    /// The address of a remote span in this process, if the access may be done here.
    fn find(&mut self, at: RemoteSlice, len: usize, write: bool) -> Result<NonNull<u8>, Known> {
        let place = self.list.iter().position(|region| region.rkey == at.rkey);
        let place = place.ok_or(Known::Unknown)?;
        // Moves the region to the front by one swap; the exact order of the others does not matter.
        self.list.swap(0, place);
        let region = &self.list[0];
        let mapping = region.mapping.as_ref().ok_or(Known::ThroughEngine)?;
        let allowed = if write { region.may_write } else { region.may_read };
        let offset = at.address.checked_sub(region.base).ok_or(Known::ThroughEngine)?;
        let end = offset.checked_add(len as u64).ok_or(Known::ThroughEngine)?;
        if !allowed || end > region.len {
            return Err(Known::ThroughEngine);
        }
        if region.is_revoked() {
            self.list.swap_remove(0);
            return Err(Known::ThroughEngine);
        }
        let offset = usize::try_from(offset).map_err(|_| Known::ThroughEngine)?;
        // SAFETY: offset + len <= region.len, which fits into the mapping (`insert`).
        Ok(unsafe { mapping.base().add(offset) })
    }

    /// Stores the peer's answer about a region. `file` is its memory file, if it can be mapped.
    ///
    /// # Errors
    /// What is wrong with the file; the region is then accessed through the peer's engine.
    pub(super) fn insert(
        &mut self,
        answer: Span,
        file: Option<BorrowedFd<'_>>,
    ) -> std::io::Result<()> {
        let (may_write, may_read, word) = decode_rights(answer.aux);
        let word = word as usize;
        self.list.retain(|region| region.rkey != answer.rkey && !region.is_revoked());
        self.list.truncate(MAX_REGIONS - 1);
        let mapped = match file {
            Some(file) if word < revoked_words() && self.make_room(answer.len) => {
                map(answer.len, file, may_write).map(Some)
            }
            _ => Ok(None),
        };
        let (mapping, result) = match mapped {
            Ok(mapping) => (mapping, Ok(())),
            Err(error) => (None, Err(error)),
        };
        self.list.push(PeerRegion {
            rkey: answer.rkey,
            base: answer.address,
            len: answer.len,
            may_write,
            may_read,
            word,
            mapping,
        });
        result
    }

    /// Drops regions until `len` more bytes may be mapped. Returns `false` if they never may be.
    fn make_room(&mut self, len: u64) -> bool {
        if len > MAX_MAPPED_BYTES {
            return false;
        }
        let mut room = MAX_MAPPED_BYTES - len;
        self.list.retain(|region| {
            let mapped = region.mapping.as_ref().map_or(0, |_| region.len);
            let fits = mapped <= room;
            room = if fits { room - mapped } else { 0 };
            fits || mapped == 0
        });
        true
    }
}

impl PeerRegion {
    /// Whether the peer has deregistered the region, or its window has ended.
    fn is_revoked(&self) -> bool {
        let Some(mapping) = &self.mapping else { return false };
        let offset = revoked_offset(usize::try_from(self.len).unwrap_or(0));
        let offset = offset + self.word * size_of::<AtomicU32>();
        // SAFETY: the mapping has one page after the region's pages (`map`), and the word is in it
        // (`insert`).
        let word = unsafe { mapping.base().add(offset) }.cast::<AtomicU32>();
        // SAFETY: aligned, mapped while `mapping` lives, only accessed atomically.
        unsafe { word.as_ref() }.load(Ordering::Acquire) != 0
    }
}

/// Maps a region of `len` bytes and the one page after it.
fn map(len: u64, file: BorrowedFd<'_>, writable: bool) -> std::io::Result<Mapping> {
    let impossible = || {
        let reason = "the announced size of a region is impossible";
        std::io::Error::new(std::io::ErrorKind::InvalidData, reason)
    };
    let len = usize::try_from(len).map_err(|_| impossible())?;
    let pages = mapping::whole_pages(len).map_err(|_| impossible())?;
    let bytes = pages.checked_add(page_bytes()).ok_or_else(impossible)?;
    mapping::map_received(file, bytes, writable)
}
