//! Many files in flight at once: the common part of import and export.
//!
//! Owns the bounds (files and bytes in flight), the progress bar and the tally. Knows neither files
//! nor keys.

use std::fmt::Display;
use std::future::Future;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use examples::units::{bytes, count, counted, rate, time};
use futures::stream::{self, StreamExt, TryStreamExt};
use indicatif::{ProgressBar, ProgressStyle};
use rpc_core::text::printable;
use rpc_core::{CallError, Channel, Status};
use tokio::sync::Semaphore;

use super::error::CommandError;
use super::service::KvError;

/// Bytes of files in flight at once, in units; a larger file goes alone.
const BUDGET_UNITS: u32 = 1024;
const UNIT_BYTES: u64 = 64 << 10;

/// The progress so far.
#[derive(Debug)]
pub(crate) struct Transfer {
    verb: &'static str,
    total: u64,
    bar: ProgressBar,
    budget: Semaphore,
    started: Instant,
    files: AtomicU64,
    dirs: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
    skipped: AtomicU64,
}

/// A moved entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moved {
    /// A file of this many bytes.
    File(u64),
    /// A directory.
    Dir,
}

/// Why one file was not transferred.
#[derive(Debug)]
pub(crate) enum FileError {
    /// Only this file failed: a line for the person.
    Failed(String),
    /// It is left out for a good reason: a line for the person.
    Skipped(String),
    /// The connection is gone, and with it all the others.
    Fatal(Status),
}

impl FileError {
    /// A failed call about `shown`. Once the connection has ended, no other call will succeed.
    pub(crate) fn from_call(channel: &Channel, shown: &str, error: CallError<KvError>) -> Self {
        match error {
            CallError::Status(status) if channel.close_cause().is_some() => Self::Fatal(status),
            error => Self::Failed(format!("{shown}: {error}")),
        }
    }
}

impl Transfer {
    /// Begins with `files` files of `bytes` bytes together to transfer. `verb` describes finished
    /// files: `imported`.
    pub(crate) fn new(verb: &'static str, files: u64, bytes: u64) -> Self {
        let template = "{bar:32} {bytes}/{total_bytes}  {bytes_per_sec}  {eta} left  {msg}";
        let style = ProgressStyle::with_template(template)
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("=> ");
        // Not drawn unless stderr is a terminal.
        let bar = ProgressBar::new(bytes).with_style(style);
        bar.set_message(format!("0/{}", counted(files, "file", "files")));
        Self {
            verb,
            total: files,
            bar,
            budget: Semaphore::new(BUDGET_UNITS as usize),
            started: Instant::now(),
            files: AtomicU64::new(0),
            dirs: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
        }
    }

    /// Processes all items, `in_flight` at once. `size` returns the expected bytes of an item,
    /// `work` processes one.
    ///
    /// Ctrl-C and SIGTERM end it in order: files that are being written are completed, others are
    /// not begun.
    ///
    /// # Errors
    /// When the connection ends, or the user ends it. Everything else is printed and counted.
    pub(crate) async fn run<T, F>(
        &self,
        items: impl IntoIterator<Item = T>,
        in_flight: usize,
        size: impl Fn(&T) -> u64,
        work: impl Fn(T) -> F,
    ) -> Result<(), CommandError>
    where
        F: Future<Output = Result<Moved, FileError>>,
    {
        let signals = rpc_core::signal::shutdown();
        let all = stream::iter(items).map(Ok);
        let all = all.try_for_each_concurrent(in_flight, |item| self.one(size(&item), work(item)));
        let outcome = tokio::select! {
            outcome = all => {
                outcome.map_err(|status| CommandError::Stopped { done: self.so_far(), status })
            }
            () = signals => Err(CommandError::InterruptedAfter(self.so_far())),
        };
        self.bar.finish_and_clear();
        outcome
    }

    async fn one(
        &self,
        expected: u64,
        work: impl Future<Output = Result<Moved, FileError>>,
    ) -> Result<(), Status> {
        let units = expected.div_ceil(UNIT_BYTES).min(BUDGET_UNITS.into());
        let units = u32::try_from(units).unwrap_or(BUDGET_UNITS);
        // Never closed, so this only waits.
        let _budget = self.budget.acquire_many(units).await;
        match work.await {
            Ok(moved) => self.done(moved),
            Err(FileError::Skipped(line)) => self.skip(&line),
            Err(FileError::Failed(line)) => self.fail(&line),
            Err(FileError::Fatal(status)) => return Err(status),
        }
        self.bar.inc(expected);
        Ok(())
    }

    fn done(&self, moved: Moved) {
        let Moved::File(bytes) = moved else {
            self.dirs.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let files = self.files.fetch_add(1, Ordering::Relaxed) + 1;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if !self.bar.is_hidden() {
            let total = counted(self.total, "file", "files");
            self.bar.set_message(format!("{}/{total}", count(files)));
        }
    }

    /// Prints a failure that does not end the rest.
    pub(crate) fn fail(&self, line: &impl Display) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        let line = line.to_string();
        self.bar.suspend(|| eprintln!("error: {}", printable(&line).at_most(usize::MAX)));
    }

    /// Prints an entry that is left out.
    pub(crate) fn skip(&self, line: &impl Display) {
        self.skipped.fetch_add(1, Ordering::Relaxed);
        let line = line.to_string();
        self.bar.suspend(|| eprintln!("skipped: {}", printable(&line).at_most(usize::MAX)));
    }

    fn so_far(&self) -> String {
        let files = self.files.load(Ordering::Relaxed);
        format!("{} of {} {}", count(files), counted(self.total, "file", "files"), self.verb)
    }

    /// Prints the last line. `what` follows the files: `from a/b`.
    ///
    /// # Errors
    /// [`CommandError::SomeFailed`] if anything did.
    pub(crate) fn finish(&self, what: &str) -> Result<(), CommandError> {
        writeln!(io::stdout(), "{}", self.summary(what, self.started.elapsed()))?;
        match self.failed.load(Ordering::Relaxed) {
            0 => Ok(()),
            failed => Err(CommandError::SomeFailed(counted(failed, "entry", "entries"))),
        }
    }

    fn summary(&self, what: &str, took: Duration) -> String {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (files, size) = (counted(load(&self.files), "file", "files"), load(&self.bytes));
        let mut line = format!("{} {files}", self.verb);
        if load(&self.dirs) > 0 {
            let dirs = counted(load(&self.dirs), "empty directory", "empty directories");
            line = format!("{line} and {dirs}");
        }
        let (size, rate, took) = (bytes(size), rate(size, took), time(took));
        line = format!("{line} {what}: {size} in {took} ({rate})");
        for (counter, word) in [(&self.skipped, "skipped"), (&self.failed, "failed")] {
            if load(counter) > 0 {
                line = format!("{line}; {} {word}", count(load(counter)));
            }
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    async fn run(files: Vec<u64>, in_flight: usize) -> (u64, u64) {
        let transfer = Transfer::new("moved", files.len() as u64, files.iter().sum());
        let (now, most_files, most_bytes) = (Cell::new((0, 0)), Cell::new(0), Cell::new(0));
        let work = |bytes: u64| {
            let (now, most_files, most_bytes) = (&now, &most_files, &most_bytes);
            async move {
                let (files, sum): (u64, u64) = now.get();
                now.set((files + 1, sum + bytes));
                most_files.set(most_files.get().max(files + 1));
                most_bytes.set(most_bytes.get().max(sum + bytes));
                tokio::task::yield_now().await;
                let (files, sum) = now.get();
                now.set((files - 1, sum - bytes));
                Ok(Moved::File(bytes))
            }
        };
        transfer.run(files, in_flight, |bytes| *bytes, work).await.unwrap();
        (most_files.get(), most_bytes.get())
    }

    #[tokio::test]
    async fn files_and_bytes_in_flight_are_bounded() {
        let budget = u64::from(BUDGET_UNITS) * UNIT_BYTES;
        assert_eq!(run(vec![1; 100], 7).await, (7, 7));
        let (files, bytes) = run(vec![budget / 4; 20], 100).await;
        assert!(files == 4 && bytes == budget, "{files} {bytes}");
        // Larger than the budget: alone.
        assert_eq!(run(vec![5 * budget; 4], 100).await, (1, 5 * budget));
        assert_eq!(run(vec![0; 10], 100).await, (10, 0));
    }

    #[tokio::test]
    async fn only_a_lost_connection_ends_the_transfer() {
        let transfer = Transfer::new("moved", 5, 5);
        let seen = RefCell::new(Vec::new());
        let work = |number: u64| {
            seen.borrow_mut().push(number);
            async move {
                match number {
                    1 => Err(FileError::Failed("one".to_owned())),
                    2 => Err(FileError::Skipped("two".to_owned())),
                    4 => Err(FileError::Fatal(Status::unavailable("gone"))),
                    5 => Ok(Moved::Dir),
                    number => Ok(Moved::File(number)),
                }
            }
        };
        transfer.run([1, 2, 3, 5], 1, |_| 1, work).await.unwrap();
        assert_eq!(
            transfer.summary("to x", Duration::from_secs(3)),
            "moved 1 file and 1 empty directory to x: 3 B in 3.00 s (1 B/s); 1 skipped; 1 failed"
        );
        let error = transfer.finish("to x").unwrap_err();
        assert_eq!(error.to_string(), "1 entry failed, see above");
        let error = transfer.run([4, 3], 1, |_| 1, work).await.unwrap_err();
        assert_eq!(error.to_string(), "stopped, 1 of 5 files moved: unavailable: gone");
        assert_eq!(*seen.borrow(), [1, 2, 3, 5, 4]);
    }
}
