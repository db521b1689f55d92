//! Progress of a run: a bar on stderr, if that is a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// The progress bar, removed on drop.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    pub(crate) fn new(steps: u64) -> Self {
        let style = ProgressStyle::with_template("{bar:30} {pos:>3}/{len} {elapsed:>4}  {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("=> ");
        Self(ProgressBar::new(steps).with_style(style))
    }

    /// Begins the next step and ends the previous one.
    pub(crate) fn step(&self, scheme: &str, what: &str) {
        if !self.0.message().is_empty() {
            self.0.inc(1);
        }
        self.0.set_message(format!("{scheme}: {what}"));
    }

    /// Prints while the bar is hidden.
    pub(crate) fn suspend<R>(&self, print: impl FnOnce() -> R) -> R {
        self.0.suspend(print)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
