//! Formats and parses times, sizes and counts for people: at most four digits.

use std::time::Duration;

pub(crate) use indicatif::HumanCount;

/// Shown if nothing was measured, or too little.
pub(crate) const DASH: &str = "-";

/// Three digits, or all before the decimal point.
fn digits(value: f64) -> String {
    let decimals = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.decimals$}")
}

/// A time from nanoseconds: `345 ns`, `1.10 µs`, `12.3 ms`, `2.00 s`.
pub(crate) fn time(ns: f64) -> String {
    match ns {
        ..999.5 => format!("{ns:.0} ns"),
        ..999_500.0 => format!("{} µs", digits(ns / 1e3)),
        ..999_500_000.0 => format!("{} ms", digits(ns / 1e6)),
        _ => format!("{} s", digits(ns / 1e9)),
    }
}

/// A time that may be unknown.
pub(crate) fn time_or_dash(ns: Option<f64>) -> String {
    ns.map_or_else(|| DASH.to_owned(), time)
}

/// A rate in GB/s (10^9 bytes); below a thousandth it is `0.00`.
pub(crate) fn giga(bytes_per_second: f64) -> String {
    let value = bytes_per_second / 1e9;
    if value < 0.0995 { format!("{value:.3}") } else { digits(value) }
}

/// A count per second.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast saturates")]
pub(crate) fn per_second(value: f64) -> String {
    if value < 99.95 { digits(value) } else { HumanCount(value.round() as u64).to_string() }
}

/// A size in units of powers of 1024: `64 B`, `16 KiB`, `1.5 MiB`.
#[allow(clippy::cast_precision_loss, reason = "what is shown has two digits")]
pub(crate) fn bytes(size: u64) -> String {
    let (shift, unit) = match size {
        0..=0x3ff => return format!("{size} B"),
        0x400..=0xf_ffff => (10, "KiB"),
        0x10_0000..=0x3fff_ffff => (20, "MiB"),
        _ => (30, "GiB"),
    };
    let value = size as f64 / f64::from(1 << shift);
    if value.fract() == 0.0 { format!("{value:.0} {unit}") } else { format!("{value:.1} {unit}") }
}

/// Reads a size: bytes, or with `K`, `M`, `G` in powers of 1024.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let (number, shift) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let number = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    number.ok_or_else(|| format!("`{text}` is not a size; write bytes, or 64K, 16M"))
}

/// Reads a time: seconds, or with `ms`, `s`, `m`, `h`; from 1 ms to an hour.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)]
        .iter()
        .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, *unit)))
        .unwrap_or((text, 1.0));
    let seconds: f64 =
        number.parse().map_err(|_| format!("`{text}` is not a time; write 5s or 200ms"))?;
    match seconds * unit {
        seconds if (0.001..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("a measurement takes 1ms to 1h".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_has_three_digits() {
        for (ns, text) in [
            (7.0, "7 ns"),
            (1_104.0, "1.10 µs"),
            (99_960.0, "100 µs"),
            (12_345_678.0, "12.3 ms"),
            (2e9, "2.00 s"),
        ] {
            assert_eq!(time(ns), text);
        }
        assert_eq!(giga(25_440_000_000.0), "25.4");
        assert_eq!(giga(51_234_000.0), "0.051");
        assert_eq!(per_second(1_234_567.4), "1,234,567");
        assert_eq!(per_second(4.2), "4.20");
    }

    #[test]
    fn sizes_are_read_and_written_alike() {
        for (text, size, shown) in
            [("64", 64, "64 B"), ("16K", 16 << 10, "16 KiB"), ("3m", 3 << 20, "3 MiB")]
        {
            assert_eq!(parse_bytes(text), Ok(size));
            assert_eq!(bytes(size), shown);
        }
        assert_eq!(bytes(1536), "1.5 KiB");
        for text in ["", "K", "-1", "1.5M", "99999999999G", "µ"] {
            assert!(parse_bytes(text).unwrap_err().contains(text), "{text}");
        }
    }

    #[test]
    fn times_are_read() {
        for (text, millis) in
            [("1", 1000), ("0.5", 500), ("20ms", 20), ("2m", 120_000), ("1h", 3_600_000)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "s", "-1s", "0", "nan", "inf", "2h", "61m"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
