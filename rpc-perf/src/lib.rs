//! The raw limits of a machine without any framework, to which `rpc-perf` and the benchmarks of
//! this workspace compare their results, and the placement of measured threads and processes.

pub mod cores;
pub mod floor;
pub mod pages;
pub mod server_process;

use hdrhistogram::Histogram;

/// A histogram of nanoseconds, 1 ns to 100 s, three digits.
#[must_use]
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 100_000_000_000, 3).expect("constant bounds are valid")
}

/// A quantile, nanoseconds.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "nanoseconds of a run are far below 2^52")]
pub fn quantile(histogram: &Histogram<u64>, at: f64) -> f64 {
    histogram.value_at_quantile(at) as f64
}
