//! Incomplete files: `.NAME.part` next to `NAME`.
//!
//! Owns creating, locking, checking and renaming them.
//!
//! Invariants:
//! 1. A file that gets its name has been read back and has the requested digest; so a file is there
//!    complete or not at all.
//! 2. Nobody writes to a file that has its name: a writer holds a lock (shared among the writers of
//!    blocks, exclusive otherwise) and has checked, under the lock, that the partial file is still
//!    the one that was opened.
//! 3. A file that has another name too is never written to, since that name may be outside.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, fchmod, flock, futimens, openat, renameat, statat,
    unlinkat,
};
use rustix::io::Errno;

use super::block::Block;
use super::path::part_name;
use super::service::{FileError, MAX_SUMS, MODE_BITS, Small, Whole};
use super::sums::{digest, file_sums, leaf_count};
use super::tree::{Cursor, Missing, timestamps};

/// Accessible only to its owner until it is complete.
const PART_MODE: Mode = Mode::from_raw_mode(0o600);
const OPEN: OFlags =
    OFlags::RDWR.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);
/// Pause before a held lock is requested again, and the number of tries.
const LOCK_PAUSE: Duration = Duration::from_millis(5);
const LOCK_TRIES: u32 = 2000;

/// A partial file, locked.
struct Part<'a> {
    dir: BorrowedFd<'a>,
    name: &'a [u8],
    part: Vec<u8>,
    file: File,
}

/// Makes a partial file have `keep` bytes, whether it existed or not.
pub(crate) fn begin(at: &mut Cursor<'_>, path: &[u8], keep: u64) -> Result<(), FileError> {
    let (dir, name) = at.parent(path, Missing::Create)?;
    let part = Part::create(dir, name)?;
    // Extending it would add zeros that nobody sent.
    let keep = keep.min(part.file.metadata()?.len());
    Ok(part.file.set_len(keep)?)
}

/// Writes a block into a partial file.
pub(crate) fn write(
    at: &mut Cursor<'_>,
    path: &[u8],
    offset: u64,
    block: &Block,
) -> Result<(), FileError> {
    let (dir, name) = at.parent(path, Missing::Fail)?;
    let part = Part::existing(dir, name, FlockOperation::NonBlockingLockShared)?;
    block.write_to(0..block.len(), &part.file, offset)?;
    Ok(())
}

/// Checks a partial file and renames it to its name.
pub(crate) fn commit(at: &mut Cursor<'_>, whole: &Whole) -> Result<(), FileError> {
    let (dir, name) = at.parent(&whole.path, Missing::Fail)?;
    Part::existing(dir, name, FlockOperation::NonBlockingLockExclusive)?.finish(whole)
}

/// Removes a partial file, if there is one.
pub(crate) fn abandon(at: &mut Cursor<'_>, path: &[u8]) -> Result<(), FileError> {
    let (dir, name) = at.parent(path, Missing::Fail)?;
    match unlinkat(dir, &*part_name(name), AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Creates or replaces a small file, whose bytes lie in a block.
pub(crate) fn put_small(
    at: &mut Cursor<'_>,
    small: &Small,
    block: &Block,
) -> Result<(), FileError> {
    let whole = &small.whole;
    let (dir, name) = at.parent(&whole.path, Missing::Create)?;
    let from = small.at;
    let to = from.checked_add(whole.bytes).ok_or(FileError::Mismatch)?;
    let part = Part::create(dir, name)?;
    let written = part.file.set_len(0).and_then(|()| block.write_to(from..to, &part.file, 0));
    let finished = match written {
        Ok(Some(())) => part.finish(whole),
        Ok(None) => Err(FileError::Mismatch),
        Err(error) => Err(error.into()),
    };
    if finished.is_err() {
        // A small file is never resumed.
        let _ = unlinkat(dir, &*part_name(name), AtFlags::empty());
    }
    finished
}

impl<'a> Part<'a> {
    /// Opens it with an exclusive lock, and creates it if it is missing.
    fn create(dir: BorrowedFd<'a>, name: &'a [u8]) -> Result<Self, FileError> {
        let part = part_name(name);
        loop {
            let flags = OPEN | OFlags::CREATE;
            let file = match openat(dir, &*part, flags, PART_MODE) {
                // A symbolic link is not this program's.
                Err(Errno::LOOP) => {
                    unlinkat(dir, &*part, AtFlags::empty())?;
                    continue;
                }
                opened => File::from(opened?),
            };
            let metadata = file.metadata()?;
            if !metadata.is_file() {
                return Err(FileError::NotAFile);
            }
            if metadata.nlink() > 1 {
                unlinkat(dir, &*part, AtFlags::empty())?;
                continue;
            }
            lock(&file, FlockOperation::NonBlockingLockExclusive)?;
            if is_at(&file, dir, &part)? {
                return Ok(Self { dir, name, part, file });
            }
        }
    }

    /// Opens one that exists already.
    fn existing(
        dir: BorrowedFd<'a>,
        name: &'a [u8],
        operation: FlockOperation,
    ) -> Result<Self, FileError> {
        let part = part_name(name);
        let file = match openat(dir, &*part, OPEN, Mode::empty()) {
            // Another transfer has finished it.
            Err(Errno::NOENT) => return Err(FileError::Busy),
            Err(Errno::LOOP) => return Err(FileError::NotAFile),
            opened => File::from(opened?),
        };
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.nlink() > 1 {
            return Err(FileError::NotAFile);
        }
        lock(&file, operation)?;
        if is_at(&file, dir, &part)? {
            Ok(Self { dir, name, part, file })
        } else {
            Err(FileError::Busy)
        }
    }

    /// Checks it and gives it its name. It must be locked exclusively.
    fn finish(self, whole: &Whole) -> Result<(), FileError> {
        if self.file.metadata()?.len() != whole.bytes || self.digest(whole.bytes)? != whole.digest {
            return Err(FileError::Mismatch);
        }
        fchmod(&self.file, Mode::from_raw_mode(whole.meta.mode & MODE_BITS))?;
        futimens(&self.file, &timestamps(whole.meta))?;
        Ok(renameat(self.dir, &*self.part, self.dir, self.name)?)
    }

    fn digest(&self, bytes: u64) -> Result<u128, FileError> {
        let mut sums = Vec::new();
        let all = leaf_count(bytes);
        while (sums.len() as u64) < all {
            let more = file_sums(&self.file, sums.len() as u64, MAX_SUMS)?;
            if more.is_empty() {
                return Err(FileError::Mismatch);
            }
            sums.extend(more);
        }
        Ok(digest(&sums))
    }
}

/// Locks a file, and waits for others that are about to finish.
fn lock(file: &File, operation: FlockOperation) -> Result<(), FileError> {
    for _ in 0..LOCK_TRIES {
        match flock(file, operation) {
            Err(Errno::WOULDBLOCK) => std::thread::sleep(LOCK_PAUSE),
            Err(Errno::INTR) => {}
            locked => return Ok(locked?),
        }
    }
    Err(FileError::Busy)
}

/// Whether a file still has a name.
fn is_at(file: &File, dir: BorrowedFd<'_>, name: &[u8]) -> Result<bool, FileError> {
    let opened = rustix::fs::fstat(file.as_fd())?;
    match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(there) => Ok((there.st_dev, there.st_ino) == (opened.st_dev, opened.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    use super::super::service::Meta;
    use super::super::sums::{LEAF_BYTES, leaf_sums};
    use super::super::tree::Tree;
    use super::*;
    use examples::testing::Scratch;

    fn whole(path: &str, bytes: &[u8]) -> Whole {
        Whole {
            path: path.to_owned().into(),
            bytes: bytes.len() as u64,
            digest: digest(&leaf_sums(bytes)),
            meta: Meta { mode: 0o4751, mtime: -1, mtime_nanos: 5 },
        }
    }

    fn put(tree: &Tree, path: &str, bytes: &[u8]) -> Result<(), FileError> {
        let small = Small { whole: whole(path, bytes), at: 1 };
        let block = [b"-", bytes].concat().into();
        put_small(&mut tree.cursor(), &small, &block)
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn small_file_keeps_mode_and_time() {
        let dir = Scratch::new();
        let tree = Tree::open(dir.path()).unwrap();
        for bytes in [&b"old"[..], b"", b"newer"] {
            put(&tree, "a/f", bytes).unwrap();
            assert_eq!(fs::read(dir.path().join("a/f")).unwrap(), bytes);
        }
        let metadata = fs::metadata(dir.path().join("a/f")).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o7777, 0o751);
        assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (-1, 5));
        assert_eq!(names(&dir.path().join("a")), ["f"]);
    }

    #[test]
    fn what_does_not_check_leaves_the_old_file() {
        let dir = Scratch::new();
        let tree = Tree::open(dir.path()).unwrap();
        put(&tree, "f", b"old").unwrap();
        let block = Block::from(b"new".to_vec());
        for (bytes, at) in [(3, 1), (4, 0), (3, u64::MAX), (u64::MAX, 1)] {
            let small = Small { whole: Whole { bytes, ..whole("f", b"new") }, at };
            let refused = put_small(&mut tree.cursor(), &small, &block);
            assert_eq!(refused, Err(FileError::Mismatch));
        }
        let small = Small { whole: Whole { digest: 1, ..whole("f", b"new") }, at: 0 };
        assert_eq!(put_small(&mut tree.cursor(), &small, &block), Err(FileError::Mismatch));
        assert_eq!(fs::read(dir.path().join("f")).unwrap(), b"old");
        assert_eq!(names(dir.path()), ["f"]);
    }

    #[test]
    fn out_of_order_blocks_complete_the_file() {
        let dir = Scratch::new();
        let tree = Tree::open(dir.path()).unwrap();
        let mut at = tree.cursor();
        let bytes: Vec<u8> = (0..LEAF_BYTES + 5).map(|at| at.to_le_bytes()[1]).collect();
        let whole = whole("d/f", &bytes);
        let (head, tail) = bytes.split_at(LEAF_BYTES);
        assert_eq!(write(&mut at, b"f", 0, &tail.to_vec().into()), Err(FileError::Busy));
        begin(&mut at, b"d/f", 99).unwrap();
        assert_eq!(at.survey(b"d/f").unwrap().part_bytes, Some(0));
        write(&mut at, b"d/f", LEAF_BYTES as u64, &tail.to_vec().into()).unwrap();
        assert_eq!(commit(&mut at, &whole), Err(FileError::Mismatch));
        begin(&mut at, b"d/f", 7).unwrap();
        assert_eq!(at.survey(b"d/f").unwrap().part_bytes, Some(7));
        write(&mut at, b"d/f", LEAF_BYTES as u64, &tail.to_vec().into()).unwrap();
        write(&mut at, b"d/f", 0, &head.to_vec().into()).unwrap();
        assert_eq!(names(&dir.path().join("d")), [".f.part"]);
        commit(&mut at, &whole).unwrap();
        assert_eq!(names(&dir.path().join("d")), ["f"]);
        assert!(fs::read(dir.path().join("d/f")).unwrap() == bytes);
        // The file has its name: a late block does not touch it.
        assert_eq!(write(&mut at, b"d/f", 0, &b"late".to_vec().into()), Err(FileError::Busy));
        begin(&mut at, b"d/f", 0).unwrap();
        abandon(&mut at, b"d/f").unwrap();
        abandon(&mut at, b"d/f").unwrap();
        assert_eq!(names(&dir.path().join("d")), ["f"]);
    }

    #[test]
    fn a_planted_partial_file_leads_nowhere() {
        let (dir, outside) = (Scratch::new(), Scratch::new());
        let secret = outside.path().join("secret");
        fs::write(&secret, "untouched").unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        for plant in [
            |from: &Path, to: &Path| symlink(from, to),
            |from: &Path, to: &Path| fs::hard_link(from, to),
        ] {
            plant(&secret, &dir.path().join(".f.part")).unwrap();
            put(&tree, "f", b"x").unwrap();
            plant(&secret, &dir.path().join(".f.part")).unwrap();
            assert_eq!(
                write(&mut tree.cursor(), b"f", 0, &b"x".to_vec().into()),
                Err(FileError::NotAFile)
            );
            begin(&mut tree.cursor(), b"f", 5).unwrap();
            write(&mut tree.cursor(), b"f", 0, &b"x".to_vec().into()).unwrap();
            abandon(&mut tree.cursor(), b"f").unwrap();
            assert_eq!(fs::read(&secret).unwrap(), b"untouched");
        }
        // The name itself may be a link: it is replaced.
        fs::remove_file(dir.path().join("f")).unwrap();
        symlink(&secret, dir.path().join("f")).unwrap();
        put(&tree, "f", b"x").unwrap();
        assert_eq!(fs::read(&secret).unwrap(), b"untouched");
        assert!(fs::symlink_metadata(dir.path().join("f")).unwrap().is_file());
    }

    #[test]
    fn file_created_meanwhile_is_not_overwritten() {
        let dir = Scratch::new();
        let path = dir.path().join(".f.part");
        let file = File::create(&path).unwrap();
        let at = File::open(dir.path()).unwrap();
        assert_eq!(is_at(&file, at.as_fd(), b".f.part"), Ok(true));
        fs::rename(&path, dir.path().join("f")).unwrap();
        assert_eq!(is_at(&file, at.as_fd(), b".f.part"), Ok(false));
        fs::write(&path, "another").unwrap();
        assert_eq!(is_at(&file, at.as_fd(), b".f.part"), Ok(false));
    }

    #[test]
    fn a_directory_in_its_place_stays() {
        let dir = Scratch::new();
        let tree = Tree::open(dir.path()).unwrap();
        fs::create_dir(dir.path().join("f")).unwrap();
        assert_eq!(put(&tree, "f", b"x"), Err(FileError::IsADirectory));
        assert_eq!(names(dir.path()), ["f"]);
    }
}
