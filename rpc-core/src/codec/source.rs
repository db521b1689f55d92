//! The source of a decoder's bytes: the body alone, or the body with its parts put back.
//!
//! Owns the two methods of taking a byte string out of a message. [`Plain`] leaves it to the
//! format. [`Cursor`] feeds the format the body, and reads byte strings itself: a byte string that
//! is a whole part is passed on without a copy, and the format never sees it.
//!
//! Invariants of a cursor:
//! 1. Each byte of body and tail is returned once, in the order of the joined bytes.
//! 2. A read of a fragment of a part, or across its edge, fails and is recorded: the decoder then
//!    starts again on the joined bytes ([`Cursor::must_join`]). So the result never depends on
//!    which byte strings the sender took out.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use rpc_transport::message::payload::Payload;
use rpc_transport::message::payload_stream::PayloadStream;
use rpc_transport::message::read_error::ReadError;
use serde::de::{Deserializer, Error, Visitor};

use super::error::CodecErrorKind;
use super::scratch::{MAX_COPIES, Scratch};
use crate::bulk::Bulk;
use crate::bulk::handoff::{self, Handed};
use crate::wire::Parts;

/// How byte strings are taken out of a message. Without a tail the format takes them itself.
pub(super) trait Source<'de>: Copy {
    /// Whether the format describes its values.
    const HAS_NAMES: bool = false;

    /// A string, borrowed.
    #[inline]
    fn text<D: Deserializer<'de>, V: Visitor<'de>>(
        self,
        format: D,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        format.deserialize_str(visitor)
    }

    /// Bytes, borrowed if possible.
    #[inline]
    fn bytes<D: Deserializer<'de>, V: Visitor<'de>>(
        self,
        format: D,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        format.deserialize_bytes(visitor)
    }

    /// Bytes for an owner.
    // Borrowed even then: formats allocate for an announced length before checking it.
    #[inline]
    fn owned_bytes<D: Deserializer<'de>, V: Visitor<'de>>(
        self,
        format: D,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        format.deserialize_bytes(visitor)
    }

    /// Bytes for a [`Bulk`], whose visitor finds a part in [`handoff`].
    #[inline]
    fn bulk<D: Deserializer<'de>, V: Visitor<'de>>(
        self,
        format: D,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        format.deserialize_bytes(visitor)
    }
}

/// A message without a tail.
#[derive(Clone, Copy)]
pub(super) struct Plain;

impl Source<'_> for Plain {}

/// A message that describes its values, without a tail.
#[cfg(feature = "msgpack")]
#[derive(Clone, Copy)]
pub(super) struct Named;

#[cfg(feature = "msgpack")]
impl Source<'_> for Named {
    const HAS_NAMES: bool = true;
}

/// The tail of the message being decoded.
#[derive(Debug)]
pub enum Tail<'de> {
    /// Kept by the message.
    Kept(&'de Payload),
    /// Owned by the decoder: private bytes can be moved into the value without a copy.
    Given(Bulk),
    /// Still arriving, because it is too long to be put together: for a
    /// [`BulkReader`](crate::bulk::BulkReader), if it is one part.
    Arriving(PayloadStream),
}

impl Tail<'_> {
    fn len(&self) -> u64 {
        match self {
            Self::Kept(payload) => payload.len(),
            Self::Given(bulk) => bulk.len(),
            Self::Arriving(stream) => stream.len(),
        }
    }

    fn slice(&self, range: Range<u64>) -> Option<Bulk> {
        match self {
            Self::Kept(payload) => Some(Bulk::from(payload.slice(range))),
            Self::Given(bulk) => Some(bulk.slice(range)),
            Self::Arriving(_) => None,
        }
    }
}

/// The next part.
#[derive(Debug, Clone, Copy)]
struct Next {
    at: usize,
    len: u64,
}

/// A position in body and tail. In cells, because the format's reader and the wrapper around the
/// format take turns.
pub(super) struct Cursor<'de> {
    parts: Parts<'de>,
    /// The body without its parts.
    body: &'de [u8],
    tail: Cell<Option<Tail<'de>>>,
    tail_bytes: u64,
    scratch: &'de Scratch,
    copies: Cell<usize>,
    position: Cell<usize>,
    next: Cell<Option<Next>>,
    index: Cell<usize>,
    /// Where in the tail the next part starts.
    tail_position: Cell<u64>,
    must_join: Cell<bool>,
    /// Whether a read failed because the tail is still arriving.
    must_arrive: Cell<bool>,
    /// Why bytes of the tail could not be read.
    unreadable: Cell<Option<ReadError>>,
}

/// The location of a byte string.
enum Taken<'de> {
    Body(&'de [u8]),
    /// A span of the tail.
    Part {
        start: u64,
        len: u64,
    },
}

impl<'de> Cursor<'de> {
    pub(super) fn new(message: &'de [u8], tail: Tail<'de>, scratch: &'de Scratch) -> Rc<Self> {
        let (parts, body) = Parts::split(message);
        let cursor = Self {
            parts,
            body,
            tail_bytes: tail.len(),
            tail: Cell::new(Some(tail)),
            scratch,
            copies: Cell::new(0),
            position: Cell::new(0),
            next: Cell::new(None),
            index: Cell::new(0),
            tail_position: Cell::new(0),
            must_join: Cell::new(false),
            must_arrive: Cell::new(false),
            unreadable: Cell::new(None),
        };
        cursor.load(0);
        Rc::new(cursor)
    }

    /// Length of all bytes put together.
    pub(super) fn total_bytes(&self) -> usize {
        usize::try_from(self.tail_bytes).unwrap_or(usize::MAX).saturating_add(self.body.len())
    }

    /// Bytes not taken yet.
    pub(super) fn left_bytes(&self) -> usize {
        let tail = self.tail_bytes - self.tail_position.get();
        let body = self.body.len() - self.position.get();
        usize::try_from(tail).unwrap_or(usize::MAX).saturating_add(body)
    }

    /// Whether a read failed that would succeed on the joined bytes.
    pub(super) fn must_join(&self) -> bool {
        self.must_join.get()
    }

    /// Why a read of the tail failed, unless it would succeed on the joined bytes.
    pub(super) fn refusal(&self) -> Option<CodecErrorKind> {
        let arriving = CodecErrorKind::StillArriving { bytes: self.tail_bytes };
        let unreadable = self.unreadable.get().map(CodecErrorKind::from);
        unreadable.or_else(|| self.must_arrive.get().then_some(arriving))
    }

    /// What was read; `None`, with the reason noted, if it cannot be.
    fn noted<T>(&self, read: Result<T, ReadError>) -> Option<T> {
        read.map_err(|error| self.unreadable.set(Some(error))).ok()
    }

    /// All bytes joined; `None` if the tail was given away.
    pub(super) fn join(&self) -> Option<Result<&'de [u8], CodecErrorKind>> {
        let tail = self.tail.take()?;
        let body = self.body;
        let mut joined = Vec::with_capacity(self.total_bytes());
        let (mut body_position, mut tail_position) = (0, 0);
        for part in self.parts.iter() {
            let at = usize::try_from(part.at).unwrap_or(usize::MAX).min(body.len());
            joined.extend_from_slice(&body[body_position..at]);
            let end = (tail_position + part.len).min(self.tail_bytes);
            if let Err(error) = tail.slice(tail_position..end)?.append_to(&mut joined) {
                return Some(Err(error.into()));
            }
            (body_position, tail_position) = (at, end);
        }
        joined.extend_from_slice(&body[body_position..]);
        Some(Ok(self.scratch.keep(joined)))
    }

    fn load(&self, index: usize) {
        let part = self.parts.get(index);
        let next = part
            .map(|part| Next { at: usize::try_from(part.at).unwrap_or(usize::MAX), len: part.len });
        self.index.set(index);
        self.next.set(next);
    }

    #[cold]
    fn crosses_a_part(&self) {
        match self.with_tail(|tail| matches!(tail, Tail::Arriving(_))) {
            Some(true) => self.must_arrive.set(true),
            _ => self.must_join.set(true),
        }
    }

    /// A part, in place in the tail; `None` if the tail is still arriving.
    fn part(&self, start: u64, len: u64) -> Option<Bulk> {
        let part = self.with_tail(|tail| tail.slice(start..start + len))?;
        if part.is_none() {
            self.must_arrive.set(true);
        }
        part
    }

    /// The next `count` bytes of the body; `None` if a part, or the end, comes before their end.
    #[inline]
    pub(super) fn read(&self, count: usize) -> Option<&'de [u8]> {
        let start = self.position.get();
        let end = start.checked_add(count)?;
        if count > 0
            && let Some(next) = self.next.get()
            && end > next.at
        {
            self.crosses_a_part();
            return None;
        }
        let bytes = self.body.get(start..end)?;
        self.position.set(end);
        Some(bytes)
    }

    fn take(&self, len: u64) -> Option<Taken<'de>> {
        if let Some(next) = self.next.get()
            && next.at == self.position.get()
            && next.len == len
        {
            let start = self.tail_position.get();
            self.tail_position.set(start + len);
            self.load(self.index.get() + 1);
            return Some(Taken::Part { start, len });
        }
        self.read(usize::try_from(len).ok()?).map(Taken::Body)
    }

    /// Reads a length in the format's encoding, and takes that many bytes.
    fn take_counted<D: Deserializer<'de>>(&self, format: D) -> Result<Taken<'de>, D::Error> {
        let len = format.deserialize_u64(Length)?;
        self.take(len).ok_or_else(|| D::Error::custom("the message ends too early"))
    }

    /// Calls `look` with the tail.
    fn with_tail<T>(&self, look: impl FnOnce(&Tail<'de>) -> T) -> Option<T> {
        let tail = self.tail.take()?;
        let seen = look(&tail);
        self.tail.set(Some(tail));
        Some(seen)
    }

    /// Bytes of a part that live as long as the message: lent in place, or a private copy.
    fn borrow(&self, start: u64, len: u64) -> Option<&'de [u8]> {
        let range = start..start + len;
        // A tail that the decoder owns and that can be borrowed from is kept with the message.
        let given = self.with_tail(|tail| match tail {
            Tail::Given(bulk) if bulk.as_slice().is_some() => bulk.as_payload().cloned(),
            _ => None,
        });
        if let Some(kept) = given.flatten().and_then(|tail| self.scratch.keep_tail(tail)) {
            self.tail.set(Some(Tail::Kept(kept)));
        }
        let in_place = self.with_tail(|tail| match tail {
            Tail::Kept(payload) => {
                let bytes = payload.as_private_slice()?;
                let start = usize::try_from(range.start).ok()?;
                bytes.get(start..start + usize::try_from(len).ok()?)
            }
            Tail::Given(_) | Tail::Arriving(_) => None,
        })?;
        if in_place.is_some() {
            return in_place;
        }
        if self.copies.get() == MAX_COPIES {
            self.crosses_a_part();
            return None;
        }
        self.copies.set(self.copies.get() + 1);
        Some(self.scratch.keep(self.copy(start, len)?))
    }

    fn copy(&self, start: u64, len: u64) -> Option<Vec<u8>> {
        self.noted(self.part(start, len)?.into_vec())
    }

    /// Bytes of a part for an owner.
    fn own(&self, start: u64, len: u64) -> Option<Vec<u8>> {
        if self.parts.count() > 1 {
            return self.copy(start, len);
        }
        // Nothing else is in the tail, so it is not needed again.
        match self.tail.take()? {
            Tail::Given(bulk) => self.noted(bulk.into_vec()),
            Tail::Kept(payload) => self.noted(payload.to_vec()),
            Tail::Arriving(_) => {
                self.must_arrive.set(true);
                None
            }
        }
    }
}

/// Visits the length of a byte string.
struct Length;

impl Visitor<'_> for Length {
    type Value = u64;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a length")
    }

    fn visit_u64<E: Error>(self, len: u64) -> Result<u64, E> {
        Ok(len)
    }
}

impl<'de> Source<'de> for &Cursor<'de> {
    fn text<D: Deserializer<'de>, V: Visitor<'de>>(
        self,
        format: D,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let bytes = match self.take_counted(format)? {
            Taken::Body(bytes) => Some(bytes),
            Taken::Part { start, len } => self.borrow(start, len),
        };
        let bytes = bytes.ok_or_else(|| D::Error::custom("the message ends too early"))?;
        let text = str::from_utf8(bytes).map_err(|_| D::Error::custom("a string is not UTF-8"))?;
        visitor.visit_borrowed_str(text)
    }

    fn bytes<D: Deserializer<'de>, V: Visitor<'de>>(
        self,
        format: D,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let bytes = match self.take_counted(format)? {
            Taken::Body(bytes) => Some(bytes),
            Taken::Part { start, len } => self.borrow(start, len),
        };
        visitor.visit_borrowed_bytes(
            bytes.ok_or_else(|| D::Error::custom("the message ends too early"))?,
        )
    }

    fn owned_bytes<D: Deserializer<'de>, V: Visitor<'de>>(
        self,
        format: D,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        match self.take_counted(format)? {
            Taken::Body(bytes) => visitor.visit_borrowed_bytes(bytes),
            Taken::Part { start, len } => match self.own(start, len) {
                Some(bytes) => visitor.visit_byte_buf(bytes),
                None => Err(D::Error::custom("the message ends too early")),
            },
        }
    }

    fn bulk<D: Deserializer<'de>, V: Visitor<'de>>(
        self,
        format: D,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        match self.take_counted(format)? {
            Taken::Body(bytes) => visitor.visit_borrowed_bytes(bytes),
            Taken::Part { start, len } => {
                let part = match self.part(start, len) {
                    Some(part) => Some(Handed::Bulk(part)),
                    // The tail is still arriving: it may be handed over if it is one part.
                    None => match self.tail.take() {
                        Some(Tail::Arriving(stream)) if self.parts.count() == 1 => {
                            Some(Handed::Stream(stream))
                        }
                        _ => None,
                    },
                };
                let part = part.ok_or_else(|| D::Error::custom("the payload is missing"))?;
                let value = handoff::pass(part, || visitor.visit_unit())?;
                self.must_arrive.set(false);
                Ok(value)
            }
        }
    }
}
