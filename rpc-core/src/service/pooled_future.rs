//! A pinned, type-erased future in memory that is used again.
//!
//! Owns the memory that handlers run in: blocks of a few sizes. Unused blocks go to a [`FreeList`]
//! of the thread, so a steady rate of handlers allocates nothing. Never polls a future on its own,
//! and catches no panics.
//!
//! Invariants:
//! 1. `future` points to an initialised future at the start of its block, from
//!    [`PooledFuture::new`] until the drop of [`PooledFuture`]. Nobody else has a pointer to it.
//! 2. The future never moves (it is pinned). Its memory goes back only after it was dropped in
//!    place, also when its `drop` panics.
//! 3. Memory is allocated with exactly the layout that [`block_layout`] gives for its future, and
//!    freed once, with that layout. It has one owner: a [`PooledFuture`] or a [`Block`] in a list.
//! 4. A [`Block`] has the size and alignment of its class. Larger or more strictly aligned futures
//!    use the allocator directly.
#![allow(unsafe_code, reason = "places futures into memory of its own and erases their types")]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll};

use rpc_transport::memory::free_list::{self, FreeList};

/// Sizes of blocks that are kept, bytes.
const CLASS_BYTES: [usize; 5] = [256, 512, 1024, 2048, 4096];
/// Alignment of blocks that are kept, bytes: what allocators give without extra cost.
const CLASS_ALIGN: usize = 16;
/// Most blocks of one size that a thread keeps.
const KEEP_COUNT: usize = 64;

thread_local! {
    /// The unused blocks of each class.
    static FREE: [FreeList<Block, KEEP_COUNT>; CLASS_BYTES.len()] =
        const { [const { FreeList::new() }; CLASS_BYTES.len()] };
}

/// Unused memory of a class. Its drop frees it.
struct Block {
    base: NonNull<u8>,
    class: usize,
}

impl Block {
    /// The memory, which is the caller's to free.
    #[inline]
    fn into_base(self) -> NonNull<u8> {
        ManuallyDrop::new(self).base
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated with the layout of its class (invariant 4), and nobody else has it
        // (invariant 3).
        unsafe { dealloc(self.base.as_ptr(), class_layout(self.class)) };
    }
}

/// Memory for `wanted`, owned by the caller. It comes from this thread's list if there is some.
#[inline]
fn take(wanted: Layout) -> NonNull<u8> {
    let kept = class(wanted).and_then(|class| free_list::take_at(&FREE, class));
    kept.map_or_else(|| allocate(wanted), Block::into_base)
}

#[cold]
fn allocate(wanted: Layout) -> NonNull<u8> {
    let layout = block_layout(wanted);
    // SAFETY: the size is not zero (`block_layout`).
    let base = unsafe { alloc(layout) };
    NonNull::new(base).unwrap_or_else(|| handle_alloc_error(layout))
}

/// Puts memory on this thread's list, or frees it.
///
/// # Safety
/// It came from [`take`] for the same layout, and nobody uses it any more.
#[inline]
unsafe fn give_back(base: NonNull<u8>, wanted: Layout) {
    match class(wanted) {
        Some(class) => free_list::keep_at(&FREE, class, Block { base, class }),
        // SAFETY: allocated by `allocate` with this layout, and nobody uses it.
        None => unsafe { dealloc(base.as_ptr(), block_layout(wanted)) },
    }
}

/// Size and alignment of the block that holds `wanted`.
#[inline]
fn block_layout(wanted: Layout) -> Layout {
    match class(wanted) {
        Some(class) => class_layout(class),
        // An empty future gets one byte, so that one rule holds for all. That never overflows.
        None => Layout::from_size_align(wanted.size().max(1), wanted.align()).unwrap_or(wanted),
    }
}

/// The smallest class that holds `wanted`.
#[inline]
fn class(wanted: Layout) -> Option<usize> {
    if wanted.align() > CLASS_ALIGN || wanted.size() > CLASS_BYTES[CLASS_BYTES.len() - 1] {
        return None;
    }
    // Each class is twice the one before.
    let over = wanted.size().saturating_sub(1) / CLASS_BYTES[0];
    Some((usize::BITS - over.leading_zeros()) as usize)
}

#[inline]
fn class_layout(class: usize) -> Layout {
    // SAFETY: the alignment is a power of two, and no class comes near isize::MAX.
    unsafe { Layout::from_size_align_unchecked(CLASS_BYTES[class], CLASS_ALIGN) }
}

/// A future of any type with output `O`, pinned in recycled memory. Unlike
/// `Pin<Box<dyn Future>>` it allocates only when no block of its size is at hand.
pub(crate) struct PooledFuture<O> {
    future: NonNull<dyn Future<Output = O> + Send>,
}

// SAFETY: the future is `Send` (bound in `new`) and owned by this value alone (invariant 1), and so
// is its memory, which is not tied to a thread.
unsafe impl<O> Send for PooledFuture<O> {}

// The future is reached through a pointer: moving this value does not move it (invariant 2).
impl<O> Unpin for PooledFuture<O> {}

impl<O> PooledFuture<O> {
    /// Moves a future into recycled memory, for good.
    #[inline]
    pub(crate) fn new<F>(future: F) -> Self
    where
        F: Future<Output = O> + Send + 'static,
    {
        let place = take(Layout::new::<F>()).cast::<F>();
        // SAFETY: the block is as large and as aligned as F asks for (`block_layout`), and nobody
        // else points to it (invariant 3).
        unsafe { place.write(future) };
        Self { future: place }
    }

    /// Size and alignment of the future.
    #[inline]
    fn layout(&self) -> Layout {
        // SAFETY: initialised and owned by us (invariant 1); the borrow ends here.
        let future = unsafe { self.future.as_ref() };
        Layout::for_value(future)
    }
}

impl<O> Future for PooledFuture<O> {
    type Output = O;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<O> {
        // SAFETY: initialised and owned by us (invariant 1); the borrow lasts as long as the one of
        // `self`.
        let future = unsafe { self.future.as_mut() };
        // SAFETY: the future stays where it is until it is dropped in place (invariant 2).
        let future = unsafe { Pin::new_unchecked(future) };
        future.poll(cx)
    }
}

impl<O> Drop for PooledFuture<O> {
    #[inline]
    fn drop(&mut self) {
        /// Gives the memory back even when the future's drop panics (invariant 2).
        struct GiveBack(NonNull<u8>, Layout);

        impl Drop for GiveBack {
            #[inline]
            fn drop(&mut self) {
                // SAFETY: taken in `new` for a future of this layout, which has been dropped.
                unsafe { give_back(self.0, self.1) };
            }
        }

        let _give_back = GiveBack(self.future.cast(), self.layout());
        // SAFETY: initialised (invariant 1), dropped only here, and the memory is still ours.
        unsafe { self.future.drop_in_place() };
    }
}

impl<O> fmt::Debug for PooledFuture<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PooledFuture({} bytes)", self.layout().size())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
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

    fn poll<O>(future: &mut PooledFuture<O>) -> Poll<O> {
        Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn kept() -> Vec<usize> {
        FREE.with(|free| free.iter().map(FreeList::count).collect())
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
    fn a_future_completes_and_is_dropped_once() {
        let (held, drops) = counted();
        let mut yielded = false;
        let mut future = PooledFuture::new(poll_fn(move |_| {
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
        drop(PooledFuture::new(future()));
        assert_eq!(drops.load(Ordering::SeqCst), 1, "before the first poll");
        let mut started = PooledFuture::new(future());
        assert!(poll(&mut started).is_pending());
        drop(started);
        assert_eq!(drops.load(Ordering::SeqCst), 2, "while waiting");
        let mut panicking = PooledFuture::new({
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
        let first = PooledFuture::new(ready(1_u64));
        let address = first.future.cast::<u8>();
        drop(first);
        let second = PooledFuture::new(of_bytes::<100>());
        assert_eq!(second.future.cast::<u8>(), address);
        let third = PooledFuture::new(ready(3_u64));
        assert_ne!(third.future.cast::<u8>(), address);
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
        let future = PooledFuture::new(async move {
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
            let mut future = PooledFuture::new(future);
            assert!(future.future.cast::<u8>().as_ptr().addr().is_multiple_of(align));
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
        const LARGE: usize = if cfg!(miri) { 9_000 } else { 200_000 };
        check(of_bytes::<LARGE>(), LARGE * 7, 1);
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
    fn a_class_is_the_smallest_that_fits() {
        for bytes in (0..5000).step_by(if cfg!(miri) { 61 } else { 1 }) {
            let wanted = Layout::from_size_align(bytes, CLASS_ALIGN).unwrap();
            assert_eq!(class(wanted), CLASS_BYTES.iter().position(|&class| bytes <= class));
            assert!(block_layout(wanted).size() >= bytes.max(1));
        }
        assert_eq!(class(Layout::from_size_align(1, 2 * CLASS_ALIGN).unwrap()), None);
    }

    #[test]
    fn large_and_over_aligned_blocks_are_not_kept() {
        #[repr(align(64))]
        struct Aligned(#[expect(dead_code, reason = "makes the future so large")] [u8; 64]);
        let before = kept();
        drop(PooledFuture::new(of_bytes::<5000>()));
        drop(PooledFuture::new(ready(Aligned([0; 64]))));
        assert_eq!(kept(), before);
    }

    #[test]
    fn a_thread_keeps_a_bounded_number() {
        let many: Vec<_> = (0..3 * KEEP_COUNT).map(ready).map(PooledFuture::new).collect();
        drop(many);
        assert_eq!(kept()[0], KEEP_COUNT);
    }

    #[test]
    fn blocks_move_between_threads() {
        let mut future = PooledFuture::new(of_bytes::<64>());
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
    fn a_future_dropped_at_thread_end_is_freed() {
        thread_local! {
            static LAST: RefCell<Option<PooledFuture<()>>> = const { RefCell::new(None) };
        }
        let (held, drops) = counted();
        std::thread::spawn(move || {
            LAST.with(|last| {
                *last.borrow_mut() = Some(PooledFuture::new(async move {
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
