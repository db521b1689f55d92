//! Tables for people: a heading, and one block of tables per transport, 80 columns wide.

use std::fmt::Write;

use rpc_perf::floor::Cores;

use crate::report::{Bandwidth, Latency, RawKind, Report, Run, Settings};
use crate::style::{BOLD, DIM, paint};
use crate::units::{DASH, HumanCount, bytes, giga, per_second, time, time_or_dash};

const WIDTH: usize = 80;

/// The machine and the settings.
pub(crate) fn heading(report: &Report) -> String {
    let (machine, settings) = (&report.machine, &report.settings);
    let mut out = String::new();
    let cpus =
        if machine.cpus == 1 { "1 CPU".to_owned() } else { format!("{} CPUs", machine.cpus) };
    let pinned = match machine.pinned {
        Some([client, server]) => format!("client on CPU {client}, server on CPU {server}"),
        None => "nothing pinned".to_owned(),
    };
    let title = paint(BOLD, &report.program);
    let _ = writeln!(out, "{title}  {}, {cpus}, {pinned}", machine.kernel);
    let _ = writeln!(
        out,
        "{} polling, calls of {}, {} per measurement",
        settings.poll,
        bytes(settings.call_bytes),
        time(settings.seconds * 1e9),
    );
    if let Some((line, message)) = machine.line_ns.zip(machine.message_ns) {
        let _ = writeln!(
            out,
            "floor: 80-byte message there and back {}, cache line {} ({})",
            time(message),
            time(line),
            Cores::of(line),
        );
    }
    if !machine.optimized {
        let text = "built without optimizations: the numbers are meaningless; use --release";
        let _ = writeln!(out, "{}", paint(BOLD, text));
    }
    out
}

/// All results of one transport.
pub(crate) fn run(run: &Run, settings: &Settings) -> String {
    let mut out = String::new();
    let rule = "-".repeat(WIDTH.saturating_sub(run.scheme.len() + 4));
    let _ = writeln!(out, "\n{}", paint(BOLD, &format!("-- {} {rule}", run.scheme)));
    let _ = writeln!(out, "{}", paint(DIM, &run.path));
    latencies(&mut out, run, settings);
    rates(&mut out, run);
    bandwidths(&mut out, &run.bandwidth);
    connections(&mut out, run);
    out
}

fn head(out: &mut String, text: &str) {
    let _ = writeln!(out, "\n{}", paint(BOLD, text));
}

fn latencies(out: &mut String, run: &Run, settings: &Settings) {
    let mut rows: Vec<(String, &Latency)> = Vec::new();
    if let Some(latency) = &run.latency {
        rows.push(("one at a time".to_owned(), latency));
    }
    if let Some(open) = &run.open_loop {
        rows.push((format!("{} calls/s", per_second(open.rate as f64)), &open.latency));
    }
    if let Some(beside) = &run.beside {
        let payload = bytes(beside.payload_bytes);
        rows.push((format!("beside {} x {payload}", beside.in_flight), &beside.latency));
    }
    if rows.is_empty() {
        return;
    }
    let what = format!("{:<20}", format!("latency, {}", bytes(settings.call_bytes)));
    head(
        out,
        &format!(
            "{what}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
            "p50", "p90", "p99", "p99.9", "p99.99", "max"
        ),
    );
    for (name, latency) in rows {
        let _ = write!(out, "{name:<20}");
        let Latency { p50_ns, p90_ns, p99_ns, p999_ns, p9999_ns, max_ns, .. } = latency;
        for ns in [p50_ns, p90_ns, p99_ns, p999_ns, p9999_ns, max_ns] {
            let _ = write!(out, "{:>10}", time_or_dash(*ns));
        }
        out.push('\n');
    }
    if let Some(open) = &run.open_loop
        && (open.unsent > 0 || open.calls_per_second < 0.98 * open.rate as f64)
    {
        let unsent = match open.unsent {
            0 => String::new(),
            calls => format!(", {} calls were never sent", HumanCount(calls)),
        };
        let answered = per_second(open.calls_per_second);
        let _ = writeln!(out, "this path cannot keep up: {answered} calls/s were answered{unsent}");
    }
    if let Some(beside) = &run.beside {
        let _ = writeln!(out, "payloads at the same time: {} GB/s", giga(beside.payloads_rate));
    }
}

fn rates(out: &mut String, run: &Run) {
    if run.rates.is_empty() {
        return;
    }
    head(
        out,
        &format!(
            "{:<20}{:>12}{:>24}{:>24}",
            "in flight", "calls/s", "CPU per call: client", "server"
        ),
    );
    for rate in &run.rates {
        let _ = writeln!(
            out,
            "{:<20}{:>12}{:>24}{:>24}",
            rate.in_flight,
            per_second(rate.calls_per_second),
            time(rate.client_cpu_ns),
            time(rate.server_cpu_ns),
        );
    }
}

fn bandwidths(out: &mut String, rows: &[Bandwidth]) {
    let Some(first) = rows.first() else { return };
    let (raw, one_copy) = match first.raw.map(|raw| raw.kind) {
        Some(RawKind::Memory) => ("2 copies", "1 copy"),
        Some(RawKind::Tcp) => ("raw TCP", ""),
        None => ("", ""),
    };
    let title = format!(
        "{:<20}{:>10}{:>10}{:>10}{:>10}{raw:>10}{one_copy:>10}",
        format!("GB/s, {} in flight", first.in_flight),
        "Bytes up",
        "down",
        "Bulk up",
        "down"
    );
    head(out, title.trim_end());
    for row in rows {
        let _ = write!(out, "{:<20}", bytes(row.size));
        for rate in [row.bytes_up, row.bytes_down, row.bulk_up, row.bulk_down] {
            let _ = write!(out, "{:>10}", giga(rate));
        }
        if let Some(raw) = row.raw {
            let _ = write!(out, "{:>10}", giga(raw.rate));
            let one_copy = raw.one_copy.map(giga).unwrap_or_default();
            let _ = write!(out, "{one_copy:>10}");
        }
        let kept = out.trim_end().len();
        out.truncate(kept);
        out.push('\n');
    }
}

fn connections(out: &mut String, run: &Run) {
    if run.idle.is_none() && run.connect.is_none() {
        return;
    }
    head(out, "connections");
    if let Some(idle) = &run.idle {
        let kib = |bytes: Option<f64>| {
            bytes.map_or_else(|| DASH.to_owned(), |bytes| format!("{:.1} KiB", bytes / 1024.0))
        };
        let _ = writeln!(
            out,
            "{:<20}client {}, server {}, both {} (mean of {})",
            "memory when idle",
            kib(idle.client_bytes),
            kib(idle.server_bytes),
            kib(idle.both_bytes),
            idle.connections,
        );
    }
    if let Some(connect) = &run.connect {
        let _ = writeln!(
            out,
            "{:<20}{} per second, one at a time, until the first reply",
            "new connections",
            per_second(connect.connections_per_second),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::full;

    #[test]
    fn only_the_path_exceeds_80_columns() {
        let report = full();
        let mut text = heading(&report);
        for run in &report.runs {
            text.push_str(&super::run(run, &report.settings));
        }
        for line in anstream::adapter::strip_str(&text).to_string().lines() {
            let width = line.chars().count();
            assert!(width <= WIDTH || line.contains("://"), "{width}: {line}");
            assert_eq!(line, line.trim_end(), "spaces at the end");
        }
    }

    #[test]
    fn what_is_unknown_is_a_dash() {
        let report = full();
        let text =
            anstream::adapter::strip_str(&run(&report.runs[0], &report.settings)).to_string();
        let row = text.lines().find(|line| line.starts_with("one at a time")).unwrap();
        assert_eq!(row.split_whitespace().rev().nth(2), Some("-"), "p99.99: {row}");
        assert!(text.contains("client 15.8 KiB, server -,"), "{text}");
        assert!(
            text.contains("cannot keep up: 45,000 calls/s were answered, 7 calls were never"),
            "{text}"
        );
    }
}
