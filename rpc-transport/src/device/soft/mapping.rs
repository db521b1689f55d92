//! Mapped memory: anonymous mappings, and memory files that two processes map.
//!
//! Owns `mmap`, `munmap` and the seals of memory files, and the advice when these are refused.
//! Never interprets the bytes.
//!
//! Invariants:
//! 1. `base..base+len` is mapped, readable, and writable unless mapped read-only, from construction
//!    to drop.
//! 2. A memory file created here is sealed against resizing and further sealing before anyone else
//!    sees it. A received file is mapped only if it has the same seals and exactly the announced
//!    size. So no peer can shrink a file under a mapping, which would raise SIGBUS here.
//! 3. No file grows beyond this process's limit on the size of files: the kernel would send
//!    SIGXFSZ, which kills the process.
#![allow(unsafe_code, reason = "memory mappings")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::memory::limits::{Limited, limit};

/// Granularity of mappings, bytes: 4 KiB, or 16 or 64 on some machines.
#[inline]
pub(super) fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// Seals that a memory file must have to be mapped.
const REQUIRED_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A mapping; unmapped on drop.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread. This type hands out its address only,
// and code that dereferences the address must rule out data races.
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
        // Miri does not support other flags.
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
        };
        let base = base.map_err(refused("mmap"))?;
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
/// The call that was refused, or the limit, and what to do; `EMFILE` and `ENFILE` as they are.
pub(super) fn create_shared(
    name: &str,
    len: usize,
    only_here: bool,
) -> io::Result<(OwnedFd, Mapping)> {
    let len = whole_pages(len)?;
    fits_limit(len as u64, limit(Limited::FileSize))?;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(name, flags).map_err(refused("memfd_create"))?;
    rustix::fs::ftruncate(&file, len as u64).map_err(refused("ftruncate"))?;
    let mapping = Mapping::of_file(file.as_fd(), len, ProtFlags::READ | ProtFlags::WRITE)?;
    let seals = if only_here { SealFlags::FUTURE_WRITE } else { SealFlags::empty() };
    // In two steps, since the last seal allows no further one.
    rustix::fs::fcntl_add_seals(&file, seals).map_err(refused("fcntl"))?;
    rustix::fs::fcntl_add_seals(&file, REQUIRED_SEALS).map_err(refused("fcntl"))?;
    Ok((file, mapping))
}

/// Checks a file of `len` bytes against the limit on the size of files (invariant 3).
fn fits_limit(len: u64, limit: Option<u64>) -> io::Result<()> {
    match limit {
        Some(limit) if limit < len => Err(io::Error::other(format!(
            "shared memory needs {len} bytes, but the limit on file sizes is {limit} bytes; raise \
             `ulimit -f` (or LimitFSIZE=), or use tcp://"
        ))),
        _ => Ok(()),
    }
}

/// The error of a system call that shared memory needs, with a remedy. A lack of file descriptors
/// stays unchanged: [`open_files`](crate::device::open_files) has the advice for it.
pub(super) fn refused(call: &'static str) -> impl Fn(Errno) -> io::Error {
    move |error| match error {
        Errno::MFILE | Errno::NFILE => error.into(),
        Errno::NOMEM => io::Error::other(format!(
            "no memory for {call}: {error}; raise `ulimit -v` (or LimitAS=, or the container's \
             memory), or use tcp://"
        )),
        error => io::Error::other(format!(
            "{call} is refused: {error}; allow it in the sandbox, or use tcp://"
        )),
    }
}

/// Maps a received memory file after checking its seals and size (invariant 2).
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] with the reason; else the call that was refused, and what to do.
pub(super) fn map_received(
    file: BorrowedFd<'_>,
    len: usize,
    writable: bool,
) -> io::Result<Mapping> {
    let refuse = |reason| Err(io::Error::new(io::ErrorKind::InvalidData, reason));
    match rustix::fs::fcntl_get_seals(file) {
        Ok(seals) if seals.contains(REQUIRED_SEALS) => {}
        Ok(_) => return refuse("the memory file is not sealed against resizing"),
        Err(Errno::INVAL) => return refuse("the file is not a memory file"),
        Err(error) => return Err(refused("fcntl")(error)),
    }
    let found = rustix::fs::fstat(file).map_err(refused("fstat"))?;
    if whole_pages(len)? != len || found.st_size != i64::try_from(len).unwrap_or(-1) {
        return refuse("the memory file does not have the announced size");
    }
    let write = if writable { ProtFlags::WRITE } else { ProtFlags::empty() };
    Mapping::of_file(file, len, ProtFlags::READ | write)
}

/// `len` rounded up to whole pages, at least one.
pub(super) fn whole_pages(len: usize) -> io::Result<usize> {
    len.max(1)
        .checked_next_multiple_of(page_bytes())
        .filter(|len| isize::try_from(*len).is_ok())
        .ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_of_one_file_share_their_bytes() {
        let page = page_bytes();
        let (file, here) = create_shared("test", page + 1, false).unwrap();
        assert_eq!(here.len(), 2 * page);
        let there = map_received(file.as_fd(), 2 * page, true).unwrap();
        // SAFETY: the first byte is inside the mapping; nobody else knows it.
        unsafe { there.base().as_ptr().write_volatile(7) };
        // SAFETY: as above.
        let seen = unsafe { here.base().as_ptr().read_volatile() };
        assert_eq!(seen, 7);
    }

    #[test]
    fn an_unsealed_resized_or_foreign_file_is_refused() {
        let page = page_bytes();
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let unsealed = rustix::fs::memfd_create("test", flags).unwrap();
        rustix::fs::ftruncate(&unsealed, page as u64).unwrap();
        let error = map_received(unsealed.as_fd(), page, false).unwrap_err();
        assert!(error.to_string().contains("not sealed"), "{error}");
        for missing in [SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL] {
            let file = rustix::fs::memfd_create("test", flags).unwrap();
            rustix::fs::ftruncate(&file, page as u64).unwrap();
            rustix::fs::fcntl_add_seals(&file, REQUIRED_SEALS.difference(missing)).unwrap();
            assert!(map_received(file.as_fd(), page, false).is_err(), "{missing:?} is not missed");
        }
        let (file, _mapping) = create_shared("test", page, false).unwrap();
        for wrong in [0, 1, page - 1, page + 1, 2 * page, usize::MAX] {
            assert!(map_received(file.as_fd(), wrong, false).is_err(), "{wrong} bytes");
        }
        assert!(rustix::fs::ftruncate(&file, 0).is_err(), "a sealed file was truncated");
        let null = std::fs::File::open("/dev/null").unwrap();
        let error = map_received(null.as_fd(), page, false).unwrap_err();
        assert!(error.to_string().contains("not a memory file"), "{error}");
    }

    #[test]
    fn one_sided_mapping_is_read_only_elsewhere() {
        let page = page_bytes();
        let (file, _mapping) = create_shared("test", page, true).unwrap();
        assert!(map_received(file.as_fd(), page, true).is_err());
        assert!(map_received(file.as_fd(), page, false).is_ok());
    }

    #[test]
    fn a_file_beyond_the_limit_is_not_begun() {
        assert!(fits_limit(4096, None).is_ok());
        assert!(fits_limit(4096, Some(4096)).is_ok());
        let error = fits_limit(4096, Some(4095)).unwrap_err().to_string();
        assert!(error.contains("4095 bytes") && error.contains("ulimit -f"), "{error}");
    }
}
