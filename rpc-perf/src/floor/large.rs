//! The floors of large payloads: the same bytes through shared memory, without a framework.
//!
//! Owns the raw transfers to which every rate is compared: one copy by the sender into a slot that
//! the receiver reads; and four slots in turn, copied in by one side and out by the other.
#![allow(unsafe_code, reason = "raw shared memory is what is measured")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::cores::{self, CpuPair};
use crate::pages::PAGE_BYTES;

/// The shared head of a slot: the numbers of transfers written and read.
const HEAD_BYTES: usize = 4096;

#[derive(Clone, Copy)]
struct Slot {
    base: *mut u8,
    size: usize,
}

// SAFETY: the mapping lives until both sides have ended; turns are taken by the two atomics.
unsafe impl Send for Slot {}

impl Slot {
    fn counter(self, at: usize) -> &'static AtomicU64 {
        // SAFETY: the head has room for both, 128 bytes apart.
        let counter = unsafe { self.base.add(at * 128) };
        // SAFETY: aligned, mapped while it is used, and only accessed as an atomic.
        unsafe { &*counter.cast::<AtomicU64>() }
    }

    fn written(self) -> &'static AtomicU64 {
        self.counter(0)
    }

    fn read(self) -> &'static AtomicU64 {
        self.counter(1)
    }

    fn bytes(self) -> *mut u8 {
        // SAFETY: a slot has its head and `size` bytes behind it.
        unsafe { self.base.add(HEAD_BYTES) }
    }

    fn wait(counter: &AtomicU64, value: u64) {
        while counter.load(Ordering::Acquire) != value {
            std::hint::spin_loop();
        }
    }

    fn copy_in(self, from: &[u8]) {
        // SAFETY: the reader is done with the slot (its turn), and `from` has `size` bytes.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.bytes(), self.size) };
    }

    fn copy_out(self, to: &mut [u8]) {
        // SAFETY: the writer is done with the slot (its turn), and `to` has `size` bytes.
        unsafe { std::ptr::copy_nonoverlapping(self.bytes(), to.as_mut_ptr(), self.size) };
    }

    /// Copies out to the spare capacity of `to`, which is large enough.
    fn append_to(self, to: &mut Vec<u8>) {
        assert!(to.capacity() - to.len() >= self.size, "the room is too small");
        let room = to.spare_capacity_mut().as_mut_ptr().cast::<u8>();
        // SAFETY: the writer is done with the slot (its turn), and the room was asserted.
        unsafe { std::ptr::copy_nonoverlapping(self.bytes(), room, self.size) };
        let len = to.len() + self.size;
        // SAFETY: so many bytes have just been written.
        unsafe { to.set_len(len) };
    }

    /// One byte of each page.
    fn look(self) -> u64 {
        let mut sum = 0;
        for at in (0..self.size).step_by(PAGE_BYTES) {
            // SAFETY: inside the slot.
            let byte = unsafe { self.bytes().add(at) };
            // SAFETY: as above.
            sum += u64::from(unsafe { byte.read_volatile() });
        }
        sum
    }
}

/// The slots that a writer may fill while the reader is still reading others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ahead {
    /// Each slot that has been read.
    Any,
    /// All slots of a round: the next round begins when all of them have been read.
    Turn,
}

/// Bytes per second through `slots` slots of `size` bytes, read by `read` on the other core.
#[allow(clippy::cast_precision_loss, reason = "bytes of a run are far below 2^52")]
fn rate(
    cpus: CpuPair,
    size: usize,
    (slots, ahead): (usize, Ahead),
    duration: Duration,
    mut read: impl FnMut(Slot) + Send + 'static,
) -> Result<f64> {
    let slot_bytes = HEAD_BYTES + size.next_multiple_of(PAGE_BYTES);
    let mapped_bytes = slot_bytes * slots;
    // SAFETY: a fresh anonymous mapping, unmapped when the reading thread has ended.
    let base = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            mapped_bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
        )
    }
    .context("mapping the floor's slots")?
    .cast::<u8>();
    let slots: Vec<Slot> = (0..slots)
        // SAFETY: the slot lies inside the mapping.
        .map(|at| Slot { base: unsafe { base.add(at * slot_bytes) }, size })
        .collect();
    let theirs = slots.clone();
    const END: u64 = u64::MAX;
    let reader = std::thread::spawn(move || {
        cores::pin(cpus.server);
        for turn in 1_u64.. {
            for slot in &theirs {
                loop {
                    match slot.written().load(Ordering::Acquire) {
                        END => return,
                        written if written == turn => break,
                        _ => std::hint::spin_loop(),
                    }
                }
                read(*slot);
                slot.read().store(turn, Ordering::Release);
            }
        }
    });
    cores::pin(cpus.client);
    let source = vec![7; size];
    let (mut turn, mut started, mut from) = (0_u64, Instant::now(), 0);
    // The first turns touch the pages.
    const WARM_UP: u64 = 2;
    while turn <= WARM_UP || started.elapsed() < duration {
        turn += 1;
        if ahead == Ahead::Turn {
            slots.iter().for_each(|slot| Slot::wait(slot.read(), turn - 1));
        }
        for slot in &slots {
            Slot::wait(slot.read(), turn - 1);
            slot.copy_in(&source);
            slot.written().store(turn, Ordering::Release);
        }
        if turn == WARM_UP {
            (started, from) = (Instant::now(), turn);
        }
    }
    for slot in &slots {
        Slot::wait(slot.read(), turn);
    }
    let rate =
        ((turn - from) * slots.len() as u64 * size as u64) as f64 / started.elapsed().as_secs_f64();
    for slot in &slots {
        slot.written().store(END, Ordering::Release);
    }
    let _ = reader.join();
    // SAFETY: the reader has ended, and no slot is used after this.
    unsafe { munmap(base.cast(), mapped_bytes) }.context("unmapping the floor's slots")?;
    Ok(rate)
}

/// One slot: the sender copies in, the receiver reads a byte of each page.
///
/// # Errors
/// When memory or a thread cannot be had.
pub fn one_copy(cpus: CpuPair, size: usize, duration: Duration) -> Result<f64> {
    rate(cpus, size, (1, Ahead::Any), duration, |slot| {
        std::hint::black_box(slot.look());
    })
}

/// Four slots in turn: the sender copies in, the receiver copies out.
///
/// # Errors
/// When memory or a thread cannot be had.
pub fn two_copies(cpus: CpuPair, size: usize, duration: Duration) -> Result<f64> {
    let mut to = vec![0; size];
    rate(cpus, size, (4, Ahead::Any), duration, move |slot| slot.copy_out(&mut to))
}

/// One payload at a time: the sender copies in, then waits while the receiver copies out. With
/// `parts` parts of equal size, each is copied out as soon as it is in: this shows the gain of
/// overlapping the two copies.
///
/// # Errors
/// When memory or a thread cannot be had.
pub fn one_at_a_time(cpus: CpuPair, size: usize, parts: usize, duration: Duration) -> Result<f64> {
    let part = size / parts;
    let (mut to, mut at) = (vec![0; part * parts], 0);
    rate(cpus, part, (parts, Ahead::Turn), duration, move |slot| {
        slot.copy_out(&mut to[at..at + part]);
        at = (at + part) % to.len();
    })
}

/// Like [`two_copies`], but the receiver allocates the memory for each copy and frees it, like code
/// that takes a `Vec`: the difference to [`two_copies`] is the cost of fresh memory.
///
/// # Errors
/// When memory or a thread cannot be had.
pub fn fresh_copies(cpus: CpuPair, size: usize, duration: Duration) -> Result<f64> {
    rate(cpus, size, (4, Ahead::Any), duration, move |slot| {
        let mut to = Vec::with_capacity(size);
        slot.append_to(&mut to);
        std::hint::black_box(&to);
    })
}
