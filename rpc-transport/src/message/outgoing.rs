//! Outgoing bytes: one growable buffer with room in front for headers.
//!
//! Owns the bytes of a message from encoding until it is posted, so that the layers below can put
//! their headers in front without copying. Never registered memory: for a device that needs it, the
//! frame is copied into a send buffer when it is posted.
//!
//! A message may have a *tail* behind its bytes, the *head*: spans of memory that are sent in
//! place, without a copy ([`OutPart`]). The receiver gets head and tail separately.
//!
//! Invariants:
//! 1. `start <= bytes.len()`; the message is `bytes[start..]`.
//! 2. Storage comes from and returns to a bounded per-thread list, so that a steady stream of
//!    small messages allocates nothing.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};

use crate::memory::budget::Reservation;
use crate::message::part::OutPart;
use crate::message::reply_slot::{PeerSlot, SlotOffer};
use crate::user_code::assert_may_run;

/// Room for headers in front of a new message, bytes: link and session headers with all their fixed
/// optional blocks.
pub const HEADROOM_BYTES: usize = 96;

/// Storage above this size is freed instead of kept in the list, bytes.
const KEEP_BYTES: usize = 16 * 1024;
/// Smallest storage, bytes. A small message with its headers never outgrows it, so a thread stops
/// allocating once it has had its highest number of messages at once.
const MIN_BYTES: usize = 512;
/// Most buffers that a thread keeps.
const KEEP_COUNT: usize = 64;
/// Most that it keeps of small ones: streams have more messages under way than calls.
const KEEP_SMALL_COUNT: usize = 320;

thread_local! {
    static FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Takes a `Vec` of at least [`MIN_BYTES`] from the thread's list. It may hold some bytes of its
/// last use.
#[inline]
pub(crate) fn take_used() -> Vec<u8> {
    let kept = FREE.try_with(|free| free.borrow_mut().pop()).ok().flatten();
    kept.unwrap_or_else(new_storage)
}

#[cold]
fn with_headroom(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(HEADROOM_BYTES, 0);
    bytes
}

#[cold]
fn new_storage() -> Vec<u8> {
    Vec::with_capacity(MIN_BYTES)
}

/// Storage that goes to the thread's list when it is dropped, unless it is small or large, or the list is
/// full.
pub(crate) struct Storage(Vec<u8>);

impl From<Vec<u8>> for Storage {
    #[inline]
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl Deref for Storage {
    type Target = Vec<u8>;

    #[inline]
    fn deref(&self) -> &Vec<u8> {
        &self.0
    }
}

impl DerefMut for Storage {
    #[inline]
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }
}

impl Drop for Storage {
    #[inline]
    fn drop(&mut self) {
        if (MIN_BYTES..=KEEP_BYTES).contains(&self.capacity()) {
            give_back(std::mem::take(&mut self.0));
        }
    }
}

fn give_back(mut bytes: Vec<u8>) {
    // Keep the length of a headroom, so that it need not be filled when it is reused as one.
    bytes.truncate(HEADROOM_BYTES);
    let left = FREE.try_with(|free| {
        let mut free = free.borrow_mut();
        if free.len() == free.capacity() {
            return Some(bytes);
        }
        if free.len() < KEEP_COUNT || bytes.capacity() <= 2 * MIN_BYTES {
            free.push(bytes);
        }
        None
    });
    // A thread that is ending has no list any more; the storage is then just freed.
    if let Ok(Some(bytes)) = left {
        make_room(bytes);
    }
}

/// The list is allocated once, at its full size.
#[cold]
fn make_room(bytes: Vec<u8>) {
    let _ = FREE.try_with(|free| {
        let mut free = free.borrow_mut();
        if free.len() < KEEP_SMALL_COUNT {
            free.reserve_exact(KEEP_SMALL_COUNT);
            free.push(bytes);
        }
    });
}

/// An outgoing message.
pub struct OutBuf {
    // Boxed: most messages have none, and every message is moved around. The first field, so that a drop
    // knows that it is empty.
    tail: Option<Box<Tail>>,
    bytes: Storage,
    start: usize,
}

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
        let mut bytes = take_used();
        if bytes.len() != HEADROOM_BYTES {
            bytes = with_headroom(bytes);
        }
        Self { bytes: bytes.into(), start: HEADROOM_BYTES, tail: None }
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

    /// Length of the message's head, bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Whether the head has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends bytes.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Reserves room for `additional` bytes at the end.
    pub fn reserve(&mut self, additional: usize) {
        self.bytes.reserve(additional);
    }

    /// Cuts the message back to `len` bytes (to drop a failed encoding).
    pub fn truncate(&mut self, len: usize) {
        self.bytes.truncate(self.start + len);
    }

    /// Puts `header` in front. Moves the message's bytes only when the headroom is used up.
    #[inline]
    pub fn prepend(&mut self, header: &[u8]) {
        if header.len() > self.start {
            self.grow_front(header.len() - self.start + HEADROOM_BYTES);
        }
        self.start -= header.len();
        self.bytes[self.start..self.start + header.len()].copy_from_slice(header);
    }

    #[cold]
    fn grow_front(&mut self, additional: usize) {
        self.bytes.splice(0..0, std::iter::repeat_n(0, additional));
        self.start += additional;
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
            self.start += usize::from(std::mem::take(&mut tail.marked));
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
        self.start = self.start.max(self.bytes.len().saturating_sub(len));
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
        let at = self.start + offset;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// The head as a growable `Vec`, for encoders that append to one. Bytes before the current end
    /// must not be touched.
    #[inline]
    pub fn as_vec_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
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
        &self.bytes[self.start..]
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
    fn a_header_larger_than_the_headroom_moves_the_message() {
        let mut out = OutBuf::new();
        out.extend_from_slice(b"payload");
        let header = vec![7; HEADROOM_BYTES * 3 + 1];
        out.prepend(&header);
        assert_eq!(out.len(), header.len() + 7);
        assert_eq!(&out[..header.len()], &header[..]);
        assert_eq!(&out[header.len()..], b"payload");
    }

    #[test]
    fn storage_is_reused_on_the_same_thread() {
        let mut first = OutBuf::new();
        first.extend_from_slice(&[1; 100]);
        let address = first.bytes.as_ptr();
        drop(first);
        let second = OutBuf::new();
        assert_eq!(second.bytes.as_ptr(), address);
        assert!(second.is_empty());
    }

    #[test]
    fn a_thread_keeps_a_bounded_number() {
        let many: Vec<_> = (0..2 * KEEP_SMALL_COUNT).map(|_| OutBuf::new()).collect();
        drop(many);
        assert_eq!(FREE.with(|free| free.borrow().len()), KEEP_SMALL_COUNT);
        // Larger ones are fewer.
        FREE.with(|free| free.borrow_mut().clear());
        (0..2 * KEEP_COUNT).for_each(|_| drop(Storage(Vec::with_capacity(KEEP_BYTES))));
        assert_eq!(FREE.with(|free| free.borrow().len()), KEEP_COUNT);
    }

    /// A regression: storage of any size was reused, and each piece grew several times until all
    /// were large enough.
    #[test]
    fn small_messages_never_grow_storage() {
        drop(Storage(Vec::with_capacity(8)));
        for _ in 0..3 {
            let mut outs: Vec<_> = (0..8).map(|_| OutBuf::new()).collect();
            for out in &mut outs {
                let at = out.bytes.as_ptr();
                out.extend_from_slice(&[1; 256]);
                out.prepend(&[2; HEADROOM_BYTES]);
                assert_eq!(out.bytes.as_ptr(), at);
            }
        }
    }
}
