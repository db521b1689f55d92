//! Histograms and the table that a run prints.

use std::fmt::Display;
use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;
pub(crate) use rpc_perf::{histogram, quantile};

/// Round trips one after the other, each from the end of the previous one. Keeps instants only:
/// recording in a histogram would add its time to each.
pub(crate) struct Laps {
    ends: Vec<Instant>,
    start: Instant,
    last: Instant,
}

/// Laps for which there is memory from the start.
const LAPS: usize = 1 << 20;

impl Laps {
    pub(crate) fn start() -> Self {
        let ends = Vec::with_capacity(LAPS);
        let start = Instant::now();
        Self { ends, start, last: start }
    }

    /// Ends a lap.
    #[inline]
    pub(crate) fn lap(&mut self) {
        self.last = Instant::now();
        self.ends.push(self.last);
    }

    /// Time up to the last end.
    #[inline]
    pub(crate) fn elapsed(&self) -> Duration {
        self.last - self.start
    }

    pub(crate) fn histogram(self) -> Result<Histogram<u64>> {
        let mut histogram = histogram();
        let mut before = self.start;
        for end in self.ends {
            histogram.record(u64::try_from((end - before).as_nanos())?)?;
            before = end;
        }
        Ok(histogram)
    }
}

/// The mean, nanoseconds.
pub(crate) fn mean(histogram: &Histogram<u64>) -> f64 {
    histogram.mean()
}

/// The median of several runs.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The median of the ratios of two series, turn by turn: drift affects both.
pub(crate) fn ratio(values: &[f64], to: &[f64]) -> f64 {
    median(values.iter().zip(to).map(|(value, to)| value / to).collect())
}

/// Prints one row: name, value, and its relation to its bar.
pub(crate) fn row(what: impl Display, value: impl Display, verdict: impl Display) {
    println!("{what:<52} {value:>16}   {verdict}");
}

/// `ok` or `MISSED` for a ratio that must not exceed `bar`.
pub(crate) fn at_most(ratio: f64, bar: f64) -> String {
    let verdict = if ratio <= bar { "ok" } else { "MISSED" };
    format!("{ratio:.3} (bar <= {bar:.3}) {verdict}")
}

/// `ok` or `MISSED` for a value that must reach `bar`.
pub(crate) fn at_least(value: f64, bar: f64) -> String {
    let verdict = if value >= bar { "ok" } else { "MISSED" };
    format!("{value:.3} (bar >= {bar:.3}) {verdict}")
}
