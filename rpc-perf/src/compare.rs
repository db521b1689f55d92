//! Compares two runs, as ratios of the new one to the old one.
//!
//! Each row has its better direction; changes of a tenth or more are coloured.

use std::fmt::Write;

use crate::report::{Latency, Report, Run};
use crate::style::{BOLD, GREEN, RED, paint};
use crate::units::{DASH, bytes, giga, per_second, time};

/// Smaller changes count as noise.
const NOTICEABLE: f64 = 1.1;

/// The better direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Better {
    Lower,
    Higher,
}

/// One quantity.
struct Row {
    name: String,
    value: f64,
    better: Better,
    show: fn(f64) -> String,
}

/// The whole comparison.
pub(crate) fn table(old: &Report, new: &Report) -> String {
    let mut out = String::new();
    let title = "\ncompared with the earlier run: above 1 is an increase, green is better";
    let _ = writeln!(out, "{}", paint(BOLD, title));
    for difference in differences(old, new) {
        let _ = writeln!(out, "note: {difference}");
    }
    for run in &new.runs {
        let Some(before) = old.runs.iter().find(|before| before.scheme == run.scheme) else {
            let _ = writeln!(out, "\n{}: not in the earlier run", run.scheme);
            continue;
        };
        let name = format!("{:<32}{:>15}{:>15}{:>12}", run.scheme, "before", "now", "ratio");
        let _ = writeln!(out, "\n{}", paint(BOLD, &name));
        let before = rows(before);
        for now in rows(run) {
            let Some(before) = before.iter().find(|before| before.name == now.name) else {
                continue;
            };
            let _ = writeln!(
                out,
                "{:<32}{:>15}{:>15}{}",
                now.name,
                (now.show)(before.value),
                (now.show)(now.value),
                ratio(now.value / before.value, now.better),
            );
        }
    }
    out
}

/// Differences that make two runs less comparable.
fn differences(old: &Report, new: &Report) -> Vec<String> {
    let mut found = Vec::new();
    let mut differ = |what: &str, old: String, new: String| {
        if old != new {
            found.push(format!("{what} was {old} and is {new}"));
        }
    };
    let (before, now) = (&old.settings, &new.settings);
    differ("the size of calls", bytes(before.call_bytes), bytes(now.call_bytes));
    differ("polling", before.poll.clone(), now.poll.clone());
    differ("the rate of the open loop", text(before.rate), text(now.rate));
    let (before, now) = (&old.machine, &new.machine);
    differ("the system", before.kernel.clone(), now.kernel.clone());
    differ("the number of CPUs", before.cpus.to_string(), now.cpus.to_string());
    let pinned = |pinned: Option<[usize; 2]>| match pinned {
        Some([client, server]) => format!("to CPUs {client} and {server}"),
        None => "nowhere".to_owned(),
    };
    differ("pinning", pinned(before.pinned), pinned(now.pinned));
    let cores = |line: Option<f64>| line.map(|line| rpc_perf::floor::Cores::of(line).to_string());
    if let Some((before, now)) = cores(before.line_ns).zip(cores(now.line_ns)) {
        differ("the pair of CPUs", before, now);
    }
    let built = |optimized| if optimized { "with" } else { "without" };
    let optimized = |optimized: bool| format!("built {} optimization", built(optimized));
    differ("the program", optimized(before.optimized), optimized(now.optimized));
    found
}

fn text(rate: Option<u64>) -> String {
    rate.map_or_else(|| "none".to_owned(), |rate| format!("{rate}/s"))
}

fn ratio(ratio: f64, better: Better) -> String {
    if !ratio.is_finite() {
        return format!("{DASH:>12}");
    }
    let shown = format!("{ratio:>12.2}");
    let higher = ratio >= NOTICEABLE;
    if !higher && ratio > 1.0 / NOTICEABLE {
        return shown;
    }
    paint(if higher == (better == Better::Higher) { GREEN } else { RED }, &shown)
}

/// All comparable quantities of a run.
fn rows(run: &Run) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut add = |name: String, value: Option<f64>, better, show: fn(f64) -> String| {
        if let Some(value) = value {
            rows.push(Row { name, value, better, show });
        }
    };
    let mut latency = |what: &str, latency: &Latency| {
        for (name, value) in [
            ("mean", latency.mean_ns),
            ("p50", latency.p50_ns),
            ("p99", latency.p99_ns),
            ("p99.9", latency.p999_ns),
            ("p99.99", latency.p9999_ns),
        ] {
            add(format!("{what} {name}"), value, Better::Lower, time);
        }
    };
    if let Some(lone) = &run.latency {
        latency("lone call", lone);
    }
    if let Some(open) = &run.open_loop {
        latency("open loop", &open.latency);
    }
    if let Some(beside) = &run.beside {
        latency("beside payloads", &beside.latency);
        add("payloads beside calls, GB/s".into(), Some(beside.payloads_rate), Better::Higher, giga);
    }
    for rate in &run.rates {
        let name = format!("calls/s, {} in flight", rate.in_flight);
        add(name, Some(rate.calls_per_second), Better::Higher, per_second);
        let name = format!("client CPU, {} in flight", rate.in_flight);
        add(name, Some(rate.client_cpu_ns), Better::Lower, time);
        let name = format!("server CPU, {} in flight", rate.in_flight);
        add(name, Some(rate.server_cpu_ns), Better::Lower, time);
    }
    for row in &run.bandwidth {
        for (kind, rate) in [
            ("Bytes up", row.bytes_up),
            ("Bytes down", row.bytes_down),
            ("Bulk up", row.bulk_up),
            ("Bulk down", row.bulk_down),
        ] {
            let name = format!("GB/s, {kind}, {}", bytes(row.size));
            add(name, Some(rate), Better::Higher, giga);
        }
    }
    if let Some(idle) = &run.idle {
        let kib = |value: f64| format!("{:.1} KiB", value / 1024.0);
        add("idle connection, both ends".into(), idle.both_bytes, Better::Lower, kib);
    }
    if let Some(connect) = &run.connect {
        let value = Some(connect.connections_per_second);
        add("connections/s".into(), value, Better::Higher, per_second);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::full;

    fn line<'a>(text: &'a str, name: &str) -> &'a str {
        text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"))
    }

    #[test]
    fn ratios_say_which_way_is_better() {
        let old = full();
        let mut new = full();
        let run = &mut new.runs[0];
        run.rates[0].calls_per_second *= 2.0;
        run.rates[0].client_cpu_ns *= 2.0;
        run.rates[0].server_cpu_ns *= 1.05;
        let text = table(&old, &new);
        let ratio = |name, style, ratio| {
            let line = line(&text, name);
            assert!(line.ends_with(&paint(style, &format!("{ratio:>12}"))), "{line}");
        };
        ratio("calls/s, 256 in flight", GREEN, "2.00");
        ratio("client CPU, 256 in flight", RED, "2.00");
        assert!(line(&text, "server CPU, 256 in flight").ends_with("        1.05"), "{text}");
        assert!(!text.contains("note:"), "{text}");
    }

    #[test]
    fn what_makes_runs_differ_is_noted() {
        let (mut old, new) = (full(), full());
        old.settings.poll = "busy".to_owned();
        old.machine.line_ns = Some(30.0);
        old.runs[0].scheme = "tcp".to_owned();
        let text = table(&old, &new);
        assert!(text.contains("note: polling was busy and is adaptive"), "{text}");
        assert!(text.contains("was two threads of one core and is two cores"), "{text}");
        assert!(text.contains("shm: not in the earlier run"), "{text}");
    }

    #[test]
    fn nothing_is_wider_than_80_columns() {
        let text = anstream::adapter::strip_str(&table(&full(), &full())).to_string();
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}
