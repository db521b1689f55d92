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
