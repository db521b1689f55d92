//! A directory that files are read from and written to, and nothing outside it.
//!
//! Owns the lookup from a path to an open directory, and the operations that do not touch the bytes
//! of files: listings, directories, links, modes and times.
//!
//! Invariants:
//! 1. Nothing outside is ever opened, created or changed: every name is looked up in the directory
//!    before it, and symbolic links are not followed. The directory itself may be reached through
//!    one.
//! 2. A page has at most the requested number of entries, so no answer is larger than its limit.

use std::collections::BinaryHeap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use bytes::Bytes;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT, chmod,
    fstat, mkdirat, openat, readlinkat, renameat, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use super::path::{PathError, names, part_name, split};
use super::service::{Entry, FileError, Found, Kind, Link, MODE_BITS, Meta, Page, Settle, Special};

/// How a directory on the way is opened: it need not be readable.
const STEP: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// How a file is opened. An entry that is not a regular file must not block the caller.
const READ: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);
/// Mode of directories that were requested only as parents: the umask decides.
const PARENT_MODE: Mode = Mode::from_raw_mode(0o777);
/// Other directories get their mode once they are complete; until then only their owner has access.
const OWNER_ALL: u32 = 0o700;

/// A directory.
#[derive(Debug)]
pub(crate) struct Tree {
    root: OwnedFd,
}

impl Tree {
    /// Opens a directory.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, path, flags, Mode::empty())?;
        Ok(Self { root })
    }

    /// A cursor at this directory.
    pub(crate) fn cursor(&self) -> Cursor<'_> {
        Cursor { tree: self, at: None }
    }
}

/// What to do if a directory on the way is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// Report it.
    Fail,
    /// Create it.
    Create,
}

/// Moves from directory to directory, and stays in the last one: the files of a batch are often
/// neighbours.
#[derive(Debug)]
pub(crate) struct Cursor<'a> {
    tree: &'a Tree,
    at: Option<(Vec<u8>, OwnedFd)>,
}

impl Cursor<'_> {
    /// Opens a directory.
    pub(crate) fn dir(
        &mut self,
        path: &[u8],
        missing: Missing,
    ) -> Result<BorrowedFd<'_>, FileError> {
        let path_names = names(path)?;
        if self.at.as_ref().is_none_or(|(at, _)| at != path) {
            let mut fd = self.tree.root.try_clone()?;
            for name in path_names {
                fd = enter(fd.as_fd(), name, missing, PARENT_MODE)?;
            }
            self.at = Some((path.to_vec(), fd));
        }
        let (_, fd) = self.at.as_ref().ok_or(FileError::NotFound)?;
        Ok(fd.as_fd())
    }

    /// Opens the directory of a path; also returns the path's last name.
    pub(crate) fn parent<'p>(
        &mut self,
        path: &'p [u8],
        missing: Missing,
    ) -> Result<(BorrowedFd<'_>, &'p [u8]), FileError> {
        let (dir, name) = split(path);
        match names(path)?.is_empty() {
            true => Err(PathError::Empty.into()),
            false => Ok((self.dir(dir, missing)?, name)),
        }
    }

    /// Opens a regular file to read; also returns its size.
    pub(crate) fn file(&mut self, path: &[u8]) -> Result<(File, u64), FileError> {
        let (dir, name) = self.parent(path, Missing::Fail)?;
        open_file(dir, name)
    }

    /// Opens a file's partial file to read.
    pub(crate) fn part_file(&mut self, path: &[u8]) -> Result<(File, u64), FileError> {
        let (dir, name) = self.parent(path, Missing::Fail)?;
        open_file(dir, &part_name(name))
    }

    /// The entry at a path.
    pub(crate) fn survey(&mut self, path: &[u8]) -> Result<Found, FileError> {
        if path.is_empty() {
            let entry = entry_of(&fstat(&self.tree.root)?, Bytes::new);
            return Ok(Found { entry: Some(entry), part_bytes: None });
        }
        let (dir, name) = match self.parent(path, Missing::Fail) {
            Err(FileError::NotFound) => return Ok(Found { entry: None, part_bytes: None }),
            parent => parent?,
        };
        let part =
            match stat_if_there(dir, &part_name(name))?.map(|stat| entry_of(&stat, Bytes::new)) {
                Some(Entry { kind: Kind::File { bytes }, .. }) => Some(bytes),
                _ => None,
            };
        let entry = match entry(dir, name) {
            Err(FileError::NotFound) => None,
            entry => Some(entry?),
        };
        Ok(Found { entry, part_bytes: part })
    }

    /// The entries of a directory whose names sort after `after`, at most `limit`.
    pub(crate) fn list(
        &mut self,
        path: &[u8],
        after: &[u8],
        limit: usize,
    ) -> Result<Page, FileError> {
        let dir = self.dir(path, Missing::Fail)?;
        let readable = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(dir, c".", readable, Mode::empty())?;
        let (page_names, more) = first_names(Dir::new(opened)?, after, limit)?;
        let mut entries = Vec::with_capacity(page_names.len());
        for name in page_names {
            match entry(dir, &name) {
                // Deleted since its name was read.
                Err(FileError::NotFound) => {}
                entry => entries.push((name.into(), entry)),
            }
        }
        Ok(Page { entries, more })
    }

    /// Creates a directory that its owner can write into.
    pub(crate) fn make_dir(&mut self, path: &[u8]) -> Result<(), FileError> {
        let (dir, name) = self.parent(path, Missing::Create)?;
        let made = enter(dir, name, Missing::Create, Mode::from_raw_mode(OWNER_ALL))?;
        let mode = fstat(&made)?.st_mode & MODE_BITS;
        if mode & OWNER_ALL != OWNER_ALL {
            chmod_fd(made.as_fd(), mode | OWNER_ALL)?;
        }
        Ok(())
    }

    /// Creates or replaces a symbolic link.
    pub(crate) fn make_link(&mut self, link: &Link) -> Result<(), FileError> {
        let (dir, name) = self.parent(&link.path, Missing::Create)?;
        // Created under its partial name and renamed, so that there is always the old or the new
        // one.
        let part = part_name(name);
        match symlinkat(&*link.target, dir, &*part) {
            Err(Errno::EXIST) => {
                unlinkat(dir, &*part, AtFlags::empty())?;
                symlinkat(&*link.target, dir, &*part)?;
            }
            made => made?,
        }
        let renamed = renameat(dir, &*part, dir, name);
        if renamed.is_err() {
            let _ = unlinkat(dir, &*part, AtFlags::empty());
        }
        renamed?;
        Ok(set_times(dir, name, link.meta)?)
    }

    /// Sets mode and time of an existing file or directory.
    pub(crate) fn settle(&mut self, item: &Settle) -> Result<(), FileError> {
        let (dir, name) = self.parent(&item.path, Missing::Fail)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(dir, name, flags, Mode::empty())?;
        let stat = fstat(&fd)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink
            && stat.st_mode & MODE_BITS != item.meta.mode & MODE_BITS
        {
            chmod_fd(fd.as_fd(), item.meta.mode & MODE_BITS)?;
        }
        Ok(set_times(dir, name, item.meta)?)
    }
}

/// Opens a directory in another one.
fn enter(
    dir: BorrowedFd<'_>,
    name: &[u8],
    missing: Missing,
    mode: Mode,
) -> Result<OwnedFd, FileError> {
    let opened = match openat(dir, name, STEP, Mode::empty()) {
        Err(Errno::NOENT) if missing == Missing::Create => match mkdirat(dir, name, mode) {
            // Another call may have created it in the meantime.
            Ok(()) | Err(Errno::EXIST) => openat(dir, name, STEP, Mode::empty()),
            Err(error) => Err(error),
        },
        opened => opened,
    };
    opened.map_err(|error| match error {
        Errno::NOTDIR | Errno::LOOP => FileError::NotADirectory(name.to_vec().into()),
        error => error.into(),
    })
}

fn open_file(dir: BorrowedFd<'_>, name: &[u8]) -> Result<(File, u64), FileError> {
    let file = match openat(dir, name, READ, Mode::empty()) {
        Err(Errno::LOOP | Errno::NXIO) => return Err(FileError::NotAFile),
        opened => File::from(opened?),
    };
    let metadata = file.metadata()?;
    if metadata.is_file() { Ok((file, metadata.len())) } else { Err(FileError::NotAFile) }
}

fn stat_if_there(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Option<Stat>, FileError> {
    match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(None),
        stat => Ok(Some(stat?)),
    }
}

fn entry(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Entry, FileError> {
    let stat = stat_if_there(dir, name)?.ok_or(FileError::NotFound)?;
    let mut target = Ok(Bytes::new());
    if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
        target = readlinkat(dir, name, Vec::new()).map(|target| target.into_bytes().into());
    }
    let target = target?;
    Ok(entry_of(&stat, || target))
}

fn entry_of(stat: &Stat, target: impl FnOnce() -> Bytes) -> Entry {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Kind::File { bytes: u64::try_from(stat.st_size).unwrap_or(0) },
        FileType::Directory => Kind::Dir,
        FileType::Symlink => Kind::Link { target: target() },
        FileType::Fifo => Kind::Other(Special::Pipe),
        FileType::Socket => Kind::Other(Special::Socket),
        _ => Kind::Other(Special::Device),
    };
    let mtime_nanos = u32::try_from(stat.st_mtime_nsec).unwrap_or(0);
    Entry { kind, meta: Meta { mode: stat.st_mode & MODE_BITS, mtime: stat.st_mtime, mtime_nanos } }
}

/// The first names after `after`, in order, and whether there are more. Holds at most `limit` of
/// them at once.
fn first_names(dir: Dir, after: &[u8], limit: usize) -> Result<(Vec<Vec<u8>>, bool), FileError> {
    let (mut first, mut more) = (BinaryHeap::new(), false);
    for found in dir {
        let found = found?;
        let name = found.file_name().to_bytes();
        if name <= after || name == b"." || name == b".." {
            continue;
        }
        first.push(name.to_vec());
        if first.len() > limit {
            first.pop();
            more = true;
        }
    }
    Ok((first.into_sorted_vec(), more))
}

/// The times of an entry in the system's form. The time of the last access is left alone.
pub(crate) fn timestamps(meta: Meta) -> Timestamps {
    let nanos = meta.mtime_nanos.min(999_999_999);
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: meta.mtime, tv_nsec: nanos.into() },
    }
}

fn set_times(dir: BorrowedFd<'_>, name: &[u8], meta: Meta) -> io::Result<()> {
    Ok(utimensat(dir, name, &timestamps(meta), AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Changes the mode of an entry that was opened as a path, even if its name has changed.
fn chmod_fd(fd: BorrowedFd<'_>, mode: u32) -> io::Result<()> {
    Ok(chmod(format!("/proc/self/fd/{}", fd.as_raw_fd()), Mode::from_raw_mode(mode))?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use examples::testing::Scratch;

    const META: Meta = Meta { mode: 0o640, mtime: 981_173_106, mtime_nanos: 7 };

    fn link(path: &[u8], target: &[u8]) -> Link {
        Link { path: path.to_vec().into(), target: target.to_vec().into(), meta: META }
    }

    #[test]
    fn nothing_leads_out_of_the_directory() {
        let (dir, outside) = (Scratch::new(), Scratch::new());
        fs::write(outside.path().join("f"), "secret").unwrap();
        symlink(outside.path(), dir.path().join("out")).unwrap();
        symlink(outside.path().join("f"), dir.path().join("f")).unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        let mut at = tree.cursor();
        let in_the_way = FileError::NotADirectory("out".into());
        assert_eq!(at.file(b"out/f").unwrap_err(), in_the_way);
        assert_eq!(at.make_dir(b"out/d").unwrap_err(), in_the_way);
        assert_eq!(at.make_dir(b"out").unwrap_err(), in_the_way);
        assert_eq!(at.list(b"out", b"", 9).unwrap_err(), in_the_way);
        assert_eq!(at.survey(b"out/f").unwrap_err(), in_the_way);
        assert_eq!(at.make_link(&link(b"out/l", b"x")).unwrap_err(), in_the_way);
        assert_eq!(at.file(b"f").unwrap_err(), FileError::NotAFile);
        for path in [&b"../f"[..], b"/etc/passwd", b"a/../../f", b"a\0"] {
            assert!(matches!(at.file(path), Err(FileError::Path(_))));
            assert!(matches!(at.make_dir(path), Err(FileError::Path(_))));
            assert!(matches!(at.survey(path), Err(FileError::Path(_))));
            assert!(matches!(at.make_link(&link(path, b"x")), Err(FileError::Path(_))));
        }
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
        // The mode of a link's target is not touched either.
        let before = fs::metadata(outside.path().join("f")).unwrap().permissions();
        at.settle(&Settle { path: "f".into(), meta: Meta { mode: 0, ..META } }).unwrap();
        assert_eq!(fs::metadata(outside.path().join("f")).unwrap().permissions(), before);
    }

    #[test]
    fn listing_is_paged_and_names_all_kinds() {
        let dir = Scratch::new();
        for name in ["b", "a", "d", "c"] {
            fs::write(dir.path().join(name), name).unwrap();
        }
        fs::create_dir(dir.path().join("e")).unwrap();
        symlink("../nowhere", dir.path().join("f")).unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        let mut at = tree.cursor();
        let mut after = Bytes::new();
        let mut all = Vec::new();
        for more in [true, true, false] {
            let page = at.list(b"", &after, 2).unwrap();
            assert_eq!((page.entries.len(), page.more), (2, more));
            after = page.entries[1].0.clone();
            all.extend(page.entries.into_iter().map(|(name, entry)| (name, entry.unwrap().kind)));
        }
        let file = Kind::File { bytes: 1 };
        let expected = [("a", file.clone()), ("b", file.clone()), ("c", file.clone()), ("d", file)];
        assert_eq!(all[..4], expected.map(|(name, kind)| (name.into(), kind)));
        let link = Kind::Link { target: "../nowhere".into() };
        assert_eq!(all[4..], [("e".into(), Kind::Dir), ("f".into(), link)]);
    }

    #[test]
    fn links_are_replaced_and_never_directories() {
        let dir = Scratch::new();
        let tree = Tree::open(dir.path()).unwrap();
        let mut at = tree.cursor();
        fs::create_dir_all(dir.path().join("d/below")).unwrap();
        at.make_link(&link(b"new/l", b"../\xff")).unwrap();
        at.make_link(&link(b"new/l", b"/etc")).unwrap();
        assert_eq!(fs::read_link(dir.path().join("new/l")).unwrap(), Path::new("/etc"));
        assert_eq!(at.make_link(&link(b"d", b"x")).unwrap_err(), FileError::IsADirectory);
        assert_eq!(at.list(b"", b"", 9).unwrap().entries.len(), 2);
        let found = at.survey(b"new/l").unwrap().entry.unwrap();
        assert_eq!((found.meta.mtime, found.meta.mtime_nanos), (META.mtime, META.mtime_nanos));
    }

    #[test]
    fn directories_are_made_writable_and_settled_later() {
        let dir = Scratch::new();
        let tree = Tree::open(dir.path()).unwrap();
        let mut at = tree.cursor();
        fs::create_dir(dir.path().join("old")).unwrap();
        fs::set_permissions(dir.path().join("old"), fs::Permissions::from_mode(0o555)).unwrap();
        let mode =
            |name: &str| fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o7777;
        at.make_dir(b"old").unwrap();
        at.make_dir(b"new/er").unwrap();
        assert_eq!((mode("old"), mode("new/er")), (0o755, 0o700));
        for path in ["new/er", "old"] {
            let meta = Meta { mode: 0o4555, ..META };
            at.settle(&Settle { path: path.into(), meta }).unwrap();
            assert_eq!(mode(path), 0o555);
        }
        fs::write(dir.path().join("f"), "").unwrap();
        assert_eq!(at.make_dir(b"f").unwrap_err(), FileError::NotADirectory("f".into()));
        assert_eq!(at.make_dir(b"f/g").unwrap_err(), FileError::NotADirectory("f".into()));
    }
}
