//! What was lost in a run.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use examples::units::count;

use super::load::Tally;

/// The calls of a run, and what became of them.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    read: u64,
    booked: u64,
    /// Calls that failed although they could have succeeded.
    lost: u64,
    losses: Vec<String>,
    /// Bookings that failed and may have begun.
    cut: u64,
    /// Bookings that ran more than once.
    twice: u64,
    /// Bookings that were confirmed, and that no server has done.
    missing: u64,
}

impl Verdict {
    /// Compares what clients know with what servers have written.
    pub(crate) fn new(tally: &Tally, journals: &Path) -> io::Result<Self> {
        let mut runs = BTreeMap::<u64, u32>::new();
        for entry in std::fs::read_dir(journals)? {
            let entry = entry?;
            if !entry.file_name().to_string_lossy().starts_with("journal-") {
                continue;
            }
            // A killed process leaves no part of a number: each is one write.
            let bytes = std::fs::read(entry.path())?;
            let (numbers, _) = bytes.as_chunks::<8>();
            for number in numbers {
                *runs.entry(u64::from_le_bytes(*number)).or_default() += 1;
            }
        }
        let booked = tally.booked.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Self {
            read: tally.read.load(Ordering::Relaxed),
            booked: booked.len() as u64,
            lost: tally.lost.load(Ordering::Relaxed),
            losses: tally.losses.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            cut: tally.cut.load(Ordering::Relaxed),
            twice: runs.values().filter(|&&runs| runs > 1).count() as u64,
            missing: booked.iter().filter(|&number| !runs.contains_key(number)).count() as u64,
        })
    }

    /// Whether nothing went wrong that a fleet can avoid.
    pub(crate) fn is_good(&self) -> bool {
        self.lost == 0 && self.twice == 0 && self.missing == 0
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { read, booked, lost, cut, twice, missing, losses } = self;
        let count = |number: &u64| count(*number);
        writeln!(f, "calls    {} reads, {} bookings", count(read), count(booked))?;
        writeln!(f, "lost     {} that were idempotent or had not begun", count(lost))?;
        writeln!(f, "cut      {} bookings that a server may have begun", count(cut))?;
        writeln!(f, "twice    {} bookings", count(twice))?;
        writeln!(f, "missing  {} confirmed bookings", count(missing))?;
        losses.iter().try_for_each(|loss| writeln!(f, "lost: {loss}"))
    }
}

#[cfg(test)]
mod tests {
    use examples::testing::Scratch;

    use super::*;

    #[test]
    fn repeated_and_missing_bookings_are_found() {
        let scratch = Scratch::new();
        let write = |name: &str, numbers: &[u64]| {
            let bytes: Vec<u8> = numbers.iter().flat_map(|it| it.to_le_bytes()).collect();
            std::fs::write(scratch.path().join(name), bytes).unwrap();
        };
        write("journal-1", &[8, 16]);
        write("journal-2", &[24]);
        write("etcd.log", &[16]);
        let tally = Tally::default();
        *tally.booked.lock().unwrap() = vec![8, 24];
        assert!(Verdict::new(&tally, scratch.path()).unwrap().is_good());
        write("journal-3", &[16]);
        tally.booked.lock().unwrap().push(32);
        let verdict = Verdict::new(&tally, scratch.path()).unwrap();
        assert_eq!((verdict.twice, verdict.missing, verdict.is_good()), (1, 1, false));
        let lost = Verdict { lost: 1, losses: vec!["read: why".into()], ..Verdict::default() };
        assert!(!lost.is_good() && lost.to_string().contains("lost: read: why"));
    }
}
