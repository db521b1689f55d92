//! Servers that a file names.

use std::io::{self, Read};
use std::path::PathBuf;
use std::time::Duration;

use futures::stream::unfold;

use super::resolve::{Resolve, ResolveError, Resolving, Watching};
use crate::channel::endpoint::Endpoint;
use crate::text::printable;

/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longest file, bytes.
const MAX_BYTES: u64 = 1 << 20;
/// Longest part of a line that is repeated in an error, bytes.
const MAX_SHOWN_BYTES: usize = 128;

/// A file with one server a line, which may change at any time: an address, and after it `weight=`,
/// `priority=`, `zone=` or `draining`, in any order. Empty lines, and what follows a `#`, are
/// ignored.
///
/// ```text
/// auto://10.0.0.7:7471 weight=200 zone=a
/// auto://10.0.0.8:7471 zone=b draining   # until Monday
/// auto://10.9.0.7:7471 priority=1
/// ```
///
/// It is looked at each second. A line that cannot be read is left out, with a warning; a file
/// without a single line that can be is an error. At most 1 MiB. Replace the file by renaming
/// another one to it: one that is written in place may be read half.
#[derive(Debug, Clone)]
pub struct File(PathBuf);

impl File {
    /// The file at this path, which need not exist yet.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Reads the file on a thread that may wait for a disk.
    async fn read(&self) -> Result<String, ResolveError> {
        let path = self.0.clone();
        let read = crate::runtime::blocking(move || {
            let mut text = String::new();
            // Not more than one byte too many, whatever the file is.
            std::fs::File::open(&path)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
            if text.len() as u64 > MAX_BYTES {
                return Err(io::Error::other(format!("it has more than {MAX_BYTES} bytes")));
            }
            Ok(text)
        });
        let failed = |error: &dyn std::fmt::Display| {
            let advice = "check that it exists and can be read";
            ResolveError::new(self.name(), format!("{error}; {advice}"))
        };
        read.await.map_err(|error| failed(&error))?.map_err(|error| failed(&error))
    }

    fn parse(&self, text: &str) -> Result<Vec<Endpoint>, ResolveError> {
        let (mut servers, mut bad) = (Vec::new(), None);
        for (line, number) in text.lines().zip(1..) {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            match parse_line(line) {
                Ok(server) => servers.push(server),
                Err(error) => {
                    let shown = printable(line).at_most(MAX_SHOWN_BYTES);
                    bad.get_or_insert_with(|| format!("line {number}, {shown:?}: {error}"));
                }
            }
        }
        match bad {
            Some(bad) if servers.is_empty() => Err(ResolveError::new(self.name(), bad)),
            Some(bad) => {
                tracing::warn!(file = self.name(), "a server is left out: {bad}");
                Ok(servers)
            }
            None => Ok(servers),
        }
    }
}

fn parse_line(line: &str) -> Result<Endpoint, String> {
    let mut words = line.split_whitespace();
    let address = words.next().unwrap_or_default();
    let mut server: Endpoint = address.parse().map_err(|error| format!("{error}"))?;
    for word in words {
        let number = |value: &str| {
            let number = value.parse::<u32>();
            number.map_err(|_| format!("`{word}` is not a number"))
        };
        server = match word.split_once('=') {
            Some(("weight", value)) => server.with_weight(number(value)?),
            Some(("priority", value)) => {
                let priority = u8::try_from(number(value)?);
                server.with_priority(priority.map_err(|_| "`priority` is above 255".to_owned())?)
            }
            Some(("zone", value)) => server.with_zone(value),
            None if word == "draining" => server.draining(),
            _ => {
                return Err(format!(
                    "`{word}` is none of `weight=`, `priority=`, `zone=` and `draining`"
                ));
            }
        };
    }
    Ok(server)
}

impl Resolve for File {
    fn name(&self) -> String {
        self.0.display().to_string()
    }

    fn resolve(&self) -> Resolving<'_> {
        Box::pin(async move { self.parse(&self.read().await?) })
    }

    fn watch(&self) -> Option<Watching<'_>> {
        // The balancer that follows it has received what the file said last.
        let told: Option<Result<String, String>> = None;
        Some(Box::pin(unfold(told, async move |mut told| {
            loop {
                if told.is_some() {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                let read = self.read().await;
                let known = read.clone().map_err(|error| error.to_string());
                if told.as_ref() != Some(&known) {
                    told = Some(known);
                    return Some((read.and_then(|text| self.parse(&text)), told));
                }
            }
        })))
    }
}
