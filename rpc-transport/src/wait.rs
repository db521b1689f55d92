//! Waits of any length, within the clock's range.

use std::time::{Duration, Instant};

/// What is longer counts as this: 100 years.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The moment at which a wait is over that begins at `from`. A wait longer than 100 years counts as
/// 100 years: a moment beyond the clock's range would be none, and a wait that is dropped is
/// another thing than a long one.
#[inline]
#[must_use]
pub fn after(from: Instant, wait: Duration) -> Instant {
    from.checked_add(wait.min(LONGEST)).unwrap_or(from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_wait_is_long() {
        let now = Instant::now();
        assert_eq!(after(now, Duration::from_secs(7)), now + Duration::from_secs(7));
        assert_eq!(after(now, Duration::ZERO), now);
        assert_eq!(after(now, Duration::MAX), now + LONGEST);
    }
}
