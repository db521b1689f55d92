//! The limit on open files (`RLIMIT_NOFILE`): what peers that have said nothing may take of it, and
//! how to raise it.

use std::io;

use rustix::process::{Resource, getrlimit};

/// What to do when this process has no file descriptor left. Short, as a rejection that a peer is to
/// read has 100 bytes.
const RAISE: &str = "raise `ulimit -n` (or LimitNOFILE=)";
/// The same where the whole system has none.
const RAISE_FOR_ALL: &str = "raise the system's fs.file-max";

/// What to do about an error, if it is that this process, or the whole system, has no file
/// descriptor left.
#[must_use]
pub fn advice(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error() {
        Some(libc::EMFILE) => Some(RAISE),
        Some(libc::ENFILE) => Some(RAISE_FOR_ALL),
        _ => None,
    }
}

/// The text of an error, with advice if it is of that kind.
#[must_use]
pub fn explain(error: &io::Error) -> String {
    match advice(error) {
        Some(advice) => format!("{error}; {advice}"),
        None => error.to_string(),
    }
}

/// Part of the limit that handshakes of one listener may take: most is for connections that are up.
const PART: u64 = 8;
/// With fewer, peers that take their time would give way to each other all the time.
const LEAST: u64 = 4;

/// The number of handshakes that a listener may have at once; `most` where files do not limit it.
#[must_use]
pub(crate) fn handshakes(most: usize) -> usize {
    share(most, getrlimit(Resource::Nofile).current)
}

/// The same under a limit; `None` is none.
fn share(most: usize, limit: Option<u64>) -> usize {
    let share = limit.map(|files| (files / PART).max(LEAST));
    share.and_then(|share| usize::try_from(share).ok()).map_or(most, |share| share.min(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshakes_take_the_lesser_part_of_the_limit() {
        for (limit, expected) in [
            (None, 256),
            (Some(1 << 40), 256),
            (Some(2048), 256),
            (Some(1024), 128),
            (Some(256), 32),
            (Some(16), 4),
            (Some(0), 4),
        ] {
            assert_eq!(share(256, limit), expected, "{limit:?}");
        }
    }
}
