//! The numbers in Prometheus's text format, version 0.0.4.

use std::fmt::Write;

use super::export::{self, Kind, Labels, Metric, Value};
use super::{ChannelStats, Histogram, ServerStats};

impl ServerStats {
    /// The numbers in Prometheus's text format, for an HTTP answer of the type
    /// `text/plain; version=0.0.4`. The names are in `docs/metrics.md`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let server = rpc_core::Server::builder().bind("mem://prometheus").await?;
    /// assert!(server.stats().prometheus_text().contains("\nrpc_server_connections 0\n"));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn prometheus_text(&self) -> String {
        let mut text = Text::default();
        export::server(self, &mut |metric, labels, value| text.add(metric, labels, value));
        text.text
    }
}

impl ChannelStats {
    /// The same of a channel: [`ServerStats::prometheus_text`].
    #[must_use]
    pub fn prometheus_text(&self) -> String {
        let mut text = Text::default();
        export::channel(self, &mut |metric, labels, value| text.add(metric, labels, value));
        text.text
    }
}

#[derive(Default)]
struct Text {
    text: String,
    last: Option<&'static Metric>,
}

impl Text {
    fn add(&mut self, metric: &'static Metric, labels: Labels<'_>, value: Value<'_>) {
        let (kind, suffix) = match metric.kind {
            Kind::Counter => ("counter", "_total"),
            Kind::Gauge => ("gauge", ""),
            Kind::Histogram => ("histogram", "_seconds"),
        };
        let name = metric.name.replace('.', "_") + suffix;
        if self.last.replace(metric) != Some(metric) {
            let help = metric.help;
            let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        }
        match value {
            Value::Number(number) => self.line(&name, labels, None, &number.to_string()),
            Value::Histogram(histogram) => self.histogram(&name, labels, histogram),
        }
    }

    fn histogram(&mut self, name: &str, labels: Labels<'_>, histogram: &Histogram) {
        // The same boundaries whatever was counted: Prometheus takes rates of each and interpolates between
        // neighbours, so one that first appears with the first time in it would be misread.
        for (end, seen) in histogram.up_to_octaves() {
            let end = end.as_secs_f64().to_string();
            self.line(&format!("{name}_bucket"), labels, Some(&end), &seen.to_string());
        }
        let seen = histogram.count();
        self.line(&format!("{name}_bucket"), labels, Some("+Inf"), &seen.to_string());
        let sum = histogram.sum().as_secs_f64().to_string();
        self.line(&format!("{name}_sum"), labels, None, &sum);
        self.line(&format!("{name}_count"), labels, None, &seen.to_string());
    }

    fn line(&mut self, name: &str, labels: Labels<'_>, below: Option<&str>, value: &str) {
        self.text.push_str(name);
        let mut between = '{';
        for (name, value) in labels.iter().copied().chain(below.map(|below| ("le", below))) {
            let _ = write!(self.text, "{between}{name}=\"");
            for letter in value.chars() {
                match letter {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    other => self.text.push(other),
                }
            }
            self.text.push('"');
            between = ',';
        }
        if between == ',' {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
