//! Outgoing bytes: one growable buffer with room in front for headers.
//!
//! Owns the bytes of a message from encoding until it is posted, so that the layers below can put
//! their headers in front without copying. Never registered memory: for a device that needs it, the
//! frame is copied into a send buffer when it is posted.
//!
//! A message may have a *tail* behind its bytes, the *head*: spans of memory that are sent in
//! place, without a copy ([`OutPart`]). The receiver gets head and tail separately.
//!
//! Invariant: `start <= bytes.len()` in the message's storage; its head is `bytes[start..]`.

use std::fmt;
use std::io;
use std::ops::Deref;

use crate::memory::budget::Reservation;
use crate::memory::storage::{KEPT_BYTES, MIN_BYTES, Storage};
use crate::message::part::OutPart;
use crate::message::reply_slot::{PeerSlot, SlotOffer};
use crate::user_code::assert_may_run;

/// Room for headers in front of a new message, bytes: link and session headers with all their fixed
/// optional blocks.
pub const HEADROOM_BYTES: usize = KEPT_BYTES;

/// The least that [`OutBuf::held_bytes`] returns.
pub const LEAST_HELD_BYTES: u64 = MIN_BYTES as u64;

#[cold]
fn make_headroom(bytes: &mut Vec<u8>) {
    bytes.resize(HEADROOM_BYTES, 0);
}

/// An outgoing message.
pub struct OutBuf {
    // Boxed: most messages have none, and every message is moved around. The first field, so that a
    // drop knows that it is empty.
    tail: Option<Box<Tail>>,
    storage: Storage,
}

const _: () = assert!(size_of::<Option<OutBuf>>() <= 16, "a message is moved many times");

/// The tail, its destination, and the offer of memory for the answer.
#[derive(Default)]
struct Tail {
    parts: Vec<OutPart>,
    len: u64,
    offer: Option<SlotOffer>,
    place: Option<PeerSlot>,
    /// The message's share of a memory budget, until it is dropped.
    charge: Option<Reservation>,
    /// How many of the head's first bytes [`OutBuf::prepend_marked`] has put there.
    marked: u16,
}

impl OutBuf {
    /// An empty message with [`HEADROOM_BYTES`] in front.
    #[inline]
    #[must_use]
    pub fn new() -> Self {
        let mut storage = Storage::take();
        if storage.bytes.len() != HEADROOM_BYTES {
            make_headroom(&mut storage.bytes);
        }
        storage.start = HEADROOM_BYTES;
        Self { tail: None, storage }
    }

    /// Appends a part to the tail. An empty one adds nothing.
    pub fn push_tail(&mut self, part: OutPart) {
        if part.is_empty() {
            return;
        }
        let tail = self.tail.get_or_insert_default();
        tail.len += part.len();
        tail.parts.push(part);
    }

    /// The parts of the tail.
    #[inline]
    #[must_use]
    pub fn tail(&self) -> &[OutPart] {
        self.tail.as_ref().map_or(&[], |tail| &tail.parts)
    }

    /// Length of the tail, bytes.
    #[inline]
    #[must_use]
    pub fn tail_len(&self) -> u64 {
        self.tail.as_ref().map_or(0, |tail| tail.len)
    }

    /// Offers memory for the tail of the answer, replacing an earlier offer. The answerer chooses
    /// whether to use it.
    pub fn offer_slot(&mut self, offer: SlotOffer) {
        self.tail.get_or_insert_default().offer = Some(offer);
    }

    /// Has the tail written into a slot of the receiver, if it fits; otherwise the slot is released
    /// unused.
    pub fn place_in(&mut self, slot: PeerSlot) {
        self.tail.get_or_insert_default().place = Some(slot);
    }

    /// Holds a reservation until the message is dropped: sent, revoked, or abandoned.
    pub fn charge(&mut self, charge: Reservation) {
        self.tail.get_or_insert_default().charge = Some(charge);
    }

    /// Whether it holds a reservation.
    #[must_use]
    pub fn is_charged(&self) -> bool {
        self.tail.as_ref().is_some_and(|tail| tail.charge.is_some())
    }

    pub(crate) fn offer(&self) -> Option<&SlotOffer> {
        self.tail.as_ref()?.offer.as_ref()
    }

    /// The slot that the tail goes to.
    pub(crate) fn place(&self) -> Option<&PeerSlot> {
        let tail = self.tail.as_ref()?;
        tail.place.as_ref().filter(|slot| tail.len <= slot.len && tail.len > 0)
    }

    /// Takes the tail away.
    pub fn take_tail(&mut self) -> Vec<OutPart> {
        self.tail.as_mut().map_or_else(Vec::new, |tail| {
            tail.len = 0;
            std::mem::take(&mut tail.parts)
        })
    }

    /// Length of head and tail, bytes.
    #[inline]
    #[must_use]
    pub fn total_len(&self) -> u64 {
        self.len() as u64 + self.tail_len()
    }

    /// Memory that the message holds while it waits, bytes: its head's storage, of which a small
    /// message uses little, and its tail. At least [`LEAST_HELD_BYTES`].
    #[inline]
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.storage.held_bytes() as u64 + self.tail_len()
    }

    /// Length of the message's head, bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.storage.bytes.len() - self.storage.start
    }

    /// Whether the head has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends bytes.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.storage.bytes.extend_from_slice(bytes);
    }

    /// Reserves room for `additional` bytes at the end.
    pub fn reserve(&mut self, additional: usize) {
        self.storage.bytes.reserve(additional);
    }

    /// Cuts the message back to `len` bytes (to drop a failed encoding).
    pub fn truncate(&mut self, len: usize) {
        let storage = &mut *self.storage;
        storage.bytes.truncate(storage.start + len);
    }

    /// Puts `header` in front. Moves the message's bytes only when the headroom is used up.
    #[inline]
    pub fn prepend(&mut self, header: &[u8]) {
        if header.len() > self.storage.start {
            self.grow_front(header.len() - self.storage.start + HEADROOM_BYTES);
        }
        let storage = &mut *self.storage;
        storage.start -= header.len();
        storage.bytes[storage.start..storage.start + header.len()].copy_from_slice(header);
    }

    #[cold]
    fn grow_front(&mut self, additional: usize) {
        self.storage.bytes.splice(0..0, std::iter::repeat_n(0, additional));
        self.storage.start += additional;
    }

    /// Puts a part of the head in front whose length the layer above wants to know again:
    /// [`OutBuf::marks`]. There is one at most.
    pub fn prepend_marked(&mut self, bytes: &[u8]) {
        self.drop_marked();
        let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        self.prepend(&bytes[..usize::from(len)]);
        self.tail.get_or_insert_default().marked = len;
    }

    /// Takes that part away again. Nothing must stand before it.
    pub fn drop_marked(&mut self) {
        if let Some(tail) = &mut self.tail {
            self.storage.start += usize::from(std::mem::take(&mut tail.marked));
        }
    }

    /// Whether there is a tail, and the length of the marked part, bytes.
    #[inline]
    #[must_use]
    pub fn marks(&self) -> (bool, u16) {
        self.tail.as_ref().map_or((false, 0), |tail| (tail.len != 0, tail.marked))
    }

    /// Takes away all that was put in front of the last `len` bytes of the head, and an offer of
    /// memory for the answer: the message is as it was before it was handed to a connection, for
    /// another one. A head that is not longer stays.
    pub fn rewind(&mut self, len: usize) {
        self.storage.start = self.storage.start.max(self.storage.bytes.len().saturating_sub(len));
        if let Some(tail) = &mut self.tail {
            tail.offer = None;
        }
    }

    /// The same message once more: the bytes of the head are copied, the parts of the tail shared.
    /// Offers, places and reservations stay with this one.
    #[must_use]
    pub fn copied(&self) -> Self {
        let mut copy = Self::new();
        copy.extend_from_slice(self);
        for part in self.tail() {
            copy.push_tail(part.clone());
        }
        copy
    }

    /// Overwrites bytes from `offset` on, for headers whose values are known late.
    ///
    /// # Panics
    /// When the span lies outside the message.
    pub fn patch(&mut self, offset: usize, bytes: &[u8]) {
        let at = self.storage.start + offset;
        self.storage.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// The head as a growable `Vec`, for encoders that append to one. Bytes before the current end
    /// must not be touched.
    #[inline]
    pub fn as_vec_mut(&mut self) -> &mut Vec<u8> {
        &mut self.storage.bytes
    }
}

impl Default for OutBuf {
    fn default() -> Self {
        Self::new()
    }
}

impl Deref for OutBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.storage.bytes[self.storage.start..]
    }
}

impl AsRef<[u8]> for OutBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for OutBuf {
    #[inline]
    fn drop(&mut self) {
        if let Some(tail) = self.tail.take() {
            drop_tail(tail);
        }
    }
}

#[cold]
fn drop_tail(tail: Box<Tail>) {
    if !tail.parts.is_empty() {
        assert_may_run("a message with a tail was dropped");
    }
    drop(tail);
}

impl io::Write for OutBuf {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.extend_from_slice(buf);
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for OutBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OutBuf({} bytes", self.len())?;
        match self.tail_len() {
            0 => f.write_str(")"),
            tail => write!(f, " and a tail of {tail})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_go_in_front_in_reverse_order() {
        let mut out = OutBuf::new();
        out.extend_from_slice(b"payload");
        out.prepend(b"session");
        out.prepend(b"link");
        assert_eq!(&*out, b"linksessionpayload");
        out.patch(0, b"LINK");
        assert_eq!(&*out, b"LINKsessionpayload");
    }

    #[test]
    fn oversized_header_moves_the_message() {
        let mut out = OutBuf::new();
        out.extend_from_slice(b"payload");
        let header = vec![7; HEADROOM_BYTES * 3 + 1];
        out.prepend(&header);
        assert_eq!(out.len(), header.len() + 7);
        assert_eq!(&out[..header.len()], &header[..]);
        assert_eq!(&out[header.len()..], b"payload");
    }

    #[test]
    fn new_message_has_no_earlier_contents() {
        let mut first = OutBuf::new();
        first.extend_from_slice(&[1; 100]);
        first.prepend(&[2; 16]);
        drop(first);
        let second = OutBuf::new();
        assert!(second.is_empty());
    }

    /// With all headers in front, a small message stays where it is.
    #[test]
    fn small_messages_never_move() {
        for _ in 0..3 {
            let mut outs: Vec<_> = (0..8).map(|_| OutBuf::new()).collect();
            for out in &mut outs {
                let at = out.storage.bytes.as_ptr();
                out.extend_from_slice(&[1; 256]);
                out.prepend(&[2; HEADROOM_BYTES]);
                assert_eq!(out.storage.bytes.as_ptr(), at);
            }
        }
    }
}
