//! Mapped memory: anonymous mappings, and memory files that two processes map.
//!
//! Owns `mmap`, `munmap` and the seals of memory files. Never interprets the bytes.
//!
//! Invariants:
//! 1. `base..base+len` is mapped, readable, and writable unless mapped read-only, from construction
//!    to drop.
//! 2. A memory file created here is sealed against resizing and further sealing before anyone else
//!    sees it. A received one is mapped only if it has the same seals and exactly the announced
//!    size. So no peer can shrink a file under a mapping, which would be a SIGBUS here.
#![allow(unsafe_code, reason = "memory mappings")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// Granularity of mappings, bytes.
pub(super) const PAGE_BYTES: usize = 4096;

/// Seals that a memory file must have to be mapped.
const REQUIRED_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A mapping; unmapped on drop.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; this type hands out its address only,
// and whoever dereferences the address must rule out data races.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` zeroed bytes (rounded up to whole pages, at least one) of private memory.
    ///
    /// # Errors
    /// Those of `mmap(2)`.
    pub(super) fn anonymous(len: usize) -> io::Result<Self> {
        let len = whole_pages(len)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // Miri knows no other flags.
        let lazy = if cfg!(miri) { MapFlags::empty() } else { MapFlags::NORESERVE };
        let flags = MapFlags::PRIVATE | lazy;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice aliases nothing.
        let base =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, protection, flags) }?;
        Self::from_raw(base, len)
    }

    fn of_file(file: BorrowedFd<'_>, len: usize, protection: ProtFlags) -> io::Result<Self> {
        let len = whole_pages(len)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases no Rust memory.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0)
        }?;
        Self::from_raw(base, len)
    }

    fn from_raw(base: *mut std::ffi::c_void, len: usize) -> io::Result<Self> {
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len })
    }

    /// First byte.
    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Length, bytes; whole pages.
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `base..+len` is exactly what `mmap` returned (invariant 1), unmapped only here.
        // The result is ignored: the arguments are valid, and drop cannot report an error.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Creates a sealed memory file of `len` bytes (rounded up to whole pages) and maps it. With
/// `only_here` the file cannot be mapped writable again, so no other process can write it.
///
/// # Errors
/// Those of `memfd_create(2)`, `ftruncate(2)`, `mmap(2)` and `fcntl(2)`.
pub(super) fn create_shared(
    name: &str,
    len: usize,
    only_here: bool,
) -> io::Result<(OwnedFd, Mapping)> {
    let len = whole_pages(len)?;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(name, flags)?;
    rustix::fs::ftruncate(&file, len as u64)?;
    let mapping = Mapping::of_file(file.as_fd(), len, ProtFlags::READ | ProtFlags::WRITE)?;
    if only_here {
        rustix::fs::fcntl_add_seals(&file, SealFlags::FUTURE_WRITE)?;
    }
    rustix::fs::fcntl_add_seals(&file, REQUIRED_SEALS)?;
    Ok((file, mapping))
}

/// Maps a received memory file after checking its seals and size (invariant 2).
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] with the reason, or the operating system's error.
pub(super) fn map_received(
    file: BorrowedFd<'_>,
    len: usize,
    writable: bool,
) -> io::Result<Mapping> {
    let refuse = |reason| Err(io::Error::new(io::ErrorKind::InvalidData, reason));
    match rustix::fs::fcntl_get_seals(file) {
        Ok(seals) if seals.contains(REQUIRED_SEALS) => {}
        Ok(_) => return refuse("the memory file is not sealed against resizing"),
        Err(_) => return refuse("the file is not a memory file"),
    }
    if whole_pages(len)? != len
        || rustix::fs::fstat(file)?.st_size != i64::try_from(len).unwrap_or(-1)
    {
        return refuse("the memory file does not have the announced size");
    }
    let write = if writable { ProtFlags::WRITE } else { ProtFlags::empty() };
    Mapping::of_file(file, len, ProtFlags::READ | write)
}

/// `len` rounded up to whole pages, at least one.
pub(super) fn whole_pages(len: usize) -> io::Result<usize> {
    len.max(1)
        .checked_next_multiple_of(PAGE_BYTES)
        .filter(|len| isize::try_from(*len).is_ok())
        .ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_of_one_file_share_their_bytes() {
        let (file, here) = create_shared("test", 5000, false).unwrap();
        assert_eq!(here.len(), 8192);
        let there = map_received(file.as_fd(), 8192, true).unwrap();
        // SAFETY: the first byte is inside the mapping; nobody else knows it.
        unsafe { there.base().as_ptr().write_volatile(7) };
        // SAFETY: as above.
        let seen = unsafe { here.base().as_ptr().read_volatile() };
        assert_eq!(seen, 7);
    }

    #[test]
    fn an_unsealed_resized_or_foreign_file_is_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let unsealed = rustix::fs::memfd_create("test", flags).unwrap();
        rustix::fs::ftruncate(&unsealed, 4096).unwrap();
        let error = map_received(unsealed.as_fd(), 4096, false).unwrap_err();
        assert!(error.to_string().contains("not sealed"), "{error}");
        for missing in [SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL] {
            let file = rustix::fs::memfd_create("test", flags).unwrap();
            rustix::fs::ftruncate(&file, 4096).unwrap();
            rustix::fs::fcntl_add_seals(&file, REQUIRED_SEALS.difference(missing)).unwrap();
            assert!(map_received(file.as_fd(), 4096, false).is_err(), "{missing:?} is not missed");
        }
        let (file, _mapping) = create_shared("test", 4096, false).unwrap();
        for wrong in [0, 1, 4095, 4097, 8192, usize::MAX] {
            assert!(map_received(file.as_fd(), wrong, false).is_err(), "{wrong} bytes");
        }
        assert!(rustix::fs::ftruncate(&file, 0).is_err(), "a sealed file was truncated");
        let null = std::fs::File::open("/dev/null").unwrap();
        let error = map_received(null.as_fd(), 4096, false).unwrap_err();
        assert!(error.to_string().contains("not a memory file"), "{error}");
    }

    #[test]
    fn what_only_one_side_writes_cannot_be_mapped_for_writing_elsewhere() {
        let (file, _mapping) = create_shared("test", 4096, true).unwrap();
        assert!(map_received(file.as_fd(), 4096, true).is_err());
        assert!(map_received(file.as_fd(), 4096, false).is_ok());
    }
}
