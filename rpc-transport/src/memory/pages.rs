//! Advice to the kernel about pages: which mapped pages it may take back, and which pages are
//! better huge.
//!
//! Owns the advice. Never knows what the bytes are for.
#![allow(unsafe_code, reason = "advises the kernel, and what some pages hold is lost")]

use std::ptr::NonNull;

use rustix::mm::Advice;

/// Vectors of this size have a mapping of their own: glibc's allocator keeps none of that size for
/// reuse. Another allocator that does reuse one keeps the advice too, which costs no more than
/// whole huge pages.
const MAPPED_BYTES: usize = 32 << 20;

/// Advises the kernel about a vector whose capacity was `before` and may have grown. The pages of
/// very large vectors are new each time, so huge pages are requested: there are fewer of them.
pub(crate) fn on_growth(bytes: &mut Vec<u8>, before: usize) {
    if bytes.capacity() > before.max(MAPPED_BYTES) {
        prefer_huge(bytes);
    }
}

/// Requests huge pages in all of the vector's mapping: a mapping that is advised only in part
/// cannot grow in place.
fn prefer_huge(bytes: &mut Vec<u8>) {
    // Miri does not support the call.
    if cfg!(miri) {
        return;
    }
    let page = rustix::param::page_size();
    let start = bytes.as_mut_ptr();
    let first = start.map_addr(|address| address / page * page);
    let len = (start.addr() + bytes.capacity()).next_multiple_of(page) - first.addr();
    // SAFETY: pages of the vector's capacity, which are mapped; this advice changes nothing that
    // can be read. An error, as on a kernel without huge pages, leaves them as they are.
    let _ = unsafe { rustix::mm::madvise(first.cast(), len, Advice::LinuxHugepage) };
}

/// Gives the whole pages in `base..base+len` back to the operating system. Private memory reads as
/// zeroes from then on, until it is written.
///
/// # Safety
/// The bytes are mapped, nobody else accesses them in the meantime, and their contents are no
/// longer needed.
pub(crate) unsafe fn discard(base: NonNull<u8>, len: usize) {
    // The system's page size: with a smaller one, the kernel would round up beyond the range.
    let page = rustix::param::page_size();
    let before = base.as_ptr().align_offset(page);
    let whole = len.saturating_sub(before) / page * page;
    // Miri does not support the call.
    if whole == 0 || cfg!(miri) {
        return;
    }
    let first = base.as_ptr().wrapping_add(before);
    // SAFETY: the pages lie within the range that the caller vouches for. An error, as for locked
    // memory, leaves them as they are.
    let _ = unsafe { rustix::mm::madvise(first.cast(), whole, Advice::LinuxDontNeed) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flags of the mapping that contains `address`, by the kernel's names.
    fn flags(address: usize) -> String {
        let all = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in all.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let hex = |text| usize::from_str_radix(text, 16).ok();
            if let Some((Some(from), Some(to))) = range.map(|(from, to)| (hex(from), hex(to))) {
                inside = (from..to).contains(&address);
            } else if inside && let Some(flags) = line.strip_prefix("VmFlags:") {
                return flags.to_owned();
            }
        }
        panic!("{address:x} is not mapped");
    }

    #[test]
    #[cfg_attr(miri, ignore = "there are no mappings to look at")]
    fn large_vectors_get_huge_pages_and_keep_contents() {
        let has_huge_pages = std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists();
        let mut bytes = Vec::new();
        for doubling in 0..2 {
            let more = (MAPPED_BYTES + 1) << doubling;
            let before = bytes.capacity();
            bytes.reserve_exact(more);
            on_growth(&mut bytes, before);
            bytes.resize(bytes.len() + more, doubling);
            for at in [0, bytes.len() / 2, bytes.len() - 1] {
                let address = bytes.as_ptr().addr() + at;
                assert_eq!(flags(address).contains(" hg"), has_huge_pages, "at {at}");
            }
        }
        let first = MAPPED_BYTES + 1;
        let held = [0, first - 1, first].map(|at| bytes[at]);
        assert_eq!((held, bytes.len()), ([0, 0, 1], 3 * first));
    }
}
