//! Text for terminals: tables, times, and JSON without control characters.

use std::fmt::Write as _;
use std::time::Duration;

use rpc_core::serde::Serialize;
use rpc_core::text::{is_printable, printable};

/// A line of documentation in which Markdown and rustdoc links are replaced by their text.
pub(crate) fn without_links(line: &str) -> String {
    let (mut text, mut rest) = (String::new(), line);
    // Remembers that there is none: otherwise a line of open brackets would take quadratic time.
    let mut has_close = true;
    while let Some((before, link)) = rest.split_once('[') {
        text.push_str(before);
        let Some((shown, after)) = link.split_once(']') else {
            rest = &rest[before.len()..];
            break;
        };
        let target = match after.as_bytes().first() {
            Some(b'(') if has_close => {
                let target = after.split_once(')');
                has_close = target.is_some();
                target
            }
            Some(b'[') => after.split_once(']'),
            _ => None,
        };
        let target = target.map(|(_, after)| after);
        // Other text in brackets may be literal.
        let is_code = shown.starts_with('`') && shown.ends_with('`');
        match target {
            Some(_) => text.push_str(shown),
            None if is_code => text.push_str(shown),
            None => {
                text.push('[');
                text.push_str(shown);
                text.push(']');
            }
        }
        rest = target.unwrap_or(after);
    }
    text + rest
}

/// JSON on one printable line: serde_json only escapes ASCII control characters.
pub(crate) fn json(value: &impl Serialize) -> serde_json::Result<String> {
    let text = serde_json::to_string(value)?;
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        // Other control characters only occur inside strings.
        if is_printable(c.encode_utf8(&mut [0; 4])) {
            shown.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(shown, "\\u{unit:04x}");
            }
        }
    }
    Ok(shown)
}

/// Cuts it to the given number of characters, keeping the end.
pub(crate) fn cut(text: &str, width: usize) -> String {
    let text = printable(text).to_string();
    let count = text.chars().count();
    if count <= width {
        return text;
    }
    let kept: String = text.chars().skip(count - width.saturating_sub(2)).collect();
    format!("..{kept}")
}

/// Columns of the terminal; 100 if it is not a terminal.
pub(crate) fn width() -> usize {
    terminal_size::terminal_size().map_or(100, |(width, _)| usize::from(width.0).max(60))
}

/// Lines of the terminal, if there is one.
pub(crate) fn height() -> Option<usize> {
    terminal_size::terminal_size().map(|(_, height)| usize::from(height.0))
}

pub(crate) fn time(time: Duration) -> String {
    let nanos = time.as_nanos();
    let seconds = time.as_secs_f64();
    match nanos {
        0..10_000 => format!("{:.2} us", seconds * 1e6),
        10_000..1_000_000 => format!("{:.1} us", seconds * 1e6),
        1_000_000..1_000_000_000 => format!("{:.2} ms", seconds * 1e3),
        _ => format!("{seconds:.2} s"),
    }
}

pub(crate) fn age(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

pub(crate) fn bytes(count: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let (mut value, mut unit) = (count as f64, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", units[unit]) }
}

/// A number, with a unit of thousands if it is large.
pub(crate) fn count(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{:.1}M", value / 1e6),
        value if value >= 1e4 => format!("{:.1}k", value / 1e3),
        value if value >= 10.0 || value.fract() == 0.0 => format!("{value:.0}"),
        value => format!("{value:.1}"),
    }
}

/// Rows under a heading: the first column takes the available width, the others are right-aligned.
pub(crate) fn table(rows: &[Vec<String>], width: usize) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let widest = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let others: Vec<usize> = (1..columns).map(widest).collect();
    let room = width.saturating_sub(others.iter().map(|it| it + 2).sum());
    let first = widest(0).min(room.max(12));
    let mut text = String::new();
    for row in rows {
        let mut line = format!("{:first$}", cut(&row[0], first));
        for (cell, width) in row[1..].iter().zip(&others) {
            line.push_str(&format!("  {cell:>width$}"));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the width of a name of 65,536 or more characters panicked.
    #[test]
    fn a_cell_is_one_bounded_printable_line() {
        let long = "\u{202e}\n".repeat(100_000);
        let shown = cut(&long, 40);
        assert!(is_printable(&shown) && shown.chars().count() <= 40, "{shown:?}");
        let text = table(&[vec![long.clone(), "1".to_owned()]], 40);
        assert!(text.lines().count() == 1 && text.chars().count() <= 41, "{text:?}");
    }

    /// Regression: each bracket searched for its end up to the end of the line.
    #[test]
    fn links_without_an_end_take_no_squares() {
        for open in ["[a](", "[a][", "[`a`](", "["] {
            let _watchdog = test_kit::Watchdog::start("links without an end");
            let line = open.repeat(1_000_000);
            let shown = without_links(&line);
            assert!(shown.len() <= line.len(), "{open}");
        }
    }

    #[test]
    fn of_a_link_its_text_is_shown() {
        for (line, shown) in [
            ("The counts of a [`Server`](crate::server::Server).", "The counts of a `Server`."),
            ("See [`Stats`] and [the page][page].", "See `Stats` and the page."),
            ("An [interval] of a[1], and [one", "An [interval] of a[1], and [one"),
            ("plain", "plain"),
        ] {
            assert_eq!(without_links(line), shown);
        }
    }

    #[test]
    fn json_cannot_control_the_terminal() {
        let value = "a\u{1b}\u{9b}2J\u{7f}\u{85}\u{202e}\u{e0041}\u{df}";
        let shown = json(&value).unwrap();
        assert!(is_printable(&shown), "{shown:?}");
        let expected = "\"a\\u001b\\u009b2J\\u007f\\u0085\\u202e\\udb40\\udc41\u{df}\"";
        assert_eq!(shown, expected);
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), value);
    }

    #[test]
    fn a_table_is_no_wider_than_the_terminal() {
        let long = "Service.a_method_with_a_rather_long_name_that_is_cut";
        let row = |name: &str| vec![name.to_owned(), "12.3k".to_owned(), "1.25 ms".to_owned()];
        let text = table(&[row("METHOD"), row(long)], 40);
        assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
        assert!(text.contains("..") && text.contains("that_is_cut"), "{text}");
    }
}
