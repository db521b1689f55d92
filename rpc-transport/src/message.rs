//! Received bytes: a message that the layers above own, wherever its bytes lie.
//!
//! Owns the choice between private memory (copied out, RECV reposted at once) and a lent RECV
//! buffer (zero-copy, comes home when the message is dropped). Readers see `&[u8]` either way. What
//! was sent as a tail is beside it, as a [`Payload`].
//!
//! Invariants:
//! 1. `start <= end <= length of the storage`.
//! 2. A lent buffer has no remote access ([`Buffer`]'s invariant 1), so the peer cannot change it.

use std::fmt;
use std::ops::Deref;

use crate::memory::Buffer;
use crate::outbound::{keep_storage, take_storage};
use crate::payload::Payload;
use crate::payload_stream::PayloadStream;
use crate::reply_slot::PeerSlot;

enum Storage {
    Private(Vec<u8>),
    Lent(Buffer),
}

/// A received message. Dereferences to the bytes not yet consumed.
pub struct Message {
    storage: Storage,
    start: usize,
    end: usize,
    // Boxed: most messages have none, and all are moved around.
    tail: Option<Box<Tail>>,
    /// Memory that the sender offers for the answer.
    slot: Option<Box<PeerSlot>>,
}

/// What came behind the head.
#[derive(Debug)]
enum Tail {
    Payload(Payload),
    Stream(PayloadStream),
}

impl Message {
    /// Copies `bytes` out; storage comes from a per-thread list.
    #[inline]
    #[must_use]
    pub fn copied(bytes: &[u8]) -> Self {
        let mut storage = take_storage();
        storage.extend_from_slice(bytes);
        Self::private(storage)
    }

    /// Takes bytes that are private already.
    #[must_use]
    pub fn private(bytes: Vec<u8>) -> Self {
        let end = bytes.len();
        Self { storage: Storage::Private(bytes), start: 0, end, tail: None, slot: None }
    }

    /// Lends the first `len` bytes of a RECV buffer.
    ///
    /// # Panics
    /// When `len` exceeds the buffer.
    #[must_use]
    pub fn lent(buffer: Buffer, len: usize) -> Self {
        assert!(len <= buffer.len(), "message of {len} bytes in a buffer of {}", buffer.len());
        Self { storage: Storage::Lent(buffer), start: 0, end: len, tail: None, slot: None }
    }

    /// The message with a tail.
    #[must_use]
    pub fn with_tail(mut self, tail: Option<Payload>) -> Self {
        self.tail = tail.map(|tail| Box::new(Tail::Payload(tail)));
        self
    }

    /// The message with a tail that is still arriving.
    #[must_use]
    pub fn with_stream(mut self, stream: PayloadStream) -> Self {
        self.tail = Some(Box::new(Tail::Stream(stream)));
        self
    }

    /// What was sent as the message's tail, if it has arrived as a whole.
    #[must_use]
    pub fn tail(&self) -> Option<&Payload> {
        match self.tail.as_deref() {
            Some(Tail::Payload(payload)) => Some(payload),
            _ => None,
        }
    }

    /// Length of the tail, bytes, whether it has arrived or is still arriving; 0 without one.
    #[must_use]
    pub fn tail_bytes(&self) -> u64 {
        match self.tail.as_deref() {
            None => 0,
            Some(Tail::Payload(payload)) => payload.len(),
            Some(Tail::Stream(stream)) => stream.len(),
        }
    }

    /// Takes the tail away, if it has arrived as a whole.
    pub fn take_tail(&mut self) -> Option<Payload> {
        match self.tail.take().map(|tail| *tail) {
            Some(Tail::Payload(payload)) => Some(payload),
            Some(stream) => {
                self.tail = Some(Box::new(stream));
                None
            }
            None => None,
        }
    }

    /// Takes the tail away, if it is longer than the receiver's `assembly_bytes`: it arrives while
    /// it is read.
    pub fn take_stream(&mut self) -> Option<PayloadStream> {
        match self.tail.take().map(|tail| *tail) {
            Some(Tail::Stream(stream)) => Some(stream),
            Some(payload) => {
                self.tail = Some(Box::new(payload));
                None
            }
            None => None,
        }
    }

    /// The message with memory that its sender offers for the answer.
    #[must_use]
    pub fn with_slot(mut self, slot: Option<PeerSlot>) -> Self {
        self.slot = slot.map(Box::new);
        self
    }

    /// Takes the memory that the sender offers for the answer.
    pub fn take_slot(&mut self) -> Option<PeerSlot> {
        self.slot.take().map(|slot| *slot)
    }

    /// Whether a RECV buffer is lent.
    #[must_use]
    pub fn is_lent(&self) -> bool {
        matches!(self.storage, Storage::Lent(_))
    }

    /// Drops the first `count` bytes (a header that has been read).
    ///
    /// # Panics
    /// When fewer bytes are left.
    #[inline]
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.len(), "advance past the end of a message");
        self.start += count;
    }

    /// The remaining bytes as an owned `Vec`; free of copying when private and never advanced.
    #[must_use]
    pub fn into_vec(mut self) -> Vec<u8> {
        match &mut self.storage {
            Storage::Private(bytes) if self.start == 0 => {
                bytes.truncate(self.end);
                std::mem::take(bytes)
            }
            _ => self.to_vec(),
        }
    }
}

impl Deref for Message {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let all: &[u8] = match &self.storage {
            Storage::Private(bytes) => bytes,
            Storage::Lent(buffer) => buffer,
        };
        &all[self.start..self.end]
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if let Storage::Private(bytes) = &mut self.storage {
            keep_storage(std::mem::take(bytes));
        }
    }
}

impl Default for Message {
    fn default() -> Self {
        Self::private(Vec::new())
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_lent() { "lent" } else { "private" };
        write!(f, "Message({} bytes, {kind}, tail {:?})", self.len(), self.tail)
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

    #[test]
    #[should_panic(expected = "advance past the end")]
    fn advancing_past_the_end_is_a_bug_of_the_caller() {
        Message::copied(b"ab").advance(3);
    }
}
