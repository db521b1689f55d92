//! Text for terminals: tables, times, and nothing that a peer could do to the terminal.

use std::fmt::Write as _;
use std::time::Duration;

use rpc_core::serde::Serialize;

/// What a peer has sent, without its control characters.
pub(crate) fn clean(text: &str) -> String {
    let shown = |c: char| {
        let is_kept = !c.is_control() || c == '\n';
        if is_kept { c } else { char::REPLACEMENT_CHARACTER }
    };
    text.chars().map(shown).collect()
}

/// A line of documentation as it reads: of each link of Markdown or rustdoc its text alone.
pub(crate) fn without_links(line: &str) -> String {
    let (mut text, mut rest) = (String::new(), line);
    while let Some((before, link)) = rest.split_once('[') {
        text.push_str(before);
        let Some((shown, after)) = link.split_once(']') else {
            rest = &rest[before.len()..];
            break;
        };
        let target = [('(', ')'), ('[', ']')].into_iter().find_map(|(open, close)| {
            after.strip_prefix(open)?.split_once(close).map(|(_, after)| after)
        });
        // What stands in brackets otherwise may be meant as it is.
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

/// JSON on one line, without control characters of any kind: serde_json leaves DEL and C1 as they are.
pub(crate) fn json(value: &impl Serialize) -> serde_json::Result<String> {
    let text = serde_json::to_string(value)?;
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        // There are none but in texts.
        if c.is_control() {
            let _ = write!(shown, "\\u{:04x}", u32::from(c));
        } else {
            shown.push(c);
        }
    }
    Ok(shown)
}

/// At most so many characters of it, the end kept.
pub(crate) fn cut(text: &str, width: usize) -> String {
    let text = clean(text).replace('\n', " ");
    let count = text.chars().count();
    if count <= width {
        return text;
    }
    let kept: String = text.chars().skip(count - width.saturating_sub(2)).collect();
    format!("..{kept}")
}

/// Columns of the terminal; of what is no terminal, 100.
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

/// A number with a unit of a thousand where it is large.
pub(crate) fn count(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{:.1}M", value / 1e6),
        value if value >= 1e4 => format!("{:.1}k", value / 1e3),
        value if value >= 10.0 || value.fract() == 0.0 => format!("{value:.0}"),
        value => format!("{value:.1}"),
    }
}

/// Rows under a heading: the first column is as wide as there is room for, the others are aligned at
/// the right.
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

    #[test]
    fn what_a_peer_sends_cannot_control_the_terminal() {
        assert_eq!(clean("a\u{1b}[2Jb\r\u{9b}c"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}c");
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
    fn what_a_peer_sends_cannot_control_the_terminal_as_json() {
        let value = "a\u{1b}\u{9b}2J\u{7f}\u{85}\u{df}";
        let shown = json(&value).unwrap();
        assert_eq!(shown, r#""a\u001b\u009b2J\u007f\u0085\u00df""#.replace(r"\u00df", "\u{df}"));
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
