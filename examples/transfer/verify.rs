//! `transfer verify`: the differences between two sides.
//!
//! Owns the comparison of two plans entry by entry, and of files sum by sum. Changes nothing.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::stream::{self, TryStreamExt};

use super::compare::{Summed, common_leaves, covered};
use super::copy::{BATCH, special_word};
use super::error::CommandError;
use super::path::{Shown, part_rank};
use super::plan::{Item, Plan};
use super::progress::Progress;
use super::service::{Meta, SMALL_BYTES, SumAsk};
use super::side::{Failure, Side, SideError};
use super::sums::leaf_count;

/// Large files at once.
const LARGE_FILES: usize = 4;

/// A comparison of this machine with a server.
#[derive(Debug)]
pub(crate) struct Verify<'a> {
    here: &'a Side,
    there: &'a Side,
    progress: &'a Progress,
    in_flight: usize,
    differences: AtomicU64,
}

/// An entry of a plan, of either side.
#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    Dir,
    File(u64),
    Link(Bytes),
    Special(&'static str),
}

/// A file of equal size at both sides.
#[derive(Debug)]
struct Pair {
    here: Bytes,
    there: Bytes,
    bytes: u64,
}

impl<'a> Verify<'a> {
    /// A comparison that has not begun.
    pub(crate) fn new(
        here: &'a Side,
        there: &'a Side,
        progress: &'a Progress,
        in_flight: usize,
    ) -> Self {
        Self { here, there, progress, in_flight, differences: AtomicU64::new(0) }
    }

    /// Compares two plans whose targets are the same paths. Prints the differences, and returns
    /// their number.
    ///
    /// # Errors
    /// When the connection ends, or nobody reads the output. Unreadable entries are printed and
    /// counted as failed.
    pub(crate) async fn run(&self, ours: Plan, theirs: Plan) -> Result<u64, CommandError> {
        for (path, error) in ours.failed.iter().chain(&theirs.failed) {
            self.failed(path, error);
        }
        let pairs = self.compare_entries(ours, theirs)?;
        let (small, large): (Vec<_>, Vec<_>) =
            pairs.into_iter().partition(|pair| pair.bytes <= SMALL_BYTES);
        stream::iter(small.chunks(BATCH).map(Ok))
            .try_for_each_concurrent(self.in_flight, |batch| self.small(batch))
            .await?;
        stream::iter(large.iter().map(Ok))
            .try_for_each_concurrent(LARGE_FILES, |pair| self.large(pair))
            .await?;
        Ok(self.differences.load(Ordering::Relaxed))
    }

    /// Compares entries as far as possible without reading files. Returns the files to read.
    fn compare_entries(&self, ours: Plan, theirs: Plan) -> io::Result<Vec<Pair>> {
        let mut theirs = entries(theirs);
        let mut pairs = Vec::new();
        for (path, (here, meta, what)) in entries(ours) {
            let Some((there, their_meta, their_what)) = theirs.remove(&path) else {
                match what {
                    // Never copied, so nothing is missing.
                    What::Special(word) => {
                        self.progress.skip(&format_args!("{}: a {word}", Shown(&path)));
                    }
                    _ => self.differs(&path, "only here")?,
                }
                continue;
            };
            match (what, their_what) {
                (What::File(bytes), What::File(other)) if bytes == other => {
                    pairs.push(Pair { here, there, bytes });
                }
                (one, other) if one == other => {}
                (one, other) => {
                    let (one, other) = (word(&one), word(&other));
                    self.differs(&path, &format!("{one} here, {other} on the server"))?;
                    continue;
                }
            }
            self.compare_meta(&path, meta, their_meta)?;
        }
        for path in theirs.keys() {
            let unfinished = part_rank(path) > 0;
            let note = if unfinished { " (of an unfinished transfer?)" } else { "" };
            self.differs(path, &format!("only on the server{note}"))?;
        }
        Ok(pairs)
    }

    fn compare_meta(&self, path: &[u8], ours: Meta, theirs: Meta) -> io::Result<()> {
        let (mode, other) = (ours.mode, theirs.mode);
        if mode != other {
            self.differs(path, &format!("mode {mode:o} here, {other:o} on the server"))?;
        }
        if (ours.mtime, ours.mtime_nanos) != (theirs.mtime, theirs.mtime_nanos) {
            self.differs(path, "modification times differ")?;
        }
        Ok(())
    }

    async fn small(&self, batch: &[Pair]) -> Result<(), CommandError> {
        let sums = async |side: &Side, path: fn(&Pair) -> &Bytes| {
            let ask =
                |pair: &Pair| SumAsk { path: path(pair).clone(), part: false, first: 0, count: 1 };
            side.all(side.sums(batch.iter().map(ask).collect()).await, batch.len())
        };
        let both = tokio::try_join!(
            sums(self.here, |pair| &pair.here),
            sums(self.there, |pair| &pair.there)
        );
        let (ours, theirs) = match both {
            Ok(both) => both,
            Err(Failure::Fatal(status)) => return Err(self.stopped(status)),
            Err(Failure::Alone(error)) => {
                batch.iter().for_each(|pair| self.failed(&pair.there, &error));
                return Ok(());
            }
        };
        for (pair, both) in batch.iter().zip(ours.into_iter().zip(theirs)) {
            match both {
                (Ok(ours), Ok(theirs)) if ours == theirs => self.same(pair),
                (Ok(_), Ok(_)) => self.differs(&pair.there, "other content")?,
                (Err(error), _) => self.failed(&pair.there, &self.here.error(error)),
                (_, Err(error)) => self.failed(&pair.there, &self.there.error(error)),
            }
        }
        Ok(())
    }

    async fn large(&self, pair: &Pair) -> Result<(), CommandError> {
        let here = Summed { side: self.here, path: &pair.here, part: false };
        let there = Summed { side: self.there, path: &pair.there, part: false };
        match common_leaves(here, there, pair.bytes).await {
            Ok(common) if common.len() as u64 == leaf_count(pair.bytes) => self.same(pair),
            Ok(common) => {
                let (from, to) =
                    (covered(common.len(), pair.bytes), covered(common.len() + 1, pair.bytes));
                self.differs(
                    &pair.there,
                    &format!("contents differ, first in bytes {from} to {to}"),
                )?;
            }
            Err(Failure::Fatal(status)) => return Err(self.stopped(status)),
            Err(Failure::Alone(error)) => self.failed(&pair.there, &error),
        }
        Ok(())
    }

    fn same(&self, pair: &Pair) {
        self.progress.moved(pair.bytes);
        self.progress.file();
    }

    fn differs(&self, path: &[u8], how: &str) -> io::Result<()> {
        self.differences.fetch_add(1, Ordering::Relaxed);
        self.progress.say(&format_args!("{}: {how}", Shown(path)))
    }

    fn failed(&self, path: &[u8], error: &SideError) {
        self.progress.fail(&format_args!("{}: {error}", Shown(path)));
    }

    fn stopped(&self, status: rpc_core::Status) -> CommandError {
        CommandError::Stopped { done: self.progress.so_far(), status }
    }
}

fn entries(plan: Plan) -> BTreeMap<Bytes, (Bytes, Meta, What)> {
    fn entry<T>(item: Item<T>, what: impl FnOnce(T) -> What) -> (Bytes, (Bytes, Meta, What)) {
        (item.to, (item.from, item.meta, what(item.what)))
    }
    let mut entries = BTreeMap::new();
    entries.extend(plan.dirs.into_iter().map(|item| entry(item, |()| What::Dir)));
    entries.extend(plan.files.into_iter().map(|item| entry(item, What::File)));
    entries.extend(plan.links.into_iter().map(|item| entry(item, What::Link)));
    let special = |special| What::Special(special_word(special));
    entries.extend(plan.special.into_iter().map(|item| entry(item, special)));
    entries
}

fn word(what: &What) -> String {
    match what {
        What::Dir => "a directory".to_owned(),
        What::File(bytes) => format!("a file of {bytes} bytes"),
        What::Link(target) => format!("a link to `{}`", Shown(target)),
        What::Special(word) => format!("a {word}"),
    }
}
