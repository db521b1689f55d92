//! The names of the exported metrics, modelled on gRPC A66.
//!
//! Owns the table of names. The only labels are method and code, so that a peer cannot grow the
//! number of time series: values of connections are summed up.

use std::time::Duration;

use super::{ChannelStats, ConnectionStats, ConvertedStats, Histogram, MethodStats, ServerStats};

/// A metric: a name, its kind and a description.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Metric {
    /// Parts are separated by dots.
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) help: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Only increases.
    Counter,
    Gauge,
    /// A histogram of times, in seconds.
    Histogram,
}

/// A single value, or a histogram.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Value<'a> {
    Number(u64),
    Histogram(&'a Histogram),
}

/// Name and value of each label.
pub(crate) type Labels<'a> = &'a [(&'static str, &'a str)];

/// Peers that have sent nothing for longer are taken to be gone.
const OF_LATE: Duration = Duration::from_secs(300);
/// The prefix of the framework's own services.
const OWN_SERVICES: &str = "rpc.";

/// Receives the exported values. The values of one metric are consecutive.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(&'static Metric, Labels<'_>, Value<'_>);

/// A value of a server, a channel or a connection.
type Whole<T> = (Metric, fn(&T) -> u64);

/// A value of a method.
type Number = fn(&MethodStats) -> u64;

/// The metrics of a method.
struct OfMethod {
    started: Metric,
    ended: Metric,
    in_flight: Metric,
    duration: Metric,
    request_bytes: Metric,
    reply_bytes: Metric,
}

const fn counter(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Counter, help }
}

const fn gauge(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, help }
}

const fn histogram(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Histogram, help }
}

static SERVER_METHODS: OfMethod = OfMethod {
    started: counter("rpc.server.call.started", "Calls that arrived"),
    ended: counter("rpc.server.call.ended", "Calls that ended, by code"),
    in_flight: gauge("rpc.server.call.in_flight", "Calls whose handlers are running"),
    duration: histogram("rpc.server.call.duration", "Durations of handlers, sampled"),
    request_bytes: counter("rpc.server.call.rcvd_bytes", "Encoded arguments"),
    reply_bytes: counter("rpc.server.call.sent_bytes", "Encoded results"),
};

static CHANNEL_METHODS: OfMethod = OfMethod {
    started: counter("rpc.client.attempt.started", "Attempts of calls"),
    ended: counter("rpc.client.attempt.ended", "Attempts that ended, by code"),
    in_flight: gauge("rpc.client.attempt.in_flight", "Attempts without an answer yet"),
    duration: histogram("rpc.client.attempt.duration", "From request to answer, sampled"),
    request_bytes: counter("rpc.client.attempt.sent_bytes", "Encoded arguments"),
    reply_bytes: counter("rpc.client.attempt.rcvd_bytes", "Encoded results"),
};

static SERVER: [Whole<ServerStats>; 18] = [
    (counter("rpc.server.converted", "Messages of clients whose types differ"), |it| {
        messages(&it.converted)
    }),
    (gauge("rpc.server.converted_types", "Types of clients that differ, of late"), |it| {
        recent(&it.converted)
    }),
    (gauge("rpc.server.connections", "Connections that are up"), |it| it.connections.len() as u64),
    (counter("rpc.server.connections_accepted", "Connections that were set up"), |it| it.accepted),
    (counter("rpc.server.connections_refused", "Connections refused because of a limit"), |it| {
        it.refused
    }),
    (counter("rpc.server.connections_denied", "Peers that may not connect"), |it| it.denied),
    (counter("rpc.server.connections_plain", "Connections without optional TLS"), |it| {
        it.accepted_plain
    }),
    (counter("rpc.server.calls_denied", "Calls that the rules refused"), |it| it.calls_denied),
    (counter("rpc.server.set_ups_failed", "Set-ups that failed"), |it| it.set_ups_failed),
    (gauge("rpc.server.set_ups", "Connections that are being set up"), |it| it.set_ups),
    (gauge("rpc.server.draining", "1 while the server shuts down"), |it| it.is_draining.into()),
    (gauge("rpc.server.overload.limit", "The adaptive limit of calls in flight"), |it| {
        it.overload.map_or(0, |it| it.limit.into())
    }),
    (gauge("rpc.server.overload.in_flight", "Calls that count towards the limit"), |it| {
        it.overload.map_or(0, |it| it.in_flight.into())
    }),
    (counter("rpc.server.overload.shed", "Calls refused because of the limit"), |it| {
        it.overload.map_or(0, |it| it.shed)
    }),
    (gauge("rpc.server.memory_used_bytes", "Memory of large messages"), |it| it.memory_used_bytes),
    (gauge("rpc.server.memory_limit_bytes", "The memory budget"), |it| it.memory_limit_bytes),
    (gauge("rpc.server.cq_entries", "Entries of completion queues"), |it| it.cq_entries),
    (gauge("rpc.server.unflushed", "Queue pairs not flushed in time"), |it| it.unflushed),
];

static CHANNEL: [Whole<ChannelStats>; 15] = [
    (counter("rpc.client.converted", "Messages of servers whose types differ"), |it| {
        messages(&it.converted)
    }),
    (gauge("rpc.client.converted_types", "Types of servers that differ, of late"), |it| {
        recent(&it.converted)
    }),
    (gauge("rpc.client.connections", "Connections that are up"), |it| it.connections.len() as u64),
    (counter("rpc.client.connected", "Connections that were made"), |it| it.connected),
    (counter("rpc.client.connect_failures", "Attempts to connect that failed"), |it| {
        it.connect_failures
    }),
    (gauge("rpc.client.waiting_calls", "Calls waiting for a connection"), |it| it.waiting_calls),
    (counter("rpc.client.retries_throttled", "Calls not retried as too many fail"), |it| {
        it.retries_throttled
    }),
    (gauge("rpc.client.members", "Servers of the channel"), |it| it.members.len() as u64),
    (gauge("rpc.client.members_connected", "Servers with a connection"), |it| {
        it.members.iter().filter(|it| it.is_connected).count() as u64
    }),
    (gauge("rpc.client.members_ejected", "Servers without calls as they fail"), |it| {
        it.members.iter().filter(|it| it.is_ejected).count() as u64
    }),
    (gauge("rpc.client.members_draining", "Servers about to shut down"), |it| {
        it.members.iter().filter(|it| it.is_draining).count() as u64
    }),
    (gauge("rpc.client.resolver.servers", "Servers that the resolver named last"), |it| {
        it.resolver.as_ref().map_or(0, |it| it.servers)
    }),
    (gauge("rpc.client.resolver.age_seconds", "Time since the resolver named servers"), |it| {
        it.resolver.as_ref().and_then(|it| it.age).map_or(0, |age| age.as_secs())
    }),
    (gauge("rpc.client.resolver.failing", "1 while the resolver does not answer"), |it| {
        it.resolver.as_ref().is_some_and(|it| it.error.is_some()).into()
    }),
    (counter("rpc.client.ejections", "Times that a server was ejected"), |it| it.ejections),
];

/// Sums over the open connections. They are gauges, since closed connections no longer count.
static LINKS: [Whole<ConnectionStats>; 10] = [
    (gauge("rpc.link.credits_held", "Messages that may be sent now"), |it| it.credits_held),
    (gauge("rpc.link.credits_owed", "Credits owed to the peers"), |it| it.credits_owed),
    (gauge("rpc.link.starved", "Times that no credit was left"), |it| it.starved_count),
    (gauge("rpc.link.send_queue_full", "Times that the send queue was full"), |it| {
        it.send_queue_full_count
    }),
    (gauge("rpc.link.queued", "Messages waiting to be sent"), |it| it.queued),
    (gauge("rpc.link.arena_chunks", "Chunks of arenas"), |it| it.arena_chunks),
    (gauge("rpc.link.arena_chunks_held", "Chunks that hold messages"), |it| it.arena_chunks_held),
    (gauge("rpc.link.staged_copies", "Frames copied to be sent"), |it| it.staged_copies),
    (gauge("rpc.link.bytes_in", "Bytes of messages that arrived"), |it| it.bytes_in),
    (gauge("rpc.link.bytes_out", "Bytes of messages that were sent"), |it| it.bytes_out),
];

fn messages(converted: &[ConvertedStats]) -> u64 {
    converted.iter().map(|it| it.messages).sum()
}

/// Those of which a message has come of late.
fn recent(converted: &[ConvertedStats]) -> u64 {
    converted.iter().filter(|it| it.idle < OF_LATE).count() as u64
}

/// Exports the numbers of a server.
pub(crate) fn server(stats: &ServerStats, sink: Sink<'_>) {
    methods(&SERVER_METHODS, &stats.methods, sink);
    for (metric, value) in &SERVER {
        sink(metric, &[], Value::Number(value(stats)));
    }
    links(&stats.connections, "server", sink);
}

/// Exports the numbers of a channel.
pub(crate) fn channel(stats: &ChannelStats, sink: Sink<'_>) {
    methods(&CHANNEL_METHODS, &stats.methods, sink);
    if !stats.served.is_empty() {
        methods(&SERVER_METHODS, &stats.served, sink);
    }
    for (metric, value) in &CHANNEL {
        sink(metric, &[], Value::Number(value(stats)));
    }
    links(&stats.connections, "client", sink);
}

fn links(connections: &[ConnectionStats], end: &str, sink: Sink<'_>) {
    for (metric, value) in &LINKS {
        sink(metric, &[("end", end)], Value::Number(connections.iter().map(value).sum()));
    }
}

fn methods(of: &'static OfMethod, methods: &[MethodStats], sink: Sink<'_>) {
    // Methods of the framework's own services, about a dozen per server, are exported only once
    // they have been called.
    let is_shown =
        |method: &&MethodStats| method.started > 0 || !method.name.starts_with(OWN_SERVICES);
    let methods: Vec<&MethodStats> = methods.iter().filter(is_shown).collect();
    let name = |method: &MethodStats| if method.name.is_empty() { "other" } else { method.name };
    let numbers: [(&'static Metric, Number); 4] = [
        (&of.started, |method| method.started),
        (&of.in_flight, MethodStats::in_flight),
        (&of.request_bytes, |method| method.request_bytes),
        (&of.reply_bytes, |method| method.reply_bytes),
    ];
    for (metric, value) in numbers {
        for method in &methods {
            sink(metric, &[("method", name(method))], Value::Number(value(method)));
        }
    }
    for method in &methods {
        for (code, count) in &method.ended {
            let labels = [("method", name(method)), ("code", &*format!("{code:?}"))];
            sink(&of.ended, &labels, Value::Number(*count));
        }
        if method.user_errors > 0 {
            let labels = [("method", name(method)), ("code", "UserError")];
            sink(&of.ended, &labels, Value::Number(method.user_errors));
        }
    }
    for method in methods {
        sink(&of.duration, &[("method", name(method))], Value::Histogram(&method.took));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Each exported name is documented.
    #[test]
    fn the_document_lists_every_name_and_kind() {
        let document = include_str!("../../../docs/metrics.md");
        let rows: Vec<&str> = document.lines().filter(|line| line.starts_with("| `rpc.")).collect();
        let mut all: Vec<Metric> = Vec::new();
        for of in [&SERVER_METHODS, &CHANNEL_METHODS] {
            all.extend([of.started, of.ended, of.in_flight, of.duration]);
            all.extend([of.request_bytes, of.reply_bytes]);
        }
        all.extend(SERVER.iter().map(|(metric, _)| *metric));
        all.extend(CHANNEL.iter().map(|(metric, _)| *metric));
        all.extend(LINKS.iter().map(|(metric, _)| *metric));
        for metric in &all {
            let kind = format!("{:?}", metric.kind).to_lowercase();
            let row = format!("| `{}` | {kind} |", metric.name);
            let found = rows.iter().filter(|line| line.starts_with(&row)).count();
            assert_eq!(found, 1, "{row}");
        }
        let names: HashSet<&str> = all.iter().map(|metric| metric.name).collect();
        assert_eq!((names.len(), rows.len()), (all.len(), all.len()));
    }
}
