//! The output for a person: the path, the table, the progress bar.

use std::io::{self, Write};
use std::time::Duration;

use examples::units::{bytes, count, time, whole};
use indicatif::{ProgressBar, ProgressStyle};

use super::measure::Row;
use super::options::CallOptions;

/// A label and its value.
pub(crate) fn line(label: &str, value: &str) -> io::Result<()> {
    writeln!(io::stdout(), "{label:<8}{value}")
}

/// The path that the calls take, and the reason.
pub(crate) fn path(path: &str) -> io::Result<()> {
    line("path", path)
}

/// The heading of the table.
pub(crate) fn heading(options: &CallOptions) -> io::Result<()> {
    let calls = count(options.calls());
    line("calls", &format!("{calls} per row, {} there and back", bytes(options.size)))?;
    let mut out = io::stdout();
    writeln!(out)?;
    writeln!(
        out,
        "{:>9} {:>12} {:>10} {:>10} {:>10} {:>10}",
        "in flight", "calls/s", "p50", "p90", "p99", "max"
    )
}

/// A row of the table.
pub(crate) fn row(row: &Row) -> io::Result<()> {
    let at = |quantile| time(Duration::from_nanos(row.latency.value_at_quantile(quantile)));
    writeln!(
        io::stdout(),
        "{:>9} {:>12} {:>10} {:>10} {:>10} {:>10}",
        count(row.in_flight.into()),
        count(whole(row.calls_per_second())),
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0),
    )
}

/// A bar on stderr, if that is a terminal.
pub(crate) fn progress(calls: u64, in_flight: u32) -> ProgressBar {
    let template = "{prefix:>9} {bar:40} {percent:>3} %  {per_sec}  {eta} left";
    let style = ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .with_key("per_sec", |state: &indicatif::ProgressState, out: &mut dyn std::fmt::Write| {
            let _ = write!(out, "{} calls/s", count(whole(state.per_sec())));
        })
        .progress_chars("=> ");
    ProgressBar::new(calls).with_style(style).with_prefix(in_flight.to_string())
}
