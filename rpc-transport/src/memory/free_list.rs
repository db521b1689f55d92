//! Values that are used again.
//!
//! Owns bounded stacks of values that nobody uses. Each thread has its own, in a `thread_local!`,
//! so taking and keeping need no lock, and a steady rate of both allocates nothing. A thread that
//! ends drops what it has kept.
//!
//! A list has no destructor: each access would have to look whether that has run. One value beside
//! the lists closes all those of a thread at its end.
//!
//! Never changes a value: its user empties it before it is kept.

use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::thread::LocalKey;

/// A stack of at most `MOST` unused values. It belongs into a `thread_local!`, and is used by the
/// functions of this module.
pub struct FreeList<T, const MOST: usize> {
    /// The number of free slots. The values are behind these, the one kept last comes first. 0 also
    /// while the list is closed.
    room: Cell<usize>,
    slots: [Slot<T>; MOST],
    /// From the first value that is kept to the end of the thread.
    is_open: Cell<bool>,
}

type Slot<T> = Cell<ManuallyDrop<Option<T>>>;

impl<T, const MOST: usize> FreeList<T, MOST> {
    /// An empty list.
    #[must_use]
    pub const fn new() -> Self {
        let slots = [const { Cell::new(ManuallyDrop::new(None)) }; MOST];
        Self { room: Cell::new(0), slots, is_open: Cell::new(false) }
    }

    #[inline]
    fn pop(&self) -> Option<T> {
        let room = self.room.get();
        let value = replace(self.slots.get(room)?, None)?;
        self.room.set(room + 1);
        Some(value)
    }

    /// Gives the value back if the list is full or closed.
    #[inline]
    fn push(&self, value: T) -> Result<(), T> {
        let at = self.room.get().wrapping_sub(1);
        let Some(slot) = self.slots.get(at) else { return Err(value) };
        // The slot is free: there is nothing to drop.
        std::mem::forget(replace(slot, Some(value)));
        self.room.set(at);
        Ok(())
    }

    /// Opens a closed list, unless the thread ends, and drops what finds no room. `close_at_end`
    /// returns whether it will call [`FreeList::close`] at the end.
    #[cold]
    fn push_slow(&self, value: T, close_at_end: impl FnOnce() -> bool) {
        if !self.is_open.get() && close_at_end() {
            self.is_open.set(true);
            self.room.set(MOST);
            let _surplus = self.push(value);
        }
    }

    /// Drops the values, which may use the list meanwhile.
    fn close(&self) {
        while let Some(value) = self.pop() {
            drop(value);
        }
        self.is_open.set(false);
        self.room.set(0);
    }

    /// The number of values in the list.
    pub fn count(&self) -> usize {
        if self.is_open.get() { MOST - self.room.get() } else { 0 }
    }
}

#[inline]
fn replace<T>(slot: &Slot<T>, value: Option<T>) -> Option<T> {
    ManuallyDrop::into_inner(slot.replace(ManuallyDrop::new(value)))
}

impl<T, const MOST: usize> Default for FreeList<T, MOST> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, const MOST: usize> std::fmt::Debug for FreeList<T, MOST> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FreeList({} values)", self.count())
    }
}

/// The value that this thread has kept last.
#[inline]
pub fn take<T, const MOST: usize>(list: &'static LocalKey<FreeList<T, MOST>>) -> Option<T> {
    list.with(FreeList::pop)
}

/// Keeps a value for this thread. Drops it if the list is full, or the thread ends.
#[inline]
pub fn keep<T, const MOST: usize>(list: &'static LocalKey<FreeList<T, MOST>>, value: T) {
    if let Err(value) = list.with(|list| list.push(value)) {
        let close_at_end = || at_end(move || list.with(FreeList::close));
        list.with(|list| list.push_slow(value, close_at_end));
    }
}

/// [`take`] from one of several lists.
#[inline]
pub fn take_at<T, const MOST: usize, const N: usize>(
    lists: &'static LocalKey<[FreeList<T, MOST>; N]>,
    at: usize,
) -> Option<T> {
    lists.with(|lists| lists[at].pop())
}

/// [`keep`] in one of several lists.
#[inline]
pub fn keep_at<T, const MOST: usize, const N: usize>(
    lists: &'static LocalKey<[FreeList<T, MOST>; N]>,
    at: usize,
    value: T,
) {
    if let Err(value) = lists.with(|lists| lists[at].push(value)) {
        let close_at_end = || at_end(move || lists.with(|lists| lists[at].close()));
        lists.with(|lists| lists[at].push_slow(value, close_at_end));
    }
}

thread_local! {
    static AT_END: AtEnd = const { AtEnd(RefCell::new(Vec::new())) };
}

/// What a thread does at its end.
struct AtEnd(RefCell<Vec<Box<dyn FnOnce()>>>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        std::mem::take(self.0.get_mut()).into_iter().for_each(|close| close());
    }
}

/// Runs a step at the end of this thread. Returns false if that has come.
fn at_end(step: impl FnOnce() + 'static) -> bool {
    AT_END.try_with(|end| end.0.borrow_mut().push(Box::new(step))).is_ok()
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_last_value_is_taken_first() {
        thread_local! {
            static KEPT: FreeList<Rc<()>, 2> = const { FreeList::new() };
        }
        assert!(take(&KEPT).is_none());
        let (first, last) = (Rc::new(()), Rc::new(()));
        keep(&KEPT, Rc::clone(&first));
        keep(&KEPT, Rc::clone(&last));
        assert!(take(&KEPT).is_some_and(|taken| Rc::ptr_eq(&taken, &last)));
        assert!(take(&KEPT).is_some_and(|taken| Rc::ptr_eq(&taken, &first)));
        assert!(take(&KEPT).is_none());
    }

    #[test]
    fn a_full_list_drops_what_is_more() {
        thread_local! {
            static KEPT: FreeList<Rc<()>, 3> = const { FreeList::new() };
        }
        let value = Rc::new(());
        (0..5).for_each(|_| keep(&KEPT, Rc::clone(&value)));
        assert_eq!((KEPT.with(FreeList::count), Rc::strong_count(&value)), (3, 4));
    }

    #[test]
    fn lists_side_by_side_have_their_own_values() {
        thread_local! {
            static KEPT: [FreeList<u32, 2>; 2] = const { [const { FreeList::new() }; 2] };
        }
        for (at, value) in [(0, 1), (1, 2), (1, 3)] {
            keep_at(&KEPT, at, value);
        }
        let taken = [1, 1, 0, 0].map(|at| take_at(&KEPT, at));
        assert_eq!(taken, [Some(3), Some(2), Some(1), None]);
    }

    /// Its drop uses the list again, as that of a message in another message does.
    #[test]
    fn a_surplus_value_may_use_the_list() {
        struct Nested(Option<Box<Self>>);
        thread_local! {
            static NESTED: FreeList<Nested, 1> = const { FreeList::new() };
            static DROPS: Cell<u32> = const { Cell::new(0) };
        }
        impl Drop for Nested {
            fn drop(&mut self) {
                DROPS.set(DROPS.get() + 1);
                if let Some(inner) = self.0.take() {
                    keep(&NESTED, *inner);
                }
            }
        }
        keep(&NESTED, Nested(None));
        keep(&NESTED, Nested(Some(Box::new(Nested(None)))));
        assert_eq!((DROPS.get(), NESTED.with(FreeList::count)), (2, 1));
    }

    #[test]
    fn a_thread_drops_its_list_at_its_end() {
        /// Keeps its value when it is dropped.
        struct Late(Option<Arc<()>>);
        thread_local! {
            static KEPT: FreeList<Arc<()>, 2> = const { FreeList::new() };
            static BEFORE: Cell<Option<Late>> = const { Cell::new(None) };
            static AFTER: Cell<Option<Late>> = const { Cell::new(None) };
        }
        impl Drop for Late {
            fn drop(&mut self) {
                self.0.take().into_iter().for_each(|value| keep(&KEPT, value));
            }
        }
        let value = Arc::new(());
        let [held, before, after] = [(); 3].map(|()| Arc::clone(&value));
        let thread = std::thread::spawn(move || {
            // Destructors run in one order or the other, so one of these is before the list's.
            BEFORE.set(Some(Late(Some(before))));
            keep(&KEPT, held);
            AFTER.set(Some(Late(Some(after))));
        });
        thread.join().unwrap();
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
