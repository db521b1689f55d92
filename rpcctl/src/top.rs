//! `top`: the load of a server, refreshed periodically.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::Result;
use rpc_core::reflect::{MethodSnapshot, ServerSnapshot, StatsClient};
use rpc_core::stats::{ConnectionStats, Histogram};

use crate::options::{Common, Output, Top};
use crate::target::Target;
use crate::text::{age, bytes, count, cut, height, json, table, time, width};

/// Methods with clients of other types that are shown.
const MAX_CONVERTED: usize = 5;

/// Moves to the upper left corner, to overwrite the screen.
const HOME: &str = "\u{1b}[H";
/// Clears to the end of the line; clears everything below.
const CLEAR_LINE: &str = "\u{1b}[K";
const CLEAR_BELOW: &str = "\u{1b}[J";
const CLEAR: &str = "\u{1b}[2J";

pub(crate) async fn top(options: &Top, common: &Common) -> Result<()> {
    let target = Target::connect(&options.address, common).await?;
    let stats = StatsClient::new(target.channel.clone());
    let mut out = io::stdout();
    let is_live = common.output == Output::Text && out.is_terminal();
    if is_live {
        write!(out, "{CLEAR}")?;
    }
    let mut before: Option<(Instant, ServerSnapshot)> = None;
    let mut looks = 0;
    loop {
        let call = stats.server(options.connections).timeout(target.timeout);
        let now = call.await.map_err(|error| target.no_reflection(error))?;
        let at = Instant::now();
        match common.output {
            Output::Json => writeln!(out, "{}", json(&now)?)?,
            Output::Text => {
                let earlier = before.as_ref().map(|(then, it)| (at - *then, it));
                let height = if is_live { height() } else { None };
                let text = page(&target.address, &now, earlier, width(), height);
                if is_live {
                    let text = text.replace('\n', &format!("{CLEAR_LINE}\n"));
                    write!(out, "{HOME}{text}{CLEAR_BELOW}")?;
                } else {
                    writeln!(out, "{text}")?;
                }
            }
        }
        out.flush()?;
        looks += 1;
        if options.count.is_some_and(|count| looks >= count) {
            return Ok(());
        }
        before = Some((at, now));
        tokio::time::sleep(options.interval).await;
    }
}

/// Rate per second since the previous refresh.
fn rate(now: u64, before: u64, since: Duration) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let count = now.saturating_sub(before) as f64;
    count / since.as_secs_f64().max(1e-3)
}

/// Failed calls: those with a status other than `Cancelled`. A method's own error is an answer.
fn errors(method: &MethodSnapshot) -> u64 {
    let failed =
        method.ended.iter().filter(|(code, _)| !matches!(code.as_str(), "Ok" | "Cancelled"));
    failed.fold(0, |sum, (_, count)| sum.saturating_add(*count))
}

fn in_flight(method: &MethodSnapshot) -> u64 {
    let ended = method.ended.values().fold(method.user_errors, |sum, it| sum.saturating_add(*it));
    method.started.saturating_sub(ended)
}

fn page(
    address: &str,
    now: &ServerSnapshot,
    earlier: Option<(Duration, &ServerSnapshot)>,
    width: usize,
    height: Option<usize>,
) -> String {
    let state = if now.is_draining { ", draining" } else { "" };
    let mut text = String::new();
    let _ = writeln!(text, "{}", cut(&format!("{address}{state}"), width));
    let plain = match now.accepted_plain {
        0 => String::new(),
        plain => format!(", {plain} without TLS"),
    };
    let summary = format!(
        "connections {} (accepted {}{plain}, refused {}, denied {}, failed {})  calls denied {}  \
         memory {} of {}",
        now.connection_count,
        now.accepted,
        now.refused,
        now.denied,
        now.set_ups_failed,
        now.calls_denied,
        bytes(now.memory_used_bytes),
        bytes(now.memory_limit_bytes),
    );
    // A line that wraps would take two lines of the terminal.
    let summary: String = summary.chars().take(width).collect();
    let _ = writeln!(text, "{summary}\n");
    let mut methods = methods(now, earlier);
    let mut connections =
        if now.connections.is_empty() { Vec::new() } else { connections(now, earlier) };
    let converted = converted(now);
    if let Some(height) = height {
        // The lines above, between and below the tables.
        let (of_methods, of_connections) =
            shares(height.saturating_sub(5 + converted.len()), methods.len(), connections.len());
        shorten(&mut methods, of_methods);
        shorten(&mut connections, of_connections);
    }
    text.push_str(&table(&methods, width));
    if !connections.is_empty() {
        text.push('\n');
        text.push_str(&table(&connections, width));
    }
    if !converted.is_empty() {
        text.push('\n');
        text.push_str(&table(&converted, width));
    }
    text
}

/// The methods with clients whose types differ, those called last first.
fn converted(now: &ServerSnapshot) -> Vec<Vec<String>> {
    let rows = now.converted.iter().take(MAX_CONVERTED).map(|it| {
        let (messages, idle) = (it.messages.to_string(), age(it.idle));
        vec![it.method.clone(), it.own_schema.clone(), it.peer_schema.clone(), messages, idle]
    });
    let mut rows: Vec<_> = rows.collect();
    if !rows.is_empty() {
        let heading = ["OTHER TYPES", "HERE", "CLIENT", "MESSAGES", "IDLE"];
        rows.insert(0, heading.map(str::to_owned).to_vec());
    }
    rows
}

/// The number of lines for each of two tables: the space that one leaves goes to the other.
fn shares(lines: usize, first: usize, second: usize) -> (usize, usize) {
    let half = lines / 2;
    let of_second = second.min(half.max(lines.saturating_sub(first)));
    (first.min(lines - of_second), of_second)
}

/// Keeps the given number of rows, the last of which counts those not shown.
fn shorten(rows: &mut Vec<Vec<String>>, most: usize) {
    let Some(columns) = rows.first().map(Vec::len).filter(|_| rows.len() > most) else { return };
    let shown = most.saturating_sub(1);
    let hidden = rows.len() - shown.max(1);
    rows.truncate(shown);
    // No heading without rows.
    if most > 1 {
        let mut rest = vec![String::new(); columns];
        rest[0] = format!("({hidden} more)");
        rows.push(rest);
    }
}

/// The called methods, busiest first.
fn methods(now: &ServerSnapshot, earlier: Option<(Duration, &ServerSnapshot)>) -> Vec<Vec<String>> {
    let before: HashMap<&str, &MethodSnapshot> = earlier
        .map(|(_, it)| it.methods.iter().map(|method| (method.name.as_str(), method)).collect())
        .unwrap_or_default();
    let mut called: Vec<_> = now.methods.iter().filter(|method| method.started > 0).collect();
    let recent = |method: &MethodSnapshot| {
        let before = before.get(method.name.as_str()).map_or(0, |before| before.started);
        (method.started.saturating_sub(before), method.started)
    };
    called.sort_by_key(|method| std::cmp::Reverse(recent(method)));
    let heading = ["METHOD", "CALLS", "CALLS/s", "ERR/s", "RUNNING", "P50", "P99"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for method in called {
        let then = before.get(method.name.as_str());
        let per_second = |now: u64, before: Option<u64>| match earlier {
            Some((since, _)) => count(rate(now, before.unwrap_or(0), since)),
            None => "-".to_owned(),
        };
        let took = then.map_or_else(|| method.took.clone(), |it| method.took.since(&it.took));
        let quantile = |took: &Histogram, share| match took.quantile(share) {
            Some(it) => time(it),
            None => "-".to_owned(),
        };
        #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
        let started = count(method.started as f64);
        let name = if method.name.is_empty() { "(unknown methods)" } else { &method.name };
        rows.push(vec![
            name.to_owned(),
            started,
            per_second(method.started, then.map(|it| it.started)),
            per_second(errors(method), then.map(|it| errors(it))),
            in_flight(method).to_string(),
            quantile(&took, 0.5),
            quantile(&took, 0.99),
        ]);
    }
    rows
}

fn connections(
    now: &ServerSnapshot,
    earlier: Option<(Duration, &ServerSnapshot)>,
) -> Vec<Vec<String>> {
    let before: HashMap<&str, &ConnectionStats> = earlier
        .map(|(_, it)| it.connections.iter().map(|it| (it.peer.as_str(), it)).collect())
        .unwrap_or_default();
    let heading =
        ["PEER", "DEVICE", "TLS", "AGE", "RUNNING", "MSG/s", "CREDITS", "STARVED", "QUEUED"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for link in &now.connections {
        let messages = |it: &ConnectionStats| it.messages_in.saturating_add(it.messages_out);
        let then = before.get(link.peer.as_str()).filter(|then| then.age <= link.age);
        let rate = match (earlier, then) {
            (Some((since, _)), Some(then)) => count(rate(messages(link), messages(then), since)),
            _ => "-".to_owned(),
        };
        rows.push(vec![
            link.peer.clone(),
            cut(&link.device, 10),
            if link.protection.is_empty() { "-".to_owned() } else { cut(&link.protection, 12) },
            age(link.age),
            link.calls_in.to_string(),
            rate,
            link.credits_held.to_string(),
            link.starved_count.to_string(),
            link.queued.to_string(),
        ]);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(count: usize) -> Vec<Vec<String>> {
        (0..count).map(|at| vec![format!("row {at}"), "x".to_owned()]).collect()
    }

    /// Regression: cancelled calls and methods' own errors counted as failures only here.
    #[test]
    fn cancelled_calls_and_own_errors_are_no_failures() {
        let ended = [("Ok", 100), ("Cancelled", 20), ("NotFound", 3), ("DeadlineExceeded", 4)];
        let mut method = MethodSnapshot::default();
        method.ended = ended.map(|(code, count)| (code.to_owned(), count)).into();
        method.user_errors = 50;
        assert_eq!(errors(&method), 7);
    }

    /// Regression: the top of a table higher than the terminal was invisible.
    #[test]
    fn two_tables_are_never_higher_than_the_terminal() {
        for (lines, first, second, expected) in [
            (20, 5, 5, (5, 5)),
            (20, 50, 5, (15, 5)),
            (20, 5, 50, (5, 15)),
            (20, 50, 50, (10, 10)),
            (19, 50, 50, (10, 9)),
            (20, 50, 0, (20, 0)),
            (1, 50, 50, (1, 0)),
            (0, 50, 50, (0, 0)),
        ] {
            assert_eq!(shares(lines, first, second), expected, "{lines} {first} {second}");
        }
        for most in 0..20 {
            for count in 0..20 {
                let mut shown = rows(count);
                shorten(&mut shown, most);
                assert!(shown.len() <= most.min(count), "{most} {count}: {shown:?}");
                if count <= most {
                    assert_eq!(shown, rows(count));
                } else if most > 1 {
                    let hidden = count - (most - 1);
                    assert_eq!(
                        shown.last().map(|row| &*row[0]),
                        Some(&*format!("({hidden} more)"))
                    );
                    assert_eq!(shown[..most - 1], rows(count)[..most - 1]);
                }
            }
        }
    }
}
