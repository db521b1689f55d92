//! A run as JSON: one schema with a version. The README says what each field means.
//!
//! Invariants:
//! 1. Values that were not measured are absent or null, never 0.
//! 2. A percentile with too few calls is null.

use std::path::Path;

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Version of the schema. An added field does not change it; a removed one, or one with a new
/// meaning, does.
pub(crate) const VERSION: u32 = 1;

/// Minimum number of calls slower than a percentile for it to be meaningful.
const CALLS_BEYOND: f64 = 10.0;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) version: u32,
    pub(crate) program: String,
    pub(crate) unix_seconds: u64,
    pub(crate) machine: Machine,
    pub(crate) settings: Settings,
    pub(crate) runs: Vec<Run>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) kernel: String,
    pub(crate) cpus: usize,
    /// CPU of the client and of the server, if both were pinned.
    pub(crate) pinned: Option<[usize; 2]>,
    /// Round trip of a cache line.
    pub(crate) line_ns: Option<f64>,
    /// Round trip of an 80-byte message through shared memory.
    pub(crate) message_ns: Option<f64>,
    /// Whether this program was built with optimizations.
    pub(crate) optimized: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// Duration of one measurement.
    pub(crate) seconds: f64,
    /// Size of a small call, each way.
    pub(crate) call_bytes: u64,
    pub(crate) poll: String,
    /// Calls per second of the open loop.
    pub(crate) rate: Option<u64>,
}

/// One transport.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) scheme: String,
    pub(crate) path: String,
    pub(crate) latency: Option<Latency>,
    pub(crate) open_loop: Option<OpenLoop>,
    pub(crate) rates: Vec<Rate>,
    pub(crate) bandwidth: Vec<Bandwidth>,
    pub(crate) beside: Option<Beside>,
    pub(crate) idle: Option<Idle>,
    pub(crate) connect: Option<Connect>,
}

/// Latencies of calls, ns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Latency {
    /// Number of calls, including those never answered.
    pub(crate) calls: u64,
    pub(crate) mean_ns: Option<f64>,
    pub(crate) p50_ns: Option<f64>,
    pub(crate) p90_ns: Option<f64>,
    pub(crate) p99_ns: Option<f64>,
    pub(crate) p999_ns: Option<f64>,
    pub(crate) p9999_ns: Option<f64>,
    pub(crate) max_ns: Option<f64>,
    /// Pairs of a time, ns, and the share of calls that did not exceed it.
    pub(crate) cdf: Vec<(f64, f64)>,
}

/// Calls at a fixed rate, each timed from when it was due.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct OpenLoop {
    /// The requested rate.
    pub(crate) rate: u64,
    /// The achieved rate.
    pub(crate) calls_per_second: f64,
    /// Calls that were due but never sent, because too many earlier ones had no answer.
    pub(crate) unsent: u64,
    pub(crate) latency: Latency,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Rate {
    pub(crate) in_flight: u32,
    pub(crate) calls_per_second: f64,
    /// CPU time of the client per call.
    pub(crate) client_cpu_ns: f64,
    pub(crate) server_cpu_ns: f64,
}

/// Payloads of one size, bytes per second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Bandwidth {
    pub(crate) size: u64,
    pub(crate) in_flight: u32,
    pub(crate) bytes_up: f64,
    pub(crate) bytes_down: f64,
    pub(crate) bulk_up: f64,
    pub(crate) bulk_down: f64,
    /// The same bytes without the framework: through the kernel's TCP, or copied into shared memory
    /// and out again. `None` if there is no comparison.
    pub(crate) raw: Option<Raw>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawKind {
    /// One side copies into shared memory, the other one out of it.
    Memory,
    /// A TCP stream over the loopback device.
    Tcp,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Raw {
    pub(crate) kind: RawKind,
    pub(crate) rate: f64,
    /// Only copied in, and read by the other side.
    pub(crate) one_copy: Option<f64>,
}

/// Small calls on a connection that also carries large payloads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Beside {
    pub(crate) payload_bytes: u64,
    pub(crate) in_flight: u32,
    pub(crate) latency: Latency,
    /// Rate of those payloads, bytes per second.
    pub(crate) payloads_rate: f64,
}

/// Memory of one idle connection, bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Idle {
    pub(crate) connections: u32,
    pub(crate) client_bytes: Option<f64>,
    pub(crate) server_bytes: Option<f64>,
    pub(crate) both_bytes: Option<f64>,
}

/// Consecutive connections, each with one call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Connect {
    pub(crate) connections_per_second: f64,
    /// From the start of connecting to the first reply.
    pub(crate) latency: Latency,
}

impl Latency {
    /// Summarizes a histogram of nanoseconds, with a number of calls that took longer than any in
    /// it.
    #[allow(clippy::cast_precision_loss, reason = "calls of a run are far below 2^52")]
    pub(crate) fn of(histogram: &Histogram<u64>, unanswered: u64) -> Self {
        let answered = histogram.len();
        let calls = answered + unanswered;
        let at = |quantile: f64| {
            let share = quantile * calls as f64 / answered as f64;
            let enough = calls as f64 * (1.0 - quantile) >= CALLS_BEYOND - 1e-6;
            (enough && share <= 1.0).then(|| rpc_perf::quantile(histogram, share))
        };
        let whole = answered > 0 && unanswered == 0;
        let mut cdf: Vec<(f64, f64)> = Vec::new();
        for step in histogram.iter_quantiles(8) {
            let share = step.quantile_iterated_to() * answered as f64 / calls as f64;
            let time = step.value_iterated_to() as f64;
            match cdf.last_mut() {
                Some(last) if last.0 == time => last.1 = share,
                _ => cdf.push((time, share)),
            }
        }
        Self {
            calls,
            mean_ns: whole.then(|| histogram.mean()),
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            p9999_ns: at(0.9999),
            max_ns: whole.then(|| histogram.max() as f64),
            cdf,
        }
    }
}

impl Report {
    /// Reads a report from a file.
    ///
    /// # Errors
    /// There is none, or none that this version can read.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let name = path.display();
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
        Self::parse(&text).with_context(|| format!("cannot use {name}"))
    }

    pub(crate) fn parse(text: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }

        const REMEDY: &str =
            "it is not a report of rpc-perf; `rpc-perf all --json FILE` writes one";
        let Versioned { version } = serde_json::from_str(text).context(REMEDY)?;
        if version != VERSION {
            bail!(
                "its schema has version {version}, this program reads version {VERSION}; measure \
                 again, or use the rpc-perf that wrote it"
            );
        }
        serde_json::from_str(text).context(REMEDY)
    }

    pub(crate) fn to_json(&self) -> Result<String> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        Ok(text)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn latency() -> Latency {
        let mut histogram = rpc_perf::histogram();
        for ns in 1_000..21_000 {
            histogram.record(ns).unwrap();
        }
        Latency::of(&histogram, 0)
    }

    /// A complete report, with the longest texts.
    pub(crate) fn full() -> Report {
        let size = |size| Bandwidth {
            size,
            in_flight: 4,
            // Not every JSON parser preserves its last digit.
            bytes_up: 18_884_900.378_725_506,
            bytes_down: 1.25e9,
            bulk_up: 20.5e9,
            bulk_down: 123.4e9,
            raw: Some(Raw { kind: RawKind::Memory, rate: 19.4e9, one_copy: Some(25e9) }),
        };
        Report {
            version: VERSION,
            program: "rpc-perf 0.1.0".to_owned(),
            unix_seconds: 1_700_000_000,
            machine: Machine {
                kernel: "Linux 6.18.0".to_owned(),
                cpus: 2,
                pinned: Some([0, 1]),
                line_ns: Some(110.0),
                message_ns: Some(345.0),
                optimized: false,
            },
            settings: Settings {
                seconds: 1.0,
                call_bytes: 64,
                poll: "adaptive".to_owned(),
                rate: Some(50_000),
            },
            runs: vec![Run {
                scheme: "shm".to_owned(),
                path: "shm://rpc-perf-1 on soft-shm (shm:// was asked for)".to_owned(),
                latency: Some(latency()),
                open_loop: Some(OpenLoop {
                    rate: 50_000,
                    calls_per_second: 45_000.0,
                    unsent: 7,
                    latency: latency(),
                }),
                rates: vec![Rate {
                    in_flight: 256,
                    calls_per_second: 12_345_678.0,
                    client_cpu_ns: 375.5,
                    server_cpu_ns: 99_999.0,
                }],
                bandwidth: vec![size(64), size(4096), size(64 << 20)],
                beside: Some(Beside {
                    payload_bytes: 1 << 20,
                    in_flight: 4,
                    latency: latency(),
                    payloads_rate: 9.5e9,
                }),
                idle: Some(Idle {
                    connections: 64,
                    client_bytes: Some(16_150.0),
                    server_bytes: None,
                    both_bytes: None,
                }),
                connect: Some(Connect { connections_per_second: 5_200.0, latency: latency() }),
            }],
        }
    }

    #[test]
    fn a_report_survives_json() {
        let report = full();
        assert_eq!(Report::parse(&report.to_json().unwrap()).unwrap(), report);
    }

    #[test]
    fn fields_of_later_programs_are_passed_over() {
        let text = full().to_json().unwrap().replacen('{', "{\"colour\": \"red\",", 1);
        assert_eq!(Report::parse(&text).unwrap(), full());
    }

    #[test]
    fn a_bad_report_is_refused_with_advice() {
        for (text, part) in [
            ("", "--json FILE"),
            ("{}", "--json FILE"),
            ("{\"version\": 1}", "--json FILE"),
            ("{\"version\": 99}", "its schema has version 99, this program reads version 1"),
        ] {
            let error = format!("{:#}", Report::parse(text).unwrap_err());
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    /// Percentiles of the numbers from 1 to `count`, with a number of unanswered calls.
    fn percentiles(count: u64, unanswered: u64) -> [Option<f64>; 6] {
        let mut histogram = rpc_perf::histogram();
        for ns in 1..=count {
            histogram.record(ns).unwrap();
        }
        let Latency { p50_ns, p90_ns, p99_ns, p999_ns, p9999_ns, max_ns, .. } =
            Latency::of(&histogram, unanswered);
        [p50_ns, p90_ns, p99_ns, p999_ns, p9999_ns, max_ns]
    }

    #[test]
    fn percentiles_need_calls_beyond_them() {
        assert_eq!(percentiles(0, 0), [None; 6]);
        assert_eq!(percentiles(1, 0), [None, None, None, None, None, Some(1.0)]);
        assert_eq!(percentiles(20, 0), [Some(10.0), None, None, None, None, Some(20.0)]);
        let of_1000 = [Some(500.0), Some(900.0), Some(990.0), None, None, Some(1000.0)];
        assert_eq!(percentiles(1000, 0), of_1000);
        assert!(percentiles(99_999, 0)[4].is_none() && percentiles(100_000, 0)[4].is_some());
    }

    #[test]
    fn unanswered_calls_are_the_slowest() {
        // The median of 1000 calls, 750 of them answered, is at 2/3 of the answered ones.
        let [p50, p90, p99, .., max] = percentiles(750, 250);
        assert_eq!([p50, p90, p99, max], [Some(500.0), None, None, None]);
        assert_eq!(percentiles(0, 1000), [None; 6]);
    }

    #[test]
    fn the_distribution_rises_to_one() {
        let cdf = latency().cdf;
        assert!(cdf.len() > 20, "{}", cdf.len());
        assert!(cdf.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1));
        assert_eq!(cdf.last().unwrap().1, 1.0);
    }
}
