//! Received messages, owned by the layers above, wherever their bytes lie.
//!
//! Owns the choice between private memory (copied, RECV reposted) and a lent RECV buffer
//! (zero-copy, returned when the message is dropped). Readers see `&[u8]` either way. A tail is
//! kept separately, as a [`Payload`].
//!
//! Invariants:
//! 1. `start <= end <= length of the bytes`, which are in its storage or elsewhere.
//! 2. A lent buffer has no remote access ([`Buffer`]'s invariant 1), so the peer cannot change it.

use std::fmt;
use std::ops::Deref;

use crate::memory::budget::{BudgetExhausted, Reservation};
use crate::memory::region::Buffer;
use crate::memory::storage::{Elsewhere, Storage};
use crate::message::payload::Payload;
use crate::message::payload_stream::PayloadStream;
use crate::message::reply_slot::PeerSlot;

/// A received message. Dereferences to the bytes not yet consumed.
pub struct Message {
    // Boxed: most messages have none, and every message is moved around. The first field, so that a
    // drop knows that it is empty.
    beside: Option<Box<Beside>>,
    storage: Storage,
}

const _: () = assert!(size_of::<Option<Message>>() <= 16, "a message is moved many times");

/// Everything of a message except its head.
#[derive(Debug, Default)]
struct Beside {
    tail: Option<Tail>,
    /// Memory that the sender offers for the answer.
    slot: Option<PeerSlot>,
    /// The message's share of a memory budget.
    charge: Option<Reservation>,
    refusal: Option<Refusal>,
    /// How many of the first bytes are something else than the rest, as the layer above says.
    marked: u16,
}

/// Why a message was dropped on arrival; only the beginning of its head was kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The budget that has no room for it.
    pub reason: BudgetExhausted,
    /// Length of the message, bytes.
    pub total_bytes: u64,
    /// Length of its tail, bytes.
    pub tail_bytes: u64,
}

/// The tail of a received message.
#[derive(Debug)]
enum Tail {
    Payload(Payload),
    Stream(PayloadStream),
}

impl Message {
    /// Copies `bytes`; storage comes from a per-thread list.
    #[inline]
    #[must_use]
    pub fn copied(bytes: &[u8]) -> Self {
        let mut storage = Storage::take();
        match storage.bytes.get_mut(..bytes.len()) {
            Some(place) => place.copy_from_slice(bytes),
            None => replace(&mut storage.bytes, bytes),
        }
        (storage.start, storage.end) = (0, bytes.len());
        Self { beside: None, storage }
    }

    fn at(elsewhere: Elsewhere, end: usize) -> Self {
        let mut storage = Storage::take();
        (storage.start, storage.end) = (0, end);
        storage.elsewhere = elsewhere;
        Self { beside: None, storage }
    }

    /// Makes a message of private bytes, without a copy.
    #[must_use]
    pub fn private(bytes: Vec<u8>) -> Self {
        let end = bytes.len();
        Self::at(Elsewhere::Private(bytes), end)
    }

    /// Lends the first `len` bytes of a RECV buffer.
    ///
    /// # Panics
    /// When `len` exceeds the buffer.
    #[must_use]
    pub fn lent(buffer: Buffer, len: usize) -> Self {
        assert!(len <= buffer.len(), "message of {len} bytes in a buffer of {}", buffer.len());
        Self::at(Elsewhere::Lent(buffer), len)
    }

    /// The message with a tail.
    #[must_use]
    pub fn with_tail(mut self, tail: Option<Payload>) -> Self {
        self.set_tail(tail.map(Tail::Payload));
        self
    }

    fn set_tail(&mut self, tail: Option<Tail>) {
        if tail.is_some() || self.beside.is_some() {
            self.beside.get_or_insert_default().tail = tail;
        }
    }

    /// The message with a tail that is still arriving.
    #[must_use]
    pub fn with_stream(mut self, stream: PayloadStream) -> Self {
        self.set_tail(Some(Tail::Stream(stream)));
        self
    }

    /// Makes a message of its beginning only, as there was no memory for all of it.
    #[must_use]
    pub fn refused(beginning: Vec<u8>, refusal: Refusal) -> Self {
        let mut message = Self::private(beginning);
        message.beside.get_or_insert_default().refusal = Some(refusal);
        message
    }

    /// Why the message was cut to its beginning, if it was.
    #[must_use]
    pub fn refusal(&self) -> Option<&Refusal> {
        self.beside.as_deref()?.refusal.as_ref()
    }

    /// The message with its share of a memory budget, held until it is dropped or the charge is
    /// taken.
    #[must_use]
    pub fn with_charge(mut self, charge: Option<Reservation>) -> Self {
        if charge.is_some() {
            self.beside.get_or_insert_default().charge = charge;
        }
        self
    }

    /// Takes its share of a memory budget, to be held as long as whatever is made of the message.
    pub fn take_charge(&mut self) -> Option<Reservation> {
        self.beside.as_deref_mut()?.charge.take()
    }

    /// Length of the bytes not yet consumed.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.storage.end - self.storage.start
    }

    /// Whether all is consumed.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether there is nothing but the head: neither a tail nor memory for the answer.
    #[inline]
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.beside.is_none()
    }

    /// Marks the first bytes that are left as something else than the rest, for who reads it.
    pub fn mark(&mut self, count: u16) {
        self.beside.get_or_insert_default().marked = count;
    }

    /// The marked bytes; none, unless there are some.
    #[must_use]
    pub fn marked(&self) -> &[u8] {
        let count = self.beside.as_ref().map_or(0, |beside| usize::from(beside.marked));
        self.get(..count).unwrap_or_default()
    }

    /// Skips the marked bytes.
    pub fn skip_marked(&mut self) {
        let count = self.marked().len();
        if count != 0 {
            self.mark(0);
            self.advance(count);
        }
    }

    /// The message's tail, if it has arrived completely.
    #[inline]
    #[must_use]
    pub fn tail(&self) -> Option<&Payload> {
        match self.beside.as_deref()?.tail.as_ref() {
            Some(Tail::Payload(payload)) => Some(payload),
            _ => None,
        }
    }

    /// Length of the tail, bytes, whether it has arrived or is still arriving; 0 without one.
    #[inline]
    #[must_use]
    pub fn tail_bytes(&self) -> u64 {
        let Some(beside) = self.beside.as_deref() else { return 0 };
        match &beside.tail {
            None => beside.refusal.map_or(0, |refusal| refusal.tail_bytes),
            Some(Tail::Payload(payload)) => payload.len(),
            Some(Tail::Stream(stream)) => stream.len(),
        }
    }

    /// Takes the tail, if it has arrived completely.
    pub fn take_tail(&mut self) -> Option<Payload> {
        let tail = &mut self.beside.as_deref_mut()?.tail;
        match tail.take_if(|tail| matches!(tail, Tail::Payload(_)))? {
            Tail::Payload(payload) => Some(payload),
            Tail::Stream(_) => None,
        }
    }

    /// Takes the tail as a stream, if it is longer than the receiver's `assembly_bytes`: it arrives
    /// while it is read.
    pub fn take_stream(&mut self) -> Option<PayloadStream> {
        let tail = &mut self.beside.as_deref_mut()?.tail;
        match tail.take_if(|tail| matches!(tail, Tail::Stream(_)))? {
            Tail::Stream(stream) => Some(stream),
            Tail::Payload(_) => None,
        }
    }

    /// The message with memory that its sender offers for the answer.
    #[must_use]
    pub fn with_slot(mut self, slot: Option<PeerSlot>) -> Self {
        if slot.is_some() || self.beside.is_some() {
            self.beside.get_or_insert_default().slot = slot;
        }
        self
    }

    /// Takes the memory that the sender offers for the answer.
    pub fn take_slot(&mut self) -> Option<PeerSlot> {
        self.beside.as_deref_mut()?.slot.take()
    }

    /// Whether a RECV buffer is lent.
    #[must_use]
    pub fn is_lent(&self) -> bool {
        matches!(self.storage.elsewhere, Elsewhere::Lent(_))
    }

    /// Skips the first `count` bytes (a header that has been read).
    ///
    /// # Panics
    /// When fewer bytes are left.
    #[inline]
    pub fn advance(&mut self, count: usize) {
        let storage = &mut *self.storage;
        assert!(count <= storage.end - storage.start, "advance past the end of a message");
        storage.start += count;
    }

    /// The remaining bytes as an owned `Vec`; free of copying when it was made of one and never
    /// advanced.
    #[must_use]
    pub fn into_vec(mut self) -> Vec<u8> {
        let len = self.len();
        match &mut self.storage.elsewhere {
            Elsewhere::Private(bytes) if bytes.len() == len => std::mem::take(bytes),
            _ => self.to_vec(),
        }
    }
}

#[cold]
fn replace(storage: &mut Vec<u8>, bytes: &[u8]) {
    storage.clear();
    storage.extend_from_slice(bytes);
}

impl Deref for Message {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let storage = &*self.storage;
        let all: &[u8] = match &storage.elsewhere {
            Elsewhere::Nowhere => &storage.bytes,
            Elsewhere::Private(bytes) => bytes,
            Elsewhere::Lent(buffer) => buffer,
        };
        &all[storage.start..storage.end]
    }
}

impl Drop for Message {
    #[inline]
    fn drop(&mut self) {
        if let Some(beside) = self.beside.take() {
            drop_beside(beside);
        }
    }
}

#[cold]
fn drop_beside(beside: Box<Beside>) {
    drop(beside);
}

impl Default for Message {
    #[inline]
    fn default() -> Self {
        Self::copied(&[])
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_lent() { "lent" } else { "private" };
        let tail = self.beside.as_ref().and_then(|beside| beside.tail.as_ref());
        write!(f, "Message({} bytes, {kind}, tail {tail:?})", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consumed_headers_are_not_part_of_the_message() {
        let mut message = Message::copied(b"headerbody");
        message.advance(6);
        assert_eq!(&*message, b"body");
        assert_eq!(message.into_vec(), b"body");
    }

    /// Reused storage holds some bytes of its last use, which must not show in a message.
    #[test]
    fn a_short_message_ends_where_it_ends() {
        drop(Message::copied(&[7; 200]));
        for _ in 0..2 {
            let message = Message::copied(b"short");
            assert_eq!((&*message, message.len()), (&b"short"[..], 5));
            assert_eq!(Message::copied(&[8; 300]).into_vec(), [8; 300]);
            assert_eq!(Message::copied(b"vec").into_vec(), b"vec");
        }
    }

    #[test]
    #[should_panic(expected = "advance past the end")]
    fn advancing_past_the_end_panics() {
        Message::copied(b"ab").advance(3);
    }
}
