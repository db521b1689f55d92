//! Sizes, counts and times, in the form that people write and read.

use std::time::Duration;

const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];

/// `1234567` as `1,234,567`.
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 file`, `2,000 files`: a count and its noun.
#[must_use]
pub fn counted(number: u64, one: &str, many: &str) -> String {
    let noun = if number == 1 { one } else { many };
    format!("{} {noun}", count(number))
}

/// A size: `64 B`, `3.0 MiB`.
#[must_use]
pub fn bytes(size: u64) -> String {
    let mut unit = 0;
    let mut shown = size as f64;
    // A value that would be printed as 1024.0 is 1.0 of the next unit.
    while shown >= 1023.95 && unit + 1 < UNITS.len() {
        shown /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{size} B") } else { format!("{shown:.1} {}", UNITS[unit]) }
}

/// A speed: `47.2 MiB/s`.
#[must_use]
pub fn rate(size: u64, time: Duration) -> String {
    let per_second = size as f64 / time.as_secs_f64().max(1e-9);
    format!("{}/s", bytes(whole(per_second)))
}

/// The nearest whole number; 0 for values that are not positive.
#[must_use]
#[allow(clippy::cast_possible_truncation, reason = "a cast saturates")]
pub fn whole(value: f64) -> u64 {
    value.round() as u64
}

/// A time, three digits: `950 ns`, `18.2 µs`, `1.25 ms`, `3.00 s`.
#[must_use]
pub fn time(time: Duration) -> String {
    let ns = time.as_nanos();
    if ns < 1_000 {
        return format!("{ns} ns");
    }
    let (value, unit) = match ns {
        ..=999_499 => (ns as f64 / 1e3, "µs"),
        999_500..=999_499_999 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    let decimals = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.decimals$} {unit}")
}

/// Reads a size: a number of bytes, optionally with `K`, `M`, `G` or `T` (powers of 1024; `KiB` and
/// `KB` mean the same).
///
/// # Errors
/// The mistake and its correction.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a size; write bytes, or 64K, 16M, 2G");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let suffix = text[digits.len()..].to_ascii_lowercase();
    let shift = match suffix.as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.trim_end().parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("`{text}` is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_grouped() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(number), text);
        }
        assert_eq!(counted(1, "key", "keys"), "1 key");
        assert_eq!(counted(1200, "key", "keys"), "1,200 keys");
    }

    #[test]
    fn sizes_have_one_decimal() {
        for (size, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (1_048_575, "1.0 MiB"),
            (3 << 30, "3.0 GiB"),
            (u64::MAX, "16777216.0 TiB"),
        ] {
            assert_eq!(bytes(size), text);
        }
        assert_eq!(rate(2 << 20, Duration::from_secs(2)), "1.0 MiB/s");
        assert_eq!(rate(0, Duration::ZERO), "0 B/s");
    }

    #[test]
    fn times_have_three_digits() {
        for (ns, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.00 µs"),
            (18_249, "18.2 µs"),
            (99_960, "100 µs"),
            (999_499, "999 µs"),
            (999_500, "1.00 ms"),
            (1_250_000, "1.25 ms"),
            (3_000_000_000, "3.00 s"),
        ] {
            assert_eq!(time(Duration::from_nanos(ns)), text);
        }
    }

    #[test]
    fn sizes_are_read() {
        for (text, size) in [
            ("0", 0),
            ("17", 17),
            ("17B", 17),
            ("64k", 64 << 10),
            ("64KiB", 64 << 10),
            ("16 MB", 16 << 20),
            ("2G", 2 << 30),
        ] {
            assert_eq!(parse_bytes(text), Ok(size), "{text}");
        }
        for text in ["", "k", "-1", "1.5G", "1x", "ib", "99999999T"] {
            assert!(parse_bytes(text).unwrap_err().contains(text), "{text}");
        }
    }
}
