//! What is wrong with entries of a registry, for the log.
//!
//! Owns a few of them, each as one bounded line, and the number of all others.

use rpc_core::text::printable;

/// Most lines that are kept.
const MAX_LINES: usize = 8;
/// Longest name of an entry, and longest reason, bytes.
const MAX_SHOWN_BYTES: usize = 160;

/// Entries that were left out since they were last taken.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    lines: Vec<String>,
    beyond: u64,
}

impl Problems {
    /// Records why `entry` is left out.
    pub(crate) fn add(&mut self, entry: &[u8], reason: &str) {
        if self.lines.len() == MAX_LINES {
            self.beyond += 1;
            return;
        }
        let entry = String::from_utf8_lossy(entry);
        let entry = printable(&entry).at_most(MAX_SHOWN_BYTES).to_string();
        let reason = printable(reason).at_most(MAX_SHOWN_BYTES).to_string();
        self.lines.push(format!("{entry}: {reason}"));
    }

    /// The lines, and how many entries have none.
    pub(crate) fn take(&mut self) -> (Vec<String>, u64) {
        (std::mem::take(&mut self.lines), std::mem::take(&mut self.beyond))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_problems_are_few_short_lines() {
        let mut problems = Problems::default();
        for _ in 0..1000 {
            problems.add(&[b'\n'; 10_000], &"\u{1b}".repeat(10_000));
        }
        let (lines, beyond) = problems.take();
        assert_eq!((lines.len(), beyond), (8, 992));
        assert!(lines.iter().all(|line| line.len() < 4000 && !line.contains(['\n', '\u{1b}'])));
        assert_eq!(problems.take(), (Vec::new(), 0));
    }
}
