//! History: the changes between consecutive readings.
//!
//! Pure: time is an argument. Invariant: memory is bounded by [`MOST_POINTS`] and [`MOST_METHODS`],
//! and by what the servers have.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rpc_core::Code;
use rpc_core::stats::{
    ChannelStats, ConnectionStats, ConvertedStats, MemberStats, MethodStats, ResolverStats,
    ServerStats,
};
use serde::Serialize;

use crate::wall_clock::unix_millis;

/// Number of readings kept: three minutes.
pub(crate) const MOST_POINTS: usize = 180;
/// Number of methods kept per reading, the busiest ones.
pub(crate) const MOST_METHODS: usize = 64;

/// Replaces the bound of the unbounded bucket, for times above two minutes.
const LONGEST: Duration = Duration::from_secs(138);

/// The numbers of a server or of a channel.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    pub(crate) methods: Vec<MethodStats>,
    pub(crate) connections: Vec<ConnectionStats>,
    /// The servers of a channel to several, and the resolver that names them.
    pub(crate) members: Vec<MemberStats>,
    pub(crate) resolver: Option<ResolverStats>,
    /// Methods whose types differ at peers.
    pub(crate) converted: Vec<ConvertedStats>,
    /// Used and limit, bytes; `None` for channels.
    pub(crate) memory: Option<(u64, u64)>,
    pub(crate) is_draining: bool,
    /// Other numbers, with their names.
    pub(crate) others: Vec<(&'static str, u64)>,
}

impl Reading {
    pub(crate) fn of_server(stats: ServerStats) -> Self {
        let mut others = vec![
            ("accepted", stats.accepted),
            ("refused", stats.refused),
            ("denied", stats.denied),
            ("calls denied", stats.calls_denied),
            ("accepted plain", stats.accepted_plain),
            ("set-ups failed", stats.set_ups_failed),
            ("being set up", stats.set_ups),
            ("CQ entries", stats.cq_entries),
        ];
        if let Some(overload) = stats.overload {
            others.push(("calls in flight, limit", overload.limit.into()));
            others.push(("calls refused by it", overload.shed));
        }
        Self {
            others,
            memory: Some((stats.memory_used_bytes, stats.memory_limit_bytes)),
            is_draining: stats.is_draining,
            methods: stats.methods,
            connections: stats.connections,
            converted: stats.converted,
            ..Self::default()
        }
    }

    /// The calls of a channel's servers.
    pub(crate) fn of_served(mut stats: ChannelStats) -> Self {
        stats.methods = std::mem::take(&mut stats.served);
        stats.members.clear();
        stats.converted.clear();
        stats.resolver = None;
        Self::of_channel(stats)
    }

    pub(crate) fn of_channel(stats: ChannelStats) -> Self {
        let mut others = vec![
            ("connected", stats.connected),
            ("connects failed", stats.connect_failures),
            ("calls waiting", stats.waiting_calls),
        ];
        if !stats.members.is_empty() {
            let ejected = stats.members.iter().filter(|member| member.is_ejected).count();
            others.push(("servers", stats.members.len() as u64));
            others.push(("ejected servers", ejected as u64));
            let draining = stats.members.iter().filter(|member| member.is_draining).count();
            others.push(("draining servers", draining as u64));
        }
        Self {
            others,
            memory: None,
            is_draining: false,
            methods: stats.methods,
            connections: stats.connections,
            members: stats.members,
            resolver: stats.resolver,
            converted: stats.converted,
        }
    }
}

/// Calls between two readings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Calls {
    /// Started calls per second.
    pub(crate) rate: f64,
    /// Calls per second that ended with a status other than `Cancelled`.
    pub(crate) errors: f64,
    /// Median and 99th percentile, ns; 0 without calls.
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
}

/// A reading of one source.
#[derive(Debug, Default, Serialize)]
pub(crate) struct SourcePoint {
    pub(crate) total: Calls,
    /// The methods called since the previous reading.
    pub(crate) methods: BTreeMap<&'static str, Calls>,
    pub(crate) in_flight: u64,
    pub(crate) connections: u64,
    pub(crate) credits_held: u64,
    pub(crate) credits_owed: u64,
    pub(crate) queued: u64,
    pub(crate) memory_used_bytes: u64,
}

/// A reading of all sources.
#[derive(Debug, Serialize)]
pub(crate) struct Point {
    pub(crate) sequence: u64,
    pub(crate) at_ms: u64,
    pub(crate) sources: Vec<SourcePoint>,
}

/// The points of the last three minutes, and the last reading.
pub(crate) struct History {
    pub(crate) points: VecDeque<Arc<Point>>,
    pub(crate) last: Arc<Vec<Reading>>,
    before: Vec<HashMap<&'static str, Before>>,
    read_at: Option<Instant>,
    sequence: u64,
}

/// The counts of a method.
#[derive(Default)]
struct Before {
    started: u64,
    errors: u64,
    times: Times,
}

/// The bound of each bucket, and its count.
type Times = BTreeMap<Duration, u64>;

impl History {
    pub(crate) fn new(sources: usize) -> Self {
        Self {
            points: VecDeque::with_capacity(MOST_POINTS),
            last: Arc::default(),
            before: (0..sources).map(|_| HashMap::new()).collect(),
            read_at: None,
            sequence: 0,
        }
    }

    /// Takes a reading of each source. Returns expired points, to be dropped outside of locks.
    pub(crate) fn push(
        &mut self,
        now: Instant,
        wall: SystemTime,
        readings: Vec<Reading>,
    ) -> impl Sized + use<> {
        let passed = self.read_at.map(|then| now.saturating_duration_since(then));
        let sources = readings.iter().zip(&mut self.before);
        let sources = sources.map(|(reading, before)| point_of(reading, before, passed)).collect();
        self.read_at = Some(now);
        // Changes are known from the second reading on.
        let mut oldest = None;
        if passed.is_some() {
            self.sequence += 1;
            let point = Point { sequence: self.sequence, at_ms: unix_millis(wall), sources };
            if self.points.len() == MOST_POINTS {
                oldest = self.points.pop_front();
            }
            self.points.push_back(Arc::new(point));
        }
        (oldest, std::mem::replace(&mut self.last, Arc::new(readings)))
    }
}

/// Whether a code counts as a failure: a cancelled call does not.
pub(crate) fn is_failure(code: Code) -> bool {
    !matches!(code, Code::Ok | Code::Cancelled)
}

/// Failed calls of a method.
pub(crate) fn errors_of(method: &MethodStats) -> u64 {
    method.ended.iter().filter(|(code, _)| is_failure(**code)).map(|(_, count)| count).sum()
}

fn point_of(
    reading: &Reading,
    before: &mut HashMap<&'static str, Before>,
    passed: Option<Duration>,
) -> SourcePoint {
    let mut methods = Vec::new();
    let (mut started, mut errors, mut all) = (0, 0, Times::new());
    for method in &reading.methods {
        let times = times_of(method);
        let now = Before { started: method.started, errors: errors_of(method), times };
        let then = before.insert(method.name, now).unwrap_or_default();
        let now = &before[method.name];
        let (more, more_errors) =
            (now.started.saturating_sub(then.started), now.errors.saturating_sub(then.errors));
        let mut new = Times::new();
        for (end, count) in &now.times {
            let more = count.saturating_sub(then.times.get(end).copied().unwrap_or(0));
            if more > 0 {
                new.insert(*end, more);
                *all.entry(*end).or_default() += more;
            }
        }
        (started, errors) = (started + more, errors + more_errors);
        if let Some(passed) = passed
            && (more > 0 || more_errors > 0 || !new.is_empty())
        {
            methods.push((method.name, calls(more, more_errors, &new, passed)));
        }
    }
    methods.sort_by(|(_, a), (_, b)| b.rate.total_cmp(&a.rate));
    methods.truncate(MOST_METHODS);
    let sum = |of: fn(&ConnectionStats) -> u64| reading.connections.iter().map(of).sum();
    SourcePoint {
        total: passed.map(|passed| calls(started, errors, &all, passed)).unwrap_or_default(),
        methods: methods.into_iter().collect(),
        in_flight: reading.methods.iter().map(MethodStats::in_flight).sum(),
        connections: reading.connections.len() as u64,
        credits_held: sum(|connection| connection.credits_held),
        credits_owed: sum(|connection| connection.credits_owed),
        queued: sum(|connection| connection.queued),
        memory_used_bytes: reading.memory.map_or(0, |(used, _)| used),
    }
}

fn times_of(method: &MethodStats) -> Times {
    method.took.buckets().map(|(end, count)| (end.unwrap_or(LONGEST), count)).collect()
}

fn calls(started: u64, errors: u64, times: &Times, passed: Duration) -> Calls {
    #[expect(clippy::cast_precision_loss, reason = "a rate need not be exact above 2^53")]
    let per_second = |count: u64| count as f64 / passed.as_secs_f64().max(1e-3);
    Calls {
        rate: per_second(started),
        errors: per_second(errors),
        p50_ns: quantile(times, 50),
        p99_ns: quantile(times, 99),
    }
}

/// The bound of the bucket with this percentile; 0 without calls.
fn quantile(times: &Times, of_hundred: u64) -> u64 {
    let rank = times.values().sum::<u64>() * of_hundred;
    let mut seen = 0;
    let end = times.iter().find(|(_, count)| {
        seen += **count;
        seen * 100 >= rank
    });
    end.map_or(0, |(end, _)| u64::try_from(end.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The statistics of a method. Created by serving calls, since its times cannot be set.
    fn method(name: &'static str, started: u64, ended: &[(Code, u64)]) -> MethodStats {
        let mut stats = MethodStats::default();
        stats.name = name;
        stats.started = started;
        stats.ended = ended.iter().copied().collect();
        stats
    }

    fn reading(methods: Vec<MethodStats>) -> Vec<Reading> {
        vec![Reading { methods, ..Reading::default() }]
    }

    #[test]
    fn rates_are_of_the_time_between_two_readings() {
        let mut history = History::new(1);
        let (start, wall) = (Instant::now(), SystemTime::now());
        let first = vec![method("A.f", 1000, &[(Code::Ok, 900)]), method("A.g", 5, &[])];
        drop(history.push(start, wall, reading(first)));
        assert!(history.points.is_empty(), "nothing is known of one reading");
        let ended = [(Code::Ok, 930), (Code::NotFound, 10), (Code::Cancelled, 7)];
        let second = vec![method("A.f", 1050, &ended), method("A.g", 5, &[])];
        drop(history.push(start + Duration::from_millis(500), wall, reading(second)));
        let point = &history.points[0].sources[0];
        let expected = Calls { rate: 100.0, errors: 20.0, p50_ns: 0, p99_ns: 0 };
        assert_eq!(point.methods, BTreeMap::from([("A.f", expected)]), "A.g was not called");
        assert_eq!(point.total, expected);
        assert_eq!(point.in_flight, 1050 - 947 + 5);
    }

    #[test]
    fn quantiles_are_of_the_calls_between_two_readings() {
        let micros = |count: &[(u64, u64)]| -> Times {
            count.iter().map(|(end, count)| (Duration::from_micros(*end), *count)).collect()
        };
        let times = micros(&[(1, 50), (8, 49), (1000, 1)]);
        assert_eq!(quantile(&times, 50), 1000);
        assert_eq!(quantile(&times, 99), 8000);
        assert_eq!(quantile(&times, 100), 1_000_000);
        assert_eq!(quantile(&Times::new(), 50), 0);
    }

    /// Regression: it was u64::MAX ns, 584 years.
    #[test]
    fn calls_of_above_two_minutes_have_a_time() {
        let mut stats = method("A.f", 2, &[]);
        // A call in the last, unbounded bucket of a server.
        let took =
            serde_json::json!({ "buckets": [[1024, 1], [null, 1]], "nanos": 138_000_001_024_u64 });
        stats.took = serde_json::from_value(took).unwrap();
        let times = times_of(&stats);
        assert_eq!(quantile(&times, 50), 1024);
        assert_eq!(quantile(&times, 99), 138_000_000_000);
    }

    #[test]
    fn a_history_is_bounded_in_points_and_methods() {
        let names: Vec<&'static str> = (0..MOST_METHODS + 9)
            .map(|at| &*Box::leak(format!("A.m{at}").into_boxed_str()))
            .collect();
        let mut history = History::new(1);
        let (start, wall) = (Instant::now(), SystemTime::now());
        for second in 0..MOST_POINTS as u64 + 20 {
            let methods =
                names.iter().zip(1..).map(|(name, at)| method(name, at * second, &[])).collect();
            drop(history.push(start + Duration::from_secs(second), wall, reading(methods)));
        }
        assert_eq!(history.points.len(), MOST_POINTS);
        let last = history.points.back().unwrap();
        assert_eq!(last.sequence, MOST_POINTS as u64 + 19);
        let kept = &last.sources[0].methods;
        assert_eq!(kept.len(), MOST_METHODS);
        assert!(kept.contains_key(names.last().unwrap()), "the busiest are kept");
        assert!(!kept.contains_key(names[0]), "and not the others");
    }

    #[test]
    fn a_counter_that_falls_is_no_call() {
        let mut history = History::new(1);
        let (start, wall) = (Instant::now(), SystemTime::now());
        drop(history.push(start, wall, reading(vec![method("A.f", 9, &[])])));
        drop(history.push(start, wall, reading(vec![method("A.f", 3, &[])])));
        assert_eq!(history.points[0].sources[0].total, Calls::default());
    }
}
