//! Log-linear histograms of times: four buckets per power of two.
//!
//! Owns the boundaries. Memory is fixed: recording a time never allocates.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Number of bits after the leading one that select a bucket.
const LINEAR_BITS: u32 = 2;
/// Shorter times are in the first bucket: 2^`LEAST_BITS` ns.
const LEAST_BITS: u32 = 7;
/// Longer times are in the last bucket: 2^`MOST_BITS` ns, above two minutes.
const MOST_BITS: u32 = 37;
/// The first bucket, those in between, and the last.
const BUCKETS: usize = ((MOST_BITS - LEAST_BITS) << LINEAR_BITS) as usize + 2;

/// The bucket of a time.
fn bucket_of(nanos: u64) -> usize {
    if nanos < 1 << LEAST_BITS {
        return 0;
    }
    let bits = nanos.ilog2();
    if bits >= MOST_BITS {
        return BUCKETS - 1;
    }
    let linear = (nanos >> (bits - LINEAR_BITS)) & ((1 << LINEAR_BITS) - 1);
    1 + (((bits - LEAST_BITS) as usize) << LINEAR_BITS) + usize::try_from(linear).unwrap_or(0)
}

/// The exclusive upper bound of the bucket, ns; `None` for the last one.
fn end_of(bucket: usize) -> Option<u64> {
    if bucket >= BUCKETS - 1 {
        return None;
    }
    let octave = bucket >> LINEAR_BITS;
    let linear = (bucket & ((1 << LINEAR_BITS) - 1)) as u64;
    let octave = 1_u64 << (LEAST_BITS + u32::try_from(octave).unwrap_or(0));
    Some(octave + (octave >> LINEAR_BITS) * linear)
}

/// A histogram that any thread can record to.
#[derive(Debug)]
pub(crate) struct Recorder {
    buckets: [AtomicU64; BUCKETS],
    nanos: AtomicU64,
}

impl Recorder {
    pub(crate) const fn new() -> Self {
        Self { buckets: [const { AtomicU64::new(0) }; BUCKETS], nanos: AtomicU64::new(0) }
    }

    /// Records a time for `weight` calls.
    pub(crate) fn record(&self, took: Duration, weight: u64) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket_of(nanos)].fetch_add(weight, Ordering::Relaxed);
        self.nanos.fetch_add(nanos.saturating_mul(weight), Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Histogram {
        let mut buckets = Vec::new();
        for (bucket, count) in self.buckets.iter().enumerate() {
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                buckets.push((end_of(bucket), count));
            }
        }
        Histogram { buckets, nanos: self.nanos.load(Ordering::Relaxed) }
    }
}

/// A histogram of call times: four buckets per power of two from 128 ns to two minutes, so times
/// are accurate to a quarter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// The upper bound of each non-empty bucket, ns, and its count; ascending. `None`: the last
    /// bucket.
    buckets: Vec<(Option<u64>, u64)>,
    nanos: u64,
}

impl Histogram {
    /// The number of calls that the times represent.
    #[must_use]
    pub fn count(&self) -> u64 {
        // Saturating: a value received from a peer may be inconsistent.
        self.buckets.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// The times recorded since `earlier`, an earlier snapshot of the same calls.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        // A value received from a peer may have any number of buckets, in any order.
        let order = |end: &Option<u64>| end.unwrap_or(u64::MAX);
        let mut before = earlier.buckets.iter().take(BUCKETS).peekable();
        let buckets = self.buckets.iter().take(BUCKETS).map(|(end, now)| {
            while before.next_if(|(it, _)| order(it) < order(end)).is_some() {}
            let then = before.next_if(|(it, _)| it == end).map_or(0, |(_, count)| *count);
            (*end, now.saturating_sub(then))
        });
        Self {
            buckets: buckets.filter(|(_, count)| *count > 0).collect(),
            nanos: self.nanos.saturating_sub(earlier.nanos),
        }
    }

    /// The sum of the times.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.nanos)
    }

    /// The mean time; `None` without calls.
    #[must_use]
    pub fn mean(&self) -> Option<Duration> {
        Some(Duration::from_nanos(self.nanos.checked_div(self.count())?))
    }

    /// The time that the given share of the calls did not exceed, rounded up to the bound of its
    /// bucket: `quantile(0.99)` is the 99th percentile. `None` without calls, and for times above
    /// two minutes.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let count = self.count();
        #[expect(clippy::cast_precision_loss, reason = "a rank need not be exact above 2^53")]
        let rank = share.clamp(0.0, 1.0) * count as f64;
        let mut seen = 0;
        for (end, count) in &self.buckets {
            seen = count.saturating_add(seen);
            #[expect(clippy::cast_precision_loss, reason = "the same")]
            if seen as f64 >= rank {
                return end.map(Duration::from_nanos);
            }
        }
        None
    }

    /// The non-empty buckets: the exclusive upper bound (`None`: unbounded) and the number of
    /// calls. Ascending.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> + '_ {
        self.buckets.iter().map(|(end, count)| (end.map(Duration::from_nanos), *count))
    }

    /// The number of calls below each power of two, including empty ones. Ascending.
    pub(crate) fn up_to_octaves(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let mut buckets = self.buckets.iter().peekable();
        let mut seen = 0;
        (LEAST_BITS..=MOST_BITS).map(move |bits| {
            let end = 1 << bits;
            while let Some((_, count)) = buckets.next_if(|(it, _)| it.is_some_and(|it| it <= end)) {
                seen += count;
            }
            (Duration::from_nanos(end), seen)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_in_its_bucket() {
        let around = |at: u64| [at.saturating_sub(1), at, at.saturating_add(1)];
        let times = (0..64).flat_map(|bits| around(1 << bits)).chain((0..10_000).map(|it| it * 37));
        for nanos in times.chain([u64::MAX]) {
            let bucket = bucket_of(nanos);
            assert!(end_of(bucket).is_none_or(|end| nanos < end), "{nanos} in {bucket}");
            let before = bucket.checked_sub(1).and_then(end_of);
            assert!(before.is_none_or(|end| nanos >= end), "{nanos} in {bucket}");
        }
        let ends: Vec<_> = (0..BUCKETS - 1).map(end_of).collect();
        assert!(ends.is_sorted_by(|a, b| a < b), "{ends:?}");
        assert_eq!((ends[0], end_of(BUCKETS - 1)), (Some(128), None));
        for pair in ends.windows(2).skip(1) {
            let [Some(a), Some(b)] = pair else { panic!("no end: {pair:?}") };
            assert!(b - a <= a / 4, "{a} to {b}");
        }
    }

    /// Regression: each bucket was compared with each, and a peer chooses their number.
    #[test]
    fn buckets_of_a_peer_are_compared_in_order() {
        let _watchdog = test_kit::Watchdog::start("a histogram of a peer");
        let sent = |count: u64, ends: u64| Histogram {
            buckets: (0..ends).map(|end| (Some(end), count)).chain([(None, count)]).collect(),
            nanos: 7,
        };
        let since = sent(3, 1_000_000).since(&sent(1, 1_000_000));
        assert!(since.buckets.len() <= BUCKETS, "{}", since.buckets.len());
        assert!(since.buckets.iter().all(|(_, count)| *count == 2));
        let missing = Histogram { buckets: vec![(Some(1), 5), (Some(8), 1)], nanos: 0 };
        let now = Histogram { buckets: vec![(Some(2), 4), (Some(8), 3), (None, 1)], nanos: 0 };
        assert_eq!(now.since(&missing).buckets, [(Some(2), 4), (Some(8), 2), (None, 1)]);
    }

    #[test]
    fn a_histogram_has_counts_sums_and_quantiles() {
        let recorder = Recorder::new();
        assert_eq!(recorder.read().quantile(0.5), None);
        assert_eq!(recorder.read().mean(), None);
        for micros in 1..=100 {
            recorder.record(Duration::from_micros(micros), 2);
        }
        let read = recorder.read();
        assert_eq!((read.count(), read.sum()), (200, Duration::from_micros(2 * 5050)));
        assert_eq!(read.mean(), Some(Duration::from_nanos(50_500)));
        for (share, micros) in [(0.0, 1), (0.5, 50), (0.99, 99), (1.0, 100)] {
            let found = read.quantile(share).expect("a time");
            let exact = Duration::from_micros(micros);
            assert!(found >= exact && found <= exact + exact / 4, "{share}: {found:?}");
        }
        recorder.record(Duration::from_micros(1), 3);
        let later = recorder.read().since(&read);
        assert_eq!((later.count(), later.sum()), (3, Duration::from_micros(3)));
        assert_eq!(recorder.read().since(&recorder.read()).count(), 0);
        recorder.record(Duration::MAX, 1);
        assert_eq!(recorder.read().quantile(1.0), None, "above two minutes");
        assert_eq!(recorder.read().buckets().last(), Some((None, 1)));
    }
}
