//! Received tails: the large bytes of a message, wherever its pieces lie.
//!
//! Owns the pieces, and with them the lease of their arena chunks: when the last handle is dropped,
//! the chunks go back to the peer. Memory that a peer can write is never lent as `&[u8]`.
//!
//! Invariants:
//! 1. `start + len` is within the rope; pieces are in order and without gap.
//! 2. A remote piece is read by copying; a reference to it is given only by the unsafe
//!    [`Payload::as_slice`]. A sealed piece is opened by its reader, or while the rest arrives.
//! 3. Whatever gives the bytes of a remote or a sealed piece can fail, and then gives none of them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::memory::pages;
use crate::memory::region::MemoryRegion;
use crate::message::early::EarlyTail;
use crate::message::part::OutPart;
use crate::message::read_error::ReadError;
use crate::message::record::TAG_BYTES;
use crate::message::sealed::SealedPiece;

/// A run of bytes.
pub(crate) enum Piece {
    /// Memory that only this process can write.
    Private(Arc<Vec<u8>>),
    /// In memory that the peer may write.
    Remote {
        region: MemoryRegion,
        /// First byte in the region.
        offset: usize,
        len: usize,
        /// Gives the memory back when the piece is dropped.
        lease: Option<Box<dyn Send + Sync>>,
    },
    /// Encrypted still.
    Sealed(Arc<SealedPiece>),
}

impl Piece {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Private(bytes) => bytes.len(),
            Self::Remote { len, .. } => *len,
            Self::Sealed(sealed) => sealed.len(),
        }
    }

    /// Copies `to.len()` bytes from `start` on, which it has.
    #[inline]
    fn copy_out(&self, start: usize, to: &mut [u8]) -> Result<(), ReadError> {
        match self {
            Self::Private(bytes) => to.copy_from_slice(&bytes[start..start + to.len()]),
            Self::Remote { region, offset, .. } => readable(region)?.copy_out(offset + start, to),
            Self::Sealed(sealed) => return sealed.copy_to(start..start + to.len(), to),
        }
        Ok(())
    }

    /// Appends the first bytes, `most` at most. For the link, which runs in the process of its
    /// memory and copies nothing that is sealed.
    pub(crate) fn append_here(&self, most: usize, to: &mut Vec<u8>) {
        let bytes = self.len().min(most);
        match self {
            Self::Private(all) => to.extend_from_slice(&all[..bytes]),
            Self::Remote { region, offset, .. } => region.append_to(*offset, bytes, to),
            Self::Sealed(_) => debug_assert!(false, "nothing is opened under a lock"),
        }
    }

    /// Appends the bytes of `range`.
    fn append_to(&self, range: Range<usize>, to: &mut Vec<u8>) -> Result<(), ReadError> {
        match self {
            Self::Private(bytes) => to.extend_from_slice(&bytes[range]),
            Self::Remote { region, offset, .. } => {
                readable(region)?.append_to(offset + range.start, range.len(), to);
            }
            Self::Sealed(sealed) => return sealed.append_to(range, to),
        }
        Ok(())
    }

    /// Gives memory of the peer back when it is dropped.
    pub(crate) fn set_lease(&mut self, returned: Box<dyn Send + Sync>) {
        match self {
            Self::Private(_) => {}
            Self::Remote { lease, .. } => *lease = Some(returned),
            Self::Sealed(sealed) => {
                debug_assert_eq!(Arc::strong_count(sealed), 1, "nobody else has it yet");
                if let Some(sealed) = Arc::get_mut(sealed) {
                    sealed.lease = Some(returned);
                }
            }
        }
    }
}

/// The region, if this process may read it.
#[inline]
pub(crate) fn readable(region: &MemoryRegion) -> Result<&MemoryRegion, ReadError> {
    if region.is_here() { Ok(region) } else { Err(ReadError::Forked) }
}

/// Consecutive pieces.
pub(crate) struct Rope {
    /// Each with the offset of its first byte.
    pieces: Vec<(u64, Piece)>,
    len: u64,
    /// Opens the beginning while the rest arrives.
    early: Option<Arc<EarlyTail>>,
}

impl Rope {
    pub(crate) fn new(pieces: impl IntoIterator<Item = Piece>) -> Self {
        let mut rope = Self { pieces: Vec::new(), len: 0, early: None };
        for piece in pieces {
            let at = rope.len;
            rope.len += piece.len() as u64;
            rope.pieces.push((at, piece));
        }
        rope
    }

    /// The piece that holds all `len` bytes from `offset` on, and the position in it; `None` if
    /// they are spread over several.
    #[inline]
    fn within(&self, offset: u64, len: usize) -> Option<(&Piece, usize)> {
        let behind = self.pieces.partition_point(|(at, _)| *at <= offset);
        let (at, piece) = self.pieces.get(behind.checked_sub(1)?)?;
        let start = usize::try_from(offset - at).ok()?;
        (start.checked_add(len)? <= piece.len()).then_some((piece, start))
    }

    /// The pieces that `range` touches, each with the part of it inside the range.
    fn cut(&self, range: Range<u64>) -> impl Iterator<Item = (&Piece, Range<usize>)> {
        let first =
            self.pieces.partition_point(|(at, piece)| at + piece.len() as u64 <= range.start);
        self.pieces[first..].iter().take_while(move |(at, _)| *at < range.end).map(
            move |(at, piece)| {
                let within = |offset: u64| usize::try_from(offset - at).unwrap_or(usize::MAX);
                let start = within(range.start.max(*at));
                (piece, start..within(range.end).min(piece.len()))
            },
        )
    }
}

/// The tail of a received message. Cheap to clone and to slice; all clones share the memory.
///
/// Reading its bytes can fail, as [`ReadError`] says. Private bytes can always be read.
///
/// ```
/// # fn main() -> Result<(), rpc_transport::message::read_error::ReadError> {
/// use rpc_transport::message::payload::Payload;
///
/// let payload = Payload::private(b"large bytes".to_vec());
/// let word = payload.slice(6..11);
/// assert_eq!(word.to_vec()?, b"bytes");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Payload {
    rope: Arc<Rope>,
    start: u64,
    len: u64,
}

impl Payload {
    /// A payload of private bytes.
    #[must_use]
    pub fn private(bytes: Vec<u8>) -> Self {
        Self::from_pieces([Piece::Private(Arc::new(bytes))])
    }

    /// A payload whose bytes cannot be read, as a child of `fork(2)` finds it.
    #[cfg(any(test, feature = "model"))]
    #[must_use]
    pub fn unreadable(len: usize) -> Self {
        let region = MemoryRegion::inherited(len);
        Self::from_pieces([Piece::Remote { region, offset: 0, len, lease: None }])
    }

    pub(crate) fn from_pieces(pieces: impl IntoIterator<Item = Piece>) -> Self {
        Self::from_rope(Rope::new(pieces))
    }

    /// A tail of which the beginning may have been opened while it arrived.
    pub(crate) fn from_arrived(pieces: Vec<Piece>, early: Option<Arc<EarlyTail>>) -> Self {
        Self::from_rope(Rope { early, ..Rope::new(pieces) })
    }

    fn from_rope(rope: Rope) -> Self {
        let len = rope.len;
        Self { rope: Arc::new(rope), start: 0, len }
    }

    /// Appends a copy of `next`, if both are private and of one piece, nobody else has a handle of
    /// this one, and together they have `most` bytes at most. Returns whether it did.
    pub(crate) fn absorb(&mut self, next: &Self, most: u64) -> bool {
        if self.len + next.len > most || self.start > 0 || self.len < self.rope.len {
            return false;
        }
        let [(_, Piece::Private(added))] = &*next.rope.pieces else { return false };
        let Some(rope) = Arc::get_mut(&mut self.rope) else { return false };
        let [(_, Piece::Private(bytes))] = &mut *rope.pieces else { return false };
        let Some(bytes) = Arc::get_mut(bytes) else { return false };
        if next.len < next.rope.len {
            return false;
        }
        bytes.extend_from_slice(added);
        rope.len += next.len;
        self.len += next.len;
        true
    }

    /// Length, bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of it, which shares the memory.
    ///
    /// # Panics
    /// When the range lies outside.
    #[must_use]
    pub fn slice(&self, range: Range<u64>) -> Self {
        let Range { start, end } = range;
        self.check(start, end);
        Self { rope: Arc::clone(&self.rope), start: self.start + start, len: end - start }
    }

    fn check(&self, start: u64, end: u64) {
        assert!(start <= end && end <= self.len, "{start}..{end} of a payload of {}", self.len);
    }

    fn cut(&self, range: Range<u64>) -> impl Iterator<Item = (&Piece, Range<usize>)> {
        self.rope.cut(self.start + range.start..self.start + range.end)
    }

    fn all(&self) -> impl Iterator<Item = (&Piece, Range<usize>)> {
        self.cut(0..self.len)
    }

    /// Copies bytes out from `offset` on, as they are at this moment.
    ///
    /// # Errors
    /// [`ReadError`]; `to` is zeroed then if bytes were changed on their way, and else of no use.
    ///
    /// # Panics
    /// When the span lies outside.
    pub fn copy_to(&self, offset: u64, to: &mut [u8]) -> Result<(), ReadError> {
        let end = offset.saturating_add(to.len() as u64);
        self.check(offset, end);
        let copied = match self.rope.within(self.start + offset, to.len()) {
            Some((piece, start)) => piece.copy_out(start, to),
            None => self.copy_pieces(offset..end, to),
        };
        if copied == Err(ReadError::Forged) {
            to.fill(0);
        }
        copied
    }

    fn copy_pieces(&self, range: Range<u64>, to: &mut [u8]) -> Result<(), ReadError> {
        let mut at = 0;
        for (piece, range) in self.cut(range) {
            let end = at + range.len();
            match piece {
                // What follows is copied later.
                Piece::Sealed(sealed) => sealed.copy_to(range, &mut to[at..])?,
                _ => piece.copy_out(range.start, &mut to[at..end])?,
            }
            at = end;
        }
        Ok(())
    }

    /// Appends the bytes of `range` to `to`: one copy, into memory that need not be zeroed before.
    ///
    /// # Errors
    /// [`ReadError`]; nothing is appended then.
    ///
    /// # Panics
    /// When the range lies outside.
    pub fn append_to(&self, range: Range<u64>, to: &mut Vec<u8>) -> Result<(), ReadError> {
        self.check(range.start, range.end);
        let (len, before) = (to.len(), to.capacity());
        let is_sealed = self.cut(range.clone()).any(|(piece, _)| matches!(piece, Piece::Sealed(_)));
        let room = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        to.reserve(room.saturating_add(if is_sealed { TAG_BYTES } else { 0 }));
        pages::on_growth(to, before);
        if let Some(early) = &self.rope.early
            && early.append(self.start + range.start..self.start + range.end, to)
        {
            return Ok(());
        }
        for (piece, range) in self.cut(range) {
            if let Err(error) = piece.append_to(range, to) {
                to.truncate(len);
                return Err(error);
            }
        }
        Ok(())
    }

    /// A private copy of all bytes.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn to_vec(&self) -> Result<Vec<u8>, ReadError> {
        let mut bytes = Vec::new();
        if self.len == self.rope.len
            && let Some(opened) = self.rope.early.as_ref().and_then(|early| early.take())
        {
            bytes = opened;
        }
        self.append_to(bytes.len() as u64..self.len, &mut bytes)?;
        Ok(bytes)
    }

    /// All bytes as a `Vec`; free of copying when they are private, in one piece, and this is the
    /// only handle.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn into_vec(self) -> Result<Vec<u8>, ReadError> {
        if self.start != 0 || self.len != self.rope.len || self.rope.pieces.len() != 1 {
            return self.to_vec();
        }
        let copied = |rope: Arc<Rope>| Self { start: 0, len: rope.len, rope }.to_vec();
        let mut rope = match Arc::try_unwrap(self.rope) {
            Ok(rope) => rope,
            Err(rope) => return copied(rope),
        };
        match rope.pieces.pop() {
            Some((_, Piece::Private(bytes))) => Ok(Arc::unwrap_or_clone(bytes)),
            Some(other) => {
                rope.pieces.push(other);
                copied(Arc::new(rope))
            }
            None => Ok(Vec::new()),
        }
    }

    /// Whether the bytes are private: no peer can write them, and reading them never fails.
    #[must_use]
    pub fn is_private(&self) -> bool {
        self.all().all(|(piece, _)| matches!(piece, Piece::Private(_)))
    }

    /// The bytes, when they are private and in one piece. `None` does not say that they cannot be
    /// read: [`to_vec`](Payload::to_vec) does.
    #[must_use]
    pub fn as_private_slice(&self) -> Option<&[u8]> {
        let mut pieces = self.all().filter(|(_, range)| !range.is_empty());
        let Some((piece, range)) = pieces.next() else { return Some(&[]) };
        match piece {
            Piece::Private(bytes) if pieces.next().is_none() => Some(&bytes[range]),
            _ => None,
        }
    }

    /// The first piece, if it has any bytes.
    pub(crate) fn first_piece(&self) -> Option<(&Piece, Range<usize>)> {
        self.all().find(|(_, range)| !range.is_empty())
    }

    /// The region and the span of a remote payload that is contiguous.
    pub(crate) fn as_remote_span(&self) -> Option<(&MemoryRegion, usize, usize)> {
        let mut run: Option<(&MemoryRegion, usize, usize)> = None;
        for (piece, range) in self.all() {
            let Piece::Remote { region, offset, .. } = piece else { return None };
            let (start, len) = (offset + range.start, range.len());
            run = match run {
                None => Some((region, start, len)),
                Some((first, at, so_far)) if first.is_same(region) && at + so_far == start => {
                    Some((first, at, so_far + len))
                }
                Some(_) => return None,
            };
        }
        run
    }

    /// Whether both are handles of the same bytes.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.rope, &other.rope) && (self.start, self.len) == (other.start, other.len)
    }

    /// A payload that no peer can write: itself if it is private, else a copy, and the memory that
    /// this handle held goes back to the peer.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn detach(self) -> Result<Self, ReadError> {
        if self.is_private() { Ok(self) } else { Ok(Self::private(self.to_vec()?)) }
    }

    /// The payload as parts of an outgoing message, without a copy unless it is encrypted still.
    /// The memory that it holds is given back when they have been sent.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn to_parts(&self) -> Result<Vec<OutPart>, ReadError> {
        let part = |(piece, range): (&Piece, Range<usize>)| match piece {
            Piece::Private(bytes) => {
                let range = range.start as u64..range.end as u64;
                Ok(OutPart::shared(Arc::clone(bytes)).slice(range))
            }
            Piece::Remote { region, offset, .. } => {
                let (start, len) = ((offset + range.start) as u64, range.len() as u64);
                let owner: Arc<Rope> = Arc::clone(&self.rope);
                Ok(OutPart::region(readable(region)?.clone(), start, len, Some(owner)))
            }
            Piece::Sealed(sealed) => {
                let mut opened = Vec::with_capacity(range.len() + TAG_BYTES);
                sealed.append_to(range, &mut opened)?;
                Ok(OutPart::shared(Arc::new(opened)))
            }
        };
        self.all().map(part).collect()
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_private() { "private" } else { "remote" };
        write!(f, "Payload({} bytes, {kind})", self.len)
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Self::private(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope() -> Payload {
        let piece = |bytes: &[u8]| Piece::Private(Arc::new(bytes.to_vec()));
        Payload::from_pieces([piece(b"abc"), piece(b""), piece(b"defg"), piece(b"h")])
    }

    #[test]
    fn rope_slices_equal_byte_slices() {
        let (payload, bytes) = (rope(), b"abcdefgh");
        for start in 0..=bytes.len() {
            for end in start..=bytes.len() {
                let part = payload.slice(start as u64..end as u64);
                assert_eq!(part.to_vec().unwrap(), &bytes[start..end]);
                let mut copy = vec![0; end - start];
                payload.copy_to(start as u64, &mut copy).unwrap();
                assert_eq!(copy, &bytes[start..end]);
                let mut joined = Vec::new();
                for part in part.to_parts().unwrap() {
                    part.append_to(0..part.len(), &mut joined);
                }
                assert_eq!(joined, &bytes[start..end]);
            }
        }
        assert_eq!(payload.slice(3..7).as_private_slice(), Some(&b"defg"[..]));
        assert_eq!(payload.slice(4..6).as_private_slice(), Some(&b"ef"[..]));
        assert_eq!(payload.as_private_slice(), None);
        assert_eq!(payload.into_vec().unwrap(), bytes);
    }

    #[test]
    fn no_way_out_gives_unreadable_bytes() {
        let inherited = MemoryRegion::inherited(8);
        let private = Piece::Private(Arc::new(b"ab".to_vec()));
        let remote = Piece::Remote { region: inherited, offset: 2, len: 6, lease: None };
        let payload = Payload::from_pieces([private, remote]);
        let mut room = b"before".to_vec();
        let failed = [
            payload.to_vec().map(drop),
            payload.clone().into_vec().map(drop),
            payload.clone().detach().map(drop),
            payload.to_parts().map(drop),
            payload.append_to(0..8, &mut room),
            payload.copy_to(5, &mut [0; 2]),
            payload.copy_to(1, &mut [0; 4]),
        ];
        assert_eq!(failed, [Err(ReadError::Forked); 7]);
        assert_eq!(room, b"before");
        assert_eq!(payload.slice(0..2).to_vec().unwrap(), b"ab");
        assert!(payload.is_same(&payload.clone()) && !payload.is_same(&payload.slice(0..5)));
    }

    #[test]
    fn lone_private_payload_becomes_vec_without_copy() {
        let bytes = vec![1; 100];
        let address = bytes.as_ptr();
        let payload = Payload::private(bytes);
        let clone = payload.clone();
        let copied = payload.into_vec().unwrap();
        assert_ne!(copied.as_ptr(), address);
        let same = clone.into_vec().unwrap();
        assert_eq!(same.as_ptr(), address);
    }

    #[test]
    #[should_panic(expected = "3..9 of a payload of 8")]
    fn slicing_past_the_end_panics() {
        let _ = rope().slice(3..9);
    }
}
