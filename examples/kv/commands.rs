//! The commands about single keys: one call each, and its output.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;

use examples::channel::path;
use examples::units::{bytes, count, counted};

use super::cli::{CasArgs, DelArgs, GetArgs, ListArgs, PutArgs, StatsArgs, ValueArgs};
use super::connect::connect;
use super::error::CommandError;
use super::key_path::Printable;
use super::listing::Listing;
use super::output;
use super::service::{KvError, Listed, MAX_VALUE_BYTES, Stats};

/// `kv get`.
pub(crate) async fn get(args: &GetArgs) -> Result<(), CommandError> {
    let client = connect(&args.connect).await?;
    let value =
        client.get(&args.key).await.map_err(|error| CommandError::call(&args.key, error))?;
    if args.show_version {
        eprintln!("version {}", value.version);
    }
    match &args.output {
        Some(path) => output::write(path, &value.bytes).map_err(CommandError::file(path)),
        None => {
            let stdout = io::stdout().lock();
            Ok(value.bytes.write_to(stdout)?)
        }
    }
}

/// `kv put`.
pub(crate) async fn put(args: &PutArgs) -> Result<(), CommandError> {
    let value = read_value(&args.key, &args.value)?;
    let client = connect(&args.connect).await?;
    let put = client.put(&args.key, value.into()).await;
    let version = put.map_err(|error| CommandError::call(&args.key, error))?;
    print_line(&format!("version {version}"))
}

/// `kv del`.
pub(crate) async fn del(args: &DelArgs) -> Result<(), CommandError> {
    let client = connect(&args.connect).await?;
    let deleted = client.delete(&args.key).await;
    let version = deleted.map_err(|error| CommandError::call(&args.key, error))?;
    print_line(&format!("deleted version {version}"))
}

/// `kv cas`.
pub(crate) async fn cas(args: &CasArgs) -> Result<(), CommandError> {
    let value = read_value(&args.key, &args.value)?;
    let client = connect(&args.connect).await?;
    let swapped = client.compare_and_swap(&args.key, args.expected.0, value.into()).await;
    let version = swapped.map_err(|error| CommandError::call(&args.key, error))?;
    print_line(&format!("version {version}"))
}

/// `kv list`.
pub(crate) async fn list(args: &ListArgs) -> Result<(), CommandError> {
    let client = connect(&args.connect).await?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    let mut left = args.limit.unwrap_or(u64::MAX);
    let mut listing = Listing::new(&client, &args.prefix);
    while left > 0 {
        let Some(keys) = listing.next(left).await? else { break };
        left = left.saturating_sub(keys.len() as u64);
        for listed in &keys {
            print_key(&mut out, args, listed)?;
        }
    }
    Ok(out.flush()?)
}

fn print_key(out: &mut impl Write, args: &ListArgs, listed: &Listed) -> io::Result<()> {
    let Listed { key, version, bytes } = listed;
    if args.null {
        return write!(out, "{key}\0");
    }
    if args.long {
        write!(out, "{version:>10} {bytes:>12} ")?;
    }
    writeln!(out, "{}", Printable(key))
}

/// `kv stats`.
pub(crate) async fn stats(args: &StatsArgs) -> Result<(), CommandError> {
    let client = connect(&args.connect).await?;
    let stats = client.stats().await?;
    print_line(&stats_text(&path(client.channel()), &stats))
}

fn stats_text(path: &str, stats: &Stats) -> String {
    let limit = match stats.max_bytes {
        Some(max) => format!(" of at most {}", bytes(max)),
        None => String::new(),
    };
    let requests = &stats.requests;
    [
        format!("path      {path}"),
        format!("keys      {}", count(stats.keys)),
        format!("bytes     {} ({}{limit})", count(stats.bytes), bytes(stats.bytes)),
        format!("uptime    {}", uptime(stats.uptime_seconds)),
        format!(
            "requests  {}: get {}, put {}, delete {}, cas {}, list {}",
            count(requests.total()),
            count(requests.get),
            count(requests.put),
            count(requests.delete),
            count(requests.compare_and_swap),
            count(requests.list),
        ),
    ]
    .join("\n")
}

fn uptime(seconds: u64) -> String {
    let days = match seconds / 86_400 {
        0 => String::new(),
        days => counted(days, "day ", "days "),
    };
    let (hours, minutes) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!("{days}{hours:02}:{minutes:02}:{:02}", seconds % 60)
}

fn print_line(line: &str) -> Result<(), CommandError> {
    Ok(writeln!(io::stdout(), "{line}")?)
}

/// The value from the command line, a file or stdin. Never reads further than the largest value.
fn read_value(key: &str, args: &ValueArgs) -> Result<Vec<u8>, CommandError> {
    let value = match (&args.file, &args.value) {
        (Some(path), _) => read_file(path).map_err(CommandError::file(path))?,
        (None, Some(value)) if value != "-" => value.clone().into_bytes(),
        (None, _) => {
            read_limited(io::stdin().lock(), 0).map_err(CommandError::file(Path::new("stdin")))?
        }
    };
    if value.len() > MAX_VALUE_BYTES {
        let (bytes, max) = (value.len() as u64, MAX_VALUE_BYTES as u64);
        let error = KvError::TooLarge { bytes, max };
        return Err(CommandError::Refused { key: key.to_owned(), error });
    }
    Ok(value)
}

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let file = fs::File::open(path)?;
    let expected = usize::try_from(file.metadata()?.len()).unwrap_or(0).min(MAX_VALUE_BYTES);
    read_limited(file, expected)
}

/// Reads to the end, or one byte more than a value may have. Reserves room for `expected` bytes.
pub(crate) fn read_limited(from: impl Read, expected: usize) -> io::Result<Vec<u8>> {
    let mut value = Vec::with_capacity(expected + 1);
    from.take(MAX_VALUE_BYTES as u64 + 1).read_to_end(&mut value)?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::super::service::{Requests, Version};
    use super::*;

    #[test]
    fn the_uptime_is_read_like_a_clock() {
        for (seconds, text) in [
            (0, "00:00:00"),
            (3_725, "01:02:05"),
            (86_400, "1 day 00:00:00"),
            (200_000, "2 days 07:33:20"),
        ] {
            assert_eq!(uptime(seconds), text);
        }
    }

    #[test]
    fn stats_are_one_line_a_number() {
        let requests = Requests { get: 1000, put: 2, delete: 3, compare_and_swap: 4, list: 5 };
        let mut stats =
            Stats { keys: 7, bytes: 2048, max_bytes: Some(4096), uptime_seconds: 9, requests };
        let text = stats_text("shm://a", &stats);
        assert!(text.contains("bytes     2,048 (2.0 KiB of at most 4.0 KiB)"), "{text}");
        assert!(text.contains("1,014: get 1,000, put 2, delete 3, cas 4, list 5"), "{text}");
        stats.max_bytes = None;
        assert!(stats_text("shm://a", &stats).contains("2,048 (2.0 KiB)"));
    }

    #[test]
    fn a_listing_is_for_people_or_for_programs() {
        use clap::Parser;
        let listed = Listed { key: "a\nb".to_owned(), version: Version(3), bytes: 17 };
        for (option, text) in [
            (None, "a\\nb\n"),
            (Some("--long"), "         3           17 a\\nb\n"),
            (Some("--null"), "a\nb\0"),
        ] {
            let line = ["kv", "list", "shm://a"].into_iter().chain(option);
            let cli = super::super::cli::Cli::parse_from(line);
            let super::super::cli::Command::List(args) = cli.command else { panic!() };
            let mut out = Vec::new();
            print_key(&mut out, &args, &listed).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), text);
        }
    }
}
