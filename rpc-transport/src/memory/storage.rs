//! Storage of messages: private memory that is used again.
//!
//! Owns the bytes of one message, and for each thread a bounded list of storage that no message has, so that
//! a steady stream of small messages allocates nothing. All of it is behind one pointer, as messages are moved
//! many times on their way. Knows nothing of what the bytes mean.
//!
//! Invariants:
//! 1. What is in a list has nothing but bytes of its own, and links to what is below it, of which it knows
//!    the number.
//! 2. A list holds at most [`KEEP_SMALL_COUNT`]; larger storage is added to a shorter one only.
#![allow(unsafe_code, reason = "takes the box out of its owner when that is dropped")]

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

use crate::memory::region::Buffer;

/// Length of the bytes of what is used again: room for headers, which need not be filled then.
pub(crate) const KEPT_BYTES: usize = 96;
/// Storage with more room than this is freed instead of kept in the list, bytes.
const KEEP_BYTES: usize = 16 * 1024;
/// Least room of new storage, bytes. A small message with its headers never outgrows it, so a thread stops
/// allocating once it has had its highest number of messages at once.
const MIN_BYTES: usize = 512;
/// What has this much room at most is small, bytes.
const SMALL_BYTES: usize = 2 * MIN_BYTES;
/// A list that has as many takes no more of storage that is not small.
const KEEP_COUNT: u32 = 64;
/// Most that it keeps: streams have more small messages under way than calls.
const KEEP_SMALL_COUNT: u32 = 320;

thread_local! {
    // What has no destructor is reached without a look at whether that has run: so there is one beside it.
    static FREE: Cell<ManuallyDrop<Option<Box<Stored>>>> = const { Cell::new(ManuallyDrop::new(None)) };
    /// `AT_END` is made, and has not run. Storage is kept only then.
    static IS_WATCHED: Cell<bool> = const { Cell::new(false) };
    static AT_END: AtEnd = const { AtEnd };
}

/// Empties the list of a thread when that ends.
struct AtEnd;

impl Drop for AtEnd {
    fn drop(&mut self) {
        IS_WATCHED.set(false);
        drop(top(None));
    }
}

/// Puts other storage, and what is below it, at the top of the list.
#[inline]
fn top(stored: Option<Box<Stored>>) -> Option<Box<Stored>> {
    // A thread that is gone has kept nothing.
    let before = FREE.try_with(|free| free.replace(ManuallyDrop::new(stored)));
    before.ok().and_then(ManuallyDrop::into_inner)
}

/// Storage of one message. It goes to the thread's list when it is dropped, unless it has little or much room, or
/// the list is full.
pub(crate) struct Storage(ManuallyDrop<Box<Stored>>);

/// What a [`Storage`] has.
pub(crate) struct Stored {
    /// Bytes of its own, which may be those of an earlier message.
    pub(crate) bytes: Vec<u8>,
    /// Where the message starts and ends, as its owner says.
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) elsewhere: Elsewhere,
    below: Option<Box<Self>>,
    /// The number of those below it.
    count: u32,
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
    /// Takes it from the list of this thread, or makes it.
    #[inline]
    pub(crate) fn take() -> Self {
        let stored = match top(None) {
            Some(mut stored) => {
                // There is nothing to drop.
                std::mem::forget(top(stored.below.take()));
                stored
            }
            None => new(),
        };
        Self(ManuallyDrop::new(stored))
    }
}

#[cold]
fn new() -> Box<Stored> {
    Box::new(Stored {
        bytes: Vec::with_capacity(MIN_BYTES),
        start: 0,
        end: 0,
        elsewhere: Elsewhere::Nowhere,
        below: None,
        count: 0,
    })
}

fn give_back(stored: Box<Stored>) {
    let is_small = (MIN_BYTES..=SMALL_BYTES).contains(&stored.bytes.capacity());
    if !is_small || !matches!(stored.elsewhere, Elsewhere::Nowhere) {
        return keep_rarely(stored);
    }
    match top(None) {
        Some(below) if below.count < KEEP_SMALL_COUNT - 1 => keep(stored, Some(below)),
        None if IS_WATCHED.get() => keep(stored, None),
        below => keep_at_limit(stored, below),
    }
}

/// Puts storage into the list of which the top was taken.
#[inline]
fn keep(mut stored: Box<Stored>, below: Option<Box<Stored>>) {
    stored.bytes.truncate(KEPT_BYTES);
    stored.count = below.as_ref().map_or(0, |below| below.count + 1);
    // Neither links to anything, so nothing has to be dropped.
    std::mem::forget(std::mem::replace(&mut stored.below, below));
    std::mem::forget(top(Some(stored)));
}

/// The same for the first one of a thread, and for one too many.
#[cold]
fn keep_at_limit(stored: Box<Stored>, below: Option<Box<Stored>>) {
    if below.is_some() {
        drop(top(below));
    } else if AT_END.try_with(|_| IS_WATCHED.set(true)).is_ok() {
        keep(stored, None);
    }
}

/// The same for one that is not small, or whose message is elsewhere.
#[cold]
fn keep_rarely(mut stored: Box<Stored>) {
    stored.elsewhere = Elsewhere::Nowhere;
    match stored.bytes.capacity() {
        MIN_BYTES..=SMALL_BYTES => give_back(stored),
        capacity if (SMALL_BYTES..=KEEP_BYTES).contains(&capacity) => match top(None) {
            Some(below) if below.count < KEEP_COUNT - 1 => keep(stored, Some(below)),
            below => keep_at_limit(stored, below),
        },
        _ => {}
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
    fn kept() -> u32 {
        let stored = top(None);
        let count = stored.as_ref().map_or(0, |stored| stored.count + 1);
        assert!(top(stored).is_none());
        count
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
        drop(top(None));
        let many: Vec<_> = (0..2 * KEEP_COUNT).map(|_| sized(KEEP_BYTES)).collect();
        drop(many);
        assert_eq!(kept(), KEEP_COUNT);
    }

    #[test]
    fn storage_that_is_too_small_or_too_large_is_not_kept() {
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
        thread_local! {
            static LAST: Cell<Option<Storage>> = const { Cell::new(None) };
        }
        std::thread::spawn(|| LAST.set(Some(Storage::take()))).join().unwrap();
    }
}
