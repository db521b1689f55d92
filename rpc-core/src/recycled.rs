//! A pinned, type-erased future in memory that is used again.
//!
//! Owns the memory that handlers run in: blocks of a few sizes, kept in a bounded list per thread,
//! so that starting and finishing handlers at a steady rate allocates nothing. Never polls by
//! itself and catches no panics.
//!
//! Invariants:
//! 1. `future` points to an initialised future at the start of `memory`, from [`Recycled::new`]
//!    until [`Recycled`]'s drop; nobody else has a pointer to it.
//! 2. The future never moves (it is pinned): the memory goes back only after it was dropped in
//!    place, also when its `drop` panics.
//! 3. A `Block` owns its allocation of exactly `layout` bytes: it is freed once, by the block's
//!    drop, with that layout.
//! 4. A block in a list has one of `CLASS_BYTES` and `CLASS_ALIGN`; a list holds at most
//!    `KEEP_COUNT` of them. Larger or more strictly aligned futures use the allocator directly.
#![allow(unsafe_code, reason = "places futures into memory of its own and erases their types")]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll};

/// Sizes of blocks that are kept, bytes.
const CLASS_BYTES: [usize; 5] = [256, 512, 1024, 2048, 4096];
/// Alignment of blocks that are kept, bytes: what allocators give without extra cost.
const CLASS_ALIGN: usize = 16;
/// Most blocks of one size that a thread keeps.
const KEEP_COUNT: usize = 64;

thread_local! {
    static FREE: RefCell<[Vec<Block>; CLASS_BYTES.len()]> =
        const { RefCell::new([const { Vec::new() }; CLASS_BYTES.len()]) };
}

/// An owned piece of uninitialised memory.
struct Block {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a block is the unique owner of plain memory that is not tied to a thread (invariant 3).
unsafe impl Send for Block {}

impl Block {
    /// A block of at least `wanted`: from this thread's list if it has one.
    fn take(wanted: Layout) -> Self {
        match class(wanted) {
            Some(class) => FREE
                .try_with(|free| free.borrow_mut()[class].pop())
                .ok()
                .flatten()
                .unwrap_or_else(|| Self::allocate(class_layout(class))),
            None => Self::allocate(wanted),
        }
    }

    fn allocate(wanted: Layout) -> Self {
        // A place of no bytes gets one, to have one rule for all.
        let Ok(layout) = Layout::from_size_align(wanted.size().max(1), wanted.align()) else {
            handle_alloc_error(wanted)
        };
        // SAFETY: the size is not zero (the line above).
        let base = unsafe { alloc(layout) };
        match NonNull::new(base) {
            Some(base) => Self { base, layout },
            None => handle_alloc_error(layout),
        }
    }

    /// Puts the block on this thread's list, or frees it.
    fn give_back(self) {
        let Some(class) = class(self.layout) else { return };
        let mut block = Some(self);
        // A thread that is being torn down has no list any more; then the block is just freed.
        let _ = FREE.try_with(|free| {
            let list = &mut free.borrow_mut()[class];
            if list.len() < KEEP_COUNT {
                if list.capacity() == 0 {
                    list.reserve_exact(KEEP_COUNT);
                }
                list.extend(block.take());
            }
        });
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated by `allocate` with this layout, and freed only here (invariant 3).
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// The smallest class that holds `wanted`.
fn class(wanted: Layout) -> Option<usize> {
    if wanted.align() > CLASS_ALIGN {
        return None;
    }
    CLASS_BYTES.iter().position(|&bytes| wanted.size() <= bytes)
}

fn class_layout(class: usize) -> Layout {
    // SAFETY: the alignment is a power of two, and no class comes near isize::MAX.
    unsafe { Layout::from_size_align_unchecked(CLASS_BYTES[class], CLASS_ALIGN) }
}

/// A future of any type with output `O`, pinned in recycled memory. Unlike
/// `Pin<Box<dyn Future>>` it allocates only when no block of its size is at hand.
pub(crate) struct Recycled<O> {
    future: NonNull<dyn Future<Output = O> + Send>,
    memory: ManuallyDrop<Block>,
}

// SAFETY: the future is `Send` (bound in `new`) and owned by this value alone (invariant 1); the
// block is `Send`.
unsafe impl<O> Send for Recycled<O> {}

// The future is reached through a pointer: moving this value does not move it (invariant 2).
impl<O> Unpin for Recycled<O> {}

impl<O> Recycled<O> {
    /// Moves a future into recycled memory, for good.
    pub(crate) fn new<F>(future: F) -> Self
    where
        F: Future<Output = O> + Send + 'static,
    {
        let memory = Block::take(Layout::new::<F>());
        let place = memory.base.cast::<F>();
        // SAFETY: the block is as large and as aligned as F asks for (`Block::take`), and nobody
        // else points to it (invariant 3).
        unsafe { place.write(future) };
        Self { future: place, memory: ManuallyDrop::new(memory) }
    }
}

impl<O> Future for Recycled<O> {
    type Output = O;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<O> {
        // SAFETY: initialised and owned by us (invariant 1); the borrow lasts as long as the one of
        // `self`.
        let future = unsafe { self.future.as_mut() };
        // SAFETY: the future stays where it is until it is dropped in place (invariant 2).
        let future = unsafe { Pin::new_unchecked(future) };
        future.poll(cx)
    }
}

impl<O> Drop for Recycled<O> {
    fn drop(&mut self) {
        /// Gives the memory back even when the future's drop panics (invariant 2).
        struct GiveBack(Option<Block>);

        impl Drop for GiveBack {
            fn drop(&mut self) {
                if let Some(block) = self.0.take() {
                    block.give_back();
                }
            }
        }

        // SAFETY: `memory` is taken only here, and this value is not used afterwards.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        let _give_back = GiveBack(Some(memory));
        // SAFETY: initialised (invariant 1), dropped only here, and the memory is still ours.
        unsafe { self.future.drop_in_place() };
    }
}

impl<O> fmt::Debug for Recycled<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recycled({} bytes)", self.memory.layout.size())
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn, ready};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Waker;

    use super::*;

    /// Counts its drops.
    #[derive(Clone)]
    struct Counted(Arc<AtomicUsize>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn counted() -> (Counted, Arc<AtomicUsize>) {
        let count = Arc::new(AtomicUsize::new(0));
        (Counted(Arc::clone(&count)), count)
    }

    fn poll<O>(future: &mut Recycled<O>) -> Poll<O> {
        Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn kept() -> Vec<usize> {
        FREE.with(|free| free.borrow().iter().map(Vec::len).collect())
    }

    /// A future of `N` bytes and more.
    fn of_bytes<const N: usize>() -> impl Future<Output = usize> + Send {
        let bytes = [7_u8; N];
        async move {
            tokio::task::yield_now().await;
            bytes.iter().map(|&byte| usize::from(byte)).sum()
        }
    }

    #[test]
    fn a_future_runs_to_its_end_and_is_dropped_once() {
        let (held, drops) = counted();
        let mut yielded = false;
        let mut future = Recycled::new(poll_fn(move |_| {
            let _held = &held;
            if std::mem::replace(&mut yielded, true) { Poll::Ready(5) } else { Poll::Pending }
        }));
        assert_eq!(poll(&mut future), Poll::Pending);
        assert_eq!(poll(&mut future), Poll::Ready(5));
        assert_eq!(drops.load(Ordering::SeqCst), 0);
        drop(future);
        assert_eq!(drops.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_future_is_dropped_in_every_state() {
        let (held, drops) = counted();
        let future = || {
            let held = held.clone();
            async move {
                let _moved = held;
                pending::<()>().await;
            }
        };
        drop(Recycled::new(future()));
        assert_eq!(drops.load(Ordering::SeqCst), 1, "before the first poll");
        let mut started = Recycled::new(future());
        assert!(poll(&mut started).is_pending());
        drop(started);
        assert_eq!(drops.load(Ordering::SeqCst), 2, "while waiting");
        let mut panicking = Recycled::new({
            let held = held.clone();
            async move {
                let _moved = held;
                panic!("on purpose");
            }
        });
        catch_unwind(AssertUnwindSafe(|| {
            let _: Poll<()> = poll(&mut panicking);
        }))
        .unwrap_err();
        assert_eq!(drops.load(Ordering::SeqCst), 3, "by unwinding");
        drop(panicking);
        assert_eq!(drops.load(Ordering::SeqCst), 3, "and not again");
    }

    #[test]
    fn memory_is_used_again() {
        let first = Recycled::new(ready(1_u64));
        let address = first.memory.base;
        drop(first);
        let second = Recycled::new(of_bytes::<100>());
        assert_eq!(second.memory.base, address);
        let third = Recycled::new(ready(3_u64));
        assert_ne!(third.memory.base, address);
    }

    #[test]
    fn memory_comes_back_when_drop_panics() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("on purpose");
            }
        }
        let bomb = Bomb;
        let future = Recycled::new(async move {
            let _bomb = bomb;
            pending::<()>().await;
        });
        let before = kept();
        catch_unwind(AssertUnwindSafe(|| drop(future))).unwrap_err();
        assert_eq!(kept()[0], before[0] + 1);
    }

    #[test]
    fn every_size_and_alignment_works() {
        #[repr(align(1024))]
        struct Aligned([u8; 1024]);

        fn check<O: PartialEq + fmt::Debug>(
            future: impl Future<Output = O> + Send + 'static,
            expected: O,
            align: usize,
        ) {
            let mut future = Recycled::new(future);
            assert!(future.memory.base.as_ptr().addr().is_multiple_of(align));
            let polled = loop {
                if let Poll::Ready(output) = poll(&mut future) {
                    break output;
                }
            };
            assert_eq!(polled, expected);
        }
        check(async {}, (), 1);
        check(of_bytes::<1>(), 7, 1);
        check(of_bytes::<300>(), 300 * 7, 1);
        check(of_bytes::<4000>(), 4000 * 7, 1);
        check(of_bytes::<5000>(), 5000 * 7, 1);
        check(of_bytes::<200_000>(), 200_000 * 7, 1);
        check(
            async {
                let aligned = Aligned([3; 1024]);
                tokio::task::yield_now().await;
                assert!((&raw const aligned).addr().is_multiple_of(1024));
                usize::from(aligned.0[1023])
            },
            3,
            1024,
        );
    }

    #[test]
    fn large_and_over_aligned_blocks_are_not_kept() {
        #[repr(align(64))]
        struct Aligned(#[expect(dead_code, reason = "makes the future so large")] [u8; 64]);
        let before = kept();
        drop(Recycled::new(of_bytes::<5000>()));
        drop(Recycled::new(ready(Aligned([0; 64]))));
        assert_eq!(kept(), before);
    }

    #[test]
    fn a_thread_keeps_a_bounded_number() {
        let many: Vec<_> = (0..3 * KEEP_COUNT).map(ready).map(Recycled::new).collect();
        drop(many);
        assert_eq!(kept()[0], KEEP_COUNT);
    }

    #[test]
    fn blocks_move_between_threads() {
        let mut future = Recycled::new(of_bytes::<64>());
        assert!(poll(&mut future).is_pending());
        let there = std::thread::spawn(move || {
            let polled = poll(&mut future);
            drop(future);
            (polled, kept())
        });
        let (polled, kept_there) = there.join().unwrap();
        assert_eq!(polled, Poll::Ready(64 * 7));
        assert_eq!(kept_there.iter().sum::<usize>(), 1, "kept where it was dropped");
    }

    #[test]
    fn a_future_dropped_while_its_thread_ends_is_freed() {
        thread_local! {
            static LAST: RefCell<Option<Recycled<()>>> = const { RefCell::new(None) };
        }
        let (held, drops) = counted();
        std::thread::spawn(move || {
            LAST.with(|last| {
                *last.borrow_mut() = Some(Recycled::new(async move {
                    let _held = held;
                    pending::<()>().await;
                }));
            });
        })
        .join()
        .unwrap();
        assert_eq!(drops.load(Ordering::SeqCst), 1);
    }
}
