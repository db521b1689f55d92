//! The data of the page, as JSON.

use std::collections::BTreeMap;
use std::sync::Arc;

use rpc_core::stats::{ConnectionStats, ConvertedStats, MemberStats, MethodStats, ResolverStats};
use serde::Serialize;

use crate::history::{Point, Reading, errors_of};
use crate::recent::{Recent, RecentRows};
use crate::subject::{INTERVAL, Subject};

/// Number of connections shown, the busiest ones.
const MOST_CONNECTIONS: usize = 50;
/// Number of servers of a channel that are shown, those with trouble first.
const MOST_MEMBERS: usize = 50;

#[derive(Serialize)]
struct Report<'a> {
    title: &'a str,
    public: Option<String>,
    /// Start time of the page: a different one means another process.
    since_ms: u64,
    interval_ms: u128,
    sources: Vec<SourceNow<'a>>,
    /// The points after the requested sequence number.
    points: Vec<Arc<Point>>,
    /// `None`: they are not kept.
    recent: Option<RecentRows>,
}

/// The last reading of a source.
#[derive(Serialize)]
struct SourceNow<'a> {
    name: &'a str,
    /// `server` or `channel`.
    kind: &'static str,
    methods: Vec<MethodNow<'a>>,
    connections: Vec<&'a ConnectionStats>,
    connection_count: usize,
    members: Vec<&'a MemberStats>,
    member_count: usize,
    /// `None`: the channel has one server, or it is a server.
    resolver: Option<&'a ResolverStats>,
    converted: &'a [ConvertedStats],
    memory_used_bytes: u64,
    /// `None`: there is none.
    memory_limit_bytes: Option<u64>,
    is_draining: bool,
    others: &'a [(&'static str, u64)],
}

/// A method since the start.
#[derive(Serialize)]
struct MethodNow<'a> {
    name: &'a str,
    started: u64,
    in_flight: u64,
    errors: u64,
    ended: BTreeMap<String, u64>,
    p50_ns: u64,
    p99_ns: u64,
}

/// The report, with the points after a sequence number.
pub(crate) fn json(subject: &Subject, after: u64) -> String {
    let (last, points) = {
        let history = subject.history.lock();
        let points = history.points.iter().filter(|point| point.sequence > after);
        (Arc::clone(&history.last), points.cloned().collect())
    };
    let sources = subject.names().zip(last.iter()).enumerate();
    let report = Report {
        title: &subject.title,
        public: subject.public.map(|address| address.to_string()),
        since_ms: subject.since_ms,
        interval_ms: INTERVAL.as_millis(),
        sources: sources
            .map(|(at, (name, reading))| source(name, subject.is_server(at), reading))
            .collect(),
        points,
        recent: subject.recent.as_ref().map(Recent::rows),
    };
    serde_json::to_string(&report).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
}

fn source<'a>(name: &'a str, is_server: bool, reading: &'a Reading) -> SourceNow<'a> {
    let mut connections: Vec<_> = reading.connections.iter().collect();
    connections.sort_by_key(|it| std::cmp::Reverse(it.messages_in.saturating_add(it.messages_out)));
    connections.truncate(MOST_CONNECTIONS);
    let mut members: Vec<_> = reading.members.iter().collect();
    members.sort_by_key(|it| (!it.is_ejected, it.is_connected, !it.is_draining, &it.address));
    members.truncate(MOST_MEMBERS);
    SourceNow {
        name,
        kind: if is_server { "server" } else { "channel" },
        methods: reading.methods.iter().map(method).collect(),
        connections,
        connection_count: reading.connections.len(),
        members,
        member_count: reading.members.len(),
        resolver: reading.resolver.as_ref(),
        converted: &reading.converted,
        memory_used_bytes: reading.memory.map_or(0, |(used, _)| used),
        memory_limit_bytes: reading.memory.map(|(_, limit)| limit),
        is_draining: reading.is_draining,
        others: &reading.others,
    }
}

fn method(stats: &MethodStats) -> MethodNow<'_> {
    let mut ended: BTreeMap<_, _> =
        stats.ended.iter().map(|(code, count)| (format!("{code:?}"), *count)).collect();
    if stats.user_errors > 0 {
        ended.insert("UserError".to_owned(), stats.user_errors);
    }
    let quantile = |share| {
        let time = stats.took.quantile(share).unwrap_or_default();
        u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
    };
    MethodNow {
        name: stats.name,
        started: stats.started,
        in_flight: stats.in_flight(),
        errors: errors_of(stats),
        ended,
        p50_ns: quantile(0.5),
        p99_ns: quantile(0.99),
    }
}
