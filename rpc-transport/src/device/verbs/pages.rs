//! Memory to be registered: zeroed pages of this process.
//!
//! A device translates addresses page by page, and the kernel pins memory page by page. Mappings of
//! 2 MiB and more begin at a huge page and request huge pages, so that there is less to pin and to
//! translate.
//!
//! Invariant: a guard is the only owner of its mapping, and nothing outside it was left mapped.
#![allow(unsafe_code, reason = "maps memory")]

use std::io;
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::param::page_size;

/// Size and alignment of a huge page, bytes: x86's, and that of most ARM systems.
const HUGE_BYTES: usize = 2 << 20;

/// A mapping.
pub(super) struct Pages {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory, owned alone.
unsafe impl Send for Pages {}
// SAFETY: shared access to this guard gives no access to the bytes.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps `len` bytes, at least one.
    pub(super) fn map(len: usize) -> io::Result<Self> {
        let len = len.max(1);
        if len < HUGE_BYTES {
            return Self::anywhere(len);
        }
        let too_large = || io::Error::from(io::ErrorKind::OutOfMemory);
        let len = len.checked_next_multiple_of(page_size()).ok_or_else(too_large)?;
        // The bytes before the first huge page, and behind the last byte, are unmapped again.
        let with_room = len.checked_add(HUGE_BYTES).ok_or_else(too_large)?;
        let Ok(room) = Self::anywhere(with_room) else { return Self::anywhere(len) };
        let before = room.base.as_ptr().align_offset(HUGE_BYTES);
        let pages = room.keep(before, len);
        // SAFETY: a mapping of this guard; advice changes nothing that can be read. A system
        // without huge pages refuses it, and ordinary pages serve.
        let _ = unsafe { madvise(pages.base.as_ptr().cast(), len, Advice::LinuxHugepage) };
        Ok(pages)
    }

    /// The first byte.
    pub(super) const fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn anywhere(len: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len, protection, MapFlags::PRIVATE) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len })
    }

    /// Keeps `len` bytes after the first `before`, both whole pages, and unmaps the rest.
    fn keep(self, before: usize, len: usize) -> Self {
        let (head, rest) = self.split(before);
        drop(head);
        let (kept, tail) = rest.split(len);
        drop(tail);
        kept
    }

    /// Two guards: of the mapping before `at`, which is the start of a page, and of the rest.
    fn split(self, at: usize) -> (Self, Self) {
        let (base, len) = (self.base, self.len);
        debug_assert!(at <= len && at.is_multiple_of(page_size()), "{at} of {len}");
        // Each part has a guard from here on.
        std::mem::forget(self);
        // SAFETY: `at` is within the mapping, as `map` ensures: it is `HUGE_BYTES` longer than the
        // part to keep.
        let second = unsafe { base.add(at) };
        (Self { base, len: at }, Self { base: second, len: len - at })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.len == 0 {
            return;
        }
        // SAFETY: the mapping belongs to this guard (the invariant), and nothing refers to it any
        // more: regions keep it until they are deregistered.
        if let Err(error) = unsafe { munmap(self.base.as_ptr().cast(), self.len) } {
            tracing::error!(%error, "pages leaked");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The bytes that this process has mapped in a range, as the kernel reports.
    fn mapped(start: usize, len: usize) -> usize {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let overlap = |line: &str| {
            let (from, to) = line.split_once(' ')?.0.split_once('-')?;
            let number = |text| usize::from_str_radix(text, 16).ok();
            let (from, to) = (number(from)?.max(start), number(to)?.min(start + len));
            Some(to.saturating_sub(from))
        };
        maps.lines().filter_map(overlap).sum()
    }

    /// Growth of this process's mappings during `step`, bytes: other threads also map and unmap.
    fn more_mapped<T>(step: impl FnOnce() -> T) -> (T, i64) {
        let pages = || -> i64 {
            let statm = fs::read_to_string("/proc/self/statm").unwrap();
            statm.split(' ').next().unwrap().parse().unwrap()
        };
        let before = pages();
        let result = step();
        (result, (pages() - before) * i64::try_from(page_size()).unwrap())
    }

    #[test]
    fn large_memory_is_huge_page_aligned_without_leftovers() {
        for len in [HUGE_BYTES, HUGE_BYTES + 1, 5 * HUGE_BYTES - 1] {
            let whole = len.next_multiple_of(page_size());
            let bytes = i64::try_from(whole).unwrap();
            // Leftovers of this code appear in each try; mappings of other threads do not.
            let is_exact = (0..1000).any(|_| {
                let (pages, more) = more_mapped(|| Pages::map(len).unwrap());
                let ((), less) = more_mapped(|| drop(pages));
                (more, less) == (bytes, -bytes)
            });
            assert!(is_exact, "{len}");
            let pages = Pages::map(len).unwrap();
            let start = pages.base().as_ptr().addr();
            assert!(start.is_multiple_of(HUGE_BYTES), "{start:x}");
            assert_eq!((pages.len, mapped(start, whole)), (whole, whole));
            // SAFETY: a mapping of `pages`, which nobody else knows.
            let bytes = unsafe { std::slice::from_raw_parts_mut(pages.base().as_ptr(), len) };
            assert_eq!((bytes[0], bytes[len - 1]), (0, 0));
            (bytes[0], bytes[len - 1]) = (1, 1);
        }
    }

    #[test]
    fn small_memory_is_mapped_as_it_is() {
        let pages = Pages::map(0).unwrap();
        assert_eq!((pages.len, mapped(pages.base().as_ptr().addr(), 1)), (1, 1));
    }
}
