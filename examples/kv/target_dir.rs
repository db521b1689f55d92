//! The directory that an export writes into.
//!
//! Owns the creation of directories and files below one directory. Invariants:
//! 1. Nothing is written outside: every component is opened relative to the directory before it,
//!    and symbolic links are not followed. The directory itself may be reached through one.
//! 2. A file appears complete: it is written under a temporary name in its directory and renamed. A
//!    failed one is removed again.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rpc_core::Bulk;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, mkdirat, openat, renameat, unlinkat};
use rustix::io::Errno;

use super::key_path::{KeyPath, Printable};

/// How a directory is opened below the root.
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// How a temporary file is created; `EXCL` follows no link.
const NEW_FILE: OFlags =
    OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::CLOEXEC);
/// The umask removes the bits that the user does not want.
const FILE_MODE: Mode = Mode::from_raw_mode(0o666);
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o777);

/// Why something could not be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// On the way there is something that is no directory.
    #[error("`{}` is a file or a symbolic link, not a directory", Printable(.0))]
    NotADirectory(String),
    /// In its place there is a directory.
    #[error("a directory of that name exists")]
    IsADirectory,
    /// The system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<Errno> for WriteError {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

/// A directory to write into.
#[derive(Debug)]
pub(crate) struct TargetDir {
    root: OwnedFd,
    temporary: AtomicU64,
}

impl TargetDir {
    /// Opens a directory, and creates it if it is not there.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        fs::create_dir_all(path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
                io::Error::new(error.kind(), format!("{error}; pass a directory, not a file"))
            }
            _ => error,
        })?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, path, flags, Mode::empty())?;
        Ok(Self { root, temporary: AtomicU64::new(0) })
    }

    /// Creates the directories of a path.
    pub(crate) fn create_dirs(&self, dirs: &[&str]) -> Result<OwnedFd, WriteError> {
        let mut at = self.root.try_clone()?;
        for name in dirs {
            at = enter(at.as_fd(), name)?;
        }
        Ok(at)
    }

    /// Creates or replaces the entry of a key: a file with these bytes, or a directory.
    pub(crate) fn write(&self, path: &KeyPath<'_>, content: &Bulk) -> Result<(), WriteError> {
        let dir = self.create_dirs(&path.dirs)?;
        let Some(name) = path.file else { return Ok(()) };
        let temporary = self.temporary(dir.as_fd())?;
        content.write_to(&temporary.file)?;
        temporary.rename(name)
    }

    fn temporary<'a>(&self, dir: BorrowedFd<'a>) -> Result<Temporary<'a>, WriteError> {
        loop {
            let number = self.temporary.fetch_add(1, Ordering::Relaxed);
            let name = format!(".kv-export-{}-{number}", std::process::id());
            match openat(dir, &*name, NEW_FILE, FILE_MODE) {
                Ok(fd) => return Ok(Temporary { dir, name: Some(name), file: File::from(fd) }),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Opens a directory, and creates it if it is not there.
fn enter(dir: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, WriteError> {
    let opened = match openat(dir, name, DIRECTORY, Mode::empty()) {
        Err(Errno::NOENT) => match mkdirat(dir, name, DIRECTORY_MODE) {
            // Another file's directory may have been created in the meantime.
            Ok(()) | Err(Errno::EXIST) => openat(dir, name, DIRECTORY, Mode::empty()),
            Err(error) => Err(error),
        },
        opened => opened,
    };
    opened.map_err(|error| match error {
        Errno::NOTDIR | Errno::LOOP => WriteError::NotADirectory(name.to_owned()),
        error => error.into(),
    })
}

/// A file that is removed unless it is renamed.
struct Temporary<'a> {
    dir: BorrowedFd<'a>,
    name: Option<String>,
    file: File,
}

impl Temporary<'_> {
    fn rename(mut self, to: &str) -> Result<(), WriteError> {
        let Some(name) = &self.name else { return Ok(()) };
        match renameat(self.dir, &**name, self.dir, to) {
            Ok(()) => {
                self.name = None;
                Ok(())
            }
            Err(Errno::ISDIR) => Err(WriteError::IsADirectory),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = unlinkat(self.dir, &**name, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use examples::testing::Scratch;

    fn write(dir: &Scratch, key: &str, bytes: &[u8]) -> Result<(), WriteError> {
        TargetDir::open(dir.path())
            .unwrap()
            .write(&KeyPath::parse(key).unwrap(), &bytes.to_vec().into())
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn files_and_directories_are_created_and_files_replaced() {
        let dir = Scratch::new();
        write(&dir, "a/b/c", b"old").unwrap();
        write(&dir, "a/b/c", b"new").unwrap();
        write(&dir, "a/empty/", b"").unwrap();
        write(&dir, "top", b"").unwrap();
        assert_eq!(fs::read(dir.path().join("a/b/c")).unwrap(), b"new");
        assert_eq!(names(&dir.path().join("a/b")), ["c"]);
        assert_eq!(names(&dir.path().join("a")), ["b", "empty"]);
        assert_eq!(names(dir.path()), ["a", "top"]);
    }

    #[test]
    fn links_are_not_followed_out_of_the_directory() {
        let (dir, outside) = (Scratch::new(), Scratch::new());
        symlink(outside.path(), dir.path().join("out")).unwrap();
        fs::write(outside.path().join("f"), "untouched").unwrap();
        symlink(outside.path().join("f"), dir.path().join("f")).unwrap();
        for key in ["out/f", "out/new", "out/new/", "out/"] {
            let error = write(&dir, key, b"x").unwrap_err();
            assert!(matches!(&error, WriteError::NotADirectory(name) if name == "out"), "{error}");
        }
        // The link itself is replaced, not what it leads to.
        write(&dir, "f", b"x").unwrap();
        assert_eq!(fs::read(outside.path().join("f")).unwrap(), b"untouched");
        assert!(dir.path().join("f").symlink_metadata().unwrap().is_file());
        assert_eq!(names(outside.path()), ["f"]);
    }

    #[test]
    fn obstacle_is_named_and_nothing_remains() {
        let dir = Scratch::new();
        fs::write(dir.path().join("file"), "x").unwrap();
        fs::create_dir(dir.path().join("dir")).unwrap();
        let error = write(&dir, "file/below", b"").unwrap_err();
        assert!(error.to_string().contains("`file` is a file"), "{error}");
        let error = write(&dir, "dir", b"").unwrap_err();
        assert!(matches!(error, WriteError::IsADirectory), "{error}");
        assert_eq!(names(dir.path()), ["dir", "file"]);
    }
}
