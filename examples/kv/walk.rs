//! A directory tree as keys: its files, and their keys.
//!
//! Owns the naming of keys after paths and the report on everything that is not a regular file.
//! Never opens a file and never follows a symbolic link below the root.

use std::fs::{self, DirEntry, FileType};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// The entries found.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// Regular files, in the order of their paths.
    pub(crate) files: Vec<Found>,
    /// Keys of directories without files and directories: their paths with a trailing `/`.
    pub(crate) empty_dirs: Vec<String>,
    /// Entries that are neither files nor directories, and their kinds.
    pub(crate) skipped: Vec<(PathBuf, &'static str)>,
    /// Entries that could not be read, and the reasons.
    pub(crate) failed: Vec<(PathBuf, String)>,
}

/// A regular file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// Its path below the root, `/` between the components.
    pub(crate) key: String,
    /// Where it is.
    pub(crate) path: PathBuf,
    /// Its size when it was found.
    pub(crate) bytes: u64,
}

impl Tree {
    /// Bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

/// Reads a whole tree.
///
/// # Errors
/// If the root itself cannot be read. Failures below it are in [`Tree::failed`].
pub(crate) fn walk(root: &Path) -> io::Result<Tree> {
    let mut tree = Tree::default();
    let mut pending = vec![Pending { path: root.to_owned(), key: String::new() }];
    let mut is_root = true;
    while let Some(dir) = pending.pop() {
        match entries(&dir.path) {
            Ok(entries) => tree.add_dir(&dir, entries, &mut pending),
            Err(error) if is_root => return Err(error),
            Err(error) => tree.failed.push((dir.path, error.to_string())),
        }
        is_root = false;
    }
    tree.files.sort_unstable_by(|one, other| one.key.cmp(&other.key));
    Ok(tree)
}

/// A directory to be read.
struct Pending {
    path: PathBuf,
    /// Its key with a trailing `/`; empty for the root.
    key: String,
}

fn entries(dir: &Path) -> io::Result<Vec<DirEntry>> {
    fs::read_dir(dir)?.collect()
}

impl Tree {
    fn add_dir(&mut self, dir: &Pending, entries: Vec<DirEntry>, pending: &mut Vec<Pending>) {
        let mut is_empty = true;
        for entry in entries {
            match self.add(dir, &entry, pending) {
                Ok(added) => is_empty &= !added,
                Err(error) => self.failed.push((entry.path(), error.to_string())),
            }
        }
        if is_empty && !dir.key.is_empty() {
            self.empty_dirs.push(dir.key.clone());
        }
    }

    /// Returns whether the entry makes a key of its own for its directory unnecessary.
    fn add(
        &mut self,
        dir: &Pending,
        entry: &DirEntry,
        pending: &mut Vec<Pending>,
    ) -> io::Result<bool> {
        let path = entry.path();
        let file_type = entry.file_type()?;
        if let Some(kind) = not_stored(file_type) {
            self.skipped.push((path, kind));
            return Ok(false);
        }
        let Ok(name) = entry.file_name().into_string() else {
            return Err(io::Error::other(not_utf8(file_type)));
        };
        let key = format!("{}{name}", dir.key);
        if file_type.is_dir() {
            pending.push(Pending { path, key: key + "/" });
        } else {
            let bytes = entry.metadata()?.len();
            self.files.push(Found { key, path, bytes });
        }
        Ok(true)
    }
}

/// The kind of an entry that is neither a regular file nor a directory.
fn not_stored(file_type: FileType) -> Option<&'static str> {
    if file_type.is_file() || file_type.is_dir() {
        return None;
    }
    Some(if file_type.is_symlink() {
        "symbolic link"
    } else if file_type.is_fifo() {
        "named pipe"
    } else if file_type.is_socket() {
        "socket"
    } else {
        "device"
    })
}

fn not_utf8(file_type: FileType) -> &'static str {
    if file_type.is_dir() {
        "its name is not UTF-8, which keys must be; nothing below it was imported"
    } else {
        "its name is not UTF-8, which keys must be"
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;
    use examples::testing::Scratch;

    fn keys(tree: &Tree) -> Vec<&str> {
        tree.files.iter().map(|file| &*file.key).collect()
    }

    #[test]
    fn files_become_keys_in_order() {
        let dir = Scratch::new();
        for file in ["b", "a/z", "a/b/c", "a.x", "é \n", "-rf"] {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, file).unwrap();
        }
        let tree = walk(dir.path()).unwrap();
        assert_eq!(keys(&tree), ["-rf", "a.x", "a/b/c", "a/z", "b", "é \n"]);
        assert!(tree.files.iter().all(|file| fs::read(&file.path).unwrap() == file.key.as_bytes()));
        assert_eq!(tree.bytes(), 19);
        assert!(tree.empty_dirs.is_empty() && tree.skipped.is_empty() && tree.failed.is_empty());
    }

    #[test]
    fn empty_directories_have_keys_too() {
        let dir = Scratch::new();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        fs::create_dir_all(dir.path().join("c")).unwrap();
        fs::write(dir.path().join("c/f"), "").unwrap();
        let tree = walk(dir.path()).unwrap();
        assert_eq!(keys(&tree), ["c/f"]);
        assert_eq!(tree.empty_dirs, ["a/b/"]);
    }

    #[test]
    fn links_and_special_files_are_reported_not_followed() {
        let dir = Scratch::new();
        fs::create_dir(dir.path().join("d")).unwrap();
        symlink("..", dir.path().join("d/up")).unwrap();
        symlink("/etc/passwd", dir.path().join("passwd")).unwrap();
        let _socket = UnixListener::bind(dir.path().join("s")).unwrap();
        let mut tree = walk(dir.path()).unwrap();
        tree.skipped.sort();
        let expected = [("d/up", "symbolic link"), ("passwd", "symbolic link"), ("s", "socket")]
            .map(|(path, kind)| (dir.path().join(path), kind));
        assert_eq!(tree.skipped, expected);
        assert!(tree.files.is_empty());
        assert_eq!(tree.empty_dirs, ["d/"]);
    }

    #[test]
    fn non_utf8_names_are_refused_with_their_subtree() {
        let dir = Scratch::new();
        let bad = dir.path().join(OsStr::from_bytes(b"bad\xff"));
        fs::create_dir(&bad).unwrap();
        fs::write(bad.join("below"), "").unwrap();
        fs::write(dir.path().join(OsStr::from_bytes(b"\xfe")), "").unwrap();
        fs::write(dir.path().join("good"), "").unwrap();
        let mut tree = walk(dir.path()).unwrap();
        assert_eq!(keys(&tree), ["good"]);
        tree.failed.sort();
        assert_eq!(tree.failed.len(), 2);
        assert!(tree.failed[0].0 == bad && tree.failed[0].1.contains("nothing below"));
        assert!(tree.failed[1].1.contains("not UTF-8"));
    }

    #[test]
    fn root_must_be_a_directory() {
        let dir = Scratch::new();
        assert_eq!(walk(&dir.path().join("no")).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(dir.path().join("f"), "").unwrap();
        let error = walk(&dir.path().join("f")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
    }
}
