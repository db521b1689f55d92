//! Blocks: what Data and Release frames carry between header and payload.
//!
//! Owns the bytes of the optional blocks and their order. Never checks their values against the
//! state of a link.

use super::tags::{self, Tags};
use super::{Grant, HEADER_BYTES, Kind, SEGMENT_BLOCK_BYTES, Segment, flags};
use crate::message::outgoing::OutBuf;
use crate::protocol::arena::{ARENA_BLOCK_BYTES, ArenaBlock, Extent, Extents, MAX_EXTENTS};
use crate::protocol::error::ProtocolError;
use crate::protocol::handshake::Features;

const EXTENT_BYTES: usize = 4;
const WRITTEN_BYTES: usize = 8;
/// Length of the SLOT block, bytes.
pub(crate) const SLOT_BLOCK_BYTES: usize = 24;
const PLACED_BLOCK_BYTES: usize = 16;
/// Length of a DONE block without its slots, bytes.
const DONE_BYTES: usize = 4;
const DONE_SLOT_BYTES: usize = 4;
const MAX_STREAM_DATA_BYTES: usize = 16;
/// Most slots of a DONE block, received or sent.
const MAX_DONE: u16 = 64;
pub(crate) const DONE_SLOTS: usize = 16;
/// Most bytes that this end's header and blocks of a segment take together: SEGMENT, SLOT, PLACED,
/// DONE of one, RELEASES and EXTENTS.
pub(crate) const SEGMENT_PREFIX_MAX_BYTES: usize = HEADER_BYTES
    + SEGMENT_BLOCK_BYTES
    + SLOT_BLOCK_BYTES
    + PLACED_BLOCK_BYTES
    + DONE_BYTES
    + DONE_SLOT_BYTES
    + WRITTEN_BYTES
    + 2 * MAX_EXTENTS * EXTENT_BYTES;
/// Longest Release frame, bytes.
pub(crate) const RELEASE_FRAME_MAX_BYTES: usize = HEADER_BYTES
    + ARENA_BLOCK_BYTES
    + DONE_BYTES
    + DONE_SLOTS * DONE_SLOT_BYTES
    + MAX_STREAM_DATA_BYTES
    + MAX_EXTENTS * EXTENT_BYTES;

const _: () =
    assert!(SEGMENT_PREFIX_MAX_BYTES < crate::protocol::config::MIN_RECEIVE_BUFFER_BYTES as usize);
const _: () =
    assert!(RELEASE_FRAME_MAX_BYTES <= crate::protocol::config::MIN_RECEIVE_BUFFER_BYTES as usize);

/// What was written into the receiver's arenas for this frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Bytes, at least 1.
    pub bytes: u64,
    /// Where, in order.
    pub extents: Extents,
}

/// A reply slot, as its owner advertises it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotBlock {
    /// Its number; it is not in use by another slot.
    pub slot: u32,
    /// Remote key.
    pub rkey: u32,
    /// Address of its first byte, as the owner's device knows it.
    pub address: u64,
    /// Its length, bytes.
    pub len: u64,
}

/// What was written into a slot of the receiver for this frame: the next bytes of the tail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// The slot.
    pub slot: u32,
    /// Bytes, at least 1.
    pub bytes: u64,
}

/// How much of a stream its sender may send in frames, as in RFC 9000.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxStreamData {
    /// The number of the segmented message.
    pub number: u32,
    /// Bytes of its tail that frames may carry in all.
    pub bytes: u64,
}

impl MaxStreamData {
    /// The one that counts of two, which may have been said in any order: that of the later
    /// message, whose number may have wrapped around, and of one message the larger.
    #[must_use]
    pub(crate) fn latest(self, other: Option<Self>) -> Self {
        let Some(other) = other else { return self };
        match other.number.wrapping_sub(self.number) {
            0 => Self { bytes: self.bytes.max(other.bytes), ..self },
            1..0x8000_0000 => other,
            0x8000_0000.. => self,
        }
    }
}

/// The optional blocks of a frame.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Blocks {
    /// Which bytes of which message the frame carries.
    pub segment: Option<Segment>,
    /// An arena is advertised, asked back or given up.
    pub arena: Option<ArenaBlock>,
    /// A slot for the reply.
    pub slot: Option<SlotBlock>,
    /// Bytes of the message, after the payload, that lie in a slot of the receiver.
    pub placed: Option<Placed>,
    /// Slots of the receiver that the sender will never write again.
    pub done: Vec<u32>,
    /// Limit of a stream that the receiver of the frame sends; in Release frames only.
    pub max_stream_data: Option<MaxStreamData>,
    /// The sender is out of chunks.
    pub starved: bool,
    /// Chunks that are released.
    pub releases: Extents,
    /// Bytes of the message, after the payload, that lie in the receiver's arenas.
    pub written: Option<Written>,
    /// The records that these bytes are, or those in a slot; on sealed connections only.
    pub tags: Option<Box<Tags>>,
}

impl Blocks {
    fn flags(&self) -> u8 {
        let flag = |used: bool, flag| if used { flag } else { 0 };
        flag(self.segment.is_some(), flags::SEGMENT)
            | flag(self.arena.is_some(), flags::ARENA)
            | flag(self.slot.is_some(), flags::SLOT_ADVERTISE)
            | flag(self.placed.is_some(), flags::SLOT_PLACED)
            | flag(!self.done.is_empty(), flags::SLOTS_DONE)
            | flag(self.starved, flags::STARVED)
            | flag(self.max_stream_data.is_some(), flags::MAX_STREAM_DATA)
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
        self.put_slots(&mut out);
        put_extents(&mut out, &self.releases);
        if let Some(written) = &self.written {
            out.extend_from_slice(&written.bytes.to_le_bytes());
            put_extents(&mut out, &written.extents);
        }
        if let Some(tags) = &self.tags {
            out.extend_from_slice(&tags.to_bytes());
        }
        out
    }

    fn put_slots(&self, out: &mut OutBuf) {
        if let Some(SlotBlock { slot, rkey, address, len }) = self.slot {
            out.extend_from_slice(&slot.to_le_bytes());
            out.extend_from_slice(&rkey.to_le_bytes());
            out.extend_from_slice(&address.to_le_bytes());
            out.extend_from_slice(&len.to_le_bytes());
        }
        if let Some(Placed { slot, bytes }) = self.placed {
            out.extend_from_slice(&slot.to_le_bytes());
            out.extend_from_slice(&[0; 4]);
            out.extend_from_slice(&bytes.to_le_bytes());
        }
        if !self.done.is_empty() {
            let count = u16::try_from(self.done.len()).unwrap_or(u16::MAX);
            out.extend_from_slice(&count.to_le_bytes());
            out.extend_from_slice(&[0; 2]);
            for slot in &self.done {
                out.extend_from_slice(&slot.to_le_bytes());
            }
        }
        if let Some(MaxStreamData { number, bytes }) = self.max_stream_data {
            out.extend_from_slice(&number.to_le_bytes());
            out.extend_from_slice(&[0; 4]);
            out.extend_from_slice(&bytes.to_le_bytes());
        }
    }
}

fn put_extents(out: &mut OutBuf, extents: &Extents) {
    for extent in extents.iter() {
        out.extend_from_slice(&extent.to_bytes());
    }
}

/// Reads the blocks of a Data or a Release frame; returns the offset of the payload too.
pub(super) fn parse(
    kind: Kind,
    flags: u8,
    [releases, extents]: [u8; 2],
    rest: &[u8],
    features: Features,
) -> Result<(Blocks, usize), ProtocolError> {
    let has_arena = features.contains(Features::ARENA);
    let has_slots = features.contains(Features::REPLY_SLOTS);
    let unagreed = [
        (flags & flags::ARENA != 0 && !has_arena, "ARENA block"),
        (flags & flags::STARVED != 0 && !has_arena, "STARVED flag"),
        (flags & flags::MAX_STREAM_DATA != 0 && !has_arena, "MAX_STREAM_DATA block"),
        (releases != 0 && !has_arena, "released extents"),
        (extents != 0 && !has_arena, "arena extents"),
        (flags & flags::SLOT_ADVERTISE != 0 && !has_slots, "SLOT block"),
        (flags & flags::SLOT_PLACED != 0 && !has_slots, "PLACED block"),
        (flags & flags::SLOTS_DONE != 0 && !has_slots, "DONE block"),
        (flags & flags::CRC32C != 0, "CRC32C block"),
    ];
    if let Some(name) = unagreed.into_iter().find_map(|(used, name)| used.then_some(name)) {
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
    if flags & flags::SLOT_ADVERTISE != 0 {
        blocks.slot = Some(SlotBlock {
            slot: u32::from_le_bytes(*fields.take()?),
            rkey: u32::from_le_bytes(*fields.take()?),
            address: u64::from_le_bytes(*fields.take()?),
            len: u64::from_le_bytes(*fields.take()?),
        });
    }
    if flags & flags::SLOT_PLACED != 0 {
        let slot = u32::from_le_bytes(*fields.take()?);
        fields.reserved::<4>("PLACED")?;
        blocks.placed = Some(Placed { slot, bytes: u64::from_le_bytes(*fields.take()?) });
    }
    if flags & flags::SLOTS_DONE != 0 {
        blocks.done = fields.done()?;
    }
    if flags & flags::MAX_STREAM_DATA != 0 {
        let number = u32::from_le_bytes(*fields.take()?);
        fields.reserved::<4>("MAX_STREAM_DATA")?;
        let bytes = u64::from_le_bytes(*fields.take()?);
        blocks.max_stream_data = Some(MaxStreamData { number, bytes });
    }
    blocks.releases = fields.extents(releases)?;
    if extents != 0 {
        let bytes = u64::from_le_bytes(*fields.take()?);
        blocks.written = Some(Written { bytes, extents: fields.extents(extents)? });
    }
    if features.contains(Features::RECORDS) {
        let placed = blocks.placed.map(|placed| placed.bytes);
        if let Some(bytes) = blocks.written.map(|written| written.bytes).or(placed) {
            blocks.tags = Some(Box::new(fields.tags(bytes)?));
        }
    }
    check_kind(kind, &blocks, fields.rest)?;
    Ok((blocks, fields.at))
}

/// Checks which blocks each kind of frame may and must have.
fn check_kind(kind: Kind, blocks: &Blocks, payload: &[u8]) -> Result<(), ProtocolError> {
    if kind == Kind::Data {
        return match blocks {
            Blocks { max_stream_data: Some(_), .. } => Err(ProtocolError::StreamDataBesideMessage),
            Blocks { segment: None, written: Some(_), .. } => {
                Err(ProtocolError::WrittenWithoutSegment)
            }
            Blocks { segment: None, placed: Some(_), .. }
            | Blocks { written: Some(_), placed: Some(_), .. } => {
                Err(ProtocolError::PlacedBesideExtents)
            }
            _ => Ok(()),
        };
    }
    let slot = blocks.slot.is_some() || blocks.placed.is_some();
    if blocks.segment.is_some() || blocks.written.is_some() || slot {
        return Err(ProtocolError::MessageInRelease);
    }
    if !payload.is_empty() {
        return Err(ProtocolError::TrailingBytes { kind, extra: payload.len() });
    }
    let has_news = blocks.arena.is_some()
        || blocks.starved
        || !blocks.done.is_empty()
        || blocks.max_stream_data.is_some();
    if !has_news && blocks.releases.is_empty() {
        return Err(ProtocolError::EmptyRelease);
    }
    Ok(())
}

/// Reads blocks in sequence.
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

    fn reserved<const N: usize>(&mut self, name: &'static str) -> Result<(), ProtocolError> {
        match self.take::<N>()? == &[0; N] {
            true => Ok(()),
            false => Err(ProtocolError::ReservedNotZero(name)),
        }
    }

    fn done(&mut self) -> Result<Vec<u32>, ProtocolError> {
        let count = u16::from_le_bytes(*self.take()?);
        self.reserved::<2>("DONE")?;
        if !(1..=MAX_DONE).contains(&count) {
            return Err(ProtocolError::DoneCount(count));
        }
        (0..count).map(|_| Ok(u32::from_le_bytes(*self.take()?))).collect()
    }

    fn tags(&mut self, bytes: u64) -> Result<Tags, ProtocolError> {
        let count = tags::record_count(bytes)?;
        let epoch = u32::from_le_bytes(*self.take()?);
        self.reserved::<4>("TAGS")?;
        let first = u64::from_le_bytes(*self.take()?);
        let tags = (0..count).map(|_| self.take().copied()).collect::<Result<_, _>>()?;
        Ok(Tags { epoch, first, tags })
    }

    fn extents(&mut self, count: u8) -> Result<Extents, ProtocolError> {
        let count = usize::from(count);
        let mut list = [Extent::default(); MAX_EXTENTS];
        let Some(used) = list.get_mut(..count) else {
            return Err(crate::protocol::arena::ArenaError::TooManyExtents(count).into());
        };
        for extent in used.iter_mut() {
            *extent = Extent::from_bytes(*self.take()?);
        }
        Ok(Extents::from_slice(used)?)
    }
}
