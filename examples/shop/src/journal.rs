//! The deeds under each key, kept across the end of a process.
//!
//! A line for each key, written by one call before anybody gets an answer: what a killed process
//! has written is in the file. An incomplete line was answered to nobody, and is removed.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// Number and count of each key.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    entries: HashMap<String, (u64, u64)>,
    total: u64,
}

impl Journal {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let text = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        file.set_len(whole as u64)?;
        let mut it = Self { file, entries: HashMap::new(), total: 0 };
        for line in String::from_utf8_lossy(&text[..whole]).lines() {
            let entry = parse(line).ok_or_else(|| {
                let text = format!("{}: malformed line: {line:?}", path.display());
                io::Error::new(io::ErrorKind::InvalidData, text)
            })?;
            it.remember(entry.0, entry.1, entry.2);
        }
        Ok(it)
    }

    /// The deed under the key.
    pub(crate) fn get(&self, key: &str) -> Option<(u64, u64)> {
        self.entries.get(key).copied()
    }

    /// Records the deed, under the next number.
    pub(crate) fn add(&mut self, key: &str, count: u64) -> io::Result<u64> {
        let number = self.entries.len() as u64 + 1;
        self.file.write_all(format!("{key}\t{number}\t{count}\n").as_bytes())?;
        self.remember(key, number, count);
        Ok(number)
    }

    /// The sum of all counts.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, u64, u64)> {
        self.entries.iter().map(|(key, (number, count))| (key.as_str(), *number, *count))
    }

    fn remember(&mut self, key: &str, number: u64, count: u64) {
        self.entries.insert(key.to_owned(), (number, count));
        self.total += count;
    }
}

fn parse(line: &str) -> Option<(&str, u64, u64)> {
    let mut parts = line.split('\t');
    let entry = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    parts.next().is_none().then_some(entry)
}

/// Keys are parts of lines, and come from buyers.
pub(crate) fn is_key(key: &str) -> bool {
    (1..=64).contains(&key.len()) && key.bytes().all(|it| it.is_ascii_alphanumeric() || it == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journal_replays_whole_lines_only() {
        let path = std::env::temp_dir().join(format!("shop-journal-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let mut journal = Journal::open(&path).unwrap();
        assert_eq!((journal.add("a", 2).unwrap(), journal.add("b", 3).unwrap()), (1, 2));
        journal.file.write_all(b"c\t3").unwrap();
        drop(journal);
        let mut journal = Journal::open(&path).unwrap();
        assert_eq!((journal.get("a"), journal.get("c")), (Some((1, 2)), None));
        assert_eq!((journal.total(), journal.add("c", 1).unwrap()), (5, 3));
        drop(journal);
        assert_eq!(Journal::open(&path).unwrap().all().count(), 3);
        std::fs::write(&path, "nonsense\n").unwrap();
        assert!(Journal::open(&path).unwrap_err().to_string().contains("\"nonsense\""));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_key_cannot_break_a_line() {
        assert!(is_key("7-1200"));
        for bad in ["", "a\tb", "a\n", "é", &"a".repeat(65)] {
            assert!(!is_key(bad), "{bad:?}");
        }
    }
}
