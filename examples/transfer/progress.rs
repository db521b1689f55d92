//! The progress so far: the progress bar, the tally and the last line.
//!
//! Knows neither files nor calls.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use examples::units::{bytes, count, counted, rate, time};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rpc_core::text::printable;

use super::error::CommandError;

/// The tally of a command.
#[derive(Debug)]
pub(crate) struct Progress {
    verb: &'static str,
    quiet: bool,
    total: u64,
    bar: ProgressBar,
    started: Instant,
    files: AtomicU64,
    links: AtomicU64,
    dirs: AtomicU64,
    bytes: AtomicU64,
    kept_files: AtomicU64,
    kept_bytes: AtomicU64,
    skipped: AtomicU64,
    failed: AtomicU64,
}

impl Progress {
    /// Begins. `verb` describes finished files: `sent`. `quiet` omits bar and last line; failures
    /// are printed anyway.
    pub(crate) fn new(verb: &'static str, quiet: bool) -> Self {
        let bar = ProgressBar::new(0);
        if quiet {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        Self {
            verb,
            quiet,
            total: 0,
            bar,
            started: Instant::now(),
            files: AtomicU64::new(0),
            links: AtomicU64::new(0),
            dirs: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            kept_files: AtomicU64::new(0),
            kept_bytes: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    /// Sets the amount of work. The bar appears, unless stderr is not a terminal.
    pub(crate) fn total(&mut self, files: u64, bytes: u64) {
        let template = "{bar:32} {bytes}/{total_bytes}  {bytes_per_sec}  {eta} left  {msg}";
        let style = ProgressStyle::with_template(template)
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("=> ");
        self.total = files;
        self.bar.set_style(style);
        self.bar.set_length(bytes);
        self.bar.enable_steady_tick(Duration::from_millis(100));
        self.message();
    }

    /// Bytes of files that have arrived.
    pub(crate) fn moved(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.bar.inc(bytes);
    }

    /// Bytes of files that were there already.
    pub(crate) fn kept(&self, bytes: u64) {
        self.kept_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.bar.inc(bytes);
    }

    /// Bytes that will not arrive.
    pub(crate) fn given_up(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// A file is there, its bytes have been counted.
    pub(crate) fn file(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
        self.message();
    }

    /// A file was there already, its bytes have been counted.
    pub(crate) fn kept_file(&self) {
        self.kept_files.fetch_add(1, Ordering::Relaxed);
        self.message();
    }

    /// A symbolic link is there.
    pub(crate) fn link(&self) {
        self.links.fetch_add(1, Ordering::Relaxed);
    }

    /// A directory is there.
    pub(crate) fn dir(&self) {
        self.dirs.fetch_add(1, Ordering::Relaxed);
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

    /// Prints a result line.
    ///
    /// # Errors
    /// When nobody reads it.
    pub(crate) fn say(&self, line: &impl Display) -> io::Result<()> {
        self.bar.suspend(|| writeln!(io::stdout(), "{line}"))
    }

    /// Removes the bar.
    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }

    /// A summary of the progress.
    pub(crate) fn so_far(&self) -> String {
        let files = load(&self.files) + load(&self.kept_files);
        let total = counted(self.total, "file", "files");
        format!("{} of {total} {}", count(files), self.verb)
    }

    /// Prints the last line; `path` is the connection's path.
    ///
    /// # Errors
    /// [`CommandError::SomeFailed`] if anything did.
    pub(crate) fn finish(&self, path: &impl Display) -> Result<(), CommandError> {
        if !self.quiet {
            writeln!(io::stdout(), "{}", self.summary(path, self.started.elapsed()))?;
        }
        match load(&self.failed) {
            0 => Ok(()),
            failed => Err(CommandError::SomeFailed(counted(failed, "entry", "entries"))),
        }
    }

    fn summary(&self, path: &impl Display, took: Duration) -> String {
        let mut line = format!("{} {}", self.verb, counted(load(&self.files), "file", "files"));
        for (number, one, many) in
            [(load(&self.links), "link", "links"), (load(&self.dirs), "directory", "directories")]
        {
            if number > 0 {
                line = format!("{line}, {}", counted(number, one, many));
            }
        }
        let size = load(&self.bytes);
        let (moved, speed, took) = (bytes(size), rate(size, took), time(took));
        line = format!("{line}: {moved} in {took} ({speed}) over {path}");
        let (kept, kept_bytes) = (load(&self.kept_files), load(&self.kept_bytes));
        if kept_bytes > 0 || kept > 0 {
            let kept = counted(kept, "whole file", "whole files");
            line = format!("{line}; {} already there ({kept})", bytes(kept_bytes));
        }
        for (number, word) in [(load(&self.skipped), "skipped"), (load(&self.failed), "failed")] {
            if number > 0 {
                line = format!("{line}; {} {word}", count(number));
            }
        }
        line
    }

    fn message(&self) {
        if !self.bar.is_hidden() {
            let files = load(&self.files) + load(&self.kept_files);
            let total = counted(self.total, "file", "files");
            self.bar.set_message(format!("{}/{total}", count(files)));
        }
    }
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_tells_what_happened() {
        let mut progress = Progress::new("sent", false);
        progress.total(4, 100);
        assert_eq!(
            progress.summary(&"shm://x", Duration::from_secs(2)),
            "sent 0 files: 0 B in 2.00 s (0 B/s) over shm://x"
        );
        progress.moved(30);
        progress.file();
        progress.dir();
        progress.link();
        progress.kept(20);
        progress.kept_file();
        progress.fail(&"one");
        progress.skip(&"two");
        assert_eq!(
            progress.summary(&"shm://x", Duration::from_secs(3)),
            "sent 1 file, 1 link, 1 directory: 30 B in 3.00 s (10 B/s) over shm://x; 20 B already there \
             (1 whole file); 1 skipped; 1 failed"
        );
        assert_eq!(progress.so_far(), "2 of 4 files sent");
        assert_eq!(progress.finish(&"x").unwrap_err().to_string(), "1 entry failed, see above");
    }
}
