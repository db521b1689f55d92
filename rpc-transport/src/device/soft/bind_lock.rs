//! A lock for binding a socket path: without it, two servers that start at once could each mistake
//! the other's new socket for a leftover.
//!
//! Owns a lock file next to the socket while binding lasts. It belongs to this user, and only this
//! user can open it, so nobody else can hold it; a directory, in contrast, can be locked by anyone
//! who may read it. Never waits: the holder of the lock is about to listen, so the address is in
//! use.
//!
//! Invariant: a lock counts only if the locked file is still the one at the path, since the last
//! holder may have removed it.

use std::fmt::Display;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// Attempts before another process's interference becomes an error.
const ATTEMPTS: usize = 100;

/// The lock. Dropping it removes the lock file and unlocks.
#[derive(Debug)]
pub(super) struct BindLock {
    path: PathBuf,
    _file: OwnedFd,
}

impl BindLock {
    /// Takes the lock of a socket path.
    ///
    /// # Errors
    /// `EADDRINUSE` while another process of this user holds it; an error that names the lock file
    /// when other users could hold it; those of `open(2)`.
    pub(super) fn take(socket: &Path) -> io::Result<Self> {
        let mut path = socket.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        for _ in 0..ATTEMPTS {
            let Some(file) = open(&path)? else { continue };
            check_owner(&path, &file)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if is_at(&file, &path) => return Ok(Self { path, _file: file }),
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Err(Errno::ADDRINUSE.into()),
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno::ADDRINUSE.into())
    }
}

impl Drop for BindLock {
    fn drop(&mut self) {
        // Still locked here. If the file cannot be removed, the next holder locks the existing one.
        let _ = rustix::fs::unlink(&self.path);
    }
}

/// Opens or creates the lock file; `None` if another process created it in between. Opening does
/// not wait, whatever kind of file is there.
fn open(path: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => return Ok(Some(file)),
        Err(Errno::NOENT) => {}
        Err(error @ (Errno::ACCESS | Errno::LOOP)) if rustix::fs::lstat(path).is_ok() => {
            return Err(refused(path, "it cannot be opened", &error));
        }
        Err(error) => return Err(error.into()),
    }
    match rustix::fs::open(path, flags | OFlags::CREATE | OFlags::EXCL, Mode::RUSR | Mode::WUSR) {
        Ok(file) => Ok(Some(file)),
        Err(Errno::EXIST) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Checks that no other user can open, and so lock, the file.
fn check_owner(path: &Path, file: &OwnedFd) -> io::Result<()> {
    let stat = rustix::fs::fstat(file)?;
    let own = rustix::process::geteuid().as_raw();
    if stat.st_uid != own {
        let whose = format!("user {}, this process belongs to user {own}", stat.st_uid);
        return Err(refused(path, "it belongs to", &whose));
    }
    let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
    if !is_file || stat.st_mode & 0o077 != 0 {
        return Err(refused(
            path,
            "others can open it: its mode is",
            &format!("{:o}", stat.st_mode),
        ));
    }
    Ok(())
}

fn refused(path: &Path, what: &str, detail: &dyn Display) -> io::Error {
    let reason = format!(
        "the lock file {} does not belong to this user alone: {what} {detail}; remove it, or \
         choose another directory",
        path.display()
    );
    io::Error::other(reason)
}

fn is_at(file: &OwnedFd, path: &Path) -> bool {
    let (Ok(own), Ok(there)) = (rustix::fs::fstat(file), rustix::fs::lstat(path)) else {
        return false;
    };
    (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino)
}
