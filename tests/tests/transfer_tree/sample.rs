//! A tree with everything that may be copied wrongly, and the comparison of two.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};

/// Bytes of the large file of a sample: several blocks, and no multiple of anything.
pub(crate) const LARGE_BYTES: usize = 3_500_001;
/// A tree: for each path its kind, mode, time and content.
type Tree = BTreeMap<PathBuf, (&'static str, u32, (i64, i64), Vec<u8>)>;

fn read(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        let metadata = fs::symlink_metadata(&path).unwrap();
        let (kind, content) = if metadata.is_dir() {
            pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            ("directory", Vec::new())
        } else if metadata.is_symlink() {
            ("link", fs::read_link(&path).unwrap().into_os_string().into_vec())
        } else {
            assert!(metadata.is_file(), "{path:?}");
            ("file", fs::read(&path).unwrap())
        };
        let time = (metadata.mtime(), metadata.mtime_nsec());
        let below = path.strip_prefix(root).unwrap().to_owned();
        tree.insert(below, (kind, metadata.mode() & 0o7777, time, content));
    }
    tree
}

/// Compares entry by entry, so that a difference can be read.
#[track_caller]
pub(crate) fn assert_same(one: &Path, other: &Path) {
    let (one, other) = (read(one), read(other));
    assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
    for (path, (kind, mode, time, content)) in &one {
        let (other_kind, other_mode, other_time, other_content) = &other[path];
        assert_eq!((kind, mode, time), (other_kind, other_mode, other_time), "{path:?}");
        assert!(content == other_content, "{path:?} differs");
    }
}

/// A tree of all kinds of names, sizes, modes and times, and `small_files` more small files.
pub(crate) fn write_sample(root: &Path, small_files: usize) {
    let put = |name: &[u8], bytes: &[u8]| {
        let path = root.join(OsStr::from_bytes(name));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    };
    put(b"large.bin", &random_bytes(LARGE_BYTES, 7));
    put(b"even.bin", &random_bytes(2 << 20, 8));
    for (name, bytes) in [
        (&b"empty"[..], &b""[..]),
        (b"one", b"\0"),
        (b"deep/er/and/deeper/still", b"bottom"),
        (b" leading and trailing ", b"spaces"),
        (b"line\nfeed\ttab", b"control characters"),
        (b"-rf", b"like an option"),
        (b".hidden/...", b"dots"),
        (b"not \xff\xfe UTF-8/\x80", b"bytes"),
        ("größe/日本語/🦀".as_bytes(), b"not ASCII"),
        (&[b'n'; 255], b"a long name"),
        // Names that partial files of other files have.
        (b".large.bin.part", b"mine"),
        (b".one.part", b"mine too"),
        (b"..one.part.part", b"and this"),
    ] {
        put(name, bytes);
    }
    for number in 0..small_files {
        put(format!("many/{}/{number}", number % 7).as_bytes(), number.to_string().as_bytes());
    }
    fs::create_dir_all(root.join("nothing/in/here")).unwrap();
    symlink("large.bin", root.join("to a file")).unwrap();
    symlink("../../outside", root.join("deep/out")).unwrap();
    symlink("/etc", root.join("absolute")).unwrap();
    symlink(OsStr::from_bytes(b"\xff"), root.join("nowhere")).unwrap();

    let mode = |name: &str, mode| {
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    mode("one", 0o751);
    mode("empty", 0o400);
    mode(".hidden", 0o1777);
    let old = SystemTime::UNIX_EPOCH + Duration::new(981_173_106, 123_456_789);
    let before = SystemTime::UNIX_EPOCH - Duration::from_secs(1_000_000);
    for (name, time) in [("even.bin", old), ("empty", before), ("deep/er", old), ("many", before)] {
        File::open(root.join(name)).unwrap().set_modified(time).unwrap();
    }
    let times = Timespec { tv_sec: 86_400, tv_nsec: 5 };
    let times = Timestamps { last_access: times, last_modification: times };
    utimensat(CWD, root.join("nowhere"), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    // Last, since it makes the directory read-only.
    mode("deep/er", 0o555);
}

pub(crate) fn random_bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut random = seed | 1;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random.to_le_bytes()
    };
    (0..count.div_ceil(8)).flat_map(|_| next()).take(count).collect()
}
