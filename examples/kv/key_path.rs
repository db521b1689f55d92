//! Keys as paths below a directory.
//!
//! Owns the rule which keys may become files. Never touches a file.
//!
//! Invariant: the components of a [`KeyPath`] are names: not empty, not `.` or `..`, without `/`
//! and NUL. So no path made of them leads up or starts elsewhere. Code that opens the path has to
//! deal with symbolic links.

use std::fmt;

use rpc_core::text::printable;

/// Longest name of a file on Linux, bytes.
const MAX_NAME_BYTES: usize = 255;

/// A key that names a file, or a directory if it ends in `/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyPath<'a> {
    /// The directories that lead there, outermost first.
    pub(crate) dirs: Vec<&'a str>,
    /// The file in the last of them; `None` if the key is that of a directory.
    pub(crate) file: Option<&'a str>,
}

/// A key that cannot become a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum KeyPathError {
    /// Nothing is left of it, without the prefix of the command line.
    #[error("the key is empty")]
    Empty,
    /// It begins with `/`.
    #[error("it is an absolute path")]
    Absolute,
    /// It has `.` or `..` in it.
    #[error("it contains the path component `{0}`")]
    Dots(&'static str),
    /// It has `//` in it.
    #[error("it contains an empty path component")]
    EmptyComponent,
    /// It has a NUL in it.
    #[error("it contains a NUL byte")]
    Nul,
    /// A component is longer than a file name can be.
    #[error("it contains a path component of more than {MAX_NAME_BYTES} bytes")]
    LongComponent,
}

impl<'a> KeyPath<'a> {
    /// Reads a key.
    pub(crate) fn parse(key: &'a str) -> Result<Self, KeyPathError> {
        if key.is_empty() {
            return Err(KeyPathError::Empty);
        }
        if key.starts_with('/') {
            return Err(KeyPathError::Absolute);
        }
        let (path, is_dir) = match key.strip_suffix('/') {
            Some(path) => (path, true),
            None => (key, false),
        };
        let mut dirs = path.split('/').map(name).collect::<Result<Vec<_>, _>>()?;
        let file = if is_dir { None } else { dirs.pop() };
        Ok(Self { dirs, file })
    }
}

fn name(name: &str) -> Result<&str, KeyPathError> {
    match name {
        "" => Err(KeyPathError::EmptyComponent),
        "." => Err(KeyPathError::Dots(".")),
        ".." => Err(KeyPathError::Dots("..")),
        name if name.contains('\0') => Err(KeyPathError::Nul),
        name if name.len() > MAX_NAME_BYTES => Err(KeyPathError::LongComponent),
        name => Ok(name),
    }
}

/// Shows a whole key in one line, so that no other key looks like it.
pub(crate) struct Printable<'a>(pub(crate) &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        printable(self.0).exact().at_most(usize::MAX).fmt(f)
    }
}

/// Most of a key that an error repeats, characters.
const SHOWN_CHARS: usize = 100;

/// Like [`Printable`], but shows only the beginning of a long key.
pub(crate) struct Shortened<'a>(pub(crate) &'a str);

impl fmt::Display for Shortened<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(SHOWN_CHARS) {
            Some((at, _)) => write!(f, "{}...", Printable(&self.0[..at])),
            None => Printable(self.0).fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_keys_are_paths() {
        for (key, dirs, file) in [
            ("a", vec![], Some("a")),
            ("a/b/c.txt", vec!["a", "b"], Some("c.txt")),
            ("a/b/", vec!["a", "b"], None),
            ("a/", vec!["a"], None),
            ("...", vec![], Some("...")),
            (" /\\/a\nb", vec![" ", "\\"], Some("a\nb")),
            ("é/-rf", vec!["é"], Some("-rf")),
            ("C:\\x", vec![], Some("C:\\x")),
        ] {
            assert_eq!(KeyPath::parse(key), Ok(KeyPath { dirs, file }), "{key:?}");
        }
    }

    #[test]
    fn keys_that_lead_elsewhere_are_refused() {
        use KeyPathError::*;
        let long = "x".repeat(256);
        for (key, error) in [
            ("", Empty),
            ("/", Absolute),
            ("/etc/passwd", Absolute),
            ("//a", Absolute),
            ("..", Dots("..")),
            ("../a", Dots("..")),
            ("a/../../b", Dots("..")),
            ("a/..", Dots("..")),
            ("a/../", Dots("..")),
            (".", Dots(".")),
            ("./a", Dots(".")),
            ("a/./b", Dots(".")),
            ("a//b", EmptyComponent),
            ("a//", EmptyComponent),
            ("a\0b", Nul),
            ("\0", Nul),
            ("a\0/b", Nul),
            (&*long, LongComponent),
        ] {
            assert_eq!(KeyPath::parse(key), Err(error), "{key:?}");
        }
        assert!(KeyPath::parse(&long[1..]).is_ok());
    }

    #[test]
    fn printed_key_is_one_harmless_line() {
        for (key, text) in [
            ("a b/é", "a b/é"),
            ("a\nb\n", "a\\nb\\n"),
            ("\x1b[2J", "\\u{1b}[2J"),
            ("\\n", "\\\\n"),
            ("\u{9b}x", "\\u{9b}x"),
            ("gpj.\u{202e}exe", "gpj.\\u{202e}exe"),
            ("", ""),
        ] {
            assert_eq!(Printable(key).to_string(), text);
            assert_eq!(Shortened(key).to_string(), text);
        }
    }

    #[test]
    fn a_long_key_is_cut_in_errors() {
        let long = "é".repeat(20_000);
        assert_eq!(Shortened(&long).to_string(), format!("{}...", "é".repeat(SHOWN_CHARS)));
        let just = "é".repeat(SHOWN_CHARS);
        assert_eq!(Shortened(&just).to_string(), just);
    }
}
