//! Publishes the numbers through the facade of the crate `metrics`, for any recorder.
//!
//! Invariants:
//! 1. A handle is created once per name and labels, and kept, so that the recorder does not look it
//!    up again.
//! 2. The recorder runs on the publishing thread with no lock held. Calls are not affected.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use metrics::{Counter, Gauge, Key, Label, Level, Metadata, SharedString, Unit};
use tokio::time::MissedTickBehavior;

use super::export::{self, Kind, Labels, Metric, Value};
use super::{ChannelStats, Histogram, StatsHandle};

/// Maximum number of times of a method recorded per publication: the facade takes them one by one.
const MOST_TIMES: u64 = 1024;
/// Recorded for the last, unbounded bucket. Above all bounds, the highest of which is 2^37 ns.
const LONGEST: Duration = Duration::from_secs(138);

/// Publishes the numbers of a server or of a channel through the facade of the crate
/// [`metrics`](https://docs.rs/metrics), under the names of `docs/metrics.md`. Needs the feature
/// `metrics`.
///
/// Counters and gauges are set to their values. For histograms, the times since the last
/// publication are recorded, each as the bound of its bucket. If a method has more than 1,024 of
/// them, 1,024 are recorded in the same proportions; so take the rate of calls from
/// `rpc.server.call.ended`, not from the count of the histogram.
///
/// Install the recorder first: a metric that is published before never reaches it.
///
/// ```
/// use rpc_core::Server;
/// use rpc_core::stats::MetricsPublisher;
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = Server::builder().bind("mem://published").await?;
/// let publisher = MetricsPublisher::of_server(server.stats_handle()).label("zone", "north");
/// tokio::spawn(publisher.run(Duration::from_secs(5)));
/// # Ok(()) }
/// ```
pub struct MetricsPublisher {
    source: Source,
    labels: Vec<Label>,
    held: HashMap<(&'static str, Vec<String>), Held>,
}

enum Source {
    Server(StatsHandle),
    Channel(Box<dyn Fn() -> ChannelStats + Send + Sync>),
}

/// A handle of the recorder.
enum Held {
    Counter(Counter),
    Gauge(Gauge),
    /// With the times recorded so far: the bound of each bucket, and its count.
    Histogram(metrics::Histogram, BTreeMap<Duration, u64>),
}

impl MetricsPublisher {
    /// Publishes the numbers of a server: [`Server::stats_handle`](crate::Server::stats_handle).
    #[must_use]
    pub fn of_server(server: StatsHandle) -> Self {
        Self::of(Source::Server(server))
    }

    pub(crate) fn of_channel_stats(
        read: impl Fn() -> ChannelStats + Send + Sync + 'static,
    ) -> Self {
        Self::of(Source::Channel(Box::new(read)))
    }

    fn of(source: Source) -> Self {
        Self { source, labels: Vec::new(), held: HashMap::new() }
    }

    /// Adds a label to all of its numbers. Two servers, or two channels, of one process need
    /// distinct labels.
    #[must_use]
    pub fn label(mut self, name: impl Into<SharedString>, value: impl Into<SharedString>) -> Self {
        self.labels.push(Label::new(name, value));
        self
    }

    /// Publishes once.
    pub fn publish(&mut self) {
        let Self { source, labels, held } = self;
        let sink = &mut |metric: &'static Metric, own: Labels<'_>, value: Value<'_>| {
            let values = own.iter().map(|(_, value)| (*value).to_owned()).collect();
            let held = held.entry((metric.name, values));
            held.or_insert_with(|| Held::new(metric, own, labels)).publish(value);
        };
        match source {
            Source::Server(handle) => export::server(&handle.stats(), sink),
            Source::Channel(read) => export::channel(&read(), sink),
        }
    }

    /// Publishes immediately and then once per interval, until the future is dropped.
    pub async fn run(mut self, every: Duration) {
        let mut ticks = tokio::time::interval(every.max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.publish();
        }
    }
}

impl fmt::Debug for MetricsPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsPublisher").field("labels", &self.labels).finish_non_exhaustive()
    }
}

impl Held {
    fn new(metric: &'static Metric, own: Labels<'_>, more: &[Label]) -> Self {
        let own = own.iter().map(|(name, value)| Label::new(*name, (*value).to_owned()));
        let key = Key::from_parts(metric.name, own.chain(more.iter().cloned()).collect::<Vec<_>>());
        let about = Metadata::new(module_path!(), Level::INFO, Some(module_path!()));
        let (name, help) = (metric.name.into(), metric.help.into());
        metrics::with_recorder(|recorder| match metric.kind {
            Kind::Counter => {
                recorder.describe_counter(name, None, help);
                Self::Counter(recorder.register_counter(&key, &about))
            }
            Kind::Gauge => {
                recorder.describe_gauge(name, None, help);
                Self::Gauge(recorder.register_gauge(&key, &about))
            }
            Kind::Histogram => {
                recorder.describe_histogram(name, Some(Unit::Seconds), help);
                Self::Histogram(recorder.register_histogram(&key, &about), BTreeMap::new())
            }
        })
    }

    fn publish(&mut self, value: Value<'_>) {
        match (self, value) {
            (Self::Counter(counter), Value::Number(number)) => counter.absolute(number),
            #[expect(clippy::cast_precision_loss, reason = "a gauge need not be exact above 2^53")]
            (Self::Gauge(gauge), Value::Number(number)) => gauge.set(number as f64),
            (Self::Histogram(to, before), Value::Histogram(now)) => {
                for (time, count) in new_times(before, now) {
                    let count = usize::try_from(count).unwrap_or(usize::MAX);
                    to.record_many(time.as_secs_f64(), count);
                }
            }
            _ => {}
        }
    }
}

/// The new times, at most [`MOST_TIMES`], plus one for each bucket.
fn new_times(before: &mut BTreeMap<Duration, u64>, now: &Histogram) -> Vec<(Duration, u64)> {
    let mut new = Vec::new();
    for (end, count) in now.buckets() {
        let end = end.unwrap_or(LONGEST);
        let then = before.insert(end, count).unwrap_or(0);
        if count > then {
            new.push((end, count - then));
        }
    }
    let all: u64 = new.iter().map(|(_, count)| count).sum();
    if all > MOST_TIMES {
        for (_, count) in &mut new {
            let share = u128::from(*count) * u128::from(MOST_TIMES);
            *count = u64::try_from(share.div_ceil(u128::from(all))).unwrap_or(MOST_TIMES);
        }
    }
    new
}

#[cfg(test)]
mod tests {
    use super::super::histogram::Recorder;
    use super::*;

    #[test]
    fn times_are_recorded_once_and_in_proportion() {
        let recorder = Recorder::new();
        let mut before = BTreeMap::new();
        recorder.record(Duration::from_nanos(1000), 3);
        recorder.record(Duration::MAX, 1);
        let first = new_times(&mut before, &recorder.read());
        assert_eq!(first, [(Duration::from_nanos(1024), 3), (LONGEST, 1)]);
        assert_eq!(new_times(&mut before, &recorder.read()), []);
        recorder.record(Duration::from_nanos(1000), 3 << 40);
        recorder.record(Duration::from_nanos(2000), 1 << 40);
        recorder.record(Duration::from_nanos(4000), 1);
        let counts: Vec<_> = new_times(&mut before, &recorder.read());
        let counts: Vec<_> = counts.into_iter().map(|(_, count)| count).collect();
        assert_eq!(counts, [768, 256, 1], "three to one, and what is rare is not lost");
    }
}
