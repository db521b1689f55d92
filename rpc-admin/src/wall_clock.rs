//! The wall-clock time shown on the page.

use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) fn unix_millis(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
