//! Boxes that are used again.
//!
//! Owns a bounded list of empty boxes for each type and thread, so that what calls at a steady rate need
//! for their time allocates nothing.
//!
//! Invariant: a box in a list is empty: nothing of a call, and so nothing of a user's, stays in one.

use std::cell::Cell;
use std::thread::LocalKey;

/// Most boxes of a type that a thread keeps.
const KEEP_COUNT: u32 = 64;

/// The empty boxes of a type, of one thread: the one that was given back last, which links to the others.
pub(crate) type List<T> = Cell<Option<Box<T>>>;

/// What an empty box links to.
pub(crate) struct Link<T> {
    below: Option<Box<T>>,
    /// Boxes below it.
    count: u32,
}

impl<T> Default for Link<T> {
    fn default() -> Self {
        Self { below: None, count: 0 }
    }
}

/// What may be used again. Its default is empty.
pub(crate) trait Recycle: Default + 'static {
    /// Drops all that it holds.
    fn clear(&mut self);

    fn link(&mut self) -> &mut Link<Self>;

    fn list() -> &'static LocalKey<List<Self>>;
}

/// An empty one.
#[inline]
pub(crate) fn take<T: Recycle>() -> Box<T> {
    // A thread that is being torn down has no list any more.
    let kept = T::list().try_with(|list| {
        let mut top = list.take()?;
        list.set(top.link().below.take());
        Some(top)
    });
    kept.ok().flatten().unwrap_or_else(new)
}

#[cold]
fn new<T: Recycle>() -> Box<T> {
    Box::default()
}

/// Empties it, and keeps it for the next [`take`] or frees it.
#[inline(always)]
pub(crate) fn give_back<T: Recycle>(mut used: Box<T>) {
    // Before the list is touched, as this may run code of the user's.
    used.clear();
    // What the list does not take is dropped.
    let _ = T::list().try_with(|list| {
        let mut below = list.take();
        let count = below.as_mut().map_or(0, |below| below.link().count + 1);
        if count < KEEP_COUNT {
            *used.link() = Link { below, count };
            list.set(Some(used));
        } else {
            list.set(below);
        }
    });
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    thread_local! {
        static KEPT: List<Slot> = const { Cell::new(None) };
    }

    #[derive(Default)]
    struct Slot {
        held: Option<Rc<()>>,
        link: Link<Self>,
    }

    impl Recycle for Slot {
        fn clear(&mut self) {
            self.held = None;
        }

        fn link(&mut self) -> &mut Link<Self> {
            &mut self.link
        }

        fn list() -> &'static LocalKey<List<Self>> {
            &KEPT
        }
    }

    #[test]
    fn a_box_is_used_again_and_holds_nothing_meanwhile() {
        let held = Rc::new(());
        let mut slot = take::<Slot>();
        slot.held = Some(Rc::clone(&held));
        let address = std::ptr::from_ref(&*slot);
        give_back(slot);
        assert_eq!(Rc::strong_count(&held), 1);
        let again = take::<Slot>();
        assert!(std::ptr::eq(address, &raw const *again) && again.held.is_none());
    }

    #[test]
    fn a_thread_keeps_only_so_many() {
        let many: Vec<_> = (0..2 * KEEP_COUNT).map(|_| take::<Slot>()).collect();
        many.into_iter().for_each(give_back);
        let mut kept = KEPT.take();
        let counts = std::iter::from_fn(|| {
            let mut top = kept.take()?;
            kept = top.link.below.take();
            Some(top.link.count)
        });
        assert!(counts.eq((0..KEEP_COUNT).rev()));
    }
}
