//! Paths below a directory, as they travel: bytes, `/` between the names.
//!
//! Owns the rule which paths are accepted, the names of partial files, and how a path is shown.
//! Never touches a file.
//!
//! Invariants:
//! 1. The names of a parsed path are not empty, not `.` or `..`, without `/` and NUL. So no path
//!    made of them leads up or starts elsewhere. Code that opens the path has to deal with symbolic
//!    links.
//! 2. The name of a partial file is a name too, and a different one for each name.

use std::fmt;

use rpc_core::text::printable_bytes;
use serde::{Deserialize, Serialize};

use super::sums::sum;

/// Longest name of a file on Linux, bytes.
const MAX_NAME_BYTES: usize = 255;
/// The beginning and the end of a partial file's name.
const PART_PREFIX: &[u8] = b".";
const PART_SUFFIX: &[u8] = b".part";

/// Why a path is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub(crate) enum PathError {
    /// It begins with `/`.
    #[error("the path is absolute; only paths below the directory are accepted")]
    Absolute,
    /// It has `..` in it.
    #[error("the path contains `..` and could lead out of the directory")]
    Up,
    /// It has `.` in it.
    #[error("the path contains the component `.`")]
    Dot,
    /// It has `//` in it, or ends in `/`.
    #[error("the path contains an empty component")]
    EmptyComponent,
    /// It has a NUL in it.
    #[error("the path contains a NUL byte")]
    Nul,
    /// A component is longer than a name can be.
    #[error("the path contains a component of more than {MAX_NAME_BYTES} bytes")]
    LongComponent,
    /// It is the directory itself, where an entry below it is required.
    #[error("the path is empty")]
    Empty,
}

/// The names of a path; none for the directory itself.
pub(crate) fn names(path: &[u8]) -> Result<Vec<&[u8]>, PathError> {
    if path.is_empty() {
        return Ok(Vec::new());
    }
    if path.starts_with(b"/") {
        return Err(PathError::Absolute);
    }
    path.split(|byte| *byte == b'/').map(name).collect()
}

fn name(name: &[u8]) -> Result<&[u8], PathError> {
    match name {
        b"" => Err(PathError::EmptyComponent),
        b"." => Err(PathError::Dot),
        b".." => Err(PathError::Up),
        name if name.contains(&0) => Err(PathError::Nul),
        name if name.len() > MAX_NAME_BYTES => Err(PathError::LongComponent),
        name => Ok(name),
    }
}

/// The directory that a path is in, and its last name.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// A path below another; either may be empty.
pub(crate) fn join(dir: &[u8], below: &[u8]) -> Vec<u8> {
    match (dir, below) {
        (b"", path) | (path, b"") => path.to_vec(),
        (dir, below) => [dir, b"/", below].concat(),
    }
}

/// The name under which a file is written until it is complete: `.NAME.part`. If that would be too
/// long, the end of the name is replaced by its checksum.
pub(crate) fn part_name(name: &[u8]) -> Vec<u8> {
    if name.len() + PART_PREFIX.len() + PART_SUFFIX.len() <= MAX_NAME_BYTES {
        return [PART_PREFIX, name, PART_SUFFIX].concat();
    }
    let sum = format!("~{:032x}", sum(name));
    let room = MAX_NAME_BYTES - PART_PREFIX.len() - PART_SUFFIX.len() - sum.len();
    [PART_PREFIX, &name[..room], sum.as_bytes(), PART_SUFFIX].concat()
}

/// How many times a name looks like that of a partial file of a partial file of ... A file's own
/// partial file has the next higher rank (except for such names of nearly 255 bytes), so files that
/// are copied rank by rank never meet one of their own partial files.
pub(crate) fn part_rank(path: &[u8]) -> usize {
    let mut name = split(path).1;
    let mut rank = 0;
    while let Some(inner) =
        name.strip_prefix(PART_PREFIX).and_then(|rest| rest.strip_suffix(PART_SUFFIX))
        && !inner.is_empty()
    {
        name = inner;
        rank += 1;
    }
    rank
}

/// Shows a whole path in one line, so that no other path looks like it.
pub(crate) struct Shown<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str(".");
        }
        printable_bytes(self.0).exact().at_most(usize::MAX).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_paths_have_names() {
        for (path, expected) in [
            (&b""[..], vec![]),
            (b"a", vec![&b"a"[..]]),
            (b"a/b/c", vec![b"a", b"b", b"c"]),
            (b".../-rf/ ", vec![b"...", b"-rf", b" "]),
            (b"\xff/\n", vec![b"\xff", b"\n"]),
        ] {
            assert_eq!(names(path), Ok(expected), "{}", Shown(path));
        }
    }

    #[test]
    fn paths_that_lead_elsewhere_are_refused() {
        use PathError::*;
        let long = [b'x'; 256];
        for (path, error) in [
            (&b"/"[..], Absolute),
            (b"/etc/passwd", Absolute),
            (b"//a", Absolute),
            (b"..", Up),
            (b"../a", Up),
            (b"a/../../b", Up),
            (b"a/..", Up),
            (b".", Dot),
            (b"a/./b", Dot),
            (b"a//b", EmptyComponent),
            (b"a/", EmptyComponent),
            (b"a\0b", Nul),
            (&long, LongComponent),
        ] {
            assert_eq!(names(path), Err(error), "{}", Shown(path));
        }
        assert!(names(&long[1..]).is_ok());
    }

    #[test]
    fn partial_files_have_names_of_their_own() {
        assert_eq!(part_name(b"a"), b".a.part");
        let (one, other) = ([b'x'; 255], [&[b'x'; 254][..], b"y"].concat());
        for name in [&one[..], &one[..250], &other] {
            assert_eq!(part_name(name).len(), 255);
            assert_eq!(names(&part_name(name)).unwrap().len(), 1);
        }
        assert_eq!(part_name(&one[..249]).len(), 255);
        assert_ne!(part_name(&one), part_name(&other));
    }

    #[test]
    fn a_partial_file_ranks_above_its_file() {
        for name in [&b"a"[..], b".a.part", b"..a.part.part", b".part", b"..part", &[b'x'; 255]] {
            assert_eq!(part_rank(&part_name(name)), part_rank(name) + 1, "{}", Shown(name));
        }
        assert_eq!((part_rank(b"a.part"), part_rank(b"d/.a.part")), (0, 1));
    }

    #[test]
    fn paths_are_joined_and_split() {
        for (dir, below, whole) in
            [("", "a", "a"), ("a", "", "a"), ("a", "b/c", "a/b/c"), ("", "", "")]
        {
            assert_eq!(join(dir.as_bytes(), below.as_bytes()), whole.as_bytes());
        }
        assert_eq!(split(b"a/b/c"), (&b"a/b"[..], &b"c"[..]));
        assert_eq!(split(b"c"), (&b""[..], &b"c"[..]));
    }

    #[test]
    fn shown_path_is_one_harmless_line() {
        for (path, text) in [
            (&b"a b/\xc3\xa9"[..], "a b/é"),
            (b"a\nb", "a\\nb"),
            (b"\x1b[2J", "\\u{1b}[2J"),
            (b"\\n", "\\\\n"),
            (b"a\xffb", "a\\xffb"),
            ("gpj.\u{202e}exe".as_bytes(), "gpj.\\u{202e}exe"),
            (b"", "."),
        ] {
            assert_eq!(Shown(path).to_string(), text);
        }
    }
}
