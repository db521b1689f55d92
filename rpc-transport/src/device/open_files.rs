//! The limit on open files (`RLIMIT_NOFILE`): how much of it silent peers may take, and how to
//! raise it.

use std::io;

use crate::memory::limits::{Limited, limit};

/// What to do when this process has no file descriptor left. Short: a rejection that a peer will
/// read has 100 bytes.
const RAISE_LIMIT: &str = "raise `ulimit -n` (or LimitNOFILE=)";
/// What to do when the whole system has no file descriptor left.
const RAISE_SYSTEM_LIMIT: &str = "raise the system's fs.file-max";

/// What to do about an error that means that this process, or the whole system, has no file
/// descriptor left; `None` for other errors.
#[must_use]
pub fn advice(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error() {
        Some(libc::EMFILE) => Some(RAISE_LIMIT),
        Some(libc::ENFILE) => Some(RAISE_SYSTEM_LIMIT),
        _ => None,
    }
}

/// The text of an error, with advice if there is any.
#[must_use]
pub fn explain(error: &io::Error) -> String {
    match advice(error) {
        Some(advice) => format!("{error}; {advice}"),
        None => error.to_string(),
    }
}

/// Divisor of the limit: the handshakes of one listener may take this part of it. The rest is for
/// established connections.
const HANDSHAKE_SHARE: u64 = 8;
/// With fewer, slow peers would evict each other all the time.
const MIN_HANDSHAKES: u64 = 4;

/// The number of handshakes that a listener may have at once: `most`, unless the limit on open
/// files allows fewer.
#[must_use]
pub(crate) fn handshakes(most: usize) -> usize {
    share(most, limit(Limited::OpenFiles))
}

/// The number of handshakes under a given limit; `None` is no limit.
fn share(most: usize, limit: Option<u64>) -> usize {
    let share = limit.map(|files| (files / HANDSHAKE_SHARE).max(MIN_HANDSHAKES));
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
