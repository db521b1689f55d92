//! Access to a remote payload's bytes without a copy.
//!
//! Owns the only reference that trusts the peer, and the pointer that a system call reads through.
#![allow(unsafe_code, reason = "memory that a peer may write")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use crate::message::payload::{Payload, Piece, readable};

impl Payload {
    /// The bytes, if they are contiguous, private or not. `None` in a child of `fork(2)` if they
    /// are remote, and if they are encrypted still.
    ///
    /// # Safety
    /// The peer must not write them while the slice lives. A peer that keeps to the protocol never
    /// does; one that does not causes undefined behaviour, so this is for peers that are trusted as
    /// this process is. [`Payload::detach`] needs no trust.
    #[must_use]
    pub unsafe fn as_slice(&self) -> Option<&[u8]> {
        if let Some(private) = self.as_private_slice() {
            return Some(private);
        }
        let (region, offset, len) = self.as_remote_span()?;
        let region = readable(region).ok()?;
        // SAFETY: the span is inside the region (`Piece`'s makers checked), which `self` keeps.
        let start = unsafe { region.base().as_ptr().add(offset) };
        // SAFETY: initialised memory of the region; unchanged by the caller's promise.
        Some(unsafe { std::slice::from_raw_parts(start, len) })
    }

    /// Writes bytes from `offset` on to a file, pipe or socket, without a copy unless they are
    /// encrypted still; returns how many were written, at least one unless no bytes are left.
    /// Blocks as the file does.
    ///
    /// # Errors
    /// That of `write(2)`, or a [`ReadError`](crate::message::read_error::ReadError).
    ///
    /// # Panics
    /// When `offset` is beyond the end.
    pub fn write_to(&self, offset: u64, file: impl AsFd) -> io::Result<usize> {
        let rest = self.slice(offset..self.len());
        let Some((piece, range)) = rest.first_piece() else { return Ok(0) };
        match piece {
            Piece::Private(bytes) => write(file, bytes[range.clone()].as_ptr(), range.len()),
            Piece::Remote { region, offset, .. } => {
                let region = readable(region)?;
                // SAFETY: the span is inside the region, as above.
                let start = unsafe { region.base().as_ptr().add(offset + range.start) };
                write(file, start, range.len())
            }
            Piece::Sealed(sealed) => {
                let (opened, part) = sealed.first_of(range)?;
                let written = write(file, opened[part.clone()].as_ptr(), part.len())?;
                if written == part.len() {
                    sealed.forget();
                }
                Ok(written)
            }
        }
    }
}

/// Writes bytes that are readable until it returns; a peer may write them too.
fn write(file: impl AsFd, start: *const u8, len: usize) -> io::Result<usize> {
    let fd = file.as_fd().as_raw_fd();
    loop {
        // SAFETY: `start..start+len` is readable (the caller's promise); the kernel reads it
        // whatever a peer writes meanwhile.
        let written = unsafe { libc::write(fd, start.cast(), len) };
        if let Ok(written) = usize::try_from(written) {
            return Ok(written);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
impl crate::memory::region::MemoryRegion {
    /// Writes as a peer does, for tests, which lend no slice of it.
    pub(crate) fn scribble(&self, offset: usize, from: &[u8]) {
        // SAFETY: no slice is lent.
        unsafe { self.write_as_peer(offset, from) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, SeekFrom};

    use super::*;
    use crate::message::read_error::ReadError;

    #[test]
    #[cfg_attr(miri, ignore = "files")]
    fn unreadable_bytes_are_neither_lent_nor_written() {
        let payload = Payload::unreadable(8);
        // SAFETY: nothing is lent, so nobody can write it.
        assert_eq!(unsafe { payload.as_slice() }, None);
        let null = std::fs::File::options().write(true).open("/dev/null").unwrap();
        let error = payload.write_to(3, null).unwrap_err();
        assert_eq!(error.downcast::<ReadError>().unwrap(), ReadError::Forked);
    }

    #[test]
    #[cfg_attr(miri, ignore = "memory files")]
    fn payload_is_written_to_a_file_in_pieces() {
        let memory = rustix::fs::memfd_create("payload", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = std::fs::File::from(memory);
        let payload = Payload::from_pieces(
            [b"some".to_vec(), b"bytes".to_vec()].map(|b| Piece::Private(std::sync::Arc::new(b))),
        );
        let mut at = 0;
        while at < payload.len() {
            at += payload.write_to(at, &file).unwrap() as u64;
        }
        assert_eq!(payload.write_to(at, &file).unwrap(), 0);
        file.seek(SeekFrom::Start(0)).unwrap();
        let mut read = Vec::new();
        file.read_to_end(&mut read).unwrap();
        assert_eq!(read, b"somebytes");
    }
}
