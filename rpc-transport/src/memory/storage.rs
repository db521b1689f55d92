//! Storage of messages: private memory that is used again.
//!
//! Owns the bytes of one message. Storage that no message has goes to a [`FreeList`] of the thread,
//! so that a steady stream of small messages allocates nothing. All of it is behind one pointer, as
//! messages are moved many times on their way. Knows nothing of what the bytes mean.
//!
//! Invariants:
//! 1. What is in a list has nothing but bytes of its own.
//! 2. A list holds at most [`KEEP_SMALL_COUNT`]; larger storage is added to a shorter one only.
#![allow(unsafe_code, reason = "takes the box out of its owner when that is dropped")]

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

use crate::memory::free_list::{self, FreeList};
use crate::memory::region::Buffer;

/// Length of the bytes of what is used again: room for headers, which need not be filled then.
pub(crate) const KEPT_BYTES: usize = 96;
/// Storage with more room than this is freed instead of kept in the list, bytes.
const KEEP_BYTES: usize = 16 * 1024;
/// Least room of new storage, bytes. A small message with its headers never outgrows it, so a
/// thread stops allocating once it has had its highest number of messages at once.
pub(crate) const MIN_BYTES: usize = 512;
/// What has this much room at most is small, bytes.
const SMALL_BYTES: usize = 2 * MIN_BYTES;
/// A list that has as many takes no more of storage that is not small.
const KEEP_COUNT: usize = 64;
/// Most that it keeps: streams have more small messages under way than calls.
const KEEP_SMALL_COUNT: usize = 320;

thread_local! {
    static FREE: FreeList<Box<Stored>, KEEP_SMALL_COUNT> = const { FreeList::new() };
}

/// Storage of one message. It goes to the thread's list when it is dropped, unless it has little or
/// much room, or the list is full.
pub(crate) struct Storage(ManuallyDrop<Box<Stored>>);

/// What a [`Storage`] has.
pub(crate) struct Stored {
    /// Bytes of its own, which may be those of an earlier message.
    pub(crate) bytes: Vec<u8>,
    /// Where the message starts and ends, as its owner says.
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) elsewhere: Elsewhere,
}

/// Where the bytes of a message are, if not in the storage's own.
// Its tag is a field: one that lies in the vector's capacity takes three times as long to read.
#[repr(u8)]
pub(crate) enum Elsewhere {
    Nowhere,
    Private(Vec<u8>),
    Lent(Buffer),
}

impl Storage {
    /// Memory that it holds, bytes, with room that no message uses.
    #[inline]
    pub(crate) fn held_bytes(&self) -> usize {
        size_of::<Stored>() + self.0.bytes.capacity()
    }

    /// Takes it from the list of this thread, or makes it.
    #[inline]
    pub(crate) fn take() -> Self {
        Self(ManuallyDrop::new(free_list::take(&FREE).unwrap_or_else(new)))
    }
}

#[cold]
fn new() -> Box<Stored> {
    Box::new(Stored {
        bytes: Vec::with_capacity(MIN_BYTES),
        start: 0,
        end: 0,
        elsewhere: Elsewhere::Nowhere,
    })
}

#[inline]
fn give_back(mut stored: Box<Stored>) {
    let is_small = (MIN_BYTES..=SMALL_BYTES).contains(&stored.bytes.capacity());
    if !is_small || !matches!(stored.elsewhere, Elsewhere::Nowhere) {
        return give_back_slow(stored);
    }
    stored.bytes.truncate(KEPT_BYTES);
    free_list::keep(&FREE, stored);
}

/// The same for storage that is not small, or whose message is elsewhere.
#[cold]
fn give_back_slow(mut stored: Box<Stored>) {
    stored.elsewhere = Elsewhere::Nowhere;
    stored.bytes.truncate(KEPT_BYTES);
    let capacity = stored.bytes.capacity();
    if !(MIN_BYTES..=KEEP_BYTES).contains(&capacity) {
        return;
    }
    let most = if capacity <= SMALL_BYTES { KEEP_SMALL_COUNT } else { KEEP_COUNT };
    if FREE.with(FreeList::count) < most {
        free_list::keep(&FREE, stored);
    }
}

impl Drop for Storage {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: nobody uses the field after this drop.
        give_back(unsafe { ManuallyDrop::take(&mut self.0) });
    }
}

impl Deref for Storage {
    type Target = Stored;

    #[inline]
    fn deref(&self) -> &Stored {
        &self.0
    }
}

impl DerefMut for Storage {
    #[inline]
    fn deref_mut(&mut self) -> &mut Stored {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How much this thread has kept.
    fn kept() -> usize {
        FREE.with(FreeList::count)
    }

    fn sized(bytes: usize) -> Storage {
        let mut stored = Storage::take();
        stored.bytes = Vec::with_capacity(bytes);
        stored
    }

    #[test]
    fn storage_is_used_again_on_the_same_thread() {
        let stored = Storage::take();
        let address = stored.bytes.as_ptr();
        drop(stored);
        assert_eq!(Storage::take().bytes.as_ptr(), address);
    }

    #[test]
    fn a_thread_keeps_a_bounded_number() {
        let many: Vec<_> = (0..2 * KEEP_SMALL_COUNT).map(|_| Storage::take()).collect();
        drop(many);
        assert_eq!(kept(), KEEP_SMALL_COUNT);
        // Larger ones are fewer.
        while free_list::take(&FREE).is_some() {}
        let many: Vec<_> = (0..2 * KEEP_COUNT).map(|_| sized(KEEP_BYTES)).collect();
        drop(many);
        assert_eq!(kept(), KEEP_COUNT);
    }

    #[test]
    fn storage_of_odd_size_is_not_kept() {
        let before = kept();
        drop([sized(8), sized(KEEP_BYTES + 1)]);
        assert_eq!(kept(), before);
    }

    /// A regression: storage of any size was reused, and each piece grew several times until all
    /// were large enough.
    #[test]
    fn small_messages_never_grow_storage() {
        drop(sized(8));
        for _ in 0..3 {
            let mut pieces: Vec<_> = (0..8).map(|_| Storage::take()).collect();
            for stored in &mut pieces {
                let at = stored.bytes.as_ptr();
                stored.bytes.resize(MIN_BYTES, 1);
                assert_eq!(stored.bytes.as_ptr(), at);
            }
        }
    }

    #[test]
    fn what_a_message_had_elsewhere_goes_with_it() {
        let mut stored = Storage::take();
        stored.elsewhere = Elsewhere::Private(vec![1; 100]);
        let address = stored.bytes.as_ptr();
        drop(stored);
        let again = Storage::take();
        assert_eq!(again.bytes.as_ptr(), address);
        assert!(matches!(again.elsewhere, Elsewhere::Nowhere));
    }

    #[test]
    fn storage_dropped_while_its_thread_ends_is_freed() {
        use std::cell::Cell;
        thread_local! {
            static LAST: Cell<Option<Storage>> = const { Cell::new(None) };
        }
        std::thread::spawn(|| LAST.set(Some(Storage::take()))).join().unwrap();
    }
}
