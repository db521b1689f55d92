//! Boxes that are used again.
//!
//! Owns a bounded list of empty boxes for each type and thread, so that what calls at a steady rate need
//! for their time allocates nothing.
//!
//! Invariant: a box in a list is empty: nothing of a call, and so nothing of a user's, stays in one.

use std::cell::RefCell;
use std::thread::LocalKey;

/// Most boxes of a type that a thread keeps.
const KEEP_COUNT: usize = 64;

/// The empty boxes of a type, of one thread.
#[allow(clippy::vec_box, reason = "the boxes are what is kept")]
pub(crate) type List<T> = RefCell<Vec<Box<T>>>;

/// What may be used again. Its default is empty.
pub(crate) trait Recycle: Default + 'static {
    /// Drops all that it holds.
    fn clear(&mut self);

    fn list() -> &'static LocalKey<List<Self>>;
}

/// An empty one.
#[inline]
pub(crate) fn take<T: Recycle>() -> Box<T> {
    // A thread that is being torn down has no list any more.
    let kept = T::list().try_with(|list| list.borrow_mut().pop()).ok().flatten();
    kept.unwrap_or_else(new)
}

#[cold]
fn new<T: Recycle>() -> Box<T> {
    Box::default()
}

/// Empties it, and keeps it for the next [`take`] or frees it.
#[inline(always)]
pub(crate) fn give_back<T: Recycle>(mut used: Box<T>) {
    // Before the list is borrowed, as this may run code of the user's.
    used.clear();
    // What the list does not take is dropped.
    let _ = T::list().try_with(|list| keep(&mut list.borrow_mut(), used));
}

#[inline]
#[allow(clippy::vec_box, reason = "the boxes are what is kept")]
fn keep<T>(list: &mut Vec<Box<T>>, used: Box<T>) {
    if list.len() >= KEEP_COUNT {
        return;
    }
    if list.len() == list.capacity() {
        make_room(list);
    }
    list.push(used);
}

/// A list grows once, to its size.
#[cold]
#[allow(clippy::vec_box, reason = "the boxes are what is kept")]
fn make_room<T>(list: &mut Vec<Box<T>>) {
    list.reserve_exact(KEEP_COUNT);
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    thread_local! {
        static KEPT: List<Slot> = const { RefCell::new(Vec::new()) };
    }

    #[derive(Default)]
    struct Slot(Option<Rc<()>>);

    impl Recycle for Slot {
        fn clear(&mut self) {
            self.0 = None;
        }

        fn list() -> &'static LocalKey<List<Self>> {
            &KEPT
        }
    }

    #[test]
    fn a_box_is_used_again_and_holds_nothing_meanwhile() {
        let held = Rc::new(());
        let mut slot = take::<Slot>();
        slot.0 = Some(Rc::clone(&held));
        let address = std::ptr::from_ref(&*slot);
        give_back(slot);
        assert_eq!(Rc::strong_count(&held), 1);
        let again = take::<Slot>();
        assert!(std::ptr::eq(address, &raw const *again) && again.0.is_none());
    }

    #[test]
    fn a_thread_keeps_only_so_many() {
        let many: Vec<_> = (0..2 * KEEP_COUNT).map(|_| take::<Slot>()).collect();
        many.into_iter().for_each(give_back);
        assert_eq!(KEPT.with(|list| list.borrow().len()), KEEP_COUNT);
    }
}
