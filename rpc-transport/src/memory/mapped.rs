//! Mapped files: bytes of a file as memory to send from.
//!
//! Owns one private mapping. Never writes to it, and never to the file.
//!
//! Invariants:
//! 1. `base..base+len` is inside `mapping..mapping+mapping_bytes`, which is mapped until the drop.
#![allow(unsafe_code, reason = "maps files, whose bytes others can change")]

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Part of a file, mapped into memory. Dropping it ends the mapping.
pub struct MappedFile {
    mapping: NonNull<u8>,
    mapping_bytes: usize,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: only this value owns the mapping, which is only read.
unsafe impl Send for MappedFile {}
// SAFETY: as above.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    /// Maps `range` of a file; its ends need not be page-aligned.
    ///
    /// # Safety
    /// Until this value and everything made from it are dropped, nobody changes these bytes of the
    /// file, and nobody truncates it below the range's end: reading beyond the end of a file raises
    /// SIGBUS, which ends the process.
    ///
    /// # Errors
    /// Those of `mmap(2)`; `InvalidInput` for a range that ends before it starts or exceeds the
    /// address space.
    ///
    /// # Example
    /// ```
    /// use rpc_transport::memory::mapped::MappedFile;
    ///
    /// let file = std::fs::File::open("/proc/self/exe")?;
    /// // SAFETY: nobody changes a running program.
    /// let magic = unsafe { MappedFile::map(&file, 1..4) }?;
    /// assert_eq!(magic.as_ref(), b"ELF");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub unsafe fn map(file: impl AsFd, range: Range<u64>) -> io::Result<Self> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let bytes = range.end.checked_sub(range.start).ok_or_else(invalid)?;
        let len = usize::try_from(bytes).map_err(|_| invalid())?;
        if len == 0 {
            let (base, mapping_bytes) = (NonNull::dangling(), 0);
            return Ok(Self { mapping: base, mapping_bytes, base, len });
        }
        let page = rustix::param::page_size() as u64;
        let before = usize::try_from(range.start % page).map_err(|_| invalid())?;
        let mapping_bytes = len.checked_add(before).ok_or_else(invalid)?;
        // Writable, as devices register only writable memory; private, so nothing reaches the file.
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let (flags, offset) = (MapFlags::PRIVATE, range.start - before as u64);
        // SAFETY: a new mapping at an address of the kernel's choice overlaps no memory in use.
        let mapping = unsafe {
            mmap(std::ptr::null_mut(), mapping_bytes, protection, flags, file.as_fd(), offset)
        }?;
        let mapping = NonNull::new(mapping.cast::<u8>()).ok_or_else(invalid)?;
        // SAFETY: `before` is less than `mapping_bytes`.
        let base = unsafe { mapping.add(before) };
        Ok(Self { mapping, mapping_bytes, base, len })
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: invariant 1; unchanged and inside the file by the promise made to `map`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        if self.mapping_bytes == 0 {
            return;
        }
        // SAFETY: mapped by `map`, and nobody borrows from it any more.
        let unmapped = unsafe { munmap(self.mapping.as_ptr().cast(), self.mapping_bytes) };
        debug_assert!(unmapped.is_ok(), "munmap: {unmapped:?}");
    }
}

impl fmt::Debug for MappedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedFile({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "memory files")]
    fn every_range_has_the_bytes_of_the_file() {
        let memory = rustix::fs::memfd_create("mapped", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = File::from(memory);
        let content: Vec<u8> = (0..=250).cycle().take(20_000).collect();
        file.write_all(&content).unwrap();
        for (start, end) in [(0, 20_000), (0, 1), (4095, 4097), (4096, 8192), (8191, 19_999)] {
            // SAFETY: nobody else has the file.
            let mapped = unsafe { MappedFile::map(&file, start as u64..end as u64) }.unwrap();
            assert_eq!(mapped.as_ref(), &content[start..end]);
        }
        // SAFETY: as above.
        let empty = unsafe { MappedFile::map(&file, 7..7) }.unwrap();
        assert!(empty.as_ref().is_empty());
        #[allow(clippy::reversed_empty_ranges, reason = "that is what is refused")]
        // SAFETY: as above.
        let error = unsafe { MappedFile::map(&file, 8..7) }.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
