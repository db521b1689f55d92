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
    /// Whether it holds nothing.
    fn is_empty(&self) -> bool;

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

/// Keeps an empty one for the next [`take`] or frees it. Who has used it empties it, and knows what there may
/// be in it by then.
#[inline(always)]
pub(crate) fn give_back<T: Recycle>(mut used: Box<T>) {
    debug_assert!(used.is_empty(), "what is in a box that is kept is another call's");
    // What the list does not take is dropped.
    let _ = T::list().try_with(|list| {
        let mut below = list.take();
        let count = below.as_mut().map_or(0, |below| below.link().count + 1);
        if count < KEEP_COUNT {
            // What is not in the list links to nothing, so nothing has to be dropped.
            std::mem::forget(std::mem::replace(used.link(), Link { below, count }));
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
        fn is_empty(&self) -> bool {
            self.held.is_none()
        }

        fn link(&mut self) -> &mut Link<Self> {
            &mut self.link
        }

        fn list() -> &'static LocalKey<List<Self>> {
            &KEPT
        }
    }

    #[test]
    fn a_box_is_used_again() {
        let slot = take::<Slot>();
        let address = std::ptr::from_ref(&*slot);
        give_back(slot);
        let again = take::<Slot>();
        assert!(std::ptr::eq(address, &raw const *again) && again.held.is_none());
    }

    #[test]
    #[cfg_attr(debug_assertions, should_panic = "another call's")]
    fn a_box_that_is_not_empty_is_not_kept_unseen() {
        let mut slot = take::<Slot>();
        slot.held = cfg!(debug_assertions).then(Rc::default);
        give_back(slot);
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
