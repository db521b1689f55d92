//! Histograms and the table that a run prints.

use std::fmt::Display;

use hdrhistogram::Histogram;

/// A histogram of nanoseconds, 1 ns to 100 s, three digits.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 100_000_000_000, 3).expect("constant bounds are valid")
}

/// A quantile, nanoseconds.
#[allow(clippy::cast_precision_loss, reason = "nanoseconds of a run are far below 2^52")]
pub(crate) fn quantile(histogram: &Histogram<u64>, at: f64) -> f64 {
    histogram.value_at_quantile(at) as f64
}

/// The median of several runs.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The median of the ratios of two series, turn by turn: what drifts, drifts in both.
pub(crate) fn ratio(values: &[f64], to: &[f64]) -> f64 {
    median(values.iter().zip(to).map(|(value, to)| value / to).collect())
}

/// Prints one row: what, value, and how it stands to its bar.
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
