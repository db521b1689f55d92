//! Blocks: what Data and Release frames carry between header and payload.
//!
//! Owns the bytes of the optional blocks and their order. Never judges their values against the
//! state of a link.

use super::{Grant, HEADER_BYTES, Kind, SEGMENT_BLOCK_BYTES, Segment, flags};
use crate::arena::{ARENA_BLOCK_BYTES, ArenaBlock, Extent, Extents, MAX_EXTENTS};
use crate::handshake::Features;
use crate::outbound::OutBuf;
use crate::protocol_error::ProtocolError;

const EXTENT_BYTES: usize = 4;
const WRITTEN_BYTES: usize = 8;
/// Most bytes that header, SEGMENT, RELEASES and EXTENTS take together.
pub(crate) const SEGMENT_PREFIX_MAX_BYTES: usize =
    HEADER_BYTES + SEGMENT_BLOCK_BYTES + WRITTEN_BYTES + 2 * MAX_EXTENTS * EXTENT_BYTES;
/// Longest Release frame, bytes.
pub(crate) const RELEASE_FRAME_MAX_BYTES: usize =
    HEADER_BYTES + ARENA_BLOCK_BYTES + MAX_EXTENTS * EXTENT_BYTES;

const _: () = assert!(SEGMENT_PREFIX_MAX_BYTES < crate::config::MIN_RECEIVE_BUFFER_BYTES as usize);
const _: () = assert!(RELEASE_FRAME_MAX_BYTES <= crate::config::MIN_RECEIVE_BUFFER_BYTES as usize);

/// What was written into the receiver's arenas for this frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Bytes, at least 1.
    pub bytes: u64,
    /// Where, in order.
    pub extents: Extents,
}

/// The optional blocks of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Blocks {
    /// Which bytes of which message the frame carries.
    pub segment: Option<Segment>,
    /// News of an arena.
    pub arena: Option<ArenaBlock>,
    /// The sender is out of chunks.
    pub starved: bool,
    /// Chunks given back.
    pub releases: Extents,
    /// Bytes of the message that lie in the receiver's arenas, behind the payload.
    pub written: Option<Written>,
}

impl Blocks {
    fn flags(&self) -> u8 {
        let flag = |used: bool, flag| if used { flag } else { 0 };
        flag(self.segment.is_some(), flags::SEGMENT)
            | flag(self.arena.is_some(), flags::ARENA)
            | flag(self.starved, flags::STARVED)
    }

    /// The header of a frame with these blocks, and the blocks.
    #[must_use]
    pub fn to_prefix(&self, kind: Kind, grant: Grant) -> OutBuf {
        let count = |extents: Option<&Extents>| {
            u8::try_from(extents.map_or(0, |extents| extents.len())).unwrap_or(u8::MAX)
        };
        let mut out = OutBuf::new();
        let mut header = super::header_with(kind, self.flags(), grant);
        header[6] = count(Some(&self.releases));
        header[7] = count(self.written.as_ref().map(|written| &written.extents));
        out.extend_from_slice(&header);
        if let Some(segment) = self.segment {
            out.extend_from_slice(&super::segment_block(segment));
        }
        if let Some(arena) = &self.arena {
            out.extend_from_slice(&arena.to_bytes());
        }
        put_extents(&mut out, &self.releases);
        if let Some(written) = &self.written {
            out.extend_from_slice(&written.bytes.to_le_bytes());
            put_extents(&mut out, &written.extents);
        }
        out
    }

    /// The first block that only `Features::ARENA` allows.
    fn of_arena(flags: u8, releases: u8, extents: u8) -> Option<&'static str> {
        let used = [
            (flags & flags::ARENA != 0, "ARENA block"),
            (flags & flags::STARVED != 0, "STARVED flag"),
            (releases != 0, "released extents"),
            (extents != 0, "arena extents"),
        ];
        used.into_iter().find_map(|(used, name)| used.then_some(name))
    }
}

fn put_extents(out: &mut OutBuf, extents: &Extents) {
    for extent in extents.iter() {
        out.extend_from_slice(&extent.to_bytes());
    }
}

/// Reads the blocks of a Data or a Release frame; gives where the payload starts.
pub(super) fn parse(
    kind: Kind,
    flags: u8,
    [releases, extents]: [u8; 2],
    rest: &[u8],
    features: Features,
) -> Result<(Blocks, usize), ProtocolError> {
    if flags & flags::UNKNOWN != 0 {
        return Err(ProtocolError::UnknownFlags(flags));
    }
    let reserved = [
        (flags & flags::SLOT_ADVERTISE != 0, "SLOT block"),
        (flags & flags::SLOT_PLACED != 0, "PLACED block"),
        (flags & flags::SLOTS_DONE != 0, "DONE block"),
        (flags & flags::CRC32C != 0, "CRC32C block"),
    ];
    let reserved = reserved.into_iter().find_map(|(used, name)| used.then_some(name));
    let unagreed = Blocks::of_arena(flags, releases, extents)
        .filter(|_| !features.contains(Features::ARENA))
        .or(reserved);
    if let Some(name) = unagreed {
        return Err(ProtocolError::NotAgreed(name));
    }
    let mut fields = Fields { rest, at: HEADER_BYTES };
    let mut blocks = Blocks { starved: flags & flags::STARVED != 0, ..Blocks::default() };
    if flags & flags::SEGMENT != 0 {
        blocks.segment = Some(super::parse_segment(fields.take()?)?);
    }
    if flags & flags::ARENA != 0 {
        blocks.arena = Some(ArenaBlock::from_bytes(fields.take()?)?);
    }
    blocks.releases = fields.extents(releases)?;
    if extents != 0 {
        let bytes = u64::from_le_bytes(*fields.take()?);
        blocks.written = Some(Written { bytes, extents: fields.extents(extents)? });
    }
    check_kind(kind, &blocks, fields.rest)?;
    Ok((blocks, fields.at))
}

/// What each kind of frame may and must have.
fn check_kind(kind: Kind, blocks: &Blocks, payload: &[u8]) -> Result<(), ProtocolError> {
    if kind == Kind::Data {
        return match blocks {
            Blocks { segment: None, written: Some(_), .. } => {
                Err(ProtocolError::WrittenWithoutSegment)
            }
            _ => Ok(()),
        };
    }
    if blocks.segment.is_some() || blocks.written.is_some() {
        return Err(ProtocolError::MessageInRelease);
    }
    if !payload.is_empty() {
        return Err(ProtocolError::TrailingBytes { kind, extra: payload.len() });
    }
    if blocks.arena.is_none() && !blocks.starved && blocks.releases.is_empty() {
        return Err(ProtocolError::EmptyRelease);
    }
    Ok(())
}

/// Reads blocks one after the other.
struct Fields<'a> {
    rest: &'a [u8],
    /// Bytes of the frame that are read.
    at: usize,
}

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Result<&'a [u8; N], ProtocolError> {
        let Some((block, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(ProtocolError::Truncated {
                len: self.at + self.rest.len(),
                need: self.at + N,
            });
        };
        self.rest = rest;
        self.at += N;
        Ok(block)
    }

    fn extents(&mut self, count: u8) -> Result<Extents, ProtocolError> {
        let count = usize::from(count);
        let mut list = [Extent::default(); MAX_EXTENTS];
        let Some(used) = list.get_mut(..count) else {
            return Err(crate::arena::ArenaError::TooManyExtents(count).into());
        };
        for extent in used.iter_mut() {
            *extent = Extent::from_bytes(*self.take()?);
        }
        Ok(Extents::from_slice(used)?)
    }
}
