//! Metrics in Prometheus' text format, version 0.0.4, and as OpenMetrics.
//!
//! Owns the merging of several sources into one text: each name is described once, followed by all
//! its values.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::time::Duration;

use super::export::{self, Kind, Labels, Metric, Value};
use super::{ChannelStats, ServerStats};

/// The labels that metrics themselves use.
const OWN_LABELS: [&str; 4] = ["method", "code", "end", "le"];

impl ServerStats {
    /// The numbers in Prometheus' text format, for an HTTP response of type
    /// `text/plain; version=0.0.4`. The names are in `docs/metrics.md`. Do not concatenate the
    /// texts of two sources: [`PrometheusText`] merges several.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let server = rpc_core::Server::builder().bind("mem://prometheus").await?;
    /// assert!(server.stats().prometheus_text().contains("\nrpc_server_connections 0\n"));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn prometheus_text(&self) -> String {
        PrometheusText::new().server(self, &[]).to_string()
    }
}

impl ChannelStats {
    /// The numbers of a channel, as in [`ServerStats::prometheus_text`].
    #[must_use]
    pub fn prometheus_text(&self) -> String {
        PrometheusText::new().channel(self, &[]).to_string()
    }
}

/// The numbers of several servers and channels as one text for Prometheus. Its `Display` is the
/// text format of [`PrometheusText::CONTENT_TYPE`]; [`PrometheusText::open_metrics`] is the other
/// one.
///
/// Each source has labels that distinguish it from the others. Values with the same name and labels
/// are added up, so the text is valid whatever the labels are. Methods of the framework's own
/// services, `rpc.*`, are omitted until they are called.
///
/// ```
/// use rpc_core::stats::PrometheusText;
/// use rpc_core::Channel;
/// use rpc_core::stats::StatsHandle;
///
/// fn metrics(server: &StatsHandle, catalog: &Channel, payments: &Channel) -> String {
///     PrometheusText::new()
///         .server(&server.stats(), &[])
///         .channel(&catalog.stats(), &[("to", "catalog")])
///         .channel(&payments.stats(), &[("to", "payments")])
///         .to_string()
/// }
/// ```
#[derive(Debug, Clone, Default)]
pub struct PrometheusText {
    families: Vec<Family>,
}

/// The values of one name.
#[derive(Debug, Clone)]
struct Family {
    metric: &'static Metric,
    /// The values, each with its labels as written between the braces.
    values: Vec<(String, Sum)>,
    /// The position of the value with given labels.
    places: HashMap<String, usize>,
}

/// A value, or the sum of several.
#[derive(Debug, Clone)]
enum Sum {
    Number(u64),
    Times {
        /// The boundaries never change: Prometheus computes the rate of each and interpolates
        /// between neighbours, so a boundary that appeared with its first value would be misread.
        up_to: Vec<(Duration, u64)>,
        count: u64,
        sum: Duration,
    },
}

impl PrometheusText {
    /// The `Content-Type` of the output of `Display`.
    pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4";
    /// The `Content-Type` of the output of [`PrometheusText::open_metrics`].
    pub const OPEN_METRICS_CONTENT_TYPE: &str =
        "application/openmetrics-text; version=1.0.0; charset=utf-8";

    /// Creates an empty text.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the numbers of a server, each with these labels. In label names, every character other
    /// than ASCII letters, digits and `_` becomes `_`, and names that metrics use themselves
    /// (`method`, `code`, `end`, `le`) are prefixed with `exported_`.
    #[must_use]
    pub fn server(mut self, stats: &ServerStats, labels: &[(&str, &str)]) -> Self {
        let given = given(labels);
        export::server(stats, &mut |metric, own, value| self.add(metric, &given, own, value));
        self
    }

    /// Adds the numbers of a channel, each with these labels: as [`PrometheusText::server`].
    #[must_use]
    pub fn channel(mut self, stats: &ChannelStats, labels: &[(&str, &str)]) -> Self {
        let given = given(labels);
        export::channel(stats, &mut |metric, own, value| self.add(metric, &given, own, value));
        self
    }

    fn add(&mut self, metric: &'static Metric, given: &str, own: Labels<'_>, value: Value<'_>) {
        let mut labels = given.to_owned();
        own.iter().for_each(|(name, value)| label(&mut labels, name, value));
        // The values of a metric are consecutive.
        let known = self.families.iter().rposition(|family| family.metric == metric);
        let family = known.unwrap_or(self.families.len());
        if known.is_none() {
            self.families.push(Family { metric, values: Vec::new(), places: HashMap::new() });
        }
        let Family { values, places, .. } = &mut self.families[family];
        match places.get(&labels) {
            Some(place) => values[*place].1.add(value),
            None => {
                places.insert(labels.clone(), values.len());
                values.push((labels, Sum::of(value)));
            }
        }
    }

    /// The text in the format of OpenMetrics 1.0, for an HTTP response of type
    /// [`PrometheusText::OPEN_METRICS_CONTENT_TYPE`]: for clients that request it in `Accept`.
    #[must_use]
    pub fn open_metrics(&self) -> String {
        let mut text = String::new();
        // Writing to a `String` cannot fail.
        let _ = self.write(&mut text, true);
        text + "# EOF\n"
    }

    fn write(&self, to: &mut impl Write, open_metrics: bool) -> fmt::Result {
        for Family { metric, values, .. } in &self.families {
            let (kind, unit, suffix) = match metric.kind {
                Kind::Counter => ("counter", "", "_total"),
                Kind::Gauge => ("gauge", "", ""),
                Kind::Histogram => ("histogram", "_seconds", ""),
            };
            let base = metric.name.replace('.', "_") + unit;
            let name = format!("{base}{suffix}");
            // In OpenMetrics the suffix belongs to the value, in Prometheus' format to the name.
            let family = if open_metrics { &base } else { &name };
            write!(to, "# HELP {family} {}\n# TYPE {family} {kind}\n", metric.help)?;
            for (labels, value) in values {
                value.write(to, &name, labels)?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for PrometheusText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, false)
    }
}

impl Sum {
    fn of(value: Value<'_>) -> Self {
        match value {
            Value::Number(number) => Self::Number(number),
            Value::Histogram(histogram) => Self::Times {
                up_to: histogram.up_to_octaves().collect(),
                count: histogram.count(),
                sum: histogram.sum(),
            },
        }
    }

    fn add(&mut self, value: Value<'_>) {
        match (self, Self::of(value)) {
            (Self::Number(all), Self::Number(more)) => *all = all.saturating_add(more),
            (
                Self::Times { up_to: all_up_to, count: all, sum: all_of_it },
                Self::Times { up_to, count, sum },
            ) => {
                for ((_, all), (_, more)) in all_up_to.iter_mut().zip(up_to) {
                    *all = all.saturating_add(more);
                }
                *all = all.saturating_add(count);
                *all_of_it = all_of_it.saturating_add(sum);
            }
            _ => debug_assert!(false, "a name has one kind"),
        }
    }

    fn write(&self, to: &mut impl Write, name: &str, labels: &str) -> fmt::Result {
        match self {
            Self::Number(number) => line(to, name, labels, number),
            Self::Times { up_to, count, sum } => {
                let bucket = format!("{name}_bucket");
                let mut below = |end: &str, seen| {
                    let mut labels = labels.to_owned();
                    label(&mut labels, "le", end);
                    line(to, &bucket, &labels, seen)
                };
                for (end, seen) in up_to {
                    below(&end.as_secs_f64().to_string(), seen)?;
                }
                below("+Inf", count)?;
                line(to, &format!("{name}_sum"), labels, &sum.as_secs_f64())?;
                line(to, &format!("{name}_count"), labels, count)
            }
        }
    }
}

fn line(to: &mut impl Write, name: &str, labels: &str, value: &impl fmt::Display) -> fmt::Result {
    match labels {
        "" => writeln!(to, "{name} {value}"),
        _ => writeln!(to, "{name}{{{labels}}} {value}"),
    }
}

/// The labels given to a source. For a repeated name, the last one counts.
fn given(labels: &[(&str, &str)]) -> String {
    let mut named: Vec<(String, &str)> = Vec::new();
    for (name, value) in labels {
        let name = label_name(name);
        named.retain(|(other, _)| *other != name);
        named.push((name, value));
    }
    let mut text = String::new();
    named.iter().for_each(|(name, value)| label(&mut text, name, value));
    text
}

/// A valid label name.
fn label_name(name: &str) -> String {
    let is_good = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let name: String =
        name.chars().map(|letter| if is_good(letter) { letter } else { '_' }).collect();
    // Names that begin with two underscores are reserved by Prometheus.
    let starts_well = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    if OWN_LABELS.contains(&&*name) || !starts_well || name.starts_with("__") {
        return format!("exported_{name}");
    }
    name
}

/// Appends a label.
fn label(labels: &mut String, name: &str, value: &str) {
    let between = if labels.is_empty() { "" } else { "," };
    let _ = write!(labels, "{between}{name}=\"");
    for letter in value.chars() {
        match letter {
            '\\' => labels.push_str("\\\\"),
            '"' => labels.push_str("\\\""),
            '\n' => labels.push_str("\\n"),
            other => labels.push(other),
        }
    }
    labels.push('"');
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::histogram::Recorder;
    use super::super::{ConnectionStats, MethodStats};
    use super::*;
    use crate::status::Code;

    #[test]
    fn histograms_have_the_same_boundaries_whatever_was_counted() {
        let one = Recorder::new();
        one.record(Duration::from_nanos(1000), 3);
        let full = Recorder::new();
        for bits in 0..64 {
            for quarter in 4..8 {
                full.record(Duration::from_nanos((1 << bits) / 4 * quarter), 1);
            }
        }
        let boundaries = |took: &Recorder| {
            let method = MethodStats { name: "A.f", took: took.read(), ..MethodStats::default() };
            let stats = ServerStats { methods: vec![method], ..ServerStats::default() };
            let text = stats.prometheus_text();
            let lines =
                text.lines().filter_map(|line| line.split_once(",le=\"")?.1.split_once("\"} "));
            let own = |(end, count): (&str, &str)| (end.to_owned(), count.parse::<u64>().unwrap());
            lines.map(own).unzip::<_, _, Vec<_>, Vec<_>>()
        };
        let (empty, one, full) =
            (boundaries(&Recorder::new()), boundaries(&one), boundaries(&full));
        assert_eq!(empty.0, one.0);
        assert_eq!(empty.0, full.0);
        assert_eq!(empty.0.last().unwrap(), "+Inf");
        assert!(empty.1.iter().all(|count| *count == 0), "{empty:?}");
        let at = one.0.iter().position(|end| end == "0.000001024").expect("that of the times");
        assert_eq!(one.0[at - 1], "0.000000512");
        assert_eq!((one.1[at - 1], one.1[at], *one.1.last().unwrap()), (0, 3, 3));
        assert!(full.1.is_sorted_by(|a, b| a < b), "cumulative: {full:?}");
        assert_eq!(*full.1.last().unwrap(), 4 * 64);
    }

    /// One value per source, with its own labels.
    fn sources() -> PrometheusText {
        let took = Recorder::new();
        took.record(Duration::from_nanos(1000), 3);
        let method = |name, started| MethodStats {
            name,
            started,
            ended: [(Code::Ok, started)].into(),
            took: took.read(),
            ..MethodStats::default()
        };
        let unused = MethodStats { name: "rpc.Health.check", ..MethodStats::default() };
        let server = ServerStats {
            methods: vec![method("Shop.buy", 2), method("rpc.Stats.all", 1), unused],
            ..ServerStats::default()
        };
        let serves =
            ChannelStats { served: vec![method("Shop.buy", 3)], ..ChannelStats::default() };
        let channel = ChannelStats {
            methods: vec![method("Stock.take", 5)],
            connections: vec![ConnectionStats { credits_held: 4, ..ConnectionStats::default() }],
            ..ChannelStats::default()
        };
        PrometheusText::new()
            .server(&server, &[])
            .channel(&serves, &[])
            .channel(&channel, &[("to", "north")])
            .channel(&channel, &[("to", "south"), ("to", "so\"uth"), ("le", "x"), ("é-1", "")])
            .channel(&channel, &[("to", "north")])
    }

    #[test]
    fn several_sources_become_one_text() {
        let text = sources().to_string();
        let text = Exposition::parse(&text, false);
        let started = "rpc_server_call_started_total";
        assert_eq!(text.value(started, "method=\"Shop.buy\""), "5", "added up");
        assert_eq!(text.value(started, "method=\"rpc.Stats.all\""), "1");
        assert_eq!(text.find(started, "method=\"rpc.Health.check\""), None, "unused");
        let north = "to=\"north\",method=\"Stock.take\"";
        assert_eq!(text.value("rpc_client_attempt_started_total", north), "10");
        assert_eq!(text.value("rpc_client_attempt_duration_seconds_count", north), "6");
        assert_eq!(text.value("rpc_client_attempt_duration_seconds_sum", north), "0.000006");
        let south = r#"to="so\"uth",exported_le="x",exported___1="",end="client""#;
        assert_eq!(text.value("rpc_link_credits_held", south), "4");
        assert_eq!(text.value("rpc_link_credits_held", "end=\"server\""), "0");
    }

    #[test]
    fn the_open_metrics_text_is_valid() {
        let text = sources().open_metrics();
        assert!(text.contains("# TYPE rpc_server_call_started counter\n"), "{text}");
        let body = text.strip_suffix("# EOF\n").expect("an end");
        let text = Exposition::parse(body, true);
        assert_eq!(text.value("rpc_server_call_started_total", "method=\"Shop.buy\""), "5");
        Exposition::parse(PrometheusText::new().open_metrics().trim_end_matches("# EOF\n"), true);
    }

    /// A strict parser of the text: it panics at a violation.
    struct Exposition<'a> {
        values: Vec<(&'a str, &'a str, &'a str)>,
    }

    impl<'a> Exposition<'a> {
        fn parse(text: &'a str, open_metrics: bool) -> Self {
            let (mut names, mut values) = (HashSet::new(), Vec::new());
            let mut lines = text.lines().peekable();
            while let Some(line) = lines.next() {
                let help = line.strip_prefix("# HELP ").expect("families begin with it");
                let (family, _) = help.split_once(' ').expect("a text");
                let head = lines.next().and_then(|line| line.strip_prefix("# TYPE "));
                let (same, kind) = head.and_then(|head| head.split_once(' ')).expect("a type");
                assert_eq!(same, family);
                let suffixes: &[&str] = match (kind, open_metrics) {
                    ("counter", true) => &["_total"],
                    ("counter", false) => {
                        assert!(family.ends_with("_total"), "{family}");
                        &[""]
                    }
                    ("gauge", _) => &[""],
                    ("histogram", _) => &["_bucket", "_sum", "_count"],
                    _ => panic!("{kind}"),
                };
                // OpenMetrics: the name of a value must not be that of another family either.
                assert!(names.insert(family), "{family} twice");
                for suffix in suffixes.iter().filter(|suffix| !suffix.is_empty()) {
                    assert!(names.insert(format!("{family}{suffix}").leak()), "{family}{suffix}");
                }
                while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
                    let (series, value) = line.rsplit_once(' ').expect("a value");
                    let (name, labels) = match series.split_once('{') {
                        Some((name, labels)) => (name, labels.strip_suffix('}').expect("a brace")),
                        None => (series, ""),
                    };
                    let suffix = name.strip_prefix(family).expect("of its family");
                    assert!(suffixes.contains(&suffix), "{line}");
                    assert!(value.parse::<f64>().is_ok(), "{line}");
                    let has = |(other, others, _): &(&str, &str, &str)| {
                        (*other, *others) == (name, labels)
                    };
                    assert!(!values.iter().any(has), "{line} twice");
                    check_labels(labels);
                    values.push((name, labels, value));
                }
            }
            Self { values }
        }

        fn find(&self, name: &str, labels: &str) -> Option<&'a str> {
            let mut values = self.values.iter();
            values.find(|it| (it.0, it.1) == (name, labels)).map(|(_, _, value)| *value)
        }

        fn value(&self, name: &str, labels: &str) -> &'a str {
            let all = self.values.iter().filter(|it| it.0 == name).collect::<Vec<_>>();
            self.find(name, labels).unwrap_or_else(|| panic!("no {labels} of {all:#?}"))
        }
    }

    fn check_labels(mut labels: &str) {
        let mut names = HashSet::new();
        while !labels.is_empty() {
            let (name, rest) = labels.split_once("=\"").expect("a value");
            let is_good = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
            assert!(name.chars().all(is_good) && !name.starts_with("__"), "{name}");
            assert!(!name.starts_with(|first: char| first.is_ascii_digit()), "{name}");
            assert!(names.insert(name), "{name} twice");
            let mut letters = rest.char_indices();
            let end = loop {
                match letters.next().expect("a closing quote") {
                    (_, '\\') => {
                        let (_, next) = letters.next().expect("what is escaped");
                        assert!(matches!(next, '\\' | '"' | 'n'));
                    }
                    (at, '"') => break at,
                    _ => {}
                }
            };
            labels = &rest[end + 1..];
            if let Some(more) = labels.strip_prefix(',') {
                assert!(!more.is_empty());
                labels = more;
            }
        }
    }

    #[test]
    fn the_text_is_as_prometheus_reads_it() {
        let took = Recorder::new();
        took.record(Duration::from_nanos(1000), 3);
        took.record(Duration::MAX, 1);
        let method = MethodStats {
            name: "A\"\\.f",
            started: 9,
            ended: [(Code::Ok, 5), (Code::NotFound, 1)].into(),
            user_errors: 2,
            took: took.read(),
            ..MethodStats::default()
        };
        let idle = MethodStats { name: "B.g", ..MethodStats::default() };
        let link = |credits_held| ConnectionStats { credits_held, ..ConnectionStats::default() };
        let stats = ServerStats {
            methods: vec![method, idle],
            connections: vec![link(3), link(4)],
            ..ServerStats::default()
        };
        let text = stats.prometheus_text();
        for expected in [
            "# HELP rpc_server_call_started_total Calls that arrived\n# TYPE rpc_server_call_started_total counter\n",
            "rpc_server_call_started_total{method=\"A\\\"\\\\.f\"} 9\nrpc_server_call_started_total{method=\"B.g\"} 0\n",
            "rpc_server_call_ended_total{method=\"A\\\"\\\\.f\",code=\"NotFound\"} 1\n",
            "rpc_server_call_ended_total{method=\"A\\\"\\\\.f\",code=\"UserError\"} 2\n",
            "rpc_server_call_in_flight{method=\"A\\\"\\\\.f\"} 1\n",
            "rpc_server_call_duration_seconds_bucket{method=\"A\\\"\\\\.f\",le=\"0.000001024\"} 3\n",
            "rpc_server_call_duration_seconds_bucket{method=\"A\\\"\\\\.f\",le=\"+Inf\"} 4\n",
            "rpc_server_call_duration_seconds_count{method=\"A\\\"\\\\.f\"} 4\n",
            "\nrpc_server_connections 2\n",
            "rpc_link_credits_held{end=\"server\"} 7\n",
        ] {
            assert!(text.contains(expected), "{expected} is not in:\n{text}");
        }
        let heads = text.lines().filter(|line| line.starts_with("# TYPE"));
        let mut names: Vec<&str> = heads.map(|line| line.split(' ').nth(2).unwrap()).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "a head twice");
    }
}
